//! A model of the watch over busy processors: `make models`.
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use upcall_sched::sleep;
use upcall_sched::watch::Watch;

/// Goes off some time after it was set: at the latest when the request is there.
#[derive(Default)]
struct Timer {
    set: bool,
    request: bool,
}

struct Scene {
    watch: Watch,
    running: AtomicU32,
    asleep: AtomicU32,
    timer: Mutex<Timer>,
    changed: Condvar,
}

impl Scene {
    fn set_timer(&self) {
        self.timer.lock().unwrap().set = true;
        self.changed.notify_all();
    }

    /// Runs something long; meanwhile a request comes, for which nobody rings, since we are awake.
    fn run(&self) {
        self.running.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.watch.begins_to_run(|| sleep::seems_asleep(&self.asleep)) {
            self.set_timer();
        }
        self.timer.lock().unwrap().request = true;
        self.changed.notify_all();
    }

    /// Goes to sleep until the timer goes off, which is before the request comes if that may be
    /// `early`. Whether the request is there.
    fn sleep(&self, early: bool) -> bool {
        sleep::announce(&self.asleep);
        fence(Ordering::SeqCst);
        let runs = self.running.load(Ordering::Acquire) != 0;
        if self.watch.goes_to_sleep(runs, !runs) {
            self.set_timer();
        }
        let mut timer = self.timer.lock().unwrap();
        if !timer.request {
            while !(timer.set && (early || timer.request)) {
                timer = self.changed.wait(timer).unwrap();
            }
            timer.set = false;
            self.watch.has_gone_off();
        }
        sleep::retract(&self.asleep);
        let there = timer.request;
        drop(timer);
        self.watch.brought(there);
        there
    }
}

fn a_request_is_found(wakes_in_vain: usize) {
    loom::model(move || {
        let scene = Arc::new(Scene {
            watch: Watch::default(),
            running: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
            timer: Mutex::default(),
            changed: Condvar::new(),
        });
        let runner = scene.clone();
        let running = thread::spawn(move || runner.run());
        let found = (0..=wakes_in_vain).any(|wake| scene.sleep(wake < wakes_in_vain));
        assert!(found);
        running.join().unwrap();
    });
}

/// loom reports a deadlock if nobody sets the timer.
#[test]
fn a_request_beside_a_busy_processor_is_found() {
    a_request_is_found(0);
}

#[test]
fn it_is_found_after_wakes_in_vain() {
    a_request_is_found(2);
}
