//! Takes chance out of measured loads.
//!
//! Interrupts measure a load, one each 10 ms. In a period of 25 interrupts, a task that needs a
//! sixteenth of a processor is found once, or three times. A balancer that moves the heaviest tasks
//! then moves those that were found too often, and too few of them. The sum of a process's loads
//! does not depend on chance.
//!
//! So each load is drawn towards the mean of its process, by the part of the loads' variance that
//! chance explains (James and Stein, 1961). Interrupts that find a task with the chance p have the
//! variance p. Three times as much is taken to be chance: tasks that take turns may do so in step
//! with the interrupts. Loads that differ by more than that stay nearly as they are.

use super::{TaskLoad, WHOLE};

/// Time between two interrupts, in seconds.
const INTERRUPT: f64 = 0.01;
/// Variance of loads that is taken to be chance, in that of independent interrupts.
const STEP: f64 = 3.0;

/// A task, and for how long its load was measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeasuredLoad {
    pub(super) task: TaskLoad,
    /// Reciprocal of the time for which the load was measured, per second. The variance that chance
    /// gives the load is proportional to it.
    pub(super) inverse_time: f64,
}

/// Draws the loads of each process together.
pub(super) fn without_chance(mut all: Vec<MeasuredLoad>) -> Vec<TaskLoad> {
    all.sort_by_key(|one| (one.task.rank, one.task.tid));
    for group in all.chunk_by_mut(|one, other| one.task.rank == other.task.rank) {
        draw_together(group);
    }
    all.into_iter().map(|one| one.task).collect()
}

fn draw_together(group: &mut [MeasuredLoad]) {
    let is_busy = |one: &&mut MeasuredLoad| one.task.load > 0;
    let mut busy = group.iter_mut().filter(is_busy).collect::<Vec<_>>();
    if busy.len() < 2 {
        return;
    }
    let count = busy.len() as f64;
    let load = |one: &MeasuredLoad| one.task.load as f64 / WHOLE as f64;
    let mean = busy.iter().map(|one| load(one)).sum::<f64>() / count;
    let squares = busy.iter().map(|one| (load(one) - mean).powi(2)).sum::<f64>();
    let inverse_time = busy.iter().map(|one| one.inverse_time).sum::<f64>() / count;
    let chance = STEP * mean * INTERRUPT * inverse_time;
    let found = squares / (count - 1.0);
    let stays = if found > chance { 1.0 - chance / found } else { 0.0 };
    for one in &mut busy {
        let drawn = mean + (load(one) - mean) * stays;
        one.task.load = (drawn * WHOLE as f64).round() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::super::TaskFreedom;
    use super::*;
    use crate::tid::Tid;
    use std::time::Duration;
    use upcall_message::Rank;

    fn sum(tasks: &[TaskLoad], rank: Rank) -> u64 {
        tasks.iter().filter(|task| task.rank == rank).map(|task| task.load).sum()
    }

    fn measured(loads: &[(Rank, u64)], inverse_time: f64) -> Vec<MeasuredLoad> {
        let one = |(at, (rank, load)): (usize, &(Rank, u64))| {
            let (tid, freedom) = (Tid::new(0, at as u32 + 1), TaskFreedom::Free);
            let task = TaskLoad { tid, rank: *rank, load: *load, freedom, cost: Duration::ZERO };
            MeasuredLoad { task, inverse_time }
        };
        loads.iter().enumerate().map(one).collect()
    }

    #[test]
    fn loads_that_differ_by_chance_become_alike_and_their_sum_stays() {
        // Interrupts of a quarter of a second: one, two and three of 25.
        let loads = [(0, 40_000), (0, 80_000), (0, 120_000), (0, 80_000), (1, 40_000), (1, 0)];
        let all = without_chance(measured(&loads, 4.0));
        let found = all.iter().map(|task| (task.rank, task.load)).collect::<Vec<_>>();
        assert_eq!(found[..4], [(0, 80_000); 4]);
        // A task alone keeps its load, and an idle task stays idle.
        assert_eq!(found[4..], [(1, 40_000), (1, 0)]);
        // After an hour it is no chance.
        let all = without_chance(measured(&loads, 1.0 / 3600.0));
        let found = all.iter().map(|task| task.load).collect::<Vec<_>>();
        assert!(found[0] < 41_000 && found[2] > 119_000, "{found:?}");
        assert!(sum(&all, 0).abs_diff(320_000) < 4, "{found:?}");
    }

    #[test]
    fn a_heavy_task_stays_heavy() {
        let loads = [(0, 700_000), (0, 40_000), (0, 80_000), (0, 40_000)];
        let all = without_chance(measured(&loads, 4.0));
        assert!(all[0].load > 550_000 && all[1].load < 100_000, "{all:?}");
        assert!(sum(&all, 0).abs_diff(860_000) < 4);
    }
}
