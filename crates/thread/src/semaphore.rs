//! A counting semaphore that blocks the thread and never its processor.
//!
//! Source: E. W. Dijkstra, "Cooperating sequential processes", 1965.

use crate::deadline::after;
use crate::shares::{MOST, Shares};
use crate::turn::{give, take, take_by};
use crate::waiter::QueuedWait;
use std::fmt;
use std::time::{Duration, Instant};

/// A number of permits, for both kinds of threads.
///
/// First come, first served: a request for many permits is not overtaken by requests for few.
pub struct Semaphore {
    shares: Shares<QueuedWait>,
}

impl Semaphore {
    /// Maximum number of permits of a semaphore.
    pub const MOST_PERMITS: usize = MOST;

    /// Creates a semaphore with `permits` free permits.
    ///
    /// # Panics
    /// If `permits` exceeds [`MOST_PERMITS`](Self::MOST_PERMITS).
    pub const fn new(permits: usize) -> Self {
        assert!(permits <= MOST, "more permits than Semaphore::MOST_PERMITS");
        Self { shares: Shares::new(permits) }
    }

    /// Number of free permits, which may change at any moment.
    pub fn available(&self) -> usize {
        self.shares.free()
    }

    /// Takes one permit, blocking the calling thread while there is none.
    ///
    /// Dropping the return value gives the permit back.
    pub fn acquire(&self) -> Permits<'_> {
        self.acquire_many(1)
    }

    /// Takes `count` permits at once, blocking the calling thread until they are free.
    ///
    /// If that many never are, the thread waits for ever.
    pub fn acquire_many(&self, count: usize) -> Permits<'_> {
        take(&self.shares, count);
        Permits { semaphore: self, count }
    }

    /// Takes `count` permits if that needs no wait.
    pub fn try_acquire(&self, count: usize) -> Option<Permits<'_>> {
        self.shares.try_take(count).then(|| Permits { semaphore: self, count })
    }

    /// Takes `count` permits, waiting for at most `timeout`.
    pub fn acquire_timeout(&self, count: usize, timeout: Duration) -> Option<Permits<'_>> {
        take_by(&self.shares, count, || after(timeout)).then(|| Permits { semaphore: self, count })
    }

    /// Takes `count` permits, waiting until `deadline` at most.
    pub fn acquire_until(&self, count: usize, deadline: Instant) -> Option<Permits<'_>> {
        take_by(&self.shares, count, || Some(deadline)).then(|| Permits { semaphore: self, count })
    }

    /// Adds `count` permits.
    ///
    /// Any thread may do that, whether or not it took permits before. With [`Permits::forget`] this
    /// makes an event counter.
    ///
    /// # Panics
    /// If more than [`MOST_PERMITS`](Self::MOST_PERMITS) permits would be free.
    pub fn release(&self, count: usize) {
        assert!(
            count <= MOST - self.shares.free().min(MOST),
            "a semaphore with {} free permits was given {count} more: the most is {MOST}",
            self.shares.free()
        );
        give(&self.shares, count);
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore").field("available", &self.available()).finish()
    }
}

/// Permits that were taken. Dropping them gives them back.
#[must_use = "dropping the permits gives them back at once"]
#[derive(Debug)]
pub struct Permits<'a> {
    semaphore: &'a Semaphore,
    count: usize,
}

impl Permits<'_> {
    /// Number of permits.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Consumes the permits: they are not given back.
    pub fn forget(mut self) {
        self.count = 0;
    }
}

impl Drop for Permits<'_> {
    fn drop(&mut self) {
        if self.count > 0 {
            give(&self.semaphore.shares, self.count);
        }
    }
}
