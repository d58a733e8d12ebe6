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
//! is stolen from a processor that runs something long. A processor probes all lanes before it
//! sleeps and after it wakes, so the argument in `sleep` holds for all of them. The lanes of a
//! processor that a handler blocks belong to its substitute ([`takeover`]).
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
mod stalls;
mod takeover;
mod view;

use self::takeover::Takeover;
use self::view::{Left, View};
use crate::domain::{self, Domain, MOST_PROCESSORS};
use crate::duty::Duty;
use crate::pacing::{LONGEST, Pacing, hand_back};
use crate::placed::NOWHERE;
use crate::post::SHORT;
use crate::server::ServerLane;
use crate::sleep;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use upcall_os::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, Ordering::Relaxed};
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

/// Number of requests after which a processor checks whether more requests wait, and wakes another
/// processor of the server to help.
const FOUND_BETWEEN: u32 = 64;

/// Key of the processor's own timer in its wake set: for the stacks of idle workers, and for
/// [stall checks](stalls).
pub(crate) const OWN_TIMER: u64 = 3;

/// Key of another processor's doorbells in the wake set of its substitute.
pub(crate) const DUTY: u64 = 5;

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
pub struct Processors {
    group: Arc<ProcessorGroup>,
    /// Index in the group of the scheduler's first processor: 0, or the index of a spare.
    first: usize,
}

#[derive(Debug)]
struct ProcessorGroup {
    domain: &'static Domain,
    count: usize,
    pacing: Pacing,
    /// The lanes that this group of processors serves.
    lanes: Mutex<Vec<Arc<ServerLane>>>,
    /// The scheduler's own processors, in its order, followed by spares.
    members: [Member; MOST_PROCESSORS],
    /// Why a member could not begin, the first time.
    hindrance: OnceLock<Hindrance>,
    homes: AtomicUsize,
    /// Number of members whose duty a substitute has.
    taken: AtomicUsize,
    /// `None` if stalled processors are not taken over.
    takeover: OnceLock<Takeover>,
}

/// A virtual processor of a group.
#[derive(Debug, Default)]
struct Member {
    /// The member's number in the domain plus one, or 0 while the member does not run.
    number: AtomicUsize,
    /// The member's kernel thread.
    tid: AtomicU32,
    duty: Arc<Duty>,
}

impl Member {
    fn number(&self) -> Option<usize> {
        self.number.load(Ordering::Acquire).checked_sub(1)
    }
}

impl Processors {
    /// For a scheduler with `count` virtual processors, with this pacing.
    ///
    /// # Errors
    /// No descriptor or no memory left.
    pub fn new(count: usize, pacing: Pacing) -> io::Result<Self> {
        let group = Arc::new(ProcessorGroup {
            domain: Domain::current()?,
            count,
            pacing,
            lanes: Mutex::default(),
            members: std::array::from_fn(|_| Member::default()),
            hindrance: OnceLock::new(),
            homes: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            takeover: OnceLock::new(),
        });
        Ok(Self { group, first: 0 })
    }

    /// The duty of the first processor. The only processor of a server is alone with its lanes until
    /// a spare begins.
    pub(crate) fn duty(&self) -> &Arc<Duty> {
        &self.group.members[0].duty
    }

    /// The member of the group that runs the caller.
    #[inline(always)]
    fn member(&self, vp: &Vp) -> &Member {
        // `begin` refuses an index beyond the last member.
        &self.group.members[(self.first + vp.index()) % MOST_PROCESSORS]
    }

    /// Checks that all of them look for calls. To be called by the thread that its scheduler began
    /// with: the other processors have begun before it.
    ///
    /// # Errors
    /// One does not: 32 virtual processors of this process call or serve already, or there was no
    /// descriptor or memory for it.
    pub fn check(&self) -> io::Result<()> {
        if self.running().count() == self.group.count {
            return Ok(());
        }
        Err(self.group.hindrance.get().copied().unwrap_or(Hindrance::Full).into())
    }

