//! The protocols of the read-write lock and of the semaphore, free of threads.
//!
//! Both are a number of shares of which some are taken, and a list of those that wait for more than
//! there are, first come, first served: a semaphore has as many shares as permits, of which each
//! taker wants some; a read-write lock has `MOST_READERS`, of which a reader takes one and the
//! writer all. So writers do not starve behind readers, nor readers behind writers, and a large
//! request is not overtaken by small ones for ever.
//!
//! One word: the free shares times two, plus `WAITING` if somebody may be listed. While `WAITING`
//! is set, shares change hands only with the list open; otherwise by a compare-and-swap.
//!
//! # Why no wake is lost
//! `WAITING` is set, and a node added, in one opening of the list, by a compare-and-swap from a
//! word that has too few shares. A giver whose shares came before made that fail; one who comes
//! after sees `WAITING`, and opens the list. `tests/models/loom_shares.rs` runs this.

use crate::list::{ListedWait, OpenList, TakenWaiters, WaitList, WaitNode};
use crate::lock::LockAttempt;
use crate::sync::{AtomicUsize, Ordering};

const WAITING: usize = 1;

/// Shares behind which `W`s wait; see the module comment. What a node `wants` is a number of
/// shares.
#[derive(Debug)]
pub struct Shares<W> {
    word: AtomicUsize,
    list: WaitList<W>,
}

/// The most shares that there may be.
pub const MOST: usize = usize::MAX >> 2;

impl<W: ListedWait> Shares<W> {
    /// `free` shares, at most `MOST`.
    #[cfg(not(loom))]
    pub const fn new(free: usize) -> Self {
        Self { word: AtomicUsize::new(free << 1), list: WaitList::new() }
    }

    /// `free` shares, at most `MOST`.
    #[cfg(loom)]
    pub fn new(free: usize) -> Self {
        Self { word: AtomicUsize::new(free << 1), list: WaitList::new() }
    }

    /// How many are free now.
    pub fn free(&self) -> usize {
        self.word.load(Ordering::Relaxed) >> 1
    }

    /// Takes `wants` shares if they are free and nobody waits.
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
    /// As for [`OpenList::add`], if `Queued` is returned; then the wake brings the shares.
    #[must_use]
    pub unsafe fn enter(&self, node: &WaitNode<W>) -> LockAttempt {
        let list = self.list.open();
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let (next, outcome) = if list.is_empty() && word >> 1 >= node.wants {
                // `WAITING` was left behind by somebody that gave up, if it is set.
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

    /// The thread of `node` waits no more: its deadline has passed. Those behind it may have been
    /// waiting for nothing else.
    #[must_use]
    pub fn give_up(&self, node: &WaitNode<W>) -> TakenWaiters<W> {
        let list = self.list.open();
        list.remove(node);
        self.serve(&list, 0)
    }

    /// Gives `shares` back. Those returned have what they want, and must be woken.
    #[inline(always)]
    #[must_use]
    pub fn give(&self, shares: usize) -> Option<TakenWaiters<W>> {
        let mut word = self.word.load(Ordering::Relaxed);
        while word & WAITING == 0 {
            // Release: what was done with the shares is seen by whoever takes them.
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

    /// Adds `shares` and gives the waiters theirs, oldest first, until one wants more than there
    /// are.
    fn serve(&self, list: &OpenList<'_, W>, shares: usize) -> TakenWaiters<W> {
        let taken = TakenWaiters::new();
        // AcqRel: what those did who gave shares meanwhile is passed on by the wakes.
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
        // With the list open and `WAITING` set, nobody else changes the word; without it, it may
        // only be that nobody waits.
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
