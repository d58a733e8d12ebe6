//! What comes from outside of the process: time, and descriptors that tasks wait for (V10).
//!
//! While tasks can run it is looked for now and then; else the worker waits for it in the kernel, and takes no processor.

use super::Node;
use crate::task::State;
use std::cmp::Reverse;
use std::time::{Duration, Instant};
use upcall_ulp::descriptors;

/// While others run, descriptors are looked at so often at most: it is a call of the kernel's.
const BETWEEN: Duration = Duration::from_micros(500);
/// So long a wait for descriptors takes that nothing else can end.
const SOON: Duration = Duration::from_millis(1);
/// Of `poll(2)`.
const POLLIN: u16 = 1;

impl Node {
    /// Who waits for what has come can run. If `wait`, waits until there is somebody.
    pub(super) fn look_outside(&mut self, wait: bool) {
        if self.timers.is_empty() && self.awaiting.is_empty() && !wait {
            return;
        }
        let now = Instant::now();
        let until = self.timers.peek().map(|Reverse((when, _))| when.saturating_duration_since(now));
        let asked = wait && self.desk.is_some();
        match (&self.link, until) {
            _ if !self.awaiting.is_empty() && (wait || now >= self.looked + BETWEEN) => {
                self.looked = now;
                self.descriptors(if wait { until } else { Some(Duration::ZERO) });
            }
            // Who can be asked waits for that as well, but what other processes send at once comes at once.
            (Some(link), _) if asked && !self.quiet => self.quiet = !link.wait(Some(until.unwrap_or(SOON).min(SOON))),
            _ if asked => {
                self.quiet = false;
                self.descriptors(until);
            }
            (Some(link), _) if wait => _ = link.wait(until),
            (None, Some(until)) if wait => std::thread::sleep(until),
            _ => {}
        }
        self.times();
    }

    /// It is looked after this task at that time.
    pub(super) fn at(&mut self, when: Instant, index: u32) {
        self.timers.push(Reverse((when, index)));
    }

    fn times(&mut self) {
        let now = Instant::now();
        while let Some(&Reverse((when, index))) = self.timers.peek().filter(|Reverse((when, _))| *when <= now) {
            self.timers.pop();
            let Some(task) = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut) else { continue };
            if matches!(task.state, State::Receives(_, Some(until)) | State::Sleeps(until) if until == when) {
                task.state = State::Runs;
                task.ulp.answer(0);
                self.enqueue(index);
            }
        }
    }

    /// Messages of other processes end the wait, too: by a bell that is rung for them meanwhile.
    fn descriptors(&mut self, time: Option<Duration>) {
        let tasks = &self.tasks;
        let awaits = |index: &u32| match tasks.get(*index as usize)?.as_deref()?.state {
            State::Awaits(descriptor, events) => Some((*index, (descriptor, events))),
            _ => None,
        };
        let (indices, mut wanted): (Vec<_>, Vec<_>) = self.awaiting.iter().filter_map(awaits).unzip();
        self.awaiting.clear();
        let bell = self.link.as_ref().filter(|_| time != Some(Duration::ZERO)).and_then(|link| link.bell());
        wanted.extend(bell.iter().map(|bell| (bell.descriptor(), POLLIN)));
        wanted.extend(self.desk.iter().filter(|_| time != Some(Duration::ZERO)).map(|desk| (desk.descriptor(), POLLIN)));
        // Without a bell it is looked again soon.
        let time = if self.link.is_some() && bell.is_none() { Some(time.unwrap_or(SOON).min(SOON)) } else { time };
        let ready = descriptors::ready(&wanted, time);
        drop(bell);
        for (index, ready) in indices.into_iter().zip(ready) {
            let task = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut);
            match task.filter(|_| ready) {
                Some(task) => {
                    task.state = State::Runs;
                    task.ulp.answer(0);
                    self.enqueue(index);
                }
                None => self.awaiting.push(index),
            }
        }
    }
}
