//! When to look for the other side's next message.
//!
//! A look brings the line that it looks at to the processor that looks. If the other side is just about to write that line, it has to fetch it back
//! first, so a look that comes too early delays what it looks for by a transfer each way. Measured on two cores (a round trip of one line, 24 ns of
//! work on each side, the work subtracted): 165 ns when both sides look all the time, 68 with one pause between looks, 57 with about 64 ns before
//! the first look besides. So nobody looks before an answer can be there, and there is a pause between any two looks.

use std::time::{Duration, Instant};
use upcall_os::atomic::{AtomicU32, Ordering, spin_loop};

/// About the least time in which an answer comes: two transfers of a line between near processors.
const SOONEST: Duration = Duration::from_nanos(64);

/// How many pauses that is on this machine: a pause takes from 3 to 40 ns. 0 before it is measured.
static PAUSES: AtomicU32 = AtomicU32::new(0);

/// For who has just sent: waits until an answer can be there.
#[inline]
pub(crate) fn not_yet() {
    let pauses = match PAUSES.load(Ordering::Relaxed) {
        0 => measure(),
        pauses => pauses,
    };
    for _ in 0..pauses {
        spin_loop();
    }
}

/// Between two looks.
#[inline]
pub(crate) fn again() {
    spin_loop();
}

#[cold]
fn measure() -> u32 {
    const EACH: u32 = 64;
    // The shortest of several: no interrupt falls into all of them.
    let times = (0..4).map(|_| {
        let start = Instant::now();
        (0..EACH).for_each(|_| spin_loop());
        start.elapsed()
    });
    let whole = times.min().unwrap_or_default().as_nanos().max(1);
    let pauses = ((SOONEST.as_nanos() * u128::from(EACH) + whole / 2) / whole).clamp(1, 64) as u32;
    PAUSES.store(pauses, Ordering::Relaxed);
    pauses
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn the_wait_is_measured_once() {
        not_yet();
        let pauses = PAUSES.load(Ordering::Relaxed);
        assert!((1..=64).contains(&pauses), "{pauses}");
        not_yet();
        assert_eq!(PAUSES.load(Ordering::Relaxed), pauses);
    }
}
