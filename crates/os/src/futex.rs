//! Waiting on a word in memory, which may be shared.
//!
//! The kernel compares the word when the wait begins, so a change made before is never slept over.

use crate::crossings;
use rustix::thread::futex::{self, Flags};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Why a wait ended.
///
/// None of the reasons means that the awaited event has happened: check again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// A waker woke this thread, or a signal arrived.
    Woken,
    /// The word was already different.
    Changed,
    /// The timeout expired.
    TimedOut,
}

/// The processes that use the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FutexScope {
    /// This process alone: the kernel's look-up is cheaper.
    Private,
    /// Every process that maps it.
    Shared,
}

impl FutexScope {
    fn flags(self) -> Flags {
        match self {
            Self::Private => Flags::PRIVATE,
            Self::Shared => Flags::empty(),
        }
    }
}

/// Waits while `*word == expected`, until [`wake`], a signal, or `timeout`.
///
/// # Blocks
/// The kernel thread; without a `timeout` (monotonic) for ever.
pub fn wait(
    word: &AtomicU32,
    expected: u32,
    scope: FutexScope,
    timeout: Option<Duration>,
) -> WaitOutcome {
    let timeout = timeout.and_then(|t| rustix::time::Timespec::try_from(t).ok());
    crossings::another();
    match futex::wait(word, scope.flags(), expected, timeout.as_ref()) {
        Err(rustix::io::Errno::AGAIN) => WaitOutcome::Changed,
        Err(rustix::io::Errno::TIMEDOUT) => WaitOutcome::TimedOut,
        _ => WaitOutcome::Woken,
    }
}

/// Wakes at most `count` of the threads that wait on `word`; returns their number.
///
/// Costs one system call even if no thread waits.
pub fn wake(word: &AtomicU32, count: u32, scope: FutexScope) -> usize {
    crossings::another();
    futex::wake(word, scope.flags(), count).unwrap_or(0)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_changed_word_does_not_wait() {
        assert_eq!(wait(&AtomicU32::new(1), 0, FutexScope::Private, None), WaitOutcome::Changed);
    }

    #[test]
    fn time_runs_out() {
        assert_eq!(
            wait(&AtomicU32::new(0), 0, FutexScope::Shared, Some(Duration::from_millis(1))),
            WaitOutcome::TimedOut
        );
    }
}
