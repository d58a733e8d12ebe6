//! The engine: domains on virtual processors, one step at a time.
//!
//! Each domain is a user-level thread, and one runs at a time. Before whatever another domain could
//! notice it spends time of its own clock ([`Cpu::spend`]); then the domain whose clock is behind
//! all others goes on. So all steps happen in the order of their times, and two runs with the same
//! dice are the same run. A domain that is stopped has a clock that stands; one that sleeps is
//! woken by its doorbell. A domain that is killed unwinds where it is, which does nothing that
//! others could see.
//!
//! The conductor, who has started them, has its turn when nobody can go on.

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
    state: KernelMutex<State>,
    /// Of each domain, and of the conductor.
    turns: Vec<WaiterCell>,
    base: Instant,
}

/// With this a domain unwinds that was killed, or whose run is over.
struct Gone;

impl World {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
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
        if state.over || state.failure.is_some() {
            self.conductor()
        } else {
            state.choose().unwrap_or(self.conductor())
        }
    }
}

impl Cpu {
    /// Whose it is.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Spends so many ns, or about so many where there is trouble. Whatever others are due to do
    /// before happens before this returns.
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

    /// Blocks until the doorbell has rung, or until `limit` has passed. A ring from before counts.
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

    /// Counts something.
    pub fn count(&self, with: impl FnOnce(&mut Summary)) {
        with(&mut self.world.state().ledger.summary);
    }

    /// Enters something in the ledger.
    pub fn enter<T>(&self, with: impl FnOnce(&mut Ledger) -> T) -> T {
        with(&mut self.world.state().ledger)
    }

    /// Has something checked that the ledger knows. `Err` is a failure.
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

/// Runs `program` in each domain until all have ended, or `quiet` says that it is over. `quiet` is
/// asked whenever nobody can go on: to be over (`Ok(None)`), to go on in this stage or another (all
/// are roused), or what is wrong.
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
    quiet: &mut Quiet<'_>,
) -> Result<Ledger, Failure> {
    let Setup { dice, slices, trouble, most } = setup;
    let count = slices.len();
    let state = State::new(dice, slices, trouble, most);
    let turns = (0..=count).map(|_| WaiterCell::new()).collect();
    let world = Arc::new(World { state: KernelMutex::new(state), turns, base: Instant::now() });
    let begin = |rank| {
        let thread = start(Cpu { world: world.clone(), rank }, program.clone());
        // It comes to where it waits for its turn, and gives this one back.
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
            state.fails("all were roused, and nobody goes on".into());
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
