//! The threads that wait for messages, and the virtual processor that probes for them.

use crate::Rank;
use std::cell::{OnceCell, RefCell};
use upcall_sched::Attended;
use upcall_thread::Ticket;

/// The messages that a thread waits for, of those that no upcall takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wants {
    Any,
    /// Messages that a poll takes, and those of this member.
    Of(Rank),
}

/// A group's state for upcalls.
#[derive(Debug, Default)]
pub(crate) struct Upcalls {
    /// The virtual processor that probes for its messages, if it was joined on one.
    pub(crate) attended: OnceCell<Attended>,
    /// Set if handlers run by themselves.
    on: bool,
    /// User-level threads in [`Group::wait`](crate::Group::wait).
    pub(crate) waiting: RefCell<Vec<(Ticket, Wants)>>,
}

impl Upcalls {
    pub(crate) fn new(wanted: bool) -> Self {
        Self { on: wanted, ..Self::default() }
    }

    /// Returns `true` if upcalls are wanted.
    pub(crate) fn are_wanted(&self) -> bool {
        self.on
    }

    /// Returns `true` if handlers run by themselves outside of sections.
    pub(crate) fn are_on(&self) -> bool {
        self.on && self.attended.get().is_some()
    }

    /// Makes threads that wait for messages check again.
    pub(crate) fn wake(&self) {
        if !self.waiting.borrow().is_empty() {
            for (ticket, _) in self.waiting.take() {
                ticket.wake();
            }
        }
    }
}
