//! The calling end of a channel.
//!
//! A kernel thread that calls takes a lane for the time of the call, spins a little, and then
//! sleeps on the lane's word. A user-level thread's virtual processor has a lane of its own: the
//! thread sends, blocks, and its processor runs other threads; when none is ready, the
//! idle loop polls for the replies of all of them (URPC, section 2; U6 and U7).
//!
//! When the server dies the channel is closed: every waiting call returns [`Closed`], and so does
//! every later one, at once.
//!
//! # A caller that goes before the reply comes
//! LRPC, section 5.3: a caller may abandon a call that a server holds for too long. The call itself
//! goes on, and its reply will come into the lane and the memory that the call was made with; so
//! neither is used for anything else before. A kernel thread leaves its lane to a thread made for
//! this, which waits in its place; a user-level thread leaves its call number to the idle loop,
//! which takes replies anyway. Either hands the late reply to [`Late`], which knows what the call
//! was made with.

use crate::domain::Domain;
use crate::handoff::{Donor, HandOff, Whereabouts};
use crate::look::{self, ReplyTimer};
use crate::pacing::{GiveWay, HandOver, Pacing, SpinBudget, Stay};
use crate::seat::VpLane;
use crate::sleep;
use crate::stall::{Finding, StallCheck};
use crate::steer::Attention;
use crate::until::{Abandon, Until};
use crate::wait::{Closed, Forever, Late, NoReply, Patience, Wait, run_late};
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use upcall_os::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use upcall_os::doorbell::Doorbell;
use upcall_os::fault::{Point, point};
use upcall_os::futex::{self, Scope};
use upcall_os::lock::{Condvar, Mutex, MutexGuard};
use upcall_os::poll::Report;
use upcall_os::processor;
use upcall_os::safe_doorbell::SafeDoorbell;
use upcall_shm::channel::{Channel, Lane, LaneControl};
use upcall_shm::region::Shared;
use upcall_shm::ring::SingleCaller;
use upcall_shm::slot::{Image, NO_ASTACK, Slot};
use upcall_shm::station::PeerStation;

/// Lanes for kernel threads come first, one for each that calls at the same time; more have to wait
/// for each other.
pub const KERNEL_LANES: usize = 32;

/// So long a kernel thread sleeps before it looks again whether its channel is still open.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);

/// So long it is tried to tell the server of a lane, before others have their turn.
const SOON: Duration = Duration::from_millis(2);

/// Long enough to take a free connection.
const NOW: Duration = Duration::from_micros(100);

/// The server's clerk, as the calling end of a channel uses it.
pub trait ServerClerk: Send + Sync {
    /// Opens lane `number`. For a virtual processor's lane `vp` is that processor's number, and the
    /// doorbell that wakes it. Tries until `until`.
    ///
    /// # Errors
    /// `TimedOut` if the server was not reached in time; `BrokenPipe` if it has ended.
    fn open_lane(
        &self,
        number: u16,
        vp: Option<(u16, &Doorbell)>,
        until: Instant,
    ) -> io::Result<()>;

    /// Reports that the server has not probed a lane for some time ([`stall`](crate::stall)). Never
    /// blocks. A report may be lost: the caller repeats it.
    fn report_stall(&self);
}

/// What is known of the server, shared by the lanes.
pub(crate) struct Far {
    pub(crate) station: PeerStation,
    /// The server's virtual processor that is woken for this channel, and its doorbell.
    pub(crate) home: u16,
    pub(crate) doorbell: Doorbell,
    /// So many kernel threads are ringing it.
    ringing: AtomicUsize,
    pub(crate) donor: Donor,
    pub(crate) attention: Arc<Attention>,
    spin_budget: SpinBudget,
    pub(crate) clerk: Arc<dyn ServerClerk>,
    pub(crate) closed: AtomicBool,
    pub(crate) reason: OnceLock<Closed>,
    /// The channel, for a lane that has to close all of it.
    whole: OnceLock<Weak<CallerChannel>>,
}

