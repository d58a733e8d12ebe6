//! Order statistics of samples, medians over rounds, and the cost of reading the clock.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::raw;

/// The statistics of a batch of calls. Times are in nanoseconds, without the clock's own cost.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Median.
    pub p50_ns: f64,
    /// 99th percentile.
    pub p99_ns: f64,
    /// 99.9th percentile.
    pub p999_ns: f64,
    /// 99.99th percentile of single calls, if there are [`ENOUGH`] samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p9999_ns: Option<f64>,
    /// Mean of calls made without reading the clock between them.
    pub mean_ns: f64,
    /// Number of calls with a time stamp each.
    pub count: u64,
}

/// Minimum number of samples for a 99.99th percentile. With fewer it is the second-longest sample.
pub const ENOUGH: usize = 20_000;

impl Summary {
    /// Returns the summary of `count` calls that all took the same time.
    pub fn flat(ns: f64, count: u64) -> Summary {
        Summary { p50_ns: ns, p99_ns: ns, p999_ns: ns, p9999_ns: None, mean_ns: ns, count }
    }

    /// Applies `each` to every time.
    #[must_use]
    pub fn map(self, each: impl Fn(f64) -> f64) -> Summary {
        Summary {
            p50_ns: each(self.p50_ns),
            p99_ns: each(self.p99_ns),
            p999_ns: each(self.p999_ns),
            p9999_ns: self.p9999_ns.map(&each),
            mean_ns: each(self.mean_ns),
            count: self.count,
        }
    }

    /// Summarises durations of single operations in nanoseconds, and sorts them.
    ///
    /// # Panics
    /// There are no samples.
    pub fn of_durations(samples: &mut [u64]) -> Summary {
        let mean_ns = samples.iter().sum::<u64>() as f64 / samples.len() as f64;
        Summary::of(samples, &Clock { ns_per_tick: None, cost: 0, in_order: false }, mean_ns)
    }

    /// Summarises batches of `ops` operations each by their durations in nanoseconds, and sorts
    /// them. Every figure is of one operation, averaged over its batch.
    ///
    /// # Panics
    /// There are no batches.
    pub fn of_batches(batches: &mut [u64], ops: u64) -> Summary {
        let whole = Summary { p9999_ns: None, ..Summary::of_durations(batches) };
        whole.map(|ns| ns / ops as f64)
    }

    /// Summarises durations in nanoseconds with fractions, most of which are averages of batches.
    ///
    /// # Panics
    /// There are no samples.
    pub fn of_nanoseconds(mut samples: Vec<f64>) -> Summary {
        samples.sort_unstable_by(f64::total_cmp);
        let at = |part: f64| samples[rank(part, samples.len())];
        let mean_ns = samples.iter().sum::<f64>() / samples.len() as f64;
        Summary {
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            p9999_ns: None,
            mean_ns,
            count: samples.len() as u64,
        }
    }

    /// Summarises single calls, `samples` of `clock`, which are sorted, and a batch with the mean
    /// `mean_ns`.
    ///
    /// # Panics
    /// There are no samples.
    pub fn of(samples: &mut [u64], clock: &Clock, mean_ns: f64) -> Summary {
        samples.sort_unstable();
        let at = |part| clock.ns(percentile(samples, part));
        Summary {
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            p9999_ns: (samples.len() >= ENOUGH).then(|| at(0.9999)),
            mean_ns,
            count: samples.len() as u64,
        }
    }
}

/// Returns the nearest-rank percentile of sorted samples: the smallest sample that at least `part`
/// of them do not exceed.
///
/// # Panics
/// There are no samples.
pub fn percentile(sorted: &[u64], part: f64) -> u64 {
    sorted[rank(part, sorted.len())]
}

fn rank(part: f64, samples: usize) -> usize {
    let rank = (part * samples as f64).ceil() as usize;
    rank.clamp(1, samples) - 1
}

/// Returns the median, or NaN if there are no values. For an even number of values, this is the
/// mean of the middle two.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// The clock of single calls: the processor's time-stamp counter if it runs at one rate on all
/// processors (as determined by the kernel, which then uses it), otherwise the system's monotonic
/// clock.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// Nanoseconds per tick; `None` for the system's clock.
    ns_per_tick: Option<f64>,
    /// Sample of an empty call, in ticks: the cost of reading the clock once.
    cost: u64,
    /// `true` if [`read`](Clock::read) is ordered after preceding loads and before following ones.
    in_order: bool,
}

impl Clock {
    /// Chooses and calibrates a clock; takes 10 ms.
    pub fn calibrated() -> Clock {
        let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        let counter =
            raw::TICKS && std::fs::read_to_string(source).is_ok_and(|name| name.trim() == "tsc");
        let mut clock = Clock { ns_per_tick: counter.then(ns_per_tick), cost: 0, in_order: false };
        let mut samples = vec![1; 2_000];
        if clock.time_each(&mut samples, || Ok::<(), ()>(())).is_ok() {
            samples.sort_unstable();
            clock.cost = percentile(&samples, 0.5);
        }
        clock
    }

    /// Like [`calibrated`](Self::calibrated), with readings ordered after all preceding loads and
    /// before all following ones. For short operations that fetch lines: the processor would
    /// otherwise read the clock before the lines arrive.
    pub fn in_order() -> Clock {
        let mut clock = Clock { in_order: true, ..Clock::calibrated() };
        let between = |_| {
            let before = clock.read();
            clock.read().wrapping_sub(before)
        };
        let mut samples: Vec<u64> = (0..2_000).map(between).collect();
        samples.sort_unstable();
        clock.cost = percentile(&samples, 0.5);
        clock
    }

