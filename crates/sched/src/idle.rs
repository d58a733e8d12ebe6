//! What a virtual processor does when none of its threads is ready.
//!
//! Source: URPC, sections 2 and 3.2: idle processors poll, at the lowest priority; a processor with
//! nothing to do anywhere sleeps, and costs nothing. The order of a look: replies for our own
//! threads first (they end somebody's wait), then requests of clients.
//!
//! One look is also taken by a processor that is not idle: when a thread yields while no other is
//! ready, and at every 4096th choice of the next thread, lest threads that are always ready shut
//! out calls (`upcall_thread`, vp.rs).
//!
//! # Whose lanes a processor looks at
//! A request in a lane is a thread that has not started, and whichever processor takes it runs it.
//! But two processors that look at one lane take its line from each other, and from the caller. So
//! each lane belongs to one processor, and lanes of one client to different ones; a processor looks
//! at its own lanes, at those of others that sleep, and now and then at the rest: what waits there
//! is stolen from a processor that runs something long ([`watch`](crate::watch) has the case that
//! the thief sleeps). A processor that goes to sleep looks at all lanes, so the argument in `sleep`
//! holds for all of them.
//!
//! # Whose processor it is
//! One that was brought to a caller's processor serves that caller's calls first, and gives the
//! processor back when they are answered, or when the caller has something to run there
//! itself (URPC, section 3.1.2; U10, U11): it goes on elsewhere, or sleeps. If the caller asks it
//! to stay ([`Stay`](crate::pacing::Stay)), and all its callers are on this processor, it gives way
//! before it sleeps: twice at most, and not after others have taken the processor for longer. A
//! call that comes meanwhile finds it awake, and takes a yield on each side in place of a wake and
//! a sleep. No wake can be lost by that: who gives way is awake, and looks again. A server that has
//! one caller, a kernel thread, and one processor of its own, where that caller is too, gives way
//! right after the answer, without the way round by this loop (`work`): as long as it has no thread
//! that is ready or waits for a time, nobody's lane has come or gone, and `TURNS` times in a row.

pub(crate) mod attended;
mod posts;
mod stacks;
mod view;

use self::view::{Left, View};
use crate::domain::{self, Domain, MOST_PROCESSORS};
use crate::pacing::{LONGEST, Pacing, hand_back};
use crate::placed::NOWHERE;
use crate::post::SHORT;
use crate::server::ServerLane;
use crate::sleep;
use crate::watch::Watch;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use upcall_os::atomic::{AtomicU64, AtomicUsize, Ordering, Ordering::Relaxed};
use upcall_os::fault::{Point, point};
use upcall_os::lock::{Mutex, MutexGuard};
use upcall_os::processor;
use upcall_os::timer::Timer;
use upcall_shm::channel::DEPTH;
use upcall_shm::station::{Awake, State};
use upcall_shm::tally::Came;
use upcall_thread::{Found, Idle, Vp};

/// So often in a row it spins before it says again where it runs.
const SPINS_AT_A_PLACE: u32 = 64;

/// A spinner looks at the clock at the end of so many rounds, half a microsecond, and again after
/// so many more: to look takes as long as a round, and what comes soon would be found later.
const FIRST_TIME: u32 = 8;
const TIME_BETWEEN: u32 = 32;

/// Who has found nothing so many times in a row looks at the lanes of others too, and again after
/// as many; who finds something now and then, every so many times, some 100 µs.
const QUIET_BETWEEN: u32 = 64;
const BUSY_BETWEEN: u32 = 1024;

/// The timer of a group of processors, in its members' wake sets.
pub(crate) const WATCH: u64 = 3;

/// How many requests of one lane are run before the others are looked at again.
const BATCH: usize = 8;

/// So often in a row a caller is given way to right after its answer. Then what is done now and
/// then has its turn, and the idle loop.
const TURNS: usize = 64;

/// So many times in a row a donor's requests come first: as many as it can have had outstanding
/// when it gave its processor.
const MOST_OF_DONOR: usize = DEPTH.div_ceil(BATCH);

/// Who is woken so soon after going to sleep, and so often in a row, is better off with a processor
/// of its own, where it would have spun for as long: moving there costs about as
/// much as [`SOON_ENOUGH`] hand-offs. On a slow machine a hand-off alone can take half of it.
const SOON: Duration = LONGEST;
const SOON_ENOUGH: u32 = 8;

/// So long a server takes at most to move to another processor, as a rule; so long its callers have
/// patience with it.
const MOVE: Duration = Duration::from_micros(150);

/// The idle behaviour of the virtual processors of one scheduler: give it to the scheduler, and to
/// the channels that they are to serve.
#[derive(Clone, Debug)]
pub struct Processors(Arc<ProcessorGroup>);

