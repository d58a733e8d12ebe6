//! How a thread blocks until it is woken.
//!
//! This is the one primitive under join, mutex, condition variable, and calls.
//!
//! The waits of this crate itself use [`wait`]. Its [`QueuedWait`] stands for either kind of right
//! to wake: a waiter if the wait has no deadline, else a ticket. On an ordinary kernel thread the
//! same functions block the kernel thread on a futex. `dispatch` explains why a wake that comes
//! before the block is not lost.

use crate::abort::{Abort, NESTED};
use crate::current::Me;
use crate::kernel::WAITING;
use crate::number;
use crate::record::{Cause, WaitState};
use crate::vp::Vp;
use crate::waiter::{QueuedWait, Ticket, Waiter};
use std::ptr;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitEnd {
    /// The wait never began: `publish` found that there was nothing to wait for.
    AtOnce,
    /// A waker ended it.
    Woken,
    /// The deadline ended it.
    TimedOut,
}

/// What a function that publishes a wait did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Published {
    /// The wait is where its waker will find it.
    Yes,
    /// The wait is not published: there is nothing to wait for.
    No,
}

/// Blocks the calling thread until it is woken or until `deadline`, if there is one. See [`block`]
/// for what `publish` may do.
#[inline(always)]
pub(crate) fn wait(
    me: Me,
    cause: Cause,
    object: *const (),
    deadline: Option<Instant>,
    publish: impl FnOnce(QueuedWait) -> Published,
) -> WaitEnd {
    match (me.vp, deadline) {
        (Some(vp), None) => vp.wait(QueuedWait::of(me.rec, 0), cause, object, None, publish),
        (None, None) => {
            wait_on_kernel_thread(QueuedWait::of(me.rec, 0), cause, object, None, publish)
        }
        (_, at) => wait_numbered(me, cause, object, at, publish),
    }
}

/// As [`wait`], but the wait has a number even without a deadline.
///
/// For queues that identify waits by number.
#[inline(always)]
pub(crate) fn wait_numbered(
    me: Me,
    cause: Cause,
    object: *const (),
    deadline: Option<Instant>,
    publish: impl FnOnce(QueuedWait) -> Published,
) -> WaitEnd {
    match me.vp {
        Some(vp) => vp.wait(QueuedWait::of(me.rec, vp.number()), cause, object, deadline, publish),
        None => wait_on_kernel_thread(
            QueuedWait::of(me.rec, number::draw()),
            cause,
            object,
            deadline,
            publish,
        ),
    }
}

/// How a wait with a deadline ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// A waker ended it.
    Woken,
    /// The deadline ended it.
    TimedOut,
}

/// Blocks the calling thread until its waiter wakes it.
///
/// `publish` puts the waiter where the waker will find it. From then on a wake counts, even before
/// `publish` returns. `publish` must not block or yield: doing so, or panicking, aborts the
/// process, since the waiter may already be visible to a waker.
///
/// On a virtual processor the other threads run on; on an ordinary kernel thread the kernel thread
/// blocks.
#[inline(always)]
pub fn block(publish: impl FnOnce(Waiter)) {
    block_unless(|waiter| {
        publish(waiter);
        None
    });
}

/// As [`block`], but if `publish` returns the waiter, the thread does not wait.
#[inline(always)]
pub fn block_unless(publish: impl FnOnce(Waiter) -> Option<Waiter>) {
    wait(Me::find(), Cause::Other, ptr::null(), None, |mine| {
        match publish(Waiter::of(mine.rec())) {
            Some(waiter) if waiter.is_of(mine.rec()) => {
                waiter.into_record();
                Published::No
            }
            // This is another thread's waiter. Dropping it wakes that thread; this one waits as if
            // `publish` had returned nothing.
            _ => Published::Yes,
        }
    });
}

