//! The rights to wake a blocked thread.
//!
//! A wake is one push, so it must come exactly once for each block. [`Waiter`] ensures that by
//! ownership: a waiter exists once, and is used up by the wake. Where two parties may wake, one of
//! which is a deadline, [`Ticket`] ensures it by a number: the party that exchanges the thread's
//! number for 0 does the wake.

use crate::kernel;
use crate::link::{from_raw, to_raw};
use crate::list::ListedWait;
use crate::record::{Rec, Record};
use crate::shared::VpShared;
use crate::vp::here;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

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
    /// The waiter of the thread of `rec`, which has none yet, or that `into_record` was called on.
    #[inline(always)]
    pub(crate) fn of(rec: Rec) -> Self {
        Self { rec }
    }

    /// Returns `true` if this is the waiter of the thread of `rec`.
    #[inline(always)]
    pub(crate) fn is_of(&self, rec: Rec) -> bool {
        ptr::eq(self.rec, rec)
    }

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
        unsafe { from_raw(before) }.map(Waiter::of)
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
pub(crate) struct QueuedWait {
    rec: Rec,
    /// 0: no deadline, so that whoever takes the wait out of its queue has the right to wake.
    number: u64,
}

impl ListedWait for QueuedWait {
    #[inline(always)]
    fn draw(self) -> bool {
        self.number == 0 || Ticket { rec: self.rec, number: self.number }.draw()
    }

    #[inline(always)]
    fn may_leave(self) -> bool {
        self.number != 0
    }
}

impl QueuedWait {
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

/// Makes a blocked thread ready. The caller has the right to it, which it thereby uses up.
#[inline(always)]
pub(crate) fn wake(rec: Rec) {
    let Some(home) = rec.home() else {
        return kernel::wake(rec);
    };
    match here() {
        Some(vp) if vp.shared.address() == home => vp.make_ready(rec),
        _ => VpShared::at(home).post(rec),
    }
}
