//! Balancing: which tasks are to move to which process, so that no process has much more to do than
//! the others.
//!
//! This only computes: a [`LoadView`] of the machine becomes [`PlannedMove`]s. The node measures
//! and moves (`node/balancing.rs`).
//!
//! Sources: Charm++'s strategies GreedyLB, RefineLB and CommLB ("A Load Balancing Framework for
//! Adaptive and Asynchronous Applications", Kalé, Bhandarkar, Brunner, 2000). Only the ideas are
//! theirs.
//!
//! | name | what it does |
//! |---|---|
//! | `greedy` | distributes all tasks, the heaviest first, each to the least loaded process |
//! | `refine` | moves tasks away from processes with more than their share, one after the other |
//! | `comm` | as `refine`, but prefers tasks that exchange messages with the other process |
//!
//! # What each plan keeps to
//! - Tasks that are pinned, or that are moving, stay.
//! - Tasks move within their host. Only an evacuation prefers a process of the same host, and takes
//!   one of another host if there is none. What is uneven between hosts is left to [`between`].
//! - The largest load does not become larger. Only an evacuation may do that.
//! - A move costs less than it gains until the next plan, together with what it would have gained
//!   since the process has too much to do. So an expensive move comes late, but it comes. What is
//!   lost by waiting is about the cost of the move (the ski rental problem).
//! - With constant loads the plans come to an end: each plan that is not empty makes the largest
//!   load smaller (`greedy`), or the sum of the loads' squares (`refine`, `comm`).
//!
//! A load is the part of a processor that a task needs, in millionths ([`WHOLE`] is one processor).

pub(crate) mod bars;
pub(crate) mod between;
mod chance;
mod greedy;
pub(crate) mod leaving;
pub(crate) mod meter;
pub(crate) mod probation;
mod refine;
pub(crate) mod rounds;
#[cfg(test)]
mod tests;

use crate::tid::Tid;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;
use upcall_message::Rank;

/// The index of a host among those of the machine. The home is the first one.
pub(crate) type HostIndex = usize;

/// The load of a processor that is never idle.
pub(crate) const WHOLE: u64 = 1_000_000;

/// Tolerance: a process with less than this many millionths above the mean is left alone.
const LEAST: u64 = WHOLE * 3 / 100;

/// Whether a process may have tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessUse {
    /// The process takes tasks.
    InUse,
    /// The process gets no tasks, and those that it has are to leave.
    Evacuated,
}

/// Whether a task may be moved now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskFreedom {
    /// The task may move.
    Free,
    /// The task has moved not long ago. It moves again only to leave an evacuated process.
    Settling,
    /// The task is pinned, or it is moving already.
    Fixed,
}

/// A task, as a balancer sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskLoad {
    pub(crate) tid: Tid,
    pub(crate) rank: Rank,
    /// In millionths of a processor.
    pub(crate) load: u64,
    pub(crate) freedom: TaskFreedom,
    /// What a move of the task costs.
    pub(crate) cost: Duration,
}

/// The machine, as a balancer sees it.
#[derive(Clone, Debug)]
pub(crate) struct LoadView {
    /// Indexed by rank.
    pub(crate) processes: Vec<ProcessUse>,
    pub(crate) hosts: HostView,
    pub(crate) tasks: Vec<TaskLoad>,
    /// Bytes that were sent between two tasks in the last period, the lower number first.
    pub(crate) bytes: BTreeMap<(Tid, Tid), u64>,
    /// The time for which a move is to pay: until the next plan, and since a process has too much
    /// to do.
    pub(crate) period: Duration,
}

/// The hosts of a machine, as a balancer sees them.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostView {
    /// The host of each process, indexed by rank. Without an entry a process is on the first host.
    pub(crate) of_ranks: Vec<HostIndex>,
    /// Processes that have not reported their loads in time.
    pub(crate) silent: BTreeSet<Rank>,
    /// Tasks that do not move to a host for now.
    pub(crate) barred: BTreeSet<(Tid, HostIndex)>,
}

