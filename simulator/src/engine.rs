//! The engine: domains on virtual processors, one step at a time.
//!
//! Each domain is a user-level thread, and one runs at a time. Before whatever another domain could notice it spends time of its own clock ([`Cpu::spend`]); then the domain whose clock is behind all others goes on. So all
//! steps happen in the order of their times, and two runs with the same dice are the same run. A domain that is stopped has a clock that stands; one that sleeps is woken by its bell; one that is killed unwinds where
//! it is, which does nothing that others could see.
//!
//! The conductor, who has started them, has its turn when nobody can go on.

use crate::Rank;
use crate::dice::Dice;
use crate::ledger::Ledger;
use crate::trouble::Trouble;
use std::any::Any;
use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use upcall_thread::{JoinHandle, Processors, WaiterCell, block};

/// A time that does not come.
pub const FOREVER: u64 = u64::MAX;

/// From a ring to the first step of the domain that it wakes, in ns.
const WAKE: u64 = 1000;

/// So many of the last events are told when something is wrong.
const EVENTS: usize = 32;

/// When a domain has its processor: the slice with its number of each round of so many.
#[derive(Clone, Copy, Debug)]
pub struct Slices {
    /// In ns.
    pub length: u64,
    /// Slices in a round.
    pub of: u64,
    /// Which one is its own.
    pub own: u64,
    /// So much later than on a processor that is on time.
    pub skew: u64,
}

impl Slices {
    /// How far into its slice it is, and when it has its processor first: at `time` or later.
    fn first(&self, time: u64) -> (u64, u64) {
        let round = self.length * self.of;
        let begins = self.own * self.length + self.skew;
        let phase = (time + round - begins % round) % round;
        if phase < self.length { (phase, time) } else { (0, time + round - phase) }
    }

    /// When work of so many ns is done that begins at `time` or later.
    fn done(&self, time: u64, mut cost: u64) -> u64 {
        let (phase, mut time) = self.first(time);
        let mut left = self.length - phase;
        while cost >= left {
            cost -= left;
            time = self.first(time + left).1;
            left = self.length;
        }
        time + cost
    }
}

/// What becomes of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It lives, if it is not stopped for ever.
    Lives,
    /// Its program has ended.
    Ended,
    /// It was killed.
    Dead,
}

/// A domain, as the engine sees it.
#[derive(Debug)]
pub struct Domain {
    /// Its clock.
    at: u64,
    /// It does nothing before this time.
    pub(crate) stopped: u64,
    /// It dies where it is.
    pub(crate) doomed: bool,
    /// Until when, if it sleeps.
    asleep: Option<u64>,
    /// When its bell was rung first since it last woke.
    rung: Option<u64>,
    /// Those that have ended, as its clerk has said and it has not heard.
    news: Vec<Rank>,
    used: u64,
    pub(crate) life: Life,
    slices: Option<Slices>,
}

impl Domain {
    /// When it can go on.
    fn next(&self) -> Option<u64> {
        let ready = match (self.life, self.asleep) {
            _ if self.life == Life::Lives && self.doomed => return Some(self.at),
            (Life::Lives, None) => self.at,
            (Life::Lives, Some(until)) => self.rung.map_or(FOREVER, |rung| rung.saturating_add(WAKE)).min(until).max(self.at),
            _ => FOREVER,
        };
        let at = ready.max(self.stopped);
        (at != FOREVER).then(|| self.slices.map_or(at, |slices| slices.first(at).1))
    }

    /// Whether it sleeps and nothing is under way that ends it.
    pub(crate) fn sleeps_on(&self) -> bool {
        self.asleep.is_some() && self.rung.is_none()
    }

    /// Whether it lives, and will do something again.
    pub fn is_well(&self) -> bool {
        self.life == Life::Lives && self.stopped != FOREVER
    }
}

