//! Explores the idle policy: each event in each state that can be reached, with each answer of each
//! fact. Facts are reports of other programs and of the kernel, so an answer may contradict the
//! previous one.

use super::traces::{Fact, FixedFacts};
use super::*;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;

const EARLY: Duration = Duration::from_micros(20);

/// The choices of one run, which are made in turns: the run is repeated until all have been made.
#[derive(Default)]
struct ChoiceTape {
    made: RefCell<Vec<(usize, usize)>>,
    at: Cell<usize>,
}

impl ChoiceTape {
    /// Makes one of `count` choices. Returns its number.
    fn choose(&self, count: usize) -> usize {
        let (at, mut made) = (self.at.replace(self.at.get() + 1), self.made.borrow_mut());
        if at == made.len() {
            made.push((0, count));
        }
        made[at].0
    }

    fn of<T: Clone>(&self, choices: &[T]) -> T {
        choices[self.choose(choices.len())].clone()
    }

    fn yes(&self) -> bool {
        self.choose(2) == 1
    }

    /// Returns `false` if all choices have been made.
    fn next(&self) -> bool {
        let mut made = self.made.borrow_mut();
        self.at.set(0);
        while let Some((taken, count)) = made.pop() {
            if taken + 1 < count {
                made.push((taken + 1, count));
                return true;
            }
        }
        false
    }
}

/// Facts whose answers are choices.
struct AnyFacts<'a> {
    choices: &'a ChoiceTape,
    start: Instant,
    now: Cell<Instant>,
}

impl<'a> AnyFacts<'a> {
    fn new(choices: &'a ChoiceTape, start: Instant) -> Self {
        Self { choices, start, now: Cell::new(start) }
    }
}

impl Facts for AnyFacts<'_> {
    fn now(&self) -> Instant {
        let passed = self.choices.of(&[Duration::ZERO, 2 * EARLY, 10 * EARLY]);
        self.now.set(self.start + passed);
        self.now.get()
    }
    fn tick(&self) -> u64 {
        self.choices.choose(2) as u64
    }
    fn cpu(&self) -> u32 {
        self.choices.choose(2) as u32
    }
    fn allowed(&self) -> Option<CpuSet> {
        // Sets are large: only the chosen one is made.
        match self.choices.choose(4) {
            0 => None,
            3 => Some(CpuSet::only(0).with(1)),
            cpu => Some(CpuSet::only(cpu - 1)),
        }
    }
    fn is_calling(&self) -> bool {
        self.choices.yes()
    }
    fn has_reply(&self) -> bool {
        self.choices.yes()
    }
    fn has_server_elsewhere(&self, _: u32) -> bool {
        self.choices.yes()
    }
    fn has_lanes(&self) -> bool {
        self.choices.yes()
    }
    fn has_posts(&self) -> bool {
        self.choices.yes()
    }
    fn has_only_callers_on(&self, _: u32) -> bool {
        self.choices.yes()
    }
    fn shares(&self, _: u32) -> bool {
        self.choices.yes()
    }
    fn donor(&self, _: u32) -> Option<usize> {
        self.choices.of(&[None, Some(0), Some(1)])
    }
    fn wished_cpu(&self, _: usize) -> Option<u32> {
        self.choices.of(&[None, Some(0), Some(1), Some(u32::MAX)])
    }
    fn is_caller_on(&self, _: usize, _: u32) -> bool {
        self.choices.yes()
    }
    fn is_caller_running(&self, _: usize) -> bool {
        self.choices.yes()
    }
}

impl Poller {
    fn cut_polling(&self, now: Instant, start: Instant) -> Polling {
        match self.polling {
            Polling::Since(since) if now.saturating_duration_since(since) < LONGEST => {
                Polling::Since(start)
            }
            Polling::Since(_) => Polling::Since(start - 10 * EARLY),
            polling => polling,
        }
    }

    /// Of clients it matters only whether they are the same.
    fn cut_woken_by(&self) -> Option<(usize, u64)> {
        let is_same = |client| self.near().is_none_or(|near| near.client == client);
        let woken_by = self.woken_by.filter(|_| self.room == CpuDemand::Several);
        woken_by.map(|(_, client)| (0, u64::from(!is_same(client))))
    }

    fn cut_quick_wakes(&self) -> u32 {
        self.quick_wakes.clamp(QUICK_WAKES - 1, QUICK_WAKES)
    }

