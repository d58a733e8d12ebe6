//! Moves between hosts: which tasks are to go to which host, because another one has had too much
//! to do for a while.
//!
//! A state machine without input and output: loads, results of moves and the time are arguments.
//! The first process of a machine has it ([`rounds`](super::rounds)).
//!
//! # Design
//! - Within a host the balancers move tasks as in a machine of one host, because such a move is
//!   cheap. This module gets what they leave. The load of a host is the mean of its processes.
//! - Hosts are compared in pairs. A pair differs if the loads are further apart than
//!   [`tolerance`]. The difference *lasts* after [`LASTS`] and [`ROUNDS`] measured rounds.
//! - A move is planned only for a difference that lasts, and only if the move would have gained
//!   more in that time than the pause that it is expected to cost. So an expensive move comes late,
//!   but it comes (the ski rental problem, as within a host).
//! - No task goes back and forth: after each move to another host it stays there for a time
//!   ([`FarTasks`]), which doubles if moves follow each other. After a move, the difference of the
//!   two hosts has to last again.
//! - A host that did not report its loads in the round neither gives nor gets tasks.
//! - Loads of other hosts are claims. No third host's claim counts for a pair. So a lie about a
//!   load keeps no honest host from giving tasks to another one. A host whose new tasks seem to be
//!   idle gets further ones later and later ([`FarTasks::quota`]).
//! - Tasks stay away from hosts that have refused them ([`Bars`](super::bars::Bars)).

#[cfg(test)]
mod tests;

use super::probation::FarTasks;
use super::refine::Partners;
use super::{
    BalancerKind, HostIndex, LoadSums, LoadView, PlannedMove, TaskFreedom, TaskLoad, WHOLE,
};
use crate::tid::Tid;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use upcall_message::Rank;

/// Time for which two hosts must have differed before a task moves.
pub(super) const LASTS: Duration = Duration::from_secs(1);
/// Number of measured rounds for which two hosts must have differed before a task moves.
pub(super) const ROUNDS: u32 = 3;
/// Minimum difference of two hosts that counts, in millionths of a processor for each process.
const LEAST: u64 = WHOLE / 5;
/// Minimum gain of a move: by so much the larger load of two hosts becomes smaller.
const LEAST_GAIN: u64 = WHOLE / 50;
/// What a move costs beside its pause: the processor time of sending and receiving the task.
const OVERHEAD: Duration = Duration::from_millis(5);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct BetweenHosts {
    /// The pairs that differ: the host with more to do comes first.
    differences: BTreeMap<(HostIndex, HostIndex), Difference>,
    pub(crate) far: FarTasks,
}

/// For how long two hosts have differed.
#[derive(Clone, Copy, Debug)]
struct Difference {
    since: Instant,
    rounds: u32,
}

/// What a host has to do.
#[derive(Clone, Copy, Debug, Default)]
struct HostLoad {
    /// The load of its processes in use.
    sum: u64,
    /// Number of these.
    processes: u64,
}

impl HostLoad {
    /// The mean load of its processes.
    fn mean(self) -> u64 {
        self.sum / self.processes.max(1)
    }

    fn with(self, load: u64) -> Self {
        Self { sum: self.sum.saturating_add(load), ..self }
    }

    fn without(self, load: u64) -> Self {
        Self { sum: self.sum.saturating_sub(load), ..self }
    }
}

/// The difference up to which two hosts with these loads count as alike: a fifth of their sum.
fn tolerance(one: u64, other: u64) -> u64 {
    (one.saturating_add(other) / 5).max(LEAST)
}

/// A move that makes the larger load of two hosts smaller.
#[derive(Clone, Copy, Debug)]
struct WantedMove {
    tid: Tid,
    rank: Rank,
    load: u64,
    /// By how much.
    gain: u64,
}

impl BetweenHosts {
    /// Plans moves between hosts after a round in which loads were measured. `view` has the moves
    /// within hosts behind it.
    pub(crate) fn plan(
        &mut self,
        view: &LoadView,
        kind: BalancerKind,
        now: Instant,
    ) -> Vec<PlannedMove> {
        let mut sums = LoadSums::of(view);
        let mut hosts = loads_of_hosts(view, &sums);
        self.far.note_claims(view);
        self.note_differences(&hosts, now);
        let partners = kind.wants_bytes().then(|| Partners::of(view));
        let host_of = |task: &TaskLoad| (task.tid, view.hosts.of(task.rank));
        let mut places = view.tasks.iter().map(host_of).collect::<BTreeMap<_, _>>();
        let (mut plan, mut moved) = (Vec::new(), BTreeSet::new());
        for (from, to) in self.lasting(&hosts, now) {
            let processes = hosts.get(&to).map_or(0, |host| host.processes);
            let before = plan.len();
            for _ in 0..self.far.quota((from, to), processes, now) {
                let (Some(full), Some(free)) = (hosts.get(&from), hosts.get(&to)) else { break };
                let wanted = self.wanted(view, (from, to), (*full, *free), now);
                let wanted = wanted.filter(|one| !moved.contains(&one.tid)).collect::<Vec<_>>();
                let best = best(&wanted, partners.as_ref(), to, &places);
                let target = sums.least_of(|rank| view.hosts.of(rank) == to);
                let (Some(WantedMove { tid, rank, load, .. }), Some(target)) = (best, target)
                else {
                    break;
                };
                let (less, more) = (full.without(load), free.with(load));
                hosts.insert(from, less);
                hosts.insert(to, more);
                sums.moved(load, rank, target);
                places.insert(tid, to);
                moved.insert(tid);
                plan.push(PlannedMove { tid, to: target });
            }
            if plan.len() > before {
                self.differences.remove(&(from, to));
            }
        }
        plan
    }

