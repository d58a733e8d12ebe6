//! How a member receives: it polls, which runs the handlers of waiting messages; or it takes one
//! message.
//!
//! The message core ([`crate::proto::receiving`]) decides the order of senders and messages;
//! [`Driver`] joins it with a group.

use crate::Rank;
use crate::collectives::intake::NextRead;
use crate::error::{NothingThere, RunError};
use crate::event::Event;
use crate::group::Group;
use crate::inbound::{Attached, Inbound};
use crate::kinds::COLLECTIVE;
use crate::message::Message;
use crate::proto::receive_queue::{BorrowedQueue, NextMessage};
use crate::proto::receiving::{self, Forgotten, Ran, Receiving, Senders};
use std::rc::Rc;
use upcall_os::fault::{Point, point};
use upcall_shm::direct::Arrived;
use upcall_shm::mailbag::Mailbag;

impl Group {
    /// Returns `true` if a message waits (UDM's message-available flag). Costs one load for each
    /// member that has ever sent one here.
    #[inline]
    pub fn available(&self) -> bool {
        // If no message waits, no function is called, so no registers have to be saved.
        (self.0.mask.is_on() || self.0.senders.glance()) && self.look()
    }

    /// Returns `false` only if no message waits. Costs less than [`available`](Self::available)
    /// where [`receive`](Self::receive) follows, which finds out the same.
    #[inline]
    pub fn may_have(&self) -> bool {
        self.0.mask.is_on() || self.0.senders.glance()
    }

    #[cold]
    fn look(&self) -> bool {
        let _busy = self.busy();
        self.take_parts();
        self.0.senders.waits()
    }

    /// Takes the next message (UDM's `receive`): `take` reads it in shared memory, and then it is
    /// disposed of. Members take turns.
    ///
    /// # Errors
    /// [`NothingThere`].
    #[inline]
    pub fn receive<R>(&self, take: impl FnOnce(&Message<'_, '_>) -> R) -> Result<R, NothingThere> {
        let _busy = self.busy();
        self.next(|arrived, inbound| self.taken_by(take, arrived, inbound))
    }

    /// Takes the next message of member `from`, as [`receive`](Self::receive) takes that of any
    /// member. The turn stays as it is.
    ///
    /// # Errors
    /// [`NothingThere`], also if there is no such member.
    pub fn receive_from<R>(
        &self,
        from: Rank,
        take: impl FnOnce(&Message<'_, '_>) -> R,
    ) -> Result<R, NothingThere> {
        let _busy = self.busy();
        self.next_of(from, |arrived, inbound| self.taken_by(take, arrived, inbound))
    }

    /// Takes the next message, as [`receive`](Self::receive) does, if `take` can.
    ///
    /// If `take` returns `None`, the message stays the next one of its sender, and those of the
    /// same sender stay behind it. The turn goes to the next sender in any case. This is for
    /// receivers that lack memory for a message.
    ///
    /// # Errors
    /// [`NothingThere`].
    #[inline]
    pub fn receive_or_leave<R>(
        &self,
        take: impl FnOnce(&Message<'_, '_>) -> Option<R>,
    ) -> Result<Option<R>, NothingThere> {
        let _busy = self.busy();
        self.next(|arrived, inbound| self.taken_or_left(take, arrived, inbound))
    }

    /// Takes the next message of member `from`, as [`receive_or_leave`](Self::receive_or_leave)
    /// takes that of any member. The turn stays as it is.
    ///
    /// # Errors
    /// [`NothingThere`], also if there is no such member.
    pub fn receive_from_or_leave<R>(
        &self,
        from: Rank,
        take: impl FnOnce(&Message<'_, '_>) -> Option<R>,
    ) -> Result<Option<R>, NothingThere> {
        let _busy = self.busy();
        self.next_of(from, |arrived, inbound| self.taken_or_left(take, arrived, inbound))
    }

    /// The members of which a message waits. All messages that were sent before this is called are
    /// taken into account, as far as their senders' queues have been brought here.
    pub fn waiting(&self) -> Vec<Rank> {
        let _busy = self.busy();
        self.attend_if_there_is_news();
        self.take_parts();
        let all = self.0.senders.all();
        all.iter().filter(|inbound| inbound.waits()).map(|inbound| inbound.from()).collect()
    }

    /// A member whose next message this process could not map, for lack of memory or addresses.
    ///
    /// No message of that member is taken until this process can. Costs one load if there is none.
    #[inline]
    pub fn lacking(&self) -> Option<Rank> {
        self.0.senders.lacking()
    }

    /// Reads a message, and disposes of it.
    #[inline(always)]
    fn taken_by<R>(
        &self,
        take: impl FnOnce(&Message<'_, '_>) -> R,
        arrived: Arrived<'_, Mailbag>,
        inbound: &Inbound,
    ) -> R {
        let taken = take(&Message::new(inbound.from(), &arrived));
        self.dispose_of(arrived);
        taken
    }

