//! Sending: the direct way, and what is done where there is no room.

use crate::buffering::OwnBuffers;
use crate::error::SendError;
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
}

impl<T: Payload + ?Sized> Sending for SendRequest<'_, T> {
    type Done = ();
    type Error = SendError;

    fn attempt(&mut self) -> Result<Sent<(), SendError>, SendError> {
        let (group, to, value) = (self.group, self.to, self.value);
        let way = group.way_to(to, |link| {
            let message = (self.kind.index, value.size());
            let launch = |draft: Draft<'_, Mailbag>| {
                value.write(&mut Writer::new(&draft));
                point(Point::MemberDescribed);
                draft.launch();
            };
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
                Ok(Sent::Again)
            }
            Attempt::NoRoom { why, pause } => Ok(Sent::Later { why: self.obstructed(why), pause }),
            Attempt::NoMemory(error) => Err(SendError::NoMemory { rank: to, error }),
            Attempt::TooLong { most } => Err(SendError::TooLong { most }),
            // The next attempt finds the way closed.
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
        if let Pause::Long = pause {
            self.group.nap();
        }
        self.give_way.step();
    }
}

impl<T: Payload + ?Sized> SendRequest<'_, T> {
    /// There is no room: what the sender reports if it waits no longer.
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

/// How long a sender waits for room.
#[derive(Clone, Copy)]
enum SendDeadline {
    None,
    Until(Instant),
    Endless,
}

impl SendDeadline {
    fn is_over(self) -> bool {
        match self {
            Self::None => true,
            Self::Until(end) => Instant::now() >= end,
            Self::Endless => false,
        }
    }
}

/// Whether the way to a member is open.
pub(crate) enum SendPath<R> {
    Open(R),
    /// The queue of connections at its door is full.
    Crowded,
}

impl Group {
    /// Sends a message (UDM's `send`). Once this has returned `Ok` it arrives, exactly once and in
    /// order, also if this process ends at once. Only the death of the receiver can keep it back,
    /// or a receiver that lacks memory or descriptors for this member's queue. May be called in a
    /// handler.
    ///
    /// # Errors
    /// See [`SendError`]: what the program did, a lack of memory or descriptors here or in the
    /// receiver, or the end of the receiver, which is noticed when this process polls, or finds the
    /// queue full. No time that passes is an error, and a full queue or buffer is none.
    ///
    /// A receiver that lives, and lacks a resource for the queue, refuses it
    /// ([`SendError::Refused`]). The first message waits for the receiver's answer for at most 5
    /// ms, so the refusal may come when messages were sent. They wait in this process. The next
    /// send, or report of a barrier, offers the queue again. So do [`poll`](Self::poll),
    /// [`wait`](Self::wait), a [`receive`](Self::receive) that finds nothing, and a send that waits
    /// for room, after pauses of up to a second. If this process ends before the queue is taken,
    /// they are lost.
    ///
    /// # Blocking
    /// Waits for room, not for the receiver. In the queue it waits no longer than the group's
    /// [timeout](crate::GroupBuilder::timeout): then messages go to a buffer. With all of its share
    /// of that in use ([`GroupBuilder::limit`](crate::GroupBuilder::limit)), or little memory
    /// left, or no timeout, it waits until the receiver has taken some, for as long as that
    /// takes: the receiver may be slow, or stopped. The first message to each member takes some
    /// 0.1 ms more, and 5 ms if that is stopped. What a member sends to itself is there at
    /// once.
    ///
    /// While it waits it runs the handlers of what comes, as [`poll`](Self::poll) does, so members
    /// that flood each other go on. It runs none in an [atomic section](Self::atomic), and none
    /// below 16 sends that wait one within the handler of the other. Members wait for each other
    /// for ever if all of them wait for room so, or have messages before them that have no handler:
    /// that is a deadlock of the program. [`send_within`](Self::send_within) ends it, and
    /// [`try_send`](Self::try_send) never waits.
    ///
    /// # Panics
    /// The payload writes another size than it tells; and those of handlers, after which nothing
    /// was sent.
    // A call in its place would cost half as much again.
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

    /// Sends a message if that takes nothing but to write it. Whether it did. Also `unread`, as far
    /// as is known: to a receiver that has not said where it sleeps, so that each message rings.
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
            link.launched();
            return true;
        }
        false
    }

    /// Sends a message as [`send`](Self::send), and waits for room for `limit` at most.
    ///
    /// # Errors
    /// [`SendError::Full`], [`SendError::Overflow`] or [`SendError::LowMemory`]: the receiver has
    /// made no room in that time. Nothing was sent. The others as [`send`](Self::send).
    pub fn send_within<T: Payload + ?Sized>(
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
    /// [`SendError::Full`]: there is none. If the receiver has taken nothing for as long as the group's timeout, messages are diverted to a buffer at the next try, so trying again does not go on for ever.
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
        let give_way = GiveWay::new(WaitCosts::measured());
        sending::send(&mut SendRequest { group: self, to, kind, value, patience, give_way })
    }

    /// Does something with the way to a member, which is opened first if it has to be.
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

    /// Sends nothing more to a member that does not keep to the protocol as a receiver.
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
