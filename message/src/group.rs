//! A member's group: sending, taking, polling, waiting.

use crate::Rank;
use crate::barrier::Barrier;
use crate::error::{NothingThere, RunError, SendError};
use crate::flow::{self, Full};
use crate::forming::Joining;
use crate::inbound::{Inbound, Next};
use crate::interrupts::Interrupts;
use crate::kinds::{Handlers, Kind};
use crate::link::Link;
use crate::member::{Member, News, Roster};
use crate::payload::{Payload, Reader, Writer};
use crate::upcalls::Upcalls;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_os::fault::{Point, point};
use upcall_shm::direct::{Arrived, Refused, Unreadable};
use upcall_shm::mailbag::Mailbag;
use upcall_transfer::Pacing;
use upcall_transfer::pacer::GiveWay;

/// So many messages of one sender are run before the others have their turn.
const BATCH: usize = 64;

/// Bytes of a segment.
const SEGMENT: u64 = upcall_shm::mailbag::SEGMENT_BYTES as u64;

/// What happened to another member.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// It has ended, or has left the group. All that it had sent was taken before; what was sent to it may not have been.
    Ended {
        /// The member.
        rank: Rank,
    },
    /// It does not keep to the protocol, or names a kind of message that there is not, or carries what that kind does not (UDM: protection-violation). Nothing more is taken from it.
    Violation {
        /// The member.
        rank: Rank,
        /// How.
        what: String,
    },
}

/// A process's membership in a group; a clone is the same membership. It belongs to the kernel thread that has joined. When the last clone is dropped the process leaves: what it has sent still arrives, and the others learn of it.
#[derive(Clone)]
pub struct Group(pub(crate) Rc<Inner>);

/// What all clones share.
pub(crate) struct Inner {
    pub(crate) member: Arc<Member>,
    roster: Arc<Roster>,
    pub(crate) handlers: Handlers,
    pacing: Pacing,
    timeout: Option<Duration>,
    /// By rank.
    links: Box<[RefCell<Outward>]>,
    /// Those who have sent something; a new list for each change.
    pub(crate) inbound: RefCell<Rc<[Rc<Inbound>]>>,
    /// Whose turn is next.
    turn: Cell<usize>,
    events: RefCell<VecDeque<Event>>,
    /// What has happened so far, one event for each member that is lost.
    lost: RefCell<Vec<Event>>,
    barrier: Barrier,
    pub(crate) taken: Cell<u64>,
    pub(crate) upcalls: Upcalls,
    pub(crate) interrupts: Interrupts,
    /// So many bytes it may buffer.
    share: u64,
    /// It may have memory of segments that it could give back.
    spare: Cell<bool>,
}

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
enum Outward {
    /// Nothing was sent yet.
    Unopened,
    Open(Box<Link>),
    Closed(Why),
}

#[derive(Clone, Debug)]
enum Why {
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

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group(member {} of {})", self.rank(), self.size())
    }
}

/// A message, where it lies.
#[derive(Debug)]
pub struct Message<'a, 'q> {
    from: Rank,
    arrived: &'a Arrived<'q, Mailbag>,
}

impl<'a, 'q> Message<'a, 'q> {
    #[inline]
    pub(crate) fn new(from: Rank, arrived: &'a Arrived<'q, Mailbag>) -> Self {
        Self { from, arrived }
    }

    /// Who has sent it.
    pub fn from(&self) -> Rank {
        self.from
    }

    /// What it carries, if it is of this kind and does carry that.
    pub fn get<T: Payload + ?Sized>(&self, kind: Kind<T>) -> Option<T::Owned> {
        if self.arrived.handler() != kind.index {
            return None;
        }
        T::read(&mut Reader::new(self.arrived))
    }

    /// The place of its kind among those that were registered, by its sender's word.
    pub fn kind(&self) -> u16 {
        self.arrived.handler()
    }

    /// A word of what it carries; `None` beyond the end.
    #[inline]
    pub fn word(&self, at: usize) -> Option<u64> {
        self.arrived.word(at)
    }

    /// Copies a part of what it carries, from byte `at` on; `None` if it does not reach so far. What is read twice may differ, if its sender is hostile.
    pub fn copy_out(&self, at: usize, to: &mut [u8]) -> Option<()> {
        self.arrived.payload().copy_out(at, to)
    }

