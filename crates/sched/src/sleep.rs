//! The sleep and wake protocol, in a few functions that every sleeper and waker uses.
//!
//! ```text
//!   sleeper                                 waker
//!   announce:  word = 1; fence              publish the message
//!   look again for a message                must_wake: fence; read word
//!   none: sleep until woken                 1: wake
//! ```
//! # Why no wake is lost
//! Both sides write first and read then, with a SeqCst fence between. In the single order of the
//! two fences one comes first. If it is the sleeper's, the waker reads 1 and wakes; the wake cannot
//! come too early, for the sleeper sleeps on something that remembers it: a futex compares
//! its word, which a waker clears before it wakes, and a doorbell keeps its count. If it is the
//! waker's, the sleeper's second look finds the message.
//!
//! A waker that will look again before it sleeps itself may leave the fence out the first time
//! ([`seems_asleep`]); it then owes the look with the fence, and pays when it runs out of other
//! work. `tests/models/loom_sleep.rs` is the model. Replies do so by
//! [`wake_check`](crate::wake_check).
//!
//! # Why one ring for a sleep is enough
//! A processor numbers its sleeps, and a waker that has rung for this one does not ring again
//! ([`first_ring`]): to a sleeper that cannot run yet, because it shares the waker's processor,
//! each of many replies would else cost a system call. The first ring is kept, so this sleep ends.
//! Whatever is published later is found at the latest by the second look before the next sleep: a
//! waker that still read the old number made its fence before the sleeper's next one. A waker that
//! reads the next number rings.
//!
//! # One fence for both
//! Who sends messages that nobody answers would pay for a fence with each of them, and wait in it
//! for a line that the receiver has. So there the sleeper makes it for both ([`announce_to_all`],
//! by [`membarrier`](upcall_os::membarrier)): when that returns, each sender's processor has made a
//! full fence at some moment since the announcement. If that was before the sender read the word,
//! it reads 1 and wakes; if after, then what it had published before it read is what the second
//! look finds. A sender whose process is not registered makes its own fence ([`must_wake`]).
//!
//! In the model the fence is one in each sender, between publishing and reading: as the kernel sees
//! to it.

use std::time::{Duration, Instant};
use upcall_os::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A sleeper of this protocol.
pub trait Sleeps {
    /// Announces the sleep, and makes the fence. Returns the longest that it may sleep before it
    /// looks again; `None`: any time.
    fn announce(&self) -> Option<Duration>;

    /// Says that it is awake.
    fn retract(&self);

    /// The time.
    fn now(&self) -> Instant;

    /// Sleeps until it is woken, or for `limit`. A wake from before counts.
    fn sleep(&self, limit: Option<Duration>);
}

/// Sleeps until `there` is true, or until `ends`. Returns whether it was true.
pub fn sleep_until(
    sleeper: &impl Sleeps,
    ends: Option<Instant>,
    mut there: impl FnMut() -> bool,
) -> bool {
    loop {
        let longest = sleeper.announce();
        let found = there();
        let left = ends.map(|ends| ends.saturating_duration_since(sleeper.now()));
        if found || left == Some(Duration::ZERO) {
            sleeper.retract();
            return found;
        }
        sleeper.sleep(left.into_iter().chain(longest).min());
        sleeper.retract();
        if there() {
            return true;
        }
    }
}

/// Says that the caller is about to sleep. It must look again for work after this, and before it
/// sleeps.
#[inline]
pub fn announce(word: &AtomicU32) {
    word.store(1, Ordering::Release);
    fence(Ordering::SeqCst);
}

/// The same for one who numbers its sleeps; `number` is written by nobody else.
#[inline]
pub fn announce_another(word: &AtomicU32, number: &AtomicU64) {
    announce_without_fence(word, number);
    fence(Ordering::SeqCst);
}

/// The same where the fence comes later: before the second look.
#[inline]
pub fn announce_without_fence(word: &AtomicU32, number: &AtomicU64) {
    number.store(number.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    word.store(1, Ordering::Release);
}

/// The same for one who makes the fence of its wakers too. False if the kernel did not: then it
/// must not sleep for long.
#[inline]
#[must_use]
pub fn announce_to_all(word: &AtomicU32, number: &AtomicU64) -> bool {
    announce_another(word, number);
    #[cfg(not(loom))]
    return upcall_os::membarrier::everywhere();
    #[cfg(loom)]
    true
}

/// What a waker whose fence the sleeper makes puts between publishing and reading.
#[inline(always)]
pub fn no_fence() {
    // To the compiler it is one.
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

/// Whether a sleeper has to be rung for, given the number of its sleep and the last one for which
/// this waker rang. To be followed by a ring.
#[inline]
pub fn first_ring(rung: &AtomicU64, sleep: u64) -> bool {
    rung.load(Ordering::Relaxed) != sleep && rung.swap(sleep, Ordering::Relaxed) != sleep
}

/// Says that it is awake.
#[inline]
pub fn retract(word: &AtomicU32) {
    word.store(0, Ordering::Release);
}

/// Whether, after a message was published, its receiver has to be woken. Exact: never false for one
/// who sleeps without having seen it.
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
