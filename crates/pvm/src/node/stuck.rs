//! Whether all tasks of a machine wait for what nobody can send.
//!
//! In one process that is seen at once. In several a message may be under way; so the first
//! process, when nothing has come to it for a second and all of its tasks wait for messages alone,
//! asks all processes twice, one time after the other: do all tasks wait, how many messages were
//! sent to other processes, how many were heard from them? If all wait both times, and as many had
//! been heard at the first time as were sent until the second, then none is under way, and none can
//! be sent any more. Source: Mattern, "Algorithms for distributed termination detection"
//! (Distributed Computing, 1987), section 5: the four counters. A message that has been heard and
//! not looked at yet is in the first time's number; what its task sends for it is in the second's
//! only.
//!
//! Where it is not so the next question comes after twice the time, up to half a minute: a machine
//! that waits for a terminal, or computes elsewhere, is asked twice a minute. What is counted here
//! are no questions of this kind. A task that has ended is not counted, nor is what was sent to it.
//! Only who asks from outside (`upcall pvm sig`) has a task run without a message: that goes
//! through the first process, where all that is known is forgotten then.

use super::Node;
use crate::remote::{ControlMessage, Count};
use crate::shown::ShownTask;
use crate::task::{Task, TaskState};
use std::time::Duration;
use upcall_message::Rank;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);

/// What the first process knows of whether all are stuck.
#[derive(Debug)]
pub(super) struct Watch {
    /// After so long it is asked.
    period: Duration,
    /// The question that is open, or was last: odd ones are the first of two.
    question: u64,
    /// Who has not answered it.
    missing: Vec<Rank>,
    count: Count,
    /// How many had been heard when the first question was answered.
    heard_before: u64,
    /// How many this process had sent when the second was asked.
    sent_before: u64,
    tasks: Vec<ShownTask>,
    /// All tasks, once it is so.
    stuck: Option<Vec<ShownTask>>,
}

impl Watch {
    pub(super) fn new() -> Self {
        let (missing, tasks) = (Vec::new(), Vec::new());
        Self {
            period: FIRST,
            question: 0,
            missing,
            count: Count::default(),
            heard_before: 0,
            sent_before: 0,
            tasks,
            stuck: None,
        }
    }

    /// They are all stuck.
    pub(super) fn stuck(&mut self) -> Option<Vec<ShownTask>> {
        self.stuck.take()
    }
}

impl Node {
    /// Nothing but a message can have any task of this process run.
    pub(super) fn all_wait(&self) -> bool {
        let waits = |task: &Task| match task.state {
            TaskState::Receives(_, None) | TaskState::Asks(_) => true,
            // For a signal: anybody may send one (`upcall pvm sig`).
            TaskState::Sleeps(None) => !task.ulp.expects_signals(),
            _ => false,
        };
        self.timers.is_empty()
            && self.awaiting.is_empty()
            && self.aside_calls == 0
            && self.backlog.is_empty()
            && !self.is_open()
            && self.tasks.iter().flatten().all(|task| waits(task))
    }

    /// After so long in which nothing has come the others are to be asked. `None`: there are none,
    /// or that is not to be asked here.
    pub(super) fn watches(&self) -> Option<Duration> {
        self.link
            .as_ref()
            .filter(|_| self.machine.is_some() && self.all_wait())
            .map(|_| self.watch.period)
    }

    /// The first of two questions.
    pub(super) fn ask_whether_all_wait(&mut self) {
        self.watch.period = (2 * self.watch.period).min(LONGEST);
        self.watch.question += 1 + (self.watch.question & 1);
        self.ask_again();
    }

    fn ask_again(&mut self) {
        let own = self.own_count();
        let Some(link) = &self.link else { return };
        let watch = &mut self.watch;
        watch.missing = (1..link.size()).filter(|rank| !link.is_lost(*rank)).collect();
        (watch.count, watch.sent_before, watch.tasks) = (own, own.sent, Vec::new());
        let question = watch.question;
        self.tell_all(&ControlMessage::Count { question });
        self.counted();
    }

    fn own_count(&self) -> Count {
        self.link.as_ref().map_or_else(Count::default, |link| link.count(self.all_wait()))
    }

    /// To the first process, who has asked.
    pub(super) fn tell_count(&mut self, question: u64) {
        let count = self.own_count();
        // Who they are is said at the second time, when that is to be known.
        let tasks = if count.all_wait && question & 1 == 0 { self.seen() } else { Vec::new() };
        self.tell_first(ControlMessage::Counted { question, count, tasks });
    }

    pub(super) fn counted_by(
        &mut self,
        from: Rank,
        question: u64,
        count: Count,
        tasks: Vec<ShownTask>,
    ) {
        let watch = &mut self.watch;
        if question != watch.question || !watch.missing.contains(&from) {
            return;
        }
        watch.missing.retain(|rank| *rank != from);
        watch.tasks.extend(tasks);
        let all = &mut watch.count;
        // Those who know of different ones count differently.
        all.all_wait &= count.all_wait && count.lost == all.lost;
        all.sent = all.sent.wrapping_add(count.sent);
        all.heard = all.heard.wrapping_add(count.heard);
        self.counted();
    }

    /// Something else than a message has happened: what is known is of no use any more.
    pub(super) fn count_anew(&mut self) {
        self.watch = Watch { question: self.watch.question, ..Watch::new() };
    }

    /// If all have answered: asks again, or knows.
    fn counted(&mut self) {
        let own = self.own_count();
        let watch = &mut self.watch;
        // What this process has done meanwhile by itself, for those who ask at its desk, it knows.
        if !watch.missing.is_empty()
            || !watch.count.all_wait
            || !own.all_wait
            || own.sent != watch.sent_before
        {
            return;
        }
        if watch.question & 1 == 1 {
            watch.heard_before = watch.count.heard;
            watch.question += 1;
            self.ask_again();
        } else if watch.heard_before == watch.count.sent {
            let told = std::mem::take(&mut watch.tasks);
            let own = self.seen();
            self.watch.stuck = Some(self.all_seen(own.into_iter().chain(told).collect(), &[]));
        }
    }
}
