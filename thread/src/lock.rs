//! The protocol of the mutex, free of threads: who holds it, and who is next.
//!
//! One word: null when free; `1` when held and nobody waits; a pointer with bit 0 set when held, to the newest of those
//! that came to wait since the holder last looked (a Treiber stack through the waiters' links). The holder alone owns
//! `queue`, the waiters it has already taken off that stack, oldest first. Release hands the lock to the oldest waiter
//! without freeing it, so the order is first come, first served, and nobody can starve or be overtaken. Source: the
//! queue of T. E. Anderson, "The performance of spin lock alternatives", 1990, with the waiters' stack of Mesa monitors.

use crate::link::{Chain, Fifo, Linked, to_raw};
use crate::sync::{AtomicPtr, Ordering};
use std::ptr;

/// What came of an attempt to wait.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Entry {
    /// The lock was free after all and is the caller's now.
    Acquired,
    /// The caller stands in the queue; the lock will be handed to it.
    Queued,
}

/// A lock whose waiters are `T`s.
#[derive(Debug)]
pub struct RawLock<T: Linked> {
    word: AtomicPtr<T>,
    /// Written by the holder.
    queue: Fifo<T>,
}

// SAFETY: `queue` is touched only by the holder, of which there is one at a time; ownership passes with release and
// acquire on `word`, or inside the wake of the waiter that the lock is handed to.
unsafe impl<T: Linked + Sync> Sync for RawLock<T> {}
// SAFETY: as for `Sync`; nothing in the lock is bound to a kernel thread.
unsafe impl<T: Linked + Sync> Send for RawLock<T> {}

const HELD: usize = 1;

fn held<T>() -> *mut T {
    ptr::without_provenance_mut(HELD)
}

impl<T: Linked> Default for RawLock<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Linked> RawLock<T> {
    /// A free lock.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { word: AtomicPtr::new(ptr::null_mut()), queue: Fifo::new() }
    }

    /// A free lock.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { word: AtomicPtr::new(ptr::null_mut()), queue: Fifo::new() }
    }

    /// Takes the lock if it is free.
    #[inline(always)]
    #[must_use]
    pub fn try_acquire(&self) -> bool {
        self.word.compare_exchange(ptr::null_mut(), held(), Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock, or puts `me` in the queue.
    #[must_use]
    pub fn enter(&self, me: &'static T) -> Entry {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word.is_null() {
                match self.word.compare_exchange_weak(word, held(), Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => return Entry::Acquired,
                    Err(now) => word = now,
                }
                continue;
            }
            me.link().store(word.map_addr(|a| a & !HELD), Ordering::Relaxed);
            let mine = to_raw(me).map_addr(|a| a | HELD);
            // Release: the holder that takes this waiter off the stack sees its link and its record.
            match self.word.compare_exchange_weak(word, mine, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return Entry::Queued,
                Err(now) => word = now,
            }
        }
    }

    /// The holder gives the lock up. If a thread is returned, the lock is its now and it must be woken.
    #[inline(always)]
    #[must_use]
    pub fn release(&self) -> Option<&'static T> {
        if self.queue.is_empty()
            && self.word.compare_exchange(held(), ptr::null_mut(), Ordering::Release, Ordering::Relaxed).is_ok()
        {
            return None;
        }
        Some(self.hand_over())
    }

    #[cold]
    fn hand_over(&self) -> &'static T {
        if self.queue.is_empty() {
            let newest = self.word.swap(held(), Ordering::Acquire).map_addr(|a| a & !HELD);
            // SAFETY: only `enter` stores pointers here and in the links behind, by `to_raw`; the exchange made the
            // chain ours alone.
            self.queue.append_reversed(unsafe { Chain::new(newest) });
        }
        self.queue.pop().expect("the word said that somebody waits: the lock's word was overwritten")
    }
}
