//! What a virtual processor does when none of its threads is ready.
//!
//! Source: URPC, sections 2 and 3.2: idle processors poll, at the lowest priority; a processor with nothing to do anywhere sleeps, and costs
//! nothing. The order of a look: replies for our own threads first (they end somebody's wait), then requests of clients.
//!
//! One look is also taken by a processor that is not idle: when a thread yields while no other is ready, and at every 4096th choice of the next thread, lest threads that are
//! always ready shut out calls (`upcall_thread`, vp.rs).

use crate::domain::{Domain, MOST_PROCESSORS};
use crate::look;
use crate::pacer::{GiveWay, HandOver, LONGEST, Pacer, Pacing};
use crate::seat::VpSeat;
use crate::server::ServerLane;
use crate::sleep;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use upcall_os::atomic::{Ordering, fence};
use upcall_os::processor;
use upcall_thread::{Found, Idle, Vp};

/// So many looks are taken in a row.
const LOOKS: usize = 16;

/// So often in a row it spins before it says again where it runs.
const SPINS_AT_A_PLACE: u32 = 64;

/// Said of a sleeping processor that may wake up anywhere.
const NOWHERE: u32 = u32::MAX;

/// How many requests of one lane are run before the others are looked at again.
const BATCH: usize = 8;

/// Who is woken so soon after going to sleep, and so often in a row, is better off with a processor of its own: moving there costs about as
/// much as [`SOON_ENOUGH`] hand-offs.
const SOON: Duration = Duration::from_micros(20);
const SOON_ENOUGH: u32 = 8;

/// The idle behaviour of the virtual processors of one scheduler: give it to the scheduler, and to the channels that they are to serve.
#[derive(Clone, Debug)]
pub struct Processors(Arc<Crew>);

#[derive(Debug)]
struct Crew {
    domain: &'static Domain,
    count: usize,
    pacing: Pacing,
    /// The lanes that this crew serves.
    lanes: Mutex<Vec<Arc<ServerLane>>>,
    /// By the scheduler's own numbering: the domain's number of each processor, plus one; 0 while it does not run.
    members: [AtomicUsize; MOST_PROCESSORS],
    homes: AtomicUsize,
}

impl Processors {
    /// For a scheduler with `count` virtual processors, with this pacing.
    ///
    /// # Errors
    /// No descriptor or no memory left.
    pub fn new(count: usize, pacing: Pacing) -> io::Result<Self> {
        Ok(Self(Arc::new(Crew {
            domain: Domain::current()?,
            count,
            pacing,
            lanes: Mutex::default(),
            members: [const { AtomicUsize::new(0) }; MOST_PROCESSORS],
            homes: AtomicUsize::new(0),
        })))
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.count
    }

    /// The processor that the next channel is to be woken for, by its number in the domain. They take turns. `None` before any has begun.
    pub fn next_home(&self) -> Option<u16> {
        let running = || self.0.members.iter().map(|member| member.load(Relaxed)).filter(|&member| member != 0);
        let turn = self.0.homes.fetch_add(1, Relaxed) % running().count().max(1);
        running().nth(turn).map(|member| (member - 1) as u16)
    }

    pub(crate) fn add_lane(&self, lane: Arc<ServerLane>) {
        self.lanes().push(lane);
        self.0.domain.changed();
    }

    pub(crate) fn remove_lanes(&self, gone: impl Fn(&ServerLane) -> bool) {
        self.lanes().retain(|lane| !gone(lane));
        self.0.domain.changed();
    }

    fn lanes(&self) -> MutexGuard<'_, Vec<Arc<ServerLane>>> {
        self.0.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number in this domain of the virtual processor that the caller runs on; `None` on other kernel threads, and under a scheduler that does not poll channels.
#[inline]
pub(crate) fn number() -> Option<usize> {
    NUMBER.get().checked_sub(1)
}

/// A virtual processor that polls channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processor {
    /// Its number in this domain, below [`MOST_PROCESSORS`]. It is given anew when its scheduler has ended.
    pub number: usize,
    /// No other one has this, with whatever number.
    pub life: u64,
}

