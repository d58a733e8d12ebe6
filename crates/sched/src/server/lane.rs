//! One lane, as the server sees it, and a request that was taken from it.

mod caller;

use crate::duty::Duty;
use crate::idle::number;
use crate::look::ReplyTimer;
use crate::poller::{PollWish, StayWish};
use crate::server::client::{CallerWake, ChannelOwner, ServedClient};
use crate::wake_check::WakeCheck;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use upcall_os::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use upcall_os::cold_path;
use upcall_os::fault::{Point, point};
use upcall_shm::channel::{DEPTH, Lane, LaneControl};
use upcall_shm::region::RegionView;
use upcall_shm::ring::{SharedReceiver, SharedSender};
use upcall_shm::single::SingleServer;
use upcall_shm::slot::{NO_ASTACK, Slot, SlotMessage};
use upcall_shm::tally::Arrival;

/// Runs requests.
pub trait Serve: Send + Sync {
    /// Runs one request, on a thread that may block. Must answer through the request exactly once.
    /// `came` is how the server came to it.
    fn serve(&self, request: Request<'_>, came: Arrival);

    /// Reports that the client broke the protocol in this way. Its channel was closed, and its
    /// connection should be.
    fn violation(&self, what: &'static str);
}

/// One lane, as the server sees it. It has cache lines of its own, because its neighbours belong to
/// other processors; two of them, because some processors fetch lines in pairs.
#[repr(align(128))]
pub(crate) struct ServerLane {
    queue: LaneTransport,
    control: RegionView<LaneControl>,
    caller: CallerWake,
    client: Arc<ServedClient<dyn Serve>>,
    wake_check: WakeCheck,
    /// The number of the latest sleep of the caller's processor for which this lane has notified.
    rung: AtomicU64,
    /// Set while only one virtual processor serves the lane. Changed once, to `false`
    /// ([`duty`](crate::duty)).
    alone: AtomicBool,
    /// Duty of the only processor, while it is alone.
    duty: Arc<Duty>,
    /// The lane's number among the channel's lanes of its kind.
    place: usize,
    /// The processor that probes it first, and makes the checks that are owed: its number in the
    /// domain, plus one.
    owner: AtomicUsize,
    /// Estimate of how long the caller takes to call again.
    reply_timer: AtomicU16,
    /// Set if the caller gave its CPU with its last request.
    donated: AtomicBool,
}

/// The path of requests and replies.
enum LaneTransport {
    /// A kernel thread's: one call at a time, in one line.
    Single(SingleServer<RegionView<Slot>>),
    /// A virtual processor's: as many calls as the rings have slots.
    Rings(SharedReceiver<RegionView<[Slot]>>, SharedSender<RegionView<[Slot]>>),
}

impl LaneTransport {
    #[inline]
    fn waits(&self) -> bool {
        match self {
            Self::Single(slot) => slot.waits(),
            Self::Rings(requests, _) => requests.waits(),
        }
    }

    #[inline]
    fn take(&self, image: &mut SlotMessage, alone: bool) -> bool {
        match self {
            Self::Single(slot) if alone => slot.take_alone(image),
            Self::Single(slot) => slot.take(image),
            Self::Rings(requests, _) if alone => requests.take_alone(image),
            Self::Rings(requests, _) => requests.take(image),
        }
    }

    #[inline]
    fn reply(&self, image: &SlotMessage, alone: bool) {
        match self {
            Self::Single(slot) => slot.reply(image),
            Self::Rings(_, replies) if alone => replies.send_alone(image),
            Self::Rings(_, replies) => replies.send(image),
        }
    }

    /// Number of requests that were taken and not answered.
    #[inline]
    fn under_way(&self) -> usize {
        match self {
            Self::Single(slot) => slot.under_way().max(0) as usize,
            // Another processor may take and answer between the two readings.
            Self::Rings(requests, replies) => {
                requests.taken().wrapping_sub(replies.sent()).cast_signed().max(0) as usize
            }
        }
    }

    /// Returns `true` if the caller has more calls under way than its queue can hold, and so breaks
    /// the protocol (ring.rs).
    #[inline]
    fn overrun(&self) -> bool {
        let most = match self {
            Self::Single(_) => 1,
            Self::Rings(..) => DEPTH,
        };
        self.under_way() > most
    }
}

impl fmt::Debug for ServerLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerLane").field("caller", &self.caller).finish_non_exhaustive()
    }
}

