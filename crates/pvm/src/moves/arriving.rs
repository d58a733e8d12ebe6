//! A process that a task enters takes its state, and then the messages that others have kept.
//!
//! ```text
//! Fills    parts of the memory arrive           until the last one
//! Checks   all parts are here                   until ready, or refuse
//! Waits    the first process decides            until Settled
//! Refused  the first process aborts             until Settled
//! Merges   the task runs; later messages wait   until each process has marked (after)
//! ```
//!
//! **At most one runner.** The task runs here only after the first process has decided for this
//! process. The old process has stopped the task before it sent the first part.
//!
//! **Nothing is lost or doubled.** The inbox has arrived with the state, and so have the late
//! messages. Each process sends what it has kept before its mark. So with the last mark all
//! messages are here. Those that a process sends after its mark wait, too, and stay behind the
//! earlier ones of that process, because its stamps only grow.
//!
//! **Order.** All that waits is delivered in the order of the stamps. A cause has a lower stamp
//! than its effect, so it comes first. What arrives after the last mark was caused by nothing that
//! is still kept elsewhere.

use super::message::{
    self, KeptMessage, MoveEffect, MoveMessage, Refusal, TakenMessages, TaskPlace,
};
use super::roles::{Peers, RankSet, RoleOutput};
use crate::tid::Tid;
use std::collections::BTreeMap;
use upcall_message::Rank;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArrivingPhase {
    Fills { parts: u32, next: u32 },
    Checks,
    Waits,
    Refused,
    Merges,
}

#[derive(Debug)]
struct ArrivingTask<M> {
    epoch: u64,
    /// The old process.
    from: Rank,
    phase: ArrivingPhase,
    /// The processes that take part.
    all: RankSet,
    after: RankSet,
    waits: Vec<KeptMessage<M>>,
    /// The task's own messages for tasks that are being moved.
    carried: Vec<(Tid, KeptMessage<M>)>,
}

/// What a decision means to a process that a task was to enter.
#[derive(Debug)]
pub(super) enum Entry<M> {
    /// The task was not to enter this process.
    Other,
    /// It goes on in its old process.
    Dropped,
    /// It runs here, and has left this process with these messages for other tasks.
    Entered(Rank, Vec<(Tid, KeptMessage<M>)>),
}

/// The tasks that enter this process.
#[derive(Debug)]
pub(super) struct Arriving<M> {
    tasks: BTreeMap<Tid, ArrivingTask<M>>,
}

