//! The sending end of one pair, as the sending thread uses it.

use crate::Rank;
use crate::bringing::{DeliveredQueue, NotBrought, bring};
use crate::error::SendError;
use crate::far::{FarMember, LONG, RoomWait, SentPast};
use crate::member::{Bringing, Member, Roster};
use crate::message::Kind;
use crate::payload::{Payload, Writer};
use crate::proto::flow::NewMemory;
use crate::proto::offers::OfferSchedule;
use crate::proto::send_queue::SendQueue;
use std::cell::Cell;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_os::doorbell::Doorbell;
use upcall_os::fault::{Point, point};
use upcall_os::safe_doorbell::SafeDoorbell;
use upcall_sched::ringer::Ringer;
use upcall_shm::account::PairStats;
use upcall_shm::mailbag::Mailbag;
use upcall_shm::region::RegionView;
use upcall_shm::steps::Steps;

/// Maximum time of the wait for a receiver's answer. Its clerk takes some 0.1 ms.
const ANSWER: Duration = Duration::from_millis(5);

/// Maximum time of the wait for the answer to a member's queue to itself. The answer comes from the
/// clerk of this process, which waits for no peer. So a message to the sender itself is there when
/// `send` returns, even on a busy machine.
const OWN_ANSWER: Duration = Duration::from_secs(10);

/// The sending end of one pair.
#[derive(Debug)]
pub(crate) struct MemberLink {
    pub(crate) queue: SendQueue<Mailbag>,
    /// This member's reports to the receiver.
    pub(crate) steps: RegionView<Steps>,
    doorbell: Doorbell,
    safe_doorbell: &'static SafeDoorbell,
    /// `None` until the receiver has reported where it sleeps, and if it is on another host.
    ringer: Option<Ringer>,
    /// The pair's counters in this member's account.
    pair: RegionView<PairStats>,
    brought: DeliveredQueue,
    /// Set while the receiver does not read the queue for now.
    is_refused: bool,
    /// The times at which the queue is offered again without a send.
    offers: OfferSchedule,
    /// Set if the receiver may wait for a report of this member.
    has_reported: Cell<bool>,
}

/// The path to another member.
#[derive(Debug)]
pub(crate) enum Outward {
    /// Nothing was sent yet.
    Unopened,
    Open(Box<MemberLink>),
    Closed(Why),
}

/// The reason why no more is sent to a member.
#[derive(Clone, Debug)]
pub(crate) enum Why {
    Ended,
    Violation,
    Refused(String),
}

impl Why {
    pub(crate) fn of(&self, rank: Rank) -> SendError {
        match self {
            Self::Ended => SendError::Ended { rank },
            Self::Violation => SendError::Violation { rank },
            Self::Refused(why) => SendError::Unreachable { rank, why: why.clone() },
        }
    }
}

impl MemberLink {
    /// Opens a queue to another member, which need not run for that. Takes about 0.1 ms. `None` if
    /// the queue of connections at its door is full, at most until the member runs.
    pub(crate) fn open(
        member: &Arc<Member>,
        roster: &Roster,
        rank: Rank,
        timeout: Option<Duration>,
    ) -> Result<Option<Self>, SendError> {
        let failed = |error: io::Error| SendError::Unreachable { rank, why: error.to_string() };
        // All resources of this member come first: a queue that was brought is not given up for
        // lack of one.
        let (mut queue, doorbell) =
            (Mailbag::create().map_err(failed)?, Doorbell::new().map_err(failed)?);
        let safe_doorbell = SafeDoorbell::current().map_err(failed)?;
        let descriptors = (queue.as_fd(), doorbell.as_fd());
        let brought = bring(member, roster, rank, descriptors, answer_within(roster, rank));
        let Some((brought, ringer)) = brought.map_err(|why| why.error(rank, 0))? else {
            return Ok(None);
        };
        let pair = member.account.pair(rank);
        queue.count_in(pair.clone());
        let steps = queue.steps();
        let mut queue = SendQueue::new(queue, timeout);
        if brought.far().is_some() {
            queue.takes_new_memory(NewMemory::Later);
        }
        let (is_refused, offers, has_reported) =
            (false, OfferSchedule::default(), Cell::new(false));
        Ok(Some(Self {
            queue,
            steps,
            doorbell,
            safe_doorbell,
            ringer,
            pair,
            brought,
            is_refused,
            offers,
            has_reported,
        }))
    }

    /// Brings the queue again to a receiver that has refused it for now.
    ///
    /// All messages that were sent before are in it. Waits for the answer for `limit`; a later
    /// answer comes as a `MemberEvent`. Returns `false` if the queue of connections at the
    /// receiver's door is full.
    pub(crate) fn bring_again(
        &mut self,
        member: &Arc<Member>,
        roster: &Roster,
        rank: Rank,
        limit: Duration,
    ) -> Result<bool, NotBrought> {
        let descriptors = (self.queue.outgoing().memory().as_fd(), self.doorbell.as_fd());
        let Some((brought, ringer)) = bring(member, roster, rank, descriptors, limit)? else {
            return Ok(false);
        };
        (self.brought, self.ringer, self.is_refused) = (brought, ringer, false);
        // The messages in it were sent without a receiver.
        self.notify();
        Ok(true)
    }

