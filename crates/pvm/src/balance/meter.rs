//! What a process keeps to measure the loads of its tasks (`node/balancing/meter.rs`).

use super::WHOLE;
use crate::task::{Task, TaskMessage};
use crate::tid::Tid;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Minimum time for which a task is measured: with fewer interrupts its load is chance.
pub(crate) const SHORTEST: Duration = Duration::from_millis(100);
/// Maximum number of pairs of tasks whose bytes are counted in a period.
const PAIRS: usize = 1 << 16;

/// The measurement of this process's tasks.
#[derive(Debug, Default)]
pub(crate) struct LoadMeter {
    /// Each task as it was at the start of the period, or when it came.
    pub(crate) before: HashMap<Tid, MeterStart>,
    pub(crate) since: Option<(Instant, Duration)>,
    /// Whether the first process waits for [`ControlMessage::Wakes`].
    pub(crate) rests: bool,
}

/// A task when its measurement began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeterStart {
    pub(crate) since: Instant,
    /// Processor time of the task, and how often it had run.
    pub(crate) time: Duration,
    pub(crate) runs: u32,
}

impl MeterStart {
    pub(crate) fn of(task: &Task, since: Instant) -> Self {
        Self { since, time: task.ulp.processor_time(), runs: task.runs }
    }
}

/// Bytes between two tasks since the last report, the lower number first.
#[derive(Debug, Default)]
pub(crate) struct PairTraffic(HashMap<(i32, i32), u64>);

impl PairTraffic {
    /// Counts a message of a task of this process.
    #[cold]
    pub(crate) fn count(&mut self, message: &TaskMessage) {
        let (one, other) = (message.source, message.destination);
        let pair = (one.min(other), one.max(other));
        // Also a message without data costs something.
        let bytes = message.length as u64 + 64;
        if let Some(sum) = self.0.get_mut(&pair) {
            *sum = sum.saturating_add(bytes);
        } else if self.0.len() < PAIRS {
            self.0.insert(pair, bytes);
        }
    }

    pub(crate) fn take(&mut self) -> Vec<((Tid, Tid), u64)> {
        let pair = |((one, other), bytes)| Some(((Tid::of(one)?, Tid::of(other)?), bytes));
        std::mem::take(&mut self.0).into_iter().filter_map(pair).collect()
    }
}

/// The load of a task that has used so much processor time in a period.
pub(crate) fn load(used: Duration, period: Duration) -> u64 {
    let load = used.as_nanos() * u128::from(WHOLE) / period.as_nanos().max(1);
    // A task can write the word that has its time.
    u64::try_from(load).unwrap_or(WHOLE).min(WHOLE)
}

/// The time for which this thread has waited for a processor so far; 0 if the kernel does not tell.
pub(crate) fn waited() -> Duration {
    // Time on a processor, time of waiting for one, number of turns: the kernel's sched-stats.rst.
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = text.split_whitespace().nth(1).and_then(|word| word.parse().ok());
    Duration::from_nanos(waited.unwrap_or(0))
}

/// Processor time of this thread.
pub(crate) fn own_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(source: Tid, destination: Tid, length: usize) -> TaskMessage {
        let (source, destination) = (source.number(), destination.number());
        let (tag, context, encoding, wait) = (0, 0, 0, 0);
        TaskMessage { source, destination, tag, context, encoding, wait, block: None, length }
    }

    #[test]
    fn bytes_of_a_pair_are_counted_both_ways_until_they_are_taken() {
        let mut traffic = PairTraffic::default();
        let (one, other) = (Tid::new(0, 1), Tid::new(1, 1));
        traffic.count(&message(one, other, 100));
        traffic.count(&message(other, one, 1000));
        assert_eq!(traffic.take(), [((one, other), 1100 + 2 * 64)]);
        assert_eq!(traffic.take(), []);
    }

    #[test]
    fn a_load_is_a_part_of_a_processor_whatever_a_task_says_of_its_time() {
        let (ms, s) = (Duration::from_millis(1), Duration::from_secs(1));
        assert_eq!(load(250 * ms, s), WHOLE / 4);
        assert_eq!(load(Duration::MAX, s), WHOLE);
        assert_eq!(load(ms, Duration::ZERO), WHOLE);
    }
}
