//! Upcalls: handlers that run by themselves at safe points of the scheduler, and the sections in
//! which none does.
//!
//! Source: UDM, sections 2 and 3.1 (D4 to D6 here). There an arrival interrupts the running thread,
//! unless that thread has disabled interrupts. Here the virtual processor on which the member has
//! joined finds it, at its safe points (`upcall_sched::arrivals`), and handlers run on a worker: a
//! handler that must block becomes a thread at no further cost, and the next one runs while it
//! blocks. All of it happens on one kernel thread, so a section is only a count, and needs no
//! fence.
//!
//! Code that finds a handler to run in a section leaves the message, and a note that it did. The
//! end of the section checks only that note: a message that was not found yet is found at the next
//! safe point, as it would be without the section (the paper's hardware has two bits for the same).
//!
//! A send that waits for room is such a safe point. Where handlers do not run by themselves it
//! polls, so that members that flood each other make progress. A handler that sends, and waits, is
//! then on the same stack, to a bounded depth.
//!
//! A section that keeps a message waiting for long loses the direct path (D8): its sender finds no
//! room, waits for the atomicity timeout, and diverts ([`flow`](crate::flow)). The section goes on
//! unharmed.

use crate::Group;
use crate::group::Membership;
use crate::member::Member;
use crate::proto::receive_queue::NextMessage;
use crate::waiters::Wants;
use std::io;
use std::marker::PhantomData;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_sched::Attended;
use upcall_sched::arrivals::Arrivals;
use upcall_sched::post::Post;
use upcall_thread::{Found, Waited};

/// Maximum depth of handlers that run within sends that wait for room, and that send and wait
/// themselves. A user-level thread's stack of 64 KiB has room for that many.
const DEEPEST: u32 = 16;

/// A section in which no handler runs by itself (UDM's `beginatom`, and at its end `endatom`).
///
/// Messages that arrive wait, and can be polled for. Sections may be nested. At the end of the
/// outermost section the handlers run that were kept from it, on other threads of the same virtual
/// processor, before the caller goes on. The section itself is no safe point: a message that comes
/// in a section without safe points waits for the next one.
///
/// Takes about a nanosecond.
#[must_use = "the section ends when this is dropped"]
#[derive(Debug)]
pub struct Atomic<'a> {
    group: &'a Group,
    /// Ties the section to the thread on which it was begun.
    here: PhantomData<*const ()>,
}

impl Drop for Atomic<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.group.0.mask.end_section() {
            self.group.make_good();
        }
    }
}