    /// Brings the queue again without a send, and does not wait for the answer.
    pub(crate) fn offer(
        &mut self,
        member: &Arc<Member>,
        roster: &Roster,
        rank: Rank,
        now: Instant,
    ) -> Result<(), NotBrought> {
        self.offers.offered(now);
        let brought = self.bring_again(member, roster, rank, Duration::ZERO);
        if self.is_refused {
            self.offers.refused(now);
        }
        brought.map(drop)
    }

    /// Notes that the receiver does not read the queue for now. Returns the time of the next offer;
    /// `None` if the queue was brought again since `bringing`.
    pub(crate) fn refuse(&mut self, bringing: Bringing, now: Instant) -> Option<Instant> {
        self.is_brought_by(bringing).then(|| {
            self.is_refused = true;
            self.offers.refused(now)
        })
    }

    /// Returns `true` if `bringing` is the last time that the queue was brought.
    pub(crate) fn is_brought_by(&self, bringing: Bringing) -> bool {
        self.brought.is_by(bringing)
    }

    /// Returns `true` if the receiver does not read the queue for now.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// The time of the next offer, if the queue is refused.
    pub(crate) fn offer_due(&self) -> Option<Instant> {
        self.offers.due().filter(|_| self.is_refused)
    }

    /// Number of messages that were sent through this queue.
    #[inline]
    pub(crate) fn sent(&self) -> u64 {
        self.queue.outgoing().sent()
    }

    /// Returns `true` if the receiver does not read the queue for now, and may wait for a report in
    /// it.
    pub(crate) fn keeps_a_report_back(&self) -> bool {
        self.is_refused() && self.has_reported.get()
    }

    /// Returns the maximum length if a message of `len` bytes is too long for the way to its
    /// receiver.
    pub(crate) fn is_too_long(&self, len: usize) -> Option<usize> {
        self.brought.far().map(|far| far.most()).filter(|most| len > *most)
    }

    /// Reads the receiver's answer in place of the clerk.
    pub(crate) fn hear(&self, member: &Arc<Member>) {
        self.brought.hear(member);
    }

    /// Notes that the receiver has reported where it sleeps.
    pub(crate) fn reads(&mut self, ringer: Ringer) {
        // Messages that were sent before have each notified the receiver.
        self.ringer = Some(ringer);
    }

    /// Sends a long message to another host without the queue, which saves a copy and a change of
    /// threads.
    pub(crate) fn send_past<T: Payload + ?Sized>(
        &mut self,
        kind: Kind<T>,
        value: &T,
        wait: RoomWait,
    ) -> SentPast {
        let len = value.size();
        let Some(far) = self.brought.far().filter(|_| len >= LONG) else { return SentPast::No };
        let sent = far.send_past((kind.index, len), wait, &mut |room| {
            let mut writer = Writer::alone(room);
            value.write(&mut writer);
            writer.finish();
            point(Point::MemberDescribed);
        });
        if sent == SentPast::Yes {
            self.queue.skip();
            point(Point::MemberLaunched);
            self.pair.sent(self.sent());
        }
        sent
    }

    /// To be called after each message.
    #[inline]
    pub(crate) fn launched(&self) {
        point(Point::MemberLaunched);
        self.pair.sent(self.sent());
        self.wake();
    }

    /// The way to the receiver, if it is on another host.
    pub(crate) fn far(&self) -> Option<Arc<dyn FarMember>> {
        self.brought.far().cloned()
    }

    /// The same in an interrupt.
    pub(crate) fn launched_in_interrupt(&self) {
        point(Point::MemberLaunched);
        self.pair.sent(self.sent());
        match self.brought.far() {
            Some(far) => far.launched_in_interrupt(self.safe_doorbell, &self.doorbell),
            None => self.wake(),
        }
    }

    /// To be called after each report in [`steps`](Self::steps), which wakes as a message does.
    pub(crate) fn reported(&self) {
        self.has_reported.set(true);
        point(Point::MemberLaunched);
        self.wake();
    }

    #[inline]
    fn wake(&self) {
        match &self.ringer {
            Some(ringer) => ringer.launched(self.safe_doorbell, &self.doorbell),
            None => self.notify(),
        }
    }

    #[cold]
    fn notify(&self) {
        match self.brought.far() {
            Some(far) => far.launched(self.safe_doorbell, &self.doorbell),
            None => self.safe_doorbell.notify(&self.doorbell),
        }
    }

    /// Returns `true` if the receiver has reported where it sleeps.
    #[inline]
    pub(crate) fn is_read(&self) -> bool {
        self.ringer.is_some()
    }
}

/// Maximum time that a sender waits for the answer to its queue. A stopped receiver does not
/// answer, so the wait is short.
pub(crate) fn answer_within(roster: &Roster, rank: Rank) -> Duration {
    if rank == roster.rank { OWN_ANSWER } else { ANSWER }
}
