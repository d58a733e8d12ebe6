//! The engine: domains on virtual processors, one step at a time.
//!
//! Each domain is a user-level thread, and one runs at a time. Before any action that another
//! domain could notice, a domain spends time of its own clock ([`Cpu::spend`]). Then the domain
//! whose clock is behind all others goes on. So all steps happen in the order of their times, and
//! two runs with the same dice are the same run. The clock of a stopped domain stands still; a
//! sleeping domain is woken by its doorbell. A domain that is killed unwinds where it is, without
//! any effect that others could see.
//!
//! The conductor, which has started the domains, has its turn when none of them can go on.

use crate::Rank;
use crate::dice::Dice;
use crate::ledger::{Ledger, Summary};
use crate::slices::Slices;
use crate::state::{FOREVER, Life, State};
use crate::trouble::Trouble;
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_os::lock::{KernelMutex, MutexGuard};
use upcall_thread::{JoinHandle, Processors, WaiterCell, block};

/// The parameters of a run.
#[derive(Debug)]
pub struct Setup {
    /// Decides chances that belong to no domain.
    pub dice: Dice,
    /// The slices of each domain.
    pub slices: Vec<Option<Slices>>,
    /// The trouble that strikes the domains.
    pub trouble: Option<Trouble>,
    /// Number of steps within which the run should end.
    pub most: u64,
}

/// A violation that was found.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What happened, when, and the events before it.
    pub report: String,
    /// Number of steps before it.
    pub step: u64,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.report)
    }
}

impl std::error::Error for Failure {}

/// A domain's virtual processor, as the domain uses it.
#[derive(Clone)]
pub struct Cpu {
    world: Arc<World>,
    rank: Rank,
}

struct World {
    state: KernelMutex<State>,
    /// The turns of each domain, and of the conductor.
    turns: Vec<WaiterCell>,
    base: Instant,
}

/// The payload with which a domain unwinds that was killed, or whose run is over.
struct Gone;

impl World {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn conductor(&self) -> usize {
        self.turns.len() - 1
    }

    /// Passes the turn to another domain, and waits for it to come back.
    fn pass(&self, own: usize, to: usize) {
        if own != to {
            block(|waiter| {
                drop(self.turns[own].put(waiter));
                drop(self.turns[to].take());
            });
        }
    }

    /// The rank that has the turn next.
    fn next(&self) -> usize {
        let mut state = self.state();
        if state.over || state.failure.is_some() {
            self.conductor()
        } else {
            state.choose().unwrap_or(self.conductor())
        }
    }
}

impl Cpu {
    /// The rank of the domain that it belongs to.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Spends `cost` ns, or about that much if there is trouble. All that other domains are due to
    /// do before then happens before this returns.
    pub fn spend(&self, cost: u64) {
        self.world.state().advance(self.rank, cost);
        self.give_way();
    }

