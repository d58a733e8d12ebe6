//! Detects that all tasks of a machine wait for what no task can send.
//!
//! In a single process that is visible at once. With several, a message may be under way. So when
//! the first process has waited for a second in all, and all of its tasks wait for messages alone,
//! it asks all processes two times in a row: do all tasks wait, how many messages were sent
//! to other processes, and how many were received from them? If all wait both times, and no message
//! is under way ([`counting`](crate::counting)), then none can be sent any more.
//!
//! If the tasks are not stuck, the next question comes after twice the time, up to half a minute: a
//! machine that waits for a terminal, or computes in another process, is asked twice a minute. The
//! questions and their answers themselves are not counted. A task that has ended is not counted,
//! nor is what was sent to it. Only a request from outside (`upcall pvm sig`) makes a task run
//! without a message. It goes through the first process, which then discards what it knows.
//!
//! While a task wants notices about hosts, and hosts may come or go, such a notice may make it run.
//! So no machine is stuck then.

use super::Node;
use crate::counting::{Count, CountRounds, RoundResult};
use crate::machine::Machine;
use crate::moves::RankSet;
use crate::remote::ControlMessage;
use crate::shown::ShownTask;
use crate::task::{Task, TaskState};
use std::time::Duration;
use upcall_message::Rank;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);

/// The first process's state of the detection.
#[derive(Debug)]
pub(super) struct Watch {
    /// Idle time before the next question.
    period: Duration,
    /// Idle time since the last one.
    idle: Duration,
    /// The open question, or the last one. Odd numbers are first rounds.
    question: u64,
    rounds: CountRounds,
    tasks: Vec<ShownTask>,
    /// All tasks, once they are known to be stuck.
    stuck: Option<Vec<ShownTask>>,
}

impl Watch {
    pub(super) fn new() -> Self {
        let (rounds, tasks) = (CountRounds::default(), Vec::new());
        Self { period: FIRST, idle: Duration::ZERO, question: 0, rounds, tasks, stuck: None }
    }

    /// All tasks, if they are stuck.
    pub(super) fn stuck(&mut self) -> Option<Vec<ShownTask>> {
        self.stuck.take()
    }
}

impl Node {
    /// Returns `true` if only a message can make a task of this process run.
    pub(super) fn all_wait(&self) -> bool {
        let waits = |task: &Task| match task.state {
            TaskState::Receives(_, None) | TaskState::ReceivesInto(..) | TaskState::Asks(_) => true,
            // A task that handles signals may get one from outside (`upcall pvm sig`).
            TaskState::Sleeps(None) => !task.ulp.expects_signals(),
            _ => false,
        };
        self.timers.is_empty()
            && self.awaiting.is_empty()
            && self.aside_calls == 0
            && self.arrivals.is_empty()
            && self.late.is_empty()
            && self.unsent.is_empty()
            && self.moving.is_quiet()
            && !self.saving.is_at_work()
            && !self.is_open()
            && !self.awaits_hosts()
            && self.tasks.iter().flatten().all(|task| waits(task))
    }

    /// In the first process: returns `true` if hosts may come or go, and a task gets a notice then.
    fn awaits_hosts(&self) -> bool {
        let watch = |machine: &Machine| self.hosts.are_several() && machine.watch_hosts();
        self.machine.as_ref().is_some_and(watch)
    }

    /// Idle time after which this process asks the others. `None`: there are no others, or it must
    /// not ask.
    pub(super) fn watches(&self) -> Option<Duration> {
        self.link
            .as_ref()
            .filter(|_| self.machine.is_some() && self.all_wait())
            .map(|_| self.watch.period.saturating_sub(self.watch.idle))
    }

    /// Adds to the idle time, after which this process asks.
    pub(super) fn has_waited(&mut self, time: Duration) {
        self.watch.idle += time;
        if self.watch.idle >= self.watch.period {
            self.watch.idle = Duration::ZERO;
            self.ask_whether_all_wait();
        }
    }

    /// Returns `true` while a question is open.
    pub(super) fn is_counting(&self) -> bool {
        !self.watch.rounds.missing().is_empty()
    }

    /// Starts the first round.
    fn ask_whether_all_wait(&mut self) {
        self.watch.period = (2 * self.watch.period).min(LONGEST);
        self.watch.question += 1 + (self.watch.question & 1);
        self.watch.rounds = CountRounds::default();
        self.ask_again();
    }

    fn ask_again(&mut self) {
        let own = self.own_count();
        let Some(link) = &self.link else { return };
        let watch = &mut self.watch;
        let mut asked = RankSet::default();
        let living = (1..link.size()).filter(|rank| !link.is_lost(*rank));
        living.for_each(|rank| _ = asked.insert(rank));
        watch.rounds.begin(own, asked);
        watch.tasks = Vec::new();
        let question = watch.question;
        self.tell_all(&ControlMessage::Count { question });
        self.counted();
    }

    fn own_count(&self) -> Count {
        self.link.as_ref().map_or_else(Count::default, |link| link.count(self.all_wait()))
    }

    /// Answers the first process's question.
    pub(super) fn tell_count(&mut self, question: u64) {
        let count = self.own_count();
        // Only the second round needs the tasks themselves.
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
        if question != watch.question || !watch.rounds.missing().contains(from) {
            return;
        }
        watch.rounds.add(from, &count);
        watch.tasks.extend(tasks);
        self.counted();
    }

    /// Starts over, because an event other than a message has occurred.
    pub(super) fn count_anew(&mut self) {
        self.watch = Watch { question: self.watch.question, ..Watch::new() };
    }

    /// If all have answered, starts the second round or decides.
    fn counted(&mut self) {
        let own = self.own_count();
        let watch = &mut self.watch;
        // This process may itself have acted since the question, for a request at its desk.
        if watch.question & 1 == 1 {
            if watch.rounds.do_all_wait(&own) {
                watch.question += 1;
                self.ask_again();
            }
        } else if watch.rounds.result(&own) == RoundResult::Quiet {
            let told = std::mem::take(&mut watch.tasks);
            let own = self.seen();
            self.watch.stuck = Some(self.all_seen(own.into_iter().chain(told).collect(), &[]));
        }
    }
}