impl HostView {
    /// The host of a process.
    fn of(&self, rank: Rank) -> HostIndex {
        self.of_ranks.get(rank).copied().unwrap_or(0)
    }

    fn is_barred(&self, tid: Tid, to: HostIndex) -> bool {
        self.barred.contains(&(tid, to))
    }
}

/// A task that is to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedMove {
    pub(crate) tid: Tid,
    pub(crate) to: Rank,
}

/// What a task has used in a period.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct MeasuredTask {
    pub(crate) tid: Tid,
    /// In millionths of a processor.
    pub(crate) load: u64,
    pub(crate) is_pinned: bool,
}

/// What the tasks of a process have used in a period.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct MeasuredLoads {
    /// Tasks with a load. The others have none.
    pub(crate) tasks: Vec<MeasuredTask>,
    /// Bytes that tasks have sent to others, the lower number first.
    pub(crate) bytes: Vec<((Tid, Tid), u64)>,
}

/// Maximum number of tasks, and of pairs of tasks, in a report of loads. The others have less.
const MOST_REPORTED: usize = 4096;

impl MeasuredLoads {
    /// As much of a report as one process may send, in the order of the tasks: the heaviest tasks,
    /// each once, and the pairs with the most bytes.
    pub(crate) fn bounded(mut self) -> Self {
        if self.tasks.len() > MOST_REPORTED {
            self.tasks.sort_by_key(|task| (std::cmp::Reverse(task.load), task.tid));
            self.tasks.truncate(MOST_REPORTED);
        }
        self.tasks.sort_by_key(|task| task.tid);
        self.tasks.dedup_by_key(|task| task.tid);
        if self.bytes.len() > MOST_REPORTED {
            self.bytes.sort_by_key(|(pair, bytes)| (std::cmp::Reverse(*bytes), *pair));
            self.bytes.truncate(MOST_REPORTED);
        }
        self
    }
}

/// What a machine may do with its processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BalancePlan {
    /// `None`: tasks move only on command.
    pub(crate) balancer: Option<BalancerKind>,
    /// Number of processes that are used at first, and the least number.
    pub(crate) least: usize,
    /// Whether each task has a process of its own.
    pub(crate) is_alone: bool,
}

/// A way of balancing.
pub(crate) trait Balancer: Sync {
    /// Plans moves of tasks that are [`TaskFreedom::Free`] between processes in use. `sums` has the
    /// load of each process, and is changed as the moves change it.
    fn balance(&self, view: &LoadView, sums: &mut LoadSums) -> Vec<PlannedMove>;
}

/// The names of the ways of balancing.
// Checkpoints have them by number, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum BalancerKind {
    /// Distributes all tasks from scratch, the heaviest first, to the least loaded processes.
    Greedy,
    /// Moves tasks from overloaded processes to others, until all are within a tolerance.
    Refine,
    /// As [`Refine`](Self::Refine), but prefers tasks that exchange messages with the process to
    /// which they move.
    Comm,
}

impl BalancerKind {
    /// All kinds, with their names.
    pub const ALL: [(&'static str, Self); 3] =
        [("greedy", Self::Greedy), ("refine", Self::Refine), ("comm", Self::Comm)];

    /// The kind with this name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(one, _)| *one == name).map(|(_, kind)| *kind)
    }

    /// Returns `true` if it has to know which tasks exchange messages.
    pub(crate) fn wants_bytes(self) -> bool {
        self == Self::Comm
    }

    pub(crate) fn balancer(self) -> &'static dyn Balancer {
        match self {
            Self::Greedy => &greedy::Greedy,
            Self::Refine => &refine::Refine,
            Self::Comm => &refine::Comm,
        }
    }
}

impl fmt::Display for BalancerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = Self::ALL.iter().find(|(_, kind)| kind == self);
        f.write_str(own.map_or("", |(name, _)| name))
    }
}

/// The load of each process that is in use, and its number of tasks.
#[derive(Clone, Debug)]
pub(crate) struct LoadSums {
    /// Indexed by rank. `None`: the process is evacuated.
    sums: Vec<Option<(u64, usize)>>,
}

