//! The threads that wait for messages, and the virtual processor that looks for them.

use crate::Rank;
use std::cell::{OnceCell, RefCell};
use upcall_sched::Attended;
use upcall_thread::Ticket;

/// The messages that a thread waits for, of those that no upcall takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wants {
    Any,
    /// Those that a poll takes, and those of this member.
    Of(Rank),
}

/// What a group has for upcalls.
#[derive(Debug, Default)]
pub(crate) struct Upcalls {
    /// The virtual processor that looks for its messages, if it was joined on one.
    pub(crate) attended: OnceCell<Attended>,
    /// Handlers run by themselves.
    on: bool,
    /// User-level threads in [`Group::wait`](crate::Group::wait).
    pub(crate) waiting: RefCell<Vec<(Ticket, Wants)>>,
}

impl Upcalls {
    pub(crate) fn new(wanted: bool) -> Self {
        Self { on: wanted, ..Self::default() }
    }

    /// Whether they are wanted.
    pub(crate) fn are_wanted(&self) -> bool {
        self.on
    }

    /// Whether handlers run by themselves outside of sections.
    pub(crate) fn are_on(&self) -> bool {
        self.on && self.attended.get().is_some()
    }

    /// Has threads that wait for messages look again.
    pub(crate) fn wake(&self) {
        if !self.waiting.borrow().is_empty() {
            for (ticket, _) in self.waiting.take() {
                ticket.wake();
            }
        }
    }
}
