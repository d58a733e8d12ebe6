//! What the first process of a machine keeps for balancing: loads, the phase of the round, and the
//! processes in use. The node asks and moves (`node/balancing.rs`). Time and reports are arguments.
//!
//! # Why no round rests for ever
//! A process that has reported no loads sends [`Wakes`](crate::remote::ControlMessage::Wakes) when
//! a task computes there. A process that has reported loads does not. So a machine rests only if no
//! process has reported loads since it was last asked, in whichever phase its report arrives
//! ([`BalancingRounds::report`]).
//!
//! # Processes that do not report
//! A round waits for reports for [`ANSWERS`]. The next one does not wait for the processes that had
//! not reported by then, until they do again. So a host that is slow, or hostile, delays one round
//! and not all.

mod planning;
#[cfg(test)]
mod tests;

use super::bars::{Bars, HostReports};
use super::between::BetweenHosts;
use super::chance::{MeasuredLoad, without_chance};
use super::leaving::LeavingHosts;
use super::{BalancePlan, HostIndex, HostView, LoadView, MeasuredLoads, PlannedMove, ProcessUse};
use super::{LEAST, TaskFreedom, TaskLoad, WHOLE};
use crate::door::Visitor;
use crate::machine::TaskEntry;
use crate::moves::NotMoved;
use crate::tid::Tid;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};
use upcall_message::Rank;

/// Time from one round to the next, if there was something to be gained.
pub(crate) const PERIOD: Duration = Duration::from_millis(250);
/// The longest time between rounds.
const LONGEST: Duration = Duration::from_secs(2);
/// Interval at which the processors are counted while the machine computes.
const COUNTS: Duration = Duration::from_millis(50);
/// Maximum time that processes may take to report loads.
const ANSWERS: Duration = Duration::from_secs(1);
/// Time after which a task is asked again that could not leave an evacuated process just then.
const AGAIN: Duration = Duration::from_millis(50);
/// Maximum number of such rounds for one command.
const TRIES: u32 = 40;
/// Number of rounds in which tasks that stay in an evacuated process are tried again although no
/// task computes, or the machine does not balance. The time before each is twice the last one.
const RETRIES: u32 = 7;
/// What a move costs beside its pause: the processor time of the messages about it.
const OVERHEAD: Duration = Duration::from_millis(1);
/// The pause that is expected before any task has moved.
const PAUSE: Duration = Duration::from_millis(2);
/// Number of rounds for which a task that has moved, or has refused to, is left alone.
pub(crate) const SETTLES: u32 = 4;
/// A load that differs from the last one by this many millionths replaces it: with 25 interrupts in
/// a period that is no chance.
const OTHER: u64 = WHOLE / 4;
/// Loads below this are forgotten, in millionths of a processor.
const LITTLE: u64 = 1000;

/// What the first process knows of a task's load.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KnownLoad {
    pub(crate) load: u64,
    /// The load when the round began: what the new measurement is averaged with. Until then `load`
    /// is less, because a task that is not measured again has computed nothing.
    last_load: u64,
    /// As [`MeasuredLoad::inverse_time`]: that of one measurement as exact as this average.
    inverse_time: f64,
    pub(crate) is_pinned: bool,
    /// Number of rounds for which the task is left alone.
    pub(crate) settles: u32,
}

/// The moves of a task so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TaskMoves {
    pub(crate) count: u32,
    /// The last pause.
    pub(crate) pause: Duration,
    /// The pause that is expected of the next move.
    expected: Duration,
}

