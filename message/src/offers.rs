//! Queues that a living receiver has refused, and when this member offers them again.
//!
//! A receiver refuses a queue while it lacks memory or descriptors for it. The messages in the queue wait in the sender. The
//! sender offers the queue again whenever it sends to that receiver. While it waits or polls, it offers refused queues by
//! itself: the first one after [`FIRST`], the next one after twice that, up to [`LONGEST`]. So these messages arrive once
//! the receiver has what it lacked, also if their sender only waits for an answer to them.
//!
//! A hostile receiver can refuse for ever, late, or by hanging up. It costs its sender one offer a pause at most: offers are
//! made one at a time, wait for no answer, and a refusal that follows an offer does not shorten the pause.
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

/// Maximum time between two offers. An offer takes about 0.1 ms, and 30 ms if the receiver hangs up.
const LONGEST: Duration = Duration::from_secs(1);

/// When refused queues are offered again.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    /// `None`: none is refused.
    next: Cell<Option<Instant>>,
    /// The last offer, and the pause after it.
    last: Cell<Option<(Instant, Duration)>>,
    /// Rank from which the next refused queue is searched.
    turn: Cell<Rank>,
}

impl Offers {
    /// A queue was refused.
    pub(crate) fn refused(&self, now: Instant) {
        if self.next.get().is_some() {
            return;
        }
        // Within two pauses of an offer the refusal answers that offer.
        let last = self.last.get().filter(|&(at, pause)| now.saturating_duration_since(at) < pause * 2);
        self.next.set(Some(last.map_or(now + FIRST, |(at, pause)| at + pause)));
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

    /// An offer was made, and `refused` queues are refused still.
    fn made(&self, now: Instant, refused: usize) {
        let follows = |(at, pause): &(Instant, Duration)| now.saturating_duration_since(*at) < *pause * 2;
        let pause = self.last.get().filter(follows).map_or(FIRST * 2, |(_, pause)| (pause * 2).min(LONGEST));
        self.last.set(Some((now, pause)));
        self.next.set((refused > 0).then(|| now + pause));
    }
}

impl Group {
    /// Offers a refused queue again if it is time for that. Returns the time until the next offer; `None` if none is refused.
    pub(crate) fn offer_again(&self) -> Option<Duration> {
        if !self.0.offers.are_due() {
            return None;
        }
        let left = self.0.offers.left(Instant::now())?;
        if !left.is_zero() {
            return Some(left);
        }
        let (first, size) = (self.0.offers.turn.get(), self.size());
        let mut turns = (first..first + size).map(|turn| turn % size);
        if let Some(rank) = turns.find(|&rank| self.is_refused(rank)) {
            self.0.offers.turn.set(rank + 1);
            if let Ok(Outward::Open(link)) = self.0.links[rank].try_borrow_mut().as_deref_mut() {
                // An error leaves the queue refused. The next send tells it.
                let _ = link.bring_again(&self.0.member, &self.0.roster, rank, Duration::ZERO);
            }
        }
        let now = Instant::now();
        self.0.offers.made(now, (0..size).filter(|&rank| self.is_refused(rank)).count());
        self.0.offers.left(now)
    }

    /// Returns `true` if a queue is refused. One to which a send is under way may be.
    fn is_refused(&self, rank: Rank) -> bool {
        match self.0.links[rank].try_borrow().as_deref() {
            Ok(Outward::Open(link)) => link.is_refused(),
            Ok(_) => false,
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
        for turn in 0..10 {
            now += offers.left(now).unwrap();
            assert_eq!(offers.left(now), Some(Duration::ZERO));
            // The answer comes at once, or as news after the offer.
            offers.made(now, turn % 2);
            offers.refused(now + FIRST / 2);
            pauses.push(offers.left(now).unwrap());
        }
        assert!(pauses.is_sorted() && pauses[0] == 2 * FIRST && pauses[9] == LONGEST, "{pauses:?}");
        offers.made(now, 0);
        assert!(!offers.are_due());
        now += 3 * LONGEST;
        offers.refused(now);
        assert_eq!(offers.left(now), Some(FIRST));
    }
}