impl LoadSums {
    fn of(view: &LoadView) -> Self {
        let in_use = |one: &ProcessUse| (*one == ProcessUse::InUse).then_some((0, 0));
        let mut sums = Self { sums: view.processes.iter().map(in_use).collect() };
        view.tasks.iter().for_each(|task| sums.add(task.rank, task.load));
        sums
    }

    /// Only those of the processes of a host: the others take no tasks.
    fn on(&self, host: HostIndex, hosts: &HostView) -> Self {
        let own =
            |(rank, sum): (Rank, &Option<(u64, usize)>)| (*sum).filter(|_| hosts.of(rank) == host);
        Self { sums: self.sums.iter().enumerate().map(own).collect() }
    }

    fn add(&mut self, rank: Rank, load: u64) {
        if let Some(Some((sum, count))) = self.sums.get_mut(rank) {
            (*sum, *count) = (sum.saturating_add(load), *count + 1);
        }
    }

    fn moved(&mut self, load: u64, from: Rank, to: Rank) {
        if let Some(Some((sum, count))) = self.sums.get_mut(from) {
            (*sum, *count) = (sum.saturating_sub(load), count.saturating_sub(1));
        }
        self.add(to, load);
    }

    /// The load of a process. `None`: it is evacuated, or there is no such process.
    fn load(&self, rank: Rank) -> Option<u64> {
        self.sums.get(rank)?.map(|(load, _)| load)
    }

    fn all(&self) -> impl Iterator<Item = (Rank, u64, usize)> {
        let one = |(rank, sum): (Rank, &Option<(u64, usize)>)| sum.map(|sum| (rank, sum.0, sum.1));
        self.sums.iter().enumerate().filter_map(one)
    }

    /// The process with the least load, and of several with the fewest tasks.
    fn least(&self) -> Option<Rank> {
        self.least_of(|_| true)
    }

    /// The same of some processes.
    fn least_of(&self, is_meant: impl Fn(Rank) -> bool) -> Option<Rank> {
        let meant = self.all().filter(|(rank, ..)| is_meant(*rank));
        meant.min_by_key(|(rank, load, count)| (*load, *count, *rank)).map(|(rank, ..)| rank)
    }

    fn most(&self) -> u64 {
        self.all().map(|(_, load, _)| load).max().unwrap_or(0)
    }

    fn mean(&self) -> u64 {
        let (count, sum) = self.all().fold((0, 0), |(n, sum), (_, load, _)| (n + 1, sum + load));
        sum / u64::max(count, 1)
    }

    /// The load above which a process has too much.
    fn bound(&self) -> u64 {
        let mean = self.mean();
        mean + (mean / 10).max(LEAST)
    }
}

/// Returns `true` if a load that is smaller by `gain` for this time is worth more than moves that
/// cost so much.
fn pays(gain: u64, time: Duration, cost: Duration) -> bool {
    let gained = u128::from(gain) * time.as_nanos() / u128::from(WHOLE);
    gained > cost.as_nanos()
}

impl LoadView {
    /// Returns `true` if a smaller largest load is worth more than moves that cost so much.
    fn is_worth(&self, gain: u64, cost: Duration) -> bool {
        pays(gain, self.period, cost)
    }

    /// Returns `true` if the machine has processes on several hosts.
    fn spans_hosts(&self) -> bool {
        self.hosts.of_ranks.iter().any(|host| *host != 0)
    }

    /// Returns `true` if a process takes tasks.
    fn is_used(&self, rank: Rank) -> bool {
        self.processes.get(rank) == Some(&ProcessUse::InUse)
    }

    /// The hosts of the processes in use.
    fn hosts_in_use(&self, sums: &LoadSums) -> BTreeSet<HostIndex> {
        sums.all().map(|(rank, ..)| self.hosts.of(rank)).collect()
    }

