//! The cache-line round trip: the unit in which calls between two processors are told.
//!
//! Two threads on two processors pass one line to and fro. On a virtual machine the host moves the
//! processors about, and this figure with them (90 to 550 ns on the same machine), so it is probed
//! beside every case.

use std::sync::atomic::{AtomicU64, Ordering::*};
use std::thread;
use std::time::Instant;

use crate::place::{self, Cpus};
use crate::stats::median;

/// A word alone on its line; two lines, because processors fetch them in pairs.
#[repr(align(128))]
struct Line(AtomicU64);

const BATCHES: usize = 16;
const TRIPS: u64 = 250;
/// Passed over at the start, while the second thread wakes up.
const WARM_UP: u64 = 500;

/// The round trip of a cache line between the two processors, in nanoseconds: the median over a few
/// batches. Takes about 1 to 3 ms, both processors busy. NaN on a machine with one processor.
///
/// Other busy programs on these processors make it worse; a figure above 1 000 says that the two
/// never ran together.
pub fn round_trip_ns(cpus: &Cpus) -> f64 {
    let Some(second) = cpus.second else { return f64::NAN };
    let line = Line(AtomicU64::new(0));
    let last = WARM_UP + BATCHES as u64 * TRIPS;
    thread::scope(|scope| {
        scope.spawn(|| {
            place::pin(second).ok();
            for trip in 0..last {
                wait_for(&line, 2 * trip + 1);
                line.0.store(2 * trip + 2, Release);
            }
        });
        let timer = scope.spawn(|| {
            place::pin(cpus.first).ok();
            let mut batches = Vec::with_capacity(BATCHES);
            let mut begun = Instant::now();
            for trip in 0..last {
                line.0.store(2 * trip + 1, Release);
                wait_for(&line, 2 * trip + 2);
                if trip + 1 >= WARM_UP && (trip + 1 - WARM_UP).is_multiple_of(TRIPS) {
                    let now = Instant::now();
                    if trip + 1 > WARM_UP {
                        batches.push(now.duration_since(begun).as_nanos() as f64 / TRIPS as f64);
                    }
                    begun = now;
                }
            }
            median(&batches)
        });
        timer.join().unwrap_or(f64::NAN)
    })
}

fn wait_for(line: &Line, value: u64) {
    let mut looks = 0u32;
    while line.0.load(Acquire) != value {
        looks += 1;
        // The other thread is not running: let it.
        if looks.is_multiple_of(1 << 14) {
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_takes_time() {
        let cpus = Cpus::allowed().unwrap();
        let ns = round_trip_ns(&cpus);
        assert!(ns.is_nan() == cpus.second.is_none());
        assert!(ns.is_nan() || ns > 1.0, "{ns}");
    }
}
