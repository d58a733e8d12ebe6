//! A process that a task leaves keeps what arrives late, stops the task, and sends its state.
//!
//! ```text
//! Asked     may the task leave?                  until begin, or stays
//! Runs      the task runs                        until each process has marked (before)
//! Freezing  the task runs to its next point      until frozen, or pinned
//! Frozen    the state is sent, part by part      until Settled
//! Returned  the move is aborted: the task runs   until each process has marked (after)
//! ```
//!
//! **At most one runner.** The state is sent only after the task has stopped, and a stopped task
//! runs here again only if the first process has decided so. The new process lets it run only if
//! the first process has decided for the new one. There is one decision for each epoch.
//!
//! **Nothing is left behind.** Each process sends its mark after all of its messages for the task,
//! on the same queue. So when the marks of all are here, the inbox and the late messages are
//! complete, and nothing for the task arrives here any more. A process that has ended counts as
//! having marked: its driver reports the end after its last message.
//!
//! **Order of what the task sends.** A task that has stopped sends nothing more from here. So a
//! process that gets Flush has all messages that the task has sent to it from here. The task goes
//! on in its new process only when all processes of other hosts have got Flush. A process of this
//! host has a message as soon as it is sent.
//!
//! **Causal order.** `cut` is this process's Lamport time before it lets the first process announce
//! the move. A process keeps messages only after that announcement, so their stamps are above the
//! cut. A message that another one has caused has a higher stamp than its cause. So a message whose
//! stamp is at most the cut was caused by no kept one, and may be delivered. All others wait, and
//! are delivered in the order of their stamps together with those that the processes have kept.
//!
//! After an abort, messages wait here only while a process has sent its first mark, and not its
//! second one. A process without the first mark has kept nothing so far that caused a message here:
//! the mark would have arrived before. So a process that stops before its first mark, which is why
//! moves are aborted, delays no message. A process that stops between its marks delays late
//! messages, but not the task.

use super::message::{KeptMessage, MoveEffect, MoveMessage, Pin, TakenMessages, TaskPlace};
use super::roles::{Peers, RankSet, RoleOutput};
use crate::tid::Tid;
use std::collections::BTreeMap;
use std::ops::Bound;
use upcall_message::Rank;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeavingPhase {
    Asked,
    Runs,
    Freezing,
    Frozen { parts: u32, next: u32 },
    Returned,
}

#[derive(Debug)]
struct LeavingTask<M> {
    epoch: u64,
    to: Rank,
    phase: LeavingPhase,
    cut: u64,
    /// The processes that have been asked to keep messages. None before the announcement.
    all: RankSet,
    /// Those on other hosts.
    far: RankSet,
    before: RankSet,
    after: RankSet,
    late: Vec<KeptMessage<M>>,
    /// The task's own messages for tasks that are being moved.
    carried: Vec<(Tid, KeptMessage<M>)>,
}

impl<M> LeavingTask<M> {
    /// Returns `true` if all processes have been asked to keep messages.
    fn is_announced(&self) -> bool {
        !self.all.is_empty()
    }

    /// Returns `true` if the limit applies to the task's late messages.
    fn counts(&self) -> bool {
        self.phase != LeavingPhase::Returned
    }

    /// The total length of the late messages to which the limit applies, in bytes.
    fn length(&self) -> usize {
        if self.counts() { self.late.iter().map(|kept| kept.length).sum() } else { 0 }
    }

    /// Returns `true` if a part of the task is to be sent.
    fn has_unsent(&self) -> bool {
        matches!(self.phase, LeavingPhase::Frozen { parts, next } if next < parts)
    }

    /// Returns `true` if a process may have kept a message that must be delivered before those that
    /// wait here.
    fn must_wait(&self, peers: &Peers) -> bool {
        self.phase != LeavingPhase::Returned || !peers.have_marked_after(self.after, self.before)
    }
}

/// The tasks that leave this process.
#[derive(Debug)]
pub(super) struct Leaving<M> {
    tasks: BTreeMap<Tid, LeavingTask<M>>,
    /// Total length of the late messages to which the limit applies, in bytes.
    length: usize,
    /// The task of which a part was sent last.
    last: Option<Tid>,
}