    /// The processor that the next channel is to be woken for, by its number in the domain. They
    /// take turns. `None` before any has begun.
    pub fn next_home(&self) -> Option<u16> {
        let turn = self.group.homes.fetch_add(1, Relaxed) % self.running().count().max(1);
        self.running().nth(turn).map(|number| number as u16)
    }

    /// Numbers in the domain of the scheduler's own processors that have begun.
    fn running(&self) -> impl Iterator<Item = usize> {
        self.group.members[..self.group.count.min(MOST_PROCESSORS)]
            .iter()
            .filter_map(Member::number)
    }

    pub(crate) fn add_lane(&self, lane: Arc<ServerLane>) {
        let mut lanes = self.lanes();
        // Under the lock: `share_lanes` changes all lanes that are in the list.
        lane.is_alone(self.group.count == 1 && !self.has_shared_lanes());
        lanes.push(lane);
        drop(lanes);
        self.group.domain.changed();
    }

    pub(crate) fn remove_lanes(&self, gone: impl Fn(&ServerLane) -> bool) {
        self.lanes().retain(|lane| !gone(lane));
        self.group.domain.changed();
    }

    /// Who serves with us has changed, and so whose lanes are whose.
    fn have_others_share(&self) {
        if self.first == 0 && self.group.count > 1 && !self.lanes().is_empty() {
            self.group.domain.changed();
        }
    }

    fn lanes(&self) -> MutexGuard<'_, Vec<Arc<ServerLane>>> {
        self.group.lanes.lock()
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
    /// Index in the processor's group.
    static INDEX: Cell<usize> = const { Cell::new(0) };
}

