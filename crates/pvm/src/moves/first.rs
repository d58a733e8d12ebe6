//! The first process decides where each task runs.
//!
//! A move has an epoch, and goes through three phases:
//!
//! ```text
//! Asked      the old process is asked          until Begun or Stays
//! Announced  all processes keep messages       until Ready, Refused, or a reason to abort
//! Settled    the task's place is decided       until Over
//! ```
//!
//! The step from `Announced` to `Settled` is the commit or the abort, and is the only place that
//! changes a task's process. It is taken once in an epoch, because only `settle` takes it, and the
//! phase is `Settled` afterwards. So all processes are sent the same decision.
//!
//! **No lost task.** A task's process changes only when the new one has all of the task (Ready).
//! Until then the old one keeps it. If a process ends, exactly those tasks end whose process it is.
//!
//! **No task overtakes its own messages.** The commit also needs that each process of another host
//! than the old one has all that the task has sent (Flushed).
//!
//! **One move at a time.** The next move of a task begins when the last one is over. Then no
//! process keeps anything of it, and no mark of it is under way.
//!
//! Errands (answers, signals, the end) go from the first process to the task's process. Once a move
//! is announced they wait here, and follow the decision to the process that it names. Before that
//! they must not wait: messages that they have caused still go to the old process.

use super::message::{MoveEffect, MoveMessage, NotMoved, Pin, Refusal};
use super::roles::{MoveLimits, Peers, RankSet, RoleOutput};
use crate::tid::Tid;
use std::collections::BTreeMap;
use std::time::Duration;
use upcall_message::Rank;

/// Maximum number of moves at a time.
pub(super) const MOST_MOVES: usize = 4096;

/// Maximum number of errands that wait for one task.
pub(super) const MOST_ERRANDS: usize = 1024;

/// Where a task is.
#[derive(Clone, Copy, Debug)]
struct Located {
    rank: Rank,
    /// Whether there was a request to move it, so that other processes may know of it.
    has_been_asked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MovePhase {
    Asked,
    Announced,
    Settled { moved: bool },
}

/// A request that waits until the last move, which was aborted, is over.
#[derive(Clone, Copy, Debug)]
struct NextMove {
    asker: u64,
    to: Rank,
    /// The time of the abort.
    ends: Duration,
}

#[derive(Debug)]
struct OpenMove<E> {
    asker: u64,
    from: Rank,
    to: Rank,
    epoch: u64,
    /// The time of the abort. `None`: the time begins with the next [`tick`](Deciding::tick).
    ends: Option<Duration>,
    /// The time of the abort if the new process copies nothing before.
    first_end: Duration,
    phase: MovePhase,
    errands: Vec<E>,
    next: Option<NextMove>,
    /// Processes of other hosts that may not have all that the task has sent.
    unflushed: RankSet,
    /// Whether the new process has all of the task.
    is_ready: bool,
    /// Whether the task carries messages for other tasks, which its new process has not sent yet.
    carries: bool,
}

impl<E> OpenMove<E> {
    /// The time at which the move, or the request that waits for its end, is aborted. `None`: there
    /// is none.
    fn end(&self) -> Option<Duration> {
        match self.phase {
            MovePhase::Settled { .. } => self.next.map(|next| next.ends),
            _ => Some(self.ends.unwrap_or_default()),
        }
    }
}

/// The tasks and moves of a machine.
#[derive(Debug)]
pub(super) struct Deciding<E> {
    /// The processes of each host.
    hosts: Vec<RankSet>,
    /// Processes that have ended, and that the others know as cleared.
    cleared: RankSet,
    tasks: BTreeMap<Tid, Located>,
    open: BTreeMap<Tid, OpenMove<E>>,
    /// The last epoch.
    last: u64,
}

impl<E> Deciding<E> {
    /// A machine of `size` processes of one host.
    pub(super) fn new(size: usize) -> Self {
        let hosts = vec![RankSet::from(0..size)];
        let cleared = RankSet::default();
        Self { hosts, cleared, tasks: BTreeMap::new(), open: BTreeMap::new(), last: 0 }
    }

    /// All processes of the machine, also those that have ended.
    fn all(&self) -> RankSet {
        self.hosts.iter().fold(RankSet::default(), |all, host| all.or(*host))
    }

    /// Those that have not.
    fn living(&self, peers: &Peers) -> impl Iterator<Item = Rank> + use<E> {
        self.all().without(peers.lost).ranks()
    }

