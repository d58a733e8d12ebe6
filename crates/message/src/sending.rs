//! Sending: the direct way, and what happens where there is no room.

use crate::buffering::OwnBuffers;
use crate::deadline::SendDeadline;
use crate::error::SendError;
use crate::far::{RoomWait, SentPast};
use crate::link::{MemberLink, Outward, Why, answer_within};
use crate::message::Kind;
use crate::payload::{Payload, Writer};
use crate::proto::flow::Pause;
use crate::proto::send_queue::{Attempt, Obstacle};
use crate::proto::sending::{self, Sending, Sent};
use crate::{Event, Group, Rank};
use std::cell::RefCell;
use std::time::{Duration, Instant};
use upcall_os::fault::{Point, point};
use upcall_os::headroom::Headroom;
use upcall_sched::costs::WaitCosts;
use upcall_sched::pacing::GiveWay;
use upcall_shm::direct::{Draft, SendRefusal};
use upcall_shm::mailbag::Mailbag;

/// A message that is being sent.
struct SendRequest<'a, T: ?Sized> {
    group: &'a Group,
    to: Rank,
    kind: Kind<T>,
    value: &'a T,
    patience: SendDeadline,
    give_way: GiveWay,
    /// The queue has room for it by now, in a segment.
    has_diverted: bool,
}

impl<T: Payload + ?Sized> Sending for SendRequest<'_, T> {
    type Done = ();
    type Error = SendError;

    fn attempt(&mut self) -> Result<Sent<(), SendError>, SendError> {
        let (group, to, value) = (self.group, self.to, self.value);
        // Other threads of a virtual processor would not run while this one polls.
        let wait = if group.blocks_a_thread() { RoomWait::Never } else { self.patience.for_room() };
        let way = group.way_to(to, |link| {
            let message = (self.kind.index, value.size());
            let launch = |draft: Draft<'_, Mailbag>| {
                value.write(&mut Writer::new(&draft));
                point(Point::MemberDescribed);
                draft.launch();
            };
            if let Some(most) = link.is_too_long(message.1) {
                return Attempt::TooLong { most };
            }
            // The bridge would find the segment empty, and the sender would leave it.
            if !self.has_diverted && link.send_past(self.kind, value, wait) == SentPast::Yes {
                return Attempt::Launched(());
            }
            let buffers = OwnBuffers { group, to };
            let attempt = link.queue.attempt(message, Instant::now, &buffers, launch);
            if let Attempt::Launched(()) = attempt {
                link.launched();
            }
            attempt
        })?;
        let SendPath::Open(attempt) = way else {
            return Ok(Sent::Later { why: SendError::Full, pause: Pause::Long });
        };
        match attempt {
            Attempt::Launched(()) => {
                group.0.member.account.goes_on();
                Ok(Sent::Done(()))
            }
            Attempt::Diverted => {
                group.0.spare.set(Some(Instant::now()));
                self.has_diverted = true;
                Ok(Sent::Again)
            }
            Attempt::NoRoom { why, pause } => Ok(Sent::Later { why: self.obstructed(why), pause }),
            Attempt::NoMemory(error) => Err(SendError::NoMemory { rank: to, error }),
            Attempt::TooLong { most } => Err(SendError::TooLong { most }),
            // The next attempt finds the path closed.
            Attempt::Violation => {
                group.is_violated_by(to);
                Ok(Sent::Again)
            }
        }
    }

    fn is_over(&self) -> bool {
        self.patience.is_over()
    }

    fn run_handlers(&mut self) -> Result<(), SendError> {
        self.group.run_handlers_meanwhile();
        if self.group.is_interrupted() { Err(SendError::Interrupted) } else { Ok(()) }
    }

    fn pause(&mut self, pause: Pause) {
        if pause == Pause::Long {
            self.group.nap();
        } else {
            self.group.make_room_far_away(self.to, pause);
        }
        self.give_way.step();
    }
}

impl<T: Payload + ?Sized> SendRequest<'_, T> {
    /// Returns the error for a sender without room that waits no longer.
    fn obstructed(&self, why: Obstacle) -> SendError {
        let (rank, share) = (self.to, self.group.share_now());
        let stops = |is_low| {
            let now = upcall_os::clock::stamp(Instant::now());
            self.group.0.member.account.stops(rank, now, is_low);
        };
        let why = match why {
            Obstacle::Full | Obstacle::NoSegment => SendError::Full,
            Obstacle::Overflow { buffered } => {
                stops(false);
                SendError::Overflow { rank, buffered, share }
            }
            Obstacle::LowMemory(Headroom { left, of }) => {
                stops(true);
                SendError::LowMemory { rank, left, of }
            }
            Obstacle::NoMemory(error) => return SendError::NoMemory { rank, error },
        };
        if let SendDeadline::None = self.patience { SendError::Full } else { why }
    }
}

