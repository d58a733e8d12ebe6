//! A read-write lock that blocks the thread and never its processor.
//!
//! Like `mutex`, and for the same reason, it is never poisoned.

use crate::deadline::after;
use crate::shares::{MOST, Shares};
use crate::turn::{give, take, take_by};
use crate::waiter::QueuedWait;
use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

/// Many readers or one writer, as `std::sync::RwLock`, for both kinds of threads.
///
/// First come, first served: a thread that comes while others wait queues behind them, a reader
/// behind a writer too. So a thread that holds the lock for reading must not read-lock it again: if
/// a writer has queued in between, the two wait for each other. There is no poisoning, as with
/// [`Mutex`](crate::Mutex).
pub struct RwLock<T: ?Sized> {
    /// A reader takes one share, a writer all.
    shares: Shares<QueuedWait>,
    data: UnsafeCell<T>,
}

// SAFETY: a writer has the data alone, so the data may move from one thread to another; readers
// share it.
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLock<T> {}
// SAFETY: a lock that is moved is not held, and holds the data by value.
unsafe impl<T: ?Sized + Send> Send for RwLock<T> {}

const READER: usize = 1;
const WRITER: usize = MOST;

impl<T> RwLock<T> {
    /// Creates an unlocked lock.
    pub const fn new(data: T) -> Self {
        Self { shares: Shares::new(MOST), data: UnsafeCell::new(data) }
    }

    /// Returns the data.
    pub fn into_inner(self) -> T {
        self.data.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Locks for reading.
    ///
    /// Blocks the calling thread while another one writes, or has waited longer.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        take(&self.shares, READER);
        self.reader()
    }

    /// Locks for writing.
    ///
    /// Blocks the calling thread while others read or write, or have waited longer.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        take(&self.shares, WRITER);
        self.writer()
    }

    /// Locks for reading if that needs no wait.
    #[inline]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.shares.try_take(READER).then(|| self.reader())
    }

    /// Locks for writing if that needs no wait.
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.shares.try_take(WRITER).then(|| self.writer())
    }

    /// Locks for reading, waiting for at most `timeout`.
    pub fn try_read_for(&self, timeout: Duration) -> Option<RwLockReadGuard<'_, T>> {
        take_by(&self.shares, READER, || after(timeout)).then(|| self.reader())
    }

    /// Locks for reading, waiting until `deadline` at most.
    pub fn try_read_until(&self, deadline: Instant) -> Option<RwLockReadGuard<'_, T>> {
        take_by(&self.shares, READER, || Some(deadline)).then(|| self.reader())
    }

    /// Locks for writing, waiting for at most `timeout`.
    pub fn try_write_for(&self, timeout: Duration) -> Option<RwLockWriteGuard<'_, T>> {
        take_by(&self.shares, WRITER, || after(timeout)).then(|| self.writer())
    }

    /// Locks for writing, waiting until `deadline` at most.
    pub fn try_write_until(&self, deadline: Instant) -> Option<RwLockWriteGuard<'_, T>> {
        take_by(&self.shares, WRITER, || Some(deadline)).then(|| self.writer())
    }

    /// Returns the data. The borrow shows that the lock is not held.
    pub fn get_mut(&mut self) -> &mut T {
        self.data.get_mut()
    }

    fn reader(&self) -> RwLockReadGuard<'_, T> {
        RwLockReadGuard { lock: self, not_send: PhantomData }
    }

    fn writer(&self) -> RwLockWriteGuard<'_, T> {
        RwLockWriteGuard { lock: self, not_send: PhantomData }
    }
}

/// Shared access to a lock's data; dropping it unlocks.
#[must_use = "dropping the guard unlocks at once"]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
    not_send: PhantomData<*const ()>,
}

/// Sole access to a lock's data; dropping it unlocks.
#[must_use = "dropping the guard unlocks at once"]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
    not_send: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives a shared reference to the data, nothing else.
unsafe impl<T: ?Sized + Sync> Sync for RwLockReadGuard<'_, T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Sync> Sync for RwLockWriteGuard<'_, T> {}

impl<'a, T: ?Sized> RwLockWriteGuard<'a, T> {
    /// Becomes a reader, with no writer in between.
    pub fn downgrade(guard: Self) -> RwLockReadGuard<'a, T> {
        let lock = guard.lock;
        std::mem::forget(guard);
        give(&lock.shares, WRITER - READER);
        lock.reader()
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the guard's existence means that this thread has a share, so that no other has
        // all.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the guard's existence means that this thread has all shares.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard's existence means that this thread has all shares, and the guard is
        // borrowed uniquely.
        unsafe { &mut *self.lock.data.get() }
    }
}

impl<T: ?Sized> Drop for RwLockReadGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        give(&self.lock.shares, READER);
    }
}

impl<T: ?Sized> Drop for RwLockWriteGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        give(&self.lock.shares, WRITER);
    }
}

impl<T: Default> Default for RwLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> From<T> for RwLock<T> {
    fn from(data: T) -> Self {
        Self::new(data)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RwLock");
        match self.try_read() {
            Some(guard) => shown.field("data", &&*guard),
            None => shown.field("data", &"<locked>"),
        };
        shown.finish()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