    /// Returns the same state with its numbers cut and its times moved as if it were `start` again.
    fn cut(&self, now: Instant, start: Instant) -> Self {
        let mut cpu = self.cpu.clone();
        if let Cpu::Borrowed { from: Some(donor), .. } = &mut cpu {
            donor.batches_left = donor.batches_left.min(1);
        }
        if let Cpu::Borrowed { by: CameBy::Parked(near), .. } | Cpu::Near { near, .. } = &mut cpu {
            near.client = 0;
        }
        Self {
            costs: self.costs,
            pacing: self.pacing,
            home: self.home.clone(),
            purpose: self.purpose,
            cpu,
            lending: self.lending,
            polling: self.cut_polling(now, start),
            room: self.room,
            wish: self.wish,
            // Whether a server is asked to stay decides nothing here.
            asks_to_stay: false,
            quick_wakes: self.cut_quick_wakes(),
            spin_budget: SpinBudget::default(),
            give_way: self.give_way.cut().0,
            hand_over: self.hand_over.cut().0,
            stay: Stay::default(),
            near_parks: self.near_parks.cut().0,
            woken_by: self.cut_woken_by(),
        }
    }

    /// Returns a key that is the same for states that are the same when they are cut.
    fn key(&self, now: Instant, start: Instant) -> [u8; 12] {
        let number = |set: &CpuSet| u8::from(set.contains(0)) + 2 * u8::from(set.contains(1));
        let [a, b, c, d] = match &self.cpu {
            Cpu::Own => [0; 4],
            Cpu::Borrowed { from, stay, by } => {
                let from = from.map_or(0, |from| 1 + from.lane * 2 + from.batches_left.min(1));
                let by = match by {
                    CameBy::Brought => 0,
                    CameBy::Parked(near) => 1 + near.cpu as u8,
                    CameBy::InRefuge(cpus) => 3 + number(cpus),
                };
                [1, from as u8, *stay as u8, by]
            }
            Cpu::Kept { parks_left } => [2, *parks_left as u8, 0, 0],
            Cpu::Refuge { cpus, parks_left } => [3, *parks_left as u8, number(cpus), 0],
            Cpu::Near { near, parks_left } => [4, *parks_left as u8, near.cpu as u8, 0],
        };
        let of_polling = match self.cut_polling(now, start) {
            Polling::NotBegun => 0,
            Polling::Begun => 1,
            Polling::Since(since) => 2 + u8::from(since < start),
        };
        let of_waker = self.cut_woken_by().map_or(0, |(_, client)| 1 + client as u8);
        let enums = self.purpose as u8 + 2 * (self.lending as u8 + 3 * self.room as u8);
        let [give, hand, near] =
            [self.give_way.cut().1, self.hand_over.cut().1, self.near_parks.cut().1];
        let wakes = self.cut_quick_wakes() as u8;
        [a, b, c, d, enums, self.wish as u8, of_polling, wakes, give, hand, near, of_waker]
    }
}

/// What of a state the rules of a step are about.
struct Decided {
    pacing: Pacing,
    lending: Lending,
    purpose: Purpose,
    is_borrowed: bool,
}

impl Decided {
    fn in_state(poller: &Poller) -> Self {
        let &Poller { pacing, lending, purpose, .. } = poller;
        Self { pacing, lending, purpose, is_borrowed: poller.is_borrowed() }
    }
}

/// Checks a step against the rules of the module. `before` is the state in which it was decided.
fn check(before: &Decided, step: &IdleStep, after: &Poller) {
    let adaptive = before.pacing == Pacing::Adaptive;
    let polls = matches!(step, IdleStep::PollAgain | IdleStep::Yield);
    if before.lending == Lending::Given {
        assert_ne!(*step, IdleStep::Yield);
        return;
    }
    if before.purpose == Purpose::Rest {
        assert_eq!(*step, IdleStep::Park, "a spare without a duty sleeps");
    }
    if adaptive && before.is_borrowed {
        assert!(!polls, "polls on a caller's CPU");
    }
    if adaptive && after.room == CpuDemand::Shared {
        assert!(!polls, "polls on a CPU that its peer needs");
    }
    if before.pacing == Pacing::Sleep {
        assert!(!polls, "does not sleep at once");
    }
    if let IdleStep::Migrate(cpus) = step {
        let home = after.home.as_ref().expect("a migration has a destination");
        assert!(cpus.count() > 0 && cpus.iter().all(|cpu| home.contains(cpu)), "leaves home");
    }
}

