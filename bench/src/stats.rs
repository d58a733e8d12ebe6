//! Order statistics of samples, medians over rounds, and the cost of reading the clock.

use std::time::Instant;

use serde::{Deserialize, Serialize};

/// What is kept of one batch of calls. Times in nanoseconds, the clock's own cost taken off.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Median.
    pub p50_ns: f64,
    /// 99th percentile.
    pub p99_ns: f64,
    /// 99.9th percentile.
    pub p999_ns: f64,
    /// Mean of calls made without reading the clock between them.
    pub mean_ns: f64,
    /// Calls with a time stamp each.
    pub count: u64,
}

impl Summary {
    /// Summarises single calls (`samples`, nanoseconds, sorted here) and a batch whose mean is `mean_ns`.
    ///
    /// # Panics
    /// If there are no samples.
    pub fn of(samples: &mut [u64], clock_ns: u64, mean_ns: f64) -> Summary {
        samples.sort_unstable();
        let at = |part| percentile(samples, part).saturating_sub(clock_ns) as f64;
        Summary {
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            mean_ns,
            count: samples.len() as u64,
        }
    }
}

/// The nearest-rank percentile of sorted samples: the smallest one that at least `part` of them do not exceed.
///
/// # Panics
/// If there are no samples.
pub fn percentile(sorted: &[u64], part: f64) -> u64 {
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// The median; of an even number of values, the mean of the middle two. NaN if there are none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// What one sample of an empty call comes to: the cost of reading the clock once. Nanoseconds.
pub fn clock_ns() -> u64 {
    let mut samples = vec![0; 10_000];
    time_each(&mut samples, || Ok::<_, std::convert::Infallible>(())).unwrap_or_else(|never| match never {});
    samples.sort_unstable();
    percentile(&samples, 0.5)
}

/// Fills `samples` with the nanoseconds of one call each. One time stamp a call: the end of one is the start of the next.
///
/// # Errors
/// The first error of `call`.
#[inline(always)]
pub fn time_each<E>(samples: &mut [u64], mut call: impl FnMut() -> Result<(), E>) -> Result<(), E> {
    let mut last = Instant::now();
    for sample in samples {
        call()?;
        let now = Instant::now();
        *sample = now.duration_since(last).as_nanos() as u64;
        last = now;
    }
    Ok(())
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
        let summary = Summary::of(&mut [130, 110, 120], 20, 99.0);
        assert_eq!(summary.p50_ns, 100.0);
        assert_eq!(summary.p99_ns, 110.0);
        assert_eq!((summary.mean_ns, summary.count), (99.0, 3));
        assert_eq!(Summary::of(&mut [3], 20, 1.0).p50_ns, 0.0);
    }

    #[test]
    fn the_clock_costs_less_than_a_microsecond() {
        assert!(clock_ns() < 1_000);
    }
}
