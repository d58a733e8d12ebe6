//! The memory that is left, for a sender that keeps buffering.

use std::cell::Cell;
use std::time::{Duration, Instant};
use upcall_os::headroom::Headroom;

/// Minimum time between two measurements.
const LOOK: Duration = Duration::from_millis(5);

/// The last measurement of the memory that is left. A sender asks before each segment except an
/// ordinary first one of a pair.
#[derive(Debug)]
pub(crate) struct Supply {
    measure: fn() -> Option<Headroom>,
    looked: Cell<Option<Instant>>,
    low: Cell<Option<Headroom>>,
}

impl Supply {
    pub(crate) fn new(measure: fn() -> Option<Headroom>) -> Self {
        Self { measure, looked: Cell::new(None), low: Cell::new(None) }
    }

    /// Returns the memory that is left, if it is little.
    pub(crate) fn is_low(&self, now: Instant) -> Option<Headroom> {
        if self.looked.get().is_none_or(|looked| now.saturating_duration_since(looked) >= LOOK) {
            self.looked.set(Some(now));
            self.low.set((self.measure)().filter(|found| found.is_low()));
        }
        self.low.get()
    }
}

/// A quarter of the machine's memory.
pub(crate) fn default_limit() -> u64 {
    let machine = rustix::system::sysinfo();
    (machine.totalram as u64).saturating_mul(machine.mem_unit.into()) / 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use upcall_os::atomic::{AtomicU64, Ordering};

    #[test]
    fn little_memory_is_seen_and_that_there_is_more_again() {
        static LEFT: AtomicU64 = AtomicU64::new(10);
        let supply = Supply::new(|| Some(Headroom { left: LEFT.load(Ordering::Relaxed), of: 100 }));
        let start = Instant::now();
        assert_eq!(supply.is_low(start), None);
        LEFT.store(5, Ordering::Relaxed);
        assert_eq!((supply.is_low(start), supply.is_low(start + LOOK / 2)), (None, None));
        assert_eq!(supply.is_low(start + LOOK), Some(Headroom { left: 5, of: 100 }));
        LEFT.store(50, Ordering::Relaxed);
        assert_eq!(supply.is_low(start + 2 * LOOK), None);
        assert_eq!(Supply::new(|| None).is_low(start), None);
    }
}