/// Every course of an idle virtual processor: it takes a step, and further steps on the results,
/// until it probes again or parks.
fn rest(poller: &mut Poller, choices: &ChoiceTape, facts: &AnyFacts<'_>, is_moved: &Cell<bool>) {
    // The rounds that differ.
    let round = choices.of(&[1, FIRST_CLOCK, ROUNDS_PER_DEADLINE]);
    let stacks = choices.of(&[StackSupply::Enough, StackSupply::Short]);
    let deadline = choices.of(&[None, Some(facts.start + EARLY)]);
    let before = Decided::in_state(poller);
    let mut step = poller.step(IdleEvent::NothingFound { round, stacks }, deadline, facts);
    check(&before, &step, poller);
    let late = deadline.is_some_and(|at| facts.now.get() >= at);
    if before.pacing == Pacing::Adaptive && late {
        assert!(!matches!(step, IdleStep::PollAgain | IdleStep::Yield), "polls after its deadline");
    }
    for events in 0.. {
        assert!(events < 4, "steps go on for ever");
        let yielded = || choices.of(&[Yielded::Arrived, Yielded::Nothing]);
        let took = || {
            choices.of(&[Duration::ZERO, WaitCosts::USUAL.server_moves, Duration::from_millis(4)])
        };
        let event = match step {
            IdleStep::PollAgain => return,
            IdleStep::Park => return park(poller, choices, facts, is_moved),
            IdleStep::Yield => IdleEvent::Yielded(took()),
            IdleStep::YieldToServer(offer) => {
                let took = if offer == Offer::Timed { took() } else { Duration::ZERO };
                IdleEvent::ServerYielded(yielded(), took)
            }
            IdleStep::YieldToCallers => IdleEvent::CallersYielded(yielded()),
            IdleStep::Migrate(cpus) if choices.yes() => {
                is_moved.set(true);
                IdleEvent::Migrated(cpus)
            }
            IdleStep::Migrate(_) => IdleEvent::NotMigrated,
        };
        step = poller.step(event, deadline, facts);
    }
}

fn park(poller: &mut Poller, choices: &ChoiceTape, facts: &AnyFacts<'_>, is_moved: &Cell<bool>) {
    let (before, was_near) = (poller.cpu.clone(), poller.near().is_some());
    let (goes_home, near) = match poller.parks(facts) {
        ParkPlace::Here => (false, None),
        ParkPlace::Near(cpu) => (false, Some(cpu)),
        ParkPlace::Home(_) => (true, None),
    };
    if goes_home {
        is_moved.set(false);
    }
    if let Some(cpu) = near {
        let home = poller.home.as_ref().expect("a CPU to park near is its own");
        assert!(home.contains(cpu as usize), "parks on a CPU that is not its own");
        if choices.yes() {
            is_moved.set(true);
        } else {
            poller.not_near();
        }
    }
    let last = matches!(
        before,
        Cpu::Kept { parks_left: 0 }
            | Cpu::Refuge { parks_left: 0, .. }
            | Cpu::Near { parks_left: 0, .. }
    );
    let disturbed = was_near && near.is_none() && !poller.near_parks.may_stay();
    assert!(!goes_home || last || disturbed, "goes home too early, from {before:?}");
    let stays = poller.cpu != Cpu::Own;
    assert!(!disturbed || !stays, "stays near a caller beside others, in {before:?}");
    let is_near = poller.near().is_some() || near.is_some();
    assert!(!last || !stays || is_near, "stays away from home, in {before:?}");
    assert!(poller.near().is_none() || poller.near_parks.counts(), "parks near unobserved");
    assert!(!poller.is_borrowed(), "parks on a CPU that it takes for its own");
    assert_eq!(poller.polling, Polling::NotBegun);
}

fn wake(poller: &mut Poller, choices: &ChoiceTape, facts: &AnyFacts<'_>) {
    let (said, cpu) = (choices.of(&[0, 1, u32::MAX]), choices.choose(2) as u32);
    let slept = choices.of(&[EARLY, 10 * EARLY]);
    let reason = choices.of(&[WakeReason::Notified, WakeReason::Deadline]);
    poller.woke(Wakeup { said, cpu, slept, reason }, facts);
}