/// Index of the caller's virtual processor in its group. Spares have the indices from the number of
/// the server's own processors on. 0 outside of a group.
#[inline]
pub fn index() -> usize {
    INDEX.get()
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
        let domain = self.group.domain;
        let hindered = |hindrance| {
            HINDRANCE.set(Some(hindrance));
            let _ = self.group.hindrance.set(hindrance);
        };
        let index = self.first + vp.index();
        let Some(number) = self.group.members.get(index).and_then(|_| self.take_number()) else {
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
        INDEX.set(index);
        let home = processor::Processors::allowed().ok();
        let single = home.as_ref().is_none_or(|home| home.count() < 2);
        VIEW.set(View {
            home,
            single,
            shares: single,
            timer: Timer::new().ok(),
            probes: Some(domain.station().probes(number)),
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
        let member = &self.group.members[index];
        member.tid.store(processor::thread_id(), Relaxed);
        member.number.store(number + 1, Ordering::Release);
        self.have_others_share();
        self.has_begun();
    }

    fn end(&self, vp: &Vp) {
        HINDRANCE.set(None);
        if let Some(number) = number() {
            // The kernel thread is its owner's again, and so are its processors.
            VIEW.with_borrow(|view| {
                view.pay_looks();
                view.home.as_ref().filter(|_| view.confined).map(processor::Processors::confine);
            });
            self.leave_duties(vp);
            self.member(vp).number.store(0, Relaxed);
            self.have_others_share();
            NUMBER.set(0);
            INDEX.set(0);
            VIEW.set(View::default());
            self.group.domain.leave_seats(number);
            self.group.domain.give_number(number);
        }
    }

    fn poll(&self, vp: &Vp) -> Found {
        if self.group.taken.load(Relaxed) != 0 {
            self.keep_duties(vp);
        }
        VIEW.with_borrow_mut(|view| {
            view.refresh(self);
            view.probes.into_iter().for_each(view::count_probe);
            // A glance between two threads wakes servers, but our processor has work.
            view.settle(self.group.domain, self.group.pacing == Pacing::Poll || !vp.is_idle());
            view.in_between = !vp.is_idle();
            let mut woke = false;
            for seat in view.seats.iter() {
                woke |= seat.collect();
            }
            let found = view.find_work(self, vp, &mut woke);
            if woke || found.is_some() {
                if std::mem::take(&mut view.spun) {
                    view.idle_since = None;
                    view.spin_budget.fruitful();
                }
                (view.quiet, view.in_vain) = (false, 0);
                view.gave &= !woke;
                view.say(self.group.domain, Awake::Running);
                if woke {
                    // What comes to a lane while a thread runs has waited for that.
                    view.left.1 = Came::Wait;
                }
                if let Some(Work::Call(lane)) = found {
                    view.give_back(lane);
                    view.calls_helper(self, lane);
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
        match VIEW.with_borrow_mut(|view| view.attending.due()) {
            Some(messages) => messages.serve(),
            None => self.serve_calls(vp),
        }
    }

    fn resume(&self, _vp: &Vp) {
        VIEW.with_borrow_mut(|view| view.say(self.group.domain, Awake::Running));
    }

    fn rest(&self, vp: &Vp, round: u32, deadline: Option<Instant>) {
        // The kernel may move a processor that spins: callers ask where it is, to give way to it or
        // not.
        let (domain, number) = (self.group.domain, number());
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
                view.spin(self.group.pacing, round, deadline)
            }
        });
        if !spun {
            self.sleep(vp, deadline);
        }
    }

    fn unpark(&self, vp: usize) {
        let Some(number) = self.group.members.get(self.first + vp).and_then(Member::number) else {
            return;
        };
        if sleep::must_wake(&self.group.domain.station().line(number).asleep) {
            self.group.domain.rouse(number);
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
            let bare = (self.group.pacing == Pacing::Adaptive && view.is_bare())
                .then_some(view.generation);
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
            let stays =
                brought && stay && turn < TURNS && bare == Some(self.group.domain.generation());
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

    fn sleep(&self, vp: &Vp, deadline: Option<Instant>) {
        let domain = self.group.domain;
        let Some((number, wake_set)) =
            number().and_then(|number| Some((number, domain.wake_set(number).ok()?)))
        else {
            // A processor without a number cannot be woken; it looks again and again, but not
            // often.
            return std::thread::sleep(LONGEST);
        };
        let line = domain.station().line(number);
        let (generation, posts, duties) = VIEW.with_borrow_mut(|view| {
            if view.leaves_donor() == Left::ForHome {
                // Lest a donor believes that we are still where it brought us, and that the wake
                // will find us there.
                line.cpu.store(NOWHERE, Ordering::Relaxed);
            }
            (view.spun, view.idle_since) = (false, None);
            view.set_timer(vp.cools_at(), &wake_set.set);
            (view.generation, view.attending.posts.clone(), view.duties.clone())
        });
        posts.iter().for_each(|post| post.falls_asleep());
        self.announce_duties(vp, line, &duties);
        let fenced = posts::announce(line, &posts);
        point(Point::Sleeps);
        let busy = vp.has_work()
            || domain.generation() != generation
            || VIEW.with_borrow(|view| view.waits());
        let retract = || {
            posts::retract(line, &posts);
            self.retract_duties(vp, &duties);
        };
        if busy {
            retract();
            say_where(domain, number);
            return;
        }
        let start = Instant::now();
        let heard = loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let left = if fenced { left } else { Some(left.unwrap_or(SHORT).min(SHORT)) };
            let heard = wake_set.set.wait_any(left, OWN_TIMER);
            // Only its own timer woke the processor. It is still announced as asleep, so a
            // waker notifies it, and the next wait returns.
            if !heard.key || heard.others || !fenced {
                break heard;
            }
            vp.cool();
            VIEW.with_borrow_mut(|view| {
                view.stall_checks.check(&view.seats);
                view.set_timer(vp.cools_at(), &wake_set.set);
            });
        };
        retract();
        if heard.key {
            vp.cool();
            VIEW.with_borrow_mut(|view| view.stall_checks.check(&view.seats));
        }
        let before = line.cpu.load(Ordering::Relaxed);
        let cpu = say_where(domain, number);
        VIEW.with_borrow_mut(|view| view.has_slept(before, cpu, start.elapsed()));
    }
}