impl Processor {
    /// The one that the caller runs on; `None` on other kernel threads, and under a scheduler that does not poll channels.
    #[inline]
    pub fn current() -> Option<Self> {
        number().map(|number| Self { number, life: LIFE.get() })
    }
}

/// Tells callers on which processor virtual processor `number` runs, which is the calling one. Returns that.
fn say_where(domain: &Domain, number: usize) -> u32 {
    let cpu = processor::current() as u32;
    domain.station().line(number).cpu.store(cpu, Ordering::Relaxed);
    cpu
}

thread_local! {
    static VIEW: RefCell<View> = RefCell::default();
    /// This processor's number in the domain, plus one.
    static NUMBER: Cell<usize> = const { Cell::new(0) };
    static LIFE: Cell<u64> = const { Cell::new(0) };
}

/// One virtual processor's own view of the domain.
#[derive(Default)]
struct View {
    generation: u64,
    lanes: Rc<Vec<Arc<ServerLane>>>,
    seats: Rc<Vec<Arc<VpSeat>>>,
    /// Where the next look begins, and where the last one found a request.
    next: usize,
    pacer: Pacer,
    give_way: GiveWay,
    /// The last look found nothing.
    quiet: bool,
    /// Since when nothing was found.
    idle_since: Option<Instant>,
    /// The processor that we run on is a caller's.
    donated: bool,
    /// We gave our processor to a server, and have not had it back since.
    gave: bool,
    hand_over: HandOver,
    /// How often in a row we were woken soon after we had gone to sleep.
    soon: u32,
    /// We were confined by a donor, or confined ourselves away from one.
    confined: bool,
    /// Where we may run when nobody confines us.
    home: Option<processor::Processors>,
    /// We may run on one processor only.
    single: bool,
    /// And somebody that we wait for runs there too, for all we know: to spin would keep it from running.
    shares: bool,
}

impl View {
    fn refresh(&mut self, processors: &Processors) {
        let generation = processors.0.domain.generation();
        if self.generation != generation {
            self.generation = generation;
            self.lanes = Rc::new(processors.lanes().clone());
            self.seats = Rc::new(number().map_or_else(Vec::new, |number| processors.0.domain.seats(number)));
        }
    }

    /// A lane with a request; the look begins behind the last one served. Where the last look found nothing, several looks are taken in a row: the way
    /// round through the scheduler takes longer than a look.
    fn find(&self) -> Option<usize> {
        let (before, from) = self.lanes.split_at(self.next.min(self.lanes.len()));
        let looks = if self.quiet && !before.is_empty() | !from.is_empty() { LOOKS } else { 1 };
        for _ in 0..looks {
            if let Some(at) = from.iter().position(|lane| lane.waits()) {
                return Some(before.len() + at);
            }
            if let Some(at) = before.iter().position(|lane| lane.waits()) {
                return Some(at);
            }
            if looks > 1 {
                look::again();
            }
        }
        None
    }

    /// The looks that were put off. With nothing else to do, our processor goes to a server that needs one, unless it is to be `kept`.
    fn settle(&mut self, kept: bool) {
        if self.lanes.iter().any(|lane| lane.owes_look()) || self.seats.iter().any(|seat| seat.owes_look()) {
            fence(Ordering::SeqCst);
            self.lanes.iter().for_each(|lane| lane.look());
            for seat in self.seats.iter() {
                // One server at a time: others run where they are, side by side with it.
                self.gave |= seat.look(kept || self.gave);
            }
        }
    }

    /// Our processor was given to a server: lets that run until a reply is there. False if it takes so long that it is better to sleep.
    fn hand_over(&mut self) -> bool {
        let Self { hand_over, seats, .. } = self;
        let there = hand_over.until(|| seats.iter().any(|seat| seat.waits()));
        self.gave &= there;
        there
    }