    /// Handles that processes of another host have joined, before tasks start there.
    ///
    /// They take part in no open move. So moves that are announced, in which a task may still send
    /// messages to them from its old process, are aborted.
    pub(super) fn joined<M>(
        &mut self,
        ranks: RankSet,
        peers: &Peers,
        out: &mut RoleOutput<'_, M, E>,
    ) {
        let is_announced = |open: &OpenMove<E>| open.phase == MovePhase::Announced;
        let announced = self.open.iter().filter(|(_, open)| is_announced(open));
        for tid in announced.map(|(tid, _)| *tid).collect::<Vec<_>>() {
            self.abort(tid, NotMoved::HostJoined, peers, out);
        }
        self.hosts.push(ranks);
        for rank in ranks.ranks() {
            out.tell(rank, MoveMessage::Ended { ranks: peers.lost });
            self.cleared.ranks().for_each(|one| out.tell(rank, MoveMessage::Cleared { rank: one }));
        }
    }

    pub(super) fn began(&mut self, tid: Tid, rank: Rank) {
        self.tasks.insert(tid, Located { rank, has_been_asked: false });
    }

    pub(super) fn rank(&self, tid: Tid) -> Option<Rank> {
        self.tasks.get(&tid).map(|task| task.rank)
    }

    /// Number of moves that are not over.
    pub(super) fn open(&self) -> usize {
        self.open.len()
    }

    /// The tasks whose moves are not over.
    pub(super) fn moving(&self) -> impl Iterator<Item = Tid> {
        self.open.keys().copied()
    }

    /// Returns `true` if a move of this task is not over.
    pub(super) fn is_open(&self, tid: Tid) -> bool {
        self.open.contains_key(&tid)
    }

    /// The time at which the first move is aborted.
    pub(super) fn next_end(&self) -> Option<Duration> {
        self.open.values().filter_map(OpenMove::end).min()
    }

    /// Begins a move. If the task's last move was aborted, and is not over, the next one waits for
    /// that: its asker has the answer already, and cannot know when the move is over.
    ///
    /// # Errors
    /// If the move cannot begin.
    pub(super) fn request<M>(
        &mut self,
        (asker, tid, to): (u64, Tid, Rank),
        ends: Duration,
        peers: &Peers,
        out: &mut RoleOutput<'_, M, E>,
    ) -> Result<(), NotMoved> {
        let all = self.all();
        let task = self.tasks.get_mut(&tid).ok_or(NotMoved::NoTask)?;
        if !all.contains(to) || peers.lost.contains(to) {
            return Err(NotMoved::NoProcess);
        }
        if let Some(open) = self.open.get_mut(&tid) {
            let waits = open.phase == MovePhase::Settled { moved: false } && open.next.is_none();
            open.next = if waits { Some(NextMove { asker, to, ends }) } else { open.next };
            return if waits { Ok(()) } else { Err(NotMoved::UnderWay) };
        }
        if task.rank == to {
            return Err(NotMoved::Here);
        }
        if self.open.len() >= MOST_MOVES {
            return Err(NotMoved::TooMany);
        }
        self.last += 1;
        task.has_been_asked = true;
        let (from, epoch) = (task.rank, self.last);
        let (phase, errands) = (MovePhase::Asked, Vec::new());
        let (first_end, ends, next) = (ends, Some(ends), None);
        let open = OpenMove {
            asker,
            from,
            to,
            epoch,
            ends,
            first_end,
            phase,
            errands,
            next,
            unflushed: RankSet::default(),
            is_ready: false,
            carries: false,
        };
        self.open.insert(tid, open);
        out.tell(from, MoveMessage::Move { tid, epoch, to });
        Ok(())
    }

    pub(super) fn begun<M>(
        &mut self,
        (from, tid, epoch): (Rank, Tid, u64),
        peers: &Peers,
        out: &mut RoleOutput<'_, M, E>,
    ) {
        // Also those that have ended: another process may not have handled all that they have sent.
        let all = self.all();
        let living = self.living(peers);
        let near = self.hosts.iter().find(|host| host.contains(from)).copied();
        let Some(open) = self.current(tid, epoch) else { return };
        if open.phase != MovePhase::Asked || open.from != from {
            return;
        }
        let far = all.without(near.unwrap_or_default());
        (open.phase, open.unflushed) = (MovePhase::Announced, far);
        let leaving = MoveMessage::Leaving { tid, epoch, from, all, far };
        living.for_each(|to| out.tell(to, leaving.clone()));
    }

    /// Handles that the new process still copies memory of the task: the time begins again, up to
    /// [`MoveLimits::copying`].
    pub(super) fn copies(&mut self, from: Rank, tid: Tid, epoch: u64) {
        let Some(open) = self.current(tid, epoch) else { return };
        if open.phase == MovePhase::Asked && open.to == from {
            open.ends = None;
        }
    }

    /// Handles a refusal of the old process. Before it has begun, it keeps nothing.
    pub(super) fn stays<M>(
        &mut self,
        (from, tid, epoch, why): (Rank, Tid, u64, Pin),
        peers: &Peers,
        out: &mut RoleOutput<'_, M, E>,
    ) {
        let Some(open) = self.current(tid, epoch) else { return };
        if open.from == from {
            self.abort(tid, NotMoved::Pinned(why), peers, out);
        }
    }