impl<M: Clone> Leaving<M> {
    pub(super) fn new() -> Self {
        Self { tasks: BTreeMap::new(), length: 0, last: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    pub(super) fn length(&self) -> usize {
        self.length
    }

    pub(super) fn asked<E>(
        &mut self,
        (tid, epoch, to): (Tid, u64, Rank),
        out: &mut RoleOutput<'_, M, E>,
    ) {
        let (before, after) = (RankSet::default(), RankSet::default());
        let phase = LeavingPhase::Asked;
        let (cut, all, far) = (0, RankSet::default(), RankSet::default());
        let (late, carried) = (Vec::new(), Vec::new());
        let task = LeavingTask { epoch, to, phase, cut, all, far, before, after, late, carried };
        self.tasks.insert(tid, task);
        out.push(MoveEffect::MayLeave { tid });
    }

    /// Handles the answer that the task may leave. `now` is this process's Lamport time, before the
    /// message to the first process has its stamp.
    pub(super) fn begin<E>(&mut self, tid: Tid, now: u64, out: &mut RoleOutput<'_, M, E>) {
        let Some(task) = self.tasks.get_mut(&tid) else { return };
        if task.phase != LeavingPhase::Asked {
            return;
        }
        (task.phase, task.cut) = (LeavingPhase::Runs, now);
        out.place(tid, TaskPlace::Held);
        out.tell(0, MoveMessage::Begun { tid, epoch: task.epoch });
    }

    /// Handles the answer that the task is pinned. A task that has begun to leave goes on when the
    /// first process has decided.
    pub(super) fn stays<E>(&mut self, tid: Tid, why: Pin, out: &mut RoleOutput<'_, M, E>) {
        let Some(task) = self.tasks.get(&tid) else { return };
        let epoch = task.epoch;
        match task.phase {
            LeavingPhase::Asked => _ = self.tasks.remove(&tid),
            LeavingPhase::Freezing => {}
            _ => return,
        }
        out.tell(0, MoveMessage::Stays { tid, epoch, why });
    }

    pub(super) fn announced<E>(
        &mut self,
        (tid, epoch): (Tid, u64),
        all: RankSet,
        far: RankSet,
        peers: &Peers,
        out: &mut RoleOutput<'_, M, E>,
    ) {
        let Some(task) = self.current(tid, epoch) else { return };
        (task.all, task.far) = (all, far);
        Self::freeze_if_marked(tid, task, peers, out);
    }

    pub(super) fn marked_before<E>(
        &mut self,
        (from, tid, epoch): (Rank, Tid, u64),
        peers: &Peers,
        out: &mut RoleOutput<'_, M, E>,
    ) {
        let Some(task) = self.current(tid, epoch) else { return };
        task.before.insert(from);
        Self::freeze_if_marked(tid, task, peers, out);
    }

    fn freeze_if_marked<E>(
        tid: Tid,
        task: &mut LeavingTask<M>,
        peers: &Peers,
        out: &mut RoleOutput<'_, M, E>,
    ) {
        let is_marked = task.is_announced() && peers.have_marked_before(task.before, task.all);
        if task.phase == LeavingPhase::Runs && is_marked {
            task.phase = LeavingPhase::Freezing;
            out.push(MoveEffect::Freeze { tid });
        }
    }

    /// Delivers late messages that may have caused an errand, which has this stamp. Before the
    /// announcement it raises the cut: the stamps of messages that are kept are above it.
    pub(super) fn errand_came<E>(&mut self, tid: Tid, stamp: u64, out: &mut RoleOutput<'_, M, E>) {
        let Some(task) = self.tasks.get_mut(&tid) else { return };
        if task.phase == LeavingPhase::Runs && !task.is_announced() && stamp > task.cut {
            task.cut = stamp;
            let due = task.late.extract_if(.., |kept| kept.stamp <= stamp).collect::<Vec<_>>();
            self.length -= due.iter().map(|kept| kept.length).sum::<usize>();
            out.deliver_all(tid, due);
        }
    }

    /// The epoch of a task that is to stop.
    pub(super) fn freezing(&self, tid: Tid) -> Option<u64> {
        let task = self.tasks.get(&tid)?;
        (task.phase == LeavingPhase::Freezing).then_some(task.epoch)
    }

    /// Handles that the task has stopped. Its memory has this many parts.
    pub(super) fn frozen<E>(
        &mut self,
        tid: Tid,
        parts: u32,
        carried: Vec<(Tid, KeptMessage<M>)>,
        peers: &Peers,
        out: &mut RoleOutput<'_, M, E>,
    ) {
        let Some(task) = self.tasks.get_mut(&tid) else { return };
        task.phase = LeavingPhase::Frozen { parts, next: 0 };
        task.carried = carried;
        let LeavingTask { to, epoch, far, .. } = *task;
        let flushed = far.without(peers.lost).ranks();
        flushed.for_each(|rank| out.tell(rank, MoveMessage::Flush { tid, epoch }));
        let messages = TakenMessages { late: task.late.clone(), carried: task.carried.clone() };
        out.push(MoveEffect::Take { to, tid, epoch, parts, messages });
    }

    /// Sends up to `budget` parts, of one task after the other.
    pub(super) fn turn<E>(&mut self, budget: usize, out: &mut RoleOutput<'_, M, E>) {
        for _ in 0..budget {
            let unsent = |(_, task): &(&Tid, &mut LeavingTask<M>)| task.has_unsent();
            let start = self.last.map_or(Bound::Unbounded, Bound::Excluded);
            let after = self.tasks.range_mut((start, Bound::Unbounded)).find(unsent);
            let found = after.map(|(tid, _)| *tid);
            let found = found.or_else(|| self.tasks.iter_mut().find(unsent).map(|(tid, _)| *tid));
            let Some((tid, task)) = found.and_then(|tid| Some((tid, self.tasks.get_mut(&tid)?)))
            else {
                return;
            };
            if let LeavingPhase::Frozen { next, .. } = &mut task.phase {
                out.push(MoveEffect::SendPart { to: task.to, tid, epoch: task.epoch, at: *next });
                *next += 1;
            }
            self.last = Some(tid);
        }
    }

    /// The epoch of a task's move, and the process that it is to enter.
    pub(super) fn target(&self, tid: Tid) -> Option<(u64, Rank)> {
        self.tasks.get(&tid).map(|task| (task.epoch, task.to))
    }

    /// Returns `true` if a part of a task is to be sent.
    pub(super) fn has_unsent(&self) -> bool {
        self.tasks.values().any(LeavingTask::has_unsent)
    }

    /// Handles a message for the task. Returns the epoch if the limit applies to the message.
    pub(super) fn arrived<E>(
        &mut self,
        tid: Tid,
        kept: KeptMessage<M>,
        peers: &Peers,
        out: &mut RoleOutput<'_, M, E>,
    ) -> Result<Option<u64>, KeptMessage<M>> {
        let Some(task) = self.tasks.get_mut(&tid) else { return Err(kept) };
        if kept.stamp <= task.cut || !task.must_wait(peers) {
            out.push(MoveEffect::Deliver { tid, message: kept.message });
            return Ok(None);
        }
        let counts = task.counts();
        self.length += if counts { kept.length } else { 0 };
        task.late.push(kept);
        Ok(counts.then_some(task.epoch))
    }

    /// Handles the decision. Returns the task's own messages if the task stays.
    pub(super) fn settled<E>(
        &mut self,
        (tid, epoch, rank): (Tid, u64, Rank),
        peers: &Peers,
        out: &mut RoleOutput<'_, M, E>,
    ) -> Vec<(Tid, KeptMessage<M>)> {
        let task = self.tasks.get_mut(&tid).filter(|task| task.epoch == epoch);
        let (Some(task), true) = (task, rank == peers.rank) else {
            if rank == peers.rank {
                out.tell(0, MoveMessage::Over { tid, epoch });
            } else if self.current(tid, epoch).is_some() {
                self.remove(tid);
                out.push(MoveEffect::Free { tid });
            }
            return Vec::new();
        };
        if matches!(task.phase, LeavingPhase::Freezing | LeavingPhase::Frozen { .. }) {
            out.push(MoveEffect::Run { tid });
        }
        self.length -= task.length();
        task.phase = LeavingPhase::Returned;
        let carried = std::mem::take(&mut task.carried);
        self.finish(tid, peers, out);
        carried
    }

    pub(super) fn marked_after<E>(
        &mut self,
        (from, tid, epoch): (Rank, Tid, u64),
        peers: &Peers,
        out: &mut RoleOutput<'_, M, E>,
    ) {
        let Some(task) = self.current(tid, epoch) else { return };
        task.after.insert(from);
        self.finish(tid, peers, out);
    }

    /// After an abort, delivers what waits if nothing that may have caused it is missing. If no
    /// process keeps anything, the move is over.
    fn finish<E>(&mut self, tid: Tid, peers: &Peers, out: &mut RoleOutput<'_, M, E>) {
        let Some(task) = self.tasks.get_mut(&tid) else { return };
        if task.must_wait(peers) {
            return;
        }
        out.deliver_all(tid, std::mem::take(&mut task.late));
        if peers.have_marked_after(task.after, task.all) {
            let epoch = task.epoch;
            self.remove(tid);
            out.place(tid, TaskPlace::In(peers.rank));
            out.tell(0, MoveMessage::Over { tid, epoch });
        }
    }

    /// Returns `true` if messages for a task that has stayed here wait for marks.
    pub(super) fn waits(&self, tid: Tid, peers: &Peers) -> bool {
        let waits = |task: &LeavingTask<M>| task.phase == LeavingPhase::Returned;
        self.tasks.get(&tid).is_some_and(|task| waits(task) && task.must_wait(peers))
    }

    /// Handles the end of a process, which counts as both of its marks.
    pub(super) fn lost<E>(&mut self, peers: &Peers, out: &mut RoleOutput<'_, M, E>) {
        for tid in self.tasks.keys().copied().collect::<Vec<_>>() {
            if let Some(task) = self.tasks.get_mut(&tid) {
                Self::freeze_if_marked(tid, task, peers, out);
            }
            self.finish(tid, peers, out);
        }
    }

    /// Handles the end of a task. Returns `true` if it was about to leave.
    pub(super) fn ended(&mut self, tid: Tid) -> bool {
        self.remove(tid)
    }

    fn remove(&mut self, tid: Tid) -> bool {
        let Some(task) = self.tasks.remove(&tid) else { return false };
        self.length -= task.length();
        true
    }

    fn current(&mut self, tid: Tid, epoch: u64) -> Option<&mut LeavingTask<M>> {
        self.tasks.get_mut(&tid).filter(|task| task.epoch == epoch)
    }
}
