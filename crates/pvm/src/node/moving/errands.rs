//! The first process's side of moves: requests for them, and how answers, signals and ends find
//! tasks that move.

use super::super::Node;
use crate::door::MachineReply;
use crate::error;
use crate::machine::Machine;
use crate::moves::{MoveEffect, MoveLimits, NotMoved, Refusal};
use crate::node::seats::NOBODY;
use crate::remote::ControlMessage;
use crate::shown::MoveCost;
use crate::tid::Tid;
use crate::transit::{AskedMove, MoveAsker};
use crate::wire::{Packet, PacketReader};
use std::cmp::Reverse;
use std::ops::Range;
use std::time::Instant;
use upcall_message::Rank;

impl Node {
    /// In the first process: records that a task has begun in a process.
    pub(in crate::node) fn begin_moves_of(&mut self, tid: Tid, rank: Rank) {
        self.moving.moves.began(tid, rank);
    }

    /// In the first process: lets tasks move to and from processes that have joined.
    pub(in crate::node) fn admit_to_moves(&mut self, ranks: Range<Rank>) {
        self.drive(|moves, effects| moves.joined(ranks, effects));
    }

    /// In the first process: records that a task has ended.
    pub(in crate::node) fn ended_moves_of(&mut self, tid: Tid) {
        self.drive(|moves, effects| moves.ended(tid, effects));
        self.unbalance(tid);
    }

    /// In the first process: moves a task to another process. The asker is answered when the task
    /// runs there, or stays.
    pub(in crate::node) fn move_task(&mut self, asker: MoveAsker, tid: Tid, to: Rank) {
        self.moving.last += 1;
        let (number, now) = (self.moving.last, self.moving.since.elapsed());
        let begun = Instant::now();
        let from = self.moving.moves.rank(tid);
        self.moving.askers.insert(number, AskedMove { asker, begun, from, to });
        if self.machine.as_ref().is_some_and(Machine::keeps_apart) {
            return self.report_move(number, tid, Err(NotMoved::Apart));
        }
        if self.defers() {
            let result = Err(NotMoved::Saving);
            let report = MoveEffect::Report { asker: number, tid, result };
            // Not at once: the balancer would ask for its next move within this one, and so on.
            return self.drive(|_, effects| effects.push(report));
        }
        self.at(begun + MoveLimits::default().within, NOBODY);
        self.drive(|moves, effects| moves.request(number, tid, to, now, effects));
    }

    /// In the first process: moves a task for the console or a task, as `upvm_migrate` demands.
    pub(in crate::node) fn migrate(&mut self, asker: Tid, question: &[u8]) {
        let mut question = PacketReader::new(question);
        let (number, rank) = (question.int(), question.int());
        let rank = rank.and_then(|rank| Rank::try_from(rank).ok());
        let tid = number.and_then(|number| if number == 0 { Some(asker) } else { Tid::of(number) });
        match tid.zip(rank) {
            Some((tid, rank)) => self.move_task(MoveAsker::Asks(asker), tid, rank),
            None => self.answer(asker, error::BAD_PARAM, Packet::default()),
        }
    }

    /// In the first process: asks for the next move at random, if a test wants one now.
    pub(in crate::node) fn shuffle(&mut self) {
        let Some(([task, process], next)) = self.moving.trials.next_move() else { return };
        self.at(next, NOBODY);
        let size = self.link.as_ref().map_or(1, |link| link.size());
        let tids = self.machine.iter().flat_map(Machine::all).map(|(tid, _)| tid);
        let tids = tids.collect::<Vec<_>>();
        if let Some(tid) = tids.get(task % tids.len().max(1)) {
            self.move_task(MoveAsker::Nobody, *tid, process % size);
        }
    }

    /// In the first process: aborts the moves that have taken too long.
    pub(in crate::node) fn end_late_moves(&mut self) {
        let Some(end) = self.moving.moves.next_end() else { return };
        let now = self.moving.since.elapsed();
        if end <= now {
            self.drive(|moves, effects| moves.tick(now, effects));
            let next = self.moving.moves.next_end().map(|end| self.moving.since + end);
            next.into_iter().for_each(|next| self.at(next, NOBODY));
        }
    }

    /// In the first process: sends a message to the process of a task that has not ended.
    pub(in crate::node) fn tell_process_of(&mut self, tid: Tid, control: ControlMessage) {
        if self.moving.moves.open() == 0 {
            if let Some(rank) = self.machine.as_ref().and_then(|machine| machine.rank(tid)) {
                self.tell(rank, control);
            }
        } else if matches!(control, ControlMessage::Kill { .. }) {
            self.drive(|moves, effects| moves.kill(tid, control, effects));
        } else {
            self.drive(|moves, effects| moves.errand(tid, control, effects));
        }
    }

    /// Notes what a move has cost, until it is over.
    pub(in crate::node) fn note_cost(&mut self, tid: Tid, cost: MoveCost) {
        if self.moving.moves.is_moving(tid) {
            self.moving.costs.insert(tid, cost);
        }
    }

    /// Answers the one who has asked for a move.
    pub(super) fn report_move(&mut self, number: u64, tid: Tid, result: Result<Rank, NotMoved>) {
        let mut cost = self.moving.costs.remove(&tid).unwrap_or_default();
        let Some(asked) = self.moving.askers.remove(&number) else { return };
        let AskedMove { asker, begun, from, to } = asked;
        cost.total = begun.elapsed();
        match (&result, from) {
            (Ok(rank), Some(from)) => self.note_move(tid, from, *rank, cost),
            (Ok(_), None) => {}
            (Err(why), from) => self.note_refusal(tid, (from, to), why),
        }
        let end = begun + MoveLimits::default().within;
        self.timers.retain(|Reverse(timer)| *timer != (end, NOBODY));
        match asker {
            MoveAsker::Visitor(visitor) => visitor.answer(&match result {
                Ok(_) => MachineReply::Moved(cost),
                Err(NotMoved::NoTask) => MachineReply::Done(0),
                Err(why) => MachineReply::Refused(not_moved(tid, &why)),
            }),
            MoveAsker::Asks(asker) => {
                let (code, packet) = match result {
                    Ok(_) => (error::OK, Packet::default()),
                    Err(why) => (code_of(&why), Packet::default().text(&not_moved(tid, &why))),
                };
                self.answer(asker, code, packet);
            }
            MoveAsker::Balancer => self.balanced(tid, result),
            MoveAsker::Nobody => {}
        }
    }
}

/// The reason in words.
fn not_moved(tid: Tid, why: &NotMoved) -> String {
    format!("{tid} was not moved: {why}")
}

/// PVM's error for a task that asks.
fn code_of(why: &NotMoved) -> i32 {
    match why {
        NotMoved::Here => error::OK,
        NotMoved::NoTask | NotMoved::Ended | NotMoved::Killed => error::NO_TASK,
        NotMoved::NoProcess => error::NO_HOST,
        NotMoved::Lost => error::HOST_FAIL,
        NotMoved::Pinned(_) | NotMoved::Refused(Refusal::File { .. }) | NotMoved::Apart => {
            error::DENIED
        }
        NotMoved::UnderWay
        | NotMoved::TooMany
        | NotMoved::Refused(_)
        | NotMoved::TimedOut
        | NotMoved::Full
        | NotMoved::Saving
        | NotMoved::HostJoined
        | NotMoved::Cancelled => error::OUT_OF_RES,
    }
}
