//! What the first process of a machine keeps for balancing: loads, the phase of the round, and the
//! processes in use. The node asks and moves (`node/balancing.rs`).

use super::WHOLE;
use super::{BalancePlan, LoadView, MeasuredLoads, PlannedMove, ProcessUse, TaskFreedom, TaskLoad};
use crate::door::Visitor;
use crate::machine::TaskEntry;
use crate::moves::NotMoved;
use crate::tid::Tid;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};
use upcall_message::Rank;

/// Time from one round to the next, if there was something to be gained.
pub(crate) const PERIOD: Duration = Duration::from_millis(250);
/// What a move costs beside its pause: the processor time of the messages about it.
const OVERHEAD: Duration = Duration::from_millis(1);
/// The pause that is expected before any task has moved.
const PAUSE: Duration = Duration::from_millis(2);
/// Number of rounds for which a task that has moved, or has refused to, is left alone.
pub(crate) const SETTLES: u32 = 4;
/// Loads below this are forgotten, in millionths of a processor.
const LITTLE: u64 = 1000;

/// What the first process knows of a task's load.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KnownLoad {
    pub(crate) load: u64,
    pub(crate) is_pinned: bool,
    /// Number of rounds for which the task is left alone.
    pub(crate) settles: u32,
    /// Whether it has moved since the last round, so that no process has measured it since.
    pub(crate) is_fresh: bool,
}

/// The moves of a task so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TaskMoves {
    pub(crate) count: u32,
    pub(crate) pause: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoundPhase {
    Rests,
    Waits,
    Measures,
    Moves,
}

/// The balancing of a machine; see the module.
pub(crate) struct BalancingRounds {
    pub(crate) plan: BalancePlan,
    /// Number of processes in use, unless fewer are left.
    pub(crate) number: usize,
    pub(crate) evacuated: BTreeSet<Rank>,
    pub(crate) ended: BTreeSet<Rank>,
    /// Number of processors when they were last counted.
    pub(crate) processors: Option<usize>,
    pub(crate) phase: RoundPhase,
    /// The time at which the phase ends, unless something else ends it.
    pub(crate) next: Option<Instant>,
    pub(crate) period: Duration,
    /// Processes that have not reported loads.
    pub(crate) missing: BTreeSet<Rank>,
    pub(crate) loads: HashMap<Tid, KnownLoad>,
    pub(crate) bytes: BTreeMap<(Tid, Tid), u64>,
    /// Whether any process has reported a load in this round.
    pub(crate) is_busy: bool,
    pub(crate) queue: VecDeque<PlannedMove>,
    pub(crate) open: HashSet<Tid>,
    /// Number of tasks that have moved in this round.
    pub(crate) moved: usize,
    /// How this round spreads tasks, if a command has asked for it.
    pub(crate) spread: Option<Spread>,
    /// Whether a task has stayed in this round that may move very soon.
    pub(crate) is_partial: bool,
    /// The reason why a task stayed when it was last to move.
    pub(crate) refusals: HashMap<Tid, NotMoved>,
    /// Commands that have changed which processes are in use, and wait for the tasks to be there.
    pub(crate) visitors: Vec<Visitor>,
    /// Number of tasks that have moved for the visitors.
    pub(crate) served: usize,
    /// Number of rounds that have tried to evacuate the tasks that stay.
    pub(crate) tries: u32,
    /// Whether another round follows at once, and whether tasks are spread by their number in it.
    pub(crate) again: Option<Spread>,
    pub(crate) moves: HashMap<Tid, TaskMoves>,
    /// Number of tasks that have entered and left each process.
    pub(crate) traffic: BTreeMap<Rank, (u64, u64)>,
}

/// Whether a round spreads tasks by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    No,
    ByNumber,
}

impl BalancingRounds {
    pub(crate) fn new(plan: BalancePlan) -> Self {
        Self {
            plan,
            number: plan.least,
            evacuated: BTreeSet::new(),
            ended: BTreeSet::new(),
            processors: None,
            phase: RoundPhase::Rests,
            next: None,
            period: PERIOD,
            missing: BTreeSet::new(),
            loads: HashMap::new(),
            bytes: BTreeMap::new(),
            is_busy: false,
            queue: VecDeque::new(),
            open: HashSet::new(),
            moved: 0,
            spread: None,
            is_partial: false,
            refusals: HashMap::new(),
            visitors: Vec::new(),
            served: 0,
            tries: 0,
            again: None,
            moves: HashMap::new(),
            traffic: BTreeMap::new(),
        }
    }

    /// The processes in use.
    pub(crate) fn used(&self, size: usize) -> Vec<Rank> {
        let left = (0..size).filter(|rank| !self.evacuated.contains(rank));
        left.filter(|rank| !self.ended.contains(rank)).take(self.number).collect()
    }