/// A move that did not come about.
#[derive(Clone, Debug)]
pub(crate) struct RefusedMove {
    /// The process to which the task was to move.
    pub(crate) to: Rank,
    pub(crate) why: NotMoved,
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
    /// Processes of hosts that come, or are to leave.
    pub(crate) absent: BTreeSet<Rank>,
    /// Number of processors when they were last counted.
    pub(crate) processors: Option<usize>,
    pub(crate) phase: RoundPhase,
    /// The time at which the phase ends, unless something else ends it. While the machine rests,
    /// the time from which the processors are counted when something else wakes the process.
    pub(crate) next: Option<Instant>,
    /// The time at which the processors are counted, if that is before the end of the phase.
    count: Option<Instant>,
    pub(crate) period: Duration,
    /// Number of times that the processes were asked for loads, which each report repeats.
    round: u64,
    /// Processes that have not reported loads.
    missing: BTreeSet<Rank>,
    /// Processes that have not answered the last question in time. No round waits for them.
    late: BTreeSet<Rank>,
    pub(crate) loads: HashMap<Tid, KnownLoad>,
    pub(crate) bytes: BTreeMap<(Tid, Tid), u64>,
    /// Whether any process has reported a load in this round.
    pub(crate) is_busy: bool,
    /// Whether the loads in some process are not yet those that it has reported last.
    is_changing: bool,
    /// The time of the last question for loads, and the weight of the loads before that.
    asked: Option<Instant>,
    weight: f64,
    /// Reciprocal of the time between the last two questions, per second
    /// ([`MeasuredLoad::inverse_time`]).
    inverse_time: f64,
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
    /// The last move of each task, if it did not come about.
    pub(crate) refused: HashMap<Tid, RefusedMove>,
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
    /// The process that has too much to do although no move was planned, and since when.
    overload: Option<(Rank, Instant)>,
    pub(crate) between: BetweenHosts,
    pub(crate) bars: Bars,
    pub(crate) leaving: LeavingHosts,
}

/// Whether a round spreads tasks by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    No,
    ByNumber,
}

/// What a report of loads means for the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadReport {
    /// All processes have reported.
    Last,
    /// Other processes have not reported yet.
    Early,
    /// The report is about an earlier round, or the round was decided without it.
    Late,
}

/// Whether the number of processors has changed since it was last counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessorCount {
    Same,
    Changed,
}

/// The tasks in processes that are not in use, at the end of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeftTasks {
    None,
    /// Some are there, and none of them can move very soon.
    Some,
    /// Some are there that may be able to move very soon.
    Soon,
}

/// Whether the commands that wait for a round are to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoundEnd {
    /// No: another round follows for them.
    Again,
    /// Yes.
    Answered,
}

impl BalancingRounds {
    pub(crate) fn new(plan: BalancePlan) -> Self {
        Self {
            plan,
            number: plan.least,
            evacuated: BTreeSet::new(),
            ended: BTreeSet::new(),
            absent: BTreeSet::new(),
            processors: None,
            phase: RoundPhase::Rests,
            next: None,
            count: None,
            period: PERIOD,
            round: 0,
            missing: BTreeSet::new(),
            late: BTreeSet::new(),
            loads: HashMap::new(),
            bytes: BTreeMap::new(),
            is_busy: false,
            is_changing: false,
            asked: None,
            weight: 0.5,
            inverse_time: 0.0,
            queue: VecDeque::new(),
            open: HashSet::new(),
            moved: 0,
            spread: None,
            is_partial: false,
            refusals: HashMap::new(),
            refused: HashMap::new(),
            visitors: Vec::new(),
            served: 0,
            tries: 0,
            again: None,
            moves: HashMap::new(),
            traffic: BTreeMap::new(),
            overload: None,
            between: BetweenHosts::default(),
            bars: Bars::default(),
            leaving: LeavingHosts::default(),
        }
    }

    /// The processes in use.
    pub(crate) fn used(&self, size: usize) -> Vec<Rank> {
        let left = self.living(size).filter(|rank| !self.evacuated.contains(rank));
        left.take(self.number).collect()
    }

    /// The processes of the machine that have not ended.
    fn living(&self, size: usize) -> impl Iterator<Item = Rank> {
        (0..size).filter(|rank| !self.ended.contains(rank) && !self.absent.contains(rank))
    }

