//! What a virtual processor does when none of its threads is ready.
//!
//! Source: URPC, sections 2 and 3.2: idle processors poll, at the lowest priority; a processor with nothing to do anywhere sleeps, and costs
//! nothing. The order of a look: replies for our own threads first (they end somebody's wait), then requests of clients.
//!
//! # Whose lanes a processor looks at
//! A request in a lane is a thread that has not started, and whichever processor takes it runs it. But two processors that look at one lane take its line from each other, and from the
//! caller. So each lane belongs to one processor, and lanes of one client to different ones; a processor looks at its own lanes, at those of others that sleep, and
//! now and then at the rest: what waits there is stolen from a processor that runs something long ([`watch`](crate::watch) has the case that the thief sleeps). A processor that goes to sleep looks at
//! all lanes, so the argument in `sleep` holds for all of them.
//!
//! # Whose processor it is
//! One that was brought to a caller's processor serves that caller's calls first, and gives the processor back when they are answered, or when the caller has something to run there
//! itself (URPC, section 3.1.2; U10, U11): it goes on elsewhere, or sleeps.
//!
//! One look is also taken by a processor that is not idle: when a thread yields while no other is ready, and at every 4096th choice of the next thread, lest threads that are
//! always ready shut out calls (`upcall_thread`, vp.rs).

use crate::domain::{Domain, MOST_PROCESSORS};
use crate::look;
use crate::pacer::{GiveWay, HandOver, LONGEST, Pacer, Pacing};
use crate::placed::NOWHERE;
use crate::seat::VpSeat;
use crate::server::ServerLane;
use crate::sleep;
use crate::watch::Watch;
use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use upcall_os::atomic::{Ordering, fence};
use upcall_os::poll::Report;
use upcall_os::processor;
use upcall_os::timer::Timer;
use upcall_shm::channel::DEPTH;
use upcall_shm::station::{Awake, State};
use upcall_thread::{Found, Idle, Vp};

/// So many looks are taken in a row.
const LOOKS: usize = 16;

/// So often in a row it spins before it says again where it runs.
const SPINS_AT_A_PLACE: u32 = 64;

/// Who has found nothing so many times in a row looks at the lanes of others too, and again after as many; who finds something now and then, every so many times, some 100 µs.
const QUIET_BETWEEN: u32 = 64;
const BUSY_BETWEEN: u32 = 1024;

/// The timer of a crew, in its members' beds.
pub(crate) const WATCH: u64 = 3;

/// How many requests of one lane are run before the others are looked at again.
const BATCH: usize = 8;

/// So many times in a row a donor's requests come first: as many as it can have had outstanding when it gave its processor.
const MOST_OF_DONOR: usize = DEPTH.div_ceil(BATCH);

/// Who is woken so soon after going to sleep, and so often in a row, is better off with a processor of its own: moving there costs about as
/// much as [`SOON_ENOUGH`] hand-offs.
const SOON: Duration = Duration::from_micros(20);
const SOON_ENOUGH: u32 = 8;

