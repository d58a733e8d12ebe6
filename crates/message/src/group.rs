//! A member's group: taking, polling, waiting. Sending is in `sending`.

use crate::Rank;
use crate::error::{NothingThere, RunError};
use crate::event::Event;
use crate::inbound::{Attached, Inbound};
use crate::kinds::{Handlers, Kind};
use crate::link::{Outward, Why};
use crate::member::{Bringing, Member, News, Refusal, Roster};
use crate::payload::{Payload, Reader};
use crate::proto::offers::Offers;
use crate::proto::receive_queue::{Looking, Next};
use crate::proto::receiving::{self, Forgotten, Ran, Receiving, Senders};
use crate::reports::Barrier;
use crate::supply::Supply;
use crate::waiters::{Upcalls, Wants};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_os::fault::{Point, point};
use upcall_os::headroom::Headroom;
use upcall_sched::Pacing;
use upcall_sched::mask::Mask;
use upcall_shm::direct::Arrived;
use upcall_shm::mailbag::Mailbag;
use upcall_shm::span::Span;

/// How a member is to wait, and what it may buffer.
pub(crate) struct Settings {
    pub(crate) pacing: Pacing,
    pub(crate) timeout: Option<Duration>,
    /// Handlers run by themselves.
    pub(crate) upcalls: bool,
    /// Maximum number of bytes that it may buffer.
    pub(crate) share: u64,
    pub(crate) headroom: fn() -> Option<Headroom>,
}

/// Calls a thread to a safe point soon.
pub(crate) type Notify = Arc<dyn Fn() + Send + Sync>;

/// A process's membership in a group; a clone is the same membership. It belongs to the kernel
/// thread that has joined. When the last clone is dropped the process leaves: what it has sent
/// still arrives, and the others learn of it.
#[derive(Clone)]
pub struct Group(pub(crate) Rc<Inner>);