/// Any other event of a virtual processor.
fn event(poller: &mut Poller, choices: &ChoiceTape, facts: &AnyFacts<'_>, is_moved: &Cell<bool>) {
    // A processor that has parked may wake; or its second probe may have found something.
    let may_wake = !poller.is_borrowed() && poller.polling == Polling::NotBegun;
    match choices.choose(if may_wake { 8 } else { 7 }) {
        7 => wake(poller, choices, facts),
        0 => rest(poller, choices, facts, is_moved),
        1 => match choices.choose(5) {
            0 => poller.found(),
            1 => poller.found_replies(),
            2 => poller.found_messages(),
            3 => poller.found_request(|| choices.choose(2) as u64),
            _ => poller.thread_goes_on(),
        },
        2 => {
            let lane = choices.of(&[None, Some(0), Some(1)]);
            let donated = choices.of(&[None, Some(StayWish::Sleep), Some(StayWish::Stay)]);
            let wish = choices.of(&[PollWish::Poll, PollWish::Rest]);
            let client = choices.choose(2) as u64;
            let came = choices.of(&[Arrival::Wake, Arrival::Spin]);
            poller.served(ServedRequest { lane, client, came, donated, wish });
            assert_eq!(poller.is_borrowed(), donated.is_some() || poller.is_borrowed());
        }
        3 => {
            let before = poller.is_borrowed();
            let (lane, failed) = (choices.choose(2), choices.yes());
            if let BeforeServing::GiveBack(cpus) = poller.serves(lane, facts) {
                assert!(before && poller.donor().is_none(), "gives back what it does not have");
                match cpus {
                    Some(cpus) if !failed => {
                        is_moved.set(true);
                        poller.migrated(cpus);
                    }
                    _ => {}
                }
            }
        }
        4 => poller.gave_cpu(),
        5 => poller.lanes_changed(choices.of(&[Purpose::Work, Purpose::Rest])),
        _ => drop(poller.take_donors(|_| choices.yes())),
    }
}

/// Checks that a poller parks from any state, if nothing happens and the clock goes on.
fn parks_in_the_end(poller: &mut Poller, start: Instant) {
    let mut known = FixedFacts::at(start);
    known.clock_step = EARLY;
    let facts =
        known.with(&[Fact::Calling, Fact::ServerElsewhere, Fact::Posts, Fact::OnlyCallersHere]);
    // Between two readings of the clock the only change is that polling begins.
    let rounds = (1..).step_by(ROUNDS_PER_CLOCK as usize).flat_map(|at| [at, at + FIRST_CLOCK - 1]);
    for round in rounds.take(100) {
        let stacks = StackSupply::Enough;
        let mut step = poller.step(IdleEvent::NothingFound { round, stacks }, None, &facts);
        loop {
            let event = match step {
                IdleStep::PollAgain => break,
                IdleStep::Park => return,
                IdleStep::Yield => IdleEvent::Yielded(Duration::ZERO),
                IdleStep::YieldToServer(_) => {
                    IdleEvent::ServerYielded(Yielded::Nothing, Duration::ZERO)
                }
                IdleStep::YieldToCallers => IdleEvent::CallersYielded(Yielded::Nothing),
                IdleStep::Migrate(cpus) => IdleEvent::Migrated(cpus),
            };
            step = poller.step(event, None, &facts);
        }
    }
    panic!("polls for ever: {poller:?}");
}

/// Explores all states that a poller with this pacing and home can reach. Returns the number of
/// states.
fn explore(pacing: Pacing, home: Option<&CpuSet>) -> usize {
    let start = Instant::now() + Duration::from_secs(1);
    let first = Poller::new(pacing, home.cloned(), WaitCosts::USUAL).cut(start, start);
    let key = first.key(start, start);
    let (mut known, mut states) = (HashSet::from([(key, false)]), vec![(first, false)]);
    while let Some((state, was_moved)) = states.pop() {
        if pacing != Pacing::Poll {
            parks_in_the_end(&mut state.cut(start, start), start);
        }
        let choices = ChoiceTape::default();
        loop {
            let (mut poller, facts) = (state.cut(start, start), AnyFacts::new(&choices, start));
            // Set while it has confined itself and has not gone home.
            let is_moved = Cell::new(was_moved);
            event(&mut poller, &choices, &facts, &is_moved);
            assert!(!is_moved.get() || poller.cpu != Cpu::Own, "forgets that it is confined");
            let is_near = poller.near().is_some();
            assert!(is_near || !poller.near_parks.counts(), "counts disturbances elsewhere");
            let now = facts.now.get();
            if known.insert((poller.key(now, start), is_moved.get())) {
                states.push((poller.cut(now, start), is_moved.get()));
            }
            if !choices.next() {
                break;
            }
        }
    }
    known.len()
}

#[test]
fn the_rules_hold_in_all_states() {
    let homes = [None, Some(CpuSet::only(0)), Some(CpuSet::only(0).with(1))];
    for pacing in [Pacing::Adaptive, Pacing::Poll, Pacing::Sleep] {
        for home in &homes {
            let states = explore(pacing, home.as_ref());
            println!("{pacing:?}, home {home:?}: {states} states");
        }
    }
}