/// So long a server takes at most to move to another processor, as a rule; so long its callers have patience with it.
const MOVE: Duration = Duration::from_micros(150);

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
    watch: Watch,
    /// Kept by the members: what a scheduler leaves behind has no descriptor.
    timer: Mutex<Weak<Timer>>,
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
            watch: Watch::default(),
            timer: Mutex::default(),
        })))
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.count
    }

    /// The processor that the next channel is to be woken for, by its number in the domain. They take turns. `None` before any has begun.
    pub fn next_home(&self) -> Option<u16> {
        let turn = self.0.homes.fetch_add(1, Relaxed) % self.running().count().max(1);
        self.running().nth(turn).map(|number| number as u16)
    }

    /// The processors that have begun, by their numbers in the domain.
    fn running(&self) -> impl Iterator<Item = usize> {
        self.0.members.iter().filter_map(|member| member.load(Relaxed).checked_sub(1))
    }

    /// What wakes one of those that sleep after a while, to look at the lanes of all.
    fn timer(&self) -> io::Result<Arc<Timer>> {
        let mut kept = self.0.timer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(timer) = kept.upgrade() {
            return Ok(timer);
        }
        let timer = Arc::new(Timer::new()?);
        *kept = Arc::downgrade(&timer);
        self.0.watch.has_gone_off();
        Ok(timer)
    }

    pub(crate) fn add_lane(&self, lane: Arc<ServerLane>) {
        self.lanes().push(lane);
        self.0.domain.changed();
    }

    pub(crate) fn remove_lanes(&self, gone: impl Fn(&ServerLane) -> bool) {
        self.lanes().retain(|lane| !gone(lane));
        self.0.domain.changed();
    }

    /// Who serves with us has changed, and so whose lanes are whose.
    fn have_others_share(&self, domain: &Domain) {
        if self.0.count > 1 && !self.lanes().is_empty() {
            domain.changed();
        }
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
    let said = &domain.station().line(number).cpu;
    // All callers have this line at hand, and each store takes it from them.
    if said.load(Ordering::Relaxed) != cpu {
        said.store(cpu, Ordering::Relaxed);
    }
    cpu
}

