//! Balancing in the first process: asks for loads, and moves tasks as the balancer plans
//! ([`balance`](crate::balance)). Also decides which processes have tasks.
//!
//! # A round
//! ```text
//! Rests     nothing computes                            until a process wakes
//! Waits     for the next round                          one period
//! Measures  the processes report loads                  until all have, or for a second
//! Moves     a few planned moves at a time are asked for until each has a result
//! ```
//! The period is a quarter of a second after moves and while loads change, and otherwise twice the
//! last one. In a machine that does not balance there are rounds only when processes are evacuated
//! or added, and nothing is measured.
//!
//! # Processes in use
//! A machine has a fixed number of processes. In use are the first `number` of those that are
//! neither evacuated by a command nor ended. The others have no tasks, and wait. Tasks that are
//! pinned stay in an evacuated process, and later rounds try them again.
//!
//! Over several hosts, all processes are in use that are not evacuated. Those of hosts that come
//! are from the moment at which the host is part of the machine. Those of hosts that leave are not
//! (`balancing/hosts.rs`).
//!
//! With a balancer, and on one host, `number` follows the number of processors. A machine that
//! computes counts them
//! twenty times a second, which takes a few microseconds each. A change begins a round at once. A
//! machine that rests has no rounds and sets no timer. Its first process counts when something else
//! has woken it: a message, a task, or a command. If all of that stays in other processes, and no
//! task there computes for long enough to be found by an interrupt, then the count is late. But
//! then a processor more or less makes no difference.

mod hosts;
mod meter;
mod processors;

pub(super) use self::hosts::HostLeave;
use super::Node;
use super::seats::NOBODY;
use crate::balance::rounds::{
    BalancingRounds, LeftTasks, LoadReport, ProcessorCount, RoundEnd, RoundPhase, SETTLES, Spread,
};
use crate::balance::{BalancePlan, MeasuredLoads, PlannedMove};
use crate::door::{MachineReply, ProcessChange, Visitor};
use crate::hosts::changes::HostState;
use crate::machine::{Machine, TaskEntry};
use crate::moves::{NotMoved, Pin};
use crate::remote::ControlMessage;
use crate::shown::{MachineUse, MoveCost, ProcessState, ShownProcess, StayingTask};
use crate::tid::Tid;
use crate::transit::MoveAsker;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use upcall_message::Rank;

/// Maximum number of moves at a time.
const TOGETHER: usize = 16;
/// Why no number of processes is set.
const ALL_USED: &str = "over several hosts all of its processes are used: add or delete hosts, or \
                        evacuate processes";
/// Maximum number of staying tasks that a reply names.
const NAMED: usize = 100;

/// Returns `true` if a task that stays for this reason may be able to move very soon.
fn is_transient(why: Option<&NotMoved>) -> bool {
    matches!(
        why,
        None | Some(
            NotMoved::UnderWay
                | NotMoved::TooMany
                | NotMoved::TimedOut
                | NotMoved::Full
                | NotMoved::Cancelled
                | NotMoved::Saving
                | NotMoved::HostJoined
                | NotMoved::Pinned(Pin::Starts)
        )
    )
}

impl Node {
    /// The node, whose tasks are balanced. In a machine of several processes, in its first one.
    pub(crate) fn with_balance(mut self, plan: BalancePlan) -> Self {
        if self.link.is_some() && self.machine.is_some() {
            let mut balancing = BalancingRounds::new(plan);
            if plan.balancer.is_some() {
                (balancing.phase, balancing.next) = (RoundPhase::Waits, Some(Instant::now()));
            }
            self.balancing = Some(Box::new(balancing));
            self.change_used();
        }
        self
    }

    /// Begins or ends a round if it is time to. To be called at intervals.
    #[inline]
    pub(super) fn balance(&mut self) {
        let next = self.balancing.as_ref().and_then(|balancing| balancing.due());
        // No task moves during a checkpoint.
        if self.defers() {
            return;
        }
        if next.is_some_and(|next| next <= Instant::now()) {
            self.end_phase();
        }
    }

    #[cold]
    fn end_phase(&mut self) {
        let Some(balancing) = self.balancing.as_ref() else { return };
        match balancing.phase {
            RoundPhase::Rests | RoundPhase::Waits if balancing.is_to_count() => {
                self.count_processors();
            }
            RoundPhase::Waits => self.begin_round(),
            RoundPhase::Measures => self.decide(),
            RoundPhase::Rests | RoundPhase::Moves => {}
        }
    }

