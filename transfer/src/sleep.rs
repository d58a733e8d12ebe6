//! The sleep and wake protocol, in three functions that every sleeper and waker uses.
//!
//! ```text
//!   sleeper                                 waker
//!   announce:  word = 1; fence              publish the message
//!   look again for a message                must_wake: fence; read word
//!   none: sleep until woken                 1: wake
//! ```
//! # Why no wake is lost
//! Both sides write first and read then, with a SeqCst fence between. In the single order of the two fences one comes first. If
//! it is the sleeper's, the waker reads 1 and wakes; the wake cannot come too early, for the sleeper sleeps on something that remembers it: a futex compares
//! its word, which a waker clears before it wakes, and a bell keeps its count. If it is the waker's, the sleeper's second look finds the message.
//!
//! A waker that will look again before it sleeps itself may leave the fence out the first time ([`seems_asleep`]); it then owes the look with the
//! fence, and pays when it runs out of other work. `tests/loom_sleep.rs` is the model.

use upcall_os::atomic::{AtomicU32, Ordering, fence};

/// Says that the caller is about to sleep. It must look again for work after this, and before it sleeps.
#[inline]
pub fn announce(word: &AtomicU32) {
    word.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Says that it is awake.
#[inline]
pub fn retract(word: &AtomicU32) {
    word.store(0, Ordering::Release);
}

/// Whether, after a message was published, its receiver has to be woken. Exact: never false for one who sleeps without having seen it.
#[inline]
pub fn must_wake(word: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    seems_asleep(word)
}

/// The same without the fence: may be false for one who is just falling asleep.
#[inline]
pub fn seems_asleep(word: &AtomicU32) -> bool {
    word.load(Ordering::Acquire) != 0
}
