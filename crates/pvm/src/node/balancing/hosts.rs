//! Hosts in the first process's balancing: what moves between them have cost, why tasks were
//! refused, and hosts that leave.
//!
//! PVM ends the tasks of a host that is removed. A machine that balances moves them to other hosts
//! first, as far as they can move ([`leaving`](crate::balance::leaving)), and reports those that
//! end with the host.

use super::super::Node;
use crate::balance::leaving::LeaveStep;
use crate::balance::rounds::{BalancingRounds, LeftTasks, RefusedMove, RoundPhase, Spread};
use crate::hosts::changes::HostState;
use crate::machine::{Machine, TaskEntry};
use crate::moves::{NotMoved, Pin};
use crate::report::report_line;
use crate::shown::MoveCost;
use crate::tid::Tid;
use std::time::Instant;
use upcall_message::Rank;

/// Maximum number of tasks that are named which end with their host.
const NAMED: usize = 10;

/// When the processes of a host end that is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::node) enum HostLeave {
    /// At once, with their tasks.
    AtOnce,
    /// When the tasks have left, and at this time at the latest.
    By(Instant),
}

/// Why a task was not moved, in words about the task.
fn reason(why: &NotMoved) -> String {
    match why {
        NotMoved::Pinned(pin) => pin.to_string(),
        why => why.to_string(),
    }
}

impl Node {
    /// Notes a move between two processes, which may be on two hosts.
    pub(super) fn note_move_between(&mut self, tid: Tid, (from, to): (Rank, Rank), cost: MoveCost) {
        let between = (self.hosts.of(from), self.hosts.of(to));
        let program = self.program_of(tid);
        let Some(balancing) = &mut self.balancing else { return };
        balancing.has_moved_between((tid, &program), between, cost, Instant::now());
    }

    /// Notes why a task was not moved from one process to another.
    pub(in crate::node) fn note_refusal(
        &mut self,
        tid: Tid,
        (from, to): (Option<Rank>, Rank),
        why: &NotMoved,
    ) {
        let is_far = from.is_some_and(|from| !self.hosts.are_near(from, to));
        let (program, far) = (self.program_of(tid), is_far.then(|| self.hosts.of(to)));
        let Some(balancing) = &mut self.balancing else { return };
        balancing.was_refused((tid, &program), to, far, why, Instant::now());
    }

    fn program_of(&self, tid: Tid) -> String {
        let machine = self.machine.as_ref();
        machine.and_then(|machine| machine.program(tid)).unwrap_or_default().into()
    }

    /// Why the last move of a task did not come about.
    pub(in crate::node) fn refusal_of(&self, tid: Tid) -> Option<String> {
        let RefusedMove { to, why } = self.balancing.as_ref()?.refused.get(&tid)?;
        let place = match self.hosts.count() {
            2.. if *to < self.size() => format!(" on {}", self.hosts.name(self.hosts.of(*to))),
            _ => String::new(),
        };
        Some(format!("not moved to process {to}{place}: {}", reason(why)))
    }

    /// A host is to be removed. Its tasks leave before its processes end, if the machine balances.
    pub(in crate::node) fn begin_to_leave(&mut self, host: usize) -> HostLeave {
        let is_new = self.state_of_host(host) == HostState::Stays;
        let (has_tasks, size) = (self.left_on(host) != LeftTasks::None, self.size());
        let Self { balancing: Some(balancing), hosts, .. } = self else {
            return HostLeave::AtOnce;
        };
        let has_refuge = balancing.used(size).iter().any(|rank| hosts.of(*rank) != host);
        let is_leaving = balancing.leaving.all().contains(&host);
        let balances = balancing.plan.balancer.is_some() && !self.halted;
        match is_leaving || is_new && has_tasks && has_refuge && balances {
            true => HostLeave::By(balancing.leaving.begin(host, Instant::now())),
            false => HostLeave::AtOnce,
        }
    }

    /// Moves tasks away from hosts that leave, in a round that begins now or follows the present
    /// one.
    pub(in crate::node) fn evacuate_hosts(&mut self) {
        let Some(balancing) = &mut self.balancing else { return };
        balancing.again.get_or_insert(Spread::No);
        if matches!(balancing.phase, RoundPhase::Rests | RoundPhase::Waits) {
            self.decide();
        }
    }

    /// At the end of a round: ends the processes of hosts that leave and whose tasks have left, or
    /// cannot leave.
    pub(in crate::node) fn step_leaving_hosts(&mut self) {
        let now = Instant::now();
        let leaving = self.balancing.as_ref().map(|one| one.leaving.all()).unwrap_or_default();
        for host in leaving {
            let left = self.left_on(host);
            let Some(balancing) = &mut self.balancing else { return };
            if balancing.leaving.step(host, left, now) == LeaveStep::Ends {
                self.end_left_host(host);
            }
        }
    }

    /// Ends the processes of hosts whose tasks should have left by now. A round may take longer.
    pub(in crate::node) fn end_late_leaving(&mut self) {
        let now = Instant::now();
        let late = |balancing: &BalancingRounds| {
            let all = balancing.leaving.all().into_iter();
            all.filter(|host| balancing.leaving.is_late(*host, now)).collect::<Vec<_>>()
        };
        for host in self.balancing.as_deref().map(late).unwrap_or_default() {
            self.has_left(host);
            self.end_left_host(host);
        }
    }

    /// Forgets that a host leaves, whose processes have ended.
    pub(in crate::node) fn has_left(&mut self, host: usize) {
        self.balancing.iter_mut().for_each(|balancing| _ = balancing.leaving.forget(host));
    }

    fn end_left_host(&mut self, host: usize) {
        let left = self.tasks_on(host);
        let refusals = self.balancing.as_ref().map(|one| &one.refusals);
        for (tid, entry) in left.iter().take(NAMED) {
            let why = refusals.and_then(|all| all.get(tid));
            let why = why.map_or_else(|| "it could not leave in time".into(), reason);
            let (program, name) = (&entry.program, self.hosts.name(host));
            report_line!("upcall pvm: {tid} ({program}) ends with host {name}: {why}");
        }
        self.end_host(host);
    }

    /// How the tasks on a host can leave. Tasks that are being started there leave soon, and so do
    /// tasks that are pinned by a call which they have begun.
    fn left_on(&self, host: usize) -> LeftTasks {
        let (ranks, tasks) = (self.hosts.ranks(host), self.tasks_on(host));
        let starts = self.machine.as_ref().is_some_and(|machine| machine.starts_in(&ranks));
        let refusals = self.balancing.as_ref().map(|one| &one.refusals);
        let why = |tid: &Tid| refusals.and_then(|all| all.get(tid));
        let is_calling = |(tid, _): &(Tid, &TaskEntry)| {
            matches!(why(tid), Some(NotMoved::Pinned(Pin::Call | Pin::Inside)))
        };
        match starts || tasks.iter().any(is_calling) {
            true => LeftTasks::Soon,
            false => self.how_left(&tasks),
        }
    }

    fn tasks_on(&self, host: usize) -> Vec<(Tid, &TaskEntry)> {
        let tasks = self.machine.iter().flat_map(Machine::all);
        tasks.filter(|(_, entry)| self.hosts.of(entry.rank) == host).collect()
    }
}