impl Group {
    /// Begins a section in which no handler runs unless the caller polls.
    #[inline]
    pub fn atomic(&self) -> Atomic<'_> {
        self.0.mask.begin_section();
        Atomic { group: self, here: PhantomData }
    }

    /// Does the work that sections have deferred.
    #[cold]
    fn make_good(&self) {
        self.0.mask.make_good();
        if self.available() {
            self.safe_point();
        }
        // The end of this operation serves interrupts.
        drop(self.busy());
    }

    /// Returns a guard for the section that was begun last, if its own guard was forgotten.
    pub(crate) fn begun(&self) -> Option<Atomic<'_>> {
        (self.0.mask.sections() > 0).then(|| Atomic { group: self, here: PhantomData })
    }

    /// Makes the caller's virtual processor, if any, probe for messages.
    pub(crate) fn attend_here(&self) -> io::Result<()> {
        // A member without upcalls polls, or blocks its kernel thread.
        if Attended::check().is_err() && !self.0.upcalls.are_wanted() {
            return Ok(());
        }
        let hook = GroupHook { group: Rc::downgrade(&self.0), member: self.0.member.clone() };
        if let Some(attended) = Attended::begin(Rc::new(hook))? {
            let _ = self.0.upcalls.attended.set(attended);
        }
        Ok(())
    }

    /// Returns `true` if handlers run by themselves now.
    #[inline]
    fn upcalls_are_enabled(&self) -> bool {
        self.0.mask.sections() == 0 && self.0.upcalls.are_on()
    }

    /// Runs handlers on other threads, if any are due.
    #[cold]
    pub(crate) fn safe_point(&self) {
        if self.upcalls_are_enabled() && self.blocks_a_thread() && !std::thread::panicking() {
            upcall_thread::safe_point();
        }
    }

    /// Runs the handlers of the messages that wait here, for a sender that waits for room: the
    /// receiver may be waiting for room here. Runs none in a section.
    pub(crate) fn run_handlers_meanwhile(&self) {
        self.offer_again();
        if self.0.upcalls.are_on() && self.blocks_a_thread() {
            return self.safe_point();
        }
        // The handlers below this one on the stack have taken their messages, which makes room for
        // their senders.
        self.0.senders.tell();
        let nested = &self.0.nested;
        if self.0.mask.sections() > 0 || nested.get() >= DEEPEST || std::thread::panicking() {
            return;
        }
        nested.set(nested.get() + 1);
        let _nested = Nested(self);
        self.poll();
    }

    /// Returns `true` if a wait here blocks only a user-level thread.
    #[inline]
    pub(crate) fn blocks_a_thread(&self) -> bool {
        self.0.upcalls.attended.get().is_some_and(Attended::is_here)
    }

    /// Waits on the virtual processor for messages that upcalls do not take, until the count of
    /// changes differs from `changes`, or until `met` is true, which is checked last.
    pub(crate) fn wait_as_a_thread(
        &self,
        limit: Option<Duration>,
        changes: u64,
        wants: Wants,
        met: impl Fn() -> bool,
    ) -> bool {
        let ends = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            self.attend_if_there_is_news();
            if self.changes() != changes || self.has_wanted(wants) || met() {
                return true;
            }
            let waiting = &self.0.upcalls.waiting;
            if upcall_thread::block_until(ends, |ticket| waiting.borrow_mut().push((ticket, wants)))
                == Waited::TimedOut
            {
                waiting.borrow_mut().retain(|(ticket, _)| !ticket.is_over());
                let is_there = match wants {
                    Wants::Any => self.available(),
                    Wants::Of(_) => self.has_wanted(wants),
                };
                return self.changes() != changes || is_there || met();
            }
        }
    }

    /// Returns `true` if an upcall would take the next message of a sender.
    fn is_due(&self) -> bool {
        if !self.0.upcalls.are_on() || !self.available() {
            return false;
        }
        if self.0.mask.sections() > 0 {
            self.0.mask.defer();
            return false;
        }
        self.any_next(|next| self.is_claimed(next))
    }

    /// Returns `true` if a message waits that no upcall takes now, but a thread with `wants` does.
    pub(crate) fn has_wanted(&self, wants: Wants) -> bool {
        if !self.available() {
            return false;
        }
        // A group that outlives its virtual processor is polled.
        let polls = !self.upcalls_are_enabled() || !self.blocks_a_thread();
        match wants {
            Wants::Any => polls || self.any_next(|next| !self.is_claimed(next)),
            Wants::Of(from) => {
                self.0.senders.all().iter().filter(|inbound| inbound.waits()).any(|inbound| {
                    match inbound.next() {
                        Some(next) if !self.is_claimed(next) => inbound.from() == from,
                        // Behind many words that lead on, nothing is seen: a poll goes on there.
                        Some(_) | None => polls,
                    }
                })
            }
        }
    }

    /// Returns `true` if a thread waits for a message or report that is there.
    fn is_waited_for(&self) -> bool {
        let waiting = &self.0.upcalls.waiting;
        if waiting.borrow().is_empty() {
            return false;
        }
        // The list is not borrowed during a check: that can take in a part of a collective
        // operation, which wakes all that wait.
        let wants = |at: usize| waiting.borrow().get(at).map(|(_, wants)| *wants);
        self.barriers().has_reports() || (0..).map_while(wants).any(|wants| self.has_wanted(wants))
    }

    /// Returns `true` if upcalls take this: a message with a handler, or an invalid one, whose
    /// sender is forgotten.
    pub(crate) fn is_claimed(&self, next: NextMessage) -> bool {
        match next {
            NextMessage::Message(kind) => self.is_handled(kind),
            NextMessage::Unreadable => true,
        }
    }
}

/// The end of a poll within a send, even if a handler panics.
struct Nested<'a>(&'a Group);

impl Drop for Nested<'_> {
    fn drop(&mut self) {
        let nested = &self.0.0.nested;
        nested.set(nested.get() - 1);
    }
}

/// A group, as a virtual processor probes it.
struct GroupHook {
    group: Weak<Membership>,
    member: Arc<Member>,
}

impl Arrivals for GroupHook {
    fn look(&self) -> Found {
        let Some(group) = self.group.upgrade().map(Group) else { return Found::Nothing };
        let changes = group.0.changes.get();
        group.attend_if_there_is_news();
        group.offer_again();
        if group.is_waited_for() {
            group.barriers().look();
            group.0.upcalls.wake();
            return Found::Woke;
        }
        if group.is_due() {
            Found::Work
        } else if group.0.changes.get() != changes {
            // The check has taken in a part of a collective operation, and woken all that wait.
            Found::Woke
        } else {
            Found::Nothing
        }
    }

    fn waits(&self) -> bool {
        let Some(group) = self.group.upgrade().map(Group) else { return false };
        let changes = group.0.changes.get();
        let waits = self.member.has_news() || group.is_due() || group.is_waited_for();
        waits || group.0.changes.get() != changes
    }

    fn falls_asleep(&self) {
        if let Some(group) = self.group.upgrade().map(Group) {
            group.shrink();
        }
    }

    fn serve(&self) {
        if let Some(group) = self.group.upgrade().map(Group) {
            group.poll();
        }
    }

    fn post(&self) -> &Post {
        &self.member.post
    }
}
