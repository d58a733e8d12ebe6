//! The condition variable's protocol, on top of those of the lock and the list.
//!
//! A notification that follows a change under the lock wakes a waiter, and a waiter that gives up
//! uses up no notification. Run by `make models`.
use crate::loom_waits::{Contender, contender};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use upcall_thread::model::{LockAttempt, RawLock, WaitList, WaitNode};

/// Tokens under a lock, and the threads that wait for one.
struct Tokens {
    lock: RawLock<&'static Contender>,
    waiters: WaitList<&'static Contender>,
    left: UnsafeCell<usize>,
}

// SAFETY: only the holder of the lock touches the tokens; loom checks this.
unsafe impl Sync for Tokens {}
// SAFETY: as above.
unsafe impl Send for Tokens {}

impl Tokens {
    fn new() -> Arc<Self> {
        Arc::new(Tokens {
            lock: RawLock::new(),
            waiters: WaitList::new(),
            left: UnsafeCell::new(0),
        })
    }

    fn acquire(&self) {
        let me = contender(true);
        let node = WaitNode::new(me, 0);
        // SAFETY: the node stays until the wake.
        if !self.lock.try_acquire() && unsafe { self.lock.enter(&node) } == LockAttempt::Queued {
            me.wait();
        }
    }

    fn release(&self) {
        if let Some(next) = self.lock.release() {
            next.wake();
        }
    }

    /// As `Condvar::wait_by` in a loop. Returns `false` if the taker gave up.
    fn take(&self, patient: bool) -> bool {
        self.acquire();
        // SAFETY: the lock is held.
        while self.left.with(|left| unsafe { *left }) == 0 {
            let me = contender(patient);
            let node = WaitNode::new(me, 0);
            // SAFETY: the node stays until the wake, or until it is removed.
            unsafe { self.waiters.open().add(&node) };
            self.release();
            if !me.wait() {
                self.waiters.open().remove(&node);
                return false;
            }
            self.acquire();
        }
        // SAFETY: the lock is held.
        self.left.with_mut(|left| unsafe { *left -= 1 });
        self.release();
        true
    }

    /// As a change under the lock, followed by `Condvar::notify_one`.
    fn put(&self) {
        self.acquire();
        // SAFETY: the lock is held.
        self.left.with_mut(|left| unsafe { *left += 1 });
        self.release();
        if !self.waiters.seems_empty() {
            let woken = self.waiters.open().take_one();
            if let Some(woken) = woken {
                woken.wake();
            }
        }
    }
}

fn check(takers: &'static [bool], preemptions: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let tokens = Tokens::new();
        let threads: Vec<_> = takers
            .iter()
            .map(|&patient| {
                let tokens = Arc::clone(&tokens);
                thread::spawn(move || tokens.take(patient))
            })
            .collect();
        // One token for each taker, whether or not it may give up.
        takers.iter().for_each(|_| tokens.put());
        let taken =
            threads.into_iter().map(|thread| thread.join().unwrap()).filter(|&took| took).count();
        // SAFETY: all others have ended.
        assert_eq!(tokens.left.with(|left| unsafe { *left }), takers.len() - taken);
    });
}

#[test]
fn one_taker() {
    check(&[true], 4);
}

#[test]
fn two_takers() {
    check(&[true, true], 2);
}

#[test]
fn one_that_gives_up_uses_up_no_notification() {
    check(&[true, false], 2);
}
