//! A sequence number, by which one who only looks finds out that somebody has changed something
//! meanwhile.
//!
//! Who changes, one at a time, makes it odd before and even after; who looks takes what was found
//! for valid if it was even before, and is the same after. So looking writes nothing, and any
//! number can do it at once; Lameter: *Effective synchronization on Linux/NUMA systems*, 2005 (the
//! kernel's seqlock). The order of accesses is that of Boehm: *Can seqlocks get along with
//! programming language memory models?*, 2012: who has read one of the changes has also read,
//! behind its fence, the odd number that was stored before the changer's fence; and who has read
//! the even number has all that came before it. What is looked at is read by relaxed atomics or
//! opaque copies ([`span`](crate::span)), for it may change in between.
//!
//! `tests/models/loom_sequence.rs` is the model.

use upcall_os::atomic::{AtomicU64, Ordering, fence};

/// See the module.
#[derive(Debug)]
#[repr(transparent)]
pub struct Sequence(AtomicU64);

/// The number of changes under way.
#[derive(Clone, Copy, Debug)]
pub struct Changing(u64);

impl Default for Sequence {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Sequence {
    /// Changes follow, until [`end`](Self::end) is given what this returns. By one at a time;
    /// another one may have ended in the midst of its own.
    #[inline]
    #[must_use]
    pub fn begin(&self) -> Changing {
        let odd = self.0.load(Ordering::Relaxed) | 1;
        self.0.store(odd, Ordering::Relaxed);
        fence(Ordering::Release);
        Changing(odd)
    }

    /// They are done. Stores what follows from the beginning, whatever stands there now: a load
    /// would wait for that store.
    #[inline]
    pub fn end(&self, changing: Changing) {
        self.0.store(changing.0.wrapping_add(1), Ordering::Release);
    }

    /// What it is, for [`look`] and [`held`].
    #[inline]
    pub fn word(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// A look begins, with the word as it was just read. `None`: somebody is changing something.
#[inline]
pub fn look(word: u64) -> Option<u64> {
    word.is_multiple_of(2).then_some(word)
}

/// Whether nothing was changed since a look began: then what was read since is valid.
#[inline]
pub fn held(began: u64, word: impl FnOnce() -> u64) -> bool {
    fence(Ordering::Acquire);
    word() == began
}
