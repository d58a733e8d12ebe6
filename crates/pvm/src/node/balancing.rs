//! Balancing in the first process: asks for loads, and moves tasks as the balancer plans
//! ([`balance`](crate::balance)). Also decides which processes have tasks.
//!
//! # A round
//! ```text
//! Rests     nothing computes                            until a process wakes
//! Waits     for the next round                          one period
//! Measures  the processes report loads                  until all have, or for ANSWERS
//! Moves     a few planned moves at a time are asked for until each has a result
//! ```
//! The period is [`PERIOD`] after moves, and twice the last one when nothing was to be gained. In a
//! machine that does not balance there are rounds only when processes are evacuated or added, and
//! nothing is measured.
//!
//! # Processes in use
//! A machine has a fixed number of processes. In use are the first `number` of those that are
//! neither evacuated by a command nor ended. The others have no tasks, and wait. Tasks that are
//! pinned stay in an evacuated process, and later rounds try them again.

mod meter;
mod processors;

use super::Node;
use super::seats::NOBODY;
use crate::balance::rounds::{BalancingRounds, PERIOD, RoundPhase, SETTLES, Spread};
use crate::balance::{BalancePlan, MeasuredLoads, PlannedMove};
use crate::door::{MachineReply, ProcessChange, Visitor};
use crate::machine::{Machine, TaskEntry};
use crate::moves::{NotMoved, Pin};
use crate::remote::{ControlMessage, MachineLink};
use crate::shown::{MachineUse, MoveCost, ProcessState, ShownProcess, StayingTask};
use crate::tid::Tid;
use crate::transit::MoveAsker;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use upcall_message::Rank;

