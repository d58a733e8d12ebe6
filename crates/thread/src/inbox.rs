//! The inbox of a virtual processor: threads made ready by other kernel threads.
//!
//! Many push, one takes all. A push is one compare-and-swap; taking is one exchange, and looking
//! for something is one plain load. Source: R. K. Treiber, "Systems programming: coping with
//! parallelism", 1986; since the consumer takes the whole stack at once, the ABA problem does not
//! arise.

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
    /// Puts `thing` in. `true`: it was empty before, and the caller must see to it that the owner
    /// wakes.
    ///
    /// A `false` obliges to nothing: whoever found the inbox empty has not been answered yet (the
    /// owner has not taken since, or the inbox would have been empty for us), and its wake
    /// comes after its push and so finds ours too.
    #[must_use]
    pub fn push(&self, thing: &'static T) -> bool {
        let raw = to_raw(thing);
        let mut newest = self.newest.load(Ordering::Relaxed);
        loop {
            thing.link().store(newest, Ordering::Relaxed);
            // Release: whoever takes the chain sees the link and all that was done before the wake.
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

    /// Whether nothing is in, by one load. A `true` may be late; see `parker` for why that loses
    /// nothing. Who finds that all was taken sees what its taker did before.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.newest.load(Ordering::Acquire).is_null()
    }

    /// Takes everything, newest first. For the owner of the inbox; a second taker would find
    /// nothing.
    pub(crate) fn take(&self) -> Chain<T> {
        let newest = self.newest.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: only `push` stores here and in the links behind, by `to_raw`; the exchange made
        // the chain ours alone.
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
