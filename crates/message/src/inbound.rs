//! The receiving end of one pair, in the hands of the thread that polls.

use crate::Rank;
use std::cell::{Cell, RefCell, RefMut};
use upcall_os::doorbell::Doorbell;
use upcall_shm::direct::Incoming;
use upcall_shm::mailbag::Mailbag;
use upcall_shm::region::Shared;
use upcall_shm::steps::Steps;

/// The queue, while it is looked at.
pub(crate) type Queue<'a> = RefMut<'a, Incoming<Mailbag>>;

/// What a sender's next message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
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

/// See the module.
#[derive(Debug)]
pub(crate) struct Inbound {
    from: Rank,
    queue: RefCell<Incoming<Mailbag>>,
    /// What the sender reports beside its messages.
    pub(crate) steps: Shared<Steps>,
    /// Rung by the sender.
    pub(crate) doorbell: Doorbell,
    /// No more will come: what is there is still to be taken.
    pub(crate) ended: Cell<bool>,
    looked_at: Cell<Looked>,
    /// Its next message is nothing that an interrupt takes, though of a kind that is.
    pub(crate) refused: Cell<bool>,
}

impl Inbound {
    pub(crate) fn new(from: Rank, queue: Mailbag, doorbell: Doorbell) -> Self {
        let [ended, refused] = [const { Cell::new(false) }; 2];
        let (steps, queue) = (queue.steps(), RefCell::new(Incoming::new(queue)));
        Self { from, queue, steps, doorbell, ended, looked_at: Cell::new(Looked::Freely), refused }
    }

    pub(crate) fn from(&self) -> Rank {
        self.from
    }

    /// Whether something may wait: false only if nothing does.
    #[inline]
    pub(crate) fn glance(&self) -> bool {
        self.queue.try_borrow().is_ok_and(|queue| queue.waits())
    }

    /// Whether something waits. False while its next message is being looked at.
    pub(crate) fn waits(&self) -> bool {
        let Some(mut queue) = self.queue() else { return false };
        // A word that leads to where nothing is yet is no message. One that leads on and on is
        // worth another look: who sleeps must not have missed what lies behind.
        queue.waits() && (!matches!(queue.peek(), Ok(None)) || queue.waits())
    }

    /// The next message, unless it is being looked at.
    pub(crate) fn next(&self) -> Option<Next> {
        match self.queue()?.peek() {
            Ok(Some(arrived)) => Some(Next::Message(arrived.handler())),
            Ok(None) => None,
            Err(_) => Some(Next::Unreadable),
        }
    }

    /// The kind of the next message, as far as can be seen without allocating anything.
    pub(crate) fn next_lightly(&self) -> Option<u16> {
        Some(self.queue()?.peek_lightly().ok()??.handler())
    }

    /// Has segments at hand for interrupts. Without memory for that they take only what is at home.
    pub(crate) fn bring_spares(&self) {
        if let Ok(mut queue) = self.queue.try_borrow_mut() {
            let _ = queue.memory_mut().bring_spares();
        }
    }

    /// Whether nothing waits, and nothing is being looked at.
    pub(crate) fn is_drained(&self) -> bool {
        self.queue().is_some_and(|mut queue| matches!(queue.peek(), Ok(None)))
    }

    /// The queue, unless its next message is being looked at or held, or it was forgotten.
    #[inline]
    pub(crate) fn queue(&self) -> Option<Queue<'_>> {
        if self.looked_at.get() != Looked::Freely {
            return None;
        }
        self.queue.try_borrow_mut().ok()
    }

    /// Nothing more is taken from now on. False: that is so already.
    pub(crate) fn forget(&self) -> bool {
        self.looked_at.replace(Looked::Never) != Looked::Never
    }

    /// The next message is held: until that is over nobody looks at it.
    pub(crate) fn hold(&self) {
        self.looked_at.set(Looked::Held);
    }

    /// The end of that. False: nothing more is taken.
    pub(crate) fn let_go(&self) -> bool {
        let was_held = self.looked_at.get() == Looked::Held;
        if was_held {
            self.looked_at.set(Looked::Freely);
        }
        was_held
    }

    /// How many of its messages were taken; none while its next message is being looked at.
    pub(crate) fn taken(&self) -> u64 {
        self.queue.try_borrow().map_or(0, |queue| queue.taken())
    }

    /// How often its sender has diverted; 0 while its next message is being looked at.
    pub(crate) fn diversions(&self) -> u64 {
        self.queue.try_borrow().map_or(0, |queue| queue.diversions())
    }

    /// Tells the sender how far it is.
    #[inline]
    pub(crate) fn tell(&self) {
        if let Ok(mut queue) = self.queue.try_borrow_mut() {
            queue.tell();
        }
    }
}