/// The calling end of a channel; see the module.
pub struct CallerChannel {
    far: Arc<Far>,
    channel: Channel,
    pacing: AtomicU8,
    kernel: [OnceLock<KernelSeat>; KERNEL_LANES],
    /// Held by who opens one of them.
    opening: Mutex<()>,
    lane_queue: LaneQueue,
    seats: [OnceLock<Arc<VpLane>>; crate::domain::MOST_PROCESSORS],
    on_close: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

struct KernelSeat {
    number: usize,
    control: Shared<LaneControl>,
    lane: Mutex<KernelLane>,
}

/// A lane and the right to call on it.
type TakenLane<'a> = Result<(&'a KernelSeat, MutexGuard<'a, KernelLane>), NoReply>;

struct KernelLane {
    slot: SingleCaller<Shared<Slot>>,
    calls: u16,
    /// Calls that the server's [`Attention`] has not been told of.
    uncounted: u32,
    /// Its call was abandoned, and this takes the reply.
    late: Option<Late>,
    /// The server shared our processor when we last had to look.
    shared: bool,
    give_way: GiveWay,
    hand_over: HandOver,
    stay: Stay,
    /// How long the replies take, by procedure; procedures may share one.
    reply_timer: [ReplyTimer; REPLY_TIMERS],
}

impl KernelLane {
    fn asks_to_stay(&mut self) -> bool {
        self.stay.is_wanted(&self.hand_over)
    }

    /// Gives way to the server on our processor. Whether the reply is there.
    fn hand_over(&mut self, asked: bool) -> bool {
        let Self { slot, hand_over, stay, .. } = self;
        let there = hand_over.until(|| slot.waits());
        if asked {
            stay.learn(hand_over);
        }
        there
    }
}

const REPLY_TIMERS: usize = 16;

/// Kernel threads that found all lanes taken, in the order in which they came.
///
/// Who gives a lane back reads the count without a fence, so it may miss who is just entering the
/// queue. Who waits therefore looks by itself every [`CROWD_LOOKS`]: a fence would cost every call
/// more than that costs the few that meet a crowd.
#[derive(Default)]
struct LaneQueue {
    waiting: AtomicUsize,
    tickets: Mutex<VecDeque<u64>>,
    freed: Condvar,
}

const CROWD_LOOKS: Duration = Duration::from_millis(1);

impl fmt::Debug for CallerChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallerChannel")
            .field("home", &self.far.home)
            .field("closed", &self.closed())
            .finish_non_exhaustive()
    }
}

impl CallerChannel {
    /// The calling end of `channel`, to a server in process `pid` that is rung for by `doorbell` on
    /// its virtual processor `home`.
    pub fn new(
        channel: Channel,
        station: PeerStation,
        pid: u32,
        home: u16,
        doorbell: Doorbell,
        clerk: Arc<dyn ServerClerk>,
    ) -> Arc<Self> {
        let far = Far {
            attention: Attention::new(station.places()),
            station,
            home,
            doorbell,
            ringing: AtomicUsize::new(0),
            donor: Donor::new(pid),
            spin_budget: SpinBudget::default(),
            clerk,
            closed: AtomicBool::new(false),
            reason: OnceLock::new(),
            whole: OnceLock::new(),
        };
        let channel = Arc::new(Self {
            far: Arc::new(far),
            channel,
            pacing: AtomicU8::new(0),
            kernel: [const { OnceLock::new() }; KERNEL_LANES],
            opening: Mutex::default(),
            lane_queue: LaneQueue::default(),
            seats: [const { OnceLock::new() }; crate::domain::MOST_PROCESSORS],
            on_close: OnceLock::new(),
        });
        let _ = channel.far.whole.set(Arc::downgrade(&channel));
        channel
    }

    /// How kernel threads that call spend the wait. Virtual processors follow the pacing that they
    /// were started with.
    pub fn set_pacing(&self, pacing: Pacing) {
        self.pacing.store(pacing as u8, Ordering::Relaxed);
        // A caller that polls keeps its CPU.
        for seat in self.kernel.iter().filter_map(OnceLock::get) {
            seat.control.near.store(0, Ordering::Relaxed);
        }
    }

    fn pacing(&self) -> Pacing {
        match self.pacing.load(Ordering::Relaxed) {
            0 => Pacing::Adaptive,
            1 => Pacing::Poll,
            _ => Pacing::Sleep,
        }
    }

