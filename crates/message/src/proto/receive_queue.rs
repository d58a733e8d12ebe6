//! The receiving end of one pair, as the polling thread uses it.

use crate::Rank;
use std::cell::{Cell, RefCell, RefMut};
use upcall_shm::direct::{Incoming, QueueMemory};

/// The queue, while its next message is read.
pub type BorrowedQueue<'a, M> = RefMut<'a, Incoming<M>>;

/// A sender's next message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextMessage {
    /// A message of this kind, as the sender set it.
    Message(u16),
    /// The queue cannot be read.
    Unreadable,
}

/// Whether the next message may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looked {
    /// It may.
    Freely,
    /// It is held in shared memory.
    Held,
    /// No more messages are taken.
    Never,
}

/// The receiving end of one pair, and what its driver keeps with it.
#[derive(Debug)]
pub struct ReceiveQueue<M: QueueMemory, X = ()> {
    from: Rank,
    queue: RefCell<Incoming<M>>,
    /// State that the driver keeps with the queue.
    pub with: X,
    /// Set if no more will come; the messages in the queue are still to be taken.
    ended: Cell<bool>,
    looked_at: Cell<Looked>,
}

impl<M: QueueMemory, X> ReceiveQueue<M, X> {
    /// Creates the receiving end of a queue that `from` sends through.
    pub fn new(from: Rank, memory: M, with: X) -> Self {
        let queue = RefCell::new(Incoming::new(memory));
        Self { from, queue, with, ended: Cell::new(false), looked_at: Cell::new(Looked::Freely) }
    }

    /// The sender.
    #[inline]
    pub fn from(&self) -> Rank {
        self.from
    }

    /// Returns `true` if the sender has ended; the messages in the queue are still to be taken.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.ended.get()
    }

    /// Notes that the sender has ended.
    pub(super) fn ends(&self) {
        self.ended.set(true);
    }

    /// Returns `false` only if no message waits.
    #[inline]
    pub fn glance(&self) -> bool {
        self.queue.try_borrow().is_ok_and(|queue| queue.waits())
    }

    /// Returns `true` if a message waits; `false` while the next one is being read.
    pub fn waits(&self) -> bool {
        let Some(mut queue) = self.queue() else { return false };
        // A word that leads to an empty place is no message. Words that lead on and on are worth
        // another probe: a receiver that sleeps must not miss what lies behind them.
        queue.waits() && (!matches!(queue.peek(), Ok(None)) || queue.waits())
    }

    /// The next message, unless it is being read.
    pub fn next(&self) -> Option<NextMessage> {
        match self.queue()?.peek() {
            Ok(Some(arrived)) => Some(NextMessage::Message(arrived.handler())),
            Ok(None) => None,
            Err(_) => Some(NextMessage::Unreadable),
        }
    }

    /// The kind of the next message, as far as it can be read without allocating.
    pub fn next_lightly(&self) -> Option<u16> {
        Some(self.queue()?.peek_lightly().ok()??.handler())
    }

    /// Calls `with` on the memory of the queue, unless its next message is being read.
    pub fn with_memory(&self, with: impl FnOnce(&mut M)) {
        if let Ok(mut queue) = self.queue.try_borrow_mut() {
            with(queue.memory_mut());
        }
    }

    /// Returns `true` if no message waits, and none is being read.
    pub fn is_drained(&self) -> bool {
        self.queue().is_some_and(|mut queue| matches!(queue.peek(), Ok(None)))
    }

    /// The queue, unless its next message is being read or held, or it was forgotten.
    #[inline]
    pub fn queue(&self) -> Option<BorrowedQueue<'_, M>> {
        if self.looked_at.get() != Looked::Freely {
            return None;
        }
        self.queue.try_borrow_mut().ok()
    }

    /// Takes no more messages from now on. Returns `false` if that was so already.
    pub(super) fn forget(&self) -> bool {
        self.looked_at.replace(Looked::Never) != Looked::Never
    }

    /// Holds the next message: it is not read until [`let_go`](Self::let_go).
    pub fn hold(&self) {
        self.looked_at.set(Looked::Held);
    }

    /// Ends the hold. Returns `false` if no more messages are taken.
    pub fn let_go(&self) -> bool {
        let was_held = self.looked_at.get() == Looked::Held;
        if was_held {
            self.looked_at.set(Looked::Freely);
        }
        was_held
    }

    /// Number of its messages that were taken; 0 while its next message is being read.
    pub fn taken(&self) -> u64 {
        self.queue.try_borrow().map_or(0, |queue| queue.taken())
    }

    /// Number of times that its sender has diverted; 0 while its next message is being read.
    pub fn diversions(&self) -> u64 {
        self.queue.try_borrow().map_or(0, |queue| queue.diversions())
    }

    /// Reports this member's progress to the sender.
    #[inline]
    pub fn tell(&self) {
        if let Ok(mut queue) = self.queue.try_borrow_mut() {
            queue.tell();
        }
    }
}
