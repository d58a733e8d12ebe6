//! A mutex that blocks the thread and never its processor.
//!
//! # Why no poisoning
//! The only way to learn whether a panic drops a guard is `std::thread::panicking`, which counts
//! per kernel thread. Here many threads share a kernel thread, and a thread may block while it
//! unwinds; other threads would then poison every lock that they release. So a panic releases the
//! lock, as in parking_lot, and data that a panic may leave half changed needs its own mark.

use crate::block::Waited;
use crate::deadline::after;
use crate::lock::RawLock;
use crate::turn::wait_for;
use crate::waiter::QueuedWait;
use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

/// Mutual exclusion between threads, on one virtual processor or on several.
///
/// Kernel threads may take part, and block as such.
///
/// First come, first served: the lock passes to the thread that has waited longest, and is not free
/// in between. There is no poisoning: a panic that drops the guard unlocks (the module comment of
/// `mutex.rs` explains why). A thread that locks it again while holding it blocks for ever, as with
/// `std`.
pub struct Mutex<T: ?Sized> {
    lock: RawLock<QueuedWait>,
    data: UnsafeCell<T>,
}

// SAFETY: the data moves from one thread to another with the lock, one at a time.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}
// SAFETY: a mutex that is moved is not locked, and holds the data by value.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}

impl<T> Mutex<T> {
    /// Creates an unlocked mutex.
    pub const fn new(data: T) -> Self {
        Self { lock: RawLock::new(), data: UnsafeCell::new(data) }
    }

    /// Returns the data.
    pub fn into_inner(self) -> T {
        self.data.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Locks, blocking the calling thread while another one holds the lock.
    #[inline(always)]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        if !self.lock.try_acquire() {
            wait_for(&self.lock, 0, None);
        }
        self.guard()
    }

    /// Locks if that needs no wait.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.lock.try_acquire().then(|| self.guard())
    }

    /// Locks, waiting for at most `timeout`.
    pub fn try_lock_for(&self, timeout: Duration) -> Option<MutexGuard<'_, T>> {
        self.lock_by(|| after(timeout))
    }

    /// Locks, waiting until `deadline` at most.
    pub fn try_lock_until(&self, deadline: Instant) -> Option<MutexGuard<'_, T>> {
        self.lock_by(|| Some(deadline))
    }

    /// Locks, waiting until `deadline` at most, if there is one.
    pub(crate) fn lock_by(
        &self,
        deadline: impl FnOnce() -> Option<Instant>,
    ) -> Option<MutexGuard<'_, T>> {
        (self.lock.try_acquire() || wait_for(&self.lock, 0, deadline()) == Waited::Woken)
            .then(|| self.guard())
    }

    /// Returns the data. The borrow shows that the lock is not held.
    pub fn get_mut(&mut self) -> &mut T {
        self.data.get_mut()
    }

    /// Creates the guard of the lock, which is held.
    #[inline(always)]
    fn guard(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, not_send: PhantomData }
    }

    #[inline(always)]
    fn unlock(&self) {
        if let Some(next) = self.lock.release() {
            next.wake();
        }
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Mutex");
        match self.try_lock() {
            Some(guard) => shown.field("data", &&*guard),
            None => shown.field("data", &"<locked>"),
        };
        shown.finish()
    }
}

/// Access to a locked mutex's data; dropping it unlocks.
#[must_use = "dropping the guard unlocks at once"]
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    not_send: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives a shared reference to the data, nothing else.
unsafe impl<T: ?Sized + Sync> Sync for MutexGuard<'_, T> {}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    #[inline(always)]
    pub(crate) fn mutex(&self) -> &'a Mutex<T> {
        self.mutex
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the guard's existence means that this thread holds the lock.
        unsafe { &*self.mutex.data.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard's existence means that this thread holds the lock, and the guard is
        // borrowed uniquely.
        unsafe { &mut *self.mutex.data.get() }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.mutex.unlock();
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
