//! The state of a run: the lanes, the server, the callers, and the facts that the idle policy asks
//! for.

use crate::cpus::Cpus;
use crate::dice::Dice;
use crate::recorded::Trace;
use std::time::{Duration, Instant};
use upcall_os::processor::CpuSet;
use upcall_sched::pacing::{HandOver, SpinBudget, Stay};
use upcall_sched::poller::{Facts, IdleEvent, Poller};

/// Cost of one probe of the lanes by the server, or for a reply by a caller, in ns.
pub(super) const PROBE: u64 = 30;

/// Cost of writing or reading a request or a reply, in ns.
pub(super) const MESSAGE: u64 = 40;

/// Cost of the fence of a thread that falls asleep, in ns.
pub(super) const FENCE: u64 = 500;

/// Longest sleep of a caller before it probes again, in ns.
pub(super) const LONGEST_SLEEP: u64 = 500_000_000;

/// The parameters of a caller.
#[derive(Clone, Debug)]
pub struct CallerPlan {
    /// The CPUs on which it may run.
    pub allowed: CpuSet,
    /// Number of its calls.
    pub calls: u32,
    /// Pause before each call, in ns.
    pub pause: u64,
    /// Whether it may bring the server to its CPU.
    pub may_bring: bool,
    /// Whether it publishes what may harm others, and computes while it waits.
    pub lies: bool,
}

/// What was seen in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Number of steps of all threads.
    pub steps: u64,
    /// The times of all calls of callers that do not lie, in ns, in the order of their ends.
    pub times: Vec<u64>,
    /// Number of calls that came with their caller's CPU.
    pub donated: u64,
    /// Number of times that the server slept.
    pub parks: u64,
    /// Number of times that it moved away from a caller.
    pub migrations: u64,
    /// Number of times that it parked near a caller.
    pub near: u64,
    /// Number of times that it yielded to its callers.
    pub yields: u64,
    /// CPU time of the server after the last call, in ns.
    pub last_poll: u64,
}

/// A call, in the slot of its lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) donates: bool,
    pub(super) asks_to_stay: bool,
}

/// A lane of one slot, with what both sides publish beside it.
#[derive(Debug, Default)]
pub(super) struct CallLane {
    pub(super) request: Option<Request>,
    pub(super) reply: bool,
    /// Whether the caller sleeps, or is about to.
    pub(super) asleep: bool,
    /// The CPU near which the caller asks the server to park.
    pub(super) near: Option<u32>,
    /// Whether the last call came with the caller's CPU, as the server has seen.
    pub(super) donated: bool,
}

/// What the server publishes about itself.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) asleep: bool,
    pub(super) cpu: Option<u32>,
}

#[derive(Debug)]
pub(super) enum Serving {
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
pub(super) enum Calling {
    Pauses,
    Calls,
    HandsOver { offers: u32, since: u64, asked: bool },
    Spins { since: u64 },
    Announces,
    LooksAgain,
    Ends,
}

#[derive(Debug)]
pub(super) struct Server {
    pub(super) poller: Poller,
    pub(super) trace: Trace,
    pub(super) phase: Serving,
    pub(super) round: u32,
    pub(super) slept: bool,
    pub(super) next: usize,
}

#[derive(Debug)]
pub(super) struct Caller {
    pub(super) plan: CallerPlan,
    pub(super) phase: Calling,
    pub(super) left: u32,
    pub(super) begun: u64,
    /// The CPU to which this caller has brought the server.
    pub(super) placed: Option<u32>,
    pub(super) budget: SpinBudget,
    pub(super) hand_over: HandOver,
    pub(super) stay: Stay,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) base: Instant,
    pub(super) lanes: Vec<CallLane>,
    pub(super) said: Said,
    pub(super) server: Server,
    pub(super) callers: Vec<Caller>,
    pub(super) dice: Dice,
    pub(super) handler: u64,
    pub(super) seen: Seen,
    /// The server's CPU time at its last call.
    pub(super) used_at_last_call: u64,
    pub(super) home: CpuSet,
    /// CPUs outside its own to which the server has moved by itself.
    pub(super) strange: Option<CpuSet>,
}

/// Number of the server's thread. The threads of callers follow, and then those that compute.
pub(super) const SERVER: usize = 0;

/// The policy's facts, from the simulated machine and what the callers publish.
pub(super) struct Surroundings<'a> {
    pub(super) cpus: &'a Cpus,
    pub(super) lanes: &'a [CallLane],
    pub(super) now: Instant,
    pub(super) cpu: u32,
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
    // A kernel thread does not publish where it is.
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
    /// The policy, with the facts that it asks for. Each use is recorded.
    pub(super) fn policy<R>(
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
}
