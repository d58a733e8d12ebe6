//! Traces of the idle policy: the steps of a virtual processor in the situations that the policy
//! was made for.

use super::near::LEAST_AT_HOME;
use super::*;
use std::cell::Cell;

/// A fact that a poller asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fact {
    Calling,
    Reply,
    ServerElsewhere,
    Lanes,
    Posts,
    OnlyCallersHere,
    Shared,
    CallerHere,
    CallerRunning,
}

/// Facts that do not change, and a clock that advances each time it is read.
pub(super) struct FixedFacts {
    now: Cell<Instant>,
    pub(super) clock_step: Duration,
    facts: Vec<Fact>,
    cpu: u32,
    allowed: Option<CpuSet>,
    donor: Option<usize>,
    wished_cpu: Option<u32>,
}

impl FixedFacts {
    pub(super) fn at(now: Instant) -> Self {
        let clock_step = Duration::from_micros(1);
        let now = Cell::new(now);
        Self {
            now,
            clock_step,
            facts: Vec::new(),
            cpu: 0,
            allowed: None,
            donor: None,
            wished_cpu: None,
        }
    }

    pub(super) fn with(self, facts: &[Fact]) -> Self {
        Self { facts: facts.to_vec(), ..self }
    }

    fn is(&self, fact: Fact) -> bool {
        self.facts.contains(&fact)
    }
}

impl Facts for FixedFacts {
    fn now(&self) -> Instant {
        self.now.set(self.now.get() + self.clock_step);
        self.now.get()
    }
    fn tick(&self) -> u64 {
        0
    }
    fn cpu(&self) -> u32 {
        self.cpu
    }
    fn allowed(&self) -> Option<CpuSet> {
        self.allowed.clone()
    }
    fn is_calling(&self) -> bool {
        self.is(Fact::Calling)
    }
    fn has_reply(&self) -> bool {
        self.is(Fact::Reply)
    }
    fn has_server_elsewhere(&self, _: u32) -> bool {
        self.is(Fact::ServerElsewhere)
    }
    fn has_lanes(&self) -> bool {
        self.is(Fact::Lanes)
    }
    fn has_posts(&self) -> bool {
        self.is(Fact::Posts)
    }
    fn has_only_callers_on(&self, _: u32) -> bool {
        self.is(Fact::OnlyCallersHere)
    }
    fn shares(&self, _: u32) -> bool {
        self.is(Fact::Shared)
    }
    fn donor(&self, _: u32) -> Option<usize> {
        self.donor
    }
    fn wished_cpu(&self, _: usize) -> Option<u32> {
        self.wished_cpu
    }
    fn is_caller_on(&self, _: usize, _: u32) -> bool {
        self.is(Fact::CallerHere)
    }
    fn is_caller_running(&self, _: usize) -> bool {
        self.is(Fact::CallerRunning)
    }
}

const QUICKLY: Duration = Duration::from_micros(5);
const SLOWLY: Duration = Duration::from_millis(5);

fn both() -> CpuSet {
    CpuSet::only(0).with(1)
}

fn adaptive() -> Poller {
    Poller::new(Pacing::Adaptive, Some(both()), WaitCosts::USUAL)
}

/// The step in this round after nothing was found.
fn rest(poller: &mut Poller, round: u32, facts: &FixedFacts) -> IdleStep {
    let stacks = StackSupply::Enough;
    poller.step(IdleEvent::NothingFound { round, stacks }, None, facts)
}

/// Number of rounds until it does something other than polling, and that step.
fn polls(poller: &mut Poller, facts: &FixedFacts) -> (u32, IdleStep) {
    let steps = (1..1 << 20).map(|round| (round, rest(poller, round, facts)));
    let mut others = steps.filter(|(_, step)| *step != IdleStep::PollAgain);
    others.next().unwrap_or_else(|| panic!("polls for ever: {poller:?}"))
}

fn serve(poller: &mut Poller, donated: Option<StayWish>) {
    poller.found();
    serve_client(poller, 0, donated);
}

fn serve_client(poller: &mut Poller, client: u64, donated: Option<StayWish>) {
    let (came, wish) = (Arrival::Wake, PollWish::Poll);
    poller.served(ServedRequest { lane: Some(0), client, came, donated, wish });
}

fn wake(poller: &mut Poller, slept: Duration, facts: &FixedFacts) {
    let reason = WakeReason::Notified;
    poller.woke(Wakeup { said: facts.cpu, cpu: facts.cpu, slept, reason }, facts);
}

fn parks_home(poller: &mut Poller) -> bool {
    let facts = FixedFacts::at(Instant::now());
    matches!(poller.parks(&facts), ParkPlace::Home(_))
}

