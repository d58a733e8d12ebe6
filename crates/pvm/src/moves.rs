//! Moves of tasks between the processes of a machine.
//!
//! Each process has one [`Moves`]: a state machine without clock, input and output. Its driver
//! passes messages, ends and times as arguments, and carries out the [`MoveEffect`]s. The node is
//! one driver (`node/moving.rs`). The simulator (`upcall-simulator`) is another one, and so drives
//! the code that ships. A process may have several roles in a move:
//!
//! | module | role | decides |
//! |---|---|---|
//! | `first` | the first process | where a task runs: the commit or the abort |
//! | `leaving` | the old process | when the task stops, and what of its messages is late |
//! | `arriving` | the new process | when the task runs there, and gets what was kept |
//! | `keeping` | each process | what it keeps for the task, and where that goes |
//!
//! `requests` and `passage` have most of what a driver calls.
//!
//! ```text
//!     first process        old process               each process             new process
//!     Move           ──▶   keeps what is late
//!                    ◀──   Begun
//!     Leaving        ─────────────────────────────▶  keeps its messages
//!                          all marks: stops      ◀── MarkedBefore
//!                          the state, in parts   ───────────────────────────▶ fills
//!                          Flush           ┄┄┄┄▶ (on other hosts)
//!                    ◀┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ Flushed
//!                    ◀─────────────────────────────────────────────────────── Ready
//!     Settled        ──▶   frees the task   ───────▶ sends what it kept  ───▶ runs the task
//!                                                    MarkedAfter         ───▶ all marks: delivers
//!                    ◀─────────────────────────────────────────────────────── Over
//! ```
//!
//! The dotted messages are only between hosts. There a message of the task that is still on its way
//! from the old process could be overtaken by one from the new process. So the first process lets
//! the task run in its new process when all processes of other hosts than the old one have all that
//! the task has sent.
//!
//! An abort is Settled, too, with the old process as the task's process. Then the messages that
//! were kept go there, and it waits for the marks.
//!
//! # Driver
//! - Queues between two processes keep the order of messages, also of those about moves.
//! - Each message has a Lamport time. The clock of a process is never behind a message that it has
//!   taken. Causal order also needs that the cause of a message has arrived before it, and that a
//!   process handles what has arrived in the order of the times (`causal.rs`).
//! - Between hosts ([`Moves::joined`]) there is no causal order. Messages of two tasks keep theirs.
//! - The end of a process is reported after its last message was handled.
//!
//! # Process death
//! A process that has ended sends no mark. Its last messages have arrived, but a task that has left
//! it may carry messages for which it owes a mark (`keeping`). So its second marks count as sent
//! when the first process has announced it as cleared: all such messages have been sent.
//!
//! Before the commit a task ends with the old process, and afterwards with the new one. If the new
//! one ends before the commit, the move is aborted. Messages that a process keeps end with it:
//! their senders end at the same time. A process that is cut off, and goes on, runs no task twice:
//! it needs the first process's decision to run a task that it has stopped, or that has entered.
//!
//! # Bounds
//! At most [`MoveLimits::kept`] bytes are kept in a process for tasks whose move is not settled.
//! Each further message makes the first process abort that task's move. Once a move is settled,
//! what waits is like an inbox, and has no limit of its own.
//!
//! The copy of a task's memory before the move puts its end off by at most
//! [`MoveLimits::copying`].

mod arriving;
mod first;
mod keeping;
mod leaving;
mod message;
mod passage;
mod requests;
mod roles;
#[cfg(test)]
mod tests;

use self::arriving::{Arriving, Entry};
use self::first::Deciding;
use self::keeping::Keeping;
use self::leaving::Leaving;
pub use self::message::{
    KeptMessage, MoveEffect, MoveMessage, NotMoved, Pin, Refusal, ShownPath, TakenMessages,
    TaskPlace, sum,
};
pub use self::roles::{MoveLimits, RankSet};
use self::roles::{OwnInput, Peers, RoleOutput};
use crate::tid::Tid;
use std::collections::{BTreeMap, VecDeque};
use upcall_message::Rank;

