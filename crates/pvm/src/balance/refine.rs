//! Moves tasks away from processes that have more than their share, until all are within the
//! tolerance, or nothing helps.
//!
//! A move from a process with load A to one with load B helps by A - max(A - l, B + l), where l is
//! the task's load. So the best task has half of the difference. Any move that helps makes the sum
//! of the loads' squares smaller.

use super::{Balancer, LoadSums, LoadView, PlannedMove, TaskFreedom, TaskLoad};
use crate::tid::Tid;
use std::collections::{BTreeMap, BTreeSet};
use upcall_message::Rank;

/// See the module.
pub(super) struct Refine;

/// The same. Among moves that help nearly alike, takes the one after which the fewest bytes go
/// between processes.
pub(super) struct Comm;

impl Balancer for Refine {
    fn balance(&self, view: &LoadView, sums: &mut LoadSums) -> Vec<PlannedMove> {
        let best = |helps: &[HelpfulMove]| {
            helps.iter().max_by_key(|one| (one.gain, std::cmp::Reverse((one.tid, one.to)))).copied()
        };
        refine(view, sums, |helps, _| best(helps))
    }
}

impl Balancer for Comm {
    fn balance(&self, view: &LoadView, sums: &mut LoadSums) -> Vec<PlannedMove> {
        let partners = Partners::of(view);
        refine(view, sums, |helps, ranks| {
            let most = helps.iter().map(|one| one.gain).max()?;
            let alike = helps.iter().filter(|one| one.gain >= most - most / 5);
            alike
                .max_by_key(|one| {
                    let saved = partners.saved(one.tid, one.to, ranks);
                    (saved, one.gain, std::cmp::Reverse((one.tid, one.to)))
                })
                .copied()
        })
    }
}

/// A move that makes the larger load of two processes smaller.
#[derive(Clone, Copy, Debug)]
struct HelpfulMove {
    tid: Tid,
    to: Rank,
    load: u64,
    /// By how much.
    gain: u64,
}

fn refine(
    view: &LoadView,
    sums: &mut LoadSums,
    choose: impl Fn(&[HelpfulMove], &BTreeMap<Tid, Rank>) -> Option<HelpfulMove>,
) -> Vec<PlannedMove> {
    let bound = sums.bound();
    let mut ranks = view.tasks.iter().map(|task| (task.tid, task.rank)).collect::<BTreeMap<_, _>>();
    let (mut plan, mut moved, mut done) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    loop {
        let over = sums.all().filter(|(rank, load, _)| *load > bound && !done.contains(rank));
        let Some((from, load, _)) = over.max_by_key(|(rank, load, _)| (*load, *rank)) else {
            return plan;
        };
        let free = view.tasks.iter().filter(|task| {
            task.rank == from && task.freedom == TaskFreedom::Free && !moved.contains(&task.tid)
        });
        let helps = free.flat_map(|task| helpful(view, sums, task, load)).collect::<Vec<_>>();
        let Some(HelpfulMove { tid, to, load, .. }) = choose(&helps, &ranks) else {
            done.insert(from);
            continue;
        };
        sums.moved(load, from, to);
        moved.insert(tid);
        ranks.insert(tid, to);
        plan.push(PlannedMove { tid, to });
    }
}

/// The moves of a task that help by more than they cost.
fn helpful(view: &LoadView, sums: &LoadSums, task: &TaskLoad, from: u64) -> Vec<HelpfulMove> {
    let (tid, load) = (task.tid, task.load);
    let one = move |(to, there, _): (Rank, u64, usize)| {
        let after = (from.saturating_sub(load)).max(there.saturating_add(load));
        let gain = from.saturating_sub(after);
        let is_worth = to != task.rank && gain > 0 && view.is_worth(gain, task.cost);
        is_worth.then_some(HelpfulMove { tid, to, load, gain })
    };
    sums.all().filter_map(one).collect()
}

/// The tasks with which each task exchanges messages, and the bytes.
pub(super) struct Partners(BTreeMap<Tid, Vec<(Tid, u64)>>);

impl Partners {
    pub(super) fn of(view: &LoadView) -> Self {
        let mut all = BTreeMap::<Tid, Vec<(Tid, u64)>>::new();
        for ((one, other), bytes) in &view.bytes {
            all.entry(*one).or_default().push((*other, *bytes));
            all.entry(*other).or_default().push((*one, *bytes));
        }
        Self(all)
    }

    /// The bytes that no longer go between places if the task moves, less those that then do. A
    /// place is a process or a host, of which `places` has that of each task.
    pub(super) fn saved(&self, tid: Tid, to: usize, places: &BTreeMap<Tid, usize>) -> i128 {
        let own = places.get(&tid);
        let one = |(partner, bytes): &(Tid, u64)| match places.get(partner) {
            Some(place) if *place == to => i128::from(*bytes),
            place if place == own => -i128::from(*bytes),
            _ => 0,
        };
        self.0.get(&tid).into_iter().flatten().map(one).sum()
    }
}