    /// Bytes that it carries.
    pub fn size(&self) -> usize {
        self.arrived.len()
    }
}

impl Group {
    pub(crate) fn new(
        member: Arc<Member>,
        roster: Arc<Roster>,
        (handlers, barrier): (Handlers, Barrier),
        joining: &Joining,
    ) -> Self {
        let share = flow::share(joining.limit.unwrap_or_else(flow::default_limit), roster.members.len());
        let links = roster.members.iter().map(|_| RefCell::new(Outward::Unopened)).collect();
        Self(Rc::new(Inner {
            member,
            roster,
            handlers,
            pacing: joining.pacing,
            timeout: joining.timeout,
            links,
            inbound: RefCell::new(Rc::new([])),
            turn: Cell::new(0),
            events: RefCell::default(),
            lost: RefCell::default(),
            barrier,
            taken: Cell::new(0),
            upcalls: Upcalls::new(joining.upcalls),
            interrupts: Interrupts::default(),
            share,
            spare: Cell::new(false),
        }))
    }

    /// This member's place, from 0.
    pub fn rank(&self) -> Rank {
        self.0.roster.rank
    }

    /// How many members there are, those that have ended included.
    pub fn size(&self) -> usize {
        self.0.roster.members.len()
    }

    /// A member's process, by the kernel's word when the group formed.
    pub fn process(&self, rank: Rank) -> Option<u32> {
        self.0.roster.members.get(rank).map(|listed| listed.pid)
    }

