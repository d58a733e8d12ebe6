//! Times that another process of this machine understands.
//!
//! They are nanoseconds of `CLOCK_MONOTONIC`. `Instant` counts the same nanoseconds, but does not
//! give them out. A process in another time namespace counts from another time. Processes that
//! share a user's folder of names are, as a rule, in the same one.

use std::time::{Duration, Instant};

fn now() -> u64 {
    nanoseconds(rustix::time::clock_gettime(rustix::time::ClockId::Monotonic))
}

fn nanoseconds(time: rustix::time::Timespec) -> u64 {
    time.tv_sec
        .cast_unsigned()
        .saturating_mul(1_000_000_000)
        .saturating_add(time.tv_nsec.cast_unsigned())
}

/// The number of a time; that of now if the time has passed.
pub fn stamp(at: Instant) -> u64 {
    let ahead = at.saturating_duration_since(Instant::now());
    now().saturating_add(u64::try_from(ahead.as_nanos()).unwrap_or(u64::MAX))
}

/// The time with this number; now if it has passed.
///
/// `None` if it is beyond the clock's range.
pub fn moment(stamp: u64) -> Option<Instant> {
    let ahead = Duration::from_nanos(stamp.saturating_sub(now()));
    Instant::now().checked_add(ahead)
}

/// The time of the kernel's last tick, in nanoseconds. It changes every 1 to 10 ms.
///
/// Reading it takes some ns; the exact clock takes some tens.
#[inline]
pub fn tick() -> u64 {
    nanoseconds(rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_comes_back() {
        let at = Instant::now() + Duration::from_secs(3600);
        let back = moment(stamp(at)).unwrap();
        let apart = back.max(at) - back.min(at);
        assert!(apart < Duration::from_secs(60), "{apart:?}");
    }

    #[test]
    fn what_has_passed_is_now_and_what_is_far_is_far() {
        assert!(moment(0).unwrap() <= Instant::now());
        assert!(moment(stamp(Instant::now())).unwrap() <= Instant::now());
        assert!(tick() <= now());
        assert!(
            moment(u64::MAX).is_none_or(|at| at > Instant::now() + Duration::from_secs(1 << 30))
        );
    }
}