    /// Begins a rest of the machine, in which no host has anything to do.
    pub(crate) fn rest(&mut self) {
        self.differences.clear();
    }

    /// Notes which hosts differ in this round.
    fn note_differences(&mut self, hosts: &BTreeMap<HostIndex, HostLoad>, now: Instant) {
        let means = hosts.iter().map(|(host, load)| (*host, load.mean())).collect::<Vec<_>>();
        let mut differ = BTreeMap::new();
        for (from, full) in &means {
            let less = means
                .iter()
                .filter(|(_, free)| full.saturating_sub(*free) > tolerance(*full, *free));
            for (to, _) in less {
                let before = self.differences.get(&(*from, *to)).copied();
                let mut difference = before.unwrap_or(Difference { since: now, rounds: 0 });
                difference.rounds = difference.rounds.saturating_add(1);
                differ.insert((*from, *to), difference);
            }
        }
        self.differences = differ;
    }

    /// The pairs of hosts that have differed for long enough, those that differ most first.
    fn lasting(
        &self,
        hosts: &BTreeMap<HostIndex, HostLoad>,
        now: Instant,
    ) -> Vec<(HostIndex, HostIndex)> {
        let mean = |host: &HostIndex| hosts.get(host).map_or(0, |load| load.mean());
        let lasts = |(_, one): &(&(HostIndex, HostIndex), &Difference)| {
            one.rounds >= ROUNDS && now.saturating_duration_since(one.since) >= LASTS
        };
        let all = self.differences.iter().filter(lasts).map(|(pair, _)| *pair);
        let mut all = all.collect::<Vec<_>>();
        let apart = |(from, to): &(HostIndex, HostIndex)| mean(from).saturating_sub(mean(to));
        all.sort_by_key(|pair| (Reverse(apart(pair)), *pair));
        all
    }

    /// The moves from one host to another that gain more than they cost.
    fn wanted<'a>(
        &'a self,
        view: &'a LoadView,
        (from, to): (HostIndex, HostIndex),
        (full, free): (HostLoad, HostLoad),
        now: Instant,
    ) -> impl Iterator<Item = WantedMove> + 'a {
        let since = self.differences.get(&(from, to)).map_or(now, |difference| difference.since);
        let lasted = now.saturating_duration_since(since);
        let may_move = move |task: &&TaskLoad| {
            task.freedom == TaskFreedom::Free
                && view.hosts.of(task.rank) == from
                && view.is_used(task.rank)
                && !view.hosts.is_barred(task.tid, to)
                && self.far.may_move(task.tid, now)
        };
        view.tasks.iter().filter(may_move).filter_map(move |task| {
            let TaskLoad { tid, rank, load, .. } = *task;
            let after = full.without(load).mean().max(free.with(load).mean());
            let gain = full.mean().saturating_sub(after);
            let cost = self.far.pause(tid, to, now).saturating_add(OVERHEAD);
            let pays = gain >= LEAST_GAIN && super::pays(gain, lasted, cost);
            pays.then_some(WantedMove { tid, rank, load, gain })
        })
    }
}

/// The load of each host that has processes in use, all of which have reported theirs.
fn loads_of_hosts(view: &LoadView, sums: &LoadSums) -> BTreeMap<HostIndex, HostLoad> {
    let (mut hosts, mut silent) = (BTreeMap::<_, HostLoad>::new(), BTreeSet::new());
    for (rank, load, _) in sums.all() {
        let host = view.hosts.of(rank);
        let all = hosts.entry(host).or_default();
        *all = HostLoad { processes: all.processes + 1, ..all.with(load) };
        if view.hosts.silent.contains(&rank) {
            silent.insert(host);
        }
    }
    hosts.retain(|host, _| !silent.contains(host));
    hosts
}

/// The move that gains most. Among those that gain nearly as much, the one after which the fewest
/// bytes go between hosts, if bytes were counted.
fn best(
    wanted: &[WantedMove],
    partners: Option<&Partners>,
    to: HostIndex,
    places: &BTreeMap<Tid, HostIndex>,
) -> Option<WantedMove> {
    let most = wanted.iter().map(|one| one.gain).max()?;
    let least = partners.map_or(most, |_| most - most / 5);
    let saved = |tid| partners.map_or(0, |partners| partners.saved(tid, to, places));
    let alike = wanted.iter().filter(|one| one.gain >= least);
    alike.max_by_key(|one| (saved(one.tid), one.gain, Reverse(one.tid))).copied()
}