#[derive(Debug)]
struct ProcessorGroup {
    domain: &'static Domain,
    count: usize,
    pacing: Pacing,
    /// The lanes that this group of processors serves.
    lanes: Mutex<Vec<Arc<ServerLane>>>,
    /// By the scheduler's own numbering: the domain's number of each processor, plus one; 0 while
    /// it does not run.
    members: [AtomicUsize; MOST_PROCESSORS],
    /// Why a member could not begin, the first time.
    hindrance: OnceLock<Hindrance>,
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
        Ok(Self(Arc::new(ProcessorGroup {
            domain: Domain::current()?,
            count,
            pacing,
            lanes: Mutex::default(),
            members: [const { AtomicUsize::new(0) }; MOST_PROCESSORS],
            hindrance: OnceLock::new(),
            homes: AtomicUsize::new(0),
            watch: Watch::default(),
            timer: Mutex::default(),
        })))
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.count
    }

    /// Checks that all of them look for calls. To be called by the thread that its scheduler began
    /// with: the other processors have begun before it.
    ///
    /// # Errors
    /// One does not: 32 virtual processors of this process call or serve already, or there was no
    /// descriptor or memory for it.
    pub fn check(&self) -> io::Result<()> {
        if self.running().count() == self.0.count {
            return Ok(());
        }
        Err(self.0.hindrance.get().copied().unwrap_or(Hindrance::Full).into())
    }

    /// The processor that the next channel is to be woken for, by its number in the domain. They
    /// take turns. `None` before any has begun.
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
        let mut kept = self.0.timer.lock();
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
    fn have_others_share(&self) {
        if self.0.count > 1 && !self.lanes().is_empty() {
            self.0.domain.changed();
        }
    }

    fn lanes(&self) -> MutexGuard<'_, Vec<Arc<ServerLane>>> {
        self.0.lanes.lock()
    }
}

/// The number in this domain of the virtual processor that the caller runs on; `None` on other
/// kernel threads, and under a scheduler that does not poll channels.
#[inline]
pub(crate) fn number() -> Option<usize> {
    NUMBER.get().checked_sub(1)
}

/// In place of an error number, where an error has none.
const NO_MEMORY: i32 = rustix::io::Errno::NOMEM.raw_os_error();

/// Why a virtual processor that was to poll does not.
#[derive(Clone, Copy, Debug)]
enum Hindrance {
    /// All numbers of the domain are taken.
    Full,
    /// The kernel's error number.
    Kernel(i32),
}

/// Why the virtual processor that the caller runs on does not poll, though its scheduler was to.
pub(crate) fn hindrance() -> Option<io::Error> {
    HINDRANCE.get().map(io::Error::from)
}

impl From<Hindrance> for io::Error {
    fn from(hindrance: Hindrance) -> Self {
        match hindrance {
            Hindrance::Full => domain::too_many(),
            Hindrance::Kernel(errno) => Self::from_raw_os_error(errno),
        }
    }
}

/// A virtual processor that polls channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processor {
    /// Its number in this domain, below [`MOST_PROCESSORS`]. It is given anew when its scheduler
    /// has ended.
    pub number: usize,
    /// No other one has this, with whatever number.
    pub life: u64,
}

impl Processor {
    /// The one that the caller runs on; `None` on other kernel threads, and under a scheduler that
    /// does not poll channels.
    #[inline]
    pub fn current() -> Option<Self> {
        number().map(|number| Self { number, life: LIFE.get() })
    }
}

/// Tells callers on which processor virtual processor `number` runs, which is the calling one.
/// Returns that.
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

/// What a look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// A request, in this lane.
    Call(usize),
    /// Messages.
    Messages,
}

thread_local! {
    static VIEW: RefCell<View> = RefCell::default();
    /// This processor's number in the domain, plus one.
    static NUMBER: Cell<usize> = const { Cell::new(0) };
    /// Why it has none, though it was to poll.
    static HINDRANCE: Cell<Option<Hindrance>> = const { Cell::new(None) };
    static LIFE: Cell<u64> = const { Cell::new(0) };
}

/// Whether a call of ours shall ask the server, which is on our processor, to stay there.
pub(crate) fn is_stay_wanted() -> bool {
    VIEW.with_borrow_mut(|view| {
        view.asked = view.stay.is_wanted(&view.hand_over);
        view.asked
    })
}