    /// Why it is closed; `None` while it is open.
    pub fn closed(&self) -> Option<Closed> {
        self.far.closed()
    }

    /// Has something done when it is closed; to be said before anybody else knows it, and once.
    pub fn when_closed(&self, work: Box<dyn Fn() + Send + Sync>) {
        let _ = self.on_close.set(work);
    }

    /// Closes it. Every call that waits returns with the reason, on whatever thread it waits. The
    /// first reason stays.
    pub fn close(&self, reason: Closed) {
        let _ = self.far.reason.set(reason);
        self.far.closed.store(true, Ordering::SeqCst);
        // A caller that announces itself after this fence sees `closed`; one that did before is
        // found asleep below.
        upcall_os::atomic::fence(upcall_os::atomic::Ordering::SeqCst);
        if self.far.ringing.load(Ordering::SeqCst) != 0 {
            relieve(&self.far);
        }
        for seat in self.kernel.iter().filter_map(OnceLock::get) {
            sleep::retract(&seat.control.sleeper);
            futex::wake(&seat.control.sleeper, u32::MAX, Scope::Shared);
            // One that has a thread is taken by that.
            let forgotten = seat.lane.try_lock().and_then(|mut lane| lane.late.take());
            drop(forgotten);
        }
        self.seats.iter().filter_map(OnceLock::get).for_each(|seat| seat.forget_late());
        self.on_close.get().into_iter().for_each(|work| work());
        if let Ok(domain) = Domain::current() {
            domain.changed();
        }
    }

    /// Sends a request and waits for its reply, which takes its place. On a virtual processor the
    /// calling thread blocks and others run; elsewhere the kernel thread waits.
    ///
    /// # Errors
    /// The channel is closed, or is being closed while the call waits. Whether the procedure ran is
    /// then unknown.
    #[inline]
    pub fn call(&self, message: &mut Image, hand_off: HandOff) -> Result<(), NoReply> {
        self.call_and_wait(message, Forever(hand_off))
    }

    /// The same, but the call is abandoned when the patience ends.
    ///
    /// # Errors
    /// Also [`NoReply::OutOfTime`].
    pub fn call_within(&self, message: &mut Image, patience: Patience<'_>) -> Result<(), NoReply> {
        self.call_and_wait(message, patience)
    }

    #[inline]
    fn call_and_wait(&self, message: &mut Image, wait: impl Wait) -> Result<(), NoReply> {
        if wait.until().is_abandoned() {
            return Err(NoReply::OutOfTime { sent: false });
        }
        match crate::idle::number() {
            None => self.call_from_kernel_thread(message, wait),
            Some(vp) => self.call_from_thread(vp, message, wait),
        }
    }

    fn call_from_kernel_thread(&self, message: &mut Image, wait: impl Wait) -> Result<(), NoReply> {
        // Who goes to the queue has no lane in hand: those before it may need that one.
        let free = if self.lane_queue.waiting.load(Ordering::Relaxed) == 0 {
            self.free_lane(wait.until())
        } else {
            None
        };
        let (seat, lane) = match free {
            Some(free) => free?,
            None => self.lane_in_turn(wait.until())?,
        };
        let outcome = self.call_on_lane(seat, lane, message, wait);
        if self.lane_queue.waiting.load(Ordering::Relaxed) != 0 {
            self.lane_queue.freed.notify_all();
        }
        outcome
    }

    #[inline]
    fn call_on_lane(
        &self,
        seat: &KernelSeat,
        mut lane: MutexGuard<'_, KernelLane>,
        message: &mut Image,
        mut wait: impl Wait,
    ) -> Result<(), NoReply> {
        self.far.check()?;
        lane.calls = lane.calls.wrapping_add(1);
        message.set_call(lane.calls);
        let asleep = self.far.station.asleep(self.far.home);
        let forced = wait.hand_off() == HandOff::AtOnce;
        let handed =
            (forced || self.pacing() != Pacing::Poll) && self.far.is_brought(asleep, &seat.control);
        let asked = handed && self.far.is_handed_again() && lane.asks_to_stay();
        if handed {
            message.donate();
        }
        if asked {
            message.ask_to_stay();
        }
        self.far.count(message, &mut lane.uncounted);
        lane.slot.send(message);
        point(Point::ClientSent);
        if asleep {
            self.far.notify(!wait.until().is_for_ever());
        }
        let gives = forced && handed;
        let mut there = handed && (asleep || gives || asked) && lane.hand_over(asked);
        if !(there || asleep || gives) {
            there = self.spin_for_reply(&mut lane, message.tag(), wait.until())?;
        }
        if !there && !self.sleep_for_reply(seat, &lane, wait.until())? {
            wait.late().into_iter().for_each(|late| self.abandon(seat, &mut lane, late));
            return Err(NoReply::OutOfTime { sent: true });
        }
        Ok(self.take_reply(&mut lane, message)?)
    }

