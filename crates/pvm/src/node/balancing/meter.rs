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
//! A process whose tasks have used no processor *rests*. The next interrupt that finds a task
//! computing ends the rest, and is reported ([`ControlMessage::Wakes`]). So an idle machine
//! measures nothing.

use super::super::Node;
use crate::balance::meter::{MeterStart, SHORTEST, load, waited};
use crate::balance::{MeasuredLoads, MeasuredTask, WHOLE};
use crate::remote::ControlMessage;
use crate::task::{Task, TaskState};
use std::collections::HashMap;
use std::time::Instant;

impl Node {
    /// Handles the first process's question: reports the loads since the last one.
    pub(in crate::node) fn measure(&mut self, round: u64, with_bytes: bool) {
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
            let MeterStart { time, runs, .. } = MeterStart::of(task, now);
            let Some(begun) = before.get(&task.tid) else {
                after.insert(task.tid, MeterStart::of(task, now));
                continue;
            };
            // A new task is measured until the next report.
            let own = now.saturating_duration_since(begun.since);
            if period.is_some_and(|period| own < SHORTEST.min(period)) {
                after.insert(task.tid, *begun);
                continue;
            }
            after.insert(task.tid, MeterStart::of(task, now));
            let starves = task.state == TaskState::Runs && runs == begun.runs;
            let load = match period {
                Some(_) if starves && time == begun.time => WHOLE,
                Some(period) => load(time.saturating_sub(begun.time), period.min(own)),
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
        self.tell_first(ControlMessage::Measured { round, loads: loads.bounded() });
    }

    /// Begins to measure a new task, if this process measures.
    pub(in crate::node) fn measure_from_now(&mut self, task: &Task) {
        if self.meter.since.is_some() && !self.meter.rests {
            self.meter.before.insert(task.tid, MeterStart::of(task, Instant::now()));
        }
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
        let now = Instant::now();
        let begun = |task: &Task| (task.tid, MeterStart::of(task, now));
        self.meter.before = self.tasks.iter().flatten().map(|task| begun(task)).collect();
        (self.meter.since, self.meter.rests) = (Some((now, waited())), false);
        self.tell_first(ControlMessage::Wakes);
    }
}
