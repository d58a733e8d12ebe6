//! Queues that a living receiver has refused, and when this member offers them again.
//!
//! A receiver refuses a queue while it lacks memory or descriptors for it. The messages in the queue wait in the sender. The
//! sender offers the queue again whenever it sends to that receiver, and by itself while it waits or polls: first after
//! [`FIRST`], then after twice the last pause, up to [`LONGEST`]. So these messages arrive once the receiver has what it
//! lacked, also if their sender only waits for an answer to them.
//!
//! No wait sleeps past a refusal. The clerk leaves the refusal among the news and rouses the post; the waiting thread hears
//! the news before it sleeps again, finds that an offer is due, and sleeps no longer than until then.
//!
//! Source: ours. In UDM a receiver has its memory before any message is sent.

use crate::sending::Outward;
use crate::{Group, Rank};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Time from a refusal to the first offer.
const FIRST: Duration = Duration::from_millis(10);

/// Maximum time between two offers. Each takes 5 ms at most.
const LONGEST: Duration = Duration::from_secs(1);

/// When refused queues are offered again.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    /// `None`: none is refused.
    next: Cell<Option<Instant>>,
    pause: Cell<Duration>,
}

impl Offers {
    /// A queue was refused.
    pub(crate) fn refused(&self, now: Instant) {
        if self.next.get().is_none() {
            self.pause.set(FIRST);
            self.next.set(Some(now + FIRST));
        }
    }

    /// Returns `true` if a queue is to be offered again at some time.
    #[inline]
    pub(crate) fn are_due(&self) -> bool {
        self.next.get().is_some()
    }

    /// Time until the next offer. `None`: none is to be made.
    fn left(&self, now: Instant) -> Option<Duration> {
        self.next.get().map(|next| next.saturating_duration_since(now))
    }

    /// An offer was made, and some queue `is_refused` still, or none.
    fn made(&self, now: Instant, is_refused: bool) {
        self.pause.set((self.pause.get() * 2).min(LONGEST));
        self.next.set(is_refused.then(|| now + self.pause.get()));
    }
}

impl Group {
    /// Offers the refused queues again if it is time for that. Returns the time until the next offer; `None` if none is refused.
    pub(crate) fn offer_again(&self) -> Option<Duration> {
        if !self.0.offers.are_due() {
            return None;
        }
        let left = self.0.offers.left(Instant::now())?;
        if !left.is_zero() {
            return Some(left);
        }
        let refused = (0..self.size()).filter(|&rank| self.is_refused_again(rank)).count();
        let now = Instant::now();
        self.0.offers.made(now, refused > 0);
        self.0.offers.left(now)
    }

    /// Offers a queue again if it is refused. Returns `true` if it still is.
    fn is_refused_again(&self, rank: Rank) -> bool {
        match self.0.links[rank].try_borrow_mut().as_deref_mut() {
            Ok(Outward::Open(link)) if link.is_refused() => {
                // An error leaves the queue refused. The next send tells it.
                !link.bring_again(&self.0.member, &self.0.roster, rank).unwrap_or(false)
            }
            Ok(_) => false,
            // A send is under way, which offers the queue.
            Err(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_nothing_is_refused() {
        let (offers, begun) = (Offers::default(), Instant::now());
        assert!(!offers.are_due() && offers.left(begun).is_none());
        offers.refused(begun);
        // A second refusal does not put the offer off.
        offers.refused(begun + FIRST / 2);
        assert_eq!(offers.left(begun), Some(FIRST));
        let (mut now, mut pauses) = (begun, Vec::new());
        for _ in 0..10 {
            now += offers.left(now).unwrap();
            assert_eq!(offers.left(now), Some(Duration::ZERO));
            offers.made(now, true);
            pauses.push(offers.left(now).unwrap());
        }
        assert!(pauses.is_sorted() && pauses[0] == 2 * FIRST && pauses[9] == LONGEST, "{pauses:?}");
        offers.made(now, false);
        assert!(!offers.are_due());
        offers.refused(now);
        assert_eq!(offers.left(now), Some(FIRST));
    }
}