/// Something that happened: when, to whom, what.
#[derive(Clone, Copy, Debug)]
struct Event(u64, u64, Rank, &'static str, u64, u64);

/// What all domains share, and the simulator knows.
#[derive(Debug)]
pub struct State {
    pub(crate) domains: Vec<Domain>,
    pub(crate) ledger: Ledger,
    pub(crate) trouble: Option<Trouble>,
    dice: Dice,
    /// What clerks will tell: when, to whom, who has ended.
    mail: Vec<(u64, Rank, Rank)>,
    steps: u64,
    most: u64,
    events: VecDeque<Event>,
    stage: u32,
    round: u64,
    failure: Option<String>,
    over: bool,
}

/// How a run is to be.
#[derive(Debug)]
pub struct Setup {
    /// What decides chances that are no domain's own.
    pub dice: Dice,
    /// One for each domain.
    pub slices: Vec<Option<Slices>>,
    /// What befalls them.
    pub trouble: Option<Trouble>,
    /// After so many steps it should have ended.
    pub most: u64,
}

/// What was found wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What, when, and what had happened before.
    pub report: String,
    /// After how many steps.
    pub step: u64,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.report)
    }
}

impl std::error::Error for Failure {}

/// A domain's virtual processor, in the hands of the domain.
#[derive(Clone)]
pub struct Cpu {
    world: Arc<World>,
    rank: Rank,
}

struct World {
    state: Mutex<State>,
    /// Of each domain, and of the conductor.
    turns: Vec<WaiterCell>,
    base: Instant,
}

/// With this a domain unwinds that was killed, or whose run is over.
struct Gone;

impl State {
    pub(crate) fn event(&mut self, who: Rank, what: &'static str, a: u64, b: u64) {
        if self.events.len() == EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(Event(self.steps, self.domains[who].at, who, what, a, b));
    }

    /// The step that is being taken.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The domain whose turn it is, at its time; `None` if nobody can go on.
    fn choose(&mut self) -> Option<Rank> {
        loop {
            let nexts = self.domains.iter().enumerate().filter_map(|(rank, domain)| Some((domain.next()?, rank)));
            let first = nexts.min();
            let mail = (0..self.mail.len()).min_by_key(|at| self.mail[*at]);
            if let Some(at) = mail.filter(|at| first.is_none_or(|first| self.mail[*at].0 <= first.0)) {
                let (time, to, ended) = self.mail.swap_remove(at);
                self.domains[to].news.push(ended);
                self.ring(to, time);
                continue;
            }
            let (time, rank) = first?;
            self.domains[rank].at = time;
            return Some(rank);
        }
    }

    fn ring(&mut self, to: Rank, time: u64) {
        self.domains[to].rung.get_or_insert(time);
    }

    /// Whether a clerk is about to rouse a domain.
    pub(crate) fn is_being_roused(&self, rank: Rank) -> bool {
        self.mail.iter().any(|mail| mail.1 == rank)
    }

    fn advance(&mut self, rank: Rank, cost: u64) {
        self.steps += 1;
        let domain = &mut self.domains[rank];
        let mut cost = cost;
        if self.trouble.is_some() {
            cost = 1 + self.dice.below(2 * cost);
        }
        domain.used += cost;
        domain.at = domain.slices.map_or(domain.at + cost, |slices| slices.done(domain.at, cost));
        if let Some(mut trouble) = self.trouble.take() {
            trouble.strike(rank, self);
            self.trouble = Some(trouble);
        }
        if self.steps > self.most {
            self.fails(format!("no end after {} steps", self.most));
        }
    }

    /// Kills a domain.
    pub(crate) fn kill(&mut self, rank: Rank, now: u64) {
        let domain = &mut self.domains[rank];
        (domain.doomed, domain.at) = (true, now);
        self.event(rank, "is killed", 0, 0);
    }

    /// What the clock of a domain shows.
    pub(crate) fn time_of(&self, rank: Rank) -> u64 {
        self.domains[rank].at
    }

    /// Holds a domain up.
    pub(crate) fn delay(&mut self, rank: Rank, by: u64) {
        self.domains[rank].at += by;
    }

    pub(crate) fn fails(&mut self, what: String) {
        if self.failure.is_none() {
            let mut report = format!("step {}: {what}\n", self.steps);
            for Event(step, time, who, what, a, b) in &self.events {
                let _ = writeln!(report, "  step {step:>7}, {time:>9} ns: domain {who} {what} {a} {b}");
            }
            self.failure = Some(report);
        }
    }

    /// One that ends is told of by the clerks of the others.
    fn ended(&mut self, rank: Rank, life: Life) {
        self.domains[rank].life = life;
        if self.over {
            return;
        }
        let time = self.domains[rank].at;
        self.event(rank, "has ended", 0, 0);
        self.ledger.ended(rank);
        for other in (0..self.domains.len()).filter(|other| *other != rank) {
            self.mail.push((time + 1 + self.dice.magnitude(50_000), other, rank));
        }
    }
}