/// The longest time between rounds.
const LONGEST: Duration = Duration::from_secs(2);
/// Maximum time that processes may take to report loads.
const ANSWERS: Duration = Duration::from_secs(1);
/// Maximum number of moves at a time.
const TOGETHER: usize = 16;
/// Time after which a task is asked again that could not leave an evacuated process just then.
const AGAIN: Duration = Duration::from_millis(50);
/// Maximum number of such rounds for one command.
const TRIES: u32 = 40;
/// Number of rounds in which a machine that does not balance tries again to evacuate tasks that
/// stay. The time before each is twice the last one.
const RETRIES: u32 = 7;
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
        let next = self.balancing.as_ref().and_then(|balancing| balancing.next);
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
        match self.balancing.as_ref().map(|balancing| balancing.phase) {
            Some(RoundPhase::Waits) => self.begin_round(),
            Some(RoundPhase::Measures) => self.decide(),
            Some(RoundPhase::Rests | RoundPhase::Moves) | None => {}
        }
    }

    pub(super) fn size(&self) -> usize {
        self.link.as_ref().map_or(1, MachineLink::size)
    }

    /// Lets the phase end at a time from now.
    fn ends_in(&mut self, phase: RoundPhase, time: Duration) {
        let when = Instant::now() + time;
        if let Some(balancing) = &mut self.balancing {
            (balancing.phase, balancing.next) = (phase, Some(when));
            self.at(when, NOBODY);
        }
    }

    /// New tasks start only in processes in use.
    fn change_used(&mut self) {
        let size = self.size();
        if let (Some(balancing), Some(machine)) = (&self.balancing, &mut self.machine) {
            machine.start_only_in(balancing.used(size));
        }
    }

    fn begin_round(&mut self) {
        let size = self.size();
        let Some(balancing) = &mut self.balancing else { return };
        let Some(kind) = balancing.plan.balancer.filter(|_| balancing.again.is_none()) else {
            return self.decide();
        };
        if balancing.plan.least < size
            && let Some(count) = processors::processors()
            && balancing.processors.replace(count) != Some(count)
        {
            balancing.number = count.clamp(balancing.plan.least, size);
        }
        balancing.begin_measuring();
        balancing.missing = (0..size).filter(|rank| !balancing.ended.contains(rank)).collect();
        self.change_used();
        self.ends_in(RoundPhase::Measures, ANSWERS);
        let with_bytes = kind.wants_bytes();
        self.tell_all(&ControlMessage::Measure { with_bytes });
        self.measure(with_bytes);
    }

    /// Handles what a process has measured.
    pub(super) fn measured_by(&mut self, from: Rank, loads: MeasuredLoads) {
        let (Some(balancing), Some(machine)) = (&mut self.balancing, &self.machine) else { return };
        if balancing.phase != RoundPhase::Measures || !balancing.missing.remove(&from) {
            return;
        }
        balancing.measured(loads, |tid| machine.rank(tid) == Some(from));
        if balancing.missing.is_empty() {
            self.decide();
        }
    }

    /// Handles that a process computes which was at rest.
    pub(super) fn woken(&mut self) {
        let Some(balancing) = &mut self.balancing else { return };
        balancing.is_busy = true;
        if balancing.phase == RoundPhase::Rests {
            balancing.period = PERIOD;
            self.ends_in(RoundPhase::Waits, PERIOD);
        }
    }

    /// Plans the moves of this round, and begins them.
    fn decide(&mut self) {
        let size = self.size();
        let (Some(balancing), Some(machine)) = (&mut self.balancing, &self.machine) else { return };
        let spread = balancing.again.take();
        let view = balancing.view(size, machine.all(), |tid| self.moving.is_moving(tid));
        let is_blind = balancing.plan.balancer.is_none() || balancing.loads.is_empty();
        let plan = match spread {
            Some(Spread::ByNumber) if is_blind => view.spread(),
            _ => view.plan(balancing.plan.balancer),
        };
        (balancing.queue, balancing.moved) = (plan.into(), 0);
        (balancing.spread, balancing.is_partial) = (spread, false);
        (balancing.phase, balancing.next) = (RoundPhase::Moves, None);
        self.ask_for_moves();
    }

    /// Asks for the next moves of the plan, and ends the round after the last one.
    fn ask_for_moves(&mut self) {
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
        let is_over = |balancing: &BalancingRounds| {
            balancing.phase == RoundPhase::Moves
                && balancing.open.is_empty()
                && balancing.queue.is_empty()
        };
        if self.balancing.as_ref().is_some_and(|balancing| is_over(balancing)) {
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
        let moves = balancing.moves.entry(tid).or_default();
        (moves.count, moves.pause) = (moves.count.saturating_add(1), cost.pause);
        balancing.traffic.entry(from).or_default().1 += 1;
        balancing.traffic.entry(to).or_default().0 += 1;
    }

    /// Forgets a task that has ended.
    pub(super) fn unbalance(&mut self, tid: Tid) {
        if let Some(balancing) = &mut self.balancing {
            balancing.loads.remove(&tid);
            balancing.moves.remove(&tid);
            balancing.refusals.remove(&tid);
        }
    }

    /// The tasks that are in processes not in use.
    fn left(&self) -> Vec<(Tid, &TaskEntry)> {
        let used = self.balancing.as_ref().map(|balancing| balancing.used(self.size()));
        let used = used.unwrap_or_default();
        let tasks = self.machine.iter().flat_map(Machine::all);
        tasks.filter(|(_, entry)| !used.contains(&entry.rank)).collect()
    }

    fn end_round(&mut self) {
        let Some(balancing) = &self.balancing else { return };
        let left = self.left();
        let soon = left.iter().any(|(tid, _)| is_transient(balancing.refusals.get(tid)));
        let is_left = !left.is_empty();
        let Some(balancing) = &mut self.balancing else { return };
        let waits = !balancing.visitors.is_empty();
        let is_soon = soon || balancing.is_partial || balancing.again.is_some();
        if waits && is_soon && balancing.tries < TRIES {
            balancing.tries += 1;
            let spread = balancing.spread.unwrap_or(Spread::No);
            balancing.again.get_or_insert(spread);
            return self.ends_in(RoundPhase::Waits, AGAIN);
        }
        if waits {
            balancing.tries = 0;
            self.answer_visitors();
        }
        let Some(balancing) = &mut self.balancing else { return };
        let gains = balancing.moved > 0;
        let time = match balancing.plan.balancer {
            Some(_) if !balancing.is_busy => None,
            Some(_) if gains => Some(PERIOD),
            Some(_) => Some((2 * balancing.period).min(LONGEST)),
            None if is_left && balancing.tries < RETRIES => {
                balancing.tries += 1;
                Some(PERIOD * (1 << balancing.tries))
            }
            None => None,
        };
        balancing.period = time.unwrap_or(PERIOD);
        match time {
            Some(time) => self.ends_in(RoundPhase::Waits, time),
            None => (balancing.phase, balancing.next) = (RoundPhase::Rests, None),
        }
    }

    fn answer_visitors(&mut self) {
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
            && (rank as Rank >= size || balancing.ended.contains(&(rank as Rank)))
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

    /// Handles the end of a process.
    pub(super) fn lose_process(&mut self, rank: Rank) {
        let Some(balancing) = &mut self.balancing else { return };
        balancing.ended.insert(rank);
        let is_last = balancing.missing.remove(&rank) && balancing.missing.is_empty();
        let measures = balancing.phase == RoundPhase::Measures;
        self.change_used();
        if is_last && measures {
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
                Some(known) if known.evacuated.contains(&rank) => ProcessState::Evacuated,
                _ if used.contains(&rank) => ProcessState::InUse,
                _ => ProcessState::Spare,
            };
            let (process, time) = (self.process(rank).cast_unsigned(), times.get(&rank).copied());
            ShownProcess { rank, process, state, time, entered, left }
        };
        (0..size).map(member).collect()
    }
}
