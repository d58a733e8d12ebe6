//! Upcalls by signal: handlers that run in the middle of what a thread computes, for code that has no safe points.
//!
//! Source: UDM, section 3.1 (D5 here), where an arrival interrupts the running thread. Here a thread says for how long it can be interrupted ([`Group::interruptible`]). It is announced at its post meanwhile as one who sleeps, so that senders ring; the
//! clerk hears that in its place, and sends a signal; and the handler of the signal takes the messages.
//!
//! A handler of a signal may do next to nothing: neither allocate nor free, nor wait. So it takes only messages of kinds that were registered for it ([`Handlers::on_interrupt`]), where they lie, and from segments that are at hand; all else waits
//! for the next `poll`.
//!
//! # Why the thread and the handler of its signal do not touch the same things
//! Each operation of the group counts itself as busy, and so does a section. The handler looks at that count first: if it is not 0 it notes that it came, and who makes the count 0 does what it would have done. All of this is on one kernel thread,
//! so what must be kept in order is the compiler only.
//!
//! # Why no wake is lost
//! The announcement is that of the sleep protocol, with the fence for all senders, and is followed by a look; the argument is there ([`sleep`](upcall_transfer::sleep)), where "wakes" means here: rings a bell in the set that the clerk watches. The clerk hears each ring of the
//! set (the edge, not the level), also beside the thread itself, which may sleep there within an operation. Its signal comes after that ring; and the handler either takes what is there, announces anew, and looks again, or leaves a note to who does so.

use crate::error::{InterruptError, SendError};
use crate::inbound::Inbound;
use crate::kinds::Kind;
use crate::member::{Member, News};
use crate::payload::Payload;
use crate::{Group, Message, Rank};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed, Ordering::SeqCst, compiler_fence};
use upcall_os::interrupt::{self, Interruptible, Promise};
use upcall_os::poll::Report;
use upcall_transfer::clerk::{Clerk, Watched};
use upcall_transfer::post::Post;

/// What a group has for interrupts.
#[derive(Debug, Default)]
pub(crate) struct Interrupts {
    on: AtomicBool,
    /// Operations under way, counted while interrupts are on.
    busy: AtomicU32,
    /// An interrupt came meanwhile.
    came: AtomicBool,
}

impl Interrupts {
    #[inline]
    pub(crate) fn are_on(&self) -> bool {
        self.on.load(Relaxed)
    }
}

/// An operation is under way.
pub(crate) struct Busy<'a>(Option<&'a Group>);

impl Drop for Busy<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            group.is_done();
        }
    }
}

/// What a handler of interrupts has of its group: it can be in the middle of anything that its thread does.
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

    /// This member's place, from 0.
    pub fn rank(&self) -> Rank {
        self.0.rank()
    }

    /// How many members there are.
    pub fn size(&self) -> usize {
        self.0.size()
    }

    /// Sends a message if that takes nothing but to write it: by the direct way, which was opened before, to a queue with room.
    ///
    /// # Errors
    /// [`SendError::Full`] where it takes more: nothing was sent. The thread itself can send later.
    ///
    /// # Panics
    /// The payload writes another size than it tells. In an interrupt that ends the process.
    pub fn try_send<T: Payload + ?Sized>(&self, to: Rank, kind: Kind<T>, value: &T) -> Result<(), SendError> {
        if self.0.send_at_once(to, kind, value, true) { Ok(()) } else { Err(SendError::Full) }
    }
}

impl Group {
    /// Runs `body`, and meanwhile, whatever it computes, has messages of the kinds with a handler for that ([`Handlers::on_interrupt`](crate::Handlers::on_interrupt)) interrupt it: the handler runs on this thread at once, in a signal (SIGURG). Operations of the group that `body`
    /// uses, and atomic sections, keep interrupts off until they are done; then handlers run. Other messages wait for a poll as ever, and those of the same sender behind them; so do those that were diverted farther than the two segments that are kept at hand.
    ///
    /// For an ordinary kernel thread: on a virtual processor handlers run at safe points. What the promise must hold for: the handlers of this group that are registered so. System calls that `body` makes are restarted where the kernel can do so,
    /// and end with `EINTR` where not (`signal(7)`): sleeps, for example.
    ///
    /// # Errors
    /// See [`InterruptError`]; `body` has not run.
    ///
    /// # Panics
    /// Those of `body`. A handler that panics in an interrupt ends the process.
    pub fn interruptible<R>(&self, promise: Promise, body: impl FnOnce() -> R) -> Result<R, InterruptError> {
        let interrupts = &self.0.interrupts;
        if interrupts.are_on() {
            return Ok(body());
        }
        if self.blocks_a_thread() {
            return Err(InterruptError::SafePoints);
        }
        if !Post::makes_fences() {
            return Err(InterruptError::NoFence);
        }
        let unable = |what: &'static str| move |error| InterruptError::Resource { what: what.into(), error };
        let clerk = Clerk::current().map_err(unable("the clerk's thread"))?;
        self.0.member.bring_spares();
        self.attend_if_there_is_news();
        for inbound in self.inbound().iter() {
            inbound.bring_spares();
        }
        let run = || self.is_signalled();
        let result = interrupt::interruptible(promise, &run, |thread| {
            let rung = Arc::new(Rung { member: self.0.member.clone(), thread });
            let key = clerk.watch(rung, Report::EachRing).map_err(unable("a place among what the clerk watches"))?;
            let _on = On { group: self, clerk, key };
            interrupts.busy.store(1, Relaxed);
            interrupts.on.store(true, Relaxed);
            compiler_fence(SeqCst);
            // Announces, and takes what is there.
            self.is_done();
            Ok(body())
        });
        result.map_err(InterruptError::Signal)?
    }