    /// Handles that the new process has all of the task.
    pub(super) fn ready<M>(
        &mut self,
        (from, tid, epoch): (Rank, Tid, u64),
        carries: bool,
        peers: &Peers,
        out: &mut RoleOutput<'_, M, E>,
    ) {
        let Some(open) = self.current(tid, epoch) else { return };
        if open.to == from {
            (open.is_ready, open.carries) = (true, carries);
            self.commit_if_complete(tid, peers, out);
        }
    }

    /// Handles that a process of another host has all that the task has sent.
    pub(super) fn flushed<M>(
        &mut self,
        (from, tid, epoch): (Rank, Tid, u64),
        peers: &Peers,
        out: &mut RoleOutput<'_, M, E>,
    ) {
        let Some(open) = self.current(tid, epoch) else { return };
        open.unflushed = open.unflushed.without(RankSet::from(from..from + 1));
        self.commit_if_complete(tid, peers, out);
    }

    /// Commits a move if the new process has all of the task, and others have all that it has sent.
    fn commit_if_complete<M>(&mut self, tid: Tid, peers: &Peers, out: &mut RoleOutput<'_, M, E>) {
        let Some(open) = self.open.get(&tid) else { return };
        let is_flushed = open.unflushed.without(peers.lost).is_empty();
        if open.phase != MovePhase::Announced || !open.is_ready || !is_flushed {
            return;
        }
        let to = open.to;
        if let Some(task) = self.tasks.get_mut(&tid) {
            task.rank = to;
        }
        self.settle(tid, to, peers, out);
    }

    pub(super) fn refused<M>(
        &mut self,
        (from, tid, epoch, why): (Rank, Tid, u64, Refusal),
        peers: &Peers,
        out: &mut RoleOutput<'_, M, E>,
    ) {
        let Some(open) = self.current(tid, epoch) else { return };
        if open.to == from {
            self.abort(tid, NotMoved::Refused(why), peers, out);
        }
    }

    pub(super) fn full<M>(
        &mut self,
        (tid, epoch): (Tid, u64),
        peers: &Peers,
        out: &mut RoleOutput<'_, M, E>,
    ) {
        if self.current(tid, epoch).is_some() {
            self.abort(tid, NotMoved::Full, peers, out);
        }
    }

    /// Aborts a move that is not settled yet: the task goes on in its old process.
    pub(super) fn abort<M>(
        &mut self,
        tid: Tid,
        why: NotMoved,
        peers: &Peers,
        out: &mut RoleOutput<'_, M, E>,
    ) {
        let Some(open) = self.open.get(&tid) else { return };
        if matches!(open.phase, MovePhase::Settled { .. }) {
            return;
        }
        let (asker, from) = (open.asker, open.from);
        self.settle(tid, from, peers, out);
        // After the decision: the answer to a task that has asked for its own move follows it.
        out.push(MoveEffect::Report { asker, tid, result: Err(why) });
    }

    /// Announces the process in which a task runs. See the module.
    fn settle<M>(&mut self, tid: Tid, rank: Rank, peers: &Peers, out: &mut RoleOutput<'_, M, E>) {
        let living = self.living(peers);
        let Some(open) = self.open.get_mut(&tid) else { return };
        let (epoch, before) = (open.epoch, open.phase);
        open.phase = MovePhase::Settled { moved: rank != open.from };
        // Processes that were not asked to keep anything need not know.
        let knows = |to: &Rank| before != MovePhase::Asked || *to == rank;
        let told = living.filter(knows);
        told.for_each(|to| out.tell(to, MoveMessage::Settled { tid, epoch, rank }));
        open.errands.drain(..).for_each(|errand| out.errand(rank, tid, errand));
    }

    pub(super) fn over<M>(
        &mut self,
        (from, tid, epoch): (Rank, Tid, u64),
        peers: &Peers,
        out: &mut RoleOutput<'_, M, E>,
    ) {
        let Some(open) = self.current(tid, epoch) else { return };
        let MovePhase::Settled { moved } = open.phase else { return };
        if from != if moved { open.to } else { open.from } {
            return;
        }
        if moved {
            out.push(MoveEffect::Report { asker: open.asker, tid, result: Ok(from) });
        }
        let Some(OpenMove { next: Some(NextMove { asker, to, ends }), .. }) =
            self.open.remove(&tid)
        else {
            return;
        };
        if let Err(why) = self.request((asker, tid, to), ends, peers, out) {
            out.push(MoveEffect::Report { asker, tid, result: Err(why) });
        }
    }

