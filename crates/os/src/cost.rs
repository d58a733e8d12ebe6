//! The cost of a system call on this machine, measured once.

use crate::atomic::AtomicU32;
use crate::futex::{self, FutexScope};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The time of a system call that finds nothing to do.
///
/// It is the least of sixteen, measured at the first use. The call wakes a futex on which no thread
/// waits: every process with Upcall makes such calls.
pub fn system_call() -> Duration {
    static COST: OnceLock<Duration> = OnceLock::new();
    *COST.get_or_init(|| {
        let word = AtomicU32::new(0);
        let once = |_| {
            let start = Instant::now();
            futex::wake(&word, 1, FutexScope::Private);
            start.elapsed()
        };
        (0..16).map(once).min().unwrap_or_default()
    })
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_system_call_is_measured_once() {
        assert!(system_call() > Duration::ZERO);
        assert_eq!(system_call(), system_call());
    }
}