impl Idle for Processors {
    fn begin(&self, vp: &Vp) {
        let domain = self.0.domain;
        let hindered = |hindrance| {
            HINDRANCE.set(Some(hindrance));
            let _ = self.0.hindrance.set(hindrance);
        };
        let Some(number) = self.0.members.get(vp.index()).and_then(|_| domain.take_number()) else {
            return hindered(Hindrance::Full);
        };
        // Without a wake set it could not be woken: then it neither serves nor calls by its own
        // lane.
        if let Err(error) = domain.wake_set(number) {
            domain.give_number(number);
            return hindered(Hindrance::Kernel(error.raw_os_error().unwrap_or(NO_MEMORY)));
        }
        static LIVES: AtomicU64 = AtomicU64::new(0);
        LIFE.set(LIVES.fetch_add(1, Relaxed) + 1);
        NUMBER.set(number + 1);
        let home = processor::Processors::allowed().ok();
        let single = home.as_ref().is_none_or(|home| home.count() < 2);
        VIEW.set(View {
            home,
            single,
            shares: single,
            cooling: Timer::new().ok(),
            ..View::default()
        });
        say_where(domain, number);
        domain.station().say(number, Awake::Running);
        domain.station().say_places(
            VIEW.with_borrow(|view| view.home.as_ref().map_or(1, processor::Processors::count))
                as u32,
        );
        let line = domain.station().line(number);
        line.tid.store(processor::thread_id(), Ordering::Relaxed);
        self.0.members[vp.index()].store(number + 1, Relaxed);
        self.have_others_share();
    }

    fn end(&self, vp: &Vp) {
        HINDRANCE.set(None);
        if let Some(number) = number() {
            // The kernel thread is its owner's again, and so are its processors.
            VIEW.with_borrow(|view| {
                view.pay_looks();
                view.home.as_ref().filter(|_| view.confined).map(processor::Processors::confine);
                if let (Some(timer), Ok(wake_set)) = (&view.timer, self.0.domain.wake_set(number)) {
                    wake_set.set.remove(&**timer);
                }
            });
            self.0.members[vp.index()].store(0, Relaxed);
            self.have_others_share();
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
            view.in_between = !vp.is_idle();
            let mut woke = false;
            for seat in view.seats.iter() {
                woke |= seat.collect();
            }
            let found = view.find_work(self.0.domain, vp, &mut woke);
            if woke || found.is_some() {
                if std::mem::take(&mut view.spun) {
                    view.idle_since = None;
                    view.spin_budget.fruitful();
                }
                (view.quiet, view.in_vain) = (false, 0);
                view.gave &= !woke;
                view.say(self.0.domain, Awake::Running);
                if std::mem::take(&mut view.glances) {
                    self.0.watch.brought(true);
                }
                if woke {
                    // What comes to a lane while a thread runs has waited for that.
                    view.left.1 = Came::Wait;
                }
                if let Some(Work::Call(lane)) = found {
                    view.give_back(lane);
                    view.next = lane;
                }
                return if found.is_some() { Found::Work } else { Found::Woke };
            }
            view.quiet = true;
            Found::Nothing
        })
    }

    fn is_pressed(&self, _vp: &Vp) -> bool {
        VIEW.with_borrow(|view| view.attending.is_pressed())
    }

    fn work(&self, vp: &Vp) {
        let messages = VIEW.with_borrow_mut(|view| {
            if let Some(timer) = &view.timer {
                vp.light_fence();
                if self.0.watch.begins_to_run(|| {
                    view.others.iter().any(|&(other, _)| is_asleep(self.0.domain, other))
                }) {
                    timer.set(self.0.watch.interval());
                }
            }
            view.attending.due()
        });
        match messages {
            Some(messages) => messages.serve(),
            None => self.serve_calls(vp),
        }
    }

    fn resume(&self, _vp: &Vp) {
        VIEW.with_borrow_mut(|view| view.say(self.0.domain, Awake::Running));
    }

    fn rest(&self, vp: &Vp, round: u32, deadline: Option<Instant>) {
        // The kernel may move a processor that spins: callers ask where it is, to give way to it or
        // not.
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
        let Some(number) =
            self.0.members.get(vp).and_then(|member| member.load(Relaxed).checked_sub(1))
        else {
            return;
        };
        if sleep::must_wake(&self.0.domain.station().line(number).asleep) {
            self.0.domain.rouse(number);
        }
    }
}

