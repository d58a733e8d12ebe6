//! The round trip of a cache line: the unit of calls between two processors.
//!
//! Two threads on two processors pass one line to and fro. On a virtual machine the host moves the
//! processors, and this figure varies with them (90 to 550 ns on the same machine), so it is probed
//! beside every case.

use std::sync::atomic::{AtomicU64, Ordering::*};
use std::thread;
use std::time::Instant;

use crate::place::{self, Cpus};
use crate::stats::median;

/// A word alone on its line. The alignment is two lines, because processors fetch them in pairs.
#[repr(align(128))]
struct Line(AtomicU64);

const BATCHES: usize = 16;
const TRIPS: u64 = 250;
/// Number of round trips skipped at the start, while the second thread wakes up.
const WARM_UP: u64 = 500;

/// Measures the round trip of a cache line between the two processors, in nanoseconds.
///
/// Returns the median over a few batches, or NaN on a machine with one processor. Takes about 1 to
/// 3 ms and keeps both processors busy. Other busy programs on these processors make the result
/// worse; a figure above 1 000 means that the two threads never ran together.
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
        // The other thread is not running: give it the processor.
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
