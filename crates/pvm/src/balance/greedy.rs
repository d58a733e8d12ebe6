//! Distributes all tasks from scratch: the heaviest first, each to the least loaded process.
//!
//! A task stays in its process if that is not much more loaded than the least loaded one. The
//! result counts only if the largest load becomes smaller by more than the tolerance, and if that
//! is worth all of the moves.

use super::{Balancer, LEAST, LoadSums, LoadView, PlannedMove, TaskFreedom, TaskLoad};
use std::cmp::Reverse;
use std::time::Duration;

/// See the module.
pub(super) struct Greedy;

impl Balancer for Greedy {
    fn balance(&self, view: &LoadView, sums: &mut LoadSums) -> Vec<PlannedMove> {
        if sums.most() <= sums.bound() {
            return Vec::new();
        }
        let is_free = |task: &TaskLoad| {
            task.freedom == TaskFreedom::Free && task.load > 0 && sums.load(task.rank).is_some()
        };
        let mut free = view.tasks.iter().filter(|task| is_free(task)).collect::<Vec<_>>();
        free.sort_by_key(|task| (Reverse(task.load), task.tid));
        let mut after = sums.clone();
        free.iter().for_each(|task| after.take(task));
        let near = (sums.mean() / 10).max(LEAST);
        let (mut plan, mut cost) = (Vec::new(), Duration::ZERO);
        for task in free {
            let Some(least) = after.least() else { break };
            let load = |rank| after.load(rank).unwrap_or(u64::MAX);
            let stays = load(task.rank) <= load(least).saturating_add(near.min(task.load / 2));
            let to = if stays { task.rank } else { least };
            after.add(to, task.load);
            if to != task.rank {
                plan.push(PlannedMove { tid: task.tid, to });
                cost = cost.saturating_add(task.cost);
            }
        }
        let gain = sums.most().saturating_sub(after.most());
        if gain <= LEAST || !view.is_worth(gain, cost) {
            return Vec::new();
        }
        *sums = after;
        plan
    }
}

impl LoadSums {
    /// Takes a task out of its process.
    fn take(&mut self, task: &TaskLoad) {
        if let Some(Some((sum, count))) = self.sums.get_mut(task.rank) {
            (*sum, *count) = (sum.saturating_sub(task.load), count.saturating_sub(1));
        }
    }
}