    /// The machine, as a balancer sees it.
    pub(crate) fn view<'a>(
        &self,
        size: usize,
        tasks: impl Iterator<Item = (Tid, &'a TaskEntry)>,
        is_moving: impl Fn(Tid) -> bool,
        host_of: impl Fn(Rank) -> HostIndex,
        now: Instant,
    ) -> LoadView {
        let of_ranks = (0..size).map(&host_of).collect::<Vec<_>>();
        let all_hosts = of_ranks.iter().copied().collect::<BTreeSet<_>>();
        let (silent, mut barred) = (&self.missing | &self.late, BTreeSet::new());
        let mut processes = vec![ProcessUse::Evacuated; size];
        self.used(size).into_iter().for_each(|rank| processes[rank] = ProcessUse::InUse);
        let mean = self.mean_pause();
        let mut task = |(tid, entry): (Tid, &TaskEntry)| {
            if !self.bars.is_empty() {
                let is_barred =
                    |host: &HostIndex| self.bars.is_barred(tid, &entry.program, *host, now);
                let all = all_hosts.iter().copied().filter(is_barred);
                barred.extend(all.map(|host| (tid, host)));
            }
            let known = self.loads.get(&tid).copied().unwrap_or_default();
            let freedom = match known {
                _ if is_moving(tid) => TaskFreedom::Fixed,
                // A task that was pinned may not be any more. Only an evacuation tries.
                KnownLoad { is_pinned: true, .. } | KnownLoad { settles: 1.., .. } => {
                    TaskFreedom::Settling
                }
                _ => TaskFreedom::Free,
            };
            let cost = self.cost(tid, mean);
            let task = TaskLoad { tid, rank: entry.rank, load: known.load, freedom, cost };
            MeasuredLoad { task, inverse_time: known.inverse_time }
        };
        let tasks = tasks.filter(|(_, entry)| !self.ended.contains(&entry.rank));
        let tasks = without_chance(tasks.map(&mut task).collect());
        let (hosts, bytes) = (HostView { of_ranks, silent, barred }, self.bytes.clone());
        LoadView { processes, hosts, tasks, bytes, period: self.time_to_pay(now) }
    }

    /// The time for which a move is to pay: see [`LoadView::period`].
    fn time_to_pay(&self, now: Instant) -> Duration {
        let lasts = self.overload.map(|(_, since)| now.saturating_duration_since(since));
        self.period.saturating_add(lasts.unwrap_or_default())
    }

    /// Notes which process had too much to do when a round planned no move.
    pub(crate) fn note_overload(&mut self, rank: Option<Rank>, now: Instant) {
        let since = self.overload.filter(|(last, _)| Some(*last) == rank);
        self.overload = since.or(rank.map(|rank| (rank, now)));
    }

    /// What a move of a task is expected to cost; `mean` is the expected pause of any task.
    fn cost(&self, tid: Tid, mean: Duration) -> Duration {
        let pause = self.moves.get(&tid).map_or(mean, |moves| moves.expected);
        pause.saturating_add(OVERHEAD)
    }

    /// The expected pause of a task that has not moved yet.
    fn mean_pause(&self) -> Duration {
        let pauses = self.moves.values().map(|moves| moves.expected);
        match u32::try_from(self.moves.len()) {
            Ok(0) | Err(_) => PAUSE,
            Ok(count) => pauses.fold(Duration::ZERO, Duration::saturating_add) / count,
        }
    }

    /// Begins a phase that ends after this time.
    fn begin(&mut self, phase: RoundPhase, now: Instant, time: Duration) {
        (self.phase, self.next, self.count) = (phase, Some(now + time), None);
    }

    /// Begins a rest.
    fn rest(&mut self, now: Instant, size: usize) {
        let counts = self.counts_processors(size).then(|| now + LONGEST);
        (self.phase, self.next, self.count) = (RoundPhase::Rests, counts, None);
        // A rest is no overload, however much there was to do before.
        self.overload = None;
        self.between.rest();
    }