/// The moves of a machine, as one of its processes takes part in them. `M` is a message for a task,
/// and `E` an errand: an answer, a signal, or the end. See the module.
#[derive(Debug)]
pub struct Moves<M, E> {
    peers: Peers,
    limits: MoveLimits,
    /// In the first process.
    first: Option<Deciding<E>>,
    leaving: Leaving<M>,
    keeping: Keeping<M>,
    arriving: Arriving<M>,
    /// What the roles of this process send to each other.
    own: VecDeque<OwnInput<M, E>>,
    /// The last epoch of each task in which this process has reported that it keeps too much.
    full: BTreeMap<Tid, u64>,
}

impl<M: Clone, E> Moves<M, E> {
    /// The state of process `rank` of `size`, without moves. All processes are on one host.
    pub fn new(rank: Rank, size: usize, limits: MoveLimits) -> Self {
        Self {
            peers: Peers { rank, lost: RankSet::default(), cleared: RankSet::default() },
            limits,
            first: (rank == 0).then(|| Deciding::new(size)),
            leaving: Leaving::new(),
            keeping: Keeping::new(),
            arriving: Arriving::new(),
            own: VecDeque::new(),
            full: BTreeMap::new(),
        }
    }

    /// Handles a message of another process.
    pub fn heard(&mut self, from: Rank, message: MoveMessage, effects: &mut Vec<MoveEffect<M, E>>) {
        self.handle(from, message, effects);
        self.run_own(effects);
    }

    /// Handles the end of a process, after its last message. In the first process, returns the
    /// tasks that have ended with it.
    pub fn lost(&mut self, rank: Rank, effects: &mut Vec<MoveEffect<M, E>>) -> Vec<Tid> {
        if !self.peers.lost.insert(rank) {
            return Vec::new();
        }
        let tids = self.decide(effects, |first, peers, out| first.lost(rank, peers, out));
        self.count_lost(effects);
        self.run_own(effects);
        tids.unwrap_or_default()
    }

    /// Goes on where the marks of a process that has ended were missing.
    fn count_lost(&mut self, effects: &mut Vec<MoveEffect<M, E>>) {
        let peers = self.peers;
        let out = &mut RoleOutput { rank: peers.rank, own: &mut self.own, effects };
        self.keeping.lost(&peers, out);
        self.leaving.lost(&peers, out);
        self.arriving.lost(&peers, out);
    }

    /// Keeps a message that a task here sends to a task whose place is [`TaskPlace::Held`].
    ///
    /// # Errors
    /// The message, if the task has ended.
    pub fn keep(
        &mut self,
        tid: Tid,
        kept: KeptMessage<M>,
        effects: &mut Vec<MoveEffect<M, E>>,
    ) -> Result<(), KeptMessage<M>> {
        match self.keeping.keep(tid, kept) {
            Ok(epoch) => {
                self.report_if_full(tid, epoch, effects);
                self.run_own(effects);
                Ok(())
            }
            Err(kept) => self.arrived(tid, kept, effects),
        }
    }

    /// Handles a message that has arrived here for a task whose place is [`TaskPlace::Held`].
    ///
    /// # Errors
    /// The message, if the task has ended.
    pub fn arrived(
        &mut self,
        tid: Tid,
        kept: KeptMessage<M>,
        effects: &mut Vec<MoveEffect<M, E>>,
    ) -> Result<(), KeptMessage<M>> {
        let result = self.take_in(tid, kept, effects);
        self.run_own(effects);
        result
    }

    /// Records that an errand for a task of this process has arrived, with this Lamport time. Then
    /// the errand is carried out, unless it must wait ([`waits`](Self::waits)).
    pub fn errand_came(&mut self, tid: Tid, stamp: u64, effects: &mut Vec<MoveEffect<M, E>>) {
        let out = &mut RoleOutput { rank: self.peers.rank, own: &mut self.own, effects };
        self.leaving.errand_came(tid, stamp, out);
    }