    pub(super) fn size(&self) -> usize {
        self.hosts.size()
    }

    /// Sets the timer for the end of the phase that has begun.
    fn time_phase(&mut self) {
        let timer = self.balancing.as_ref().and_then(|balancing| balancing.timer());
        timer.into_iter().for_each(|when| self.at(when, NOBODY));
    }

    /// In the first process: takes in which hosts come, stay and leave.
    pub(super) fn balance_over_hosts(&mut self) {
        let is_absent = |rank: &Rank| self.state_of_host(self.hosts.of(*rank)) != HostState::Stays;
        let absent = (0..self.size()).filter(is_absent).collect();
        if let Some(balancing) = &mut self.balancing {
            balancing.absent = absent;
        }
        self.change_used();
    }

    /// New tasks start only in processes in use.
    fn change_used(&mut self) {
        let size = self.size();
        if let (Some(balancing), Some(machine)) = (&self.balancing, &mut self.machine) {
            machine.start_only_in(balancing.used(size));
        }
    }

    /// Between two rounds: begins one if the number of processors has changed.
    fn count_processors(&mut self) {
        let size = self.size();
        let Some(balancing) = &mut self.balancing else { return };
        match balancing.counted(processors::processors(), size) {
            ProcessorCount::Changed => self.begin_round(),
            ProcessorCount::Same => {
                balancing.go_on(Instant::now(), size);
                self.time_phase();
            }
        }
    }

    fn begin_round(&mut self) {
        let size = self.size();
        let Some(balancing) = &mut self.balancing else { return };
        let Some(kind) = balancing.plan.balancer.filter(|_| balancing.again.is_none()) else {
            return self.decide();
        };
        if balancing.counts_processors(size) {
            balancing.counted(processors::processors(), size);
        }
        let round = balancing.measure(Instant::now(), size);
        self.change_used();
        self.time_phase();
        let with_bytes = kind.wants_bytes();
        self.tell_all(&ControlMessage::Measure { round, with_bytes });
        self.measure(round, with_bytes);
    }

    /// Handles what a process has measured.
    pub(super) fn measured_by(&mut self, from: Rank, round: u64, loads: MeasuredLoads) {
        let (Some(balancing), Some(machine)) = (&mut self.balancing, &self.machine) else { return };
        let is_there = |tid| machine.rank(tid) == Some(from);
        match balancing.report(from, round, loads, Instant::now(), is_there) {
            LoadReport::Last => self.decide(),
            LoadReport::Early => {}
            LoadReport::Late => self.time_phase(),
        }
    }

    /// Handles that a process computes which was at rest.
    pub(super) fn woken(&mut self) {
        let Some(balancing) = &mut self.balancing else { return };
        balancing.woken(Instant::now());
        self.time_phase();
    }

    /// Plans the moves of this round, and begins them.
    fn decide(&mut self) {
        let size = self.size();
        let (Some(balancing), Some(machine)) = (&mut self.balancing, &self.machine) else { return };
        let (spread, now) = (balancing.again.take(), Instant::now());
        let is_moving = |tid| self.moving.is_moving(tid);
        let host_of = |rank| self.hosts.of(rank);
        balancing.note_reports(size, host_of);
        let view = balancing.view(size, machine.all(), is_moving, host_of, now);
        let plan = balancing.plan_round(&view, spread, now);
        balancing.begin_moves(plan, spread);
        self.ask_for_moves();
    }

    /// Asks for the next moves of the plan, and ends the round after the last one.
    pub(super) fn ask_for_moves(&mut self) {
        while let Some(balancing) = &mut self.balancing
            && balancing.open.len() < TOGETHER
            && let Some(PlannedMove { tid, to }) = balancing.queue.pop_front()
        {
            let rank = self.machine.as_ref().and_then(|machine| machine.rank(tid));
            if rank.is_some_and(|rank| rank != to) {
                balancing.open.insert(tid);
                self.move_task(MoveAsker::Balancer, tid, to);
            }
        }
        if self.balancing.as_ref().is_some_and(|balancing| balancing.has_moved()) {
            self.end_round();
        }
    }

