//! Upcalls: handlers that run by themselves at safe points of the scheduler, and the sections in
//! which none does.
//!
//! Source: UDM, sections 2 and 3.1 (D4 to D6 here). There an arrival interrupts the running thread,
//! unless that has disabled interrupts. Here it is found by the virtual processor on which the
//! member has joined, at its safe points (`upcall_sched::arrivals`), and handlers run on a
//! worker: one that must block is a thread by that alone, and the next one runs meanwhile. All of
//! it happens on one kernel thread, so a section is a count and no more, and needs no fence.
//! Whoever finds something to run in a section leaves it, and a note that it did; the end of the
//! section looks at that note only: what nobody has come to yet is found at the next safe point, as
//! it would be without the section (the paper's hardware has two bits for the same).
//!
//! A send that waits for room is such a safe point. Where handlers do not run by themselves it
//! polls, so that members that flood each other go on; a handler that sends, and waits, is then on
//! the same stack, to a depth that is bounded.
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

/// Greatest depth of handlers that run within sends that wait for room, whose handlers send, and
/// wait. A user-level thread's stack of 64 KiB has room for so many.
const DEEPEST: u32 = 16;

/// A section in which no handler runs by itself (UDM's `beginatom`, and at its end `endatom`): what
/// arrives waits, and can be polled for. Sections may be nested. At the end of the outermost one
/// the handlers run that were kept from it, on other threads of the same virtual processor, before
/// the caller goes on. A section is no safe point itself: what has come in one without any waits
/// for the next.
///
/// Takes about a nanosecond.
#[must_use = "the section ends when this is dropped"]
#[derive(Debug)]
pub struct Atomic<'a> {
    group: &'a Group,
    /// Of the thread that it was begun on.
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
    /// Begins a section in which no handler runs unless this polls.
    #[inline]
    pub fn atomic(&self) -> Atomic<'_> {
        self.0.mask.begin_section();
        Atomic { group: self, here: PhantomData }
    }

    /// Does what sections have kept from being done.
    #[cold]
    fn make_good(&self) {
        self.0.mask.make_good();
        if self.available() {
            self.safe_point();
        }
        // Of interrupts.
        drop(self.busy());
    }

    /// The section that was begun last, if it was not kept.
    pub(crate) fn begun(&self) -> Option<Atomic<'_>> {
        (self.0.mask.sections() > 0).then(|| Atomic { group: self, here: PhantomData })
    }

    /// Has the virtual processor that this runs on look for messages, if it runs on one.
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

    /// Whether handlers run by themselves now.
    #[inline]
    fn upcalls_are_enabled(&self) -> bool {
        self.0.mask.sections() == 0 && self.0.upcalls.are_on()
    }

    /// Runs handlers on other threads, if any are to run.
    #[cold]
    pub(crate) fn safe_point(&self) {
        if self.upcalls_are_enabled() && self.blocks_a_thread() && !std::thread::panicking() {
            upcall_thread::safe_point();
        }
    }

    /// Runs the handlers of the messages that wait here, for a sender that waits for room: the
    /// receiver may wait for room here. In a section, none.
    pub(crate) fn run_handlers_meanwhile(&self) {
        self.offer_again();
        if self.0.upcalls.are_on() && self.blocks_a_thread() {
            return self.safe_point();
        }
        // The handlers below this one on the stack have taken their messages, which is room for
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

    /// Whether a wait here blocks a user-level thread only.
    #[inline]
    pub(crate) fn blocks_a_thread(&self) -> bool {
        self.0.upcalls.attended.get().is_some_and(Attended::is_here)
    }

    /// Waits, on the virtual processor, for what upcalls do not take, until something has changed
    /// since `changes` was asked for, or until `met` is true, which is asked last.
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

    /// Whether a message is the next of its sender's which an upcall would take.
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

    /// Returns `true` if a message waits that no upcall takes now, and a thread that `wants` some
    /// does.
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
                        // Nothing is seen behind many words that lead on: a poll goes on there.
                        Some(_) | None => polls,
                    }
                })
            }
        }
    }

    /// Returns `true` if a thread waits for what is there.
    fn is_waited_for(&self) -> bool {
        let waiting = self.0.upcalls.waiting.borrow();
        !waiting.is_empty()
            && (self.barriers().has_reports()
                || waiting.iter().any(|(_, wants)| self.has_wanted(*wants)))
    }

    /// Whether upcalls take this: a message with a handler, or one that is none, for which its
    /// sender is forgotten.
    pub(crate) fn is_claimed(&self, next: NextMessage) -> bool {
        match next {
            NextMessage::Message(kind) => self.is_handled(kind),
            NextMessage::Unreadable => true,
        }
    }
}

/// The end of a poll within a send, also if a handler panics.
struct Nested<'a>(&'a Group);

impl Drop for Nested<'_> {
    fn drop(&mut self) {
        let nested = &self.0.0.nested;
        nested.set(nested.get() - 1);
    }
}

/// What a virtual processor knows of a group.
struct GroupHook {
    group: Weak<Membership>,
    member: Arc<Member>,
}

impl Arrivals for GroupHook {
    fn look(&self) -> Found {
        let Some(group) = self.group.upgrade().map(Group) else { return Found::Nothing };
        group.attend_if_there_is_news();
        group.offer_again();
        if group.is_waited_for() {
            group.barriers().look();
            group.0.upcalls.wake();
            return Found::Woke;
        }
        if group.is_due() { Found::Work } else { Found::Nothing }
    }

    fn waits(&self) -> bool {
        let Some(group) = self.group.upgrade().map(Group) else { return false };
        self.member.has_news() || group.is_due() || group.is_waited_for()
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
