//! The mutex's protocol.
//!
//! One holder at a time, and every waiter gets its turn, or gives up without holding up others. Run
//! by `make models`.
use crate::loom_waits::{Contender, contender};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use upcall_thread::model::{LockAttempt, RawLock, WaitNode};

struct Guarded {
    lock: RawLock<&'static Contender>,
    value: UnsafeCell<usize>,
}

// SAFETY: only the holder of the lock touches the value; loom checks this.
unsafe impl Sync for Guarded {}
// SAFETY: as above.
unsafe impl Send for Guarded {}

impl Guarded {
    fn new() -> Arc<Self> {
        Arc::new(Guarded { lock: RawLock::new(), value: UnsafeCell::new(0) })
    }

    /// Adds one under the lock.
    ///
    /// If not `patient`, a wait ends by its deadline unless a wake came first.
    fn add_one(&self, patient: bool) -> bool {
        let me = contender(patient);
        let node = WaitNode::new(me, 0);
        // SAFETY: the node stays until the wake, or until `give_up`.
        if !self.lock.try_acquire()
            && unsafe { self.lock.enter(&node) } == LockAttempt::Queued
            && !me.wait()
        {
            self.lock.give_up(&node);
            return false;
        }
        // SAFETY: this contender holds the lock.
        self.value.with_mut(|value| unsafe { *value += 1 });
        if let Some(next) = self.lock.release() {
            next.wake();
        }
        true
    }
}

fn contend(others: &'static [bool], preemptions: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let guarded = Guarded::new();
        let threads: Vec<_> = others
            .iter()
            .map(|&patient| {
                let guarded = Arc::clone(&guarded);
                thread::spawn(move || guarded.add_one(patient))
            })
            .collect();
        let mut added = usize::from(guarded.add_one(true));
        for thread in threads {
            added += usize::from(thread.join().unwrap());
        }
        // SAFETY: all contenders have ended.
        assert_eq!(guarded.value.with(|value| unsafe { *value }), added);
        assert!(guarded.lock.try_acquire(), "no thread holds it, so it is free");
    });
}

#[test]
fn two_contenders() {
    contend(&[true], 4);
}

#[test]
fn three_contenders() {
    contend(&[true, true], 3);
}

#[test]
fn one_gives_up() {
    contend(&[false], 4);
}

#[test]
fn one_gives_up_among_three() {
    contend(&[false, true], 2);
}