/// Whether another processor sleeps. Its word for that changes seldom, so asking costs nothing.
#[inline]
fn is_asleep(domain: &Domain, other: usize) -> bool {
    sleep::seems_asleep(&domain.station().line(other).asleep)
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
    /// Our own come first, then those of each other processor.
    lanes: Rc<Vec<Arc<ServerLane>>>,
    own: usize,
    others: Vec<(usize, Range<usize>)>,
    /// The crew's timer, if it is in our bed.
    timer: Option<Arc<Timer>>,
    /// It woke us, and nothing else did.
    glances: bool,
    /// Looks for requests, in all and in vain since the last that was found.
    looks: u32,
    in_vain: u32,
    /// What we last said that we do.
    said: Awake,
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
    /// By whom, if we know: its lane, which is served first, and how often that may still be so.
    donor: Option<(usize, usize)>,
    /// We gave our processor to a server, and have not had it back since.
    gave: bool,
    /// We gave it to a server, which has not said since that it is elsewhere.
    lent: bool,
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
            self.share_lanes(processors);
            self.seats = Rc::new(number().map_or_else(Vec::new, |number| processors.0.domain.seats(number)));
        }
    }

    /// Our lanes may be another's from now on, who knows of no look that is owed.
    fn pay_looks(&self) {
        fence(Ordering::SeqCst);
        self.lanes[..self.own].iter().for_each(|lane| lane.look());
    }

    /// Which lanes are whose: neighbours in one channel belong to different processors, the first of them to the channel's home.
    fn share_lanes(&mut self, processors: &Processors) {
        self.pay_looks();
        let running: Vec<usize> = processors.running().collect();
        let owner = |lane: &ServerLane| {
            let home = running.iter().position(|&number| number == lane.home()).unwrap_or(0);
            running.get((home + lane.place()) % running.len().max(1)).copied()
        };
        let mut lanes: Vec<_> = processors.lanes().iter().map(|lane| (owner(lane), lane.clone())).collect();
        let me = number();
        lanes.iter().for_each(|(owner, lane)| lane.belongs_to(*owner));
        lanes.sort_by_key(|(owner, _)| (*owner != me, *owner));
        let of = |whose| lanes.iter().filter(|(owner, _)| *owner == whose).count();
        self.own = of(me);
        let mut from = self.own;
        self.others.clear();
        for other in running.into_iter().filter(|&number| Some(number) != me) {
            let count = of(Some(other));
            self.others.push((other, from..from + count));
            from += count;
        }
        self.lanes = Rc::new(lanes.into_iter().map(|(_, lane)| lane).collect());
        self.donor = None;
        if !self.others.is_empty()
            && !self.lanes.is_empty()
            && self.timer.is_none()
            && let (Ok(timer), Some(Ok(bed))) = (processors.timer(), me.map(|me| processors.0.domain.bed(me)))
        {
            self.timer = bed.set.add(&*timer, WATCH, Report::OneOfUs).is_ok().then_some(timer);
        }
    }

    /// A lane with a request; the look begins behind the last one served. Where the last look found nothing, several looks are taken in a row: the way
    /// round through the scheduler takes longer than a look.
    fn find(&mut self, domain: &Domain) -> Option<usize> {
        if let Some(donors) = self.next_of_donor() {
            return Some(donors);
        }
        let (before, from) = self.lanes[..self.own].split_at(self.next.min(self.own));
        let looks = if self.quiet && self.own > 0 { LOOKS } else { 1 };
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
        if self.others.is_empty() { None } else { self.find_of_others(domain) }
    }

    fn find_of_others(&mut self, domain: &Domain) -> Option<usize> {
        (self.looks, self.in_vain) = (self.looks.wrapping_add(1), self.in_vain.wrapping_add(1));
        let all = self.glances || self.in_vain.is_multiple_of(QUIET_BETWEEN) || self.looks.is_multiple_of(BUSY_BETWEEN);
        let mut looked_at =
            self.others.iter().filter(|&&(other, _)| all || is_asleep(domain, other)).flat_map(|(_, lanes)| lanes.clone());
        looked_at.find(|&at| self.lanes[at].waits())
    }

    /// Who gave us its processor comes first, as long as it has calls that wait.
    fn next_of_donor(&mut self) -> Option<usize> {
        let (lane, left) = self.donor?;
        let next = (self.donated && left > 0 && self.lanes[lane].waits()).then_some(lane);
        if next.is_some() {
            self.donor = Some((lane, left - 1));
        }
        next
    }

    /// Gives the processor back before the request in lane `next` is served, if it is time: all calls of who gave it to us are answered, or it has something to run there
    /// itself. No matter if it runs somewhere else meanwhile.
    fn give_back(&mut self, next: usize) {
        let Some((lane, _)) = self.donor.filter(|_| self.donated) else { return };
        let (donor, here) = (&self.lanes[lane], Some(processor::current() as u32));
        if donor.callers_place() != here {
            return;
        }
        let wanted = if next == lane {
            donor.callers_state() == Some(State::Awake(Awake::Running))
        } else {
            self.lanes[next].callers_place() != here
        };
        if wanted {
            self.donor = None;
            if !self.leave_donor() {
                processor::give_way();
            }
        }
    }

    /// Says what we do, if that has changed.
    #[inline]
    fn say(&mut self, domain: &Domain, awake: Awake) {
        if let (true, Some(number)) = (self.said != awake, number()) {
            self.said = awake;
            domain.station().say(number, awake);
        }
    }

    /// Whether one of the others does this, by its own word.
    fn any_other(&self, domain: &Domain, does: impl Fn(State) -> bool) -> bool {
        self.others.iter().any(|&(other, _)| does(domain.station().state(other)))
    }

    /// The looks that were put off. With nothing else to do, our processor goes to a server that needs one, unless it is to be `kept`.
    fn settle(&mut self, domain: &Domain, kept: bool) {
        let own = &self.lanes[..self.own];
        let seats = self.seats.iter().any(|seat| seat.owes_look());
        if own.iter().any(|lane| lane.owes_look()) || seats {
            // To be said before: who gets our processor asks at once.
            if seats && !kept {
                self.say(domain, Awake::Gave);
            }
            self.pay_looks();
            for seat in self.seats.iter() {
                // One server at a time: others run where they are, side by side with it.
                self.gave |= seat.look(kept || self.gave);
                self.lent |= self.gave;
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
        domain.station().say(number, Awake::Running);
        let line = domain.station().line(number);
        line.tid.store(processor::thread_id(), Ordering::Relaxed);
        self.0.members[vp.index()].store(number + 1, Relaxed);
        self.have_others_share(domain);
    }

    fn end(&self, vp: &Vp) {
        if let Some(number) = number() {
            // The kernel thread is its owner's again, and so are its processors.
            VIEW.with_borrow(|view| {
                view.pay_looks();
                view.home.as_ref().filter(|_| view.confined).map(processor::Processors::confine);
                if let (Some(timer), Ok(bed)) = (&view.timer, self.0.domain.bed(number)) {
                    bed.set.remove(&**timer);
                }
            });
            self.0.members[vp.index()].store(0, Relaxed);
            self.have_others_share(self.0.domain);
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
            view.settle(self.0.domain, self.0.pacing == Pacing::Poll || !vp.is_idle());
            let mut woke = false;
            for seat in view.seats.iter() {
                woke |= seat.collect();
            }
            let found = view.find(self.0.domain);
            if woke || found.is_some() {
                if view.idle_since.take().is_some() {
                    view.pacer.fruitful();
                }
                (view.quiet, view.in_vain) = (false, 0);
                view.gave &= !woke;
                view.say(self.0.domain, Awake::Running);
                if std::mem::take(&mut view.glances) {
                    self.0.watch.brought(true);
                }
                if let Some(found) = found {
                    view.give_back(found);
                    view.next = found;
                    return Found::Work;
                }
                return Found::Woke;
            }
            view.quiet = true;
            Found::Nothing
        })
    }

    fn work(&self, vp: &Vp) {
        let (lanes, found, alone, mut donated) = VIEW.with_borrow_mut(|view| {
            let found = view.next;
            view.next += 1;
            if let Some(timer) = &view.timer {
                vp.light_fence();
                if self.0.watch.begins_to_run(|| view.others.iter().any(|&(other, _)| is_asleep(self.0.domain, other))) {
                    timer.set(self.0.watch.interval());
                }
            }
            // Nobody else's lanes are looked after here.
            (view.lanes.clone(), found, view.own == 1 && found == 0 || view.lanes.len() == 1, view.donated)
        });
        let Some(lane) = lanes.get(found) else { return };
        let mut brought = false;
        for _ in 0..BATCH {
            let Some(served) = lane.serve_one() else { break };
            brought |= served.donated;
            donated |= served.donated;
            // Who was answered may call again at once; if nobody else can, that is waited for right here, for some round trips. Not on the
            // processor that it gave us: it cannot call before it has that back.
            let more = lane.waits() || !donated && alone && lane.calls_again();
            // It may want that back before all is served: see `give_back`.
            if !more || donated && lane.callers_state() == Some(State::Awake(Awake::Running)) {
                break;
            }
        }
        if brought {
            VIEW.with_borrow_mut(|view| {
                (view.donated, view.confined) = (true, true);
                if Rc::ptr_eq(&lanes, &view.lanes) && view.donor.is_none_or(|(lane, _)| lane != found) {
                    view.donor = Some((found, MOST_OF_DONOR));
                }
            });
        }
    }

    fn resume(&self, _vp: &Vp) {
        VIEW.with_borrow_mut(|view| view.say(self.0.domain, Awake::Running));
    }

    fn rest(&self, vp: &Vp, round: u32, deadline: Option<Instant>) {
        // The kernel may move a processor that spins: callers ask where it is, to give way to it or not.
        let (domain, number) = (self.0.domain, number());
        if round.is_multiple_of(SPINS_AT_A_PLACE)
            && let Some(number) = number
        {
            say_where(domain, number);
        }
        let spun = VIEW.with_borrow_mut(|view| {
            if view.gave {
                view.say(domain, Awake::Gave);
                view.hand_over()
            } else {
                view.say(domain, Awake::Polling);
                view.spin(self.0.pacing, round, deadline)
            }
        });
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
        if pacing == Pacing::Sleep || self.glances {
            return false;
        }
        if self.donated {
            // Calls follow each other closely: a processor of our own serves them better than the caller's.
            if self.soon < SOON_ENOUGH || !self.leave_donor() {
                return false;
            }
            self.shares = self.single && self.shares(processor::current() as u32);
        }
        if self.shares {
            return false;
        }
        if round % 32 != 1 {
            return true;
        }
        let now = Instant::now();
        let since = *self.idle_since.get_or_insert(now);
        if self.lent && self.seats.iter().any(|seat| seat.servers_place() != Some(processor::current() as u32)) {
            // The server that had our processor moves to one of its own. It comes soon, and will be quick there.
            self.lent = false;
            self.pacer.renew();
            self.idle_since = Some(now + MOVE);
        }
        now - since < self.pacer.budget(pacing) && deadline.is_none_or(|at| now < at)
    }

    /// Whether we may run in one place only, and that by another's doing.
    fn is_confined(&self) -> bool {
        let by_another = |allowed: processor::Processors| allowed.count() == 1 && self.home.as_ref() != Some(&allowed);
        processor::Processors::allowed().is_ok_and(by_another)
    }

    /// Moves to another processor than the donor's. False if there is none.
    fn leave_donor(&mut self) -> bool {
        self.soon = 0;
        let elsewhere = self.home.as_ref().map(|home| home.without(processor::current()));
        let Some(elsewhere) = elsewhere.filter(|elsewhere| elsewhere.count() > 0) else { return false };
        let (Some(number), Ok(domain)) = (number(), Domain::current()) else { return false };
        // Before we go: callers have patience with one who moves, and do not believe any more that we are where they brought us.
        domain.station().line(number).cpu.store(NOWHERE, Ordering::Relaxed);
        let left = elsewhere.confine().is_ok();
        if left {
            self.donated = false;
            // What was learned of callers with whom we shared a processor does not hold here; and to have come here for nothing would be dear.
            self.pacer.renew();
        }
        say_where(domain, number);
        left
    }
}

