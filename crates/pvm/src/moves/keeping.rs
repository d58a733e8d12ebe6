//! Each process keeps its messages for a task that moves.
//!
//! **Nothing is lost or doubled.** From Leaving to Settled each message that is sent here for the
//! task goes into one list. On Settled the list goes to the process that the first process has
//! chosen, and this process sends to there from then on. So each message goes one way.
//!
//! **Order.** All earlier messages went to the old process, and the first mark follows them. The
//! list goes out before the second mark, and before any later message, on the same queue. So what
//! this process sends arrives in the order of sending. The new process delivers later messages only
//! after the second mark of each process.
//!
//! # Senders that move
//! A sender may leave this process while its messages for another task are kept here. If they
//! stayed, they would be lost with this process, and their sender and receiver might live. So they
//! are carried: when the sender stops, they leave the lists, and move with it. Its process, by the
//! first process's decision, sends or keeps them: here after an abort ([`Keeping::put_back`]), in
//! the new process after the commit. So each of them still goes one way.
//!
//! Until then this process owes its second mark for the receivers, also if it ends before
//! (`MoveMessage::Cleared`). The receivers' messages wait, and so no effect of a carried message
//! overtakes it. A move waits for no mark of another move before it is settled, so the moves do not
//! wait for each other in a circle.

use super::message::{KeptMessage, MoveMessage, TaskPlace};
use super::roles::{Peers, RankSet, RoleOutput};
use crate::tid::Tid;
use std::collections::{BTreeMap, BTreeSet};
use upcall_message::Rank;

#[derive(Debug)]
struct KeptFor<M> {
    epoch: u64,
    /// The old process.
    from: Rank,
    /// The processes that take part in the move.
    all: RankSet,
    kept: Vec<KeptMessage<M>>,
}

/// A task that has stopped here, and carries messages to another process.
#[derive(Debug, Default)]
struct Carrier {
    epoch: u64,
    receivers: BTreeSet<Tid>,
    /// The new process, once that is decided.
    to: Option<Rank>,
}

/// The messages that this process keeps for tasks that move.
#[derive(Debug)]
pub(super) struct Keeping<M> {
    tasks: BTreeMap<Tid, KeptFor<M>>,
    /// Total length of the messages, in bytes.
    length: usize,
    carriers: BTreeMap<Tid, Carrier>,
    /// Tasks whose move is settled, and for which this process has not marked: their epoch and
    /// process.
    owed: BTreeMap<Tid, (u64, Rank)>,
}

impl<M> Keeping<M> {
    pub(super) fn new() -> Self {
        let (tasks, carriers, owed) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { tasks, length: 0, carriers, owed }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.carriers.is_empty() && self.owed.is_empty()
    }

    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Returns `true` if this process keeps messages in this epoch: the move is announced, and not
    /// settled yet, as far as this process knows.
    pub(super) fn keeps(&self, tid: Tid, epoch: u64) -> bool {
        self.all(tid, epoch).is_some()
    }

    /// The processes that take part in a move that this process [keeps](Self::keeps) messages for.
    pub(super) fn all(&self, tid: Tid, epoch: u64) -> Option<RankSet> {
        self.tasks.get(&tid).filter(|task| task.epoch == epoch).map(|task| task.all)
    }

    /// Returns `true` if the task is leaving process `from`.
    pub(super) fn leaves(&self, tid: Tid, epoch: u64, from: Rank) -> bool {
        self.tasks.get(&tid).is_some_and(|task| (task.epoch, task.from) == (epoch, from))
    }

    pub(super) fn announced<E>(
        &mut self,
        (tid, epoch, from): (Tid, u64, Rank),
        all: RankSet,
        out: &mut RoleOutput<'_, M, E>,
    ) {
        self.tasks.insert(tid, KeptFor { epoch, from, all, kept: Vec::new() });
        out.place(tid, TaskPlace::Held);
        out.tell(from, MoveMessage::MarkedBefore { tid, epoch });
    }

    /// Keeps a message. Returns the epoch, or the message if none are kept for the task.
    pub(super) fn keep(&mut self, tid: Tid, kept: KeptMessage<M>) -> Result<u64, KeptMessage<M>> {
        let Some(task) = self.tasks.get_mut(&tid) else { return Err(kept) };
        self.length += kept.length;
        task.kept.push(kept);
        Ok(task.epoch)
    }

