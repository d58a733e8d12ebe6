//! A sequence number, by which a reader detects a change during its read.
//!
//! Writers take turns: each makes the number odd before its changes and even after. What a reader
//! found is valid if the number was even before and is the same after. So reading writes nothing,
//! and any number of readers can read at once; Lameter: *Effective synchronization on Linux/NUMA
//! systems*, 2005 (the kernel's seqlock). The order of accesses is that of Boehm: *Can seqlocks get
//! along with programming language memory models?*, 2012. A reader that has read one of the changes
//! also reads, after its fence, the odd number that was stored before the writer's fence. A reader
//! that has read the even number also reads all changes that came before it. Readers use relaxed
//! atomics or opaque copies ([`span`](crate::span)), since the data may change while they read.
//!
//! `tests/models/loom_sequence.rs` is the model.

use upcall_os::atomic::{AtomicU64, Ordering, fence};

/// A sequence number; see the module.
#[derive(Debug)]
#[repr(transparent)]
pub struct Sequence(AtomicU64);

/// The odd number of the changes under way.
#[derive(Clone, Copy, Debug)]
pub struct Changing(u64);

impl Default for Sequence {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Sequence {
    /// Begins changes, which last until [`end`](Self::end) is called with the result.
    ///
    /// Only one writer at a time may make changes. An earlier one may have died amid its own.
    #[inline]
    #[must_use]
    pub fn begin(&self) -> Changing {
        let odd = self.0.load(Ordering::Relaxed) | 1;
        self.0.store(odd, Ordering::Relaxed);
        fence(Ordering::Release);
        Changing(odd)
    }

    /// Ends changes.
    ///
    /// It stores the number that follows `changing`, without a load of the word, which would wait
    /// for the store of [`begin`](Self::begin).
    #[inline]
    pub fn end(&self, changing: Changing) {
        self.0.store(changing.0.wrapping_add(1), Ordering::Release);
    }

    /// The number, for [`look`] and [`held`].
    #[inline]
    pub fn word(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// Begins a read, with the word as it was just loaded.
///
/// `None` if changes are under way.
#[inline]
pub fn look(word: u64) -> Option<u64> {
    word.is_multiple_of(2).then_some(word)
}

/// Returns `true` if what was read is valid: nothing changed since it began.
#[inline]
pub fn held(began: u64, word: impl FnOnce() -> u64) -> bool {
    fence(Ordering::Acquire);
    word() == began
}