    /// Handles the result of a move that the balancer has asked for.
    pub(super) fn balanced(&mut self, tid: Tid, result: Result<Rank, NotMoved>) {
        let Some(balancing) = &mut self.balancing else { return };
        balancing.open.remove(&tid);
        match result {
            Ok(_) => {
                balancing.moved += 1;
                balancing.served += 1;
                balancing.refusals.remove(&tid);
            }
            Err(NotMoved::NoTask | NotMoved::Ended | NotMoved::Killed) => {}
            Err(why) => {
                balancing.is_partial |= is_transient(Some(&why));
                balancing.refusals.insert(tid, why);
            }
        }
        if let Some(known) = balancing.loads.get_mut(&tid) {
            known.settles = SETTLES;
        }
        self.ask_for_moves();
    }

    /// Notes a move for any asker.
    pub(super) fn note_move(&mut self, tid: Tid, from: Rank, to: Rank, cost: MoveCost) {
        let Some(balancing) = &mut self.balancing else { return };
        balancing.note_move(tid, from, to, cost.pause);
        self.note_move_between(tid, (from, to), cost);
    }

    /// Forgets a task that has ended.
    pub(super) fn unbalance(&mut self, tid: Tid) {
        if let Some(balancing) = &mut self.balancing {
            balancing.loads.remove(&tid);
            balancing.moves.remove(&tid);
            balancing.refusals.remove(&tid);
            balancing.refused.remove(&tid);
            balancing.between.far.forget(tid);
            balancing.bars.forget(tid);
        }
    }

    /// The tasks that are in processes not in use.
    fn left(&self) -> Vec<(Tid, &TaskEntry)> {
        let used = self.balancing.as_ref().map(|balancing| balancing.used(self.size()));
        let used = used.unwrap_or_default();
        let tasks = self.machine.iter().flat_map(Machine::all);
        tasks.filter(|(_, entry)| !used.contains(&entry.rank)).collect()
    }

    /// How the tasks of these that are left can leave.
    fn how_left(&self, left: &[(Tid, &TaskEntry)]) -> LeftTasks {
        let why = |tid| self.balancing.as_ref().and_then(|one| one.refusals.get(tid));
        match left {
            [] => LeftTasks::None,
            left if left.iter().any(|(tid, _)| is_transient(why(tid))) => LeftTasks::Soon,
            _ => LeftTasks::Some,
        }
    }

    fn end_round(&mut self) {
        let size = self.size();
        self.step_leaving_hosts();
        let left = self.how_left(&self.left());
        let Some(balancing) = &mut self.balancing else { return };
        match balancing.end_round(left, Instant::now(), size) {
            RoundEnd::Again => {}
            RoundEnd::Answered => self.answer_visitors(),
        }
        self.time_phase();
    }

    fn answer_visitors(&mut self) {
        if self.balancing.as_ref().is_none_or(|balancing| balancing.visitors.is_empty()) {
            return;
        }
        let size = self.size();
        let stays = |(tid, entry): &(Tid, &TaskEntry)| StayingTask {
            tid: *tid,
            program: entry.program.clone(),
            rank: entry.rank,
            why: match self.balancing.as_ref().and_then(|one| one.refusals.get(tid)) {
                Some(NotMoved::Pinned(pin)) => pin.to_string(),
                Some(why) => why.to_string(),
                None => "it has just come".into(),
            },
        };
        let left = self.left();
        let (staying, stay) = (left.len(), left.iter().take(NAMED).map(stays).collect());
        let Some(balancing) = &mut self.balancing else { return };
        let (used, moved) = (balancing.used(size), std::mem::take(&mut balancing.served));
        let reply = MachineReply::Used(MachineUse { used, moved, staying, stay });
        balancing.visitors.drain(..).for_each(|visitor| visitor.answer(&reply));
    }

