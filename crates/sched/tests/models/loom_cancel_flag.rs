//! Models of the flag that cancels calls: `make models`.
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use upcall_sched::cancel_flag::CancelFlag;
use upcall_sched::sleep;

/// One wait of a thread: the first of its ends counts, as with a `Ticket`.
#[derive(Default)]
struct Wait {
    over: AtomicU32,
    ended: Mutex<u32>,
    changed: Condvar,
}

const REPLY: u32 = 1;
const FLAG: u32 = 2;

impl Wait {
    fn end(&self, by: u32) {
        if self.over.compare_exchange(0, by, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            *self.ended.lock().unwrap() += 1;
            self.changed.notify_all();
        }
    }

    fn until_ended(&self) -> u32 {
        let mut ended = self.ended.lock().unwrap();
        while *ended == 0 {
            ended = self.changed.wait(ended).unwrap();
        }
        *ended
    }
}

/// A thread that waits for its reply is woken once: by the reply or by the flag, in any order.
/// loom reports a deadlock if the flag can be missed.
#[test]
fn a_thread_is_ended_once_by_reply_or_flag() {
    loom::model(|| {
        let (flag, wait) =
            (Arc::new(CancelFlag::<Arc<Wait>>::default()), Arc::new(Wait::default()));
        let setting = {
            let flag = flag.clone();
            thread::spawn(move || flag.set().into_iter().for_each(|wait| wait.end(FLAG)))
        };
        let replying = {
            let wait = wait.clone();
            thread::spawn(move || wait.end(REPLY))
        };
        if let Some(wait) = flag.enter(wait.clone(), |_| false) {
            wait.end(FLAG);
        }
        assert_eq!(wait.until_ended(), 1);
        setting.join().unwrap();
        replying.join().unwrap();
    });
}

/// The same without a reply: the flag alone ends the wait.
#[test]
fn the_flag_is_not_missed() {
    loom::model(|| {
        let (flag, wait) =
            (Arc::new(CancelFlag::<Arc<Wait>>::default()), Arc::new(Wait::default()));
        let setter = flag.clone();
        let setting =
            thread::spawn(move || setter.set().into_iter().for_each(|wait| wait.end(FLAG)));
        if let Some(wait) = flag.enter(wait.clone(), |_| false) {
            wait.end(FLAG);
        }
        assert_eq!(wait.until_ended(), 1);
        setting.join().unwrap();
    });
}

/// A futex: compares and sleeps in one step, as the kernel does under its bucket lock.
#[derive(Default)]
struct Futex {
    lock: Mutex<()>,
    woken: Condvar,
}

/// A kernel thread sleeps in its lane.
#[derive(Default)]
struct Lane {
    asleep: AtomicU32,
    futex: Futex,
}

#[test]
fn a_kernel_thread_does_not_sleep_through_the_flag() {
    loom::model(|| {
        let (flag, lane) =
            (Arc::new(CancelFlag::<Arc<Lane>>::default()), Arc::new(Lane::default()));
        let setter = flag.clone();
        let setting = thread::spawn(move || {
            for lane in setter.set() {
                sleep::retract(&lane.asleep);
                let _guard = lane.futex.lock.lock().unwrap();
                lane.futex.woken.notify_all();
            }
        });
        drop(flag.enter(lane.clone(), |_| false));
        loop {
            sleep::announce(&lane.asleep);
            if flag.is_set() {
                sleep::retract(&lane.asleep);
                break;
            }
            let mut guard = lane.futex.lock.lock().unwrap();
            if lane.asleep.load(Ordering::SeqCst) == 1 {
                guard = lane.futex.woken.wait(guard).unwrap();
            }
            drop(guard);
        }
        flag.leave(|one| Arc::ptr_eq(one, &lane));
        setting.join().unwrap();
    });
}