    #[inline]
    fn take_reply(&self, lane: &mut KernelLane, message: &mut Image) -> Result<(), Closed> {
        if !lane.slot.take(message) || message.call() != lane.calls {
            let reason = Closed::Violation("a reply to a call that was not made");
            self.close(reason.clone());
            return Err(reason);
        }
        Ok(())
    }

    /// Leaves the lane to a thread that waits for the reply in the caller's place. Without one,
    /// whoever looks for a lane finds that the reply has come.
    #[cold]
    fn abandon(&self, seat: &KernelSeat, lane: &mut KernelLane, late: Late) {
        lane.late = Some(late);
        let Some(channel) = self.far.whole.get().and_then(Weak::upgrade) else { return };
        let number = seat.number;
        run_late(move || channel.await_late(number));
    }

    fn await_late(&self, number: usize) {
        let Some(seat) = self.kernel[number].get() else { return };
        let mut lane = seat.lane.lock();
        if lane.late.is_none() {
            return;
        }
        // If the channel is closed no reply will come.
        let come = self.sleep_for_reply(seat, &lane, Until::FOR_EVER).is_ok();
        let taken = if come {
            self.take_late(&mut lane)
        } else {
            lane.late.take().map(|late| (late, None))
        };
        drop(lane);
        self.lane_queue.freed.notify_all();
        if let Some((late, Some(reply))) = taken {
            late(reply);
        }
    }

    /// Takes the reply of an abandoned call, and what is to take it.
    fn take_late(&self, lane: &mut KernelLane) -> Option<(Late, Option<Image>)> {
        let late = lane.late.take()?;
        let mut reply = Image::new(0, 0, NO_ASTACK);
        let good = self.take_reply(lane, &mut reply).is_ok();
        Some((late, good.then_some(reply)))
    }

