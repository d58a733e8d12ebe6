//! Upcalls by signal: handlers that interrupt a thread's computation.
//!
//! This is for code that has no safe points.
//!
//! Source: UDM, section 3.1 (D5 here), where an arrival interrupts the running thread. Here a
//! thread runs code during which it can be interrupted ([`Group::interruptible`]). During that time
//! it is announced at its post as if it slept, so senders notify. The clerk receives the
//! notification in its place, and sends a signal; the signal's handler takes the messages.
//!
//! A signal handler may do next to nothing: neither allocate nor free, nor wait. So it takes only
//! messages of kinds that were registered for it ([`Handlers::on_interrupt`]), in shared memory,
//! and from segments that are at hand; all others wait for the next `poll`.
//!
//! # Why the thread and its signal handler do not touch the same data
//! Each operation of the group counts itself as busy, and so does a section. The handler reads that
//! count first. If it is not 0, the handler notes that it came, and the code that makes the count 0
//! does the handler's work ([`mask`](upcall_sched::mask)).
//!
//! # Why no wake is lost
//! The announcement is that of the sleep protocol, with the fence for all senders, and is followed
//! by a probe. The argument is in [`sleep`](upcall_sched::sleep), where "wakes" means here:
//! notifies a doorbell in the set that the clerk watches. The clerk receives each notification of
//! the set ([`rung`](upcall_sched::rung)), even while the thread itself sleeps there within an
//! operation. Its signal comes after that notification. The handler then either takes the messages,
//! announces again, and probes again, or leaves a note to the code that does so.
//! [`mask`](upcall_sched::mask) argues that, and `crates/sched/tests/models/loom_mask.rs` is the
//! model of all of it.

use crate::error::SendError;
use crate::inbound::{Inbound, bring_spares};
use crate::member::MemberEvent;
use crate::message::Kind;
use crate::payload::Payload;
use crate::{Group, Message, Rank};
use std::fmt;
use upcall_os::interrupt::{self, Promise};
use upcall_sched::rung::{InterruptError, Rung};

/// Ends the operation under way when dropped.
pub(crate) struct OperationGuard<'a>(Option<&'a Group>);

impl Drop for OperationGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            group.is_done();
        }
    }
}

/// The group in an interrupt's handler, which can run in the middle of any code of its thread.
pub struct Interrupt<'a>(&'a Group);

impl fmt::Debug for Interrupt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Interrupt of {:?}", self.0)
    }
}

impl<'a> Interrupt<'a> {
    pub(crate) fn new(group: &'a Group) -> Self {
        Self(group)
    }

    /// This member's rank, from 0.
    pub fn rank(&self) -> Rank {
        self.0.rank()
    }

    /// Number of members.
    pub fn size(&self) -> usize {
        self.0.size()
    }

    /// Sends a message if it only has to be written.
    ///
    /// The direct way must have been opened before, and the queue must have room.
    ///
    /// # Errors
    /// [`SendError::Full`] otherwise: nothing was sent. The thread itself can send later.
    ///
    /// # Panics
    /// If the payload does not write the size that it declares. In an interrupt that ends the
    /// process.
    pub fn try_send<T: Payload + ?Sized>(
        &self,
        to: Rank,
        kind: Kind<T>,
        value: &T,
    ) -> Result<(), SendError> {
        if self.0.send_at_once(to, kind, value, true) { Ok(()) } else { Err(SendError::Full) }
    }
}