/// A caller moves the server to its CPU, call by call, and then calls no more: the server goes
/// home.
#[test]
fn hand_off() {
    let mut server = adaptive();
    let facts = FixedFacts { allowed: Some(CpuSet::only(0)), ..FixedFacts::at(Instant::now()) }
        .with(&[Fact::Lanes, Fact::CallerHere]);
    assert!(!parks_home(&mut server));
    for _ in 0..3 {
        wake(&mut server, SLOWLY, &facts);
        serve(&mut server, Some(StayWish::Sleep));
        assert_eq!(rest(&mut server, 1, &facts), IdleStep::Park);
        assert!(!parks_home(&mut server));
    }
    // A wake for a call that was already answered.
    wake(&mut server, SLOWLY, &facts);
    assert!(!parks_home(&mut server));
    wake(&mut server, SLOWLY, &facts);
    assert!(parks_home(&mut server));
}

/// A caller that asks the server to stay finds it awake.
#[test]
fn stay() {
    let mut server = adaptive();
    let facts = FixedFacts::at(Instant::now()).with(&[Fact::Lanes, Fact::OnlyCallersHere]);
    serve(&mut server, Some(StayWish::Stay));
    assert_eq!(rest(&mut server, 1, &facts), IdleStep::YieldToCallers);
    let arrived = IdleEvent::CallersYielded(Yielded::Arrived);
    assert_eq!(server.step(arrived, None, &facts), IdleStep::PollAgain);
    serve(&mut server, Some(StayWish::Stay));
    assert_eq!(rest(&mut server, 1, &facts), IdleStep::YieldToCallers);
    let nothing = IdleEvent::CallersYielded(Yielded::Nothing);
    assert_eq!(server.step(nothing, None, &facts), IdleStep::Park);
    // A caller elsewhere would wait for the server until the kernel lets it run here.
    serve(&mut server, Some(StayWish::Stay));
    assert_eq!(rest(&mut server, 1, &facts.with(&[Fact::Lanes])), IdleStep::Park);
}

/// Calls that follow each other closely are served better from another CPU. The server polls there,
/// and goes home when no calls come.
#[test]
fn close_calls() {
    let mut server = adaptive();
    let facts = FixedFacts::at(Instant::now()).with(&[Fact::Lanes]);
    for _ in 1..QUICK_WAKES {
        wake(&mut server, QUICKLY, &facts);
        serve(&mut server, Some(StayWish::Sleep));
        assert_eq!(rest(&mut server, 1, &facts), IdleStep::Park);
        assert!(!parks_home(&mut server));
    }
    wake(&mut server, QUICKLY, &facts);
    serve(&mut server, Some(StayWish::Sleep));
    let other = CpuSet::only(1);
    assert_eq!(rest(&mut server, 1, &facts), IdleStep::Migrate(other.clone()));
    assert_eq!(server.step(IdleEvent::Migrated(other), None, &facts), IdleStep::PollAgain);
    assert_eq!(server.cpu, Cpu::Refuge { cpus: CpuSet::only(1), parks_left: 1 });
    // It polls for as long as it takes to move back; each reading of the clock takes a microsecond.
    let (rounds, step) = polls(&mut server, &facts);
    assert_eq!(step, IdleStep::Park);
    assert_eq!(u128::from(rounds / ROUNDS_PER_CLOCK), WaitCosts::USUAL.server_moves.as_micros());
    assert!(!parks_home(&mut server) && parks_home(&mut server));
    // A server with one CPU cannot move: it stays, and sleeps.
    let mut server = Poller::new(Pacing::Adaptive, Some(CpuSet::only(0)), WaitCosts::USUAL);
    serve(&mut server, Some(StayWish::Sleep));
    (0..=QUICK_WAKES).for_each(|_| wake(&mut server, QUICKLY, &facts));
    serve(&mut server, Some(StayWish::Sleep));
    assert_eq!(rest(&mut server, 1, &facts), IdleStep::Park);
}

/// A caller that has given its CPU gets it back before others' requests are served there.
#[test]
fn give_back() {
    let facts = FixedFacts { allowed: Some(CpuSet::only(0)), ..FixedFacts::at(Instant::now()) };
    let running = facts.with(&[Fact::CallerHere, Fact::CallerRunning]);
    let mut server = adaptive();
    serve(&mut server, Some(StayWish::Sleep));
    let elsewhere = BeforeServing::GiveBack(Some(CpuSet::only(1)));
    assert_eq!(server.serves(0, &running), elsewhere);
    // The caller has nothing to run: its own requests are served.
    let idle = running.with(&[Fact::CallerHere]);
    let mut server = adaptive();
    serve(&mut server, Some(StayWish::Sleep));
    assert_eq!(server.serves(0, &idle), BeforeServing::Serve);
    // The server is not confined, so the caller's report does not move it.
    let free =
        FixedFacts { allowed: Some(both()), ..idle }.with(&[Fact::CallerHere, Fact::CallerRunning]);
    assert_eq!(server.serves(0, &free), BeforeServing::Serve);
    assert_eq!(server.cpu, Cpu::Kept { parks_left: PARKS_WITHOUT_DONOR });
}

