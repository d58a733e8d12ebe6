//! The receiving end of one pair, in the hands of the thread that polls.

use crate::Rank;
use std::cell::{Cell, RefCell, RefMut};
use upcall_shm::direct::{Incoming, QueueMemory};

/// The queue, while it is looked at.
pub type BorrowedQueue<'a, M> = RefMut<'a, Incoming<M>>;

/// What a sender's next message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextMessage {
    /// Of this kind, by its word.
    Message(u16),
    /// None.
    Unreadable,
}

/// Whether its next message may be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looked {
    /// It may.
    Freely,
    /// It is held where it lies.
    Held,
    /// Nothing more is taken.
    Never,
}

/// The receiving end of one pair, and what its driver keeps with it.
#[derive(Debug)]
pub struct ReceiveQueue<M: QueueMemory, X = ()> {
    from: Rank,
    queue: RefCell<Incoming<M>>,
    /// The driver's.
    pub with: X,
    /// No more will come: what is there is still to be taken.
    ended: Cell<bool>,
    looked_at: Cell<Looked>,
}

impl<M: QueueMemory, X> ReceiveQueue<M, X> {
    /// The receiving end of a queue that `from` sends through.
    pub fn new(from: Rank, memory: M, with: X) -> Self {
        let queue = RefCell::new(Incoming::new(memory));
        Self { from, queue, with, ended: Cell::new(false), looked_at: Cell::new(Looked::Freely) }
    }

    /// The sender.
    #[inline]
    pub fn from(&self) -> Rank {
        self.from
    }

    /// Returns `true` if the sender has ended: what it has sent is still to be taken.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.ended.get()
    }

    /// The sender has ended.
    pub(super) fn ends(&self) {
        self.ended.set(true);
    }

    /// Whether something may wait: false only if nothing does.
    #[inline]
    pub fn glance(&self) -> bool {
        self.queue.try_borrow().is_ok_and(|queue| queue.waits())
    }

    /// Whether something waits. False while its next message is being looked at.
    pub fn waits(&self) -> bool {
        let Some(mut queue) = self.queue() else { return false };
        // A word that leads to where nothing is yet is no message. Words that lead on and on are
        // worth another look: a receiver that sleeps must not have missed what lies behind.
        queue.waits() && (!matches!(queue.peek(), Ok(None)) || queue.waits())
    }

    /// The next message, unless it is being looked at.
    pub fn next(&self) -> Option<NextMessage> {
        match self.queue()?.peek() {
            Ok(Some(arrived)) => Some(NextMessage::Message(arrived.handler())),
            Ok(None) => None,
            Err(_) => Some(NextMessage::Unreadable),
        }
    }

    /// The kind of the next message, as far as can be seen without allocating anything.
    pub fn next_lightly(&self) -> Option<u16> {
        Some(self.queue()?.peek_lightly().ok()??.handler())
    }

    /// Does something with the memory of the queue, unless its next message is being looked at.
    pub fn with_memory(&self, with: impl FnOnce(&mut M)) {
        if let Ok(mut queue) = self.queue.try_borrow_mut() {
            with(queue.memory_mut());
        }
    }

    /// Whether nothing waits, and nothing is being looked at.
    pub fn is_drained(&self) -> bool {
        self.queue().is_some_and(|mut queue| matches!(queue.peek(), Ok(None)))
    }

    /// The queue, unless its next message is being looked at or held, or it was forgotten.
    #[inline]
    pub fn queue(&self) -> Option<BorrowedQueue<'_, M>> {
        if self.looked_at.get() != Looked::Freely {
            return None;
        }
        self.queue.try_borrow_mut().ok()
    }

    /// Nothing more is taken from now on. False: that is so already.
    pub(super) fn forget(&self) -> bool {
        self.looked_at.replace(Looked::Never) != Looked::Never
    }

    /// The next message is held: it is not looked at before that is over.
    pub fn hold(&self) {
        self.looked_at.set(Looked::Held);
    }

    /// The end of that. False: nothing more is taken.
    pub fn let_go(&self) -> bool {
        let was_held = self.looked_at.get() == Looked::Held;
        if was_held {
            self.looked_at.set(Looked::Freely);
        }
        was_held
    }

    /// How many of its messages were taken; none while its next message is being looked at.
    pub fn taken(&self) -> u64 {
        self.queue.try_borrow().map_or(0, |queue| queue.taken())
    }

    /// How often its sender has diverted; 0 while its next message is being looked at.
    pub fn diversions(&self) -> u64 {
        self.queue.try_borrow().map_or(0, |queue| queue.diversions())
    }

    /// Tells the sender how far it is.
    #[inline]
    pub fn tell(&self) {
        if let Ok(mut queue) = self.queue.try_borrow_mut() {
            queue.tell();
        }
    }
}
