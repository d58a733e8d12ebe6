//! How long a wait polls the links to other hosts before it sleeps.
//!
//! A message between two hosts takes some 10 µs if its receiver polls, and more than twice that if
//! a thread has to be woken for it. A wait that ends late was not worth polling for. So a member
//! that has waited long several times in a row polls no more, until a wait was short again. Whether
//! polling would have been worth while is known from how long a wait took, also if it did not poll.
//!
//! A long message arrives piece by piece. So a wait that has read something polls once more, for
//! [`LONGEST`] at most.
//!
//! If another thread wants the processor, a poller uses up its own share of it, and then waits for
//! milliseconds where a sleeper would be woken at once. A member that notices that does not poll in
//! its next waits: the more of them, the more often that was so.
//!
//! Time is an argument.

use std::cell::Cell;
use std::time::Duration;
use upcall_sched::Pacing;

/// Time for which a wait polls: that of some messages there and back.
const LIMIT: Duration = Duration::from_micros(60);

/// Maximum time for which a wait polls while something arrives.
const LONGEST: Duration = Duration::from_millis(1);

/// Maximum time of a wait that counts as short.
const SHORT: Duration = Duration::from_micros(120);

/// Number of long waits in a row after which a wait does not poll.
const FRUITLESS: u32 = 4;

/// Maximum number of waits that do not poll after another thread wanted the processor.
const MOST_RESTS: u32 = 64;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct LinkLooks {
    /// Number of long waits in a row.
    long: Cell<u32>,
    /// Number of waits that are still to come without polling.
    rests: Cell<u32>,
    /// Binary logarithm of their number the next time.
    next_rests: Cell<u32>,
}

/// Why a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkWaitEnd {
    /// Something came.
    Came,
    /// Nothing came in the time of the wait.
    OutOfTime,
}

impl LinkLooks {
    /// Maximum time for which the next wait polls.
    pub(crate) fn next(&self, pacing: Pacing) -> Duration {
        let rests = self.rests.get();
        self.rests.set(rests.saturating_sub(1));
        match pacing {
            Pacing::Poll => Duration::MAX,
            Pacing::Adaptive if rests == 0 && self.long.get() < FRUITLESS => LIMIT,
            Pacing::Adaptive | Pacing::Sleep => Duration::ZERO,
        }
    }

    /// Returns `true` if a wait that has read something, and has polled for this time, polls no
    /// more.
    pub(crate) fn is_over(&self, pacing: Pacing, polled: Duration) -> bool {
        polled >= LONGEST || pacing != Pacing::Adaptive
    }

    /// A wait has polled, and found nothing in this time.
    pub(crate) fn polled_in_vain(&self, took: Duration) {
        if took > SHORT {
            let next = self.next_rests.get();
            self.rests.set((1 << next).min(MOST_RESTS));
            self.next_rests.set((next + 1).min(MOST_RESTS.ilog2()));
        }
    }

    /// A wait has polled, and found something.
    pub(crate) fn found(&self) {
        self.next_rests.set(self.next_rests.get().saturating_sub(1));
    }

    /// A wait has ended after this time.
    pub(crate) fn waited(&self, took: Duration, end: LinkWaitEnd) {
        match end {
            _ if took > SHORT => self.long.set(self.long.get().saturating_add(1)),
            LinkWaitEnd::Came => self.long.set(0),
            // It may be that something comes soon after.
            LinkWaitEnd::OutOfTime => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_waits_end_polling_and_a_short_one_begins_it_again() {
        let looks = LinkLooks::default();
        for _ in 0..FRUITLESS {
            assert_eq!(looks.next(Pacing::Adaptive), LIMIT);
            looks.waited(2 * SHORT, LinkWaitEnd::OutOfTime);
        }
        for _ in 0..3 {
            assert_eq!(looks.next(Pacing::Adaptive), Duration::ZERO);
            looks.waited(Duration::MAX, LinkWaitEnd::Came);
        }
        looks.waited(LIMIT, LinkWaitEnd::OutOfTime);
        assert_eq!(looks.next(Pacing::Adaptive), Duration::ZERO);
        looks.waited(LIMIT, LinkWaitEnd::Came);
        assert_eq!(looks.next(Pacing::Adaptive), LIMIT);
        assert_eq!(looks.next(Pacing::Sleep), Duration::ZERO);
    }

    #[test]
    fn who_loses_the_processor_does_not_poll_for_a_while() {
        let looks = LinkLooks::default();
        looks.polled_in_vain(LIMIT);
        assert_eq!(looks.next(Pacing::Adaptive), LIMIT);
        for rests in [1, 2, 4, 8, 16, 32, MOST_RESTS, MOST_RESTS] {
            looks.polled_in_vain(2 * SHORT);
            for _ in 0..rests {
                assert_eq!(looks.next(Pacing::Adaptive), Duration::ZERO, "{rests}");
                looks.waited(LIMIT, LinkWaitEnd::Came);
            }
            assert_eq!(looks.next(Pacing::Adaptive), LIMIT, "{rests}");
        }
        // The more often it polls with success, the fewer they are the next time.
        (0..5).for_each(|_| looks.found());
        looks.polled_in_vain(2 * SHORT);
        assert_eq!((0..9).position(|_| looks.next(Pacing::Adaptive) == LIMIT), Some(2));
        assert_eq!(looks.next(Pacing::Poll), Duration::MAX);
    }

    #[test]
    fn a_wait_polls_once_more_while_something_arrives() {
        let looks = LinkLooks::default();
        assert!(!looks.is_over(Pacing::Adaptive, LIMIT));
        assert!(looks.is_over(Pacing::Adaptive, LONGEST));
        assert!(looks.is_over(Pacing::Sleep, Duration::ZERO));
    }
}