impl ServerLane {
    /// Creates lane `number` of a client's channel, which has this memory.
    pub(super) fn new(
        number: u16,
        lane: Lane,
        caller: CallerWake,
        client: Arc<ServedClient<dyn Serve>>,
        duty: Arc<Duty>,
    ) -> Self {
        let place = match &caller {
            CallerWake::KernelThread => usize::from(number),
            CallerWake::Processor { vp, .. } => usize::from(*vp),
        };
        let queue = match caller {
            CallerWake::KernelThread => LaneTransport::Single(SingleServer::new(lane.single)),
            CallerWake::Processor { .. } => LaneTransport::Rings(
                SharedReceiver::new(lane.requests),
                SharedSender::new(lane.replies),
            ),
        };
        Self {
            place,
            owner: AtomicUsize::new(0),
            queue,
            control: lane.control,
            caller,
            client,
            wake_check: WakeCheck::default(),
            rung: AtomicU64::new(u64::MAX),
            alone: AtomicBool::new(false),
            duty,
            reply_timer: AtomicU16::new(ReplyTimer::default().parts()),
            donated: AtomicBool::new(false),
        }
    }

    /// Returns `true` if this is a lane of `client`'s channel.
    pub(super) fn is_of(&self, client: &ServedClient<dyn Serve>) -> bool {
        std::ptr::eq(&*self.client, client)
    }

    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.queue.waits()
    }

    /// Number in the domain of the processor that the caller notifies.
    pub(crate) fn home(&self) -> usize {
        usize::from(self.client.home())
    }

    pub(crate) fn owner(&self) -> ChannelOwner {
        self.client.owner
    }

    /// Number of its calls that run, or wait, in the server.
    pub(crate) fn calls(&self) -> usize {
        self.queue.under_way()
    }

    /// The lane's number among the channel's lanes of its kind.
    pub(crate) fn place(&self) -> usize {
        self.place
    }

    /// Sets whether only one processor uses the lane.
    pub(crate) fn is_alone(&self, alone: bool) {
        self.alone.store(alone, Ordering::Release);
    }

    /// Runs `touch` on the queue. Its second argument is `true` if no other processor uses the
    /// queue at the same time.
    #[inline(always)]
    fn touch<R>(&self, touch: impl FnOnce(&LaneTransport, bool) -> R) -> R {
        if !self.alone.load(Ordering::Relaxed) {
            return touch(&self.queue, false);
        }
        let alone = || self.alone.load(Ordering::Relaxed);
        self.duty.touch(|| touch(&self.queue, alone()))
    }

    /// Makes `owner` the processor that probes it first.
    pub(crate) fn belongs_to(&self, owner: Option<usize>) {
        self.owner.store(owner.map_or(0, |owner| owner + 1), Ordering::Relaxed);
    }

    /// Waits for the next call of a caller that was just answered. Returns `true` if there is one.
    #[inline]
    pub(crate) fn calls_again(&self) -> bool {
        let mut reply_timer = ReplyTimer::kept(self.reply_timer.load(Ordering::Relaxed));
        let waits = reply_timer.await_answer(32, || self.waits());
        self.reply_timer.store(reply_timer.parts(), Ordering::Relaxed);
        waits
    }

    /// Returns `true` if a request that is there when another one has just been answered came
    /// before that answer.
    #[inline]
    pub(crate) fn has_waited(&self) -> bool {
        // A kernel thread has one call at a time.
        !self.is_kernel_threads()
    }

    /// Returns `true` if the caller is a kernel thread.
    #[inline]
    pub(crate) fn is_kernel_threads(&self) -> bool {
        matches!(self.queue, LaneTransport::Single(_))
    }

    /// Takes a request and runs it. `came` is how the processor came to it, as far as it knows.
    /// Returns the request's hints, or `None` if there was no request.
    #[inline]
    pub(crate) fn serve_one(&self, came: Arrival) -> Option<ServeOutcome> {
        let mut image = SlotMessage::new(0, 0, NO_ASTACK);
        if !self.touch(|queue, alone| queue.take(&mut image, alone)) {
            return None;
        }
        if self.client.closed.load(Ordering::Relaxed) {
            cold_path();
            return None;
        }
        if self.queue.overrun() {
            cold_path();
            self.client.close();
            self.client.serve.violation("more calls outstanding than a lane has slots");
            return None;
        }
        let donated = image.donated();
        self.donated.store(donated, Ordering::Relaxed);
        // From here on the request is answered in any case, at the latest when it is dropped.
        let request = Request { image: &image, lane: self, stays: PhantomData };
        point(Point::ServerTook);
        let came = match came {
            Arrival::Spin if donated => Arrival::Donation,
            Arrival::Wake if donated => Arrival::HandOff,
            came => came,
        };
        self.client.serve.serve(request, came);
        let stay = if image.asks_to_stay() { StayWish::Stay } else { StayWish::Sleep };
        let wish = if image.asks_to_rest() { PollWish::Rest } else { PollWish::Poll };
        Some(ServeOutcome { donated: donated.then_some(stay), wish })
    }

    #[inline]
    fn reply(&self, image: &SlotMessage) {
        let publish = || {
            match &self.queue {
                // Only the processor that took the request writes here.
                LaneTransport::Single(slot) => slot.reply(image),
                LaneTransport::Rings(..) => self.touch(|queue, alone| queue.reply(image, alone)),
            }
            point(Point::ServerReplied);
        };
        // The idle loop makes the checks that are owed for its own lanes only.
        let more = || {
            let own = number().map_or(0, |number| number + 1);
            self.owner.load(Ordering::Relaxed) == own && self.queue.waits()
        };
        self.wake_check.reply(publish, more, || self.wake_caller());
    }

    /// Makes the check of the caller that is owed, if one is.
    #[inline]
    pub(crate) fn look(&self) {
        self.wake_check.pay(|| self.wake_caller());
    }

    #[inline]
    pub(crate) fn owes_look(&self) -> bool {
        self.wake_check.is_owed()
    }
}

