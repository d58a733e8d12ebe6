//! Long messages that go past the queue to the bridge.
//!
//! A message in the queue is written there, and copied to the body of a frame, mostly on another
//! thread. A long one is written to the body of a frame at once, and its sender gives it to the
//! link. That is possible if nothing is left in the queue. The sender of the queue is this thread,
//! and the lock of the outward way keeps all other threads from moving messages. So order is as in
//! the queue. Both ends of the queue count the message, because barriers are made of these counts.
//!
//! The other side gives room back for many messages at a time. While its room is used up, the
//! sender reads the links by itself for a short time. Messages that waited in the queue would cost
//! both copies, and a sender that writes faster than the link takes never finds the queue empty.

use super::super::batch;
use super::super::outward::OutwardQueue;
use super::super::way::PairLane;
use super::{FarPair, OutwardWay, PairLeaving};
use crate::far::{RoomWait, SentPast};
use std::time::{Duration, Instant};
use upcall_net::FrameKind;
use upcall_net::driver::{LinkPolling, PolledLinks};
use upcall_shm::span::WritableSpan;

/// What has become of a message that was to go past the queue.
enum PastAttempt {
    Sent,
    /// The other side has no room for it now.
    NoRoom,
    /// It has to go through the queue.
    Queue,
}

impl FarPair {
    /// See [`FarMember::send_past`](crate::far::FarMember::send_past).
    pub(super) fn past_the_queue(
        &self,
        message: (u16, usize),
        wait: RoomWait,
        write: &mut dyn FnMut(WritableSpan<'_>),
    ) -> SentPast {
        let mut wait = ShortWait::new(wait);
        loop {
            match self.try_past(message, write) {
                PastAttempt::Sent => return SentPast::Yes,
                PastAttempt::NoRoom if wait.step() == StillWaits::Yes => {}
                PastAttempt::NoRoom | PastAttempt::Queue => return SentPast::No,
            }
        }
    }

    /// Sends a message past the queue. What waits in the queue is sent before.
    fn try_past(
        &self,
        (kind, len): (u16, usize),
        write: &mut dyn FnMut(WritableSpan<'_>),
    ) -> PastAttempt {
        // A thread that moves messages has some that come first.
        let Some(mut outward) = self.outward.try_lock() else { return PastAttempt::Queue };
        if !self.way.is_open() {
            return PastAttempt::Queue;
        }
        self.report_losses(&mut outward);
        if outward.queue.as_ref().is_some_and(OutwardQueue::waits) {
            self.pump_queue(&mut outward);
        }
        let OutwardWay { queue: Some(queue), leaving: PairLeaving::No, .. } = &mut *outward else {
            return PastAttempt::Queue;
        };
        let bytes = batch::size_of(len);
        match (queue.waits(), self.send_room.allows(bytes)) {
            (true, _) => return PastAttempt::Queue,
            (false, false) => return PastAttempt::NoRoom,
            (false, true) => {}
        }
        let Ok(body) = batch::of_one(kind, len, write) else { return PastAttempt::Queue };
        queue.skip();
        self.send_room.sent(bytes);
        self.way.send(PairLane::Messages, FrameKind::Deliver, body);
        PastAttempt::Sent
    }
}

/// Time for which a sender polls for room. A receiver that keeps up gives room back for twelve
/// messages of 64 KiB at a time. For a slower receiver, messages go through the queue.
const ROOM_WITHIN: Duration = Duration::from_micros(250);

/// A wait for room in which this thread reads the links, so that no other has to be woken.
struct ShortWait {
    wait: RoomWait,
    since: Option<Instant>,
    links: Option<LinkPolling>,
}

/// Whether a wait goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StillWaits {
    Yes,
    No,
}

impl ShortWait {
    fn new(wait: RoomWait) -> Self {
        Self { wait, since: None, links: None }
    }

    fn step(&mut self) -> StillWaits {
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        if self.wait == RoomWait::Never || now.duration_since(since) >= ROOM_WITHIN {
            return StillWaits::No;
        }
        if self.links.is_none() {
            self.links = LinkPolling::begin();
        }
        match self.links.as_ref().map(LinkPolling::round) {
            Some(PolledLinks::Nothing | PolledLinks::Something) => {}
            // Another thread may need this processor for it.
            Some(PolledLinks::Elsewhere) | None => std::thread::yield_now(),
        }
        StillWaits::Yes
    }
}