    /// Fills `samples` with the ticks of one call each. There is one reading per call: the end of
    /// one is the start of the next.
    ///
    /// # Errors
    /// The first error of `call`.
    #[inline(always)]
    pub fn time_each<E>(
        &self,
        samples: &mut [u64],
        mut call: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        if self.ns_per_tick.is_some() {
            let mut last = raw::ticks();
            for sample in samples {
                call()?;
                let now = raw::ticks();
                *sample = now.wrapping_sub(last);
                last = now;
            }
        } else {
            let mut last = Instant::now();
            for sample in samples {
                call()?;
                let now = Instant::now();
                *sample = now.duration_since(last).as_nanos() as u64;
                last = now;
            }
        }
        Ok(())
    }

    /// Reads the clock, in ticks. All processes of the machine have the same clock.
    #[inline]
    pub fn read(&self) -> u64 {
        if self.ns_per_tick.is_some() {
            return if self.in_order { raw::ticks_in_order() } else { raw::ticks() };
        }
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }

    /// Converts a sample to nanoseconds, without the clock's own cost.
    pub fn ns(&self, sample: u64) -> f64 {
        sample.saturating_sub(self.cost) as f64 * self.ns_per_tick.unwrap_or(1.0)
    }
}

fn ns_per_tick() -> f64 {
    let (begun, first) = both_clocks();
    std::thread::sleep(Duration::from_millis(10));
    let (ended, last) = both_clocks();
    ended.duration_since(begun).as_nanos() as f64 / last.wrapping_sub(first).max(1) as f64
}

/// Reads both clocks at nearly the same time: the closest of a few tries, because this thread may
/// lose its processor in between.
fn both_clocks() -> (Instant, u64) {
    let tries = (0..20).map(|_| {
        let (before, now, after) = (raw::ticks(), Instant::now(), raw::ticks());
        (after.wrapping_sub(before), now, before)
    });
    match tries.min_by_key(|(gap, ..)| *gap) {
        Some((_, now, ticks)) => (now, ticks),
        None => (Instant::now(), raw::ticks()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_rank() {
        let sorted: Vec<u64> = (1..=1000).collect();
        assert_eq!(percentile(&sorted, 0.5), 500);
        assert_eq!(percentile(&sorted, 0.99), 990);
        assert_eq!(percentile(&sorted, 0.999), 999);
        assert_eq!(percentile(&sorted, 1.0), 1000);
        assert_eq!(percentile(&sorted, 0.0), 1);
        assert_eq!(percentile(&[7], 0.999), 7);
        assert_eq!(percentile(&[1, 2], 0.5), 1);
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn the_clock_is_taken_off_but_never_below_zero() {
        let clock = Clock { ns_per_tick: Some(0.5), cost: 20, in_order: false };
        let summary = Summary::of(&mut [130, 110, 120], &clock, 99.0);
        assert_eq!((summary.p50_ns, summary.p99_ns), (50.0, 55.0));
        assert_eq!((summary.mean_ns, summary.count), (99.0, 3));
        assert_eq!(Summary::of(&mut [3], &clock, 1.0).p50_ns, 0.0);
    }

    #[test]
    fn durations_are_summarised_as_they_are() {
        let summary = Summary::of_durations(&mut [3000, 1000, 2000]);
        assert_eq!(
            (summary.p50_ns, summary.p99_ns, summary.mean_ns, summary.count),
            (2000.0, 3000.0, 2000.0, 3)
        );
    }

    #[test]
    fn parts_of_nanoseconds_count() {
        let summary = Summary::of_nanoseconds(vec![2.5, 0.5, 1.5]);
        assert_eq!(
            (summary.p50_ns, summary.p99_ns, summary.mean_ns, summary.count),
            (1.5, 2.5, 1.5, 3)
        );
    }

    #[test]
    fn a_rare_percentile_needs_many_single_calls() {
        let summary = |count: u64| Summary::of_durations(&mut (1..=count).collect::<Vec<_>>());
        assert_eq!(summary(ENOUGH as u64).map(|ns| ns / 2.0).p9999_ns, Some(9999.0));
        assert_eq!(summary(ENOUGH as u64 - 1).p9999_ns, None);
        assert_eq!(Summary::of_batches(&mut vec![100; ENOUGH], 10).p9999_ns, None);
        let text = serde_json::to_string(&Summary::flat(5.0, 7)).unwrap();
        assert!(!text.contains("p9999"), "{text}");
        assert_eq!(serde_json::from_str::<Summary>(&text).unwrap(), Summary::flat(5.0, 7));
    }

    #[test]
    fn batches_are_divided_among_their_operations() {
        let summary = Summary::of_batches(&mut [3000, 1000, 2000], 100);
        assert_eq!(
            (summary.p50_ns, summary.p99_ns, summary.mean_ns, summary.count),
            (20.0, 30.0, 20.0, 3)
        );
    }

    #[test]
    fn the_clocks_agree() {
        let chosen = Clock::calibrated();
        for clock in
            [chosen, Clock::in_order(), Clock { ns_per_tick: None, cost: 0, in_order: false }]
        {
            let mut samples = [0; 5];
            let sleep = || {
                std::thread::sleep(Duration::from_millis(2));
                Ok::<(), ()>(())
            };
            clock.time_each(&mut samples, sleep).unwrap();
            let least = samples.map(|sample| clock.ns(sample)).into_iter().fold(f64::MAX, f64::min);
            assert!((1.99e6..50e6).contains(&least), "{clock:?}: {least}");
        }
        assert!(chosen.ns(chosen.cost + 1_000) > 1.0);
    }
}
