//! The rights to wake a blocked thread.
//!
//! A wake is one push, so there must be exactly one for each block. [`Waiter`] ensures that by
//! ownership: a waiter exists once, and the wake consumes it. Where two parties may wake, one of
//! them the deadline, [`Ticket`] ensures it by a number: the party that exchanges the thread's
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
/// Any kernel thread may use it, whether or not it is a virtual processor; a signal handler may
/// not. On the thread's own virtual processor a wake costs a few nanoseconds and no locked
/// operation. Elsewhere it costs a compare-and-swap and, if the thread's processor sleeps, the
/// price of waking that. Dropping a waiter also wakes, so that an error path does not leave the
/// thread asleep. Forgetting it (`std::mem::forget`) leaves the thread blocked for ever.
#[must_use = "dropping a waiter wakes the thread at once"]
pub struct Waiter {
    rec: Rec,
}

impl Waiter {
    /// The waiter of the thread of `rec`, which has none yet, or whose waiter was consumed by
    /// `into_record`.
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

    /// The thread's record, for the queues of this crate, which wake it by [`wake`].
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

/// A place for one [`Waiter`], shared by several kernel threads without a lock.
///
/// Dropping the cell wakes the thread whose waiter is in it.
#[derive(Default)]
pub struct WaiterCell {
    rec: AtomicPtr<Record>,
}

impl WaiterCell {
    /// An empty cell.
    pub const fn new() -> Self {
        Self { rec: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Puts `waiter` in, and returns the waiter that was there before.
    #[inline]
    pub fn put(&self, waiter: Waiter) -> Option<Waiter> {
        self.exchange(to_raw(waiter.into_record()))
    }

    /// Takes the waiter out, if there is one. Costs one load if there is none.
    #[inline]
    pub fn take(&self) -> Option<Waiter> {
        if self.rec.load(Ordering::Relaxed).is_null() {
            return None;
        }
        self.exchange(ptr::null_mut())
    }

    #[inline(always)]
    fn exchange(&self, new: *mut Record) -> Option<Waiter> {
        // AcqRel: the taker of a waiter sees what its thread did before it was put there.
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

/// A right to end one wait of one thread, shared with its copies and the deadline.
///
/// The first of them to act succeeds. A ticket may be kept for any length of time: once the wait is
/// over, it does nothing.
#[derive(Clone, Copy)]
pub struct Ticket {
    pub(crate) rec: Rec,
    pub(crate) number: u64,
}

impl Ticket {
    /// Makes the thread ready. Returns `true` if this call ended the wait.
    #[inline]
    pub fn wake(self) -> bool {
        let won = self.draw();
        if won {
            wake(self.rec);
        }
        won
    }

    /// Ends the wait as its deadline would. Returns `true` if this call ended it.
    pub fn expire(self) -> bool {
        let won = self.draw();
        if won {
            self.rec.timed_out.set(true);
            wake(self.rec);
        }
        won
    }

    /// Returns `true` if the wait is over, so that a wake would do nothing.
    pub fn is_over(self) -> bool {
        self.rec.ticket.load(Ordering::Acquire) != self.number
    }

    /// Claims the right to wake. Returns `true` if this call won it.
    #[inline]
    pub(crate) fn draw(self) -> bool {
        // AcqRel: the thread sees what the winner did before, and the winner sees the thread's
        // preparations.
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
    /// 0 if there is no deadline: then the thread that takes the wait out of its queue has the
    /// right to wake.
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

    /// Makes the thread ready. The caller has claimed the right to wake.
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

/// Makes a blocked thread ready. The caller has the right to wake, and uses it up by this call.
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
