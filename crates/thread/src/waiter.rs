//! Blocking a thread and making it ready again: the one primitive under join, mutex, condition
//! variable, and calls.
//!
//! A wake is one push (see `vp` for why one that comes early is not lost), so it must come exactly
//! once for each block. [`Waiter`] ensures that by ownership: it exists once, and is used up by the
//! wake. Where two parties may wake, one of which is a deadline, [`Ticket`] ensures it by a number:
//! whoever exchanges the thread's number for 0 does the wake.
//!
//! The waits of this crate itself go by [`wait`], whose [`Wait`] is either: a waiter if the wait
//! has no deadline, else a ticket.
//!
//! On an ordinary kernel thread the same functions block the kernel thread by futex.

use crate::current::Me;
use crate::kernel;
use crate::link::{from_raw, to_raw};
use crate::list::Waits;
use crate::number;
use crate::record::{Cause, Rec, Record, State};
use crate::shared::Shared;
use crate::vp::{Abort, NESTED, Vp, here};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Instant;

/// The right to wake one blocked thread, once.
///
/// Any kernel thread may use it, on a virtual processor or not; not a signal handler. On the
/// thread's own virtual processor a wake costs a few nanoseconds and no locked operation; elsewhere
/// a compare-and-swap and, if the thread's processor sleeps, what it costs to wake that. Dropping a
/// waiter wakes too, so that an error on some path leaves nobody asleep; forgetting it
/// (`std::mem::forget`) leaves the thread blocked for ever.
#[must_use = "dropping a waiter wakes the thread at once"]
pub struct Waiter {
    rec: Rec,
}

impl Waiter {
    /// Makes the thread ready.
    #[inline(always)]
    pub fn wake(self) {
        drop(self);
    }

    /// The thread itself, for the queues of this crate; they wake it by [`wake`].
    #[inline(always)]
    pub(crate) fn into_record(self) -> Rec {
        let rec = self.rec;
        std::mem::forget(self);
        rec
    }
}

impl Drop for Waiter {
    #[inline(always)]
    fn drop(&mut self) {
        wake(self.rec);
    }
}

impl std::fmt::Debug for Waiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Waiter").field(&self.rec.id.get()).finish()
    }
}

/// A place for one [`Waiter`] that several kernel threads may put it in and take it from, without a
/// lock.
///
/// Dropping the cell wakes the thread whose waiter is in it.
#[derive(Default)]
pub struct WaiterCell {
    rec: AtomicPtr<Record>,
}

impl WaiterCell {
    /// An empty one.
    pub const fn new() -> Self {
        Self { rec: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Puts `waiter` in; what was in before comes out.
    #[inline]
    pub fn put(&self, waiter: Waiter) -> Option<Waiter> {
        self.exchange(to_raw(waiter.into_record()))
    }

    /// Takes out what is in. Costs one load if nothing is.
    #[inline]
    pub fn take(&self) -> Option<Waiter> {
        if self.rec.load(Ordering::Relaxed).is_null() {
            return None;
        }
        self.exchange(ptr::null_mut())
    }

    #[inline(always)]
    fn exchange(&self, new: *mut Record) -> Option<Waiter> {
        // AcqRel: whoever takes a waiter sees what its thread did before it put it there.
        let before = self.rec.swap(new, Ordering::AcqRel);
        // SAFETY: only `put` stores here, by `to_raw`. The exchange made the right to wake ours.
        unsafe { from_raw(before) }.map(Record::again)
    }
}

impl Drop for WaiterCell {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl std::fmt::Debug for WaiterCell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaiterCell")
            .field("empty", &self.rec.load(Ordering::Relaxed).is_null())
            .finish()
    }
}

/// A chance to end one wait of one thread. The first of all its copies, and of the deadline,
/// succeeds.
///
/// It may be kept for as long as one likes: once the wait is over it does nothing.
#[derive(Clone, Copy)]
pub struct Ticket {
    pub(crate) rec: Rec,
    pub(crate) number: u64,
}

impl Ticket {
    /// Makes the thread ready, if its wait is not over. `true`: this call did it.
    #[inline]
    pub fn wake(self) -> bool {
        let won = self.draw();
        if won {
            wake(self.rec);
        }
        won
    }

    /// Ends the wait as its deadline would, if it is not over. `true`: this call did it.
    pub fn expire(self) -> bool {
        let won = self.draw();
        if won {
            self.rec.timed_out.set(true);
            wake(self.rec);
        }
        won
    }

    /// Whether the wait is over, so that a wake would do nothing.
    pub fn is_over(self) -> bool {
        self.rec.ticket.load(Ordering::Acquire) != self.number
    }

    /// Wins the right to wake.
    #[inline]
    pub(crate) fn draw(self) -> bool {
        // AcqRel: what the winner did before is seen by the thread; and the thread's preparations
        // by the winner.
        self.rec
            .ticket
            .compare_exchange(self.number, 0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Ticket").field(&self.number).finish()
    }
}

/// One wait of one thread, for the queues of this crate.
#[derive(Clone, Copy)]
pub(crate) struct Wait {
    rec: Rec,
    /// 0: no deadline, so that whoever takes the wait out of its queue has the right to wake.
    number: u64,
}

impl Waits for Wait {
    #[inline(always)]
    fn draw(self) -> bool {
        self.number == 0 || Ticket { rec: self.rec, number: self.number }.draw()
    }

    #[inline(always)]
    fn may_leave(self) -> bool {
        self.number != 0
    }
}

impl Wait {
    #[inline(always)]
    pub(crate) fn of(rec: Rec, number: u64) -> Self {
        Self { rec, number }
    }