/// What all clones share.
pub(crate) struct Inner {
    pub(crate) member: Arc<Member>,
    pub(crate) roster: Arc<Roster>,
    pub(crate) handlers: Handlers,
    pacing: Pacing,
    pub(crate) timeout: Option<Duration>,
    /// By rank.
    pub(crate) links: Box<[RefCell<Outward>]>,
    pub(crate) senders: Senders<Mailbag, Attached>,
    events: RefCell<VecDeque<Event>>,
    /// What has happened so far, one event for each member that is lost.
    lost: RefCell<Vec<Event>>,
    barrier: Barrier,
    pub(crate) taken: Cell<u64>,
    /// Counts what changes behind the back of a thread that waits: on a virtual processor each
    /// handler that has run and each message that was received; elsewhere each handler that has
    /// run in an interrupt or at a safe point.
    pub(crate) changes: Cell<u64>,
    /// By those of whom nothing is taken any more.
    diversions: Cell<u64>,
    pub(crate) upcalls: Upcalls,
    /// What keeps interrupts and upcalls off.
    pub(crate) mask: Mask,
    /// In place of interrupts: who is told. Changes only while they are off.
    pub(crate) notify: RefCell<Option<Notify>>,
    /// So many bytes it may buffer.
    pub(crate) share: u64,
    pub(crate) supply: Supply,
    /// When it diverted last, if it may have memory of segments that it could give back.
    pub(crate) spare: Cell<Option<Instant>>,
    pub(crate) offers: Offers,
    /// How many sends that wait for room are running handlers, one within the other.
    pub(crate) nested: Cell<u32>,
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
        T::read(&mut self.reader())
    }

    #[inline]
    pub(crate) fn reader(&self) -> Reader<'_, '_> {
        Reader::new(self.arrived)
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

    /// Copies a part of what it carries, from byte `at` on; `None` if it does not reach so far.
    /// What is read twice may differ, if its sender is hostile.
    pub fn copy_out(&self, at: usize, to: &mut [u8]) -> Option<()> {
        self.arrived.payload().copy_out(at, to)
    }

    /// What it carries, where it lies, uninterpreted: to be written to a descriptor, say, without a
    /// copy in this process. Its sender can still write there: what is to be checked is copied
    /// first, and the copy checked.
    pub fn payload(&self) -> Span<'_> {
        self.arrived.payload()
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
        handlers: Handlers,
        settings: Settings,
    ) -> Self {
        let barrier = Barrier::new(roster.members.len());
        let links = roster.members.iter().map(|_| RefCell::new(Outward::Unopened)).collect();
        Self(Rc::new(Inner {
            member,
            roster,
            handlers,
            pacing: settings.pacing,
            timeout: settings.timeout,
            links,
            senders: Senders::default(),
            events: RefCell::default(),
            lost: RefCell::default(),
            barrier,
            taken: Cell::new(0),
            changes: Cell::new(0),
            diversions: Cell::new(0),
            upcalls: Upcalls::new(settings.upcalls),
            mask: Mask::default(),
            notify: RefCell::default(),
            share: settings.share,
            supply: Supply::new(settings.headroom),
            spare: Cell::new(None),
            offers: Offers::default(),
            nested: Cell::new(0),
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

    /// A member's process, by the kernel's word when the group formed. `None` if there is no such
    /// member, or its process is not visible in this PID namespace.
    pub fn process(&self, rank: Rank) -> Option<u32> {
        (rank < self.size()).then(|| self.0.roster.pid(rank)).filter(|pid| *pid != 0)
    }

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
            let taken = take(&Message { from: inbound.from(), arrived: &arrived });
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
        let looked = self
            .next(|arrived, inbound| look(&Message { from: inbound.from(), arrived: &arrived }));
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

    /// How often messages for this member went over to a buffer, as far as it has come to them: a
    /// sender found no room for longer than the [atomicity timeout](crate::GroupBuilder::timeout), in one of
    /// this member's [sections](Group::atomic) or because it did not poll (UDM's
    /// atomicity-timeout). Nothing is lost by that; who sees it grow keeps messages waiting.
    pub fn diversions(&self) -> u64 {
        let _busy = self.busy();
        self.0.diversions.get()
            + self.0.senders.all().iter().map(|inbound| inbound.diversions()).sum::<u64>()
    }

    /// Waits until a message or an event is there, at most as long as `limit`; then
    /// [`poll`](Self::poll) or [`receive`](Self::receive). Spins first, as the group's pacing says,
    /// then blocks the kernel thread. Whether something is there.
    pub fn wait(&self, limit: Option<Duration>) -> bool {
        self.wait_since(limit, self.changes())
    }

    /// The same, if nothing has [changed](Self::changes) since.
    pub(crate) fn wait_since(&self, limit: Option<Duration>, changes: u64) -> bool {
        self.wait_unless(limit, changes, Wants::Any, || !self.0.events.borrow().is_empty())
    }

    /// How often something has changed behind the back of a thread that waits: to be asked before
    /// that looks at what may change, and then waits.
    pub(crate) fn changes(&self) -> u64 {
        let _busy = self.busy();
        self.0.changes.get()
    }

    /// Another thread of this virtual processor may wait for what has changed.
    #[inline]
    pub(crate) fn has_changed(&self) {
        if self.blocks_a_thread() {
            self.count_change();
            self.0.upcalls.wake();
        }
    }

    pub(crate) fn count_change(&self) {
        self.0.changes.set(self.0.changes.get() + 1);
    }

    /// Waits until a wanted message is there, or something has changed since `changes` was asked
    /// for, or `met` is true, which news of other members may make.
    ///
    /// # Why no wait misses its end
    /// Each handler on a worker, in an interrupt or at a safe point counts a change at its own end,
    /// when it has changed what a thread waits for; on a virtual processor it wakes the threads
    /// after that. A thread that has asked for the count, looked, and then waits by it has either
    /// seen the change, or each look of the wait sees another count. No thread runs between the
    /// last look and the ticket, because all of them have one kernel thread. [`wait`](Self::wait)
    /// asks when it is called. So an interrupt between the caller's look and that call is missed,
    /// unless the caller holds a [section](Self::atomic). [`run_until`](Self::run_until) asks
    /// before it looks, and does not wait if a message was taken while it looked.
    pub(crate) fn wait_unless(
        &self,
        limit: Option<Duration>,
        changes: u64,
        wants: Wants,
        met: impl Fn() -> bool,
    ) -> bool {
        let ends = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            let offer = self.offer_again();
            let left = ends.map(|ends| ends.saturating_duration_since(Instant::now()));
            let is_cut = offer.is_some_and(|offer| left.is_none_or(|left| offer < left));
            match self.wait_once(if is_cut { offer } else { left }, changes, wants, &met) {
                Woken::There => return true,
                // From now on the wait is no longer than until the offer.
                Woken::Refused => {}
                Woken::ByTime if is_cut => {}
                Woken::ByTime => return false,
            }
        }
    }

    fn wait_once(
        &self,
        limit: Option<Duration>,
        changes: u64,
        wants: Wants,
        met: impl Fn() -> bool,
    ) -> Woken {
        let _busy = self.busy();
        let known = self.0.offers.next();
        self.0.senders.tell();
        // The last look ends the wait. What it finds may be taken before this returns.
        let only_refused = Cell::new(false);
        let is_there = if self.blocks_a_thread() {
            let met = || {
                only_refused.set(false);
                met() || {
                    only_refused.set(self.0.offers.are_sooner_than(known));
                    only_refused.get()
                }
            };
            self.wait_as_a_thread(limit, changes, wants, met)
        } else {
            let there = || {
                self.attend_if_there_is_news();
                only_refused.set(false);
                self.has_wanted(wants)
                    || self.changes() != changes
                    || met()
                    || self.is_interrupted()
                    || {
                        only_refused.set(self.0.offers.are_sooner_than(known));
                        only_refused.get()
                    }
            };
            let after = self.kept_for().unwrap_or_default();
            self.0.member.post.wait_and_rest(
                self.0.pacing,
                self.until_it_asks(limit),
                there,
                (after, || self.shrink()),
            )
        };
        match is_there {
            false => Woken::ByTime,
            true if only_refused.get() => Woken::Refused,
            true => Woken::There,
        }
    }

    /// Polls and waits until `done` is true, or another member ends or violates the protocol.
    ///
    /// # Errors
    /// What happened to another member, or that a message waits which has no handler: nobody takes
    /// it here, so it would be waited for, and with it what comes after it, for ever.
    pub fn run_until(&self, mut done: impl FnMut() -> bool) -> Result<(), RunError> {
        while !done() {
            if self.poll() == 0 {
                if let Some(event) = self.event() {
                    return Err(RunError::Lost(event));
                }
                self.check_handlers(None)?;
                let (changes, taken) = (self.changes(), self.taken());
                // A handler that runs within `done` can make true what `done` has found false.
                if !done() && self.taken() == taken {
                    self.wait_since(None, changes);
                    if self.is_interrupted() {
                        return Err(RunError::Interrupted);
                    }
                }
            }
        }
        Ok(())
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

    /// What has happened to other members, one event at a time, in the order in which it was
    /// noticed. Only [`poll`](Self::poll), [`receive`](Self::receive) and [`peek`](Self::peek)
    /// notice.
    pub fn event(&self) -> Option<Event> {
        self.0.events.borrow_mut().pop_front()
    }

    /// Each member is lost once.
    pub(crate) fn happened(&self, event: Event) {
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
        self.0.senders.all().iter().filter_map(|inbound| inbound.next()).any(is)
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

    #[inline]
    pub(crate) fn attend_if_there_is_news(&self) {
        if self.0.member.has_news() {
            self.hear();
        }
    }

    /// Hears what the clerk has to tell.
    #[cold]
    fn hear(&self) {
        for news in self.0.member.news() {
            match news {
                News::Brought(inbound) => {
                    self.0.barrier.brought(inbound.from(), inbound.with.steps.clone());
                    self.0.senders.add(Rc::from(inbound));
                }
                News::Reads(bringing, ringer) => {
                    if let Outward::Open(link) = &mut *self.0.links[bringing.rank].borrow_mut()
                        && link.is_brought_by(bringing)
                    {
                        link.reads(ringer);
                    }
                }
                News::Refuses(bringing, refusal) => self.refused(bringing, refusal),
                News::Unheard(rank) => {
                    if let Outward::Open(link) = &*self.0.links[rank].borrow() {
                        link.hear(&self.0.member);
                    }
                }
                News::Ended(rank) => self.ended(rank),
            }
        }
    }

    /// A member that lives does not read this one's queue.
    fn refused(&self, bringing: Bringing, refusal: Refusal) {
        let outward = &mut *self.0.links[bringing.rank].borrow_mut();
        // If it is closed, the reason for which it was closed stands.
        let Outward::Open(link) = outward else { return };
        match refusal {
            Refusal::ForNow(_) => {
                if let Some(due) = link.refuse(bringing, Instant::now()) {
                    self.0.offers.refused(due);
                    self.0.upcalls.wake();
                }
            }
            Refusal::ForGood(why) if link.is_brought_by(bringing) => {
                *outward = Outward::Closed(Why::Refused(why))
            }
            Refusal::ForGood(_) => {}
        }
    }

    fn ended(&self, rank: Rank) {
        let outward = &mut *self.0.links[rank].borrow_mut();
        // Who was left for another reason was left for that.
        if !matches!(outward, Outward::Closed(_)) {
            *outward = Outward::Closed(Why::Ended);
        }
        // The event comes once, after the messages that the member had sent.
        if receiving::ended(&Driver(self), rank) {
            // A barrier waits for it no longer, also if its messages are still to be taken.
            self.0.upcalls.wake();
        } else {
            self.happened(Event::Ended { rank });
        }
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
    fn run(&self, inbound: &Rc<Inbound>, kind: u16, queue: Looking<'_, Mailbag>) -> Ran {
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

/// What has ended a wait.
enum Woken {
    /// What was waited for, or a message.
    There,
    /// A queue was refused, and nothing else is there.
    Refused,
    ByTime,
}

/// The end of a handler, also if it panics.
struct Changed<'a>(&'a Group);

impl Drop for Changed<'_> {
    fn drop(&mut self) {
        self.0.has_changed();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.member.leave();
    }
}
