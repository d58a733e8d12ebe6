//! Sending: the direct way, and what is done where there is no room.

use crate::error::SendError;
use crate::flow::{self, Full};
use crate::kinds::Kind;
use crate::link::Link;
use crate::payload::{Payload, Writer};
use crate::{Event, Group, Rank};
use std::cell::RefCell;
use std::io;
use std::time::{Duration, Instant};
use upcall_os::fault::{Point, point};
use upcall_os::headroom::Headroom;
use upcall_shm::direct::Refused;
use upcall_transfer::pacer::GiveWay;

/// Bytes of a segment.
const SEGMENT: u64 = upcall_shm::mailbag::SEGMENT_BYTES as u64;

/// So long after the last one memory is kept for messages that do not fit into the queues.
const SETTLED: Duration = Duration::from_millis(10);

/// What a sender does that has found no room.
enum Try {
    /// Sends again: there is room now.
    Again,
    /// Waits before that, for long perhaps.
    Later {
        /// It has waited long already.
        long: bool,
    },
}

/// The way to another member.
#[derive(Debug)]
pub(crate) enum Outward {
    /// Nothing was sent yet.
    Unopened,
    Open(Box<Link>),
    Closed(Why),
}

/// Why nothing more is sent there.
#[derive(Clone, Debug)]
pub(crate) enum Why {
    Ended,
    Violation,
    Refused(String),
}

impl Why {
    fn of(&self, rank: Rank) -> SendError {
        match self {
            Self::Ended => SendError::Ended { rank },
            Self::Violation => SendError::Violation { rank },
            Self::Refused(why) => SendError::Unreachable { rank, why: why.clone() },
        }
    }
}

impl Group {
    /// Sends a message (UDM's `send`). Once this has returned it arrives, unless the receiver ends before it takes it, also if this process ends at once. Does not wait for the receiver, but for room in its queue, and then no longer than the
    /// group's timeout, unless this member has buffered all that it may ([`Joining::limit`](crate::Joining::limit)); the first message to each member takes some 0.1 ms more, and 5 ms if that is stopped. May be called in a handler.
    ///
    /// # Errors
    /// See [`SendError`]. The end of the receiver is noticed when this process polls, or finds its queue full.
    ///
    /// # Panics
    /// The payload writes another size than it tells.
    // A call in its place would cost half as much again.
    #[inline(always)]
    pub fn send<T: Payload + ?Sized>(&self, to: Rank, kind: Kind<T>, value: &T) -> Result<(), SendError> {
        if !self.0.mask.is_on() && self.send_at_once(to, kind, value, false) {
            return Ok(());
        }
        self.send_uncommonly(to, kind, value, true)
    }

