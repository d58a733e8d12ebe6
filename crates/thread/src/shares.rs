//! The protocols of the read-write lock and of the semaphore, independent of threads.
//!
//! Each is a number of shares of which some are taken, and a list of waiters that want more than
//! there are, first come, first served. A semaphore has as many shares as permits, and each taker
//! wants some. A read-write lock has `MOST`, of which a reader takes one and the writer all. So
//! writers do not starve behind readers, nor readers behind writers, and small requests do not
//! overtake a large one for ever.
//!
//! The state is one word: the free shares times two, plus `WAITING` if a waiter may be listed.
//! While `WAITING` is set, shares change hands only with the list open; otherwise by a
//! compare-and-swap.
//!
//! # Why no wake is lost
//! `WAITING` is set, and a node added, in one opening of the list, by a compare-and-swap from a
//! word that has too few shares. If a giver added shares before that, the compare-and-swap fails. A
//! giver that comes after it sees `WAITING`, and opens the list. `tests/models/loom_shares.rs`
//! checks this.

use crate::list::{ListedWait, OpenList, TakenWaiters, WaitList, WaitNode};
use crate::lock::LockAttempt;
use crate::sync::{AtomicUsize, Ordering};

const WAITING: usize = 1;

/// Shares on which `W`s wait; see the module comment.
///
/// What a node `wants` is a number of shares.
#[derive(Debug)]
pub struct Shares<W> {
    word: AtomicUsize,
    list: WaitList<W>,
}

/// Maximum number of shares.
pub const MOST: usize = usize::MAX >> 2;

impl<W: ListedWait> Shares<W> {
    /// Creates `free` shares, at most `MOST`.
    #[cfg(not(loom))]
    pub const fn new(free: usize) -> Self {
        Self { word: AtomicUsize::new(free << 1), list: WaitList::new() }
    }

    /// Creates `free` shares, at most `MOST`.
    #[cfg(loom)]
    pub fn new(free: usize) -> Self {
        Self { word: AtomicUsize::new(free << 1), list: WaitList::new() }
    }

    /// Number of shares that are free now.
    pub fn free(&self) -> usize {
        self.word.load(Ordering::Relaxed) >> 1
    }

    /// Takes `wants` shares if they are free and no thread waits. Returns `true` if it took them.
    #[inline(always)]
    #[must_use]
    pub fn try_take(&self, wants: usize) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        while word & WAITING == 0 && word >> 1 >= wants {
            match self.word.compare_exchange_weak(
                word,
                word - (wants << 1),
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Takes what `node` wants, or lists it.
    ///
    /// # Safety
    /// If `Queued` is returned, the rules of [`OpenList::add`] apply; the wake then brings the
    /// shares.
    #[must_use]
    pub unsafe fn enter(&self, node: &WaitNode<W>) -> LockAttempt {
        let list = self.list.open();
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let (next, outcome) = if list.is_empty() && word >> 1 >= node.wants {
                // `WAITING`, if set, was left behind by a waiter that gave up.
                ((word & !WAITING) - (node.wants << 1), LockAttempt::Acquired)
            } else {
                (word | WAITING, LockAttempt::Queued)
            };
            match self.word.compare_exchange_weak(word, next, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) if outcome == LockAttempt::Acquired => return outcome,
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        // SAFETY: the caller's promise.
        unsafe { list.add(node) };
        LockAttempt::Queued
    }

    /// Takes `node` off the list, since its thread's deadline has passed.
    ///
    /// The waiters behind it may have been waiting for nothing else. Those returned have what they
    /// want, and must be woken.
    #[must_use]
    pub fn give_up(&self, node: &WaitNode<W>) -> TakenWaiters<W> {
        let list = self.list.open();
        list.remove(node);
        self.serve(&list, 0)
    }

    /// Gives `shares` back. The waiters returned have what they want, and must be woken.
    #[inline(always)]
    #[must_use]
    pub fn give(&self, shares: usize) -> Option<TakenWaiters<W>> {
        let mut word = self.word.load(Ordering::Relaxed);
        while word & WAITING == 0 {
            // Release: the next taker sees what was done with the shares.
            match self.word.compare_exchange_weak(
                word,
                word + (shares << 1),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return None,
                Err(now) => word = now,
            }
        }
        Some(self.give_slowly(shares))
    }

    #[cold]
    fn give_slowly(&self, shares: usize) -> TakenWaiters<W> {
        let list = self.list.open();
        self.serve(&list, shares)
    }

    /// Adds `shares` and serves the waiters, oldest first, until one wants more than there are.
    fn serve(&self, list: &OpenList<'_, W>, shares: usize) -> TakenWaiters<W> {
        let taken = TakenWaiters::new();
        // AcqRel: what other givers did before they gave shares in the meantime is passed on by the
        // wakes.
        let mut free = (self.word.fetch_add(shares << 1, Ordering::AcqRel) >> 1) + shares;
        let mut used = 0;
        while let Some(wants) = list.wants()
            && wants <= free
        {
            if list.take(&taken) {
                free -= wants;
                used += wants;
            }
        }
        // With the list open and `WAITING` set, no other thread changes the word. Without
        // `WAITING`, the list can only be empty, and other threads may change the word.
        let left = if list.is_empty() { WAITING } else { 0 };
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let next = (word & !left) - (used << 1);
            match self.word.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return taken,
                Err(now) => word = now,
            }
        }
    }
}
