//! Detects a stalled processor: a handler blocks it while calls wait for it.
//!
//! A virtual processor does not probe its lanes while a handler runs. If the handler blocks, the
//! calls behind it would wait for as long as the handler does.
//!
//! The callers detect this, so a server without waiting calls has nothing to do. A server counts
//! the probes of each processor's lanes on its station page ([`upcall_shm::station`]). A caller
//! that has slept for [`FIRST_PAUSE`] compares the count. If the count is the same, the caller
//! reports the stall to the server's clerk. The clerk does not trust the report: it compares the
//! count itself, and lets another processor take over only if the count stays the same for
//! [`STALL`] ([`duty`](crate::duty)).
//!
//! A caller that never reports harms only itself. A caller that reports without a cause makes the
//! clerk compare some words.
//!
//! The pause doubles after each check, so a call waits at most twice as long as it has to. If the
//! server sleeps and has probed its lanes since the last check, it has seen the request: the next
//! check comes after the longest pause. If it sleeps and has not probed them, a wake may be under
//! way.

use std::time::{Duration, Instant};

/// Time that a caller sleeps before its first check.
pub const FIRST_PAUSE: Duration = Duration::from_micros(500);

/// Minimum time without a probe after which a processor that runs something counts as stalled.
///
/// A call behind a handler that blocks waits for [`FIRST_PAUSE`], this time, and two wakes of
/// kernel threads: less than 2 ms.
pub const STALL: Duration = Duration::from_micros(500);

/// Maximum time between two checks of a caller.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The result of a caller's check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The lanes were probed since the last check.
    Probed,
    /// The server's processor sleeps.
    Parked,
    /// The lanes were not probed since the last check. The caller reports that.
    Stalled,
}

/// The checks of a caller that sleeps.
#[derive(Clone, Copy, Debug)]
pub struct StallCheck {
    probes: u32,
    pause: Duration,
}

impl StallCheck {
    /// Creates the checks of a caller that has read a count of `probes`.
    pub fn new(probes: u32) -> Self {
        Self { probes, pause: FIRST_PAUSE }
    }

    /// Time until the next check.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// Checks, after a [pause](Self::pause), the count of `probes` and whether the server's
    /// processor is `parked`.
    pub fn check(&mut self, probes: u32, parked: bool) -> Finding {
        let before = std::mem::replace(&mut self.probes, probes);
        let seen = parked && before != probes;
        self.pause = if seen { LONGEST_PAUSE } else { (self.pause * 2).min(LONGEST_PAUSE) };
        match (parked, before == probes) {
            (true, _) => Finding::Parked,
            (false, true) => Finding::Stalled,
            (false, false) => Finding::Probed,
        }
    }
}

/// The progress of one processor, as the server's clerk sees it.
#[derive(Clone, Copy, Debug)]
pub struct ProcessorProgress {
    count: u32,
    since: Instant,
}

impl ProcessorProgress {
    /// Creates a record without progress.
    pub fn none(now: Instant) -> Self {
        Self { count: 0, since: now }
    }

    /// Notes the processor's `count`. Returns `true` if the count has not changed for at least
    /// [`STALL`].
    pub fn is_stalled(&mut self, count: u32, now: Instant) -> bool {
        if self.count != count {
            *self = Self { count, since: now };
        }
        now.saturating_duration_since(self.since) >= STALL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_reports_a_stall_and_checks_ever_less_often() {
        let mut check = StallCheck::new(7);
        assert_eq!(check.pause(), FIRST_PAUSE);
        assert_eq!(check.check(8, false), Finding::Probed);
        assert_eq!(check.pause(), 2 * FIRST_PAUSE);
        assert_eq!(check.check(8, false), Finding::Stalled);
        assert_eq!(check.check(8, true), Finding::Parked);
        assert_eq!(check.pause(), 8 * FIRST_PAUSE, "a wake may be under way");
        assert_eq!(check.check(9, true), Finding::Parked);
        assert_eq!(check.pause(), LONGEST_PAUSE, "the request was seen");
        assert_eq!(check.check(10, false), Finding::Probed);
        assert_eq!(check.pause(), LONGEST_PAUSE);
    }

    #[test]
    fn a_processor_without_progress_for_long_enough_is_stalled() {
        let start = Instant::now();
        let mut progress = ProcessorProgress::none(start);
        assert!(!progress.is_stalled(0, start));
        assert!(!progress.is_stalled(4, start + STALL));
        // Two reports in quick succession prove nothing.
        assert!(!progress.is_stalled(4, start + STALL + STALL / 2));
        assert!(progress.is_stalled(4, start + 2 * STALL));
        assert!(progress.is_stalled(4, start + 3 * STALL));
        assert!(!progress.is_stalled(6, start + 4 * STALL));
    }
}
