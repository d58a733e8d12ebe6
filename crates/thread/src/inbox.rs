//! The inbox of a virtual processor: threads made ready by other kernel threads.
//!
//! Many threads push, and one takes everything. A push is one compare-and-swap, taking is one
//! exchange, and checking is one plain load. Source: R. K. Treiber, "Systems programming: coping
//! with parallelism", 1986. Since the consumer takes the whole stack at once, the ABA problem does
//! not arise.

use crate::link::{Chain, Linked, to_raw};
use crate::sync::{AtomicPtr, Ordering};
use std::ptr;

/// A stack with many producers and one consumer.
#[derive(Debug)]
pub struct Inbox<T: Linked> {
    newest: AtomicPtr<T>,
}

impl<T: Linked> Default for Inbox<T> {
    fn default() -> Self {
        Self { newest: AtomicPtr::new(ptr::null_mut()) }
    }
}

impl<T: Linked> Inbox<T> {
    /// Puts `thing` in. Returns `true` if the inbox was empty: the caller must then wake the owner.
    ///
    /// After `false` the caller need not do anything. The wake by the thread that found the inbox
    /// empty is still to be acted on: the owner has not taken since, or the inbox would have been
    /// empty for this caller. That wake comes after its own push, and so finds this caller's push
    /// too.
    #[must_use]
    pub fn push(&self, thing: &'static T) -> bool {
        let raw = to_raw(thing);
        let mut newest = self.newest.load(Ordering::Relaxed);
        loop {
            thing.link().store(newest, Ordering::Relaxed);
            // Release: the taker of the chain sees the link and everything done before the wake.
            match self.newest.compare_exchange_weak(
                newest,
                raw,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return newest.is_null(),
                Err(now) => newest = now,
            }
        }
    }

    /// Returns `true` if the inbox is empty, by one load.
    ///
    /// A `true` may be late; `parker` explains why that loses nothing. A caller that finds the
    /// inbox emptied sees what its taker did before.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.newest.load(Ordering::Acquire).is_null()
    }

    /// Takes everything, newest first.
    ///
    /// For the owner of the inbox; a second taker would find nothing.
    pub(crate) fn take(&self) -> Chain<T> {
        let newest = self.newest.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: only `push` stores here and in the links that follow, by `to_raw`; the exchange
        // made the chain ours alone.
        unsafe { Chain::new(newest) }
    }

    /// Takes everything, oldest first, for the models.
    #[cfg(loom)]
    pub fn drain(&self, each: impl FnMut(&'static T)) {
        let mut all: Vec<_> = self.take().collect();
        all.reverse();
        all.into_iter().for_each(each);
    }
}
