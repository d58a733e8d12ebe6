//! Queues that a living receiver has refused, and when this member offers them again.
//!
//! A receiver refuses a queue while it lacks memory or descriptors for it. The messages in the
//! queue wait in the sender. The sender offers the queue again whenever it sends to that receiver.
//! It also offers it by itself while it polls, receives where nothing is there, waits for the
//! group, waits for room in another queue, or is at a safe point of its virtual processor: the
//! first time [`FIRST`] after the refusal, then after pauses that double, up to [`LONGEST`]. So
//! these messages arrive once the receiver has what it lacked, also if their sender only waits for
//! an answer to them.
//!
//! A hostile receiver can refuse for ever, late, or by hanging up. Each queue has pauses of its own
//! that never become shorter. So such a receiver costs its sender about one offer a second, and
//! puts off no other receiver's offer. An offer waits for no answer, and for no process's end. It
//! takes about 0.1 ms.
//!
//! No wait sleeps past a refusal. The clerk leaves the refusal among the news and rouses the post;
//! the waiting thread hears the news before it sleeps again, finds that an offer is due, and sleeps
//! no longer than until then.
//!
//! Source: ours. In UDM a receiver has its memory before any message is sent.

use crate::link::{NotBrought, Refusal};
use crate::sending::{Outward, Why};
use crate::{Group, Rank};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Time from a refusal to the first offer.
const FIRST: Duration = Duration::from_millis(10);

/// Maximum time between two offers of one queue.
const LONGEST: Duration = Duration::from_secs(1);

/// When one queue is offered again, if it is refused.
#[derive(Debug)]
pub(crate) struct Schedule {
    due: Option<Instant>,
    /// The last offer.
    last: Option<Instant>,
    /// Minimum time from that to the next one.
    pause: Duration,
}

impl Default for Schedule {
    fn default() -> Self {
        Self { due: None, last: None, pause: FIRST }
    }
}

impl Schedule {
    /// The queue is refused. Returns when it is to be offered again.
    pub(crate) fn refused(&mut self, now: Instant) -> Instant {
        let first = now + FIRST;
        let due = self.last.map_or(first, |last| first.max(last + self.pause));
        self.due = Some(due);
        due
    }

    /// The queue is offered.
    pub(crate) fn offered(&mut self, now: Instant) {
        *self = Self { due: None, last: Some(now), pause: (self.pause * 2).min(LONGEST) };
    }

    /// When the queue is to be offered again.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }
}

/// When the next refused queue is offered again.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    /// `None`: none is refused, as far as is known.
    next: Cell<Option<Instant>>,
}

impl Offers {
    /// A queue was refused, which is to be offered again at this time.
    pub(crate) fn refused(&self, due: Instant) {
        self.next.set(Some(self.next.get().map_or(due, |next| next.min(due))));
    }

    /// When that is; `None` if none is refused, as far as is known.
    #[inline]
    pub(crate) fn next(&self) -> Option<Instant> {
        self.next.get()
    }

    /// Returns `true` if an offer is to be made sooner than was known when the next one was at
    /// `known`.
    pub(crate) fn are_sooner_than(&self, known: Option<Instant>) -> bool {
        self.next().is_some_and(|next| known.is_none_or(|known| next < known))
    }
}

impl Group {
    /// Offers a refused queue again if it is time for that. Returns the time until the next offer;
    /// `None` if none is refused.
    pub(crate) fn offer_again(&self) -> Option<Duration> {
        let next = self.0.offers.next()?;
        let left = next.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            return Some(left);
        }
        let _busy = self.busy();
        let now = Instant::now();
        if let Some((_, rank)) = self.all_due(now).min().filter(|(due, _)| *due <= now) {
            self.offer(rank, now);
        }
        let now = Instant::now();
        let next = self.all_due(now).min().map(|(due, _)| due);
        self.0.offers.next.set(next);
        next.map(|next| next.saturating_duration_since(now))
    }

    /// When each refused queue is to be offered again. One to which a send is under way is looked
    /// at later.
    fn all_due(&self, now: Instant) -> impl Iterator<Item = (Instant, Rank)> {
        let due = move |rank: Rank| match self.0.links[rank].try_borrow().as_deref() {
            Ok(Outward::Open(link)) => link.offer_due(),
            Ok(_) => None,
            Err(_) => Some(now + FIRST),
        };
        (0..self.size()).filter_map(move |rank| Some((due(rank)?, rank)))
    }

    fn offer(&self, rank: Rank, now: Instant) {
        let offered = match self.0.links[rank].try_borrow_mut().as_deref_mut() {
            Ok(Outward::Open(link)) => link.offer(&self.0.member, &self.0.roster, rank, now),
            _ => return,
        };
        match offered {
            Ok(()) => {}
            // A failure changes nothing: the next offer finds the same.
            Err(NotBrought::Ended) => {
                let listed = &self.0.roster.members[rank];
                let socket = self.0.member.folder().join(&listed.socket);
                let _ = self.0.member.tell_clerk_of_end(rank, listed.process, socket);
            }
            Err(NotBrought::Refused(Refusal::ForGood(why))) => {
                *self.0.links[rank].borrow_mut() = Outward::Closed(Why::Refused(why));
            }
            // The queue is refused still. The next send tells it.
            Err(NotBrought::Refused(Refusal::ForNow(_)) | NotBrought::Failed(_)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_of_a_queue_grow_however_late_it_is_refused() {
        for late in [Duration::ZERO, FIRST / 2, 3 * FIRST, LONGEST / 2, 3 * LONGEST] {
            let (mut schedule, begun) = (Schedule::default(), Instant::now());
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
