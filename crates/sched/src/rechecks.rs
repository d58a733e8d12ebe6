//! Checks by the clerk that go on while pieces of a queue wait.
//!
//! Such pieces ([queue](crate::PollingIdle::submit)) have no caller that would report a stall.
//!
//! ```text
//!   submitter                  processor                  clerk, after a check
//!   adds a piece               publishes that it runs     ends the checks: pause = 0
//!   fence                      fence                      fence
//!   all run: begins checks     a piece waits: begins      a piece waits: begins
//! ```
//!
//! # Why no piece waits without checks
//! Each of the three writes first and then reads, with a fence between. Of each two of them at
//! least one sees what the other has written. So a piece that the submitter leaves to a processor
//! that polls is seen by that processor, or the submitter sees that the processor runs. And if the
//! clerk ends the checks at the same time as one of them acts, the clerk sees the piece, or the
//! other begins new checks. `tests/models/loom_rechecks.rs` is the model.

use crate::stall::STALL;
use std::time::Duration;
use upcall_os::atomic::{AtomicU64, Ordering, fence};

/// Maximum time between two checks.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Whether the clerk checks; see the module.
#[derive(Debug, Default)]
pub struct Rechecks {
    /// Nanoseconds until the next check; 0 if there is none.
    pause: AtomicU64,
}

/// Writes something, and reads what others have written: [`begin`](Rechecks::begin) follows if
/// `read` returns `true`. Both sides of the module's table go through this.
#[inline]
pub fn write_and_read(write: impl FnOnce(), read: impl FnOnce() -> bool) -> bool {
    write();
    fence(Ordering::SeqCst);
    read()
}

impl Rechecks {
    /// Begins the checks, because a piece waits that the caller does not take. Returns `false` if
    /// they have begun; else the caller makes the clerk check after [`STALL`].
    pub fn begin(&self) -> bool {
        let first = STALL.as_nanos() as u64;
        fence(Ordering::SeqCst);
        self.pause.compare_exchange(0, first, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Makes the pause short again, because a piece was taken. Returns `true` if it was longer;
    /// then the caller makes the clerk check after [`STALL`].
    pub fn shorten(&self) -> bool {
        let first = STALL.as_nanos() as u64;
        let shorter = |pause: u64| (pause > 2 * first).then_some(first);
        self.pause.fetch_update(Ordering::SeqCst, Ordering::SeqCst, shorter).is_ok()
    }

    /// Returns `true` if the next check comes soon.
    pub fn is_short(&self) -> bool {
        self.pause.load(Ordering::SeqCst) <= 2 * STALL.as_nanos() as u64
    }

    /// Time until the next check, after one was made; `None` if that was the last. The pause
    /// doubles after each check. `waits` returns `true` if a piece waits.
    pub fn next(&self, waits: impl Fn() -> bool) -> Option<Duration> {
        let longest = LONGEST_PAUSE.as_nanos() as u64;
        if !waits() {
            let ends = || self.pause.store(0, Ordering::SeqCst);
            return (write_and_read(ends, &waits) && self.begin()).then_some(STALL);
        }
        let doubled = |pause: u64| (pause > 0).then_some((pause * 2).min(longest));
        let before = self.pause.fetch_update(Ordering::SeqCst, Ordering::SeqCst, doubled);
        before.ok().map(Duration::from_nanos)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn checks_go_on_ever_less_often_while_a_piece_waits() {
        let checks = Rechecks::default();
        assert_eq!(checks.next(|| true), None, "they have not begun");
        assert!(checks.begin() && !checks.begin() && !checks.shorten());
        let pauses: Vec<_> = (0..12).map_while(|_| checks.next(|| true)).collect();
        let times = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000];
        assert_eq!(pauses, times.map(|times| STALL * times));
        assert!(checks.shorten() && !checks.shorten());
        assert_eq!(checks.next(|| true), Some(STALL));
        assert_eq!(checks.next(|| false), None);
        assert!(!checks.shorten() && checks.begin());
        assert_eq!(checks.next(|| true), Some(STALL));
    }
}
