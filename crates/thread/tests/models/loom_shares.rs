//! The protocol of the read-write lock and the semaphore.
//!
//! Shares are never given twice, and every waiter gets its shares, or gives up without holding up
//! others. Run by `make models`.
use crate::loom_waits::{Contender, contender};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use upcall_thread::model::{LockAttempt, Shares, WaitNode};

/// All shares: what a writer takes.
const ALL: usize = 2;

struct Guarded {
    shares: Shares<&'static Contender>,
    value: UnsafeCell<usize>,
}

// SAFETY: only holders of shares touch the value; loom checks this.
unsafe impl Sync for Guarded {}
// SAFETY: as above.
unsafe impl Send for Guarded {}

/// Number of shares that a contender wants, and whether it waits for ever.
type Wish = (usize, bool);

impl Guarded {
    fn use_shares(&self, (wants, patient): Wish) -> usize {
        let me = contender(patient);
        let node = WaitNode::new(me, wants);
        // SAFETY: the node stays until the wake, or until `give_up`.
        if !self.shares.try_take(wants)
            && unsafe { self.shares.enter(&node) } == LockAttempt::Queued
            && !me.wait()
        {
            self.shares.give_up(&node).wake_all(Contender::wake);
            return 0;
        }
        let mut wrote = 0;
        if wants == ALL {
            // SAFETY: this contender has all shares.
            self.value.with_mut(|value| unsafe { *value += 1 });
            wrote = 1;
        } else {
            // SAFETY: this contender has one share, so no other has all.
            self.value.with(|value| assert!(unsafe { *value } < 4));
        }
        if let Some(taken) = self.shares.give(wants) {
            taken.wake_all(Contender::wake);
        }
        wrote
    }
}

fn contend(mine: Wish, others: &'static [Wish], preemptions: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let guarded = Arc::new(Guarded { shares: Shares::new(ALL), value: UnsafeCell::new(0) });
        let threads: Vec<_> = others
            .iter()
            .map(|&wish| {
                let guarded = Arc::clone(&guarded);
                thread::spawn(move || guarded.use_shares(wish))
            })
            .collect();
        let mut wrote = guarded.use_shares(mine);
        for thread in threads {
            wrote += thread.join().unwrap();
        }
        // SAFETY: all contenders have ended.
        assert_eq!(guarded.value.with(|value| unsafe { *value }), wrote);
        assert!(guarded.shares.try_take(ALL), "all shares are back, and no thread waits");
    });
}

#[test]
fn two_writers() {
    contend((ALL, true), &[(ALL, true)], 4);
}

#[test]
fn a_writer_and_two_readers() {
    contend((ALL, true), &[(1, true), (1, true)], 2);
}

#[test]
fn a_writer_gives_up_before_a_reader() {
    contend((1, true), &[(ALL, false), (1, true)], 2);
}

#[test]
fn a_reader_gives_up() {
    contend((ALL, true), &[(1, false)], 4);
}
