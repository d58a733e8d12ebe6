//! The sleep and wake protocol, in a few functions that every sleeper and waker uses.
//!
//! ```text
//!   sleeper                                 waker
//!   announce:  word = 1; fence              publish the message
//!   probe again for a message               must_wake: fence; read word
//!   none: sleep until woken                 1: wake
//! ```
//! # Why no wake is lost
//! Both sides write first and then read, with a SeqCst fence between. In the single order of the
//! two fences one comes first. If it is the sleeper's, the waker reads 1 and wakes. The wake cannot
//! come too early, because the sleeper sleeps on an object that remembers it: a futex compares its
//! word, which a waker clears before it wakes, and a doorbell keeps its count. If it is the
//! waker's, the sleeper's second probe finds the message.
//!
//! A waker that will check again before it sleeps itself may leave the fence out the first time
//! ([`seems_asleep`]). It then owes the check with the fence, and makes it when it runs out of
//! other work. `tests/models/loom_sleep.rs` is the model. Replies do so through
//! [`wake_check`](crate::wake_check).
//!
//! # Why one notification per sleep is enough
//! A processor numbers its sleeps, and a waker that has notified it in this sleep does not do so
//! again ([`first_ring`]). Otherwise each of many replies would cost a system call while the
//! sleeper cannot run yet because it shares the waker's CPU. The first notification is kept, so
//! this sleep ends. A message that is published later is found at the latest by the second probe
//! before the next sleep: a waker that still read the old number made its fence before the
//! sleeper's next one. A waker that reads the next number notifies.
//!
//! # One fence for both
//! A sender of messages that have no answer would pay for a fence with each of them, and wait in it
//! for a cache line that the receiver has. So there the sleeper makes the fence for both
//! ([`announce_to_all`], through [`membarrier`](upcall_os::membarrier)). When that returns, each
//! sender's processor has made a full fence at some moment since the announcement. If that was
//! before the sender read the word, it reads 1 and wakes. If it was after, the second probe finds
//! what the sender had published before it read. A sender whose process is not registered makes its
//! own fence ([`must_wake`]).
//!
//! In the model each sender has a fence between publishing and reading, as the kernel ensures.

use std::time::{Duration, Instant};
use upcall_os::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A sleeper of this protocol.
pub trait Sleeps {
    /// Announces the sleep, and makes the fence. Returns the maximum time that the sleeper may
    /// sleep before it probes again; `None` if there is no limit.
    fn announce(&self) -> Option<Duration>;

    /// Marks the sleeper as awake.
    fn retract(&self);

    /// The current time.
    fn now(&self) -> Instant;

    /// Sleeps until a wake, or for `limit`. An earlier wake that was not consumed counts.
    fn sleep(&self, limit: Option<Duration>);
}

/// Sleeps until `there` is true, or until `ends`. Returns `true` if `there` was.
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

/// Announces that the caller is about to sleep. The caller must probe again for work after this,
/// and before it sleeps.
#[inline]
pub fn announce(word: &AtomicU32) {
    word.store(1, Ordering::Release);
    fence(Ordering::SeqCst);
}

/// Like [`announce`], for a sleeper that numbers its sleeps. Only this sleeper writes `number`.
#[inline]
pub fn announce_another(word: &AtomicU32, number: &AtomicU64) {
    announce_without_fence(word, number);
    fence(Ordering::SeqCst);
}

/// Like [`announce_another`], without the fence: the caller makes it before its second probe.
#[inline]
pub fn announce_without_fence(word: &AtomicU32, number: &AtomicU64) {
    number.store(number.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    word.store(1, Ordering::Release);
}

/// Like [`announce_another`], for a sleeper that also makes its wakers' fence. Returns `false` if
/// the kernel did not make that fence: the caller must not sleep for long then.
#[inline]
#[must_use]
pub fn announce_to_all(word: &AtomicU32, number: &AtomicU64) -> bool {
    announce_another(word, number);
    #[cfg(not(loom))]
    return upcall_os::membarrier::everywhere();
    #[cfg(loom)]
    true
}

/// Replaces a waker's fence between publishing and reading, if the sleeper makes that fence.
#[inline(always)]
pub fn no_fence() {
    // A fence for the compiler.
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

/// Returns `true` if the waker has to notify the sleeper: `sleep` is the number of this sleep, and
/// `rung` that of the last one for which this waker notified. The caller must then notify.
#[inline]
pub fn first_ring(rung: &AtomicU64, sleep: u64) -> bool {
    rung.load(Ordering::Relaxed) != sleep && rung.swap(sleep, Ordering::Relaxed) != sleep
}

/// Marks the sleeper as awake.
#[inline]
pub fn retract(word: &AtomicU32) {
    word.store(0, Ordering::Release);
}

/// Returns `true` if the receiver has to be woken, after a message was published. Exact: never
/// `false` for a receiver that sleeps without having seen the message.
#[inline]
pub fn must_wake(word: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    seems_asleep(word)
}

/// Like [`must_wake`] without the fence: may return `false` for a receiver that is just falling
/// asleep.
#[inline]
pub fn seems_asleep(word: &AtomicU32) -> bool {
    word.load(Ordering::Acquire) != 0
}
