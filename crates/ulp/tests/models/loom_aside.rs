//! Model of helpers, run by `make models`.
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex, Notify};
use loom::thread::{self, JoinHandle};
use std::time::Duration;
use upcall_ulp::helping::{HelperPool, HelperRun};

const INTERRUPTED: i64 = -4;
const HELPER: i32 = 7;

/// What the kernel knows of the helper's thread: whether a signal is pending.
#[derive(Default)]
struct Kernel {
    signalled: Mutex<bool>,
    wakes: Condvar,
}

impl Kernel {
    fn signal(&self) {
        *self.signalled.lock().unwrap() = true;
        self.wakes.notify_one();
    }

    /// A call that only a signal ends.
    ///
    /// A signal between the check and the call is not lost: its handler ends the call.
    fn call(&self, stop: &AtomicU32) -> i64 {
        if stop.load(Ordering::SeqCst) == 0 {
            let mut signalled = self.signalled.lock().unwrap();
            while !std::mem::take(&mut *signalled) {
                signalled = self.wakes.wait(signalled).unwrap();
            }
        }
        INTERRUPTED
    }
}

/// The call ends whenever it is interrupted; otherwise there is a deadlock.
#[test]
fn a_call_that_waits_for_ever_ends_when_it_is_interrupted() {
    loom::model(|| {
        let (run, kernel) = (Arc::new(HelperRun::<()>::new()), Arc::new(Kernel::default()));
        let helper = {
            let (run, kernel) = (run.clone(), kernel.clone());
            thread::spawn(move || run.carry_out(HELPER, INTERRUPTED, |stop| kernel.call(stop)))
        };
        run.interrupt(|helper| {
            assert_eq!(helper, HELPER);
            kernel.signal();
        });
        helper.join().unwrap();
        assert_eq!(run.result(), Some(INTERRUPTED));
    });
}

/// A signal sent for one call ends no other: the helper's next call is not disturbed, or is
/// repeated.
#[test]
fn a_late_signal_ends_no_other_call() {
    loom::model(|| {
        let (first, kernel) = (Arc::new(HelperRun::<()>::new()), Arc::new(Kernel::default()));
        let second = Arc::new(HelperRun::<()>::new());
        let helper = {
            let (first, second, kernel) = (first.clone(), second.clone(), kernel.clone());
            thread::spawn(move || {
                first.carry_out(HELPER, INTERRUPTED, |_| 1);
                second.carry_out(HELPER, INTERRUPTED, |_| {
                    if std::mem::take(&mut *kernel.signalled.lock().unwrap()) {
                        INTERRUPTED
                    } else {
                        2
                    }
                });
            })
        };
        first.interrupt(|_| kernel.signal());
        helper.join().unwrap();
        assert_eq!((first.result(), second.result()), (Some(1), Some(2)));
    });
}

/// The memory that a call may write to is there until it is done, and not afterwards.
#[test]
fn what_is_kept_goes_when_the_call_is_done() {
    struct Memory(Arc<AtomicBool>);

    impl Drop for Memory {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    loom::model(|| {
        let (gone, run) = (Arc::new(AtomicBool::new(false)), Arc::new(HelperRun::new()));
        let helper = {
            let (gone, run) = (gone.clone(), run.clone());
            thread::spawn(move || {
                run.carry_out(HELPER, INTERRUPTED, |stop| {
                    assert!(!gone.load(Ordering::SeqCst));
                    stop.load(Ordering::SeqCst).into()
                });
            })
        };
        run.keep(Memory(gone.clone()), |_| ());
        helper.join().unwrap();
        assert!(gone.load(Ordering::SeqCst));
    });
}

/// The doorbell, like an eventfd: rung until it is silenced.
#[derive(Default)]
struct Doorbell {
    rung: Mutex<bool>,
    wakes: Notify,
}

struct Scene {
    pool: HelperPool<u64>,
    doorbell: Doorbell,
    started: AtomicUsize,
}

fn help(scene: &Scene) {
    while let Some(token) = scene.pool.next(Duration::MAX) {
        scene.pool.note(token);
        *scene.doorbell.rung.lock().unwrap() = true;
        scene.doorbell.wakes.notify();
    }
}

/// All calls that are added are done and reported, with one helper or two.
///
/// A thread that waits on the doorbell learns of all their ends; otherwise there is a deadlock.
fn all_are_told(calls: u64, most: usize) {
    loom::model(move || {
        let scene = Arc::new(Scene {
            pool: HelperPool::new(most),
            doorbell: Doorbell::default(),
            started: AtomicUsize::new(0),
        });
        let helpers = std::cell::RefCell::new(Vec::<JoinHandle<()>>::new());
        for token in 0..calls {
            let start = || {
                let its = scene.clone();
                scene.started.fetch_add(1, Ordering::SeqCst);
                helpers.borrow_mut().push(thread::spawn(move || help(&its)));
                Ok::<_, ()>(())
            };
            scene.pool.add(token, start).unwrap();
        }
        let mut told = Vec::new();
        while told.len() < calls as usize {
            loop {
                let mut rung = scene.doorbell.rung.lock().unwrap();
                if std::mem::take(&mut *rung) {
                    break;
                }
                drop(rung);
                scene.doorbell.wakes.wait();
            }
            told.extend(scene.pool.take_notes());
        }
        told.sort_unstable();
        assert_eq!(told, (0..calls).collect::<Vec<_>>());
        assert!(scene.started.load(Ordering::SeqCst) <= most);
        scene.pool.end();
        helpers.into_inner().into_iter().for_each(|helper| helper.join().unwrap());
    });
}

#[test]
fn two_calls_are_done_and_told_by_one_helper() {
    all_are_told(2, 1);
}

#[test]
fn two_calls_are_done_and_told_by_as_many_helpers_as_are_needed() {
    all_are_told(2, 2);
}
