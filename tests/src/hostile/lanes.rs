//! The lanes of a hostile client, and the replies due on them. While only the contents of requests
//! are wrong, each request has one reply, with its number.

use crate::dice::Dice;
use crate::speech::{Hold, outcome};
use std::time::{Duration, Instant};
use upcall_os::doorbell::Doorbell;
use upcall_shm::channel::{Channel, DEPTH};
use upcall_shm::region::RegionView;
use upcall_shm::ring::{RingReceiver, RingSender};
use upcall_shm::single::SingleCaller;
use upcall_shm::slot::{Slot, SlotMessage};

/// Longest time that a server may take for a reply on a busy machine.
const LONGEST: Duration = Duration::from_secs(20);

/// Offset of the rings in a channel's memory, and size of each lane's part there, in bytes
/// (`upcall_shm::channel`).
pub(super) const RINGS: usize = 8192;
pub(super) const LANE_BYTES: usize = 8192;

/// The reply that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// Any reply of a server.
    Something,
    /// The sum of a call of `add`.
    Sum(u64),
    /// A handle, if the call succeeds.
    Handle,
}

enum Queue {
    Single(SingleCaller<RegionView<Slot>>),
    Rings(RingSender<RegionView<[Slot]>>, RingReceiver<RegionView<[Slot]>>),
}

struct Waiting {
    call: u16,
    since: Instant,
    expected: Expected,
}

/// One lane.
pub(super) struct Lane {
    pub(super) number: u16,
    queue: Queue,
    waiting: Vec<Waiting>,
    /// Whether this client did something after which any reply may come, or none.
    pub(super) spoiled: bool,
    pub(super) doorbell: Option<Doorbell>,
}

impl Lane {
    /// A lane of `hold` that the server knows: that of a kernel thread, or of a virtual processor
    /// with a doorbell.
    pub(super) fn new(
        hold: &Hold,
        number: u16,
        doorbell: Option<Doorbell>,
    ) -> Result<Self, String> {
        let channel = Channel::join(hold.channel.clone()).map_err(|error| error.to_string())?;
        let lane = channel.lane(number).ok_or("no such lane")?;
        let queue = match doorbell {
            None => Queue::Single(SingleCaller::new(lane.single)),
            Some(_) => {
                Queue::Rings(RingSender::new(lane.requests), RingReceiver::new(lane.replies))
            }
        };
        Ok(Self { number, queue, waiting: Vec::new(), spoiled: false, doorbell })
    }

    /// Number of requests that the lane takes now without a breach of the protocol.
    pub(super) fn room(&self) -> usize {
        let most = if matches!(self.queue, Queue::Single(_)) { 1 } else { DEPTH };
        most.saturating_sub(self.waiting.len())
    }

    /// Sends a request under a number that no waiting request has.
    pub(super) fn send(&mut self, request: &mut SlotMessage, expected: Expected, dice: &mut Dice) {
        let mut call = dice.any() as u16;
        while self.waiting.iter().any(|waiting| waiting.call == call) {
            call = call.wrapping_add(1);
        }
        request.set_call(call);
        self.waiting.push(Waiting { call, since: Instant::now(), expected });
        self.send_unseen(request);
    }

    /// Sends a request without waiting for its reply.
    pub(super) fn send_unseen(&self, request: &SlotMessage) {
        match &self.queue {
            Queue::Single(slot) => slot.send(request),
            Queue::Rings(requests, _) => requests.send(request),
        }
    }

    /// Accepts any reply to the waiting requests, since the server may read them as something else.
    pub(super) fn expect_anything(&mut self) {
        self.waiting.iter_mut().for_each(|waiting| waiting.expected = Expected::Something);
    }

    /// Takes one reply, if there is one, with what was expected of it.
    pub(super) fn take(&mut self) -> Result<Option<(SlotMessage, Expected)>, String> {
        let mut reply = SlotMessage::new(0, 0, 0);
        let taken = match &self.queue {
            Queue::Single(slot) => slot.take(&mut reply),
            Queue::Rings(_, replies) => replies.take_into(&mut reply),
        };
        if !taken {
            return match self.waiting.first() {
                Some(first) if !self.spoiled && first.since.elapsed() > LONGEST => Err(format!(
                    "lane {}: no reply in {LONGEST:?} to a request with {:?}",
                    self.number, first.expected
                )),
                _ => Ok(None),
            };
        }
        let Some(at) = self.waiting.iter().position(|waiting| waiting.call == reply.call()) else {
            return if self.spoiled {
                Ok(None)
            } else {
                Err(format!("lane {}: a reply to no call: {reply:x?}", self.number))
            };
        };
        let expected = self.waiting.swap_remove(at).expected;
        let known = reply.tag() <= outcome::REFUSED_HELD || reply.tag() == outcome::UNANSWERED;
        // If this client has given up the binding, every call gets the reply `REVOKED`.
        let good = match expected {
            Expected::Sum(sum) => {
                reply.tag() == outcome::REVOKED
                    || reply.tag() == outcome::DONE && reply.values[0] == sum
            }
            _ => known,
        };
        if good || self.spoiled {
            Ok(Some((reply, expected)))
        } else {
            Err(format!("{reply:x?}, where {expected:x?} was due"))
        }
    }
}