    /// Whether somebody that we wait for is on this processor, or may be.
    fn shares(&self, cpu: u32) -> bool {
        let elsewhere = |at: Option<u32>| at.is_some_and(|at| at != cpu);
        let nobody = self.seats.is_empty() && self.lanes.is_empty();
        nobody
            || !self.seats.iter().all(|seat| elsewhere(seat.servers_place()))
            || !self.lanes.iter().all(|lane| elsewhere(lane.callers_place()))
    }

    /// The sleeper's second look.
    fn waits(&self) -> bool {
        self.seats.iter().any(|seat| seat.waits()) || self.lanes.iter().any(|lane| lane.waits())
    }
}

impl Idle for Processors {
    fn begin(&self, vp: &Vp) {
        let domain = self.0.domain;
        let Some(number) = self.0.members.get(vp.index()).and_then(|_| domain.take_number()) else { return };
        // Without a bed it could not be woken: then it neither serves nor calls by its own lane.
        if domain.bed(number).is_err() {
            return domain.give_number(number);
        }
        static LIVES: AtomicU64 = AtomicU64::new(0);
        LIFE.set(LIVES.fetch_add(1, Relaxed) + 1);
        NUMBER.set(number + 1);
        let home = processor::Processors::allowed().ok();
        let single = home.as_ref().is_none_or(|home| home.count() < 2);
        VIEW.set(View { home, single, shares: single, ..View::default() });
        say_where(domain, number);
        let line = domain.station().line(number);
        line.tid.store(processor::thread_id(), Ordering::Relaxed);
        self.0.members[vp.index()].store(number + 1, Relaxed);
    }

    fn end(&self, vp: &Vp) {
        if let Some(number) = number() {
            // The kernel thread is its owner's again, and so are its processors.
            VIEW.with_borrow(|view| view.home.as_ref().filter(|_| view.confined).map(processor::Processors::confine));
            self.0.members[vp.index()].store(0, Relaxed);
            NUMBER.set(0);
            VIEW.set(View::default());
            self.0.domain.leave_seats(number);
            self.0.domain.give_number(number);
        }
    }

    fn poll(&self, vp: &Vp) -> Found {
        VIEW.with_borrow_mut(|view| {
            view.refresh(self);
            // A glance between two threads wakes servers, but our processor has work.
            view.settle(self.0.pacing == Pacing::Poll || !vp.is_idle());
            let mut woke = false;
            for seat in view.seats.iter() {
                woke |= seat.collect();
            }
            let found = view.find();
            if woke || found.is_some() {
                if view.idle_since.take().is_some() {
                    view.pacer.fruitful();
                }
                view.quiet = false;
                view.gave &= !woke;
                if let Some(found) = found {
                    view.next = found;
                    return Found::Work;
                }
                return Found::Woke;
            }
            view.quiet = true;
            Found::Nothing
        })
    }

    fn work(&self, _vp: &Vp) {
        let (lanes, found) = VIEW.with_borrow_mut(|view| {
            let found = view.next;
            view.next += 1;
            (view.lanes.clone(), found)
        });
        let Some(lane) = lanes.get(found) else { return };
        let mut donated = false;
        for _ in 0..BATCH {
            let Some(served) = lane.serve_one() else { break };
            donated |= served.donated;
            // Who was answered may call again at once; if nobody else can, that is waited for right here, for some round trips. Not on the
            // processor that it gave us: it cannot call before it has that back.
            let more = lane.waits() || !donated && lanes.len() == 1 && lane.calls_again();
            if !more {
                break;
            }
        }
        if donated {
            VIEW.with_borrow_mut(|view| (view.donated, view.confined) = (true, true));
        }
    }

    fn rest(&self, vp: &Vp, round: u32, deadline: Option<Instant>) {
        // The kernel may move a processor that spins: callers ask where it is, to give way to it or not.
        if round.is_multiple_of(SPINS_AT_A_PLACE)
            && let Some(number) = number()
        {
            say_where(self.0.domain, number);
        }
        let spun =
            VIEW.with_borrow_mut(|view| if view.gave { view.hand_over() } else { view.spin(self.0.pacing, round, deadline) });
        if !spun {
            self.sleep(vp, deadline);
        }
    }

