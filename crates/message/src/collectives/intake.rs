//! How the parts of collective operations are taken in.
//!
//! A part is a message of a kind that no program can register ([`COLLECTIVE`]). So it arrives in
//! order with the other messages of its sender, and is buffered as they are. A poll takes it in
//! where it would run a handler. Any other read of the next message of a sender takes parts in
//! first: no `receive`, `peek` or `available` finds one.

use crate::Group;
use crate::collectives::part::{CollectiveHead, CollectivePart, HEAD, PartError};
use crate::collectives::window::PartFate;
use crate::inbound::Inbound;
use crate::kinds::COLLECTIVE;
use crate::message::Message;
use crate::proto::receive_queue::{BorrowedQueue, NextMessage};
use crate::proto::receiving::{self, Forgotten, Ran};
use crate::receiving::Driver;
use std::rc::Rc;
use upcall_os::fault::{Point, point};
use upcall_shm::direct::Arrived;
use upcall_shm::mailbag::Mailbag;

/// A part that was the next message of a sender, and what became of it.
pub(crate) enum FoundPart {
    /// It was taken, or is held, or is not needed.
    Gone,
    /// It stays for lack of memory.
    Stays,
    /// Its sender breaks the protocol.
    Violates(Rc<Inbound>, String),
}

/// The outcome of a read of the next message.
pub(crate) enum NextRead<R, W> {
    Done(R),
    /// A part of a collective operation was there in its place.
    Part(W, FoundPart),
}

impl Group {
    /// Calls `with` on a message, unless it is a part of a collective operation, which is taken in.
    #[inline(always)]
    pub(crate) fn passing_parts<R, W: FnOnce(Arrived<'_, Mailbag>, &Rc<Inbound>) -> R>(
        &self,
        with: W,
    ) -> impl FnOnce(Arrived<'_, Mailbag>, &Rc<Inbound>) -> NextRead<R, W> {
        move |arrived, inbound| match arrived.handler() {
            COLLECTIVE => NextRead::Part(with, self.take_part(inbound, arrived)),
            _ => NextRead::Done(with(arrived, inbound)),
        }
    }

    /// Takes in a part, which is the next message of a sender.
    pub(crate) fn take_part(
        &self,
        inbound: &Rc<Inbound>,
        arrived: Arrived<'_, Mailbag>,
    ) -> FoundPart {
        let (from, bytes) = (inbound.from(), arrived.len());
        let state = &self.0.collectives;
        let violates = |what: String| FoundPart::Violates(inbound.clone(), what);
        let mut head = [0; HEAD];
        let message = Message::new(from, &arrived);
        let head =
            message.copy_out(0, &mut head).and_then(|()| CollectiveHead::read(&head, self.size()));
        let Some(head) = head else {
            return violates("a part of no collective operation".into());
        };
        let is_over = self.barriers().missing.borrow().is_some();
        let fate = state.window(from, head.number, is_over).judge(head, bytes);
        let held = || {
            state.hold(inbound);
            FoundPart::Gone
        };
        match fate {
            PartFate::Violates(what) => return violates(format!("{what}: {}", head.call)),
            PartFate::Hold => return held(),
            PartFate::Drop => {}
            PartFate::Longer => state.longer(from, head.call),
            PartFate::Differs { here } => state.differ(from, here, head.call),
            PartFate::Take | PartFate::TakeEarly => match self.copy_part(head, &message) {
                Ok(part) => state.keep(head.number, part),
                Err(PartError::Malformed(what)) => {
                    return violates(format!("a part that has {what}: {}", head.call));
                }
                Err(PartError::NoMemory) if fate == PartFate::TakeEarly => return held(),
                Err(PartError::NoMemory) => {
                    state.lacks.set(Some(bytes));
                    return FoundPart::Stays;
                }
            },
        }
        point(Point::MemberReads);
        arrived.dispose();
        point(Point::MemberTook);
        self.has_changed();
        FoundPart::Gone
    }

    fn copy_part(
        &self,
        head: CollectiveHead,
        message: &Message<'_, '_>,
    ) -> Result<CollectivePart, PartError> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(message.size()).map_err(|_| PartError::NoMemory)?;
        bytes.resize(message.size(), 0);
        message.copy_out(0, &mut bytes).ok_or(PartError::Malformed("another size"))?;
        CollectivePart::check(message.from(), head.call, bytes, self.size())
    }

    /// Takes in the part that a poll has found.
    #[cold]
    pub(crate) fn part_arrived(
        &self,
        inbound: &Rc<Inbound>,
        mut queue: BorrowedQueue<'_, Mailbag>,
    ) -> Ran {
        let Ok(Some(arrived)) = queue.peek() else { return Ran::Stays };
        let found = self.take_part(inbound, arrived);
        drop(queue);
        if self.deal_with(&found) { Ran::Absorbed } else { Ran::Stays }
    }

    /// Forgets the sender of a part that breaks the protocol, when its queue is no longer borrowed.
    /// Returns `false` if the part stays where the next read finds it again.
    #[cold]
    pub(crate) fn deal_with(&self, found: &FoundPart) -> bool {
        match found {
            FoundPart::Gone => true,
            FoundPart::Stays => false,
            FoundPart::Violates(inbound, what) => {
                receiving::forget(&Driver(self), inbound, Forgotten::Violation(what.clone()));
                true
            }
        }
    }

    /// Takes in the parts that are the next messages of their senders.
    pub(crate) fn take_parts(&self) {
        for inbound in &*self.0.senders.all() {
            while inbound.glance() && inbound.next() == Some(NextMessage::Message(COLLECTIVE)) {
                let Some(mut queue) = inbound.queue() else { break };
                let Ok(Some(arrived)) = queue.peek() else { break };
                let found = self.take_part(inbound, arrived);
                drop(queue);
                if !self.deal_with(&found) {
                    break;
                }
                if inbound.has_ended() {
                    receiving::nothing_there(&Driver(self), inbound);
                }
            }
        }
    }

    /// Lets the senders whose parts were held go on.
    pub(crate) fn let_parts_go(&self) {
        let held = self.0.collectives.take_held();
        if held.is_empty() {
            return;
        }
        let _busy = self.busy();
        for inbound in held.into_iter().filter(|inbound| inbound.let_go()) {
            self.let_go(&inbound, None);
        }
    }
}