/// The path to a member.
pub(crate) enum SendPath<R> {
    Open(R),
    /// The queue of connections at its door is full.
    Crowded,
}

impl Group {
    /// Sends a message to member `to` (UDM's `send`).
    ///
    /// Once `send` returns `Ok`, the message arrives, exactly once and in order per pair, even if
    /// this process ends at once. Only two things prevent that: the death of the receiver, or a
    /// receiver that lacks memory or descriptors for this member's queue. A handler may call this.
    ///
    /// # Errors
    /// See [`SendError`]: a mistake of the program, a lack of memory or descriptors here or in the
    /// receiver, or the end of the receiver, which is noticed when this process polls, or finds the
    /// queue full. Passing time is never an error, and neither is a full queue or buffer.
    ///
    /// A receiver that lives, and lacks a resource for the queue, refuses it
    /// ([`SendError::Refused`]). The first message waits at most 5 ms for the receiver's answer, so
    /// the refusal may come after messages were sent. Those messages wait in this process. The next
    /// send, or report of a barrier, offers the queue again. So do [`poll`](Self::poll),
    /// [`wait`](Self::wait), a [`receive`](Self::receive) that finds nothing, and a send that waits
    /// for room, after pauses of up to a second. If this process ends before the receiver takes the
    /// queue, the messages are lost.
    ///
    /// # Blocking
    /// Waits for room, not for the receiver. In the queue it waits no longer than the group's
    /// [timeout](crate::GroupBuilder::timeout): then messages go to a buffer. A message of 16 KiB
    /// or more to another host waits up to 0.25 ms for room there before it goes to the queue. For
    /// each MiB of the buffer beyond two, it waits up to 8 ms more if the receiver is on another
    /// host. If this member has used up its share of that
    /// ([`GroupBuilder::limit`](crate::GroupBuilder::limit)), if little memory is left, or without
    /// a timeout, it waits until the receiver has taken some messages, without limit: the receiver
    /// may be slow, or stopped. The first message to each member takes some 0.1 ms more, and 5 ms
    /// if that member is stopped. A message from a member to itself is there at once.
    ///
    /// While it waits, it runs the handlers of the messages that arrive, as [`poll`](Self::poll)
    /// does, so members that flood each other make progress. It runs none in an [atomic
    /// section](Self::atomic), and none below 16 sends that wait one within the handler of the
    /// other. Members wait for each other for ever if all of them wait for room in this way, or
    /// have messages before them that have no handler: that is a deadlock of the program.
    /// [`send_within`](Self::send_within) ends it, and [`try_send`](Self::try_send) never waits.
    ///
    /// # Panics
    /// If the payload does not write the size that it declares, or if a handler panics; in the
    /// latter case nothing was sent.
    // Inlined: a call here would cost half as much again.
    #[inline(always)]
    pub fn send<T: Payload + ?Sized>(
        &self,
        to: Rank,
        kind: Kind<T>,
        value: &T,
    ) -> Result<(), SendError> {
        if !self.0.mask.is_on() && self.send_at_once(to, kind, value, false) {
            return Ok(());
        }
        self.send_slow(to, kind, value, SendDeadline::Endless)
    }

    /// Sends a message if it only has to be written. Returns `true` if it did. With `unread`, it
    /// also sends to a receiver that has not reported where it sleeps; each message then notifies
    /// it. That is for interrupts.
    #[inline(always)]
    pub(crate) fn send_at_once<T: Payload + ?Sized>(
        &self,
        to: Rank,
        kind: Kind<T>,
        value: &T,
        unread: bool,
    ) -> bool {
        if let Some(Ok(mut outward)) = self.0.links.get(to).map(RefCell::try_borrow_mut)
            && let Outward::Open(link) = &mut *outward
            && (unread || link.is_read())
            && link.queue.is_calm()
            && let Ok(draft) = link.queue.describe(kind.index, value.size())
        {
            value.write(&mut Writer::new(&draft));
            point(Point::MemberDescribed);
            draft.launch();
            match unread {
                true => link.launched_in_interrupt(),
                false => link.launched(),
            }
            return true;
        }
        false
    }