impl Processors {
    /// Serves the request that was found, and what comes right after it.
    fn serve_calls(&self, vp: &Vp) {
        let (lanes, found, alone, bare, mut donated, mut came) = VIEW.with_borrow_mut(|view| {
            let found = view.next;
            view.next += 1;
            // Nobody else's lanes are looked after here.
            let alone = view.own == 1 && found == 0 || view.lanes.len() == 1;
            let bare =
                (self.0.pacing == Pacing::Adaptive && view.is_bare()).then_some(view.generation);
            (view.lanes.clone(), found, alone, bare, view.donated, view.came)
        });
        let Some(lane) = lanes.get(found) else { return };
        let (mut brought, mut stay, mut rest) = (false, false, None);
        'turns: for turn in 0..=TURNS {
            for _ in 0..BATCH {
                let Some(served) = lane.serve_one(came) else { break 'turns };
                brought |= served.donated;
                (stay, rest) = (served.stay, Some(served.rest));
                donated |= served.donated;
                // Who was answered may call again at once; if nobody else can, that is waited for
                // right here, for some round trips. Not on the processor that it
                // gave us: it cannot call before it has that back.
                let waits = lane.waits();
                came = if waits && lane.has_waited() { Came::Wait } else { Came::Spin };
                let more = waits || !donated && alone && lane.calls_again();
                // It may want that back before all is served: see `give_back`.
                if !more || donated && lane.callers_state() == Some(State::Awake(Awake::Running)) {
                    break;
                }
            }
            // What the idle loop would do (`View::hand_back`), without the way there and back: that
            // is longer than all the rest of a call's.
            let stays = brought && stay && turn < TURNS && bare == Some(self.0.domain.generation());
            if !(stays && lane.is_kernel_threads() && vp.is_free()) {
                break;
            }
            if !hand_back(|| lane.waits()) {
                // Tried, and not again before we sleep.
                stay = false;
                break;
            }
        }
        let Some(rest) = rest else { return };
        VIEW.with_borrow_mut(|view| {
            (view.rests, view.left) = (rest, (found, came));
            if brought {
                (view.donated, view.confined, view.stays, view.homesick) =
                    (true, true, stay, false);
                if Rc::ptr_eq(&lanes, &view.lanes)
                    && view.donor.is_none_or(|(lane, _)| lane != found)
                {
                    view.donor = Some((found, MOST_OF_DONOR));
                }
            }
        });
    }

    /// The sleeper's second look; what comes after it will be rung for, here or at the home of the
    /// lane, or be found after a while.
    fn last_look(&self, vp: &Vp, view: &View) -> bool {
        if let Some(timer) = &view.timer {
            vp.heavy_fence();
            let (domain, running) = (self.0.domain, State::Awake(Awake::Running));
            let another_runs = view.any_other(domain, |state| state == running);
            if self.0.watch.goes_to_sleep(
                another_runs,
                !view.any_other(domain, |state| state != State::Parked),
            ) {
                timer.set(self.0.watch.interval());
            }
        }
        view.waits()
    }

    fn sleep(&self, vp: &Vp, deadline: Option<Instant>) {
        let domain = self.0.domain;
        let Some((number, wake_set)) =
            number().and_then(|number| Some((number, domain.wake_set(number).ok()?)))
        else {
            // A processor without a number cannot be woken; it looks again and again, but not
            // often.
            return std::thread::sleep(LONGEST);
        };
        let line = domain.station().line(number);
        let (generation, posts) = VIEW.with_borrow_mut(|view| {
            if view.leaves_donor() == Left::ForHome {
                // Lest a donor believes that we are still where it brought us, and that the wake
                // will find us there.
                line.cpu.store(NOWHERE, Ordering::Relaxed);
            }
            (view.spun, view.idle_since) = (false, None);
            view.wake_to_cool(vp.cools_at(), &wake_set.set);
            if std::mem::take(&mut view.glances) {
                self.0.watch.brought(false);
            }
            (view.generation, view.attending.posts.clone())
        });
        posts.iter().for_each(|post| post.falls_asleep());
        let fenced = posts::announce(line, &posts);
        point(Point::Sleeps);
        let busy = vp.has_work()
            || domain.generation() != generation
            || VIEW.with_borrow(|view| self.last_look(vp, view));
        if busy {
            posts::retract(line, &posts);
            say_where(domain, number);
            return;
        }
        let start = Instant::now();
        let heard = loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let left = if fenced { left } else { Some(left.unwrap_or(SHORT).min(SHORT)) };
            let heard = wake_set.set.wait_any(left, WATCH);
            // A processor without others has no watch, so the key is that of the stacks' timer. It
            // sleeps on: it is still announced as asleep, so a waker has rung or rings, and the
            // next wait finds that.
            if !heard.key
                || heard.others
                || !fenced
                || VIEW.with_borrow(|view| view.timer.is_some())
            {
                break heard;
            }
            vp.cool();
            VIEW.with_borrow_mut(|view| view.wake_to_cool(vp.cools_at(), &wake_set.set));
        };
        posts::retract(line, &posts);
        if heard.key {
            self.0.watch.has_gone_off();
            vp.cool();
            // Nobody has called us: a glance is enough.
            if !heard.others {
                say_where(domain, number);
                return VIEW.with_borrow_mut(|view| view.glances = true);
            }
        }
        let before = line.cpu.load(Ordering::Relaxed);
        let cpu = say_where(domain, number);
        VIEW.with_borrow_mut(|view| view.has_slept(before, cpu, start.elapsed()));
    }
}