    /// A free lane for a kernel thread: lowest first, opened when needed; `None` if all are taken,
    /// or another is being opened.
    #[inline]
    fn free_lane(&self, until: Until<'_>) -> Option<TakenLane<'_>> {
        for (number, cell) in self.kernel.iter().enumerate() {
            let seat = match cell.get() {
                Some(seat) => seat,
                None => match self.open_kernel_lane(number, cell, until)? {
                    Ok(seat) => seat,
                    Err(reason) => return Some(Err(reason)),
                },
            };
            if let Some(mut lane) = seat.lane.try_lock()
                && (lane.late.is_none() || self.reclaim(&mut lane))
            {
                return Some(Ok((seat, lane)));
            }
        }
        None
    }

    /// Takes the reply of an abandoned call for which no thread waits. Whether it has come. Without
    /// a thread its result is lost, and what the call brought is free again.
    #[cold]
    fn reclaim(&self, lane: &mut KernelLane) -> bool {
        if !lane.slot.waits() {
            return false;
        }
        let taken = self.take_late(lane);
        if let Some((late, Some(reply))) = taken {
            run_late(move || late(reply));
        }
        true
    }

    /// Waits for a lane behind those who wait already.
    #[cold]
    fn lane_in_turn(&self, until: Until<'_>) -> TakenLane<'_> {
        static TICKET: AtomicU64 = AtomicU64::new(0);
        let mut tickets = self.lane_queue.tickets.lock();
        let own = TICKET.fetch_add(1, Ordering::Relaxed);
        tickets.push_back(own);
        self.lane_queue.waiting.fetch_add(1, Ordering::SeqCst);
        let taken = loop {
            if let Err(reason) = self.far.check() {
                break Err(reason.into());
            }
            if tickets.front() == Some(&own)
                && let Some(taken) = self.free_lane(until)
            {
                break taken;
            }
            if until.has_come() {
                break Err(NoReply::OutOfTime { sent: false });
            }
            tickets = self.lane_queue.freed.wait_timeout(tickets, CROWD_LOOKS).0;
        };
        tickets.retain(|&ticket| ticket != own);
        self.lane_queue.waiting.fetch_sub(1, Ordering::SeqCst);
        drop(tickets);
        self.lane_queue.freed.notify_all();
        taken
    }

    /// `None` if another thread opens it, or the server does not listen at the moment: neither is
    /// waited for, since the caller may hold the queue.
    #[cold]
    fn open_kernel_lane<'a>(
        &self,
        number: usize,
        cell: &'a OnceLock<KernelSeat>,
        until: Until<'_>,
    ) -> Option<Result<&'a KernelSeat, NoReply>> {
        let _opening = self.opening.try_lock()?;
        if let Some(seat) = cell.get() {
            return Some(Ok(seat));
        }
        match self.tell_of_lane(number, None, until, SOON) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(reason) => {
                if let NoReply::Closed(reason) = &reason {
                    self.close(reason.clone());
                }
                return Some(Err(reason));
            }
        }
        let lane = lane_of(&self.channel, number);
        let calling = KernelLane {
            slot: SingleCaller::new(lane.single),
            calls: 0,
            uncounted: 0,
            late: None,
            shared: false,
            give_way: GiveWay::default(),
            hand_over: HandOver::default(),
            stay: Stay::default(),
            reply_timer: Default::default(),
        };
        Some(Ok(cell.get_or_init(|| KernelSeat {
            number,
            control: lane.control,
            lane: Mutex::new(calling),
        })))
    }

    /// Tells the server of a lane. False if it does not listen at the moment.
    fn tell_of_lane(
        &self,
        number: usize,
        vp: Option<(u16, &Doorbell)>,
        until: Until<'_>,
        longest: Duration,
    ) -> Result<bool, NoReply> {
        let ends = Instant::now() + until.left(longest);
        match self.far.clerk.open_lane(number as u16, vp, ends) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                self.far.check()?;
                if until.has_come() { Err(NoReply::OutOfTime { sent: false }) } else { Ok(false) }
            }
            Err(error) => Err(no_lane(error).into()),
        }
    }

    /// Spins until the reply is there, or as long as that is cheaper than sleeping: then false.
    #[inline]
    fn spin_for_reply(
        &self,
        lane: &mut KernelLane,
        tag: u16,
        until: Until<'_>,
    ) -> Result<bool, Closed> {
        // A reply of a polling server is there within one cache-line round trip; the clock is not
        // read before that.
        if !lane.shared {
            let KernelLane { slot, reply_timer, .. } = lane;
            if reply_timer[usize::from(tag) % REPLY_TIMERS].await_answer(256, || slot.waits()) {
                return Ok(true);
            }
        }
        self.spin_long(lane, until)
    }

    #[cold]
    fn spin_long(&self, lane: &mut KernelLane, until: Until<'_>) -> Result<bool, Closed> {
        let (pacing, start) = (self.pacing(), Instant::now());
        let budget = self.far.spin_budget.budget(pacing);
        loop {
            // The server is awake, and its processor is ours: it is given way to.
            lane.shared = self.far.station.cpu(self.far.home) == Some(processor::current() as u32);
            for _ in 0..32 {
                if lane.slot.waits() {
                    self.far.spin_budget.fruitful();
                    return Ok(true);
                }
                if lane.shared {
                    lane.give_way.step();
                }
                look::again();
            }
            self.far.check()?;
            if until.has_come() {
                return Ok(false);
            }
            let asleep = self.far.station.asleep(self.far.home);
            if asleep && pacing == Pacing::Poll {
                self.far.notify(!until.is_for_ever());
            } else if asleep || start.elapsed() >= budget {
                self.far.spin_budget.fruitless();
                return Ok(false);
            }
        }
    }

    /// Sleeps until the reply is there; false if that is not before `ends`.
    fn sleep_for_reply(
        &self,
        seat: &KernelSeat,
        lane: &KernelLane,
        until: Until<'_>,
    ) -> Result<bool, Closed> {
        let sleeper = &seat.control.sleeper;
        let _entered = until.abandon.map(|word| word.enter_lane(&seat.control));
        let mut check = StallCheck::new(self.far.probes());
        let mut slept = Duration::ZERO;
        loop {
            sleep::announce(sleeper);
            point(Point::Sleeps);
            if lane.slot.waits() {
                sleep::retract(sleeper);
                return Ok(true);
            }
            if let Err(reason) = self.far.check() {
                sleep::retract(sleeper);
                return Err(reason);
            }
            // The server can write the word, and so undo the wake of a closing channel; hence not
            // for ever.
            let left = until.left(check.pause().min(LONGEST_SLEEP));
            if left.is_zero() {
                sleep::retract(sleeper);
                return Ok(false);
            }
            // The fence of `announce` makes this the exact look that a waker owes (sleep.rs). Once is
            // enough: after a stall check another caller may have brought the server elsewhere.
            if slept.is_zero() && self.far.station.asleep(self.far.home) {
                self.far.donor.bring(&self.far.station, self.far.home, &seat.control);
                self.far.notify(!until.is_for_ever());
            }
            let waited = futex::wait(sleeper, 1, Scope::Shared, Some(left));
            if lane.slot.waits() {
                sleep::retract(sleeper);
                return Ok(true);
            }
            let timed_out = waited == futex::Wait::TimedOut;
            if timed_out {
                slept += left;
                let asleep = self.far.station.asleep(self.far.home);
                if check.check(self.far.probes(), asleep) == Finding::Stalled {
                    self.far.clerk.report_stall();
                }
            }
            // A caller asks after a signal, and after each of the longest sleeps.
            let asks = !timed_out || slept >= LONGEST_SLEEP;
            if asks {
                slept = Duration::ZERO;
            }
            if asks && until.abandon.is_some_and(Abandon::asks) {
                sleep::retract(sleeper);
                return Ok(false);
            }
        }
    }

    fn call_from_thread(
        &self,
        vp: usize,
        message: &mut Image,
        wait: impl Wait,
    ) -> Result<(), NoReply> {
        let seat = match self.seats.get(vp).and_then(OnceLock::get) {
            Some(seat) => seat,
            None => self.open_seat(vp, wait.until())?,
        };
        match seat.call(message, wait) {
            Ok(()) => Ok(()),
            Err(reason) => {
                if let NoReply::Closed(reason @ Closed::Violation(_)) = &reason {
                    self.close(reason.clone());
                }
                Err(reason)
            }
        }
    }

    /// The other threads of the processor go on while the server does not listen.
    #[cold]
    fn open_seat(&self, vp: usize, until: Until<'_>) -> Result<&Arc<VpLane>, NoReply> {
        loop {
            if let Some(seat) = self.seats[vp].get() {
                return Ok(seat);
            }
            if let Some(seat) = self.try_open_seat(vp, until)? {
                return Ok(seat);
            }
            upcall_thread::sleep(SOON);
        }
    }

    fn try_open_seat(&self, vp: usize, until: Until<'_>) -> Result<Option<&Arc<VpLane>>, NoReply> {
        let unable = no_lane;
        let domain = Domain::current().map_err(unable)?;
        let wake_set = domain.wake_set(vp).map_err(unable)?;
        let safe_doorbell = SafeDoorbell::current().map_err(unable)?;
        let doorbell = Doorbell::new().map_err(unable)?;
        wake_set.set.add(&doorbell, 1, Report::EachRing).map_err(unable)?;
        let number = KERNEL_LANES + vp;
        let told = self.tell_of_lane(number, Some((vp as u16, &doorbell)), until, NOW);
        if told != Ok(true) {
            wake_set.set.remove(&doorbell);
            return told.map(|_| None);
        }
        let seat = Arc::new(VpLane::new(
            vp,
            self.far.clone(),
            (doorbell, safe_doorbell),
            lane_of(&self.channel, number),
        ));
        domain.add_seat(seat.clone());
        // A number belongs to one kernel thread at a time, and only that opens its seat.
        Ok(Some(self.seats[vp].get_or_init(|| seat)))
    }
}