    /// The process that has most too much to do, compared with the others of its host.
    pub(crate) fn overloaded(&self) -> Option<Rank> {
        let sums = LoadSums::of(self);
        let most_of = |host: HostIndex| {
            let own = sums.on(host, &self.hosts);
            let (rank, load, _) = own.all().max_by_key(|(rank, load, _)| (*load, *rank))?;
            let excess = load.checked_sub(own.bound()).filter(|excess| *excess > 0)?;
            Some((excess, rank))
        };
        self.hosts_in_use(&sums).into_iter().filter_map(most_of).max().map(|(_, rank)| rank)
    }

    /// Plans the moves of a period: evacuations first, and then what the balancer wants within each
    /// host. Without a balancer only evacuations.
    pub(crate) fn plan(&self, balancer: Option<BalancerKind>) -> Vec<PlannedMove> {
        let mut sums = LoadSums::of(self);
        let mut plan = self.evacuate(&mut sums);
        if let Some(kind) = balancer {
            let view = self.after(&plan);
            for host in self.hosts_in_use(&sums) {
                let mut own = sums.on(host, &self.hosts);
                plan.extend(kind.balancer().balance(&view, &mut own));
            }
        }
        plan
    }

    /// The machine after these moves. Tasks that have moved do not move again.
    pub(crate) fn after(&self, plan: &[PlannedMove]) -> Self {
        let moved = plan.iter().map(|one| (one.tid, one.to)).collect::<BTreeMap<_, _>>();
        let mut view = self.clone();
        for task in &mut view.tasks {
            if let Some(to) = moved.get(&task.tid) {
                (task.rank, task.freedom) = (*to, TaskFreedom::Fixed);
            }
        }
        view
    }

    /// The process to which a task goes that has to leave its own one: if possible, one of its
    /// host, and else one of a host that has not refused it.
    fn refuge(&self, task: &TaskLoad, sums: &LoadSums) -> Option<Rank> {
        let own = self.hosts.of(task.rank);
        let is_open = |rank| !self.hosts.is_barred(task.tid, self.hosts.of(rank));
        let near = sums.least_of(|rank| self.hosts.of(rank) == own);
        near.or_else(|| sums.least_of(is_open)).or_else(|| sums.least())
    }

    /// Plans moves away from processes that are not in use: the heaviest tasks first, each to the
    /// least loaded process of its host or, if the host has none in use, of all hosts.
    fn evacuate(&self, sums: &mut LoadSums) -> Vec<PlannedMove> {
        let leaves =
            |task: &&TaskLoad| task.freedom != TaskFreedom::Fixed && sums.load(task.rank).is_none();
        let mut tasks = self.tasks.iter().filter(leaves).collect::<Vec<_>>();
        tasks.sort_by_key(|task| (std::cmp::Reverse(task.load), task.tid));
        let mut plan = Vec::new();
        for task in tasks {
            let Some(to) = self.refuge(task, sums) else { break };
            sums.add(to, task.load);
            plan.push(PlannedMove { tid: task.tid, to });
        }
        plan
    }

    /// Plans moves after which all processes in use have equally many tasks, of any load.
    /// For machines that do not balance, when they get more processes.
    pub(crate) fn spread(&self) -> Vec<PlannedMove> {
        let mut even = self.clone();
        even.tasks.iter_mut().for_each(|task| task.load = 0);
        let mut sums = LoadSums::of(&even);
        let mut plan = even.evacuate(&mut sums);
        let moved = plan.iter().map(|one| one.tid).collect::<BTreeSet<_>>();
        let mut free = even.tasks;
        free.retain(|task| task.freedom != TaskFreedom::Fixed && !moved.contains(&task.tid));
        free.sort_by_key(|task| std::cmp::Reverse(task.tid));
        // From the back: the tasks that have begun last move first.
        for task in free {
            let count = |wanted: Rank| sums.all().find(|(rank, ..)| *rank == wanted);
            let (Some(to), Some((.., own))) = (sums.least(), count(task.rank)) else { continue };
            if count(to).is_some_and(|(.., there)| there + 1 < own) {
                sums.moved(0, task.rank, to);
                plan.push(PlannedMove { tid: task.tid, to });
            }
        }
        plan
    }
}