    fn unpark(&self, vp: usize) {
        let Some(number) = self.0.members.get(vp).and_then(|member| member.load(Relaxed).checked_sub(1)) else { return };
        if sleep::must_wake(&self.0.domain.station().line(number).asleep) {
            self.0.domain.rouse(number);
        }
    }
}

impl View {
    /// One step of spinning; false when it is time to sleep.
    fn spin(&mut self, pacing: Pacing, round: u32, deadline: Option<Instant>) -> bool {
        if self.single && round % SPINS_AT_A_PLACE == 1 {
            self.shares = self.shares(processor::current() as u32);
        }
        if pacing == Pacing::Poll {
            if self.shares {
                self.give_way.step();
            }
            return !round.is_multiple_of(64) || deadline.is_none_or(|at| Instant::now() < at);
        }
        if pacing == Pacing::Sleep || self.shares {
            return false;
        }
        if self.donated {
            // Calls follow each other closely: a processor of our own serves them better than the caller's.
            if self.soon < SOON_ENOUGH || !self.leave_donor() {
                return false;
            }
        }
        if round % 32 != 1 {
            return true;
        }
        let now = Instant::now();
        let since = *self.idle_since.get_or_insert(now);
        now - since < self.pacer.budget(pacing) && deadline.is_none_or(|at| now < at)
    }

    /// Whether we may run in one place only, and that by another's doing.
    fn is_confined(&self) -> bool {
        let by_another = |allowed: processor::Processors| allowed.count() == 1 && self.home.as_ref() != Some(&allowed);
        processor::Processors::allowed().is_ok_and(by_another)
    }

    /// Moves to another processor than the donor's. False if there is none.
    fn leave_donor(&mut self) -> bool {
        self.donated = false;
        self.soon = 0;
        let elsewhere = self.home.as_ref().map(|home| home.without(processor::current()));
        let left = elsewhere.is_some_and(|elsewhere| elsewhere.count() > 0 && elsewhere.confine().is_ok());
        // Lest callers believe that we are still where they brought us.
        if let (true, Some(number), Ok(domain)) = (left, number(), Domain::current()) {
            say_where(domain, number);
        }
        left
    }
}

impl Processors {
    fn sleep(&self, vp: &Vp, deadline: Option<Instant>) {
        let domain = self.0.domain;
        let Some((number, bed)) = number().and_then(|number| Some((number, domain.bed(number).ok()?))) else {
            // A processor without a number cannot be woken; it looks again and again, but not often.
            return std::thread::sleep(LONGEST);
        };
        let line = domain.station().line(number);
        let generation = VIEW.with_borrow_mut(|view| {
            // Confined, but by nobody who needs it now: back to where we belong.
            if view.confined && !view.donated {
                view.confined = false;
                let _ = view.home.as_ref().map(processor::Processors::confine);
                // Lest a donor believes that we are still where it brought us, and that the wake will find us there.
                line.cpu.store(NOWHERE, Ordering::Relaxed);
            }
            view.donated = false;
            view.idle_since = None;
            view.generation
        });
        sleep::announce_another(&line.asleep, &line.sleeps);
        let busy = vp.has_work() || domain.generation() != generation || VIEW.with_borrow(View::waits);
        if busy {
            sleep::retract(&line.asleep);
            say_where(domain, number);
            return;
        }
        let start = Instant::now();
        bed.set.wait_any(deadline.map(|at| at.saturating_duration_since(start)));
        sleep::retract(&line.asleep);
        let before = line.cpu.load(Ordering::Relaxed);
        let cpu = say_where(domain, number);
        VIEW.with_borrow_mut(|view| {
            // Brought here by a donor that cannot have said so with a call: its calls were sent before.
            if (before != cpu || !view.confined) && view.is_confined() {
                (view.donated, view.confined) = (true, true);
            }
            // Woken soon: it would have been better to spin. Late: spinning was, or would have been, for nothing.
            let slept = start.elapsed();
            view.soon = if slept < SOON { view.soon + 1 } else { 0 };
            if slept < LONGEST {
                view.pacer.fruitful();
            } else {
                view.pacer.fruitless();
            }
        });
    }
}
