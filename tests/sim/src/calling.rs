//! Calls to one server on CPUs that all share: the shipped idle policy, in a machine that decides
//! by chance who runs.
//!
//! The server is one virtual processor. What it does when it finds nothing, where it parks, and
//! whether it gives a CPU back are decided by the product's own
//! [`Poller`](upcall_sched::poller::Poller). A caller is a kernel thread: it brings the sleeping
//! server to its CPU, or asks it to come near where it may not; it yields, spins and sleeps as the
//! product's own [`HandOver`], [`Stay`] and [`SpinBudget`] say. Other threads compute beside them,
//! and liars say what may harm others.
//!
//! # What has to hold
//! - Each call is answered, however many threads want the CPUs ([`Failure`] tells which is not).
//! - After the last call the server sleeps within a bounded time on the CPU: it does not poll on.
//! - The server moves to CPUs of its own only, also if callers lie. A caller that may do so brings
//!   it elsewhere.
//! - The same seed gives the same run; and the events of a run, replayed to a new policy, give the
//!   same steps ([`Trace::replay`]).

use crate::cpus::{Act, Cpus, SLICE};
use crate::dice::Dice;
use crate::engine::Failure;
use crate::recorded::{Parked, Trace};
use std::time::{Duration, Instant};
use upcall_os::processor::Processors as CpuSet;
use upcall_sched::pacing::{HandOver, Offer, Pacing, SpinBudget, Stay, Yielded};
use upcall_sched::poller::{
    BeforeServing, Facts, IdleEvent, IdleStep, PollWish, Poller, ServedRequest, StackSupply,
    StayWish, WakeReason, Wakeup,
};
use upcall_shm::tally::Came;

/// One probe of the lanes, and one look of a caller.
const PROBE: u64 = 30;
/// A request or a reply that is written, or read.
const MESSAGE: u64 = 40;
/// The fence of a thread that falls asleep.
const FENCE: u64 = 500;
/// A liar looks for its reply so often.
const LIES: u64 = 2000;
/// A thread that computes looks up after so long.
const COMPUTES: u64 = 100_000;
/// Longest sleep of a caller before it looks again.
const LONGEST_SLEEP: u64 = 500_000_000;
/// Maximum CPU time that a server uses after the last call before it sleeps, in ns.
const LAST_POLL: u64 = 1_000_000;
/// After so many steps a run should have ended.
const MOST_STEPS: u64 = 20_000_000;

/// What a run is to be.
#[derive(Clone, Debug)]
pub struct Calls {
    /// Number of CPUs.
    pub cpus: usize,
    /// The CPUs on which the server may run.
    pub home: CpuSet,
    /// How the server waits.
    pub pacing: Pacing,
    /// The callers.
    pub callers: Vec<CallerPlan>,
    /// Number of threads that compute beside them, on any CPU.
    pub computing: usize,
    /// What the handler takes, in ns.
    pub handler: u64,
    /// What decides the rest.
    pub seed: u64,
}

/// What a caller is.
#[derive(Clone, Debug)]
pub struct CallerPlan {
    /// Where it may run.
    pub allowed: CpuSet,
    /// Number of its calls.
    pub calls: u32,
    /// The pause before each, in ns.
    pub pause: u64,
    /// Whether it may bring the server to its CPU.
    pub may_bring: bool,
    /// It says what may harm others, and computes while it waits.
    pub lies: bool,
}

/// What was seen in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Steps of all threads.
    pub steps: u64,
    /// The times of all calls of callers that do not lie, in ns, in the order of their ends.
    pub times: Vec<u64>,
    /// Calls that came with their caller's CPU.
    pub donated: u64,
    /// How often the server slept.
    pub parks: u64,
    /// How often it moved away from a caller.
    pub migrations: u64,
    /// How often it parked near a caller.
    pub near: u64,
    /// How often it yielded to its callers.
    pub yields: u64,
    /// The CPU time of the server after the last call, in ns.
    pub last_poll: u64,
}

