//! Waiting on a word in memory. The word may lie in shared memory; it is compared by the kernel
//! when the wait begins, so a change made before is never slept over.

use crate::crossings;
use rustix::thread::futex::{self, Flags};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Why a wait ended. None of them says that the awaited thing has happened: look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// Somebody woke us, or a signal arrived.
    Woken,
    /// The word was already different.
    Changed,
    /// The time was up.
    TimedOut,
}

/// Whether the word is used by this process alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FutexScope {
    /// By this process alone: the kernel's look-up is cheaper.
    Private,
    /// By every process that maps it.
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

/// Blocks the kernel thread while `*word == expected`, until [`wake`], a signal, or `timeout`
/// (monotonic; none waits for ever).
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

/// Wakes at most `count` of the threads that wait on `word`; returns how many. Costs one system
/// call even if nobody waits.
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