    /// The machine, as a balancer sees it.
    pub(crate) fn view<'a>(
        &self,
        size: usize,
        tasks: impl Iterator<Item = (Tid, &'a TaskEntry)>,
        is_moving: impl Fn(Tid) -> bool,
    ) -> LoadView {
        let mut processes = vec![ProcessUse::Evacuated; size];
        self.used(size).into_iter().for_each(|rank| processes[rank] = ProcessUse::InUse);
        let pauses = self.moves.values().map(|moves| moves.pause);
        let mean = match u32::try_from(self.moves.len()) {
            Ok(0) | Err(_) => PAUSE,
            Ok(count) => pauses.fold(Duration::ZERO, Duration::saturating_add) / count,
        };
        let task = |(tid, entry): (Tid, &TaskEntry)| {
            let known = self.loads.get(&tid).copied().unwrap_or_default();
            let pause = self.moves.get(&tid).map_or(mean, |moves| moves.pause);
            let freedom = match known {
                _ if is_moving(tid) => TaskFreedom::Fixed,
                // A task that was pinned may not be any more. Only an evacuation tries.
                KnownLoad { is_pinned: true, .. } | KnownLoad { settles: 1.., .. } => {
                    TaskFreedom::Settling
                }
                _ => TaskFreedom::Free,
            };
            let cost = pause.saturating_add(OVERHEAD);
            TaskLoad { tid, rank: entry.rank, load: known.load, freedom, cost }
        };
        let tasks = tasks.filter(|(_, entry)| !self.ended.contains(&entry.rank));
        let (tasks, bytes) = (tasks.map(task).collect(), self.bytes.clone());
        LoadView { processes, tasks, bytes, period: self.period }
    }

    /// Forgets half of what is known of the loads. What is measured now becomes the other half.
    pub(crate) fn begin_measuring(&mut self) {
        for known in self.loads.values_mut() {
            known.is_fresh = known.settles == SETTLES;
            known.settles = known.settles.saturating_sub(1);
            known.load = if known.is_fresh { known.load } else { known.load / 2 };
        }
        self.loads.retain(|_, known| known.load >= LITTLE || known.settles > 0);
        self.bytes.clear();
        self.is_busy = false;
    }

    /// Takes in what a process has measured of its tasks.
    pub(crate) fn measured(&mut self, loads: MeasuredLoads, is_there: impl Fn(Tid) -> bool) {
        self.is_busy |= !loads.tasks.is_empty();
        for task in loads.tasks.into_iter().filter(|task| is_there(task.tid)) {
            let (load, is_pinned) = (task.load.min(WHOLE), task.is_pinned);
            match self.loads.get_mut(&task.tid) {
                None => {
                    let known = KnownLoad { load, is_pinned, ..KnownLoad::default() };
                    self.loads.insert(task.tid, known);
                }
                Some(known) if known.is_fresh => {}
                Some(known) => {
                    known.load = known.load.saturating_add(load / 2).min(WHOLE);
                    known.is_pinned = is_pinned;
                }
            }
        }
        for (pair, bytes) in loads.bytes {
            let sum = self.bytes.entry(pair).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::{BalancerKind, MeasuredTask};

    fn balancing(least: usize) -> BalancingRounds {
        let balancer = Some(BalancerKind::Refine);
        BalancingRounds::new(BalancePlan { balancer, least, is_alone: false })
    }

    #[test]
    fn the_first_processes_are_used_that_are_neither_evacuated_nor_ended() {
        let mut balancing = balancing(2);
        assert_eq!(balancing.used(4), [0, 1]);
        balancing.evacuated.insert(0);
        assert_eq!(balancing.used(4), [1, 2]);
        balancing.ended.insert(2);
        assert_eq!(balancing.used(4), [1, 3]);
        assert_eq!(balancing.used(2), [1]);
    }

    #[test]
    fn loads_are_averaged_and_those_of_tasks_that_have_moved_are_kept() {
        let mut balancing = balancing(2);
        let (one, other) = (Tid::new(0, 1), Tid::new(0, 2));
        let measured = |balancing: &mut BalancingRounds, loads: &[(Tid, u64)]| {
            balancing.begin_measuring();
            let task = |(tid, load): &(Tid, u64)| MeasuredTask {
                tid: *tid,
                load: *load,
                is_pinned: false,
            };
            let (tasks, bytes) = (loads.iter().map(task).collect(), Vec::new());
            // A process may report anything. What is no task of its own does not count.
            balancing.measured(MeasuredLoads { tasks, bytes }, |tid| tid != other);
            balancing.loads.get(&one).map(|known| known.load)
        };
        assert_eq!(measured(&mut balancing, &[(one, u64::MAX), (other, 7)]), Some(WHOLE));
        assert_eq!(measured(&mut balancing, &[(one, WHOLE / 2)]), Some(WHOLE * 3 / 4));
        assert_eq!(balancing.loads.len(), 1);
        balancing.loads.get_mut(&one).unwrap().settles = SETTLES;
        assert_eq!(measured(&mut balancing, &[]), Some(WHOLE * 3 / 4));
        assert_eq!(measured(&mut balancing, &[]), Some(WHOLE * 3 / 8));
        // In the end an idle task is forgotten.
        let left = (0..20).filter_map(|_| measured(&mut balancing, &[])).count();
        assert!(left < 12 && balancing.loads.is_empty());
    }
}
