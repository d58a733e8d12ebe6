//! Messages that move with tasks to this process, until each move is settled.
//!
//! # Quota
//! A task brings along what waited for it, and what it has sent to tasks that move themselves. A
//! process keeps at most [`MoveLimits::kept`] for moves that go on, so no task brings more than
//! that. But the process that a task leaves may be hostile, and send messages without end. So the
//! tasks of one host bring at most [`MOST`] together, as long as it is not settled where they run.
//! A task that brings more is refused. It goes on in its old process, which has all of its
//! messages, so none is lost. The tasks of other hosts have quotas of their own.

use crate::moves::{KeptMessage, MoveLimits, Refusal, TakenMessages};
use crate::tid::Tid;
use std::collections::BTreeMap;
use upcall_message::Rank;

/// Maximum number of bytes that the tasks of one host bring along. An honest process may report too
/// late that it keeps too much, and so this is twice as much. They take at most twice the memory.
const MOST: u64 = 2 * MoveLimits::MACHINE.kept as u64;
/// What each message counts beside its contents, in bytes.
const EACH: u64 = 128;

/// A move, and the process that the task leaves.
pub(crate) type BroughtBy = (Rank, Tid, u64);

/// See the module.
#[derive(Debug)]
pub(crate) struct BroughtMessages<M> {
    moves: BTreeMap<BroughtBy, BroughtOne<M>>,
    /// Maximum number of bytes for each host.
    most: u64,
}

/// What one task brings along.
#[derive(Debug)]
struct BroughtOne<M> {
    /// The host that the task leaves.
    host: usize,
    bytes: u64,
    state: BroughtState<M>,
}

#[derive(Debug)]
enum BroughtState<M> {
    /// The messages arrive.
    Arrives(TakenMessages<M>),
    /// They were too many, and are dropped.
    Refused,
    /// The task has arrived, and has them.
    Taken,
}

impl<M> Default for BroughtMessages<M> {
    fn default() -> Self {
        Self { moves: BTreeMap::new(), most: MOST }
    }
}

impl<M> BroughtMessages<M> {
    /// Adds a message, which `read` makes from its contents. With a `receiver`, the task itself has
    /// sent it. Without memory the message is left out, and so the task will be refused.
    pub(crate) fn add(
        &mut self,
        by: BroughtBy,
        host: usize,
        receiver: Option<Tid>,
        length: usize,
        read: impl FnOnce() -> Option<KeptMessage<M>>,
    ) {
        let before = self.bytes_of(host);
        let arrives = || BroughtState::Arrives(nothing());
        let one = || BroughtOne { host, bytes: 0, state: arrives() };
        let one = self.moves.entry(by).or_insert_with(one);
        let BroughtState::Arrives(messages) = &mut one.state else { return };
        let bytes = EACH.saturating_add(length as u64);
        if before.saturating_add(bytes) > self.most {
            (one.bytes, one.state) = (0, BroughtState::Refused);
            return;
        }
        one.bytes += bytes;
        match (read(), receiver) {
            (None, _) => {}
            (Some(kept), None) => messages.late.push(kept),
            (Some(kept), Some(receiver)) => messages.carried.push((receiver, kept)),
        }
    }

    /// Takes the messages of a task that has arrived, which are this many. They count until the
    /// move is settled. `None`: the task had arrived before.
    ///
    /// # Errors
    /// The reason why the process does not take the task.
    pub(crate) fn take(
        &mut self,
        by: BroughtBy,
        host: usize,
        count: u32,
    ) -> Option<Result<TakenMessages<M>, Refusal>> {
        let none = || BroughtOne { host, bytes: 0, state: BroughtState::Arrives(nothing()) };
        let one = self.moves.entry(by).or_insert_with(none);
        match std::mem::replace(&mut one.state, BroughtState::Taken) {
            BroughtState::Taken => None,
            BroughtState::Refused => Some(Err(Refusal::Messages { most: self.most })),
            BroughtState::Arrives(messages) => {
                let is_whole = messages.late.len() + messages.carried.len() == count as usize;
                Some(is_whole.then_some(messages).ok_or(Refusal::Damaged))
            }
        }
    }