    /// Sends a message (UDM's `send`). Once this has returned it arrives, unless the receiver ends before it takes it, also if this process ends at once. Does not wait for the receiver, but for room in its queue, and then no longer than the
    /// group's timeout, unless this member has buffered all that it may ([`Joining::limit`]); the first message to each member takes some 0.1 ms more, and 5 ms if that is stopped. May be called in a handler.
    ///
    /// # Errors
    /// See [`SendError`]. The end of the receiver is noticed when this process polls, or finds its queue full.
    ///
    /// # Panics
    /// The payload writes another size than it tells.
    // A call in its place would cost half as much again.
    #[inline(always)]
    pub fn send<T: Payload + ?Sized>(&self, to: Rank, kind: Kind<T>, value: &T) -> Result<(), SendError> {
        if !self.0.interrupts.are_on() && self.send_at_once(to, kind, value, false) {
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
                self.0.spare.set(true);
            }
            match link.queue.describe(kind.index, value.size()) {
                Ok(draft) => {
                    value.write(&mut Writer::new(&draft));
                    point(Point::MemberDescribed);
                    draft.launch();
                    link.flow.fits();
                    link.launched();
                    return Ok(());
                }
                Err(Refused::TooLong { most }) => return Err(SendError::TooLong { most }),
                Err(Refused::Violation) => {
                    *outward = Outward::Closed(Why::Violation);
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
        let buffered = if diverts { self.buffered_beside(to, link) } else { 0 };
        let room = outsized.unwrap_or(0);
        let stopped = buffered > 0 && buffered + (room as u64).max(SEGMENT) > self.0.share;
        if diverts && !stopped {
            match link.queue.divert_for(room) {
                Ok(()) => {
                    link.flow.diverted(progress);
                    self.0.spare.set(true);
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
            return Err(if stopped { SendError::Overflow { rank: to, buffered, share } } else { SendError::Full });
        }
        Ok(Try::Later { long: still >= flow::LONG })
    }

    /// Bytes that this member has buffered, if another segment for `to` counts: the first one of a pair does not.
    #[cold]
    fn buffered_beside(&self, to: Rank, link: &Link) -> u64 {
        let segments = link.queue.buffered();
        if segments == 0 {
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

    /// Whether a message waits (UDM's message-available flag): a load for each member that has ever sent one here.
    #[inline]
    pub fn available(&self) -> bool {
        // Nothing is called here where nothing waits, so that nothing has to be saved for that.
        let glance = self.0.interrupts.are_on() || self.0.inbound.borrow().iter().any(|inbound| inbound.glance());
        glance && self.look()
    }

    #[cold]
    fn look(&self) -> bool {
        let _busy = self.busy();
        self.0.inbound.borrow().iter().any(|inbound| inbound.waits())
    }

    /// Takes the next message (UDM's `receive`), those of barriers and reductions aside, which are heeded on the way: `take` looks at it where it lies, and then it is disposed of. Members have their turns.
    ///
    /// # Errors
    /// [`NothingThere`].
    #[inline]
    pub fn receive<R>(&self, take: impl FnOnce(&Message<'_, '_>) -> R) -> Result<R, NothingThere> {
        let _busy = self.busy();
        self.next(|arrived, from| {
            let taken = take(&Message { from, arrived: &arrived });
            point(Point::MemberReads);
            arrived.dispose();
            self.0.taken.set(self.0.taken.get() + 1);
            taken
        })
    }

    /// Looks at the message that [`receive`](Self::receive) would take, which stays there.
    ///
    /// # Errors
    /// [`NothingThere`].
    pub fn peek<R>(&self, look: impl FnOnce(&Message<'_, '_>) -> R) -> Result<R, NothingThere> {
        let _busy = self.busy();
        let turn = self.0.turn.get();
        let looked = self.next(|arrived, from| look(&Message { from, arrived: &arrived }));
        // It keeps its turn.
        self.0.turn.set(turn);
        looked
    }

    /// Does something with the next message; the turn goes to the member after its sender.
    #[inline]
    fn next<R>(&self, with: impl FnOnce(Arrived<'_, Mailbag>, Rank) -> R) -> Result<R, NothingThere> {
        self.attend_if_there_is_news();
        let all = self.inbound();
        let mut at = self.0.turn.get();
        let mut looked = 0;
        while looked < all.len() {
            at = if at < all.len() { at } else { 0 };
            let inbound = &all[at];
            at += 1;
            looked += 1;
            let Some(mut queue) = inbound.queue() else { continue };
            match queue.peek() {
                Ok(Some(arrived)) if self.is_own(arrived.handler()) => {
                    let kind = arrived.handler();
                    drop(queue);
                    if !self.run_own(inbound, kind) {
                        self.violates(inbound, kind);
                    }
                    // The next one of the same sender.
                    (at, looked) = (at - 1, looked - 1);
                }
                Ok(Some(arrived)) => {
                    self.0.turn.set(at);
                    let done = with(arrived, inbound.from());
                    drop(queue);
                    if inbound.ended.get() {
                        self.nothing_there(inbound);
                    }
                    return Ok(done);
                }
                Ok(None) => {
                    drop(queue);
                    self.nothing_there(inbound);
                }
                Err(error) => self.unreadable(inbound, &error),
            }
        }
        Err(NothingThere)
    }

    /// Those who have sent something.
    #[inline]
    pub(crate) fn inbound(&self) -> Rc<[Rc<Inbound>]> {
        self.0.inbound.borrow().clone()
    }

    /// Runs the handlers of the messages that wait, at most 64 of each member. Returns how many. A message of a kind without a handler stays, and those of the same sender behind it.
    ///
    /// # Panics
    /// Those of handlers. Their messages were taken.
    pub fn poll(&self) -> usize {
        let _busy = self.busy();
        self.attend_if_there_is_news();
        let _more = Taken(self, self.taken());
        self.inbound().iter().map(|inbound| self.poll_one(inbound)).sum()
    }

    fn poll_one(&self, inbound: &Rc<Inbound>) -> usize {
        for done in 0..BATCH {
            let Some(mut queue) = inbound.queue() else { return done };
            let kind = match queue.peek() {
                Ok(Some(arrived)) => arrived.handler(),
                Ok(None) => {
                    drop(queue);
                    self.nothing_there(inbound);
                    return done;
                }
                Err(error) => {
                    self.unreadable(inbound, &error);
                    return done;
                }
            };
            let handled = match self.0.handlers.handlers.get(usize::from(kind)) {
                Some(Some(handler)) => {
                    self.0.taken.set(self.0.taken.get() + 1);
                    handler(self, inbound.from(), queue)
                }
                Some(None) => return done,
                None => false,
            };
            if !handled {
                self.violates(inbound, kind);
                return done;
            }
        }
        BATCH
    }

    /// A message of a kind that there is not, or that carries something else.
    #[cold]
    fn violates(&self, inbound: &Rc<Inbound>, kind: u16) {
        let what = match self.0.handlers.kinds.get(usize::from(kind)) {
            Some((name, carries)) => format!("a message {name:?} that does not carry {carries}"),
            None => format!("a message of kind {kind}, of which there are {}", self.0.handlers.kinds.len()),
        };
        self.forget(inbound, Event::Violation { rank: inbound.from(), what });
    }

    /// The same, by the member that has sent it.
    pub(crate) fn violates_by(&self, rank: Rank, kind: u16) {
        if let Some(inbound) = self.inbound().iter().find(|inbound| inbound.from() == rank) {
            self.violates(inbound, kind);
        }
    }

    /// All that a member has sent so far is taken.
    #[inline]
    fn nothing_there(&self, inbound: &Rc<Inbound>) {
        inbound.tell();
        if inbound.ended.get() && inbound.is_drained() {
            self.forget(inbound, Event::Ended { rank: inbound.from() });
        }
    }

    #[cold]
    fn unreadable(&self, inbound: &Rc<Inbound>, error: &Unreadable) {
        // Without memory here, it is tried again.
        if let Unreadable::Violation(violation) = error {
            self.forget(inbound, Event::Violation { rank: inbound.from(), what: violation.to_string() });
        }
    }

    /// Takes nothing more from a member.
    #[cold]
    fn forget(&self, inbound: &Rc<Inbound>, event: Event) {
        // A handler that polls may have come before: it is told once.
        if inbound.forgotten.replace(true) {
            return;
        }
        self.0.member.post.remove(&inbound.bell);
        let rest = self.inbound().iter().filter(|other| !Rc::ptr_eq(other, inbound)).cloned().collect();
        *self.0.inbound.borrow_mut() = rest;
        self.happened(event);
    }

    /// Waits until a message or an event is there, at most as long as `limit`; then [`poll`](Self::poll) or [`receive`](Self::receive). Spins first, as the group's pacing says, then blocks the kernel thread. Whether something is there.
    pub fn wait(&self, limit: Option<Duration>) -> bool {
        self.wait_unless(limit, || !self.0.events.borrow().is_empty())
    }

    /// Waits until a message is there, or `met` is true, which news of other members may make.
    pub(crate) fn wait_unless(&self, limit: Option<Duration>, met: impl Fn() -> bool) -> bool {
        let _busy = self.busy();
        for inbound in self.inbound().iter() {
            inbound.tell();
        }
        if self.blocks_a_thread() {
            return self.wait_as_a_thread(limit, met);
        }
        let there = || {
            self.attend_if_there_is_news();
            self.available() || met() || self.is_interrupted()
        };
        self.0.member.post.wait(self.0.pacing, self.until_it_asks(limit), there, || self.shrink())
    }

    /// Gives memory of segments back that is kept for the next ones. To be done where there is time for it.
    pub(crate) fn shrink(&self) {
        if !self.0.spare.get() {
            return;
        }
        let mut rest = false;
        for cell in &self.0.links {
            match cell.try_borrow_mut().as_deref_mut() {
                Ok(Outward::Open(link)) => rest |= !link.queue.shrink(),
                Ok(_) => {}
                Err(_) => rest = true,
            }
        }
        self.0.spare.set(rest);
    }

    /// Polls and waits until `done` is true, or another member ends or violates the protocol.
    ///
    /// # Errors
    /// What happened to another member, or that a message waits which has no handler: nobody takes it here, so it would be waited for, and with it what comes after it, for ever.
    pub fn run_until(&self, mut done: impl FnMut() -> bool) -> Result<(), RunError> {
        while !done() {
            if self.poll() == 0 {
                if let Some(event) = self.event() {
                    return Err(RunError::Lost(event));
                }
                self.check_handlers()?;
                if !done() {
                    self.wait(None);
                    if self.is_interrupted() {
                        return Err(RunError::Interrupted);
                    }
                }
            }
        }
        Ok(())
    }

    /// That no message is the next of its sender's which has no handler.
    pub(crate) fn check_handlers(&self) -> Result<(), RunError> {
        let _busy = self.busy();
        for inbound in self.inbound().iter() {
            let Some(mut queue) = inbound.queue() else { continue };
            let Ok(Some(arrived)) = queue.peek() else { continue };
            let kind = usize::from(arrived.handler());
            if let (Some(None), Some((name, _))) = (self.0.handlers.handlers.get(kind), self.0.handlers.kinds.get(kind)) {
                return Err(RunError::Unhandled { rank: inbound.from(), kind: name.clone() });
            }
        }
        Ok(())
    }

    /// What has happened to other members, one event at a time, in the order in which it was noticed. Only [`poll`](Self::poll), [`receive`](Self::receive) and [`peek`](Self::peek) notice.
    pub fn event(&self) -> Option<Event> {
        self.0.events.borrow_mut().pop_front()
    }

    /// Each member is lost once.
    fn happened(&self, event: Event) {
        let (Event::Ended { rank } | Event::Violation { rank, .. }) = event;
        if self.lost(rank).is_some() {
            return;
        }
        self.0.lost.borrow_mut().push(event.clone());
        self.0.events.borrow_mut().push_back(event);
        self.0.upcalls.wake();
    }

    /// Whether something is true of the next message of any sender.
    pub(crate) fn any_next(&self, is: impl Fn(Next) -> bool) -> bool {
        let _busy = self.busy();
        self.0.inbound.borrow().iter().filter_map(|inbound| inbound.next()).any(is)
    }

    /// Whether messages of a kind have a handler; those of no kind do, which forgets their sender.
    pub(crate) fn is_handled(&self, kind: u16) -> bool {
        !matches!(self.0.handlers.handlers.get(usize::from(kind)), Some(None))
    }

    /// What happened to a member, if it is lost.
    pub(crate) fn lost(&self, member: Rank) -> Option<Event> {
        let of = |event: &&Event| matches!(**event, Event::Ended { rank } | Event::Violation { rank, .. } if rank == member);
        self.0.lost.borrow().iter().find(of).cloned()
    }

    pub(crate) fn barriers(&self) -> &Barrier {
        &self.0.barrier
    }

    /// How many messages were taken by this member.
    pub fn taken(&self) -> u64 {
        let _busy = self.busy();
        self.0.taken.get()
    }

    /// Bytes of the buffer that messages to a member take which has not taken them yet; 0 while they go the direct way. Up to 2 MiB more are kept for those that come next, until this member sleeps.
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
        let of = |cell: &RefCell<Outward>| match cell.try_borrow().ok().as_deref() {
            Some(Outward::Open(link)) => link.queue.ever_buffered(),
            _ => 0,
        };
        self.0.links.iter().map(of).sum()
    }

    #[inline]
    pub(crate) fn attend_if_there_is_news(&self) {
        if self.0.member.has_news() {
            self.attend();
        }
    }

    /// Hears what the clerk has to tell.
    #[cold]
    fn attend(&self) {
        for news in self.0.member.news() {
            match news {
                News::Brought(inbound) => {
                    let more = self.inbound().iter().cloned().chain([Rc::from(inbound)]).collect();
                    *self.0.inbound.borrow_mut() = more;
                }
                News::Reads(rank, ringer) => {
                    if let Outward::Open(link) = &mut *self.0.links[rank].borrow_mut() {
                        link.reads(ringer);
                    }
                }
                News::Refuses(rank, why) => *self.0.links[rank].borrow_mut() = Outward::Closed(Why::Refused(why)),
                News::Ended(rank) => self.ended(rank),
            }
        }
    }

    fn ended(&self, rank: Rank) {
        let outward = &mut *self.0.links[rank].borrow_mut();
        // Who was left for another reason was left for that.
        if !matches!(outward, Outward::Closed(_)) {
            *outward = Outward::Closed(Why::Ended);
        }
        let inbound = self.inbound().iter().find(|inbound| inbound.from() == rank).cloned();
        match inbound {
            // The event comes after what it had sent.
            Some(inbound) => {
                inbound.ended.set(true);
                self.nothing_there(&inbound);
            }
            // It is told once.
            None => self.happened(Event::Ended { rank }),
        }
    }
}

/// Tells threads that wait when more was taken than before, also if a handler panics.
struct Taken<'a>(&'a Group, u64);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.0.taken() != self.1 {
            self.0.0.upcalls.wake();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.member.leave();
    }
}
