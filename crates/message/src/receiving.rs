//! How a member receives: it polls, and the handlers of what waits run; or it takes one message.
//!
//! The order of senders and messages is decided in the message core
//! ([`crate::proto::receiving`]), which [`Driver`] joins with a group.

use crate::Rank;
use crate::error::{NothingThere, RunError};
use crate::event::Event;
use crate::group::Group;
use crate::inbound::{Attached, Inbound};
use crate::message::Message;
use crate::proto::receive_queue::{BorrowedQueue, NextMessage};
use crate::proto::receiving::{self, Forgotten, Ran, Receiving, Senders};
use std::rc::Rc;
use upcall_os::fault::{Point, point};
use upcall_shm::direct::Arrived;
use upcall_shm::mailbag::Mailbag;

impl Group {
    /// Whether a message waits (UDM's message-available flag): a load for each member that has ever
    /// sent one here.
    #[inline]
    pub fn available(&self) -> bool {
        // Nothing is called here where nothing waits, so that nothing has to be saved for that.
        (self.0.mask.is_on() || self.0.senders.glance()) && self.look()
    }

    #[cold]
    fn look(&self) -> bool {
        let _busy = self.busy();
        self.0.senders.waits()
    }

    /// Takes the next message (UDM's `receive`): `take` looks at it where it lies, and then it is
    /// disposed of. Members have their turns.
    ///
    /// # Errors
    /// [`NothingThere`].
    #[inline]
    pub fn receive<R>(&self, take: impl FnOnce(&Message<'_, '_>) -> R) -> Result<R, NothingThere> {
        let _busy = self.busy();
        self.next(|arrived, inbound| {
            let taken = take(&Message::new(inbound.from(), &arrived));
            point(Point::MemberReads);
            arrived.dispose();
            self.0.taken.set(self.0.taken.get() + 1);
            self.has_changed();
            taken
        })
    }

    /// Looks at the message that [`receive`](Self::receive) would take, which stays there.
    ///
    /// # Errors
    /// [`NothingThere`].
    pub fn peek<R>(&self, look: impl FnOnce(&Message<'_, '_>) -> R) -> Result<R, NothingThere> {
        let _busy = self.busy();
        let turn = self.0.senders.turn();
        let looked = self.next(|arrived, inbound| look(&Message::new(inbound.from(), &arrived)));
        // It keeps its turn.
        self.0.senders.keep_turn(turn);
        looked
    }

