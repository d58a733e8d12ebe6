//! The protocol of the mutex, independent of threads: the holder and the next in line.
//!
//! The lock is one word. Free: 0. Held: `HELD`, with `WAITING` if a waiter may be listed. `WAITING`
//! alone: the holder has let go and is about to hand over, for which it needs the list. No other
//! thread can get the lock in between, so the order is first come, first served, and no thread
//! starves. Uncontended, locking is a compare-and-swap, and unlocking is a subtraction that shows
//! whether `WAITING` was set.
//!
//! # Why no wake is lost
//! `WAITING` is set, and a node added, in one opening of the list, and only while the lock is held
//! or about to be handed over. `WAITING` is cleared only when the holder finds the list empty, also
//! in one opening. So a thread that releases a lock with a listed waiter sees `WAITING`, and opens
//! the list after the node was added. `tests/models/loom_lock.rs` checks this.

use crate::list::{ListedWait, WaitList, WaitNode};
use crate::sync::{AtomicU32, Ordering};

/// The outcome of an attempt to wait.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum LockAttempt {
    /// The lock was free after all, and now belongs to the caller.
    Acquired,
    /// The caller is in the list; the lock will be handed to it.
    Queued,
}

/// A lock on which `W`s wait.
#[derive(Debug)]
pub struct RawLock<W> {
    word: AtomicU32,
    list: WaitList<W>,
}

const HELD: u32 = 1;
const WAITING: u32 = 2;

impl<W: ListedWait> RawLock<W> {
    /// A free lock.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { word: AtomicU32::new(0), list: WaitList::new() }
    }

    /// A free lock.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { word: AtomicU32::new(0), list: WaitList::new() }
    }

    /// Takes the lock if it is free. Returns `true` if it took it.
    #[inline(always)]
    #[must_use]
    pub fn try_acquire(&self) -> bool {
        self.word.compare_exchange(0, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock, or lists `node`.
    ///
    /// # Safety
    /// If `Queued` is returned, the rules of [`OpenList::add`](crate::list::OpenList::add) apply;
    /// the wake then brings the lock.
    #[must_use]
    pub unsafe fn enter(&self, node: &WaitNode<W>) -> LockAttempt {
        let list = self.list.open();
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word == 0 {
                match self.word.compare_exchange_weak(0, HELD, Ordering::Acquire, Ordering::Relaxed)
                {
                    Ok(_) => return LockAttempt::Acquired,
                    Err(now) => word = now,
                }
            } else if word & WAITING != 0 {
                break;
            } else {
                match self.word.compare_exchange_weak(
                    word,
                    word | WAITING,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => break,
                    Err(now) => word = now,
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { list.add(node) };
        LockAttempt::Queued
    }

    /// Takes `node` off the list, since its thread's deadline has passed.
    pub fn give_up(&self, node: &WaitNode<W>) {
        // `WAITING` stays set: the holder finds the list empty, once.
        self.list.open().remove(node);
    }

    /// Releases the lock. A waiter that is returned now holds the lock, and must be woken.
    #[inline(always)]
    #[must_use]
    pub fn release(&self) -> Option<W> {
        // Release: the next holder sees what this one did, by the word if it acquires the lock
        // there, otherwise by the wake.
        if self.word.fetch_sub(HELD, Ordering::Release) == HELD { None } else { self.hand_over() }
    }

    /// Hands the lock over. The word is `WAITING`, and only this thread may change it.
    #[cold]
    fn hand_over(&self) -> Option<W> {
        let list = self.list.open();
        let next = list.take_one();
        let word = match (&next, list.is_empty()) {
            (Some(_), false) => HELD | WAITING,
            (Some(_), true) => HELD,
            (None, _) => 0,
        };
        self.word.store(word, Ordering::Release);
        next
    }
}