impl Processors {
    /// The sleeper's second look; what comes after it will be rung for, here or at the home of the lane, or be found after a while.
    fn last_look(&self, vp: &Vp, view: &View) -> bool {
        if let Some(timer) = &view.timer {
            vp.heavy_fence();
            let (domain, running) = (self.0.domain, State::Awake(Awake::Running));
            let another_runs = view.any_other(domain, |state| state == running);
            if self.0.watch.goes_to_sleep(another_runs, !view.any_other(domain, |state| state != State::Parked)) {
                timer.set(self.0.watch.interval());
            }
        }
        view.waits()
    }

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
            view.donor = None;
            view.idle_since = None;
            if std::mem::take(&mut view.glances) {
                self.0.watch.brought(false);
            }
            view.generation
        });
        sleep::announce_another(&line.asleep, &line.sleeps);
        let busy = vp.has_work() || domain.generation() != generation || VIEW.with_borrow_mut(|view| self.last_look(vp, view));
        if busy {
            sleep::retract(&line.asleep);
            say_where(domain, number);
            return;
        }
        let start = Instant::now();
        let heard = bed.set.wait_any(deadline.map(|at| at.saturating_duration_since(start)), WATCH);
        sleep::retract(&line.asleep);
        if heard.key {
            self.0.watch.has_gone_off();
            // Nobody has called us: a glance is enough.
            if !heard.others {
                say_where(domain, number);
                return VIEW.with_borrow_mut(|view| view.glances = true);
            }
        }
        let before = line.cpu.load(Ordering::Relaxed);
        let cpu = say_where(domain, number);
        VIEW.with_borrow_mut(|view| {
            // Brought here by a donor that cannot have said so with a call: its calls were sent before.
            if !view.lanes.is_empty() && (before != cpu || !view.confined) && view.is_confined() {
                (view.donated, view.confined) = (true, true);
                view.donor = view.lanes.iter().position(|lane| lane.gave(cpu)).map(|at| (at, MOST_OF_DONOR));
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