/// The hints of a request that was served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServeOutcome {
    /// The caller's wish, if it gave its CPU.
    pub(crate) donated: Option<StayWish>,
    /// The caller's wish in any case.
    pub(crate) wish: PollWish,
}

/// A request under way. It has two words, so that it is passed in registers (see
/// `upcall_shm::slot::StoredMessage`).
#[derive(Debug)]
pub struct Request<'a> {
    image: &'a SlotMessage,
    lane: &'a ServerLane,
    /// Ties the answer to the kernel thread that took the request: a lane's replies have one writer
    /// at a time.
    stays: PhantomData<*const ()>,
}

/// The outcome of a call that the server did not answer, by a fault of the server's code.
pub const UNANSWERED: u16 = u16::MAX;

impl<'a> Request<'a> {
    /// The private copy of the message.
    pub fn image(&self) -> &'a SlotMessage {
        self.image
    }

    /// Sends the reply, and wakes the caller if it sleeps. The call number is filled in.
    #[inline]
    pub fn reply(self, reply: &mut SlotMessage) {
        point(Point::ServerReplies);
        // The request is answered, so its drop must not answer it again.
        let request = ManuallyDrop::new(self);
        reply.set_call(request.image.call());
        request.lane.reply(reply);
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let reply = SlotMessage::new(self.image.call(), UNANSWERED, NO_ASTACK);
        self.lane.reply(&reply);
    }
}