impl<M> Arriving<M> {
    pub(super) fn new() -> Self {
        Self { tasks: BTreeMap::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    pub(super) fn take<E>(
        &mut self,
        (from, tid, epoch, parts): (Rank, Tid, u64, u32),
        all: RankSet,
        messages: TakenMessages<M>,
        out: &mut RoleOutput<'_, M, E>,
    ) {
        let (phase, after) = (ArrivingPhase::Fills { parts, next: 0 }, RankSet::default());
        let TakenMessages { late: waits, carried } = messages;
        self.tasks.insert(tid, ArrivingTask { epoch, from, phase, all, after, waits, carried });
        out.push(MoveEffect::Prepare { tid });
        self.check_if_full(tid, out);
    }

    /// Fills a part. Parts arrive in order, and with the sum that they were sent with.
    pub(super) fn part<E>(
        &mut self,
        (from, tid, epoch, at): (Rank, Tid, u64, u32),
        sum: u64,
        bytes: Vec<u8>,
        out: &mut RoleOutput<'_, M, E>,
    ) {
        let Some(task) = self.current(tid, epoch).filter(|task| task.from == from) else { return };
        let ArrivingPhase::Fills { parts, next } = task.phase else { return };
        if at != next || at >= parts || message::sum(&bytes) != sum {
            return self.refuse(tid, Refusal::Damaged, out);
        }
        task.phase = ArrivingPhase::Fills { parts, next: next + 1 };
        out.push(MoveEffect::Fill { tid, at, bytes });
        self.check_if_full(tid, out);
    }

    fn check_if_full<E>(&mut self, tid: Tid, out: &mut RoleOutput<'_, M, E>) {
        if let Some(task) = self.tasks.get_mut(&tid)
            && let ArrivingPhase::Fills { parts, next } = task.phase
            && next == parts
        {
            task.phase = ArrivingPhase::Checks;
            out.push(MoveEffect::Finish { tid });
        }
    }

    pub(super) fn ready<E>(&mut self, tid: Tid, out: &mut RoleOutput<'_, M, E>) {
        let Some(task) = self.tasks.get_mut(&tid) else { return };
        if task.phase == ArrivingPhase::Checks {
            task.phase = ArrivingPhase::Waits;
            let carries = !task.carried.is_empty();
            out.tell(0, MoveMessage::Ready { tid, epoch: task.epoch, carries });
        }
    }

    /// Refuses a task, and frees what has arrived of it.
    pub(super) fn refuse<E>(&mut self, tid: Tid, why: Refusal, out: &mut RoleOutput<'_, M, E>) {
        let Some(task) = self.tasks.get_mut(&tid) else { return };
        if matches!(task.phase, ArrivingPhase::Fills { .. } | ArrivingPhase::Checks) {
            task.phase = ArrivingPhase::Refused;
            out.push(MoveEffect::Free { tid });
            out.tell(0, MoveMessage::Refused { tid, epoch: task.epoch, why });
        }
    }

    /// Handles the decision.
    pub(super) fn settled<E>(
        &mut self,
        (tid, epoch, rank): (Tid, u64, Rank),
        peers: &Peers,
        out: &mut RoleOutput<'_, M, E>,
    ) -> Entry<M> {
        let Some(task) = self.current(tid, epoch) else { return Entry::Other };
        if rank != peers.rank {
            self.gone(tid, out);
            return Entry::Dropped;
        }
        let (from, carried) = (task.from, std::mem::take(&mut task.carried));
        if task.phase == ArrivingPhase::Waits {
            task.phase = ArrivingPhase::Merges;
            out.push(MoveEffect::Run { tid });
            self.finish(tid, peers, out);
        }
        Entry::Entered(from, carried)
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

    /// Returns `true` if messages for a task that runs here wait for marks.
    pub(super) fn waits(&self, tid: Tid) -> bool {
        self.tasks.get(&tid).is_some_and(|task| task.phase == ArrivingPhase::Merges)
    }

    /// Keeps a message that arrives for the task, until all processes have marked.
    pub(super) fn arrived(&mut self, tid: Tid, kept: KeptMessage<M>) -> Result<(), KeptMessage<M>> {
        let Some(task) = self.tasks.get_mut(&tid) else { return Err(kept) };
        task.waits.push(kept);
        Ok(())
    }

    fn finish<E>(&mut self, tid: Tid, peers: &Peers, out: &mut RoleOutput<'_, M, E>) {
        let Some(task) = self.tasks.get_mut(&tid) else { return };
        if task.phase != ArrivingPhase::Merges || !peers.have_marked_after(task.after, task.all) {
            return;
        }
        let (epoch, waits) = (task.epoch, std::mem::take(&mut task.waits));
        self.tasks.remove(&tid);
        out.deliver_all(tid, waits);
        out.place(tid, TaskPlace::In(peers.rank));
        out.tell(0, MoveMessage::Over { tid, epoch });
    }

    /// Handles the end of a process, which counts as its mark.
    pub(super) fn lost<E>(&mut self, peers: &Peers, out: &mut RoleOutput<'_, M, E>) {
        for tid in self.tasks.keys().copied().collect::<Vec<_>>() {
            self.finish(tid, peers, out);
        }
    }

    /// Handles the end of a task that runs here.
    pub(super) fn ended(&mut self, tid: Tid) {
        self.tasks.remove(&tid);
    }

    /// Drops a task that has not run here, and never will.
    pub(super) fn gone<E>(&mut self, tid: Tid, out: &mut RoleOutput<'_, M, E>) {
        let Some(task) = self.tasks.get(&tid) else { return };
        if task.phase != ArrivingPhase::Refused {
            out.push(MoveEffect::Free { tid });
        }
        self.tasks.remove(&tid);
    }

    fn current(&mut self, tid: Tid, epoch: u64) -> Option<&mut ArrivingTask<M>> {
        self.tasks.get_mut(&tid).filter(|task| task.epoch == epoch)
    }
}