    /// Makes the thread ready; the right to it was drawn.
    #[inline(always)]
    pub(crate) fn wake(self) {
        wake(self.rec);
    }

    #[inline(always)]
    pub(crate) fn rec(self) -> Rec {
        self.rec
    }

    #[inline(always)]
    pub(crate) fn number(self) -> u64 {
        self.number
    }
}

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// Before it began: `publish` found that there was nothing to wait for.
    AtOnce,
    /// By a wake.
    Woken,
    /// By the deadline.
    TimedOut,
}

/// What a function that publishes a wait has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Published {
    /// The wait is where its waker will find it.
    Yes,
    /// It is nowhere: there is nothing to wait for.
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
    publish: impl FnOnce(Wait) -> Published,
) -> Ended {
    match (me.vp, deadline) {
        (Some(vp), None) => vp.wait(Wait::of(me.rec, 0), cause, object, None, publish),
        (None, None) => kernel::wait(Wait::of(me.rec, 0), cause, object, None, publish),
        (_, at) => wait_numbered(me, cause, object, at, publish),
    }
}

/// As [`wait`], but the wait has a number without a deadline too, for queues that know waits by
/// number.
#[inline(always)]
pub(crate) fn wait_numbered(
    me: Me,
    cause: Cause,
    object: *const (),
    deadline: Option<Instant>,
    publish: impl FnOnce(Wait) -> Published,
) -> Ended {
    match me.vp {
        Some(vp) => vp.wait(Wait::of(me.rec, vp.number()), cause, object, deadline, publish),
        None => kernel::wait(Wait::of(me.rec, number::draw()), cause, object, deadline, publish),
    }
}

/// How a wait with a deadline ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// By a wake.
    Woken,
    /// By the deadline.
    TimedOut,
}

/// Makes a blocked thread ready. The caller has the right to it, which it thereby uses up.
#[inline(always)]
pub(crate) fn wake(rec: Rec) {
    let Some(home) = rec.home() else {
        return kernel::wake(rec);
    };
    match here() {
        Some(vp) if vp.shared.address() == home => vp.make_ready(rec),
        _ => Shared::at(home).post(rec),
    }
}

/// Blocks the calling thread until its waiter wakes it.
///
/// `publish` puts the waiter where the waker will find it. A wake from then on counts, even before
/// `publish` returns. `publish` must not block or yield: doing so, or panicking, aborts the
/// process, since the waiter may be out already.
///
/// On a virtual processor the other threads go on; on an ordinary kernel thread the kernel thread
/// blocks.
#[inline(always)]
pub fn block(publish: impl FnOnce(Waiter)) {
    block_unless(|waiter| {
        publish(waiter);
        None
    });
}

/// As [`block`], but `publish` may hand the waiter back, and then there is no wait.
#[inline(always)]
pub fn block_unless(publish: impl FnOnce(Waiter) -> Option<Waiter>) {
    wait(Me::find(), Cause::Other, ptr::null(), None, |mine| match publish(mine.rec.again()) {
        Some(waiter) if ptr::eq(waiter.rec, mine.rec) => {
            waiter.into_record();
            Published::No
        }
        // Somebody else's waiter: that thread wakes, and this one waits as if nothing had come
        // back.
        _ => Published::Yes,
    });
}

/// Blocks the calling thread until a wake or until `deadline`, whichever comes first. Otherwise as
/// [`block`].
pub fn block_until(deadline: Option<Instant>, publish: impl FnOnce(Ticket)) -> Waited {
    let ended = wait_numbered(Me::find(), Cause::Other, ptr::null(), deadline, |mine| {
        publish(Ticket { rec: mine.rec, number: mine.number });
        Published::Yes
    });
    if ended == Ended::TimedOut { Waited::TimedOut } else { Waited::Woken }
}

/// Runs `publish`. If it says `No`, the thread goes on; else it is as good as blocked.
#[inline(always)]
pub(crate) fn publish_wait(
    wait: Wait,
    cause: Cause,
    object: *const (),
    publish: impl FnOnce(Wait) -> Published,
) -> Published {
    let me = wait.rec;
    assert!(!me.state.get().blocking, "{NESTED}");
    me.state.set(State::waits(cause));
    // Not by `without_panic`: its closure becomes a function, whose call makes a round trip by a
    // condition variable 41 ns in place of 28.
    let abort = Abort("a function that publishes a waiter panicked");
    me.object.set(object);
    let published = publish(wait);
    std::mem::forget(abort);
    if published == Published::No {
        me.state.set(State::RUNS);
    }
    published
}

impl Record {
    /// The waiter that `into_record` was called on.
    #[inline(always)]
    pub(crate) fn again(&'static self) -> Waiter {
        Waiter { rec: self }
    }
}

impl Vp {
    /// If the number of `mine` is 0, there is no deadline, and the thread that takes the wait out
    /// of its queue may wake.
    #[inline(always)]
    fn wait(
        &self,
        mine: Wait,
        cause: Cause,
        object: *const (),
        deadline: Option<Instant>,
        publish: impl FnOnce(Wait) -> Published,
    ) -> Ended {
        let Wait { rec: me, number } = mine;
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
            me.state.set(State::RUNS);
            if number != 0 && me.timed_out.get() {
                // Perhaps before its time (`Ticket::expire`).
                deadline.into_iter().for_each(|at| self.remove_timer(at, number));
                return Ended::TimedOut;
            }
        } else if number != 0 {
            // Nobody else knows the number.
            me.ticket.store(0, Ordering::Relaxed);
        }
        if let Some(at) = deadline {
            self.remove_timer(at, number);
        }
        if published == Published::Yes { Ended::Woken } else { Ended::AtOnce }
    }
}