/// A caller without ready threads gives its CPU to a server, and sleeps if that brings nothing.
/// When the server has moved to a CPU of its own, the caller polls for it.
#[test]
fn lending() {
    let facts = FixedFacts::at(Instant::now()).with(&[Fact::Calling]);
    let mut caller = adaptive();
    caller.gave_cpu();
    assert_eq!(rest(&mut caller, 1, &facts), IdleStep::YieldToServer(Offer::Untimed));
    let arrived = IdleEvent::ServerYielded(Yielded::Arrived, Duration::ZERO);
    assert_eq!(caller.step(arrived, None, &facts), IdleStep::PollAgain);
    caller.found();
    caller.found_replies();
    caller.gave_cpu();
    assert_eq!(rest(&mut caller, 1, &facts), IdleStep::YieldToServer(Offer::Untimed));
    let nothing = IdleEvent::ServerYielded(Yielded::Nothing, Duration::ZERO);
    assert_eq!(caller.step(nothing, None, &facts), IdleStep::Park);
    assert!(!parks_home(&mut caller));
    // The next yield is left out.
    wake(&mut caller, SLOWLY, &facts);
    caller.gave_cpu();
    assert_eq!(rest(&mut caller, 1, &facts), IdleStep::Park);
    // It polls for the longest budget, and for the move before that.
    let moved = facts.with(&[Fact::Calling, Fact::ServerElsewhere]);
    let (rounds, step) = polls(&mut caller, &moved);
    assert_eq!(step, IdleStep::Park);
    let micros = u128::from(rounds / ROUNDS_PER_CLOCK);
    assert_eq!(micros, (WaitCosts::USUAL.server_moves + LONGEST).as_micros());
    let (rounds, _) = polls(&mut caller, &moved);
    assert!(u128::from(rounds / ROUNDS_PER_CLOCK) <= LONGEST.as_micros());
}

/// A processor does not poll on its only CPU if the peer that it waits for needs that CPU.
#[test]
fn one_cpu() {
    let facts = FixedFacts::at(Instant::now()).with(&[Fact::Calling, Fact::Shared]);
    let mut pinned = Poller::new(Pacing::Adaptive, Some(CpuSet::only(0)), WaitCosts::USUAL);
    assert_eq!(rest(&mut pinned, 1, &facts), IdleStep::Park);
    let elsewhere = facts.with(&[Fact::Calling]);
    assert_eq!(rest(&mut pinned, 1, &elsewhere), IdleStep::PollAgain);
    // Senders of messages may be on this CPU.
    let posts = elsewhere.with(&[Fact::Posts]);
    assert_eq!(rest(&mut pinned, 2, &posts), IdleStep::Yield);
    // A processor that never sleeps yields instead.
    let mut polling = Poller::new(Pacing::Poll, Some(CpuSet::only(0)), WaitCosts::USUAL);
    let shared = posts.with(&[Fact::Shared]);
    assert_eq!(rest(&mut polling, 1, &shared), IdleStep::Yield);
    let untaken = IdleEvent::Yielded(Duration::ZERO);
    assert_eq!(polling.step(untaken, None, &shared), IdleStep::PollAgain);
    assert_eq!(rest(&mut polling, 2, &shared), IdleStep::PollAgain);
    // Another program has taken two yields for a time slice each.
    let slice = Duration::from_millis(4);
    let busy = FixedFacts { clock_step: slice, ..FixedFacts::at(Instant::now()) };
    let busy = busy.with(&[Fact::Calling, Fact::Posts]);
    for (pacing, then) in [(Pacing::Adaptive, IdleStep::Park), (Pacing::Poll, IdleStep::PollAgain)]
    {
        let mut poller = Poller::new(pacing, Some(CpuSet::only(0)), WaitCosts::USUAL);
        assert_eq!(rest(&mut poller, 1, &busy), IdleStep::Yield);
        let steps = [(); 2].map(|()| poller.step(IdleEvent::Yielded(slice), None, &busy));
        assert_eq!(steps, [IdleStep::PollAgain, then]);
    }
}

