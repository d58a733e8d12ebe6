//! Traces of the idle policy: what a virtual processor does in the situations for which it was
//! made.

use super::*;
use std::cell::Cell;

/// What is so, of what a poller asks.
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

/// Facts that do not change, and a clock that goes on each time that it is read.
pub(super) struct FixedFacts {
    now: Cell<Instant>,
    pub(super) clock_step: Duration,
    facts: Vec<Fact>,
    cpu: u32,
    allowed: Option<CpuSet>,
    donor: Option<usize>,
}

impl FixedFacts {
    pub(super) fn at(now: Instant) -> Self {
        let clock_step = Duration::from_micros(1);
        let now = Cell::new(now);
        Self { now, clock_step, facts: Vec::new(), cpu: 0, allowed: None, donor: None }
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
    Poller::new(Pacing::Adaptive, Some(both()))
}

/// The step in this round after nothing was found.
fn rest(poller: &mut Poller, round: u32, facts: &FixedFacts) -> IdleStep {
    let stacks = StackSupply::Enough;
    poller.step(IdleEvent::NothingFound { round, stacks }, None, facts)
}

/// Number of rounds until it does something else than to poll, and what that is.
fn polls(poller: &mut Poller, facts: &FixedFacts) -> (u32, IdleStep) {
    let steps = (1..1 << 20).map(|round| (round, rest(poller, round, facts)));
    let mut others = steps.filter(|(_, step)| *step != IdleStep::PollAgain);
    others.next().unwrap_or_else(|| panic!("polls for ever: {poller:?}"))
}

fn serve(poller: &mut Poller, donated: Option<StayWish>) {
    poller.found(false);
    poller.served(ServedRequest { lane: Some(0), donated, wish: PollWish::Poll });
}

fn wake(poller: &mut Poller, slept: Duration, facts: &FixedFacts) {
    poller.woke(Wakeup { said: facts.cpu, cpu: facts.cpu, slept }, facts);
}

fn parks_home(poller: &mut Poller) -> bool {
    matches!(poller.parks(), ParkPlace::Home(_))
}

/// A caller brings the server to its CPU, call by call, and calls no more then: the server goes
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
    // It polls for as long as it takes to move back, by a clock of a microsecond a reading.
    let (rounds, step) = polls(&mut server, &facts);
    assert_eq!(step, IdleStep::Park);
    assert_eq!(u128::from(rounds / ROUNDS_PER_CLOCK), MOVE.as_micros());
    assert!(!parks_home(&mut server) && parks_home(&mut server));
    // A server with one CPU cannot move: it stays, and sleeps.
    let mut server = Poller::new(Pacing::Adaptive, Some(CpuSet::only(0)));
    serve(&mut server, Some(StayWish::Sleep));
    (0..=QUICK_WAKES).for_each(|_| wake(&mut server, QUICKLY, &facts));
    serve(&mut server, Some(StayWish::Sleep));
    assert_eq!(rest(&mut server, 1, &facts), IdleStep::Park);
}

/// A caller that has given its CPU has it back before others' requests are served there.
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
    // The server is not confined, so the caller's word does not move it.
    let free =
        FixedFacts { allowed: Some(both()), ..idle }.with(&[Fact::CallerHere, Fact::CallerRunning]);
    assert_eq!(server.serves(0, &free), BeforeServing::Serve);
    assert_eq!(server.cpu, Cpu::Own);
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
    caller.found(true);
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
    assert_eq!(micros, (MOVE + LONGEST).as_micros());
    let (rounds, _) = polls(&mut caller, &moved);
    assert!(u128::from(rounds / ROUNDS_PER_CLOCK) <= LONGEST.as_micros());
}

/// A processor does not poll on its only CPU if the peer that it waits for needs that CPU.
#[test]
fn one_cpu() {
    let facts = FixedFacts::at(Instant::now()).with(&[Fact::Calling, Fact::Shared]);
    let mut pinned = Poller::new(Pacing::Adaptive, Some(CpuSet::only(0)));
    assert_eq!(rest(&mut pinned, 1, &facts), IdleStep::Park);
    let elsewhere = facts.with(&[Fact::Calling]);
    assert_eq!(rest(&mut pinned, 1, &elsewhere), IdleStep::PollAgain);
    // Senders of messages may be there, for all that it knows.
    let posts = elsewhere.with(&[Fact::Posts]);
    assert_eq!(rest(&mut pinned, 2, &posts), IdleStep::Yield);
    // A processor that never sleeps yields instead.
    let mut polling = Poller::new(Pacing::Poll, Some(CpuSet::only(0)));
    let shared = posts.with(&[Fact::Shared]);
    assert_eq!(rest(&mut polling, 1, &shared), IdleStep::Yield);
    let untaken = IdleEvent::Yielded(Duration::ZERO);
    assert_eq!(polling.step(untaken, None, &shared), IdleStep::PollAgain);
    assert_eq!(rest(&mut polling, 2, &shared), IdleStep::PollAgain);
}