    /// Sends a message like [`send`](Self::send), and waits at most `limit` for room.
    ///
    /// # Errors
    /// [`SendError::Full`], [`SendError::Overflow`] or [`SendError::LowMemory`]: the receiver has
    /// made no room in that time. Nothing was sent. Other errors as in [`send`](Self::send).
    // Inlined up to the wait, as `send` is.
    #[inline(always)]
    pub fn send_within<T: Payload + ?Sized>(
        &self,
        to: Rank,
        kind: Kind<T>,
        value: &T,
        limit: Duration,
    ) -> Result<(), SendError> {
        if !self.0.mask.is_on() && self.send_at_once(to, kind, value, false) {
            return Ok(());
        }
        self.send_slow_within(to, kind, value, limit)
    }

    #[inline(never)]
    fn send_slow_within<T: Payload + ?Sized>(
        &self,
        to: Rank,
        kind: Kind<T>,
        value: &T,
        limit: Duration,
    ) -> Result<(), SendError> {
        let patience =
            Instant::now().checked_add(limit).map_or(SendDeadline::Endless, SendDeadline::Until);
        self.send_slow(to, kind, value, patience)
    }

    /// Sends a message if there is room now (UDM's `sendc`). Does not wait, and runs no handlers.
    ///
    /// # Errors
    /// [`SendError::Full`]: there is no room. If the receiver has taken nothing for as long as the
    /// group's timeout, messages are diverted to a buffer at the next try, so repeated tries end.
    /// With two MiB in the buffer for a member on another host, that takes 2 ms at least.
    pub fn try_send<T: Payload + ?Sized>(
        &self,
        to: Rank,
        kind: Kind<T>,
        value: &T,
    ) -> Result<(), SendError> {
        self.send_slow(to, kind, value, SendDeadline::None)
    }

    #[inline(never)]
    fn send_slow<T: Payload + ?Sized>(
        &self,
        to: Rank,
        kind: Kind<T>,
        value: &T,
        patience: SendDeadline,
    ) -> Result<(), SendError> {
        let _busy = self.busy();
        let (give_way, has_diverted) = (GiveWay::new(WaitCosts::measured()), false);
        sending::send(&mut SendRequest {
            group: self,
            to,
            kind,
            value,
            patience,
            give_way,
            has_diverted,
        })
    }

    /// Calls `with` on the path to a member, which is opened first if needed.
    pub(crate) fn way_to<R>(
        &self,
        to: Rank,
        with: impl FnOnce(&mut MemberLink) -> R,
    ) -> Result<SendPath<R>, SendError> {
        let _busy = self.busy();
        self.attend_if_there_is_news();
        let cell =
            self.0.links.get(to).ok_or(SendError::NoSuchRank { rank: to, size: self.size() })?;
        let outward = &mut *cell.borrow_mut();
        if let Outward::Unopened = outward {
            let Some(link) = MemberLink::open(&self.0.member, &self.0.roster, to, self.0.timeout)?
            else {
                return Ok(SendPath::Crowded);
            };
            *outward = Outward::Open(Box::new(link));
        }
        if let Outward::Open(link) = outward
            && link.is_refused()
        {
            let brought = link.bring_again(
                &self.0.member,
                &self.0.roster,
                to,
                answer_within(&self.0.roster, to),
            );
            if !brought.map_err(|why| why.error(to, link.sent()))? {
                return Ok(SendPath::Crowded);
            }
        }
        match outward {
            Outward::Open(link) => Ok(SendPath::Open(with(link))),
            Outward::Closed(why) => Err(why.of(to)),
            Outward::Unopened => Ok(SendPath::Crowded),
        }
    }

    /// Stops sending to a member that, as a receiver, has violated the protocol.
    fn is_violated_by(&self, rank: Rank) {
        *self.0.links[rank].borrow_mut() = Outward::Closed(Why::Violation);
        self.0.member.account.refuses();
        self.happened(Event::Violation { rank, what: SendRefusal::Violation.to_string() });
    }

    #[cold]
    pub(crate) fn nap(&self) {
        const NAP: Duration = Duration::from_millis(1);
        if self.blocks_a_thread() { upcall_thread::sleep(NAP) } else { std::thread::sleep(NAP) }
    }
}
