//! Signals that come to a task from outside: from another task (`pvm_sendsig`), or from its alarm.
//!
//! A computing task is interrupted for them. A signal that ends the task ends it at that point. A
//! handler runs only where no function of the library is under way. Otherwise it runs at a later
//! interrupt, or when the task waits for something.

use super::saving::InterruptedTask;
use super::{EINTR, Node, TaskEnd};
use crate::task::TaskState;
use std::time::{Duration, Instant};
use upcall_ulp::Signalled;

const SIGALRM: i32 = 14;

impl Node {
    /// Handles what has arrived from outside of the process while this task is interrupted. Returns
    /// `true` if the task goes on.
    pub(super) fn look_around(&mut self, index: u32) -> bool {
        self.look_outside(false);
        self.hear_of_ends();
        self.attend_desk();
        self.wake_balancer();
        self.balance();
        if self.moving.is_at_work() {
            self.stop_tasks(Some(index));
        }
        if self.saving.holds() && self.hold_tasks(Some(index)) == InterruptedTask::Held {
            return false;
        }
        let Some(task) = self.tasks[index as usize].as_deref_mut().filter(|_| !self.halted) else {
            return false;
        };
        let handles = task.ulp.handles() && task.ulp.is_in_own_code(&task.image);
        task.ulp.answer(handles.into());
        true
    }

    /// Sends a signal to a task of this process. The task ends, or runs its handler when it
    /// resumes.
    ///
    /// The signal ends what the task waits for, with two exceptions: the task resumes waiting for a
    /// message, and keeps waiting for an answer of the machine.
    pub(super) fn signal(&mut self, index: u32, signal: i32) {
        let Some(task) = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return;
        };
        match task.ulp.signal(signal) {
            Signalled::Ends => return self.end(index, TaskEnd::Killed(signal)),
            Signalled::Comes => {}
            Signalled::None | Signalled::Ignored | Signalled::Kept => return,
        }
        match task.state {
            TaskState::Sleeps(_) => self.wake(index, -EINTR),
            TaskState::Awaits(..) => {
                self.awaiting.retain(|one| *one != index);
                self.wake(index, -EINTR);
            }
            TaskState::Aside => task.ulp.interrupt_aside(),
            TaskState::Receives(_, until) => {
                // At least 1, because 0 means to poll.
                let left = until.map(|until| {
                    until.saturating_duration_since(Instant::now()).as_micros().max(1)
                });
                super::question::interrupt_receive(task, left.map_or(-1, |left| left as i64));
                task.state = TaskState::Runs;
                self.enqueue(index);
            }
            TaskState::ReceivesInto(..) => {
                super::question::interrupt_receive(task, -1);
                task.state = TaskState::Runs;
                self.enqueue(index);
            }
            // The task runs anyway, or keeps waiting for the machine's answer.
            TaskState::Starts | TaskState::Runs | TaskState::Polls(_) | TaskState::Asks(_) => {}
        }
    }

    /// Ends a task's wait with this answer.
    pub(super) fn wake(&mut self, index: u32, answer: i64) {
        let Some(task) = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return;
        };
        task.state = TaskState::Runs;
        task.ulp.answer(answer);
        self.enqueue(index);
    }

    /// Answers with the current alarm. If `set`, raises SIGALRM after `first` nanoseconds (0:
    /// never), and then every `again` nanoseconds (0: only once).
    pub(super) fn set_alarm(&mut self, index: u32, first: u64, again: u64, set: bool) {
        let Some(task) = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return;
        };
        let now = Instant::now();
        // At least 1, because an alarm that is due now has not been raised yet.
        let left = |(when, _): (Instant, Duration)| {
            when.saturating_duration_since(now).as_nanos().max(1) as u64
        };
        let (left, before) =
            task.alarm.map_or((0, 0), |alarm| (left(alarm), alarm.1.as_nanos() as u64));
        task.ulp.answer_with(0, [left, before, 0, 0, 0, 0, 0, 0]);
        if !set {
            return;
        }
        let when = now.checked_add(Duration::from_nanos(first)).filter(|_| first > 0);
        task.alarm = when.map(|when| (when, Duration::from_nanos(again)));
        when.into_iter().for_each(|when| self.at(when, index));
    }

    /// Raises the task's alarm if it is the timer that has expired.
    pub(super) fn alarm(&mut self, index: u32, when: Instant) {
        let Some(task) = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return;
        };
        let Some((_, again)) = task.alarm.filter(|(due, _)| *due == when) else { return };
        // Missed repetitions are skipped.
        let next = (!again.is_zero()).then(|| (when + again).max(Instant::now()));
        task.alarm = next.map(|next| (next, again));
        next.into_iter().for_each(|next| self.at(next, index));
        self.signal(index, SIGALRM);
    }
}
