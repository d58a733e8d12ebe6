//! One lane, as the server sees it, and a request that was taken from it.

use crate::domain::Domain;
use crate::duty::Duty;
use crate::idle::number;
use crate::look::ReplyTimer;
use crate::poller::{PollWish, StayWish};
use crate::sleep;
use crate::wake_check::WakeCheck;
use std::fmt;
use std::hint::cold_path;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Weak};
use upcall_os::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use upcall_os::doorbell::Doorbell;
use upcall_os::fault::{Point, point};
use upcall_os::futex::{self, Scope};
use upcall_os::processor;
use upcall_os::safe_doorbell::SafeDoorbell;
use upcall_shm::channel::{DEPTH, Lane, LaneControl};
use upcall_shm::region::Shared;
use upcall_shm::ring::{SharedReceiver, SharedSender};
use upcall_shm::single::SingleServer;
use upcall_shm::slot::{Image, NO_ASTACK, Slot};
use upcall_shm::station::{Awake, PeerStation, State};
use upcall_shm::tally::Came;

/// Runs requests. Called on a thread that may block; must answer through the request exactly once.
pub trait Serve: Send + Sync {
    /// Runs one request, to which the server came in this way.
    fn serve(&self, request: Request<'_>, came: Came);

    /// The client broke the protocol in this way; its channel was closed and its connection should
    /// be.
    fn violation(&self, what: &'static str);
}

/// The client that a channel belongs to. One client may have several channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The client's number: its channels share the stacks that it may have.
    pub client: u64,
    /// The user of the client, if all clients of that user share a bound as well.
    pub user: Option<u32>,
}

/// The client of a channel, as the lanes of the channel share it.
pub(crate) struct ServedClient {
    station: PeerStation,
    serve: Box<dyn Serve>,
    owner: Owner,
    home: u16,
    /// Rung by the client; in the set of the home processor's wake set.
    doorbell: Doorbell,
    closed: AtomicBool,
    /// Ends the polling of its lanes.
    remove_lanes: Box<dyn Fn(&Self) + Send + Sync>,
}

impl fmt::Debug for ServedClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedClient").field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl ServedClient {
    /// A client whose `owner` has `station`. `home` is the number of the processor to wake for it,
    /// and the doorbell for that.
    pub(super) fn new(
        station: PeerStation,
        owner: Owner,
        (home, doorbell): (u16, Doorbell),
        serve: Box<dyn Serve>,
        remove_lanes: Box<dyn Fn(&Self) + Send + Sync>,
    ) -> Self {
        let closed = AtomicBool::new(false);
        Self { station, serve, owner, home, doorbell, closed, remove_lanes }
    }

    pub(super) fn home(&self) -> u16 {
        self.home
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Takes no more requests. Those that run go on to their end, and their replies are lost.
    pub(super) fn close(&self) {
        if self.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Ok(wake_set) =
            Domain::current().and_then(|domain| domain.wake_set(usize::from(self.home)))
        {
            wake_set.set.remove(&self.doorbell);
        }
        self.remove_lanes();
    }

    pub(super) fn remove_lanes(&self) {
        (self.remove_lanes)(self);
    }
}

/// The calls on a channel that may run still; also after the channel is closed.
#[derive(Debug)]
pub struct CallsUnderWay(Weak<ServedClient>);

impl CallsUnderWay {
    pub(super) fn of(client: &Arc<ServedClient>) -> Self {
        Self(Arc::downgrade(client))
    }