    /// Reads a message, and disposes of it if `take` has taken it.
    #[inline(always)]
    fn taken_or_left<R>(
        &self,
        take: impl FnOnce(&Message<'_, '_>) -> Option<R>,
        arrived: Arrived<'_, Mailbag>,
        inbound: &Inbound,
    ) -> Option<R> {
        let taken = take(&Message::new(inbound.from(), &arrived))?;
        self.dispose_of(arrived);
        Some(taken)
    }

    #[inline(always)]
    fn dispose_of(&self, arrived: Arrived<'_, Mailbag>) {
        point(Point::MemberReads);
        arrived.dispose();
        self.0.taken.set(self.0.taken.get() + 1);
        self.has_changed();
    }

    /// Reads the message that [`receive`](Self::receive) would take, and leaves it there.
    ///
    /// # Errors
    /// [`NothingThere`].
    pub fn peek<R>(&self, look: impl FnOnce(&Message<'_, '_>) -> R) -> Result<R, NothingThere> {
        let _busy = self.busy();
        let turn = self.0.senders.turn();
        let looked = self.next(|arrived, inbound| look(&Message::new(inbound.from(), &arrived)));
        // The sender keeps its turn.
        self.0.senders.keep_turn(turn);
        looked
    }

    /// Calls `with` on the next message; the turn goes to the member after its sender.
    #[inline]
    pub(crate) fn next<R>(
        &self,
        with: impl FnOnce(Arrived<'_, Mailbag>, &Rc<Inbound>) -> R,
    ) -> Result<R, NothingThere> {
        self.attend_if_there_is_news();
        let mut with = with;
        loop {
            match receiving::next(&Driver(self), self.passing_parts(with)) {
                Some(NextRead::Done(done)) => return Ok(done),
                Some(NextRead::Part(again, found)) if self.deal_with(&found) => with = again,
                Some(NextRead::Part(..)) => return Err(NothingThere),
                None => {
                    self.offer_again();
                    return Err(NothingThere);
                }
            }
        }
    }

    /// Calls `with` on the next message of one sender.
    fn next_of<R>(
        &self,
        from: Rank,
        with: impl FnOnce(Arrived<'_, Mailbag>, &Rc<Inbound>) -> R,
    ) -> Result<R, NothingThere> {
        self.attend_if_there_is_news();
        let mut with = with;
        loop {
            match receiving::next_of(&Driver(self), from, self.passing_parts(with)) {
                Some(NextRead::Done(done)) => return Ok(done),
                Some(NextRead::Part(again, found)) if self.deal_with(&found) => with = again,
                Some(NextRead::Part(..)) | None => return Err(NothingThere),
            }
        }
    }

    /// Runs the handlers of the messages that wait, at most 64 of each member. Returns their
    /// number. A message of a kind without a handler stays, and those of the same sender stay
    /// behind it.
    ///
    /// # Panics
    /// If a handler panics. Its message was taken.
    pub fn poll(&self) -> usize {
        let _busy = self.busy();
        self.attend_if_there_is_news();
        self.offer_again();
        receiving::poll(&Driver(self))
    }

    /// Handles an invalid next message of a member: its kind is unknown, or its payload does not
    /// match.
    pub(crate) fn violates_by(&self, rank: Rank, kind: u16) {
        let _busy = self.busy();
        if let Some(inbound) = self.0.senders.of(rank) {
            receiving::forget(&Driver(self), &inbound, Forgotten::Kind(kind));
        }
    }

    /// Describes how a message of this kind violates the protocol.
    #[cold]
    fn violation(&self, kind: u16) -> String {
        let kinds = &self.0.handlers.kinds;
        match kinds.get(usize::from(kind)) {
            Some((name, carries)) => format!("a message {name:?} that does not carry {carries}"),
            None => format!("a message of kind {kind}, of which there are {}", kinds.len()),
        }
    }

    /// Number of times that messages for this member were diverted to a buffer.
    ///
    /// Counts the diversions that it has reached (UDM's atomicity-timeout). A sender diverts when
    /// it finds no room for longer than the [atomicity timeout](crate::GroupBuilder::timeout),
    /// because this member was in a [section](Group::atomic) or did not poll. No message is lost by
    /// that. A member for which the number grows keeps messages waiting.
    pub fn diversions(&self) -> u64 {
        let _busy = self.busy();
        self.0.diversions.get()
            + self.0.senders.all().iter().map(|inbound| inbound.diversions()).sum::<u64>()
    }

    /// Checks that the next message of every sender has a handler; of one sender, if `from` is
    /// given.
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

    /// Returns `true` if `is` is true of the next message of any sender.
    pub(crate) fn any_next(&self, is: impl Fn(NextMessage) -> bool) -> bool {
        let _busy = self.busy();
        self.0.senders.all().iter().filter_map(|inbound| inbound.next()).any(is)
    }

    /// Returns `true` if messages of a kind have a handler. An unknown kind counts as handled: its
    /// sender is forgotten.
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
            None if kind == COLLECTIVE => return group.part_arrived(inbound, queue),
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

/// The end of a handler, even if it panics.
struct Changed<'a>(&'a Group);

impl Drop for Changed<'_> {
    fn drop(&mut self) {
        self.0.has_changed();
    }
}