    /// The time at which the phase ends, or the processors are to be counted.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.count.or(self.next)
    }

    /// The time of the timer for that. A rest has none: an idle machine does nothing.
    pub(crate) fn timer(&self) -> Option<Instant> {
        self.due().filter(|_| self.phase != RoundPhase::Rests)
    }

    /// Returns `true` if what is due is to count the processors.
    pub(crate) fn is_to_count(&self) -> bool {
        self.phase == RoundPhase::Rests || self.count.is_some()
    }

    /// Returns `true` if the number of processes in use follows the number of processors.
    pub(crate) fn counts_processors(&self, size: usize) -> bool {
        self.plan.balancer.is_some() && self.plan.least < size
    }

    /// Takes in the number of processors. `None`: not known.
    pub(crate) fn counted(&mut self, count: Option<usize>, size: usize) -> ProcessorCount {
        let Some(count) = count.filter(|count| self.processors != Some(*count)) else {
            return ProcessorCount::Same;
        };
        self.processors = Some(count);
        (self.number, self.tries) = (count.clamp(self.plan.least, size), 0);
        ProcessorCount::Changed
    }

    /// Goes on with the phase, because the number of processors is the same.
    pub(crate) fn go_on(&mut self, now: Instant, size: usize) {
        match self.phase {
            RoundPhase::Rests => self.rest(now, size),
            RoundPhase::Waits => {
                let at = Some(now + COUNTS).filter(|_| self.counts_processors(size));
                self.count = at.filter(|at| self.next.is_some_and(|next| *at < next));
            }
            RoundPhase::Measures | RoundPhase::Moves => {}
        }
    }

    /// Begins to measure. Returns the number of the round.
    pub(crate) fn measure(&mut self, now: Instant, size: usize) -> u64 {
        let since = self.asked.replace(now).map(|asked| now.saturating_duration_since(asked));
        self.begin_measuring(since.unwrap_or(PERIOD));
        self.missing = self.living(size).filter(|rank| !self.late.contains(rank)).collect();
        if self.missing.is_empty() {
            self.late.clear();
            self.missing = self.living(size).collect();
        }
        self.begin(RoundPhase::Measures, now, ANSWERS);
        self.round += 1;
        self.round
    }

    /// Takes in the loads that a process reports. A late report does not count, but if it has loads
    /// the machine does not rest.
    pub(crate) fn report(
        &mut self,
        from: Rank,
        round: u64,
        loads: MeasuredLoads,
        now: Instant,
        is_there: impl Fn(Tid) -> bool,
    ) -> LoadReport {
        let is_late = self.phase != RoundPhase::Measures || round != self.round;
        let is_waited_for = self.late.remove(&from) || self.missing.contains(&from);
        if is_late || !is_waited_for {
            if !loads.tasks.is_empty() {
                self.woken(now);
            }
            return LoadReport::Late;
        }
        self.missing.remove(&from);
        self.measured(loads, is_there);
        if self.missing.is_empty() { LoadReport::Last } else { LoadReport::Early }
    }

    /// Handles the end of a process. Returns [`LoadReport::Last`] if only its report was missing.
    pub(crate) fn lose(&mut self, rank: Rank) -> LoadReport {
        self.ended.insert(rank);
        self.late.remove(&rank);
        let is_last = self.missing.remove(&rank) && self.missing.is_empty();
        match self.phase {
            RoundPhase::Measures if is_last => LoadReport::Last,
            RoundPhase::Measures => LoadReport::Early,
            _ => LoadReport::Late,
        }
    }

    /// Handles that a task computes in a process that has reported no loads, or reports them late.
    pub(crate) fn woken(&mut self, now: Instant) {
        self.is_busy = true;
        if self.phase == RoundPhase::Rests {
            self.period = PERIOD;
            self.begin(RoundPhase::Waits, now, PERIOD);
        }
    }

    /// At the end of a measurement: lets hosts be tried again that had not answered, and do.
    pub(crate) fn note_reports(&mut self, size: usize, host_of: impl Fn(Rank) -> HostIndex) {
        if self.phase != RoundPhase::Measures || self.bars.is_empty() {
            return;
        }
        let silent = &self.missing | &self.late;
        let silent = self.living(size).filter(|rank| silent.contains(rank)).map(host_of);
        let silent = silent.collect::<BTreeSet<_>>();
        self.bars.note_reports(|host| match silent.contains(&host) {
            true => HostReports::NotAll,
            false => HostReports::All,
        });
    }

    /// Begins the moves of a plan.
    pub(crate) fn begin_moves(&mut self, plan: Vec<PlannedMove>, spread: Option<Spread>) {
        if self.phase == RoundPhase::Measures {
            self.late.append(&mut self.missing);
        }
        (self.queue, self.moved) = (plan.into(), 0);
        (self.spread, self.is_partial) = (spread, false);
        (self.phase, self.next, self.count) = (RoundPhase::Moves, None, None);
    }

    /// Returns `true` if each move of the round has a result.
    pub(crate) fn has_moved(&self) -> bool {
        self.phase == RoundPhase::Moves && self.open.is_empty() && self.queue.is_empty()
    }

    /// Ends a round all of whose moves have results.
    pub(crate) fn end_round(&mut self, left: LeftTasks, now: Instant, size: usize) -> RoundEnd {
        if !self.leaving.is_empty() {
            self.again.get_or_insert(self.spread.unwrap_or(Spread::No));
            self.begin(RoundPhase::Waits, now, AGAIN);
            return RoundEnd::Again;
        }
        let is_soon = left == LeftTasks::Soon || self.is_partial || self.again.is_some();
        if !self.visitors.is_empty() {
            if is_soon && self.tries < TRIES {
                self.tries += 1;
                let spread = self.spread.unwrap_or(Spread::No);
                self.again.get_or_insert(spread);
                self.begin(RoundPhase::Waits, now, AGAIN);
                return RoundEnd::Again;
            }
            self.tries = 0;
        }
        let time = self.time_to_next(left);
        self.period = time.unwrap_or(PERIOD);
        match time {
            Some(time) => {
                self.begin(RoundPhase::Waits, now, time);
                self.go_on(now, size);
            }
            None => self.rest(now, size),
        }
        RoundEnd::Answered
    }

    /// The time until the next round. `None`: the machine rests.
    fn time_to_next(&mut self, left: LeftTasks) -> Option<Duration> {
        if left == LeftTasks::None {
            self.tries = 0;
        }
        match self.plan.balancer {
            Some(_) if self.is_busy && (self.moved > 0 || self.is_changing) => Some(PERIOD),
            Some(_) if self.is_busy => Some((2 * self.period).min(LONGEST)),
            _ if left != LeftTasks::None && self.tries < RETRIES => {
                self.tries += 1;
                Some(PERIOD * (1 << self.tries))
            }
            _ => None,
        }
    }

    /// Notes a move of a task, with its pause.
    pub(crate) fn note_move(&mut self, tid: Tid, from: Rank, to: Rank, pause: Duration) {
        let moves = self.moves.entry(tid).or_default();
        *moves = TaskMoves { count: moves.count.saturating_add(1), pause, expected: pause };
        self.traffic.entry(from).or_default().1 += 1;
        self.traffic.entry(to).or_default().0 += 1;
    }

    /// Forgets what is known of the loads by half in each period, of which `since` has passed. What
    /// is measured now becomes the rest.
    ///
    /// Also forgets a quarter of what was unusual in the pauses. Only a move measures a pause. So
    /// a pause that was long because other programs had the processors would otherwise forbid the
    /// moves that could show a shorter one.
    fn begin_measuring(&mut self, since: Duration) {
        for moves in self.moves.values_mut() {
            moves.expected = moves.expected.saturating_mul(3).saturating_add(PAUSE) / 4;
        }
        self.weight = (-since.as_secs_f64() / PERIOD.as_secs_f64()).exp2();
        self.inverse_time = 1.0 / since.as_secs_f64().max(1e-3);
        self.is_changing = false;
        for known in self.loads.values_mut() {
            // It has moved since the last round, so that no process may have measured it since.
            let is_fresh = known.settles == SETTLES;
            known.settles = known.settles.saturating_sub(1);
            known.last_load = known.load;
            if is_fresh {
                self.is_changing = true;
            } else {
                known.load = (known.load as f64 * self.weight) as u64;
            }
        }
        self.loads.retain(|_, known| known.load >= LITTLE || known.settles > 0);
        self.bytes.clear();
        self.is_busy = false;
    }

    /// Takes in what a process has measured of its tasks.
    fn measured(&mut self, loads: MeasuredLoads, is_there: impl Fn(Tid) -> bool) {
        self.is_busy |= !loads.tasks.is_empty();
        let (mut difference, loads) = (0, loads.bounded());
        for task in loads.tasks.into_iter().filter(|task| is_there(task.tid)) {
            let (load, is_pinned) = (task.load.min(WHOLE), task.is_pinned);
            let is_new = !self.loads.contains_key(&task.tid);
            let known = self.loads.entry(task.tid).or_default();
            let is_other = self.weight <= 0.5 && load.abs_diff(known.last_load) > OTHER;
            let weight = if is_new || is_other { 0.0 } else { self.weight };
            let mean = known.last_load as f64 * weight + load as f64 * (1.0 - weight);
            (known.load, known.is_pinned) = ((mean as u64).min(WHOLE), is_pinned);
            // The variance of a weighted mean.
            known.inverse_time =
                known.inverse_time * weight.powi(2) + self.inverse_time * (1.0 - weight).powi(2);
            difference += known.load.cast_signed() - load.cast_signed();
        }
        self.is_changing |= difference.unsigned_abs() > LEAST;
        // A process counts what its own tasks send.
        let is_own = |(one, other): (Tid, Tid)| is_there(one) || is_there(other);
        for (pair, bytes) in loads.bytes.into_iter().filter(|(pair, _)| is_own(*pair)) {
            let sum = self.bytes.entry(pair).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }
}
