//! When queues that a living receiver has refused are offered again.
//!
//! The first offer comes [`FIRST`] after the refusal, the next ones after pauses that double, up to
//! [`LONGEST`]. Each queue has pauses of its own that never become shorter. So a receiver that
//! refuses for ever costs its sender about one offer a second, and puts off no other one's offer.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Time from a refusal to the first offer.
pub const FIRST: Duration = Duration::from_millis(10);

/// Maximum time between two offers of one queue.
pub const LONGEST: Duration = Duration::from_secs(1);

/// The time at which one queue is offered again, if it is refused.
#[derive(Debug)]
pub struct OfferSchedule {
    due: Option<Instant>,
    /// The time of the last offer.
    last: Option<Instant>,
    /// Minimum time from the last offer to the next one.
    pause: Duration,
}

impl Default for OfferSchedule {
    fn default() -> Self {
        Self { due: None, last: None, pause: FIRST }
    }
}

impl OfferSchedule {
    /// Notes that the queue is refused. Returns the time of the next offer.
    pub fn refused(&mut self, now: Instant) -> Instant {
        let first = now + FIRST;
        let due = self.last.map_or(first, |last| first.max(last + self.pause));
        self.due = Some(due);
        due
    }

    /// Notes that the queue is offered.
    pub fn offered(&mut self, now: Instant) {
        *self = Self { due: None, last: Some(now), pause: (self.pause * 2).min(LONGEST) };
    }

    /// The time of the next offer.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }
}

/// The time at which the next refused queue is offered again.
#[derive(Debug, Default)]
pub struct Offers {
    /// `None` if none is refused, as far as is known.
    next: Cell<Option<Instant>>,
}

impl Offers {
    /// Notes that a queue was refused, which is to be offered again at `due`.
    pub fn refused(&self, due: Instant) {
        self.next.set(Some(self.next.get().map_or(due, |next| next.min(due))));
    }

    /// Sets the time, after all queues were checked.
    pub fn look_again(&self, next: Option<Instant>) {
        self.next.set(next);
    }

    /// The time of the next offer; `None` if no queue is refused, as far as is known.
    #[inline]
    pub fn next(&self) -> Option<Instant> {
        self.next.get()
    }

    /// Returns `true` if an offer is due sooner than `known`.
    ///
    /// `known` is an earlier result of [`next`](Self::next).
    pub fn are_sooner_than(&self, known: Option<Instant>) -> bool {
        self.next().is_some_and(|next| known.is_none_or(|known| next < known))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_of_a_queue_grow_however_late_it_is_refused() {
        for late in [Duration::ZERO, FIRST / 2, 3 * FIRST, LONGEST / 2, 3 * LONGEST] {
            let (mut schedule, begun) = (OfferSchedule::default(), Instant::now());
            assert!(schedule.due().is_none());
            assert_eq!(schedule.refused(begun), begun + FIRST);
            let (mut now, mut pauses) = (begun + FIRST, Vec::new());
            for _ in 0..10 {
                schedule.offered(now);
                assert!(schedule.due().is_none());
                let due = schedule.refused(now + late);
                assert_eq!(schedule.due(), Some(due));
                pauses.push(due - now);
                now = due;
            }
            assert!(
                pauses.is_sorted()
                    && pauses[0] >= 2 * FIRST
                    && pauses[9] == LONGEST.max(late + FIRST),
                "{pauses:?}"
            );
        }
    }

    #[test]
    fn the_queue_that_is_due_first_is_next() {
        let (offers, now) = (Offers::default(), Instant::now());
        assert!(offers.next().is_none() && !offers.are_sooner_than(None));
        for seconds in [3, 1, 2] {
            offers.refused(now + Duration::from_secs(seconds));
        }
        let at = |seconds| Some(now + Duration::from_secs(seconds));
        assert_eq!(offers.next(), at(1));
        assert_eq!(
            [None, at(2), at(1), at(0)].map(|known| offers.are_sooner_than(known)),
            [true, true, false, false]
        );
    }
}