/// A call, in the slot of its lane.
#[derive(Clone, Copy, Debug)]
struct Request {
    donates: bool,
    asks_to_stay: bool,
}

/// A lane of one slot, with what both sides say beside it.
#[derive(Debug, Default)]
struct CallLane {
    request: Option<Request>,
    reply: bool,
    /// The caller sleeps, or is about to.
    asleep: bool,
    /// The CPU near which the caller wishes the server to park.
    near: Option<u32>,
    /// The server knows: the last call came with the caller's CPU.
    donated: bool,
}

/// What the server says of itself.
#[derive(Debug, Default)]
struct Said {
    asleep: bool,
    cpu: Option<u32>,
}

#[derive(Debug)]
enum Serving {
    Probes,
    Serves { lane: usize },
    Replies { lane: usize, request: Request },
    Steps(IdleEvent),
    Yielded { since: u64 },
    YieldedToCallers { offers: u32 },
    Migrates(CpuSet),
    Parks,
    Announces,
    LooksAgain,
    Sleeps { said: u32, since: u64 },
}

#[derive(Debug)]
enum Calling {
    Pauses,
    Calls,
    HandsOver { offers: u32, since: u64, asked: bool },
    Spins { since: u64 },
    Announces,
    LooksAgain,
    Ends,
}

#[derive(Debug)]
struct Server {
    poller: Poller,
    trace: Trace,
    phase: Serving,
    round: u32,
    slept: bool,
    next: usize,
}

#[derive(Debug)]
struct Caller {
    plan: CallerPlan,
    phase: Calling,
    left: u32,
    begun: u64,
    /// Where it has brought the server.
    placed: Option<u32>,
    budget: SpinBudget,
    hand_over: HandOver,
    stay: Stay,
}

#[derive(Debug)]
struct World {
    base: Instant,
    lanes: Vec<CallLane>,
    said: Said,
    server: Server,
    callers: Vec<Caller>,
    dice: Dice,
    handler: u64,
    seen: Seen,
    /// The server's CPU time when it was called last.
    used_at_last_call: u64,
    home: CpuSet,
    /// CPUs that are not its own, to which the server has moved by itself.
    strange: Option<CpuSet>,
}

/// The server's thread; those of callers, and then those that compute, follow.
const SERVER: usize = 0;

/// What the policy asks, as the simulated machine and the callers' words have it.
struct Surroundings<'a> {
    cpus: &'a Cpus,
    lanes: &'a [CallLane],
    now: Instant,
    cpu: u32,
}

impl Facts for Surroundings<'_> {
    fn now(&self) -> Instant {
        self.now
    }
    fn tick(&self) -> u64 {
        self.cpus.place(SERVER).1 / 4_000_000
    }
    fn cpu(&self) -> u32 {
        self.cpu
    }
    fn allowed(&self) -> Option<CpuSet> {
        Some(self.cpus.allowed(SERVER))
    }
    fn is_calling(&self) -> bool {
        false
    }
    fn has_reply(&self) -> bool {
        false
    }
    fn has_server_elsewhere(&self, _: u32) -> bool {
        false
    }
    fn has_lanes(&self) -> bool {
        true
    }
    fn has_posts(&self) -> bool {
        false
    }
    fn has_only_callers_on(&self, _: u32) -> bool {
        self.lanes.iter().all(|lane| lane.donated)
    }
    // A kernel thread does not say where it is.
    fn shares(&self, _: u32) -> bool {
        true
    }
    fn donor(&self, _: u32) -> Option<usize> {
        None
    }
    fn wished_cpu(&self, lane: usize) -> Option<u32> {
        self.lanes[lane].near
    }
    fn is_caller_on(&self, _: usize, _: u32) -> bool {
        false
    }
    fn is_caller_running(&self, _: usize) -> bool {
        false
    }
}