    pub(super) fn settled<E>(
        &mut self,
        (tid, epoch, rank): (Tid, u64, Rank),
        out: &mut RoleOutput<'_, M, E>,
    ) {
        if !self.keeps(tid, epoch) {
            return;
        }
        let kept = self.remove(tid);
        // In the process of the task, messages wait until all processes have marked.
        if rank != out.rank {
            out.place(tid, TaskPlace::In(rank));
        }
        kept.into_iter().for_each(|kept| out.send(rank, tid, kept));
        self.owed.insert(tid, (epoch, rank));
        self.mark(tid, out);
    }

    /// Sends the second mark, unless a message for the task is carried.
    fn mark<E>(&mut self, tid: Tid, out: &mut RoleOutput<'_, M, E>) {
        let is_carried = self.carriers.values().any(|carrier| carrier.receivers.contains(&tid));
        if let Some((epoch, rank)) = self.owed.get(&tid).copied().filter(|_| !is_carried) {
            self.owed.remove(&tid);
            out.tell(rank, MoveMessage::MarkedAfter { tid, epoch });
        }
    }

    /// Takes the messages of a task that has stopped here out of the lists.
    pub(super) fn carry(&mut self, sender: Tid, epoch: u64) -> Vec<(Tid, KeptMessage<M>)> {
        let mut carried = Vec::new();
        for (tid, task) in &mut self.tasks {
            let of_sender = task.kept.extract_if(.., |kept| kept.source == Some(sender));
            carried.extend(of_sender.map(|kept| (*tid, kept)));
        }
        if !carried.is_empty() {
            self.length -= carried.iter().map(|(_, kept)| kept.length).sum::<usize>();
            let receivers = carried.iter().map(|(tid, _)| *tid).collect();
            self.carriers.insert(sender, Carrier { epoch, receivers, to: None });
        }
        carried
    }

    /// Takes back the messages of a task that goes on here. The task has sent nothing since.
    pub(super) fn put_back<E>(
        &mut self,
        sender: Tid,
        carried: Vec<(Tid, KeptMessage<M>)>,
        out: &mut RoleOutput<'_, M, E>,
    ) {
        for (tid, kept) in carried {
            if let Err(kept) = self.keep(tid, kept)
                && let Some((_, rank)) = self.owed.get(&tid)
            {
                out.send(*rank, tid, kept);
            }
        }
        self.resent(sender, out);
    }

    /// Records that a task goes on in another process.
    pub(super) fn left<E>(
        &mut self,
        sender: Tid,
        to: Rank,
        peers: &Peers,
        out: &mut RoleOutput<'_, M, E>,
    ) {
        if let Some(carrier) = self.carriers.get_mut(&sender) {
            carrier.to = Some(to);
            self.lost(peers, out);
        }
    }

    /// Handles that a task's new process sends or keeps what the task has carried.
    pub(super) fn resent_by<E>(&mut self, sender: Tid, epoch: u64, out: &mut RoleOutput<'_, M, E>) {
        if self.carriers.get(&sender).is_some_and(|carrier| carrier.epoch == epoch) {
            self.resent(sender, out);
        }
    }

    /// Records that nothing is carried by this task any more, and sends the marks that are due.
    fn resent<E>(&mut self, sender: Tid, out: &mut RoleOutput<'_, M, E>) {
        for tid in self.carriers.remove(&sender).unwrap_or_default().receivers {
            self.mark(tid, out);
        }
    }

    /// What has ended with a process is not carried any more.
    pub(super) fn lost<E>(&mut self, peers: &Peers, out: &mut RoleOutput<'_, M, E>) {
        let is_lost = |carrier: &Carrier| carrier.to.is_some_and(|to| peers.lost.contains(to));
        let lost = self.carriers.iter().filter(|(_, carrier)| is_lost(carrier));
        for tid in lost.map(|(tid, _)| *tid).collect::<Vec<_>>() {
            self.resent(tid, out);
        }
    }

    /// Handles the end of the task.
    pub(super) fn gone<E>(&mut self, tid: Tid, out: &mut RoleOutput<'_, M, E>) {
        self.remove(tid);
        self.owed.remove(&tid);
        self.resent(tid, out);
    }

    fn remove(&mut self, tid: Tid) -> Vec<KeptMessage<M>> {
        let kept = self.tasks.remove(&tid).map_or_else(Vec::new, |task| task.kept);
        self.length -= kept.iter().map(|kept| kept.length).sum::<usize>();
        kept
    }
}