    /// Whether there may be one: the channel lives, or a call on one of its lanes does, or a
    /// virtual processor has not looked since it was closed.
    pub fn may_run(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// How the caller on a lane is woken.
#[derive(Debug)]
pub enum Caller {
    /// A kernel thread: it sleeps on the lane's word.
    KernelThread,
    /// A virtual processor: its station tells whether it sleeps, and this doorbell wakes it.
    Processor {
        /// Its number in the client's domain.
        vp: u16,
        /// Its doorbell for this lane.
        doorbell: Doorbell,
        /// What rings it: the client may make its doorbell block, and ours is a processor that
        /// serves others as well.
        safe_doorbell: &'static SafeDoorbell,
    },
}

/// One lane, as the server sees it. By itself in its lines, for its neighbours belong to other
/// processors; in two, since some processors fetch lines in pairs.
#[repr(align(128))]
pub(crate) struct ServerLane {
    queue: Queue,
    control: Shared<LaneControl>,
    caller: Caller,
    client: Arc<ServedClient>,
    wake_check: WakeCheck,
    /// The last sleep of the caller's processor for which this lane rang.
    rung: AtomicU64,
    /// Only one virtual processor serves the lane. Changed once, to `false`
    /// ([`duty`](crate::duty)).
    alone: AtomicBool,
    /// Duty of the only processor, if that is alone.
    duty: Arc<Duty>,
    /// Its number among those of its kind.
    place: usize,
    /// The processor that looks at it first, and pays what looks are owed: its number in the
    /// domain, plus one.
    owner: AtomicUsize,
    /// How long the caller takes to call again.
    reply_timer: AtomicU16,
    /// The caller's processor came with its last request.
    donated: AtomicBool,
}

/// How requests come and replies go.
enum Queue {
    /// A kernel thread's: one call at a time, in one line.
    Single(SingleServer<Shared<Slot>>),
    /// A virtual processor's: as many calls as the rings have slots.
    Rings(SharedReceiver<Shared<[Slot]>>, SharedSender<Shared<[Slot]>>),
}

impl Queue {
    #[inline]
    fn waits(&self) -> bool {
        match self {
            Self::Single(slot) => slot.waits(),
            Self::Rings(requests, _) => requests.waits(),
        }
    }

    #[inline]
    fn take(&self, image: &mut Image, alone: bool) -> bool {
        match self {
            Self::Single(slot) if alone => slot.take_alone(image),
            Self::Single(slot) => slot.take(image),
            Self::Rings(requests, _) if alone => requests.take_alone(image),
            Self::Rings(requests, _) => requests.take(image),
        }
    }

    #[inline]
    fn reply(&self, image: &Image, alone: bool) {
        match self {
            Self::Single(slot) => slot.reply(image),
            Self::Rings(_, replies) if alone => replies.send_alone(image),
            Self::Rings(_, replies) => replies.send(image),
        }
    }

    /// Requests that were taken and not answered.
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

    /// Whether the caller has more calls under way than its queue can hold: it breaks the protocol
    /// (ring.rs).
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
    /// The lane `number` of a client's channel, which has this memory.
    pub(super) fn new(
        number: u16,
        lane: Lane,
        caller: Caller,
        client: Arc<ServedClient>,
        duty: Arc<Duty>,
    ) -> Self {
        let place = match &caller {
            Caller::KernelThread => usize::from(number),
            Caller::Processor { vp, .. } => usize::from(*vp),
        };
        let queue = match caller {
            Caller::KernelThread => Queue::Single(SingleServer::new(lane.single)),
            Caller::Processor { .. } => {
                Queue::Rings(SharedReceiver::new(lane.requests), SharedSender::new(lane.replies))
            }
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

    /// Whether it is a lane of this client's channel.
    pub(super) fn is_of(&self, client: &ServedClient) -> bool {
        std::ptr::eq(&*self.client, client)
    }

    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.queue.waits()
    }

    /// The processor that is rung for it, by its number in the domain.
    pub(crate) fn home(&self) -> usize {
        usize::from(self.client.home)
    }

    pub(crate) fn owner(&self) -> Owner {
        self.client.owner
    }

    /// How many of its calls run, or wait, in the server.
    pub(crate) fn calls(&self) -> usize {
        self.queue.under_way()
    }

    /// Its number among the channel's lanes of its kind.
    pub(crate) fn place(&self) -> usize {
        self.place
    }

    /// Sets whether only one processor uses the lane.
    pub(crate) fn is_alone(&self, alone: bool) {
        self.alone.store(alone, Ordering::Release);
    }

    /// Runs `touch` on the queue. Its second argument is `true` if no other processor uses the queue
    /// at the same time.
    #[inline(always)]
    fn touch<R>(&self, touch: impl FnOnce(&Queue, bool) -> R) -> R {
        if !self.alone.load(Ordering::Relaxed) {
            return touch(&self.queue, false);
        }
        let alone = || self.alone.load(Ordering::Relaxed);
        self.duty.touch(|| touch(&self.queue, alone()))
    }

    /// From now on `owner` looks at it first.
    pub(crate) fn belongs_to(&self, owner: Option<usize>) {
        self.owner.store(owner.map_or(0, |owner| owner + 1), Ordering::Relaxed);
    }

    /// What the caller does, by its own word. A kernel thread does not say.
    pub(crate) fn callers_state(&self) -> Option<State> {
        match &self.caller {
            Caller::KernelThread => None,
            Caller::Processor { vp, .. } => Some(self.client.station.state(*vp)),
        }
    }

    /// Whether the caller may have given processor `cpu` to us: it calls, its word is that it is
    /// there, and it runs nothing.
    pub(crate) fn gave(&self, cpu: u32) -> bool {
        self.callers_place() == Some(cpu)
            && self.callers_state() != Some(State::Awake(Awake::Running))
            && self.waits()
    }

    /// The processor that the caller runs on, by its own word. A kernel thread does not say.
    pub(crate) fn callers_place(&self) -> Option<u32> {
        match &self.caller {
            Caller::KernelThread => None,
            Caller::Processor { vp, .. } => self.client.station.cpu(*vp),
        }
    }

    /// The CPU near which the caller wishes this server to park, by its own word.
    pub(crate) fn wished_cpu(&self) -> Option<u32> {
        self.control.near.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Whether the caller runs on processor `cpu`, where we are: by its own word, or, of a kernel
    /// thread, because it brought us there with its last call.
    pub(crate) fn shares(&self, cpu: u32) -> bool {
        match &self.caller {
            Caller::KernelThread => self.donated.load(Ordering::Relaxed),
            Caller::Processor { .. } => self.callers_place() == Some(cpu),
        }
    }

    /// Waits for the next call of a caller that was just answered. Whether there is one.
    #[inline]
    pub(crate) fn calls_again(&self) -> bool {
        let mut reply_timer = ReplyTimer::kept(self.reply_timer.load(Ordering::Relaxed));
        let waits = reply_timer.await_answer(32, || self.waits());
        self.reply_timer.store(reply_timer.parts(), Ordering::Relaxed);
        waits
    }

    /// Whether a request that is there when another one has just been answered was there before
    /// that.
    #[inline]
    pub(crate) fn has_waited(&self) -> bool {
        // A kernel thread has one call at a time.
        !self.is_kernel_threads()
    }

    /// Whether its caller is a kernel thread.
    #[inline]
    pub(crate) fn is_kernel_threads(&self) -> bool {
        matches!(self.queue, Queue::Single(_))
    }

    /// Takes a request and runs it; the processor has come to it in this way, for all that it
    /// knows. Returns whether there was one, and whether the caller's processor came with it.
    #[inline]
    pub(crate) fn serve_one(&self, came: Came) -> Option<Served> {
        let mut image = Image::new(0, 0, NO_ASTACK);
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
        // Whatever becomes of it now, it is answered: by its drop at the latest.
        let request = Request { image: &image, lane: self, stays: PhantomData };
        point(Point::ServerTook);
        let came = match came {
            Came::Spin if donated => Came::Donation,
            Came::Wake if donated => Came::HandOff,
            came => came,
        };
        self.client.serve.serve(request, came);
        let stay = if image.asks_to_stay() { StayWish::Stay } else { StayWish::Sleep };
        let wish = if image.asks_to_rest() { PollWish::Rest } else { PollWish::Poll };
        Some(Served { donated: donated.then_some(stay), wish })
    }

    #[inline]
    fn reply(&self, image: &Image) {
        let publish = || {
            match &self.queue {
                // Only the processor that took the request writes here.
                Queue::Single(slot) => slot.reply(image),
                Queue::Rings(..) => self.touch(|queue, alone| queue.reply(image, alone)),
            }
            point(Point::ServerReplied);
        };
        // Our idle loop pays for our own lanes only.
        let more = || {
            let own = number().map_or(0, |number| number + 1);
            self.owner.load(Ordering::Relaxed) == own && self.queue.waits()
        };
        self.wake_check.reply(publish, more, || self.wake_caller());
    }

    /// Wakes the caller if it seems to sleep: which checks count is said in `wake_check`.
    #[inline]
    fn wake_caller(&self) {
        match &self.caller {
            Caller::KernelThread => {
                if sleep::seems_asleep(&self.control.sleeper) {
                    self.wake_kernel_thread();
                }
            }
            Caller::Processor { vp, doorbell, safe_doorbell } => {
                if let Some(sleep) = self.client.station.sleep(*vp) {
                    self.wake_processor(*vp, sleep, (doorbell, safe_doorbell));
                }
            }
        }
    }

    #[inline(never)]
    fn wake_kernel_thread(&self) {
        sleep::retract(&self.control.sleeper);
        futex::wake(&self.control.sleeper, 1, Scope::Shared);
    }

    /// One ring for a sleep is enough (sleep.rs), and on our own processor more are waste, for the
    /// caller cannot run before we rest: with 32 callers on one processor 2.6 million calls a
    /// second in place of 0.55. A caller that wakes on another processor is rung for again until it
    /// is up. That keeps us from falling asleep meanwhile, and then the two from sleeping in
    /// turns: 8 million calls a second in place of 0.9.
    #[inline(never)]
    fn wake_processor(
        &self,
        vp: u16,
        sleep: u64,
        (doorbell, safe_doorbell): (&Doorbell, &SafeDoorbell),
    ) {
        if sleep::first_ring(&self.rung, sleep)
            || self.client.station.cpu(vp) != Some(processor::current() as u32)
        {
            safe_doorbell.notify(doorbell);
        }
    }

    /// Makes the check of the caller that was put off, if one was.
    #[inline]
    pub(crate) fn look(&self) {
        self.wake_check.pay(|| self.wake_caller());
    }

    #[inline]
    pub(crate) fn owes_look(&self) -> bool {
        self.wake_check.is_owed()
    }
}

/// What serving a request told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    /// What the caller asks, if it gave its CPU.
    pub(crate) donated: Option<StayWish>,
    /// What the caller asks in any case.
    pub(crate) wish: PollWish,
}

/// A request under way. Two words, so that it goes from hand to hand in registers (see
/// `upcall_shm::slot::Kept`).
#[derive(Debug)]
pub struct Request<'a> {
    image: &'a Image,
    lane: &'a ServerLane,
    /// It is answered on the kernel thread that took it: a lane's replies have one writer at a
    /// time.
    stays: PhantomData<*const ()>,
}

/// The outcome of a call whose server did not answer it: a fault of the server's code.
pub const UNANSWERED: u16 = u16::MAX;

impl<'a> Request<'a> {
    /// The private copy of the message.
    pub fn image(&self) -> &'a Image {
        self.image
    }

    /// Answers it: sends the reply and wakes the caller if it sleeps. The call number is filled in.
    #[inline]
    pub fn reply(self, reply: &mut Image) {
        point(Point::ServerReplies);
        // Answered: not to be dropped.
        let request = ManuallyDrop::new(self);
        reply.set_call(request.image.call());
        request.lane.reply(reply);
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let reply = Image::new(self.image.call(), UNANSWERED, NO_ASTACK);
        self.lane.reply(&reply);
    }
}
