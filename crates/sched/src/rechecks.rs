//! Checks of the clerk that go on as long as something waits: for the pieces of a
//! [queue](crate::Processors::submit), which have no caller that would report a stall.
//!
//! ```text
//!   who leaves something behind             clerk, after a check
//!   something waits                         pause = 0
//!   fence                                   fence
//!   pause is 0: begin the checks            something waits: check again
//! ```
//! # Why nothing waits without checks
//! The clerk ends its checks by a store, and looks after a fence whether something waits. Whoever
//! leaves something behind makes a fence before it reads the pause. So one of them sees the other.
//! `tests/models/loom_rechecks.rs` is the model.

use crate::stall::STALL;
use std::time::Duration;
use upcall_os::atomic::{AtomicU64, Ordering, fence};

/// Maximum time between two checks.
const LONGEST_PAUSE: Duration = Duration::from_millis(8);

/// Whether the clerk checks; see the module.
#[derive(Debug, Default)]
pub struct Rechecks {
    /// Nanoseconds until the next check; 0 if there is none.
    pause: AtomicU64,
}

impl Rechecks {
    /// Begins the checks, because something waits that the caller leaves behind. Returns `false` if
    /// they have begun; else the caller makes the clerk check.
    pub fn begin(&self) -> bool {
        fence(Ordering::SeqCst);
        let first = STALL.as_nanos() as u64;
        self.pause.compare_exchange(0, first, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Time until the next check, after one was made; `None` if that was the last. The pause
    /// doubles after each check. `waits` returns `true` if something waits.
    pub fn next(&self, waits: impl Fn() -> bool) -> Option<Duration> {
        let pause = self.pause.load(Ordering::Relaxed);
        if pause == 0 {
            return None;
        }
        if waits() {
            let longest = LONGEST_PAUSE.as_nanos() as u64;
            self.pause.store((pause * 2).min(longest), Ordering::Relaxed);
            return Some(Duration::from_nanos(pause));
        }
        self.pause.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        (waits() && self.begin()).then_some(STALL)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn checks_go_on_ever_less_often_while_something_waits() {
        let checks = Rechecks::default();
        assert_eq!(checks.next(|| true), None, "they have not begun");
        assert!(checks.begin() && !checks.begin());
        let pauses: Vec<_> = (0..6).map_while(|_| checks.next(|| true)).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 16].map(|times| STALL * times));
        assert_eq!(checks.next(|| false), None);
        assert!(checks.begin());
        assert_eq!(checks.next(|| true), Some(STALL));
    }
}
