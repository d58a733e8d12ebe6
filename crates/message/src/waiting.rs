//! How a member waits: for a message, for an event, or for a change.

use crate::error::RunError;
use crate::event::Event;
use crate::group::Group;
use crate::looks::LinkWaitEnd;
use crate::proto::receiving;
use crate::receiving::Driver;
use crate::waiters::Wants;
use std::cell::Cell;
use std::time::{Duration, Instant};
use upcall_net::driver::{LinkPolling, PolledLinks};
use upcall_sched::Pacing;
use upcall_sched::post::PostPoll;

/// Number of looks into memory for each look at the links, while a wait polls them.
const LOOKS: u32 = 8;

impl Group {
    /// Waits at most `limit` until a message or an event is there. Returns `true` if one is.
    ///
    /// Spins first, as the group's pacing requires, then blocks the kernel thread. While it spins,
    /// it also reads the connections of this process to other hosts. Call
    /// [`poll`](Self::poll) or [`receive`](Self::receive) afterwards.
    pub fn wait(&self, limit: Option<Duration>) -> bool {
        self.wait_since(limit, self.changes())
    }

    /// Like [`wait`](Self::wait), and also ends when the count of [changes](Self::changes) differs
    /// from `changes`.
    pub(crate) fn wait_since(&self, limit: Option<Duration>, changes: u64) -> bool {
        let has_come =
            || !(self.0.events.borrow().is_empty() && self.0.petitions.borrow().is_empty());
        self.wait_unless(limit, changes, Wants::Any, has_come)
    }

    /// Waits until a wanted message is there, or the count of changes differs from `changes`, or
    /// `met` is true, which events of other members can make true.
    ///
    /// # Why no wait misses its end
    /// Each handler on a worker, in an interrupt or at a safe point counts a change at its own end,
    /// when it has changed what a thread waits for; on a virtual processor it wakes the threads
    /// after that. A thread reads the count, checks, and then waits with that count. Either it has
    /// seen the change, or each check of the wait sees another count. No thread runs between the
    /// last check and the ticket, because all of them have one kernel thread. [`wait`](Self::wait)
    /// reads the count when it is called. So an interrupt between the caller's check and that call
    /// is missed, unless the caller holds a [section](Self::atomic). [`run_until`](Self::run_until)
    /// reads the count before it checks, and does not wait if a message was taken during the check.
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
        receiving::before_wait(&Driver(self));
        // The last check ends the wait. A message that it finds may be taken before this returns.
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
            let limit = self.until_it_asks(limit);
            if self.0.member.bridge.get().is_some() {
                self.wait_for_links(limit, there)
            } else {
                let after = self.kept_for().unwrap_or_default();
                let rest = (after, || self.shrink());
                self.0.member.post.wait_and_rest(self.0.pacing, limit, there, rest)
            }
        };
        match is_there {
            false => Woken::ByTime,
            true if only_refused.get() => Woken::Refused,
            true => Woken::There,
        }
    }

    /// Waits in a group with members on other hosts.
    ///
    /// Polls first ([`LinkLooks`](crate::looks::LinkLooks)). During that time this thread reads the
    /// links in place of the driver's thread, so a message that arrives soon costs no wake. After
    /// that they wake the driver's thread again, and [`upcall_net::driver`] argues that nothing is
    /// left unread.
    fn wait_for_links(&self, limit: Option<Duration>, there: impl Fn() -> bool) -> bool {
        if there() {
            return true;
        }
        let (post, looks) = (&self.0.member.post, &self.0.looks);
        let begun = Instant::now();
        let ends = limit.and_then(|limit| begun.checked_add(limit));
        let has_come = match self.poll_links(begun, ends, &there) {
            PostPoll::Found => true,
            PostPoll::OutOfTime => return there(),
            PostPoll::Nothing => {
                let left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
                let rest = (self.kept_for().unwrap_or_default(), || self.shrink());
                post.wait_and_rest(Pacing::Sleep, left, there, rest)
            }
        };
        looks.waited(
            begun.elapsed(),
            if has_come { LinkWaitEnd::Came } else { LinkWaitEnd::OutOfTime },
        );
        has_come
    }

    /// Polls the links until `there` is true, or nothing has arrived for long enough. While
    /// something arrives, it goes on: that may be a long message.
    fn poll_links(
        &self,
        begun: Instant,
        ends: Option<Instant>,
        there: impl Fn() -> bool,
    ) -> PostPoll {
        let looks = &self.0.looks;
        let budget = looks.next(self.0.pacing);
        let links = (budget > Duration::ZERO).then(LinkPolling::begin).flatten();
        let (mut count, mut polled) = (0_u32, Duration::ZERO);
        loop {
            let (mut read, before) = (PolledLinks::Nothing, polled);
            let found = self.0.member.post.poll(budget, ends, || {
                // A host that floods this process holds the thread up for this time and one look.
                // After that the driver's thread reads.
                if count.is_multiple_of(LOOKS)
                    && let Some(links) = &links
                    && begun.elapsed().saturating_sub(before) < budget
                {
                    match links.round() {
                        PolledLinks::Nothing => {}
                        PolledLinks::Something => read = PolledLinks::Something,
                        PolledLinks::Elsewhere => {
                            read = PolledLinks::Elsewhere;
                            std::thread::yield_now();
                        }
                    }
                }
                count = count.wrapping_add(1);
                there()
            });
            polled = begun.elapsed();
            match (found, read) {
                (PostPoll::Found, _) => looks.found(),
                (PostPoll::Nothing, PolledLinks::Nothing) => looks.polled_in_vain(polled - before),
                (PostPoll::Nothing, _) if !looks.is_over(self.0.pacing, polled) => continue,
                (PostPoll::Nothing | PostPoll::OutOfTime, _) => {}
            }
            return found;
        }
    }

    /// Polls and waits until `done` is true, or another member ends or violates the protocol, or
    /// two others lose each other.
    ///
    /// # Errors
    /// The event of another member, or [`RunError::Unhandled`] if a message without a handler
    /// waits: no code takes it here, so it and the messages behind it would wait for ever.
    pub fn run_until(&self, mut done: impl FnMut() -> bool) -> Result<(), RunError> {
        while !done() {
            if self.poll() == 0 {
                if let Some(event) = self.event() {
                    return Err(match event {
                        Event::Parted { one, other } => RunError::Parted { one, other },
                        lost => RunError::Lost(lost),
                    });
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

    /// Number of changes that a waiting thread did not make itself. To be read before the thread
    /// checks for a change, and then waits.
    pub(crate) fn changes(&self) -> u64 {
        let _busy = self.busy();
        self.0.changes.get()
    }

    /// Counts a change, and wakes the other threads of this virtual processor that may wait for it.
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
}

/// The reason why a wait has ended.
enum Woken {
    /// The awaited condition holds, or a message is there.
    There,
    /// A queue was refused, and nothing else is there.
    Refused,
    ByTime,
}