    /// Returns `true` if messages for a task of this process wait until others have marked. Errands
    /// for the task must then wait, too, because those messages may have caused them.
    pub fn waits(&self, tid: Tid) -> bool {
        self.arriving.waits(tid) || self.leaving.waits(tid, &self.peers)
    }

    /// Records that a task of this process has ended here. The first process is notified by the
    /// driver, and calls [`ended`](Self::ended).
    pub fn ended_here(&mut self, tid: Tid) {
        self.leaving.ended(tid);
        self.arriving.ended(tid);
    }

    /// Returns `true` if this process takes part in no move. While it does, not all of its tasks
    /// wait for messages that never come.
    pub fn is_quiet(&self) -> bool {
        self.leaving.is_empty()
            && self.keeping.is_empty()
            && self.arriving.is_empty()
            && self.open() == 0
    }

    // ---- Between the roles.

    /// Lets the first process's role decide, if this is the first process.
    fn decide<T>(
        &mut self,
        effects: &mut Vec<MoveEffect<M, E>>,
        with: impl FnOnce(&mut Deciding<E>, &Peers, &mut RoleOutput<'_, M, E>) -> T,
    ) -> Option<T> {
        let out = &mut RoleOutput { rank: self.peers.rank, own: &mut self.own, effects };
        self.first.as_mut().map(|first| with(first, &self.peers, out))
    }

    /// Handles what the roles of this process have sent to each other.
    fn run_own(&mut self, effects: &mut Vec<MoveEffect<M, E>>) {
        let to = self.peers.rank;
        while let Some(own) = self.own.pop_front() {
            match own {
                OwnInput::Message(message) => self.handle(to, message, effects),
                // A message for a task that has ended is dropped.
                OwnInput::Arrived(tid, kept) => _ = self.take_in(tid, kept, effects),
                OwnInput::Errand(tid, errand) => {
                    effects.push(MoveEffect::Errand { to, tid, errand })
                }
            }
        }
    }

    fn take_in(
        &mut self,
        tid: Tid,
        kept: KeptMessage<M>,
        effects: &mut Vec<MoveEffect<M, E>>,
    ) -> Result<(), KeptMessage<M>> {
        let out = &mut RoleOutput { rank: self.peers.rank, own: &mut self.own, effects };
        match self.leaving.arrived(tid, kept, &self.peers, out) {
            Ok(Some(epoch)) => self.report_if_full(tid, epoch, effects),
            Ok(None) => {}
            Err(kept) => return self.arriving.arrived(tid, kept),
        }
        Ok(())
    }

    fn report_if_full(&mut self, tid: Tid, epoch: u64, effects: &mut Vec<MoveEffect<M, E>>) {
        let length = self.keeping.length() + self.leaving.length();
        if length > self.limits.kept && self.full.insert(tid, epoch) != Some(epoch) {
            let out = &mut RoleOutput { rank: self.peers.rank, own: &mut self.own, effects };
            out.tell(0, MoveMessage::Full { tid, epoch });
        }
    }

    /// Handles the decision. A task's own messages come before the marks of this process.
    fn settled(
        &mut self,
        (tid, epoch, rank): (Tid, u64, Rank),
        effects: &mut Vec<MoveEffect<M, E>>,
    ) {
        let peers = self.peers;
        let out = &mut RoleOutput { rank: peers.rank, own: &mut self.own, effects };
        match self.arriving.settled((tid, epoch, rank), &peers, out) {
            Entry::Dropped => {}
            Entry::Other => {
                let carried = self.leaving.settled((tid, epoch, rank), &peers, out);
                if rank == peers.rank {
                    self.keeping.put_back(tid, carried, out);
                } else {
                    self.keeping.left(tid, rank, &peers, out);
                }
            }
            Entry::Entered(from, carried) => {
                let carries = !carried.is_empty();
                for (tid, kept) in carried {
                    let kept = self.keeping.keep(tid, kept).err();
                    let kept = kept.and_then(|kept| self.take_in(tid, kept, effects).err());
                    effects.extend(kept.map(|kept| MoveEffect::Resend { tid, kept }));
                }
                let out = &mut RoleOutput { rank: peers.rank, own: &mut self.own, effects };
                if carries {
                    let resent = MoveMessage::Resent { tid, epoch };
                    if from != 0 {
                        out.tell(from, resent.clone());
                    }
                    out.tell(0, resent);
                }
            }
        }
        let out = &mut RoleOutput { rank: peers.rank, own: &mut self.own, effects };
        self.keeping.settled((tid, epoch, rank), out);
    }

    fn handle(&mut self, from: Rank, message: MoveMessage, effects: &mut Vec<MoveEffect<M, E>>) {
        let peers = &self.peers;
        let out = &mut RoleOutput { rank: peers.rank, own: &mut self.own, effects };
        match message {
            MoveMessage::Move { tid, epoch, to } if from == 0 => {
                self.leaving.asked((tid, epoch, to), out);
            }
            MoveMessage::Leaving { tid, epoch, from: old, all, far } if from == 0 => {
                self.keeping.announced((tid, epoch, old), all, out);
                self.leaving.announced((tid, epoch), all, far, peers, out);
            }
            MoveMessage::Settled { tid, epoch, rank } if from == 0 => {
                self.full.remove(&tid);
                self.settled((tid, epoch, rank), effects);
            }
            MoveMessage::Gone { tid } if from == 0 => {
                self.full.remove(&tid);
                self.keeping.gone(tid, out);
                self.arriving.gone(tid, out);
                out.place(tid, TaskPlace::Ended);
            }
            MoveMessage::Flush { tid, epoch } if self.keeping.leaves(tid, epoch, from) => {
                out.tell(0, MoveMessage::Flushed { tid, epoch });
            }
            MoveMessage::MarkedBefore { tid, epoch } => {
                self.leaving.marked_before((from, tid, epoch), peers, out);
            }
            MoveMessage::MarkedAfter { tid, epoch } => {
                self.arriving.marked_after((from, tid, epoch), peers, out);
                self.leaving.marked_after((from, tid, epoch), peers, out);
            }
            MoveMessage::Resent { tid, epoch } => {
                self.keeping.resent_by(tid, epoch, out);
                self.decide(effects, |first, peers, out| {
                    first.resent(from, tid, epoch, peers, out)
                });
            }
            MoveMessage::Cleared { rank } if from == 0 => {
                self.peers.cleared.insert(rank);
                self.count_lost(effects);
            }
            MoveMessage::Ended { ranks } if from == 0 => {
                self.peers.lost = self.peers.lost.or(ranks);
                self.count_lost(effects);
            }
            message => {
                _ = self.decide(effects, |first, peers, out| {
                    handle_first(first, from, message, peers, out);
                })
            }
        }
    }
}

/// Handles a message to the first process.
fn handle_first<M, E>(
    first: &mut Deciding<E>,
    from: Rank,
    message: MoveMessage,
    peers: &Peers,
    out: &mut RoleOutput<'_, M, E>,
) {
    match message {
        MoveMessage::Begun { tid, epoch } => first.begun((from, tid, epoch), peers, out),
        MoveMessage::Copies { tid, epoch } => first.copies(from, tid, epoch),
        MoveMessage::Stays { tid, epoch, why } => first.stays((from, tid, epoch, why), peers, out),
        MoveMessage::Ready { tid, epoch, carries } => {
            first.ready((from, tid, epoch), carries, peers, out);
        }
        MoveMessage::Flushed { tid, epoch } => first.flushed((from, tid, epoch), peers, out),
        MoveMessage::Refused { tid, epoch, why } => {
            first.refused((from, tid, epoch, why), peers, out);
        }
        MoveMessage::Full { tid, epoch } => first.full((tid, epoch), peers, out),
        MoveMessage::Over { tid, epoch } => first.over((from, tid, epoch), peers, out),
        _ => {}
    }
}