    /// Changes which processes are in use. The visitor is answered when the tasks have moved.
    pub(super) fn change_use(&mut self, change: ProcessChange, visitor: Visitor) {
        let size = self.size();
        if self.hosts.are_several() && matches!(change, ProcessChange::Number(_)) {
            return visitor.answer(&MachineReply::Refused(ALL_USED.into()));
        }
        match self.changed_use(change, size) {
            Err(why) => visitor.answer(&MachineReply::Refused(why)),
            Ok(spread) => {
                let Some(balancing) = &mut self.balancing else { return };
                if balancing.visitors.is_empty() {
                    (balancing.served, balancing.tries) = (0, 0);
                }
                balancing.visitors.push(visitor);
                if balancing.again != Some(Spread::ByNumber) {
                    balancing.again = Some(spread);
                }
                let is_free = matches!(balancing.phase, RoundPhase::Rests | RoundPhase::Waits);
                self.change_used();
                if is_free {
                    self.decide();
                }
            }
        }
    }

    fn changed_use(&mut self, change: ProcessChange, size: usize) -> Result<Spread, String> {
        let Some(balancing) = &mut self.balancing else {
            return Err("it has only one process: start it with --procs".into());
        };
        if balancing.plan.is_alone {
            return Err("each of its tasks has a process of its own (--as-processes)".into());
        }
        if let ProcessChange::Evacuate(rank) | ProcessChange::Readmit(rank) = change
            && (rank as Rank >= size
                || balancing.ended.contains(&(rank as Rank))
                || balancing.absent.contains(&(rank as Rank)))
        {
            return Err(format!("there is no process {rank}: see `upcall pvm top`"));
        }
        match change {
            ProcessChange::Evacuate(rank) => {
                balancing.evacuated.insert(rank as Rank);
                if balancing.used(size).is_empty() {
                    balancing.evacuated.remove(&(rank as Rank));
                    return Err(format!("without process {rank} there is none for its tasks"));
                }
                Ok(Spread::No)
            }
            ProcessChange::Readmit(rank) => {
                balancing.evacuated.remove(&(rank as Rank));
                Ok(Spread::ByNumber)
            }
            ProcessChange::Number(number) if (1..=size).contains(&(number as usize)) => {
                balancing.number = number as usize;
                Ok(Spread::ByNumber)
            }
            ProcessChange::Number(_) => Err(format!(
                "it has {size} processes: give a number from 1 to {size}, or start it with a \
                 larger --procs"
            )),
        }
    }

    /// Returns `true` if a command has asked for this process to have no tasks.
    pub(super) fn is_evacuated(&self, rank: Rank) -> bool {
        self.balancing.as_ref().is_some_and(|balancing| balancing.evacuated.contains(&rank))
    }

    /// Handles the end of a process.
    pub(super) fn lose_process(&mut self, rank: Rank) {
        let Some(balancing) = &mut self.balancing else { return };
        let report = balancing.lose(rank);
        self.change_used();
        if report == LoadReport::Last {
            self.decide();
        }
    }

    /// The name of the balancer.
    pub(super) fn balancer(&self) -> Option<String> {
        self.balancing.as_ref()?.plan.balancer.map(|kind| kind.to_string())
    }

    /// The number of moves of a task so far, and the last pause.
    pub(super) fn moves_of(&self, tid: Tid) -> (u32, Option<Duration>) {
        let moves = self.balancing.as_ref().and_then(|balancing| balancing.moves.get(&tid));
        moves.map_or((0, None), |moves| (moves.count, Some(moves.pause)))
    }

    /// The processes of the machine, whose workers have used this processor time.
    pub(super) fn members(&self, times: &BTreeMap<Rank, Duration>) -> Vec<ShownProcess> {
        let size = self.size();
        let used = self.balancing.as_ref().map_or_else(|| vec![0], |one| one.used(size));
        let member = |rank: Rank| {
            let known = self.balancing.as_deref();
            let (entered, left) =
                known.and_then(|one| one.traffic.get(&rank)).copied().unwrap_or_default();
            let state = match known {
                Some(known) if known.ended.contains(&rank) => ProcessState::Ended,
                Some(known) if known.absent.contains(&rank) => ProcessState::Spare,
                Some(known) if known.evacuated.contains(&rank) => ProcessState::Evacuated,
                _ if used.contains(&rank) => ProcessState::InUse,
                _ => ProcessState::Spare,
            };
            let (process, time) = (self.process(rank).cast_unsigned(), times.get(&rank).copied());
            let host = self.hosts.name(self.hosts.of(rank)).into();
            ShownProcess { rank, process, host, state, time, entered, left }
        };
        (0..size).map(member).collect()
    }
}
