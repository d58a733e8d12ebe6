//! How a member waits: for a message, for an event, or until something has changed.

use crate::error::RunError;
use crate::group::Group;
use crate::waiters::Wants;
use std::cell::Cell;
use std::time::{Duration, Instant};

impl Group {
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
    /// What happened to another member, or that a message waits which has no handler: no one takes
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
}

/// What has ended a wait.
enum Woken {
    /// What was waited for, or a message.
    There,
    /// A queue was refused, and nothing else is there.
    Refused,
    ByTime,
}