    fn give_way(&self) {
        // When the run is over, this domain has the turn to unwind, and no other domain has it.
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

    /// Blocks until the doorbell rings, or until `limit` has passed. An earlier ring counts.
    pub fn sleep(&self, limit: Option<u64>) {
        let mut state = self.world.state();
        let until = limit.map_or(FOREVER, |limit| state.time_of(self.rank).saturating_add(limit));
        state.domains[self.rank].asleep = Some(until);
        state.event(self.rank, "sleeps", 0, 0);
        state.ledger.summary.sleeps += 1;
        let wrong = Ledger::check_sleeper(&state, self.rank);
        wrong.into_iter().for_each(|wrong| state.fails(wrong));
        drop(state);
        self.give_way();
        let domain = &mut self.world.state().domains[self.rank];
        (domain.asleep, domain.rung) = (None, None);
    }

    /// Rings the doorbell of another domain.
    pub fn notify(&self, to: Rank) {
        let mut state = self.world.state();
        let now = state.time_of(self.rank);
        state.notify(to, now);
        state.event(self.rank, "rings", to as u64, 0);
        state.ledger.summary.rings += 1;
    }

    /// The time of the clock, in the type of the product's code.
    pub fn now(&self) -> Instant {
        self.world.base + Duration::from_nanos(self.time())
    }

    /// The time of the clock, in ns.
    pub fn time(&self) -> u64 {
        self.world.state().time_of(self.rank)
    }

    /// The time that the domain has spent itself, without delays, in ns.
    pub fn used(&self) -> u64 {
        self.world.state().domains[self.rank].used
    }

    /// Returns `true` if another domain has its processor now.
    pub fn has_processor(&self, other: Rank) -> bool {
        let state = self.world.state();
        let now = state.time_of(self.rank);
        state.domains[other].slices.is_none_or(|slices| slices.first(now).1 == now)
    }

    /// Returns `true` if the clerk has something to report.
    pub fn has_news(&self) -> bool {
        !self.world.state().domains[self.rank].news.is_empty()
    }

    /// The domains that have ended since the last call.
    pub fn news(&self) -> Vec<Rank> {
        std::mem::take(&mut self.world.state().domains[self.rank].news)
    }

    /// The stage of the run, whose meaning the conductor defines.
    pub fn stage(&self) -> u32 {
        self.world.state().stage
    }

    /// Number of times that the conductor has roused all domains.
    pub fn round(&self) -> u64 {
        self.world.state().round
    }

    /// Number of steps so far.
    pub fn steps(&self) -> u64 {
        self.world.state().steps
    }

    /// Records an event for the report of a failure.
    pub fn event(&self, what: &'static str, a: u64, b: u64) {
        self.world.state().event(self.rank, what, a, b);
    }

    /// Fails the run.
    pub fn fail(&self, what: String) -> ! {
        self.world.state().fails(format!("domain {}: {what}", self.rank));
        resume_unwind(Box::new(Gone));
    }

    /// Updates the counts of the run.
    pub fn count(&self, with: impl FnOnce(&mut Summary)) {
        with(&mut self.world.state().ledger.summary);
    }

    /// Enters something into the ledger.
    pub fn enter<T>(&self, with: impl FnOnce(&mut Ledger) -> T) -> T {
        with(&mut self.world.state().ledger)
    }

    /// Checks something against the ledger. `Err` is a failure.
    pub fn check<T>(&self, with: impl FnOnce(&mut State) -> Result<T, String>) -> T {
        let result = with(&mut self.world.state());
        result.unwrap_or_else(|wrong| self.fail(wrong))
    }
}

impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cpu({})", self.rank)
    }
}

type Quiet<'a> = dyn FnMut(&mut State, u32) -> Result<Option<u32>, String> + 'a;

/// Runs `program` in each domain until all have ended, or `quiet` ends the run. The conductor calls
/// `quiet` whenever no domain can go on. It returns that the run is over (`Ok(None)`), or the stage
/// in which to go on, which may be the same one (all are roused), or what is wrong.
///
/// # Errors
/// The violation that was found.
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
    quiet: &mut Quiet<'_>,
) -> Result<Ledger, Failure> {
    let Setup { dice, slices, trouble, most } = setup;
    let count = slices.len();
    let state = State::new(dice, slices, trouble, most);
    let turns = (0..=count).map(|_| WaiterCell::new()).collect();
    let world = Arc::new(World { state: KernelMutex::new(state), turns, base: Instant::now() });
    let begin = |rank| {
        let thread = start(Cpu { world: world.clone(), rank }, program.clone());
        // The domain runs until it waits for its turn, and gives this one back.
        block(|waiter| drop(world.turns[count].put(waiter)));
        thread
    };
    let threads: Vec<_> = (0..count).map(begin).collect();
    let mut quiet_at = None;
    loop {
        world.pass(count, world.next());
        let mut state = world.state();
        if state.failure.is_some() || state.domains.iter().all(|domain| domain.life != Life::Lives)
        {
            break;
        }
        let (stage, steps) = (state.stage, state.steps);
        if quiet_at.replace(steps) == Some(steps) {
            state.fails("all domains were roused, and none goes on".into());
            break;
        }
        match quiet(&mut state, stage) {
            Ok(None) => break,
            Ok(Some(stage)) => state.rouse_all(stage),
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
