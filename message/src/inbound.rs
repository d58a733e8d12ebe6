//! The receiving end of one pair, in the hands of the thread that polls.

use crate::Rank;
use std::cell::{Cell, RefCell};
use upcall_os::bell::Bell;
use upcall_shm::direct::{Arrived, Incoming, Unreadable};
use upcall_shm::mailbag::Mailbag;

/// See the module.
#[derive(Debug)]
pub(crate) struct Inbound {
    from: Rank,
    queue: RefCell<Incoming<Mailbag>>,
    /// Rung by the sender.
    pub(crate) bell: Bell,
    /// No more will come: what is there is still to be taken.
    pub(crate) ended: Cell<bool>,
}

impl Inbound {
    pub(crate) fn new(from: Rank, queue: Mailbag, bell: Bell) -> Self {
        Self { from, queue: RefCell::new(Incoming::new(queue)), bell, ended: Cell::new(false) }
    }

    pub(crate) fn from(&self) -> Rank {
        self.from
    }

    /// Whether something waits. False while its next message is being looked at.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        let Ok(mut queue) = self.queue.try_borrow_mut() else { return false };
        // A word that leads to where nothing is yet is no message. One that leads on and on is worth another look: who sleeps must not have missed what lies behind.
        queue.waits() && (!matches!(queue.peek(), Ok(None)) || queue.waits())
    }

    /// Whether nothing waits, and nothing is being looked at.
    pub(crate) fn is_drained(&self) -> bool {
        self.queue.try_borrow_mut().is_ok_and(|mut queue| matches!(queue.peek(), Ok(None)))
    }

    /// The kind of the next message.
    #[inline]
    pub(crate) fn next_kind(&self) -> Result<Option<u16>, Unreadable> {
        let Ok(mut queue) = self.queue.try_borrow_mut() else { return Ok(None) };
        Ok(queue.peek()?.map(|arrived| arrived.handler()))
    }

    /// Reads the next message, if one waits, and disposes of it if `read` gives something.
    #[inline]
    pub(crate) fn take<T>(&self, read: impl FnOnce(&Arrived<'_, Mailbag>) -> Option<T>) -> Option<T> {
        let mut queue = self.queue.try_borrow_mut().ok()?;
        let arrived = queue.peek().ok()??;
        let value = read(&arrived)?;
        arrived.dispose();
        Some(value)
    }

    /// The same, and it stays the next one.
    pub(crate) fn look<T>(&self, read: impl FnOnce(&Arrived<'_, Mailbag>) -> T) -> Option<T> {
        let mut queue = self.queue.try_borrow_mut().ok()?;
        Some(read(&queue.peek().ok()??))
    }

    /// Tells the sender how far it is.
    #[inline]
    pub(crate) fn tell(&self) {
        if let Ok(mut queue) = self.queue.try_borrow_mut() {
            queue.tell();
        }
    }
}
