//! Measures what the tasks of this process do, for the first process.
//!
//! A task's load is its processor time in a period, which the worker's interrupts measure anyway.
//! A task that could have run in a whole period, and has not, needs more processor than there is:
//! its load is a whole one. Bytes between tasks are counted only if the balancer wants them.
//!
//! The time for which the worker waited for its processor, because the kernel ran other programs
//! there, is no part of the period. Otherwise a process with a busy neighbour would seem to have
//! less to do.
//!
//! A process whose tasks have used no processor *rests*. It says so when a task is next found
//! computing ([`ControlMessage::Wakes`]). So nobody measures an idle machine.

use super::super::Node;
use crate::balance::WHOLE;
use crate::remote::ControlMessage;
use crate::task::{Task, TaskMessage, TaskState};
use crate::tid::Tid;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Maximum number of pairs of tasks whose bytes are counted in a period.
const PAIRS: usize = 1 << 16;

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

/// The measurement of this process's tasks.
#[derive(Debug, Default)]
pub(in crate::node) struct LoadMeter {
    /// Processor time of each task at the start of the period, and how often it had run.
    before: HashMap<Tid, (Duration, u32)>,
    since: Option<(Instant, Duration)>,
    /// Whether the first process waits for [`ControlMessage::Wakes`].
    rests: bool,
}

/// Bytes between two tasks since the last report, the lower number first.
#[derive(Debug, Default)]
pub(in crate::node) struct PairTraffic(HashMap<(i32, i32), u64>);

impl PairTraffic {
    /// Counts a message of a task of this process.
    #[cold]
    pub(in crate::node) fn count(&mut self, message: &TaskMessage) {
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

    fn take(&mut self) -> Vec<((Tid, Tid), u64)> {
        let pair = |((one, other), bytes)| Some(((Tid::of(one)?, Tid::of(other)?), bytes));
        std::mem::take(&mut self.0).into_iter().filter_map(pair).collect()
    }
}

/// The load of a task that has used so much processor time in a period.
fn load(used: Duration, period: Duration) -> u64 {
    let load = used.as_nanos() * u128::from(WHOLE) / period.as_nanos().max(1);
    // A task can write the word that has its time.
    u64::try_from(load).unwrap_or(WHOLE).min(WHOLE)
}

/// The time for which this thread has waited for a processor so far; 0 if the kernel does not tell.
fn waited() -> Duration {
    // Time on a processor, time of waiting for one, number of turns: the kernel's sched-stats.rst.
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = text.split_whitespace().nth(1).and_then(|word| word.parse().ok());
    Duration::from_nanos(waited.unwrap_or(0))
}

impl Node {
    /// Handles the first process's question: reports the loads since the last one.
    pub(in crate::node) fn measure(&mut self, with_bytes: bool) {
        if with_bytes && self.traffic.is_none() {
            self.traffic = Some(Box::default());
        }
        let (now, waited) = (Instant::now(), waited());
        let period = self.meter.since.replace((now, waited)).map(|(since, waited_before)| {
            (now - since).saturating_sub(waited.saturating_sub(waited_before))
        });
        let before = std::mem::take(&mut self.meter.before);
        let (mut loads, mut after) = (MeasuredLoads::default(), HashMap::new());
        for task in self.tasks.iter().flatten() {
            let (time, runs) = (task.ulp.processor_time(), task.runs);
            after.insert(task.tid, (time, runs));
            let Some((time_before, runs_before)) = before.get(&task.tid) else { continue };
            let starves = task.state == TaskState::Runs && runs == *runs_before;
            let load = match period {
                Some(_) if starves && time == *time_before => WHOLE,
                Some(period) => load(time.saturating_sub(*time_before), period),
                None => 0,
            };
            if load > 0 {
                // A task that has never run can move only once it has.
                let is_pinned = runs == 0 || task.pinned().is_some();
                loads.tasks.push(MeasuredTask { tid: task.tid, load, is_pinned });
            }
        }
        self.meter.before = after;
        self.meter.rests = loads.tasks.is_empty();
        loads.bytes = self.traffic.as_mut().map(|traffic| traffic.take()).unwrap_or_default();
        self.tell_first(ControlMessage::Measured { loads });
    }

    /// Reports that a task computes, if this process was at rest.
    #[inline]
    pub(in crate::node) fn wake_balancer(&mut self) {
        if self.meter.rests {
            self.begin_period();
        }
    }

    #[cold]
    fn begin_period(&mut self) {
        let time = |task: &Task| (task.tid, (task.ulp.processor_time(), task.runs));
        self.meter.before = self.tasks.iter().flatten().map(|task| time(task)).collect();
        (self.meter.since, self.meter.rests) = (Some((Instant::now(), waited())), false);
        self.tell_first(ControlMessage::Wakes);
    }
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
