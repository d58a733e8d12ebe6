//! What the driver reports to [`Moves`] while a task leaves one process and enters another.

use super::roles::RoleOutput;
use super::{MoveEffect, Moves, Pin, Refusal, TakenMessages};
use crate::tid::Tid;
use upcall_message::Rank;

impl<M: Clone, E> Moves<M, E> {
    // ---- In the process that a task leaves.

    /// The task may leave. `now` is the process's Lamport time.
    pub fn begin(&mut self, tid: Tid, now: u64, effects: &mut Vec<MoveEffect<M, E>>) {
        let out = &mut RoleOutput { rank: self.peers.rank, own: &mut self.own, effects };
        self.leaving.begin(tid, now, out);
        self.run_own(effects);
    }

    /// The task must stay, and goes on.
    pub fn stays(&mut self, tid: Tid, why: Pin, effects: &mut Vec<MoveEffect<M, E>>) {
        let out = &mut RoleOutput { rank: self.peers.rank, own: &mut self.own, effects };
        self.leaving.stays(tid, why, out);
        self.run_own(effects);
    }

    /// The task has stopped, and its memory is sent in this many parts.
    pub fn frozen(&mut self, tid: Tid, parts: u32, effects: &mut Vec<MoveEffect<M, E>>) {
        let out = &mut RoleOutput { rank: self.peers.rank, own: &mut self.own, effects };
        if let Some(epoch) = self.leaving.freezing(tid) {
            let carried = self.keeping.carry(tid, epoch);
            self.leaving.frozen(tid, parts, carried, &self.peers, out);
        }
        self.run_own(effects);
    }

    /// Returns `true` if [`turn`](Self::turn) has something to send.
    pub fn has_unsent(&self) -> bool {
        self.leaving.has_unsent()
    }

    /// Returns `true` if a task of this process is to stop.
    pub fn is_to_stop(&self, tid: Tid) -> bool {
        self.leaving.freezing(tid).is_some()
    }

    /// The epoch of a task's move, and the process that it is to enter, if it is about to leave
    /// this one.
    pub fn leaving(&self, tid: Tid) -> Option<(u64, Rank)> {
        self.leaving.target(tid)
    }

    /// Sends at most this many parts. Other tasks run between two calls.
    pub fn turn(&mut self, budget: usize, effects: &mut Vec<MoveEffect<M, E>>) {
        let out = &mut RoleOutput { rank: self.peers.rank, own: &mut self.own, effects };
        self.leaving.turn(budget, out);
    }

    // ---- In the process that a task enters.

    /// A task's state has arrived: [`MoveEffect::Take`]. A late one, of a move that is settled
    /// already, is dropped, and so is that of a process which the task does not leave.
    pub fn take(
        &mut self,
        from: Rank,
        (tid, epoch, parts): (Tid, u64, u32),
        messages: TakenMessages<M>,
        effects: &mut Vec<MoveEffect<M, E>>,
    ) {
        let all = self.keeping.all(tid, epoch).filter(|_| self.leaves(tid, epoch, from));
        let Some(all) = all else { return };
        let out = &mut RoleOutput { rank: self.peers.rank, own: &mut self.own, effects };
        self.arriving.take((from, tid, epoch, parts), all, messages, out);
        self.run_own(effects);
    }

    /// Returns `true` if the first process has announced that the task leaves process `from` in
    /// this move, and has not settled the move.
    ///
    /// Only then [`take`](Self::take) takes the task.
    pub fn leaves(&self, tid: Tid, epoch: u64, from: Rank) -> bool {
        self.keeping.leaves(tid, epoch, from)
    }

    /// A part of a task's memory has arrived: [`MoveEffect::SendPart`]. `sum` is the [`sum`] with
    /// which it was sent.
    pub fn part(
        &mut self,
        from: Rank,
        (tid, epoch, at): (Tid, u64, u32),
        sum: u64,
        bytes: Vec<u8>,
        effects: &mut Vec<MoveEffect<M, E>>,
    ) {
        let out = &mut RoleOutput { rank: self.peers.rank, own: &mut self.own, effects };
        self.arriving.part((from, tid, epoch, at), sum, bytes, out);
        self.run_own(effects);
    }

    /// The task is whole, and can run here.
    pub fn ready(&mut self, tid: Tid, effects: &mut Vec<MoveEffect<M, E>>) {
        let out = &mut RoleOutput { rank: self.peers.rank, own: &mut self.own, effects };
        self.arriving.ready(tid, out);
        self.run_own(effects);
    }

    /// The task cannot run here.
    pub fn refuse(&mut self, tid: Tid, why: Refusal, effects: &mut Vec<MoveEffect<M, E>>) {
        let out = &mut RoleOutput { rank: self.peers.rank, own: &mut self.own, effects };
        self.arriving.refuse(tid, why, out);
        self.run_own(effects);
    }
}
