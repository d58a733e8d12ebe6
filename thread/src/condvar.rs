//! A condition variable that blocks the thread and never its processor.
//!
//! The waiters form a list through nodes on their own stacks, oldest first, under a spin lock held for a few
//! instructions. A waiter joins the list while it still holds the mutex, so a notification that follows a change made
//! under the mutex finds it; and a wake before the thread has switched away is not lost (see `vp`). A thread whose
//! deadline passes wakes by its ticket and takes its own node off the list; a notifier that draws the ticket in vain
//! goes on to the next node, so that no notification is used up by a thread that had given up.

use crate::link::Fifo;
use crate::mutex::MutexGuard;
use crate::record::Rec;
use crate::waiter::{Ticket, Waited, block, block_until, wake};
use std::cell::Cell;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::time::{Duration, Instant};

/// Waiting for a condition on data under a [`Mutex`](crate::Mutex), as `std::sync::Condvar`.
pub struct Condvar {
    busy: AtomicBool,
    /// Under `busy`; read without it as a hint.
    oldest: AtomicPtr<Node>,
    /// Under `busy`.
    newest: Cell<*const Node>,
}

// SAFETY: `newest` and all nodes are touched only under `busy`.
unsafe impl Sync for Condvar {}
// SAFETY: as above; nothing is bound to a kernel thread.
unsafe impl Send for Condvar {}

/// One waiter, on its own stack. All but the first two fields under `busy`.
struct Node {
    rec: Rec,
    /// 0: waits without a deadline.
    number: u64,
    listed: Cell<bool>,
    older: Cell<*const Node>,
    newer: Cell<*const Node>,
}

impl Node {
    fn new(rec: Rec, number: u64) -> Self {
        Self { rec, number, listed: Cell::new(true), older: Cell::new(ptr::null()), newer: Cell::new(ptr::null()) }
    }
}

/// # Safety
/// `node` is null or was listed and the list has been held busy since, so that its owner waits.
unsafe fn node<'a>(node: *const Node) -> Option<&'a Node> {
    // SAFETY: the caller's promise: the owner's stack frame holds the node and does not go before it is taken off.
    unsafe { node.as_ref() }
}

impl Default for Condvar {
    fn default() -> Self {
        Self::new()
    }
}

impl Condvar {
    /// Nobody waits.
    pub const fn new() -> Self {
        Self { busy: AtomicBool::new(false), oldest: AtomicPtr::new(ptr::null_mut()), newest: Cell::new(ptr::null()) }
    }

    /// Unlocks, waits for a notification, locks again. May return without one, as every condition variable.
    #[inline]
    pub fn wait<'a, T: ?Sized>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let mutex = guard.mutex();
        let mut mine = None;
        block(|waiter| {
            // The node's place is this frame, which stays until the wake.
            self.list(mine.insert(Node::new(waiter.into_record(), 0)));
            drop(guard);
        });
        mutex.lock()
    }

    /// Waits while `condition` holds.
    pub fn wait_while<'a, T: ?Sized>(
        &self,
        mut guard: MutexGuard<'a, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        while condition(&mut guard) {
            guard = self.wait(guard);
        }
        guard
    }

    /// As [`wait`](Self::wait), for at most `timeout`; locking again may take longer.
    pub fn wait_timeout<'a, T: ?Sized>(&self, guard: MutexGuard<'a, T>, timeout: Duration) -> (MutexGuard<'a, T>, Waited) {
        self.wait_until(guard, Instant::now() + timeout)
    }

    /// As [`wait`](Self::wait), at most until `deadline`; locking again may take longer.
    pub fn wait_until<'a, T: ?Sized>(&self, guard: MutexGuard<'a, T>, deadline: Instant) -> (MutexGuard<'a, T>, Waited) {
        let mutex = guard.mutex();
        let mut mine = None;
        let waited = block_until(Some(deadline), |ticket| {
            self.list(mine.insert(Node::new(ticket.rec, ticket.number)));
            drop(guard);
        });
        if waited == Waited::TimedOut {
            self.enter();
            if let Some(mine) = &mine {
                self.unlist(mine);
            }
            self.leave();
        }
        (mutex.lock(), waited)
    }

    /// Wakes the thread that has waited longest, if one waits. Whoever calls need not hold the mutex.
    #[inline]
    pub fn notify_one(&self) {
        if self.nobody() {
            return;
        }
        self.enter();
        let woken = self.take_oldest();
        self.leave();
        if let Some(rec) = woken {
            wake(rec);
        }
    }

    /// Wakes all that wait.
    pub fn notify_all(&self) {
        if self.nobody() {
            return;
        }
        // A wake may cost a kernel call, so none is made while the list is held.
        let woken = Fifo::new();
        self.enter();
        while let Some(rec) = self.take_oldest() {
            woken.push(rec);
        }
        self.leave();
        while let Some(rec) = woken.pop() {
            wake(rec);
        }
    }

    /// Whether nobody waits. A waiter that was listed under the mutex before the caller held it is seen.
    #[inline(always)]
    fn nobody(&self) -> bool {
        self.oldest.load(Ordering::Relaxed).is_null()
    }

    #[inline(always)]
    fn enter(&self) {
        if self.busy.swap(true, Ordering::Acquire) {
            self.enter_slowly();
        }
    }

    /// Only a kernel thread that was interrupted in the middle holds the list for more than a few instructions.
    #[cold]
    fn enter_slowly(&self) {
        let mut tries = 0_u32;
        while self.busy.load(Ordering::Relaxed) || self.busy.swap(true, Ordering::Acquire) {
            tries += 1;
            if tries.is_multiple_of(64) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    #[inline(always)]
    fn leave(&self) {
        self.busy.store(false, Ordering::Release);
    }

    #[inline(always)]
    fn list(&self, mine: &Node) {
        self.enter();
        let raw = ptr::from_ref(mine);
        let newest = self.newest.replace(raw);
        mine.older.set(newest);
        // SAFETY: the list is held busy.
        match unsafe { node(newest) } {
            Some(newest) => newest.newer.set(raw),
            None => self.oldest.store(raw.cast_mut(), Ordering::Relaxed),
        }
        self.leave();
    }

    /// The list is held busy.
    #[inline(always)]
    fn unlist(&self, gone: &Node) {
        if !gone.listed.replace(false) {
            return;
        }
        let (older, newer) = (gone.older.get(), gone.newer.get());
        // SAFETY: the list is held busy.
        match unsafe { node(older) } {
            Some(older) => older.newer.set(newer),
            None => self.oldest.store(newer.cast_mut(), Ordering::Relaxed),
        }
        // SAFETY: the list is held busy.
        match unsafe { node(newer) } {
            Some(newer) => newer.older.set(older),
            None => self.newest.set(older),
        }
    }

    /// The list is held busy. The right to wake the thread returned is the caller's.
    #[inline(always)]
    fn take_oldest(&self) -> Option<Rec> {
        loop {
            // SAFETY: the list is held busy.
            let first = unsafe { node(self.oldest.load(Ordering::Relaxed)) }?;
            self.unlist(first);
            if first.number == 0 || (Ticket { rec: first.rec, number: first.number }).draw() {
                return Some(first.rec);
            }
        }
    }
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Condvar").finish_non_exhaustive()
    }
}
