//! What all roles of a process use: its view of the others, and the way to its driver.

use super::message::{KeptMessage, MoveEffect, MoveMessage, TaskPlace};
use crate::tid::Tid;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;
use upcall_message::Rank;

/// Limits of moves.
#[derive(Clone, Copy, Debug)]
pub struct MoveLimits {
    /// Maximum length of messages that a process keeps for moves that are not settled, in bytes.
    pub kept: usize,
    /// Time after which a move that is not settled is aborted.
    pub within: Duration,
    /// Time for which the new process may put that off in all, while it copies the task's memory.
    pub copying: Duration,
}

impl MoveLimits {
    /// The limits of a machine.
    pub const MACHINE: Self =
        Self { kept: 64 << 20, within: Duration::from_secs(5), copying: Duration::from_secs(600) };
}

impl Default for MoveLimits {
    fn default() -> Self {
        Self::MACHINE
    }
}

/// A set of processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankSet([u64; 4]);

impl From<Range<Rank>> for RankSet {
    /// The processes with these ranks. Ranks above 255 are ignored.
    fn from(ranks: Range<Rank>) -> Self {
        let mut set = Self::default();
        ranks.take(Self::MOST).for_each(|rank| _ = set.insert(rank));
        set
    }
}

impl RankSet {
    /// Maximum number of processes.
    pub const MOST: usize = 256;

    /// Adds a process. Returns `true` if it was not there. A rank above 255 is ignored.
    pub fn insert(&mut self, rank: Rank) -> bool {
        let Some(word) = self.0.get_mut(rank / 64) else { return false };
        let before = *word;
        *word |= 1 << (rank % 64);
        *word != before
    }

    /// Returns `true` if the set has this process.
    pub fn contains(self, rank: Rank) -> bool {
        self.0.get(rank / 64).is_some_and(|word| word >> (rank % 64) & 1 == 1)
    }

    /// The processes of either set.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] | other.0[at]))
    }

    /// The processes of both sets.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] & other.0[at]))
    }

    /// The processes of this set that are not in the other one.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] & !other.0[at]))
    }

    /// The processes of the set, in ascending order.
    pub fn ranks(self) -> impl Iterator<Item = Rank> {
        (0..Self::MOST).filter(move |rank| self.contains(*rank))
    }

    /// Returns `true` if the set has no process.
    pub fn is_empty(self) -> bool {
        self.0 == [0; 4]
    }
}

/// The processes of a machine, as one of them sees them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peers {
    /// This process.
    pub(super) rank: Rank,
    /// Processes that have ended.
    pub(super) lost: RankSet,
    /// Processes that have ended, and whose tasks carry no messages any more that they owe a mark
    /// for ([`MoveMessage::Cleared`]).
    pub(super) cleared: RankSet,
}

impl Peers {
    /// Returns `true` if `set`, which has sent its first marks, has each process of `all` that has
    /// not ended.
    pub(super) fn have_marked_before(&self, set: RankSet, all: RankSet) -> bool {
        all.without(self.lost).without(set).is_empty()
    }

    /// The same for second marks. A process that has ended counts when it is cleared.
    pub(super) fn have_marked_after(&self, set: RankSet, all: RankSet) -> bool {
        all.without(self.lost.and(self.cleared)).without(set).is_empty()
    }
}

/// What a role sends to its own process.
#[derive(Debug)]
pub(super) enum OwnInput<M, E> {
    Message(MoveMessage),
    Arrived(Tid, KeptMessage<M>),
    Errand(Tid, E),
}

/// Takes the effects of a role. What is for the own process is handled after the input at hand, in
/// order, as if it had arrived from another process.
pub(super) struct RoleOutput<'a, M, E> {
    pub(super) rank: Rank,
    pub(super) own: &'a mut VecDeque<OwnInput<M, E>>,
    pub(super) effects: &'a mut Vec<MoveEffect<M, E>>,
}

impl<M, E> RoleOutput<'_, M, E> {
    pub(super) fn push(&mut self, effect: MoveEffect<M, E>) {
        self.effects.push(effect);
    }

    pub(super) fn tell(&mut self, to: Rank, message: MoveMessage) {
        if to == self.rank {
            self.own.push_back(OwnInput::Message(message));
        } else {
            self.push(MoveEffect::Tell { to, message });
        }
    }

    pub(super) fn send(&mut self, to: Rank, tid: Tid, kept: KeptMessage<M>) {
        if to == self.rank {
            self.own.push_back(OwnInput::Arrived(tid, kept));
        } else {
            self.push(MoveEffect::Send { to, tid, kept });
        }
    }

    pub(super) fn errand(&mut self, to: Rank, tid: Tid, errand: E) {
        if to == self.rank {
            self.own.push_back(OwnInput::Errand(tid, errand));
        } else {
            self.push(MoveEffect::Errand { to, tid, errand });
        }
    }

    pub(super) fn place(&mut self, tid: Tid, place: TaskPlace) {
        self.push(MoveEffect::Place { tid, place });
    }

    /// Delivers messages in the order of their stamps, and of processes where those are equal.
    pub(super) fn deliver_all(&mut self, tid: Tid, mut all: Vec<KeptMessage<M>>) {
        all.sort_by_key(|kept| (kept.stamp, kept.from));
        for KeptMessage { message, .. } in all {
            self.push(MoveEffect::Deliver { tid, message });
        }
    }
}
