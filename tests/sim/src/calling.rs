//! Calls to one server on shared CPUs: the shipped idle policy, on a machine that schedules threads
//! at random.
//!
//! The server is one virtual processor. What it does when it finds nothing, where it parks, and
//! whether it gives a CPU back are decided by the product's own
//! [`Poller`](upcall_sched::poller::Poller). A caller is a kernel thread: it brings the sleeping
//! server to its CPU, or asks it to come near if it may not do that. It yields, spins and sleeps as
//! the product's own [`HandOver`], [`Stay`] and [`SpinBudget`] decide. Other threads compute beside
//! them, and liars publish what may harm others.
//!
//! # What has to hold
//! - Each call is answered, however many threads want the CPUs ([`Failure`] names the call that is
//!   not).
//! - After the last call the server sleeps within a bounded time on the CPU: it does not poll on.
//! - The server moves by itself only to its own CPUs, even if callers lie. A caller that may do so
//!   brings it elsewhere.
//! - The same seed gives the same run; and the events of a run, replayed to a new policy, give the
//!   same steps ([`Trace::replay`]).

mod callers;
mod server;
mod world;

use self::world::{CallLane, Caller, Calling, LONGEST_SLEEP, SERVER, Said, Server, Serving, World};
pub use self::world::{CallerPlan, Seen};
use crate::cpus::{Act, Cpus, SLICE};
use crate::dice::Dice;
use crate::engine::Failure;
use crate::recorded::Trace;
use std::time::Instant;
use upcall_os::processor::CpuSet;
use upcall_sched::pacing::{HandOver, Pacing, SpinBudget, Stay};

/// Interval at which a computing thread checks for the end, in ns.
const COMPUTES: u64 = 100_000;
/// Maximum CPU time that a server uses after the last call before it sleeps, in ns.
const LAST_POLL: u64 = 1_000_000;
/// Maximum number of steps of a run.
const MOST_STEPS: u64 = 20_000_000;

/// The parameters of a run.
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
    /// Time that the handler takes, in ns.
    pub handler: u64,
    /// The seed, which decides the rest.
    pub seed: u64,
}

/// Runs it.
///
/// # Errors
/// The violation that was found.
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
