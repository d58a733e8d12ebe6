//! What a process does without memory for a message.
//!
//! The message stays in its sender's queue, and so do those behind it: nothing is lost, and nothing
//! overtakes it. The process tries again each time that it looks for messages, and its tasks run.
//! They may give memory back, or end. The receiver of the message waits as if it had not been sent.
//!
//! Messages of other senders that the left message may have caused wait, too
//! ([`causal`](crate::causal)).

use super::parts::MissingMemory;
use crate::moves::RankSet;
use std::cell::Cell;
use upcall_message::Rank;

/// The senders whose next message stays in its queue, because there is no memory for its contents.
#[derive(Debug, Default)]
pub(super) struct LeftMessages {
    senders: Cell<RankSet>,
    /// The last message that was left. `None`: there is no sender.
    last: Cell<Option<LeftMessage>>,
}

/// A message that stays in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeftMessage {
    pub(crate) from: Rank,
    /// Number of bytes for which there is no memory. `None`: the message was not read.
    pub(crate) bytes: Option<usize>,
}

impl LeftMessages {
    /// Returns `true` if a message stays in its queue.
    #[inline]
    pub(super) fn are_there(&self) -> bool {
        self.last.get().is_some()
    }

    /// Records that the next message of this sender stays.
    #[cold]
    pub(super) fn left(&self, from: Rank, MissingMemory(bytes): MissingMemory) {
        let mut senders = self.senders.get();
        senders.insert(from);
        self.senders.set(senders);
        self.last.set(Some(LeftMessage { from, bytes: Some(bytes) }));
    }

    /// Records that a message of this sender was taken.
    #[inline(always)]
    pub(super) fn taken(&self, from: Rank) {
        if self.are_there() {
            self.forget(from);
        }
    }

    #[cold]
    fn forget(&self, from: Rank) {
        let mut one = RankSet::default();
        one.insert(from);
        let senders = self.senders.get().without(one);
        self.senders.set(senders);
        if senders.is_empty() {
            self.last.set(None);
        }
    }

    /// The sender of the last message that was left.
    pub(super) fn last(&self) -> Option<Rank> {
        self.last.get().map(|left| left.from)
    }

    /// The last message that was left.
    pub(super) fn last_left(&self) -> Option<LeftMessage> {
        self.last.get()
    }
}