    /// Does something with the next message; the turn goes to the member after its sender.
    #[inline]
    pub(crate) fn next<R>(
        &self,
        with: impl FnOnce(Arrived<'_, Mailbag>, &Rc<Inbound>) -> R,
    ) -> Result<R, NothingThere> {
        self.attend_if_there_is_news();
        match receiving::next(&Driver(self), with) {
            Some(done) => Ok(done),
            None => {
                self.offer_again();
                Err(NothingThere)
            }
        }
    }

    /// Runs the handlers of the messages that wait, at most 64 of each member. Returns how many. A
    /// message of a kind without a handler stays, and those of the same sender behind it.
    ///
    /// # Panics
    /// Those of handlers. Their messages were taken.
    pub fn poll(&self) -> usize {
        let _busy = self.busy();
        self.attend_if_there_is_news();
        self.offer_again();
        receiving::poll(&Driver(self))
    }

    /// The next message of a member is of a kind that there is not, or carries something else.
    pub(crate) fn violates_by(&self, rank: Rank, kind: u16) {
        let _busy = self.busy();
        if let Some(inbound) = self.0.senders.of(rank) {
            receiving::forget(&Driver(self), &inbound, Forgotten::Kind(kind));
        }
    }

    /// How a message of this kind violates the protocol.
    #[cold]
    fn violation(&self, kind: u16) -> String {
        let kinds = &self.0.handlers.kinds;
        match kinds.get(usize::from(kind)) {
            Some((name, carries)) => format!("a message {name:?} that does not carry {carries}"),
            None => format!("a message of kind {kind}, of which there are {}", kinds.len()),
        }
    }

    /// Number of times that messages for this member went over to a buffer, of those that it has
    /// reached: a sender found no room for longer than the [atomicity
    /// timeout](crate::GroupBuilder::timeout), in one of this member's
    /// [sections](Group::atomic) or because it did not poll (UDM's atomicity-timeout). Nothing
    /// is lost by that. A member for which it grows keeps messages waiting.
    pub fn diversions(&self) -> u64 {
        let _busy = self.busy();
        self.0.diversions.get()
            + self.0.senders.all().iter().map(|inbound| inbound.diversions()).sum::<u64>()
    }

    /// That no message is the next of its sender's which has no handler; or of one sender's, if one
    /// is given.
    pub(crate) fn check_handlers(&self, from: Option<Rank>) -> Result<(), RunError> {
        let _busy = self.busy();
        for inbound in self
            .0
            .senders
            .all()
            .iter()
            .filter(|inbound| from.is_none_or(|from| inbound.from() == from))
        {
            let Some(mut queue) = inbound.queue() else { continue };
            let Ok(Some(arrived)) = queue.peek() else { continue };
            let kind = usize::from(arrived.handler());
            if let (Some(None), Some((name, _))) =
                (self.0.handlers.handlers.get(kind), self.0.handlers.kinds.get(kind))
            {
                return Err(RunError::Unhandled { rank: inbound.from(), kind: name.clone() });
            }
        }
        Ok(())
    }

    /// Whether something is true of the next message of any sender.
    pub(crate) fn any_next(&self, is: impl Fn(NextMessage) -> bool) -> bool {
        let _busy = self.busy();
        self.0.senders.all().iter().filter_map(|inbound| inbound.next()).any(is)
    }

    /// Whether messages of a kind have a handler; those of no kind do, which forgets their sender.
    pub(crate) fn is_handled(&self, kind: u16) -> bool {
        !matches!(self.0.handlers.handlers.get(usize::from(kind)), Some(None))
    }
}

/// A group, as it drives the receiving side of the message core.
pub(crate) struct Driver<'a>(pub(crate) &'a Group);

impl Receiving for Driver<'_> {
    type Memory = Mailbag;
    type With = Attached;

    #[inline]
    fn senders(&self) -> &Senders<Mailbag, Attached> {
        &self.0.0.senders
    }

    #[inline]
    fn run(&self, inbound: &Rc<Inbound>, kind: u16, queue: BorrowedQueue<'_, Mailbag>) -> Ran {
        let group = self.0;
        let handler = match group.0.handlers.handlers.get(usize::from(kind)) {
            Some(Some(handler)) => handler,
            Some(None) => return Ran::Stays,
            None => return Ran::Violates,
        };
        group.0.taken.set(group.0.taken.get() + 1);
        let _changed = group.blocks_a_thread().then(|| {
            // A barrier waits until this message is taken, not until the handler ends.
            group.0.upcalls.wake();
            Changed(group)
        });
        if handler(group, inbound.from(), queue) { Ran::Handled } else { Ran::Violates }
    }

    fn forgets(&self, inbound: &Inbound, why: Forgotten) {
        let (group, rank) = (self.0, inbound.from());
        let event = match why {
            Forgotten::Ended => Event::Ended { rank },
            Forgotten::Kind(kind) => Event::Violation { rank, what: group.violation(kind) },
            Forgotten::Violation(what) => Event::Violation { rank, what },
        };
        group.0.diversions.set(group.0.diversions.get() + inbound.diversions());
        if let Event::Violation { .. } = event {
            group.0.member.account.refuses();
        }
        group.0.member.post.remove(&inbound.with.doorbell);
        group.happened(event);
    }
}

/// The end of a handler, also if it panics.
struct Changed<'a>(&'a Group);

impl Drop for Changed<'_> {
    fn drop(&mut self) {
        self.0.has_changed();
    }
}
