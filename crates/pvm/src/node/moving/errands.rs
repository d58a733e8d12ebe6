//! The first process's side of moves: who asks for them, and how answers, signals and ends find
//! tasks that move.

use super::super::Node;
use crate::door::{MachineReply, Visitor};
use crate::error;
use crate::moves::{MoveLimits, NotMoved};
use crate::node::control::NOBODY;
use crate::remote::ControlMessage;
use crate::shown::MoveCost;
use crate::tid::Tid;
use crate::wire::Packet;
use std::time::Instant;
use upcall_message::Rank;

/// Who has asked for a move.
pub(in crate::node) enum MoveAsker {
    /// Another shell.
    Visitor(Visitor),
    /// The console, or a task (`upvm_migrate`), whose question waits for the answer.
    Asks(Tid),
    /// The machine itself.
    Nobody,
}

impl Node {
    /// In the first process: records that a task has begun in a process.
    pub(in crate::node) fn begin_moves_of(&mut self, tid: Tid, rank: Rank) {
        self.moving.moves.began(tid, rank);
    }

    /// In the first process: records that a task has ended.
    pub(in crate::node) fn ended_moves_of(&mut self, tid: Tid) {
        self.drive(|moves, effects| moves.ended(tid, effects));
    }

    /// In the first process: moves a task to another process. The asker is answered when the task
    /// runs there, or stays.
    pub(in crate::node) fn move_task(&mut self, asker: MoveAsker, tid: Tid, to: Rank) {
        if self.defers() {
            // A checkpoint waits for all moves, and moves do not wait.
            return self.refuse_move(asker, tid);
        }
        self.moving.last += 1;
        let (number, now) = (self.moving.last, self.moving.since.elapsed());
        let begun = Instant::now();
        self.moving.askers.insert(number, (asker, begun));
        self.at(begun + MoveLimits::default().within, NOBODY);
        self.drive(|moves, effects| moves.request(number, tid, to, now, effects));
    }

    fn refuse_move(&mut self, asker: MoveAsker, tid: Tid) {
        match asker {
            MoveAsker::Visitor(visitor) => visitor.answer(&MachineReply::Refused(format!(
                "{tid} was not moved: a checkpoint is being written; try again"
            ))),
            MoveAsker::Asks(asker) => self.answer(asker, error::OUT_OF_RES, Packet::default()),
            MoveAsker::Nobody => {}
        }
    }

    /// In the first process: aborts the moves that have taken too long.
    pub(in crate::node) fn end_late_moves(&mut self) {
        let now = self.moving.since.elapsed();
        if self.moving.moves.next_end().is_some_and(|end| end <= now) {
            self.drive(|moves, effects| moves.tick(now, effects));
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
        let Some((asker, begun)) = self.moving.askers.remove(&number) else { return };
        cost.total = begun.elapsed();
        match asker {
            MoveAsker::Visitor(visitor) => visitor.answer(&match result {
                Ok(_) => MachineReply::Moved(cost),
                Err(NotMoved::NoTask) => MachineReply::Done(0),
                Err(why) => MachineReply::Refused(format!("{tid} was not moved: {why}")),
            }),
            MoveAsker::Asks(asker) => {
                let code = result.map_or_else(code_of, |_| error::OK);
                self.answer(asker, code, Packet::default());
            }
            MoveAsker::Nobody => {}
        }
    }
}

/// PVM's error for a task that asks.
fn code_of(why: NotMoved) -> i32 {
    match why {
        NotMoved::Here => error::OK,
        NotMoved::NoTask | NotMoved::Ended | NotMoved::Killed => error::NO_TASK,
        NotMoved::NoProcess => error::NO_HOST,
        NotMoved::Lost => error::HOST_FAIL,
        NotMoved::Pinned(_) => error::DENIED,
        NotMoved::UnderWay
        | NotMoved::TooMany
        | NotMoved::Refused(_)
        | NotMoved::TimedOut
        | NotMoved::Full
        | NotMoved::Cancelled => error::OUT_OF_RES,
    }
}
