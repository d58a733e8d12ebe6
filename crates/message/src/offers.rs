//! Queues that a living receiver has refused, and when this member offers them again.
//!
//! A receiver refuses a queue while it lacks memory or descriptors for it. The messages in the
//! queue wait in the sender. The sender offers the queue again whenever it sends to that receiver.
//! It also offers it by itself while it polls, receives where nothing is there, waits for the
//! group, waits for room in another queue, or is at a safe point of its virtual processor: the
//! first time [`FIRST`] after the refusal, then after pauses that double, up to
//! [`LONGEST`](crate::proto::offers). So these messages arrive once the receiver has the missing
//! resource, even if their sender only waits for an answer to them.
//!
//! A hostile receiver can refuse for ever, late, or by hanging up. Each queue has pauses of its own
//! that never become shorter. So such a receiver costs its sender about one offer a second, and
//! puts off no other receiver's offer. An offer waits for no answer, and for no process's end. It
//! takes about 0.1 ms.
//!
//! No wait sleeps past a refusal. The clerk leaves the refusal as an event and rouses the post; the
//! waiting thread takes the event in before it sleeps again, finds when an offer is due, and sleeps
//! no longer than until then.
//!
//! Source: ours. In UDM a receiver has its memory before any message is sent.

use crate::bringing::NotBrought;
use crate::link::{Outward, Why};
use crate::member::QueueRefusal;
use crate::proto::offers::FIRST;
use crate::{Group, Rank};
use std::time::{Duration, Instant};

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
        self.0.offers.look_again(next);
        next.map(|next| next.saturating_duration_since(now))
    }

    /// The times at which refused queues are to be offered again. A queue with a send under way is
    /// checked later.
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
            Err(NotBrought::Refused(QueueRefusal::ForGood(why))) => {
                *self.0.links[rank].borrow_mut() = Outward::Closed(Why::Refused(why));
            }
            // The queue is still refused. The next send reports it.
            Err(NotBrought::Refused(QueueRefusal::ForNow(_)) | NotBrought::Failed(_)) => {}
        }
    }
}