/// A caller that may not move the server makes it park on the caller's CPU. The server goes home
/// when that caller does not call any more.
#[test]
fn near_a_caller() {
    let mut server = adaptive();
    let stays = FixedFacts::at(Instant::now()).with(&[Fact::Lanes]);
    let wishes = FixedFacts { wished_cpu: Some(1), cpu: 1, ..FixedFacts::at(Instant::now()) }
        .with(&[Fact::Lanes]);
    serve(&mut server, None);
    assert_eq!(server.parks(&wishes), ParkPlace::Near(1));
    for _ in 0..3 {
        wake(&mut server, SLOWLY, &wishes);
        serve(&mut server, Some(StayWish::Sleep));
        assert_eq!(rest(&mut server, 1, &wishes), IdleStep::Park);
        // It is there already.
        assert_eq!(server.parks(&wishes), ParkPlace::Here);
    }
    wake(&mut server, SLOWLY, &wishes);
    assert!(!parks_home(&mut server) && parks_home(&mut server));
    // It parks neither on a foreign CPU, nor near a caller if it has only one CPU.
    let strange = FixedFacts { wished_cpu: Some(2), ..stays };
    serve(&mut server, None);
    assert_eq!(server.parks(&strange), ParkPlace::Here);
    let mut pinned = Poller::new(Pacing::Adaptive, Some(CpuSet::only(0)), WaitCosts::USUAL);
    serve(&mut pinned, None);
    assert_eq!(pinned.parks(&wishes), ParkPlace::Here);
}

/// After any other event a server near a caller goes home, and stays there for longer each time,
/// even if the caller also donates its CPU.
#[test]
fn near_a_caller_beside_others() {
    let mut server = adaptive();
    let wishes = FixedFacts { wished_cpu: Some(1), cpu: 1, ..FixedFacts::at(Instant::now()) };
    let parks_near = |server: &mut Poller| {
        serve_client(server, 1, None);
        matches!(server.parks(&wishes), ParkPlace::Near(_))
    };
    let others: [fn(&mut Poller, &FixedFacts); 8] = [
        |server, _| serve_client(server, 2, None),
        // Another thread of the same caller, on another CPU.
        |server, _| serve_client(server, 1, None),
        // Another client, after the caller itself.
        |server, _| {
            serve_client(server, 1, Some(StayWish::Sleep));
            serve_client(server, 2, None);
        },
        |server, _| server.found_request(|| 2),
        |server, _| server.thread_goes_on(),
        |server, _| server.found_messages(),
        |server, _| server.found_replies(),
        |server, facts| {
            let (cpu, reason) = (facts.cpu, WakeReason::Deadline);
            server.woke(Wakeup { said: cpu, cpu, slept: SLOWLY, reason }, facts);
        },
    ];
    assert!(parks_near(&mut server));
    let intervals = (0..).map(|at| (LEAST_AT_HOME << (2 * at).min(14)) as usize);
    for (other, without) in others.into_iter().zip(intervals) {
        other(&mut server, &wishes);
        // Further disturbances before it parks make no difference.
        (0..9).for_each(|_| serve_client(&mut server, 2, None));
        serve_client(&mut server, 1, Some(StayWish::Sleep));
        assert!(matches!(server.parks(&wishes), ParkPlace::Home(_)));
        // That was one of the parks at home.
        let left_out = (1..).position(|_| parks_near(&mut server)).map(|count| count + 1);
        assert_eq!(left_out, Some(without));
        serve_client(&mut server, 1, Some(StayWish::Sleep));
        assert_eq!(server.parks(&wishes), ParkPlace::Here);
    }
}

/// A call that comes while the server moves is no disturbance: it found the server awake.
#[test]
fn near_a_quick_caller() {
    let mut server = adaptive();
    let wishes = FixedFacts { wished_cpu: Some(1), cpu: 1, ..FixedFacts::at(Instant::now()) };
    serve_client(&mut server, 1, None);
    assert_eq!(server.parks(&wishes), ParkPlace::Near(1));
    let (came, wish) = (Arrival::Spin, PollWish::Poll);
    server.served(ServedRequest { lane: Some(0), client: 1, came, donated: None, wish });
    for _ in 0..3 {
        assert_eq!(server.parks(&wishes), ParkPlace::Here);
        serve_client(&mut server, 1, Some(StayWish::Sleep));
    }
}

/// A caller that changes its CPU each time makes the server stay at home.
#[test]
fn near_a_restless_caller() {
    let mut server = adaptive();
    let at = |cpu| FixedFacts { wished_cpu: Some(cpu), cpu, ..FixedFacts::at(Instant::now()) };
    let near = (0..1000).filter(|call| {
        serve_client(&mut server, 1, None);
        matches!(server.parks(&at(call % 2)), ParkPlace::Near(_))
    });
    assert!(near.count() < 10);
}