    /// Handles that a task's new process has sent what the task has brought along.
    pub(super) fn resent<M>(
        &mut self,
        from: Rank,
        tid: Tid,
        epoch: u64,
        peers: &Peers,
        out: &mut RoleOutput<'_, M, E>,
    ) {
        if let Some(open) = self.current(tid, epoch).filter(|open| open.to == from) {
            open.carries = false;
            self.clear(peers, out);
        }
    }

    /// Announces processes that have ended and that owe no mark any more. Their tasks that live on
    /// elsewhere may have left with messages for which they do.
    fn clear<M>(&mut self, peers: &Peers, out: &mut RoleOutput<'_, M, E>) {
        for rank in peers.lost.without(self.cleared).ranks() {
            let owes = |open: &OpenMove<E>| {
                open.from == rank
                    && open.carries
                    && open.phase == MovePhase::Settled { moved: true }
            };
            if !self.open.values().any(owes) {
                self.cleared.insert(rank);
                self.living(peers).for_each(|to| out.tell(to, MoveMessage::Cleared { rank }));
            }
        }
    }

    /// Drops the request that waits for the end of a task's last move.
    pub(super) fn drop_next<M>(&mut self, tid: Tid, why: NotMoved, out: &mut RoleOutput<'_, M, E>) {
        if let Some(next) = self.open.get_mut(&tid).and_then(|open| open.next.take()) {
            out.push(MoveEffect::Report { asker: next.asker, tid, result: Err(why) });
        }
    }

    /// Passes an errand on, or lets it wait for the decision.
    pub(super) fn errand<M>(
        &mut self,
        tid: Tid,
        errand: E,
        peers: &Peers,
        out: &mut RoleOutput<'_, M, E>,
    ) {
        match self.open.get_mut(&tid) {
            Some(open) if open.phase == MovePhase::Announced => {
                open.errands.push(errand);
                if open.errands.len() > MOST_ERRANDS {
                    self.abort(tid, NotMoved::Full, peers, out);
                }
            }
            _ => {
                if let Some(rank) = self.rank(tid) {
                    out.errand(rank, tid, errand);
                }
            }
        }
    }

    /// Handles the end of a task in any process. Processes that have kept messages for the task
    /// drop them.
    pub(super) fn ended<M>(&mut self, tid: Tid, peers: &Peers, out: &mut RoleOutput<'_, M, E>) {
        let Some(task) = self.tasks.remove(&tid) else { return };
        self.drop_next(tid, NotMoved::Ended, out);
        let open = self.open.remove(&tid);
        if let Some(OpenMove { asker, phase, .. }) = &open
            && *phase != (MovePhase::Settled { moved: false })
        {
            let result = Err(NotMoved::Ended);
            out.push(MoveEffect::Report { asker: *asker, tid, result });
        }
        if task.has_been_asked {
            self.living(peers).for_each(|to| out.tell(to, MoveMessage::Gone { tid }));
        }
        self.clear(peers, out);
    }

    /// Handles the end of a process. Returns the tasks that have ended with it.
    pub(super) fn lost<M>(
        &mut self,
        rank: Rank,
        peers: &Peers,
        out: &mut RoleOutput<'_, M, E>,
    ) -> Vec<Tid> {
        let tids = self.tasks.iter().filter(|(_, task)| task.rank == rank).map(|(tid, _)| *tid);
        let tids = tids.collect::<Vec<_>>();
        tids.iter().for_each(|tid| self.ended(*tid, peers, out));
        let headed = self.open.iter().filter(|(_, open)| open.to == rank).map(|(tid, _)| *tid);
        for tid in headed.collect::<Vec<_>>() {
            self.abort(tid, NotMoved::Lost, peers, out);
        }
        // It need not have anything any more.
        for tid in self.open.keys().copied().collect::<Vec<_>>() {
            self.commit_if_complete(tid, peers, out);
        }
        self.clear(peers, out);
        tids
    }

    /// Aborts the moves that have taken too long.
    pub(super) fn tick<M>(
        &mut self,
        now: Duration,
        limits: MoveLimits,
        peers: &Peers,
        out: &mut RoleOutput<'_, M, E>,
    ) {
        let is_late = |open: &mut OpenMove<E>| {
            let last = open.first_end + limits.copying;
            open.ends.get_or_insert(last.min(now + limits.within));
            open.end().is_some_and(|end| end <= now)
        };
        let late = self.open.iter_mut().filter_map(|(tid, open)| is_late(open).then_some(*tid));
        for tid in late.collect::<Vec<_>>() {
            self.drop_next(tid, NotMoved::TimedOut, out);
            self.abort(tid, NotMoved::TimedOut, peers, out);
        }
    }

    /// The open move of this epoch.
    fn current(&mut self, tid: Tid, epoch: u64) -> Option<&mut OpenMove<E>> {
        self.open.get_mut(&tid).filter(|open| open.epoch == epoch)
    }
}