impl World {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn conductor(&self) -> usize {
        self.turns.len() - 1
    }

    /// Gives the turn to another one, and waits for it to come back.
    fn pass(&self, own: usize, to: usize) {
        if own != to {
            block(|waiter| {
                drop(self.turns[own].put(waiter));
                drop(self.turns[to].take());
            });
        }
    }

    /// Who has the turn next.
    fn next(&self) -> usize {
        let mut state = self.state();
        if state.over || state.failure.is_some() { self.conductor() } else { state.choose().unwrap_or(self.conductor()) }
    }
}

impl Cpu {
    /// Whose it is.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Spends so many ns, or about so many where there is trouble. Whatever others are due to do before happens before this returns.
    pub fn spend(&self, cost: u64) {
        self.world.state().advance(self.rank, cost);
        self.give_way();
    }

    fn give_way(&self) {
        // When all is over it has the turn to unwind, and no other.
        let is_over = self.world.state().over;
        if !is_over {
            self.world.pass(self.rank, self.world.next());
        }
        let state = self.world.state();
        if state.over || state.failure.is_some() || state.domains[self.rank].doomed {
            drop(state);
            resume_unwind(Box::new(Gone));
        }
    }

    /// Blocks until the bell has rung, or until `limit` has passed. A ring from before counts.
    pub fn sleep(&self, limit: Option<u64>) {
        let mut state = self.world.state();
        let until = limit.map_or(FOREVER, |limit| state.time_of(self.rank).saturating_add(limit));
        state.domains[self.rank].asleep = Some(until);
        state.event(self.rank, "sleeps", 0, 0);
        let wrong = Ledger::check_sleeper(&state, self.rank);
        wrong.into_iter().for_each(|wrong| state.fails(wrong));
        drop(state);
        self.give_way();
        let domain = &mut self.world.state().domains[self.rank];
        (domain.asleep, domain.rung) = (None, None);
    }

    /// Rings the bell of another domain.
    pub fn ring(&self, to: Rank) {
        let mut state = self.world.state();
        let now = state.time_of(self.rank);
        state.ring(to, now);
        state.event(self.rank, "rings", to as u64, 0);
        state.ledger.summary.rings += 1;
    }

    /// The clock, as the product's code wants it.
    pub fn now(&self) -> Instant {
        self.world.base + Duration::from_nanos(self.time())
    }

    /// The clock in ns.
    pub fn time(&self) -> u64 {
        self.world.state().time_of(self.rank)
    }

    /// The time that it has spent by itself, without what held it up.
    pub fn used(&self) -> u64 {
        self.world.state().domains[self.rank].used
    }

    /// Whether another domain has its processor now.
    pub fn has_processor(&self, other: Rank) -> bool {
        let state = self.world.state();
        let now = state.time_of(self.rank);
        state.domains[other].slices.is_none_or(|slices| slices.first(now).1 == now)
    }

    /// Whether the clerk has something to tell.
    pub fn has_news(&self) -> bool {
        !self.world.state().domains[self.rank].news.is_empty()
    }

    /// Those that have ended since this was asked last.
    pub fn news(&self) -> Vec<Rank> {
        std::mem::take(&mut self.world.state().domains[self.rank].news)
    }

    /// How far the run is: what that means, its conductor says.
    pub fn stage(&self) -> u32 {
        self.world.state().stage
    }

    /// How often the conductor has roused all.
    pub fn round(&self) -> u64 {
        self.world.state().round
    }

    /// How many steps there were so far.
    pub fn steps(&self) -> u64 {
        self.world.state().steps
    }

    /// To be told if something fails.
    pub fn event(&self, what: &'static str, a: u64, b: u64) {
        self.world.state().event(self.rank, what, a, b);
    }

    /// Something is wrong.
    pub fn fail(&self, what: String) -> ! {
        self.world.state().fails(format!("domain {}: {what}", self.rank));
        resume_unwind(Box::new(Gone));
    }

    /// Does something with the ledger. `Err` is a failure.
    pub fn ledger<T>(&self, with: impl FnOnce(&mut State) -> Result<T, String>) -> T {
        let result = with(&mut self.world.state());
        result.unwrap_or_else(|wrong| self.fail(wrong))
    }
}

impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cpu({})", self.rank)
    }
}

/// Runs `program` in each domain until all have ended, or `quiet` says that it is over. `quiet` is asked whenever nobody can go on: to be over (`Ok(None)`), to go on in this stage or another (all are roused), or what is wrong.
///
/// # Errors
/// What was found wrong.
pub fn run(
    setup: Setup,
    program: impl Fn(Cpu) + Clone + Send + 'static,
    mut quiet: impl FnMut(&mut State, u32) -> Result<Option<u32>, String>,
) -> Result<Ledger, Failure> {
    let mut result = None;
    let ran = Processors::new().count(1).run(|| result = Some(conduct(setup, program, &mut quiet)));
    match (ran, result) {
        (Ok(()), Some(result)) => result,
        (ran, _) => Err(Failure { report: format!("no virtual processor: {ran:?}"), step: 0 }),
    }
}

fn conduct(
    setup: Setup,
    program: impl Fn(Cpu) + Clone + Send + 'static,
    quiet: &mut dyn FnMut(&mut State, u32) -> Result<Option<u32>, String>,
) -> Result<Ledger, Failure> {
    let Setup { dice, slices, trouble, most } = setup;
    let count = slices.len();
    let fresh = |slices| Domain {
        at: 0,
        stopped: 0,
        doomed: false,
        asleep: None,
        rung: None,
        news: Vec::new(),
        used: 0,
        life: Life::Lives,
        slices,
    };
    let state = State {
        domains: slices.into_iter().map(fresh).collect(),
        ledger: Ledger::new(count),
        trouble,
        dice,
        mail: Vec::new(),
        steps: 0,
        most,
        events: VecDeque::new(),
        stage: 0,
        round: 0,
        failure: None,
        over: false,
    };
    let turns = (0..=count).map(|_| WaiterCell::new()).collect();
    let world = Arc::new(World { state: Mutex::new(state), turns, base: Instant::now() });
    let begin = |rank| {
        let thread = start(Cpu { world: world.clone(), rank }, program.clone());
        // It comes to where it waits for its turn, and gives this one back.
        block(|waiter| drop(world.turns[count].put(waiter)));
        thread
    };
    let threads: Vec<_> = (0..count).map(begin).collect();
    loop {
        world.pass(count, world.next());
        let mut state = world.state();
        if state.failure.is_some() || state.domains.iter().all(|domain| domain.life != Life::Lives) {
            break;
        }
        let stage = state.stage;
        match quiet(&mut state, stage) {
            Ok(None) => break,
            Ok(Some(stage)) => {
                state.stage = stage;
                state.round += 1;
                let now = state.domains.iter().map(|domain| domain.at).max().unwrap_or(0);
                (0..count).for_each(|rank| state.ring(rank, now));
            }
            Err(wrong) => {
                state.fails(wrong);
                break;
            }
        }
    }
    world.state().over = true;
    for (rank, thread) in threads.into_iter().enumerate() {
        if world.state().domains[rank].life == Life::Lives {
            world.pass(count, rank);
        }
        let _ = thread.join();
    }
    let mut state = world.state();
    match state.failure.take() {
        Some(report) => Err(Failure { report, step: state.steps }),
        None => {
            let mut ledger = std::mem::replace(&mut state.ledger, Ledger::new(0));
            ledger.summary.steps = state.steps;
            Ok(ledger)
        }
    }
}

fn start(cpu: Cpu, program: impl Fn(Cpu) + Send + 'static) -> JoinHandle<()> {
    upcall_thread::spawn(move || {
        let (world, rank) = (cpu.world.clone(), cpu.rank);
        world.pass(rank, world.conductor());
        let ended = catch_unwind(AssertUnwindSafe(|| program(cpu)));
        let mut state = world.state();
        if let Err(why) = &ended
            && !why.is::<Gone>()
        {
            state.fails(format!("domain {rank} panicked: {}", text(why.as_ref())));
        }
        state.ended(rank, if ended.is_ok() { Life::Ended } else { Life::Dead });
        drop(state);
        drop(world.turns[world.next()].take());
    })
}

fn text(why: &(dyn Any + Send)) -> &str {
    let text = why.downcast_ref::<&str>().copied();
    text.or_else(|| why.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}
