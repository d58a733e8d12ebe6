//! A clock that stands still while sleeping threads have to wait for a processor.
//!
//! A wait is a hang only if the waiting process could have run. Other programs, or the hypervisor,
//! may have the processors. So each processor has a control thread, which sleeps briefly and
//! measures how late it wakes. The clock advances with the slowest control thread, and leaves out
//! the time by which that thread was late.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use upcall_os::processor::CpuSet;

/// Time that a control thread sleeps.
const TICK: Duration = Duration::from_millis(2);
/// Longest time that a sleep takes if nothing keeps the thread from running.
const ON_TIME: Duration = Duration::from_millis(3);

/// The clock, with the values at its last reading.
pub struct FairClock {
    threads: Vec<Arc<AtomicU64>>,
    read: Vec<u64>,
    begun: Instant,
    passed: u64,
}

impl FairClock {
    /// Starts a control thread on each processor. The threads end with the process.
    pub fn start() -> Self {
        let processors: Vec<usize> =
            CpuSet::allowed().map(|all| all.iter().collect()).unwrap_or_default();
        let one = |cpu| {
            let time = Arc::new(AtomicU64::new(0));
            let shown = time.clone();
            std::thread::spawn(move || {
                // If the processor is taken away, its thread runs elsewhere, and the processor is
                // no longer watched.
                let _ = CpuSet::only(cpu).confine();
                loop {
                    let before = Instant::now();
                    std::thread::sleep(TICK);
                    shown.fetch_add(on_time(before.elapsed()), SeqCst);
                }
            });
            time
        };
        let threads: Vec<_> = processors.into_iter().map(one).collect();
        Self { read: vec![0; threads.len()], threads, begun: Instant::now(), passed: 0 }
    }

    /// The time since the last call in which a sleeping thread would have run, in nanoseconds.
    pub fn passed(&mut self) -> u64 {
        let mut least = None;
        for (thread, read) in self.threads.iter().zip(&mut self.read) {
            let time = thread.load(SeqCst);
            least = Some(least.unwrap_or(u64::MAX).min(time - *read));
            *read = time;
        }
        let passed = least.unwrap_or(0);
        self.passed += passed;
        passed
    }

    /// The share of the time so far in which sleeping threads had to wait for a processor.
    pub fn lost(&self) -> f64 {
        1.0 - (self.passed as f64 / 1e9 / self.begun.elapsed().as_secs_f64()).min(1.0)
    }
}

/// The part of a sleep of `elapsed` that counts, in nanoseconds.
fn on_time(elapsed: Duration) -> u64 {
    elapsed.min(ON_TIME).as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_counts_in_full_unless_it_is_late() {
        assert_eq!(on_time(Duration::from_micros(2100)), 2_100_000);
        assert_eq!(on_time(Duration::from_millis(50)), ON_TIME.as_nanos() as u64);
    }

    #[test]
    fn the_clock_goes_on() {
        let mut clock = FairClock::start();
        let mut passed = 0;
        while passed < 10_000_000 {
            std::thread::sleep(TICK);
            passed += clock.passed();
        }
        assert!(clock.lost() < 1.0);
    }
}