/// Blocks the calling thread until a wake or until `deadline`, whichever is first.
///
/// Otherwise as [`block`].
pub fn block_until(deadline: Option<Instant>, publish: impl FnOnce(Ticket)) -> Waited {
    let ended = wait_numbered(Me::find(), Cause::Other, ptr::null(), deadline, |mine| {
        publish(Ticket { rec: mine.rec(), number: mine.number() });
        Published::Yes
    });
    if ended == WaitEnd::TimedOut { Waited::TimedOut } else { Waited::Woken }
}

/// Runs `publish`. If it returns `No`, the thread runs on; otherwise the thread counts as blocked.
#[inline(always)]
fn publish_wait(
    wait: QueuedWait,
    cause: Cause,
    object: *const (),
    publish: impl FnOnce(QueuedWait) -> Published,
) -> Published {
    let me = wait.rec();
    assert!(!me.state.get().blocking, "{NESTED}");
    me.state.set(WaitState::waits(cause));
    // `without_panic` is not used here: its closure becomes a function, and the call to it raises
    // the cost of a round trip through a condition variable from 28 to 41 ns.
    let abort = Abort("a function that publishes a waiter panicked");
    me.object.set(object);
    let published = publish(wait);
    std::mem::forget(abort);
    if published == Published::No {
        me.state.set(WaitState::RUNS);
    }
    published
}

impl Vp {
    /// If the number of `mine` is 0, there is no deadline, and the thread that takes the wait out
    /// of its queue has the right to wake.
    #[inline(always)]
    fn wait(
        &self,
        mine: QueuedWait,
        cause: Cause,
        object: *const (),
        deadline: Option<Instant>,
        publish: impl FnOnce(QueuedWait) -> Published,
    ) -> WaitEnd {
        let (me, number) = (mine.rec(), mine.number());
        if number != 0 {
            me.timed_out.set(false);
            me.ticket.store(number, Ordering::Release);
        }
        if let Some(at) = deadline {
            self.add_timer(at, number, me);
        }
        let published = publish_wait(mine, cause, object, publish);
        if published == Published::Yes {
            self.deschedule(me);
            me.state.set(WaitState::RUNS);
            if number != 0 && me.timed_out.get() {
                // The wait may have ended before the deadline (`Ticket::expire`), so the timer may
                // still be set.
                deadline.into_iter().for_each(|at| self.remove_timer(at, number));
                return WaitEnd::TimedOut;
            }
        } else if number != 0 {
            // No other thread knows the number.
            me.ticket.store(0, Ordering::Relaxed);
        }
        if let Some(at) = deadline {
            self.remove_timer(at, number);
        }
        if published == Published::Yes { WaitEnd::Woken } else { WaitEnd::AtOnce }
    }
}

#[cold]
fn wait_on_kernel_thread(
    mine: QueuedWait,
    cause: Cause,
    object: *const (),
    deadline: Option<Instant>,
    publish: impl FnOnce(QueuedWait) -> Published,
) -> WaitEnd {
    let (me, number) = (mine.rec(), mine.number());
    me.futex.word.store(WAITING, Ordering::Relaxed);
    me.timed_out.set(false);
    me.ticket.store(number, Ordering::Release);
    if publish_wait(mine, cause, object, publish) == Published::No {
        // No other thread knows the number.
        me.ticket.store(0, Ordering::Relaxed);
        return WaitEnd::AtOnce;
    }
    while let Some(at) = deadline
        && me.futex.word.load(Ordering::Acquire) == WAITING
    {
        if Instant::now() >= at {
            if (Ticket { rec: me, number }).draw() {
                me.state.set(WaitState::RUNS);
                return WaitEnd::TimedOut;
            }
            break;
        }
        me.futex.wait(WAITING, deadline);
    }
    // A waker that has claimed the right to wake is about to use it.
    while me.futex.word.load(Ordering::Acquire) == WAITING {
        me.futex.wait(WAITING, None);
    }
    me.state.set(WaitState::RUNS);
    if me.timed_out.get() { WaitEnd::TimedOut } else { WaitEnd::Woken }
}