    /// The move of a task is settled, or the task has ended.
    pub(crate) fn settled(&mut self, tid: Tid) {
        self.moves.retain(|(_, one, _), _| *one != tid);
    }

    /// A process has ended. What it has sent of tasks that have not arrived is dropped.
    pub(crate) fn lost(&mut self, rank: Rank) {
        self.moves
            .retain(|(from, ..), one| *from != rank || matches!(one.state, BroughtState::Taken));
    }

    /// Number of bytes that the tasks of a host bring along.
    pub(crate) fn bytes_of(&self, host: usize) -> u64 {
        let all = self.moves.values().filter(|one| one.host == host);
        all.map(|one| one.bytes).sum()
    }
}

/// No messages.
pub(crate) fn nothing<M>() -> TakenMessages<M> {
    TakenMessages { late: Vec::new(), carried: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(length: usize) -> KeptMessage<()> {
        KeptMessage { stamp: 1, from: 1, source: None, length, message: () }
    }

    /// Adds messages of this length until one is too much. Returns how many were taken.
    fn fill(all: &mut BroughtMessages<()>, by: BroughtBy, host: usize, length: usize) -> u64 {
        let taken = (0..10_000).take_while(|_| {
            let mut is_read = false;
            all.add(by, host, None, length, || {
                is_read = true;
                Some(kept(length))
            });
            is_read
        });
        taken.count() as u64
    }

    #[test]
    fn tasks_of_a_host_bring_no_more_than_its_quota_until_their_moves_are_settled() {
        let [one, two, three] = [1, 2, 3].map(|number| Tid::new(1, number));
        let mut all = BroughtMessages::<()> { most: 1000, ..BroughtMessages::default() };
        all.add((1, one, 1), 1, Some(two), 100, || Some(kept(100)));
        // Of any process of the host, and each costs something.
        assert_eq!(fill(&mut all, (2, two, 2), 1, 0), (1000 - 100 - EACH) / EACH);
        let refused = Refusal::Messages { most: 1000 };
        assert_eq!(all.take((2, two, 2), 1, 6), Some(Err(refused.clone())));
        assert!(refused.to_string().contains("1000 bytes"), "{refused}");
        // Nothing is kept of a task that was refused.
        assert_eq!(fill(&mut all, (2, two, 2), 1, 0), 0);
        assert_eq!(all.bytes_of(1), 100 + EACH);
        // Another host has as much as if this one had sent nothing.
        assert_eq!(fill(&mut all, (3, three, 3), 2, 0), 1000 / EACH);
        // A task that has arrived still counts, until its move is settled.
        let taken = all.take((1, one, 1), 1, 1).unwrap().unwrap();
        assert_eq!((taken.late.len(), taken.carried.len()), (0, 1));
        assert!(all.take((1, one, 1), 1, 1).is_none());
        all.lost(1);
        assert_eq!(all.bytes_of(1), 100 + EACH);
        all.settled(one);
        assert_eq!(all.bytes_of(1), 0);
    }

    #[test]
    fn a_task_without_some_of_its_messages_is_refused() {
        let tid = Tid::new(1, 1);
        let mut all = BroughtMessages::<()>::default();
        assert_eq!(all.take((1, tid, 1), 1, 0), Some(Ok(nothing())));
        assert_eq!(all.take((1, tid, 2), 1, 1), Some(Err(Refusal::Damaged)));
        all.add((1, tid, 3), 1, None, 1, || None);
        assert_eq!(all.take((1, tid, 3), 1, 1), Some(Err(Refusal::Damaged)));
        all.add((1, tid, 4), 1, None, 1, || Some(kept(1)));
        all.lost(1);
        assert_eq!(all.take((1, tid, 4), 1, 1), Some(Err(Refusal::Damaged)));
    }
}
