//! The calls of one virtual processor that are under way on a lane, by number.
//!
//! A call has a number from the time it is sent until its reply was read. A thread that finds no
//! free number waits in a queue. The number of an abandoned call stays taken until its reply is
//! there.

use crate::wait::{Closed, LateReply, NoReply, Sleeper};
use std::collections::VecDeque;
use upcall_shm::channel::DEPTH;
use upcall_shm::slot::{SlotMessage, StoredMessage};

/// The calls on one lane; see the module.
pub(super) struct CallTable {
    calls: Vec<CallEntry>,
    /// The replies of calls that are done.
    kept: Vec<StoredMessage>,
    free: Vec<u16>,
    /// Threads that wait for a free call number.
    queue: VecDeque<Sleeper>,
    /// Number of free numbers that are reserved for threads which were woken for them. So a thread
    /// that calls again at once does not overtake them for ever.
    promised: usize,
}

enum CallEntry {
    Free,
    Waiting(Sleeper),
    /// Its reply is kept.
    Done,
    Failed(Closed),
    /// The thread has gone; this takes the reply.
    Late(LateReply),
}

/// The effect of a reply.
pub(super) enum ReplyEffect {
    /// The call's thread is ready.
    Woke,
    /// The call was abandoned; `taker` takes the reply.
    Late {
        taker: LateReply,
        /// Set if a thread that waited for a number is ready.
        woke: bool,
    },
    /// No call waits for this reply.
    Violation,
}

impl CallTable {
    pub(super) fn new() -> Self {
        Self {
            calls: (0..DEPTH).map(|_| CallEntry::Free).collect(),
            kept: (0..DEPTH).map(|_| StoredMessage::default()).collect(),
            free: (0..DEPTH as u16).rev().collect(),
            queue: VecDeque::new(),
            promised: 0,
        }
    }

    /// Number of calls under way.
    #[inline]
    pub(super) fn under_way(&self) -> usize {
        DEPTH - self.free.len()
    }

    /// Gives a call a number, and stores its thread's `sleeper`. Without a free number the sleeper
    /// waits in the queue. `promised` is set if the thread was woken for a number.
    #[inline]
    pub(super) fn begin(&mut self, sleeper: Sleeper, promised: bool) -> Option<u16> {
        let Some(number) = self.take_number(promised) else {
            self.queue.push_back(sleeper);
            return None;
        };
        // Not an assignment: to drop the old entry, that would build the new one elsewhere first
        // and copy it (see `StoredMessage`).
        match std::mem::replace(&mut self.calls[usize::from(number)], CallEntry::Waiting(sleeper)) {
            CallEntry::Free => {}
            other => drop(other),
        }
        Some(number)
    }

    #[inline]
    fn take_number(&mut self, promised: bool) -> Option<u16> {
        if promised {
            self.promised = self.promised.saturating_sub(1);
        } else if self.free.len() <= self.promised {
            return None;
        }
        self.free.pop()
    }

    /// Removes threads whose wait for a number has ended.
    pub(super) fn leave_queue(&mut self) {
        self.queue.retain(|sleeper| !sleeper.has_gone());
    }

    /// Ends a call whose thread goes on: reads its reply into `message`. `late` returns what takes
    /// a reply that is not there yet.
    #[inline]
    pub(super) fn finish(
        &mut self,
        number: u16,
        message: &mut SlotMessage,
        late: impl FnOnce() -> Option<LateReply>,
    ) -> Result<(), NoReply> {
        let call = &mut self.calls[usize::from(number)];
        if let CallEntry::Done = call {
            self.kept[usize::from(number)].read(message);
            *call = CallEntry::Free;
            self.free(number);
            return Ok(());
        }
        let before = std::mem::replace(call, CallEntry::Free);
        if matches!(before, CallEntry::Waiting(_))
            && let Some(late) = late()
        {
            // The number stays taken until the reply is there.
            *call = CallEntry::Late(late);
            return Err(NoReply::OutOfTime { sent: true });
        }
        let outcome = match before {
            CallEntry::Failed(reason) => Err(reason.into()),
            _ => Err(Closed::Violation("a thread was woken before its reply").into()),
        };
        self.free(number);
        outcome
    }

    /// Frees the number of a call that is over, for the thread that has waited longest for one.
    /// Returns `true` if there was one.
    fn free(&mut self, number: u16) -> bool {
        self.free.push(number);
        while let Some(next) = self.queue.pop_front() {
            if next.wake() {
                self.promised += 1;
                return true;
            }
        }
        false
    }

    /// Assigns a reply to its call.
    #[inline]
    pub(super) fn arrives(&mut self, reply: &SlotMessage) -> ReplyEffect {
        let number = reply.call();
        match self.calls.get_mut(usize::from(number)) {
            Some(call @ CallEntry::Waiting(_)) => {
                self.kept[usize::from(number)].write(reply);
                if let CallEntry::Waiting(sleeper) = std::mem::replace(call, CallEntry::Done) {
                    sleeper.wake();
                }
                ReplyEffect::Woke
            }
            Some(call @ CallEntry::Late(_)) => match std::mem::replace(call, CallEntry::Free) {
                CallEntry::Late(taker) => ReplyEffect::Late { taker, woke: self.free(number) },
                _ => ReplyEffect::Violation,
            },
            _ => ReplyEffect::Violation,
        }
    }

    /// Makes all waiting threads ready, because no more replies come. Returns `true` if there were
    /// any.
    pub(super) fn fail(&mut self, reason: &Closed) -> bool {
        let mut woke = false;
        for call in &mut self.calls {
            if matches!(call, CallEntry::Waiting(_))
                && let CallEntry::Waiting(sleeper) =
                    std::mem::replace(call, CallEntry::Failed(reason.clone()))
            {
                sleeper.wake();
                woke = true;
            }
        }
        for sleeper in self.queue.drain(..) {
            sleeper.wake();
            woke = true;
        }
        woke
    }

    /// Abandons all calls, because their threads never run again: each number is free when its
    /// reply is there. Returns the sleepers, to be dropped.
    pub(super) fn leave(&mut self) -> Vec<Sleeper> {
        let mut left: Vec<Sleeper> = std::mem::take(&mut self.queue).into();
        self.promised = 0;
        for number in 0..DEPTH {
            let call = &mut self.calls[number];
            match std::mem::replace(call, CallEntry::Free) {
                CallEntry::Free => {}
                CallEntry::Waiting(sleeper) => {
                    *call = CallEntry::Late(Box::new(drop));
                    left.push(sleeper);
                }
                CallEntry::Done | CallEntry::Failed(_) => self.free.push(number as u16),
                late @ CallEntry::Late(_) => *call = late,
            }
        }
        left
    }

    /// Returns `true` if a thread waits for a reply or for a number.
    pub(super) fn has_waiting(&self) -> bool {
        !self.queue.is_empty()
            || self.calls.iter().any(|call| matches!(call, CallEntry::Waiting(_)))
    }

    pub(super) fn has_late(&self) -> bool {
        self.calls.iter().any(|call| matches!(call, CallEntry::Late(_)))
    }

    /// Frees the abandoned calls, because no late reply comes any more. Returns what would have
    /// taken the replies, to be dropped.
    pub(super) fn forget_late(&mut self) -> Vec<LateReply> {
        let late = self.calls.iter_mut().filter(|call| matches!(call, CallEntry::Late(_)));
        let forget = |call: &mut CallEntry| match std::mem::replace(call, CallEntry::Free) {
            CallEntry::Late(taker) => Some(taker),
            _ => None,
        };
        late.filter_map(forget).collect()
    }
}