    /// Sends a message if that takes nothing but to write it. Whether it did. Also `unread`, as far as is known: to a receiver that has not said where it sleeps, so that each message rings.
    #[inline(always)]
    pub(crate) fn send_at_once<T: Payload + ?Sized>(&self, to: Rank, kind: Kind<T>, value: &T, unread: bool) -> bool {
        if let Some(Ok(mut outward)) = self.0.links.get(to).map(RefCell::try_borrow_mut)
            && let Outward::Open(link) = &mut *outward
            && (unread || link.is_read())
            && link.flow.is_calm()
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

    /// The same, if there is room now (UDM's `sendc`). Waits for nothing but the way to a member that nothing was sent to yet.
    ///
    /// # Errors
    /// [`SendError::Full`]: there is none. If the receiver has taken nothing for as long as the group's timeout, messages are diverted to a buffer at the next try, so trying again does not go on for ever.
    pub fn try_send<T: Payload + ?Sized>(&self, to: Rank, kind: Kind<T>, value: &T) -> Result<(), SendError> {
        self.send_uncommonly(to, kind, value, false)
    }

    #[inline(never)]
    fn send_uncommonly<T: Payload + ?Sized>(&self, to: Rank, kind: Kind<T>, value: &T, waits: bool) -> Result<(), SendError> {
        let _busy = self.busy();
        let cell = self.0.links.get(to).ok_or(SendError::NoSuchRank { rank: to, size: self.size() })?;
        let (mut give_way, mut pause) = (GiveWay::default(), false);
        loop {
            self.attend_if_there_is_news();
            let mut outward = cell.borrow_mut();
            let link = match &mut *outward {
                Outward::Unopened => {
                    *outward = Outward::Open(Box::new(Link::open(&self.0.member, &self.0.roster, to, self.0.timeout)?));
                    continue;
                }
                Outward::Closed(why) => return Err(why.of(to)),
                Outward::Open(link) => link,
            };
            if link.flow.is_always_diverted() && !link.queue.is_diverted() {
                link.queue.divert().map_err(|error| SendError::NoMemory { rank: to, error })?;
                self.0.spare.set(Some(Instant::now()));
            }
            match link.queue.describe(kind.index, value.size()) {
                Ok(draft) => {
                    value.write(&mut Writer::new(&draft));
                    point(Point::MemberDescribed);
                    draft.launch();
                    link.flow.fits();
                    link.launched();
                    self.0.member.account.goes_on();
                    return Ok(());
                }
                Err(Refused::TooLong { most }) => return Err(SendError::TooLong { most }),
                Err(Refused::Violation) => {
                    *outward = Outward::Closed(Why::Violation);
                    self.0.member.account.refuses();
                    let what = Refused::Violation.to_string();
                    self.happened(Event::Violation { rank: to, what });
                }
                Err(refused @ (Refused::Full | Refused::Outsized)) => {
                    // What does not fit into the queue at all has no room to wait for.
                    let room = (refused == Refused::Outsized).then_some(value.size());
                    match self.has_no_room(to, link, room, waits)? {
                        Try::Again => continue,
                        Try::Later { long } => pause = long,
                    }
                }
            }
            drop(outward);
            // Who sends to us waits for room too, perhaps.
            self.safe_point();
            if self.is_interrupted() {
                return Err(SendError::Interrupted);
            }
            if std::mem::take(&mut pause) {
                self.nap();
            }
            give_way.step();
        }
    }

    /// There is no room for a message, or none in the queue for one of so many bytes: diverts, or has the sender wait.
    fn has_no_room(&self, to: Rank, link: &mut Link, outsized: Option<usize>, waits: bool) -> Result<Try, SendError> {
        let (now, progress) = (Instant::now(), link.queue.progress());
        let diverts = outsized.is_some() || link.flow.full(now, progress) == Full::Divert;
        let room = outsized.unwrap_or(0);
        let takes = (room as u64).max(SEGMENT);
        let buffered = if diverts { self.buffered_beside(to, link, takes) } else { 0 };
        let low = if buffered > 0 || takes > SEGMENT { self.0.supply.is_low(now) } else { None };
        let stopped = low.is_some() || buffered > 0 && buffered + takes > self.0.share;
        if stopped {
            self.0.member.account.stops(to, upcall_os::clock::stamp(now), low.is_some());
        }
        if diverts && !stopped {
            match link.queue.divert_for(room) {
                Ok(()) => {
                    link.flow.diverted(progress);
                    self.0.spare.set(Some(now));
                    return Ok(Try::Again);
                }
                Err(error) if !waits && error.kind() != io::ErrorKind::StorageFull => {
                    return Err(SendError::NoMemory { rank: to, error });
                }
                Err(_) => {}
            }
        }
        if !waits {
            return Err(SendError::Full);
        }
        let still = link.flow.still(now, progress);
        // What waits here nobody takes meanwhile.
        if still >= flow::STUCK && self.available() {
            link.flow.fits();
            let share = self.0.share;
            return Err(match low {
                Some(Headroom { left, of }) => SendError::LowMemory { rank: to, left, of },
                None if stopped => SendError::Overflow { rank: to, buffered, share },
                None => SendError::Full,
            });
        }
        Ok(Try::Later { long: still >= flow::LONG })
    }

    /// Bytes that this member has buffered, if so many more for `to` count: the first segment of a pair does not. So a message that is longer than the share goes when nothing else is buffered.
    #[cold]
    fn buffered_beside(&self, to: Rank, link: &Link, takes: u64) -> u64 {
        let segments = link.queue.buffered();
        if segments == 0 && takes <= SEGMENT {
            return 0;
        }
        let others: u64 = (0..self.size()).filter(|&rank| rank != to).map(|rank| self.buffered(rank)).sum();
        others + segments * SEGMENT
    }

    #[cold]
    fn nap(&self) {
        const NAP: Duration = Duration::from_millis(1);
        if self.blocks_a_thread() { upcall_thread::sleep(NAP) } else { std::thread::sleep(NAP) }
    }

    /// How long memory of segments is still to be kept for the next ones: to have it anew takes longer than most sleeps. `None`: there is none.
    pub(crate) fn kept_for(&self) -> Option<Duration> {
        self.0.spare.get().map(|since| SETTLED.saturating_sub(since.elapsed()))
    }

    /// Gives back the memory that is kept for messages which do not fit into the queues, if none was sent for a while (10 ms). Else, after what time this is to be called again. [`wait`](Self::wait) does that by itself; this is for those who sleep otherwise.
    pub fn settle(&self) -> Option<Duration> {
        let _busy = self.busy();
        let left = self.kept_for()?;
        if left.is_zero() {
            self.shrink();
            return None;
        }
        Some(left)
    }

    /// Gives memory of segments back that is kept for the next ones. To be done where there is time for it.
    pub(crate) fn shrink(&self) {
        let Some(since) = self.0.spare.get() else { return };
        let mut rest = false;
        for cell in &self.0.links {
            match cell.try_borrow_mut().as_deref_mut() {
                Ok(Outward::Open(link)) => rest |= !link.queue.shrink(),
                Ok(_) => {}
                Err(_) => rest = true,
            }
        }
        self.0.spare.set(rest.then_some(since));
    }

    /// Bytes of the buffer that messages to a member take which has not taken them yet; 0 while they go the direct way. Up to 2 MiB more are kept for those that come next, until this member sleeps and none was sent for a while ([`settle`](Self::settle)).
    pub fn buffered(&self, to: Rank) -> u64 {
        let _busy = self.busy();
        let cell = self.0.links.get(to).and_then(|cell| cell.try_borrow().ok());
        match cell.as_deref() {
            Some(Outward::Open(link)) => link.queue.buffered() * SEGMENT,
            _ => 0,
        }
    }

    /// How many messages of this member's went through a buffer so far, of those to members that it can still send to (UDM, Table 6: messages buffered).
    pub fn diverted(&self) -> u64 {
        let _busy = self.busy();
        let of = |cell: &RefCell<Outward>| match cell.try_borrow().ok().as_deref() {
            Some(Outward::Open(link)) => link.queue.ever_buffered(),
            _ => 0,
        };
        self.0.links.iter().map(of).sum()
    }
}
