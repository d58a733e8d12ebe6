//! A condition variable that blocks the thread and never its processor.
//!
//! A waiter joins the list while it still holds the mutex, so a notification that follows a change
//! made under the mutex finds it. A wake before the thread has switched away is not lost (see
//! `dispatch`). A notifier that fails to claim the right to wake, because the waiter's deadline was
//! first, goes on to the next waiter: a thread that has given up uses no notification up.

use crate::block::{Published, WaitEnd, Waited, wait};
use crate::current::Me;
use crate::deadline::{Deadline, after, deadline_of};
use crate::list::{TakenWaiters, WaitList, WaitNode};
use crate::mutex::{Mutex, MutexGuard};
use crate::record::Cause;
use crate::waiter::QueuedWait;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::{Duration, Instant};

/// Waits for a condition on data under a [`Mutex`](crate::Mutex), as `std::sync::Condvar`.
pub struct Condvar {
    list: WaitList<QueuedWait>,
}

impl Default for Condvar {
    fn default() -> Self {
        Self::new()
    }
}

impl Condvar {
    /// Creates a condition variable without waiters.
    pub const fn new() -> Self {
        Self { list: WaitList::new() }
    }

    /// Unlocks, waits for a notification, and locks again.
    ///
    /// May return without a notification, as with every condition variable.
    // Inlined in its caller: the return of a function that switches to another stack is
    // mispredicted (`arch`).
    #[inline(always)]
    pub fn wait<'a, T: ?Sized>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.wait_by(guard, None).0
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
    pub fn wait_timeout<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> (MutexGuard<'a, T>, Waited) {
        self.wait_by(guard, after(timeout))
    }

    /// As [`wait`](Self::wait), at most until `deadline`; locking again may take longer.
    pub fn wait_until<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        deadline: Instant,
    ) -> (MutexGuard<'a, T>, Waited) {
        self.wait_by(guard, Some(deadline))
    }

    /// Waits while `condition` holds, for at most `timeout`.
    ///
    /// Returns `TimedOut` if the condition still holds then.
    pub fn wait_timeout_while<'a, T: ?Sized>(
        &self,
        mut guard: MutexGuard<'a, T>,
        timeout: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, Waited) {
        let deadline = after(timeout);
        let mut waited = Waited::Woken;
        while condition(&mut guard) {
            if waited == Waited::TimedOut {
                return (guard, waited);
            }
            (guard, waited) = self.wait_by(guard, deadline);
        }
        (guard, Waited::Woken)
    }

    /// As [`wait`](Self::wait), until `deadline` at most, if there is one.
    #[inline(always)]
    pub(crate) fn wait_by<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        deadline: Option<Instant>,
    ) -> (MutexGuard<'a, T>, Waited) {
        let me = Me::find();
        if deadline.is_some() || deadline_of(me.rec).is_some() {
            self.wait_bounded(me, deadline, guard)
        } else {
            (self.wait_endlessly(me, guard), Waited::Woken)
        }
    }

    #[inline(always)]
    fn wait_endlessly<'a, T: ?Sized>(&self, me: Me, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let mutex = guard.mutex();
        let mut node = MaybeUninit::uninit();
        wait(me, Cause::Condition, ptr::from_ref(self).cast(), None, |mine| {
            let list = self.list.open();
            // SAFETY: the node is in this frame, which stays until the wake.
            unsafe { list.add(node.write(WaitNode::new(mine, 0))) };
            drop(list);
            drop(guard);
            Published::Yes
        });
        self.lock_again(mutex)
    }

    // A function of its own: otherwise the other path would also keep in memory what a deadline
    // needs.
    #[inline(never)]
    fn wait_bounded<'a, T: ?Sized>(
        &self,
        me: Me,
        deadline: Option<Instant>,
        guard: MutexGuard<'a, T>,
    ) -> (MutexGuard<'a, T>, Waited) {
        let bound = Deadline::of(me, deadline);
        let mutex = guard.mutex();
        let mut node = None;
        let ended = wait(me, Cause::Condition, ptr::from_ref(self).cast(), bound.at, |mine| {
            // SAFETY: the node is in this frame, which stays until the wake or until `remove`.
            unsafe { self.list.open().add(node.insert(WaitNode::new(mine, 0))) };
            drop(guard);
            Published::Yes
        });
        if ended != WaitEnd::TimedOut {
            return (self.lock_again(mutex), Waited::Woken);
        }
        if let Some(node) = &node {
            self.list.open().remove(node);
        }
        bound.passed();
        (mutex.lock(), Waited::TimedOut)
    }

    /// Locks after a notification.
    ///
    /// If the thread's deadline passes while it waits for the mutex, the notification goes to
    /// another waiter.
    #[inline(always)]
    fn lock_again<'a, T: ?Sized>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        let pass_on = PassOn(self);
        let guard = mutex.lock();
        std::mem::forget(pass_on);
        guard
    }

    /// Wakes the thread that has waited longest, if there is one.
    ///
    /// The caller need not hold the mutex.
    #[inline]
    pub fn notify_one(&self) {
        // A waiter that was listed under the mutex, before the caller held the mutex, is seen here.
        if self.list.seems_empty() {
            return;
        }
        let woken = self.list.open().take_one();
        if let Some(woken) = woken {
            woken.wake();
        }
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        if self.list.seems_empty() {
            return;
        }
        // A wake may cost a kernel call, so none is made while the list is open.
        let woken = TakenWaiters::new();
        let list = self.list.open();
        while !list.is_empty() {
            list.take(&woken);
        }
        drop(list);
        woken.wake_all(QueuedWait::wake);
    }
}

/// Notifies another waiter when a notified one leaves by unwinding.
struct PassOn<'a>(&'a Condvar);

impl Drop for PassOn<'_> {
    // Inlined, and passes its field by value, so that the guard need not be in memory.
    #[inline(always)]
    fn drop(&mut self) {
        pass_on(self.0);
    }
}

#[cold]
fn pass_on(condition: &Condvar) {
    condition.notify_one();
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Condvar").finish_non_exhaustive()
    }
}