impl Group {
    /// Runs `body`, and lets messages interrupt it.
    ///
    /// A message does so if its kind has a handler for that
    /// ([`Handlers::on_interrupt`](crate::Handlers::on_interrupt)). The handler runs on this thread
    /// at once, in a signal (SIGURG). Operations of the group that `body` uses, and atomic
    /// sections, keep interrupts off until they end; then handlers run. Other messages wait for a
    /// poll as usual, and messages of the same sender wait behind them. So do messages that were
    /// diverted farther than the two segments that are kept at hand.
    ///
    /// This is for an ordinary kernel thread: on a virtual processor handlers run at safe points.
    /// The promise must hold for the handlers of this group that are registered for interrupts.
    /// System calls that `body` makes are restarted where the kernel can do so, and end with
    /// `EINTR` where it cannot (`signal(7)`): sleeps, for example.
    ///
    /// # Errors
    /// See [`InterruptError`]; `body` has not run.
    ///
    /// # Panics
    /// If `body` panics. A handler that panics in an interrupt ends the process.
    pub fn interruptible<R>(
        &self,
        promise: Promise,
        body: impl FnOnce() -> R,
    ) -> Result<R, InterruptError> {
        if self.0.mask.is_on() {
            return Ok(body());
        }
        self.can_be_rung_for()?;
        self.0.member.bring_spares();
        self.attend_if_there_is_news();
        self.0.senders.all().iter().for_each(|inbound| bring_spares(inbound));
        let run = || self.is_signalled();
        let result = interrupt::interruptible(promise, &run, |thread| {
            let _on = self.be_rung_for(move || thread.interrupt())?;
            Ok(body())
        });
        result.map_err(InterruptError::Signal)?
    }

    /// Counts an operation if interrupts are on.
    #[inline]
    pub(crate) fn busy(&self) -> OperationGuard<'_> {
        OperationGuard(self.0.mask.begin_operation().then_some(self))
    }

    /// Ends an operation: does the work that interrupts have left to it.
    #[cold]
    pub(crate) fn is_done(&self) {
        self.0.mask.end_operation(|| self.0.member.post.is_announced(), || self.serve());
    }

    /// Called in the signal handler.
    fn is_signalled(&self) {
        self.0.mask.interrupt(|| self.serve());
    }

    /// Takes the messages that have handlers for interrupts, and announces the thread again.
    fn serve(&self) {
        if let Some(notify) = &*self.0.notify.borrow() {
            return self.announce_anew(notify);
        }
        let waits = |inbound: &Inbound| {
            inbound.next_lightly().is_some_and(|kind| self.interrupts_with(kind))
        };
        let more = || {
            let mut more = false;
            self.for_each_inbound(|inbound| more |= !inbound.with.refused.get() && waits(inbound));
            more
        };
        self.0.mask.serve(
            || self.for_each_inbound(|inbound| self.take_in_interrupt(inbound)),
            || self.announce_to_senders(),
            more,
        );
    }

    /// Makes senders notify from now on.
    pub(crate) fn announce_to_senders(&self) {
        // It was checked before that the kernel makes the fence.
        let _ = self.0.member.post.announce_to_be_rung_for();
    }

    /// Calls `with` for each sender, including those whose queues the thread has not taken in yet.
    fn for_each_inbound(&self, mut with: impl FnMut(&Inbound)) {
        self.0.senders.for_each_lightly(|inbound| with(inbound));
        // If the clerk has the lock, it notifies when it is done.
        self.0.member.look_at_news(|news| {
            if let MemberEvent::Brought(inbound) = news {
                with(inbound);
            }
        });
    }

    fn interrupts_with(&self, kind: u16) -> bool {
        self.0.handlers.interrupting.get(usize::from(kind)).is_some_and(Option::is_some)
    }

    fn take_in_interrupt(&self, inbound: &Inbound) {
        inbound.with.refused.set(false);
        let Some(mut queue) = inbound.queue() else { return };
        while let Ok(Some(arrived)) = queue.peek_lightly() {
            let Some(Some(handler)) =
                self.0.handlers.interrupting.get(usize::from(arrived.handler()))
            else {
                break;
            };
            if !handler(&Interrupt(self), &Message::new(inbound.from(), &arrived)) {
                inbound.with.refused.set(true);
                break;
            }
            arrived.dispose();
            self.0.taken.set(self.0.taken.get() + 1);
            self.count_change();
        }
        queue.tell();
    }
}

/// Makes senders notify the group's thread while this lives.
pub(crate) struct GroupInterrupts {
    pub(crate) group: Group,
    #[expect(dead_code, reason = "held for its end")]
    pub(crate) rung: Rung,
}

impl Drop for GroupInterrupts {
    fn drop(&mut self) {
        let inner = &self.group.0;
        inner.mask.end();
        *inner.notify.borrow_mut() = None;
        inner.member.post.retract();
    }
}