fn no_lane(error: io::Error) -> Closed {
    if error.kind() == io::ErrorKind::BrokenPipe {
        Closed::PeerEnded
    } else {
        Closed::Lane(error.to_string())
    }
}

/// Lets go on who is held up in ringing (os::doorbell) a channel that is closed now. Empties the
/// doorbell again and again, for a hostile server may fill it again.
#[cold]
fn relieve(far: &Arc<Far>) {
    far.doorbell.silence();
    let far = far.clone();
    let relief = move || {
        while far.ringing.load(Ordering::Acquire) != 0 {
            far.doorbell.silence();
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    // Without a thread the first time has to do.
    drop(
        std::thread::Builder::new()
            .name("upcall-relief".into())
            .stack_size(64 * 1024)
            .spawn(relief),
    );
}

fn lane_of(channel: &Channel, number: usize) -> Lane {
    channel
        .lane(number as u16)
        .unwrap_or_else(|| unreachable!("lane {number} is within a channel's lanes"))
}

impl Drop for CallerChannel {
    fn drop(&mut self) {
        if self.seats.iter().any(|seat| seat.get().is_some())
            && let Ok(domain) = Domain::current()
        {
            domain.remove_seats(|seat| Arc::ptr_eq(&seat.far, &self.far));
        }
    }
}

impl Far {
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Closed> {
        if self.closed.load(Ordering::Acquire) {
            Err(self.closed().unwrap_or(Closed::Here))
        } else {
            Ok(())
        }
    }

    pub(crate) fn closed(&self) -> Option<Closed> {
        self.closed
            .load(Ordering::Acquire)
            .then(|| self.reason.get().cloned().unwrap_or(Closed::Here))
    }

    /// Whether this kernel thread gave its processor to this server the last time that it gave it
    /// to any: only such a one is worth keeping there. Of several that stay, each gives way to the
    /// others in vain.
    #[inline]
    pub(crate) fn is_handed_again(&self) -> bool {
        thread_local! {
            static LAST: Cell<usize> = const { Cell::new(0) };
        }
        let own = (&raw const *self).addr();
        LAST.replace(own) == own
    }

    /// Counts a call, and says in its request whether the server shall rest after it.
    #[inline]
    pub(crate) fn count(&self, request: &mut Image, uncounted: &mut u32) {
        self.attention.count(uncounted, || self.station.places());
        if self.attention.rests() {
            request.ask_to_rest();
        }
    }

    /// Number of probes of the server's lanes, as the server publishes it.
    pub(crate) fn probes(&self) -> u32 {
        self.station.probes(self.home)
    }

    /// Whether the server's processor is on ours when it serves the next request; if it sleeps it
    /// is brought here.
    #[inline]
    fn is_brought(&self, asleep: bool, lane: &LaneControl) -> bool {
        if asleep {
            self.donor.bring(&self.station, self.home, lane) == Whereabouts::Here
        } else {
            self.donor.has_brought(&self.station, self.home)
        }
    }

    /// Rings from a kernel thread: by a write, the cheapest way. A hostile server can hold that up
    /// as long as it could withhold the reply, but nobody else's thread with it; after the end
    /// see [`relieve`]. One that must not be held up even so, for it has a deadline, has the kernel
    /// ring.
    #[inline]
    fn notify(&self, in_time: bool) {
        if in_time && let Ok(safe_doorbell) = SafeDoorbell::current() {
            return safe_doorbell.notify(&self.doorbell);
        }
        self.ringing.fetch_add(1, Ordering::SeqCst);
        // Who closes looks at the count after that.
        if !self.closed.load(Ordering::SeqCst) {
            self.doorbell.notify();
        }
        self.ringing.fetch_sub(1, Ordering::Release);
    }

    /// Closes the channel and wakes the callers on all of its lanes. A channel that is gone has
    /// none.
    #[cold]
    pub(crate) fn close(&self, reason: Closed) {
        if let Some(channel) = self.whole.get().and_then(Weak::upgrade) {
            channel.close(reason);
        }
    }
}