impl World {
    /// The policy, with what it asks: each use is recorded.
    fn policy<R>(
        &mut self,
        cpus: &Cpus,
        with: impl FnOnce(&mut Poller, &mut Trace, &Surroundings<'_>) -> R,
    ) -> R {
        let (cpu, at) = cpus.place(SERVER);
        let now = self.base + Duration::from_nanos(at);
        let facts = Surroundings { cpus, lanes: &self.lanes, now, cpu: cpu as u32 };
        let Server { poller, trace, .. } = &mut self.server;
        with(poller, trace, &facts)
    }

    /// A step of the server.
    fn serve(&mut self, cpus: &mut Cpus) -> Act {
        let (cpu, now) = cpus.place(SERVER);
        match std::mem::replace(&mut self.server.phase, Serving::Probes) {
            Serving::Probes => self.probe(cpus),
            Serving::Serves { lane } => {
                let Some(request) = self.lanes[lane].request.take() else { return Act::Run(PROBE) };
                self.server.phase = Serving::Replies { lane, request };
                Act::Run(MESSAGE + self.handler)
            }
            Serving::Replies { lane, request } => {
                self.reply(cpus, lane, request);
                Act::Run(MESSAGE)
            }
            Serving::Steps(event) => self.rest(cpus, event),
            Serving::Yielded { since } => {
                let took = Duration::from_nanos(now - since);
                self.rest(cpus, IdleEvent::Yielded(took))
            }
            Serving::YieldedToCallers { offers } => {
                if self.lanes.iter().any(|lane| lane.request.is_some()) {
                    return self.rest(cpus, IdleEvent::CallersYielded(Yielded::Arrived));
                }
                if offers == 2 {
                    return self.rest(cpus, IdleEvent::CallersYielded(Yielded::Nothing));
                }
                self.server.phase = Serving::YieldedToCallers { offers: offers + 1 };
                Act::Yield
            }
            Serving::Migrates(to) => {
                self.said.cpu = Some(cpu as u32);
                self.rest(cpus, IdleEvent::Migrated(to))
            }
            Serving::Parks => self.park(cpus),
            Serving::Announces => {
                self.said.asleep = true;
                self.server.phase = Serving::LooksAgain;
                Act::Run(FENCE)
            }
            Serving::LooksAgain => {
                if self.lanes.iter().any(|lane| lane.request.is_some()) {
                    self.said = Said { asleep: false, cpu: Some(cpu as u32) };
                    return Act::Run(PROBE);
                }
                self.seen.parks += 1;
                let said = self.said.cpu.unwrap_or(u32::MAX);
                self.server.phase = Serving::Sleeps { said, since: now };
                Act::Sleep(None)
            }
            Serving::Sleeps { said, since } => {
                // The caller that has moved it has said so for it.
                let cpu = cpu as u32;
                self.said = Said { asleep: false, cpu: Some(cpu) };
                let slept = Duration::from_nanos(now - since);
                let woken = Wakeup { said, cpu, slept, reason: WakeReason::Notified };
                self.policy(cpus, |poller, trace, facts| trace.woke(poller, woken, facts));
                (self.server.slept, self.server.round) = (true, 0);
                Act::Run(PROBE)
            }
        }
    }

    fn probe(&mut self, cpus: &mut Cpus) -> Act {
        let waits = |lanes: &[CallLane], lane: usize| lanes[lane].request.is_some();
        let donors = self.policy(cpus, |poller, trace, facts| {
            trace.take_donors(poller, facts, |lane| waits(facts.lanes, lane))
        });
        let (next, count) = (self.server.next, self.lanes.len());
        let mut others = (next..next + count).map(|at| at % count);
        let Some(lane) = donors.or_else(|| others.find(|lane| waits(&self.lanes, *lane))) else {
            self.server.round += 1;
            let round = self.server.round;
            let stacks = StackSupply::Enough;
            self.server.phase = Serving::Steps(IdleEvent::NothingFound { round, stacks });
            return Act::Run(PROBE);
        };
        (self.server.round, self.server.next) = (0, lane + 1);
        self.server.phase = Serving::Serves { lane };
        let found = (lane, lane as u64);
        match self.policy(cpus, |poller, trace, facts| trace.found(poller, found, facts)) {
            BeforeServing::Serve => Act::Run(PROBE),
            BeforeServing::GiveBack(None) => Act::Yield,
            BeforeServing::GiveBack(Some(to)) => {
                self.migrates(cpus, &to);
                self.policy(cpus, |poller, trace, facts| trace.migrated(poller, to, facts));
                Act::Run(PROBE)
            }
        }
    }

    fn migrates(&mut self, cpus: &mut Cpus, to: &CpuSet) {
        self.seen.migrations += 1;
        self.said.cpu = None;
        self.confine(cpus, to.clone());
    }

    /// The server confines itself.
    fn confine(&mut self, cpus: &mut Cpus, to: CpuSet) {
        if !to.iter().all(|cpu| self.home.contains(cpu)) {
            self.strange = Some(to.clone());
        }
        cpus.confine(SERVER, to);
    }

    fn reply(&mut self, cpus: &mut Cpus, lane: usize, request: Request) {
        self.used_at_last_call = cpus.used(SERVER);
        let at = &mut self.lanes[lane];
        (at.reply, at.donated) = (true, request.donates);
        if std::mem::take(&mut at.asleep) {
            cpus.wake(1 + lane, cpus.place(SERVER).1);
        }
        self.seen.donated += u64::from(request.donates);
        let came = match (std::mem::take(&mut self.server.slept), request.donates) {
            (true, true) => Came::HandOff,
            (true, false) => Came::Wake,
            (false, true) => Came::Donation,
            (false, false) => Came::Spin,
        };
        let stay = if request.asks_to_stay { StayWish::Stay } else { StayWish::Sleep };
        let donated = request.donates.then_some(stay);
        let served = ServedRequest {
            lane: Some(lane),
            client: lane as u64,
            came,
            donated,
            wish: PollWish::Poll,
        };
        self.policy(cpus, |poller, trace, facts| trace.served(poller, served, facts));
    }

    /// What the policy has it do after this event.
    fn rest(&mut self, cpus: &mut Cpus, event: IdleEvent) -> Act {
        let now = cpus.place(SERVER).1;
        let step = self.policy(cpus, |poller, trace, facts| trace.step(poller, event, facts));
        self.server.phase = match step {
            IdleStep::PollAgain => return Act::Run(PROBE),
            IdleStep::Park => Serving::Parks,
            IdleStep::Yield | IdleStep::YieldToServer(_) => {
                self.server.phase = Serving::Yielded { since: now };
                return Act::Yield;
            }
            IdleStep::YieldToCallers => {
                self.seen.yields += 1;
                self.server.phase = Serving::YieldedToCallers { offers: 1 };
                return Act::Yield;
            }
            IdleStep::Migrate(to) => {
                self.migrates(cpus, &to);
                Serving::Migrates(to)
            }
        };
        Act::Run(PROBE)
    }

    fn park(&mut self, cpus: &mut Cpus) -> Act {
        let place = self.policy(cpus, |poller, trace, facts| trace.parks(poller, facts));
        self.server.phase = Serving::Announces;
        match place {
            Parked::Here => self.said.cpu = Some(cpus.place(SERVER).0 as u32),
            Parked::Near(cpu) => {
                self.seen.near += 1;
                self.confine(cpus, CpuSet::only(cpu as usize));
                self.said.cpu = Some(cpu);
            }
            Parked::Home(home) => {
                self.confine(cpus, home);
                self.said.cpu = None;
            }
        }
        Act::Run(FENCE)
    }

    /// A step of a caller.
    fn call(&mut self, cpus: &mut Cpus, number: usize) -> Act {
        let thread = 1 + number;
        let (cpu, now) = cpus.place(thread);
        let pause = self.callers[number].plan.pause;
        let lies = self.callers[number].plan.lies;
        let there = self.lanes[number].reply;
        match std::mem::replace(&mut self.callers[number].phase, Calling::Calls) {
            Calling::Pauses if lies => Act::Run(1 + self.dice.below(2 * pause)),
            Calling::Pauses if pause > 0 => Act::Sleep(Some(now + 1 + self.dice.below(2 * pause))),
            Calling::Pauses => Act::Run(PROBE),
            Calling::Calls => self.send(cpus, number, (cpu as u32, now)),
            Calling::HandsOver { offers, since, asked } => {
                let took = now - since;
                if !there && offers < 2 && took < 20_000 {
                    let offers = offers + 1;
                    self.callers[number].phase = Calling::HandsOver { offers, since, asked };
                    return Act::Yield;
                }
                let caller = &mut self.callers[number];
                let yielded = if there { Yielded::Arrived } else { Yielded::Nothing };
                caller.hand_over.learn(yielded, Duration::from_nanos(took), || now / 4_000_000);
                if asked {
                    caller.stay.learn(&caller.hand_over);
                }
                caller.phase = if there { Calling::Ends } else { Calling::Announces };
                Act::Run(PROBE)
            }
            Calling::Spins { since } => {
                let caller = &mut self.callers[number];
                let spun = Duration::from_nanos(now - since);
                caller.phase = if there {
                    caller.budget.fruitful();
                    Calling::Ends
                } else if self.said.asleep || spun >= caller.budget.budget(Pacing::Adaptive) {
                    caller.budget.fruitless();
                    Calling::Announces
                } else {
                    Calling::Spins { since }
                };
                Act::Run(PROBE)
            }
            // A liar computes until its reply is there.
            Calling::Announces if lies => {
                let phase = if there { Calling::Ends } else { Calling::Announces };
                self.callers[number].phase = phase;
                Act::Run(LIES)
            }
            Calling::Announces => {
                self.lanes[number].asleep = true;
                self.callers[number].phase = Calling::LooksAgain;
                Act::Run(FENCE)
            }
            Calling::LooksAgain => {
                if there {
                    self.lanes[number].asleep = false;
                    self.callers[number].phase = Calling::Ends;
                    return Act::Run(PROBE);
                }
                if self.said.asleep {
                    self.bring(cpus, number, cpu as u32);
                    cpus.wake(SERVER, now);
                }
                self.callers[number].phase = Calling::Announces;
                Act::Sleep(Some(now + LONGEST_SLEEP))
            }
            Calling::Ends => self.end(number, now),
        }
    }

    fn send(&mut self, cpus: &mut Cpus, number: usize, (cpu, now): (u32, u64)) -> Act {
        let asleep = self.said.asleep;
        let lies = self.callers[number].plan.lies;
        self.callers[number].begun = now;
        let is_here = if asleep {
            self.bring(cpus, number, cpu)
        } else {
            let caller = &self.callers[number];
            (caller.placed == Some(cpu) || !caller.plan.may_bring) && self.said.cpu == Some(cpu)
        };
        let caller = &mut self.callers[number];
        let donates = is_here || lies;
        let asks_to_stay = lies || donates && caller.stay.is_wanted(&caller.hand_over);
        self.lanes[number].request = Some(Request { donates, asks_to_stay });
        self.lanes[number].reply = false;
        if lies {
            self.lanes[number].near = Some(self.dice.below(8) as u32);
        }
        if asleep {
            cpus.wake(SERVER, now);
        }
        let hands_over = donates && (asleep || asks_to_stay);
        let offer = hands_over.then(|| caller.hand_over.offer());
        caller.phase = match offer {
            Some(Offer::Timed | Offer::Untimed) => {
                caller.phase = Calling::HandsOver { offers: 1, since: now, asked: asks_to_stay };
                return Act::Yield;
            }
            Some(Offer::LeftOut) => Calling::Announces,
            None if asleep => Calling::Announces,
            None => Calling::Spins { since: now },
        };
        Act::Run(MESSAGE)
    }

    /// Brings the sleeping server to this CPU, or asks it to come. Whether it is there.
    fn bring(&mut self, cpus: &mut Cpus, number: usize, cpu: u32) -> bool {
        let caller = &mut self.callers[number];
        if caller.plan.may_bring {
            cpus.confine(SERVER, CpuSet::only(cpu as usize));
            caller.placed = Some(cpu);
            self.said.cpu = Some(cpu);
            return true;
        }
        self.lanes[number].near = Some(cpu);
        self.said.cpu == Some(cpu)
    }

    fn end(&mut self, number: usize, now: u64) -> Act {
        let caller = &mut self.callers[number];
        if !caller.plan.lies {
            self.seen.times.push(now - caller.begun);
        }
        caller.left -= 1;
        if caller.left == 0 {
            return Act::End;
        }
        caller.phase = Calling::Pauses;
        Act::Run(MESSAGE)
    }
}

/// Runs it.
///
/// # Errors
/// What was found wrong.
pub fn run(calls: &Calls) -> Result<(Seen, Trace), Failure> {
    let dice = Dice::new(calls.seed);
    let mut cpus = Cpus::new(calls.cpus, Dice::new(dice.any()));
    let all = (1..calls.cpus).fold(CpuSet::only(0), |all, cpu| all.with(cpu));
    cpus.begin(calls.home.clone());
    calls.callers.iter().for_each(|caller| _ = cpus.begin(caller.allowed.clone()));
    (0..calls.computing).for_each(|_| _ = cpus.begin(all.clone()));
    let base = Instant::now();
    let (poller, trace) = Trace::begin(calls.pacing, calls.home.clone());
    let caller = |plan: &CallerPlan| Caller {
        plan: plan.clone(),
        phase: Calling::Pauses,
        left: plan.calls,
        begun: 0,
        placed: None,
        budget: SpinBudget::default(),
        hand_over: HandOver::default(),
        stay: Stay::default(),
    };
    let phase = Serving::Probes;
    let mut world = World {
        base,
        lanes: calls.callers.iter().map(|_| CallLane::default()).collect(),
        said: Said::default(),
        server: Server { poller, trace, phase, round: 0, slept: false, next: 0 },
        callers: calls.callers.iter().map(caller).collect(),
        dice,
        handler: calls.handler,
        seen: Seen::default(),
        used_at_last_call: 0,
        home: calls.home.clone(),
        strange: None,
    };
    let threads = 1 + calls.callers.len() + calls.computing;
    let longest = (threads as u64 + 2) * 4 * SLICE + 2 * LONGEST_SLEEP;
    let fails = |world: &World, report: String| Failure { report, step: world.seen.steps };
    while let Some(thread) = cpus.turn() {
        world.seen.steps += 1;
        if world.seen.steps > MOST_STEPS {
            return Err(fails(
                &world,
                format!("no end at {:?}: {:?} {:?}", cpus, world.callers, world.server.phase),
            ));
        }
        let act = match thread {
            SERVER => world.serve(&mut cpus),
            _ if thread <= calls.callers.len() => world.call(&mut cpus, thread - 1),
            _ if world.callers.iter().all(|caller| caller.left == 0) => Act::End,
            _ => Act::Run(COMPUTES),
        };
        cpus.does(thread, act);
        if let Some(strange) = world.strange.take() {
            let what = format!("the server moves to {strange:?}, which is not its own");
            return Err(fails(&world, what));
        }
        if let Some(time) = world.seen.times.last().filter(|time| **time > longest) {
            return Err(fails(&world, format!("a call took {time} ns")));
        }
        let polled = cpus.used(SERVER) - world.used_at_last_call;
        let is_over = world.callers.iter().all(|caller| caller.left == 0);
        if is_over && calls.pacing != Pacing::Poll && polled > LAST_POLL {
            return Err(fails(&world, format!("the server polls for {polled} ns after all calls")));
        }
    }
    if let Some(left) = world.callers.iter().position(|caller| caller.left > 0) {
        let what = format!("caller {left} waits for ever: {world:?}");
        return Err(fails(&world, what));
    }
    world.seen.last_poll = cpus.used(SERVER) - world.used_at_last_call;
    Ok((world.seen, world.server.trace))
}