    /// Counts an operation, if it could be interrupted.
    #[inline]
    pub(crate) fn busy(&self) -> Busy<'_> {
        let interrupts = &self.0.interrupts;
        if !interrupts.are_on() {
            return Busy(None);
        }
        interrupts.busy.store(interrupts.busy.load(Relaxed) + 1, Relaxed);
        compiler_fence(SeqCst);
        Busy(Some(self))
    }

    /// The end of an operation: does what interrupts have left to it.
    #[cold]
    fn is_done(&self) {
        let Interrupts { on, busy, came } = &self.0.interrupts;
        loop {
            let others = busy.load(Relaxed) - 1;
            let last = others == 0 && self.0.upcalls.sections() == 0 && on.load(Relaxed);
            // A wait ends awake.
            if last && (came.load(Relaxed) || !self.0.member.post.is_announced()) {
                self.serve();
            }
            compiler_fence(SeqCst);
            busy.store(others, Relaxed);
            compiler_fence(SeqCst);
            if !last || !came.load(Relaxed) {
                return;
            }
            busy.store(1, Relaxed);
        }
    }

    /// In the handler of the signal.
    fn is_signalled(&self) {
        let Interrupts { on, busy, came } = &self.0.interrupts;
        if busy.load(Relaxed) != 0 || self.0.upcalls.sections() != 0 || !on.load(Relaxed) {
            came.store(true, Relaxed);
            return;
        }
        busy.store(1, Relaxed);
        compiler_fence(SeqCst);
        self.serve();
        compiler_fence(SeqCst);
        busy.store(0, Relaxed);
    }

    /// Takes what has handlers for interrupts, and says that there may be more of them.
    fn serve(&self) {
        loop {
            self.0.interrupts.came.store(false, Relaxed);
            self.for_each_inbound(|inbound| self.take_in_interrupt(inbound));
            // The kernel has been asked before whether it makes the fence.
            let _ = self.0.member.post.announce_to_be_rung_for();
            let mut more = false;
            self.for_each_inbound(|inbound| more |= inbound.next_lightly().is_some_and(|kind| self.interrupts_with(kind)));
            if !more {
                return;
            }
        }
    }

    /// Those who have sent something, those included of which the thread has not heard yet.
    fn for_each_inbound(&self, mut with: impl FnMut(&Inbound)) {
        if let Ok(all) = self.0.inbound.try_borrow() {
            all.iter().for_each(|inbound| with(inbound));
        }
        // If the clerk has the lock, it rings when it is done.
        self.0.member.look_at_news(|news| {
            if let News::Brought(inbound) = news {
                with(inbound);
            }
        });
    }

    fn interrupts_with(&self, kind: u16) -> bool {
        self.0.handlers.interrupting.get(usize::from(kind)).is_some_and(Option::is_some)
    }

    fn take_in_interrupt(&self, inbound: &Inbound) {
        let Some(mut queue) = inbound.queue() else { return };
        while let Ok(Some(arrived)) = queue.peek_lightly() {
            let Some(Some(handler)) = self.0.handlers.interrupting.get(usize::from(arrived.handler())) else { break };
            handler(&Interrupt(self), &Message::new(inbound.from(), &arrived));
            arrived.dispose();
            self.0.taken.set(self.0.taken.get() + 1);
        }
        queue.tell();
    }
}

/// While a group's thread can be interrupted.
struct On<'a> {
    group: &'a Group,
    clerk: &'static Clerk,
    key: u64,
}

impl Drop for On<'_> {
    fn drop(&mut self) {
        let inner = &self.group.0;
        inner.interrupts.on.store(false, Relaxed);
        compiler_fence(SeqCst);
        inner.interrupts.came.store(false, Relaxed);
        inner.member.post.retract();
        self.clerk.forget(self.key);
    }
}

/// A post whose receiver computes, as the clerk watches it.
struct Rung {
    member: Arc<Member>,
    thread: Arc<Interruptible>,
}

impl Watched for Rung {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.member.post.rings()
    }

    fn happened(&self, _hung_up: bool) -> bool {
        self.thread.interrupt();
        true
    }

    fn failed(&self) -> bool {
        true
    }
}
