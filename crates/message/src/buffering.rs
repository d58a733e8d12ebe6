//! A member's buffer for messages that do not fit into the queues.
//!
//! Also decides when the member gives that memory back.

use crate::link::Outward;
use crate::proto::flow::Buffers;
use crate::{Group, Rank};
use std::cell::RefCell;
use std::time::{Duration, Instant};
use upcall_os::headroom::Headroom;

/// Size of a segment, in bytes.
const SEGMENT: u64 = upcall_shm::mailbag::SEGMENT_BYTES as u64;

/// Time for which memory for further messages is kept after the last diverted one.
const SETTLED: Duration = Duration::from_millis(10);

/// What a group has buffered for all members but `to`, for a message to that member.
pub(crate) struct OwnBuffers<'a> {
    pub(crate) group: &'a Group,
    pub(crate) to: Rank,
}

impl Buffers for OwnBuffers<'_> {
    #[cold]
    fn elsewhere(&self) -> u64 {
        let others = (0..self.group.size()).filter(|&rank| rank != self.to);
        others.map(|rank| self.group.buffered(rank)).sum()
    }

    fn share(&self) -> u64 {
        self.group.share_now()
    }

    fn low(&self) -> Option<Headroom> {
        self.group.0.supply.is_low(Instant::now())
    }
}

impl Group {
    /// Maximum number of bytes that this member may buffer now.
    ///
    /// Replies to messages that arrive while this member waits may use as much again. The members
    /// that sent those messages may be stopped, too, until they get the replies; and they have no
    /// more than their own share under way.
    pub(crate) fn share_now(&self) -> u64 {
        let share = self.0.share;
        if self.0.nested.get() > 0 { share.saturating_mul(2) } else { share }
    }

    /// Time for which memory of segments is still kept for the next ones: allocating it again takes
    /// longer than most sleeps. `None` if there is none.
    pub(crate) fn kept_for(&self) -> Option<Duration> {
        self.0.spare.get().map(|since| SETTLED.saturating_sub(since.elapsed()))
    }

    /// Gives back memory that is kept for messages which do not fit into the queues.
    ///
    /// Does so if none was sent for a while (10 ms); otherwise returns the time after which to call
    /// this again. [`wait`](Self::wait) does this by itself; call it if you sleep otherwise.
    ///
    /// Also offers queues again that a living member has refused ([`send`](Self::send)). A refusal
    /// notifies, so call this again after each notification.
    pub fn settle(&self) -> Option<Duration> {
        let offer = self.offer_again();
        let _busy = self.busy();
        let kept = self.kept_for().filter(|left| {
            if left.is_zero() {
                self.shrink();
            }
            !left.is_zero()
        });
        kept.into_iter().chain(offer).min()
    }

    /// Gives back memory of segments that is kept for the next ones. For times with nothing else to
    /// do.
    pub(crate) fn shrink(&self) {
        let Some(since) = self.0.spare.get() else { return };
        let mut rest = false;
        for cell in &self.0.links {
            match cell.try_borrow_mut().as_deref_mut() {
                Ok(Outward::Open(link)) => rest |= !link.queue.shrink(),
                Ok(_) => {}
                Err(_) => rest = true,
            }
        }
        self.0.spare.set(rest.then_some(since));
    }

    /// Bytes of the buffer that messages to member `to` take until it has taken them.
    ///
    /// 0 while messages go the direct way. Up to 2 MiB more are kept for the next messages, until
    /// this member sleeps and none was sent for a while ([`settle`](Self::settle)).
    pub fn buffered(&self, to: Rank) -> u64 {
        let _busy = self.busy();
        let cell = self.0.links.get(to).and_then(|cell| cell.try_borrow().ok());
        match cell.as_deref() {
            Some(Outward::Open(link)) => link.queue.outgoing().buffered() * SEGMENT,
            _ => 0,
        }
    }

    /// Number of this member's messages that went through a buffer so far.
    ///
    /// Counts messages to members that it can still send to (UDM, Table 6: messages buffered).
    pub fn diverted(&self) -> u64 {
        let _busy = self.busy();
        let of = |cell: &RefCell<Outward>| match cell.try_borrow().ok().as_deref() {
            Some(Outward::Open(link)) => link.queue.outgoing().ever_buffered(),
            _ => 0,
        };
        self.0.links.iter().map(of).sum()
    }
}
