//! A member's group: taking, polling, waiting. Sending is in `sending`.

use crate::Rank;
use crate::announced::Notify;
use crate::barrier::Barrier;
use crate::error::{NothingThere, RunError};
use crate::flow::Supply;
use crate::forming::Joining;
use crate::inbound::{Inbound, Next};
use crate::kinds::{Handlers, Kind};
use crate::link::Refusal;
use crate::member::{Bringing, Member, News, Roster};
use crate::offers::Offers;
use crate::payload::{Payload, Reader};
use crate::sending::{Outward, Why};
use crate::upcalls::Upcalls;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_os::fault::{Point, point};
use upcall_sched::Pacing;
use upcall_sched::mask::Mask;
use upcall_shm::direct::{Arrived, Unreadable};
use upcall_shm::mailbag::Mailbag;
use upcall_shm::span::Span;

/// So many messages of one sender are run before the others have their turn.
const BATCH: usize = 64;

/// What happened to another member.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// It has ended, or has left the group. All that it had sent was taken before; what was sent to
    /// it may not have been.
    Ended {
        /// The member.
        rank: Rank,
    },
    /// It does not keep to the protocol, or names a kind of message that there is not, or carries
    /// what that kind does not (UDM: protection-violation). Nothing more is taken from it.
    Violation {
        /// The member.
        rank: Rank,
        /// How.
        what: String,
    },
}

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
    /// Those who have sent something; a new list for each change.
    pub(crate) inbound: RefCell<Rc<[Rc<Inbound>]>>,
    /// Whose turn is next.
    pub(crate) turn: Cell<usize>,
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
        joining: &Joining,
    ) -> Self {
        let barrier = Barrier::new(roster.members.len());
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
            changes: Cell::new(0),
            diversions: Cell::new(0),
            upcalls: Upcalls::new(joining.upcalls),
            mask: Mask::default(),
            notify: RefCell::default(),
            share: joining.share(),
            supply: Supply::new(joining.headroom),
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
        let glance =
            self.0.mask.is_on() || self.0.inbound.borrow().iter().any(|inbound| inbound.glance());
        glance && self.look()
    }

    #[cold]
    fn look(&self) -> bool {
        let _busy = self.busy();
        self.0.inbound.borrow().iter().any(|inbound| inbound.waits())
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
        let turn = self.0.turn.get();
        let looked = self
            .next(|arrived, inbound| look(&Message { from: inbound.from(), arrived: &arrived }));
        // It keeps its turn.
        self.0.turn.set(turn);
        looked
    }

    /// Does something with the next message; the turn goes to the member after its sender.
    #[inline]
    pub(crate) fn next<R>(
        &self,
        with: impl FnOnce(Arrived<'_, Mailbag>, &Rc<Inbound>) -> R,
    ) -> Result<R, NothingThere> {
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
                Ok(Some(arrived)) => {
                    self.0.turn.set(at);
                    let done = with(arrived, inbound);
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
        self.offer_again();
        Err(NothingThere)
    }

    /// Those who have sent something.
    #[inline]
    pub(crate) fn inbound(&self) -> Rc<[Rc<Inbound>]> {
        self.0.inbound.borrow().clone()
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
                    let _changed = self.blocks_a_thread().then(|| {
                        // A barrier waits until this message is taken, not until the handler ends.
                        self.0.upcalls.wake();
                        Changed(self)
                    });
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
            None => format!(
                "a message of kind {kind}, of which there are {}",
                self.0.handlers.kinds.len()
            ),
        };
        self.forget(inbound, Event::Violation { rank: inbound.from(), what });
    }

    /// The same, by the member that has sent it.
    pub(crate) fn violates_by(&self, rank: Rank, kind: u16) {
        let _busy = self.busy();
        if let Some(inbound) = self.inbound().iter().find(|inbound| inbound.from() == rank) {
            self.violates(inbound, kind);
        }
    }

    /// All that a member has sent so far is taken.
    #[inline]
    pub(crate) fn nothing_there(&self, inbound: &Rc<Inbound>) {
        inbound.tell();
        if inbound.ended.get() && inbound.is_drained() {
            self.forget(inbound, Event::Ended { rank: inbound.from() });
        }
    }

    #[cold]
    fn unreadable(&self, inbound: &Rc<Inbound>, error: &Unreadable) {
        // Without memory here, it is tried again.
        if let Unreadable::Violation(violation) = error {
            self.forget(
                inbound,
                Event::Violation { rank: inbound.from(), what: violation.to_string() },
            );
        }
    }

    /// Takes nothing more from a member.
    #[cold]
    pub(crate) fn forget(&self, inbound: &Rc<Inbound>, event: Event) {
        // A handler that polls may have come before: it is told once.
        if !inbound.forget() {
            return;
        }
        self.0.diversions.set(self.0.diversions.get() + inbound.diversions());
        if let Event::Violation { .. } = event {
            self.0.member.account.refuses();
        }
        self.0.member.post.remove(&inbound.doorbell);
        let rest =
            self.inbound().iter().filter(|other| !Rc::ptr_eq(other, inbound)).cloned().collect();
        *self.0.inbound.borrow_mut() = rest;
        self.happened(event);
    }

    /// How often messages for this member went over to a buffer, as far as it has come to them: a
    /// sender found no room for longer than the [atomicity timeout](Joining::timeout), in one of
    /// this member's [sections](Group::atomic) or because it did not poll (UDM's
    /// atomicity-timeout). Nothing is lost by that; who sees it grow keeps messages waiting.
    pub fn diversions(&self) -> u64 {
        let _busy = self.busy();
        self.0.diversions.get()
            + self.inbound().iter().map(|inbound| inbound.diversions()).sum::<u64>()
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
        for inbound in self.inbound().iter() {
            inbound.tell();
        }
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
        for inbound in
            self.inbound().iter().filter(|inbound| from.is_none_or(|from| inbound.from() == from))
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
                    self.0.barrier.brought(inbound.from(), inbound.steps.clone());
                    let more = self.inbound().iter().cloned().chain([Rc::from(inbound)]).collect();
                    *self.0.inbound.borrow_mut() = more;
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
        let inbound = self.inbound().iter().find(|inbound| inbound.from() == rank).cloned();
        match inbound {
            // The event comes after what it had sent.
            Some(inbound) => {
                inbound.ended.set(true);
                self.nothing_there(&inbound);
                // A barrier waits for it no longer, also if its messages are still to be taken.
                self.0.upcalls.wake();
            }
            // It is told once.
            None => self.happened(Event::Ended { rank }),
        }
    }
}

/// The messages that a thread waits for, of those that no upcall takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wants {
    Any,
    /// Those that a poll takes, and those of this member.
    Of(Rank),
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
