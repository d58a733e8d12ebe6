//! A timer: a timerfd that expires once, and reports to its poll sets.

use crate::crossings;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// A timer; see the module.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// Makes a timer that is not set.
    ///
    /// # Errors
    /// No descriptor (`EMFILE`, `ENFILE`) or no memory is left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?))
    }

    /// Makes the timer expire once, in `after`. Costs one system call, about 0.4 µs.
    ///
    /// The previous setting is dropped, and so is an expiry that was not read.
    pub fn set(&self, after: Duration) {
        // Zero would disarm it.
        let after = after.max(Duration::from_nanos(1));
        let (Ok(it_value), it_interval) =
            (Timespec::try_from(after), Timespec { tv_sec: 0, tv_nsec: 0 })
        else {
            return;
        };
        crossings::another();
        let _ = timerfd_settime(
            &self.0,
            TimerfdTimerFlags::empty(),
            &Itimerspec { it_interval, it_value },
        );
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Asks the kernel to end the calling thread's timed waits exactly.
///
/// By default the kernel ends them up to 50 µs later, so that several end together. If the kernel
/// refuses, nothing happens.
pub fn be_exact() {
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::poll::{PollSet, Ready, Report};
    use std::time::Instant;

    #[test]
    fn it_goes_off_once_each_time_that_it_is_set() {
        let (set, timer, mut ready) = (PollSet::new().unwrap(), Timer::new().unwrap(), Vec::new());
        set.add(&timer, 3, Report::OneOfUs).unwrap();
        for _ in 0..3 {
            let start = Instant::now();
            timer.set(Duration::from_millis(5));
            set.wait(&mut ready, Some(Duration::from_secs(5)));
            assert_eq!(ready, [Ready { key: 3, hung_up: false }]);
            assert!(start.elapsed() >= Duration::from_millis(5));
            set.wait(&mut ready, Some(Duration::from_millis(10)));
            assert!(ready.is_empty(), "once");
        }
    }
}
