//! Locks that no panic poisons, and the condition variable that goes with them.
//!
//! A holder that panics leaves the data as it is between two operations, and the next holder goes
//! on with it. A poisoned lock would make one caught panic, of a handler for example, a panic of
//! every later holder.
//!
//! These block the kernel thread: code that runs on a virtual processor holds them for a few
//! instructions only. User-level threads have locks of their own in `upcall_thread`. A mutex that
//! belongs to a modelled protocol comes from [`atomic`](crate::atomic), where it is loom's under
//! loom.

use std::sync::{self, PoisonError, TryLockError};
use std::time::Duration;

pub use std::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult};

/// A mutex.
#[derive(Debug, Default)]
pub struct KernelMutex<T>(sync::Mutex<T>);

impl<T> KernelMutex<T> {
    /// An unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Waits until no other thread holds the lock, and holds it.
    ///
    /// The guard releases it when dropped.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds the lock if no other thread does.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The value, which no other thread can hold.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lock for many readers or one writer.
#[derive(Debug, Default)]
pub struct KernelRwLock<T>(sync::RwLock<T>);

impl<T> KernelRwLock<T> {
    /// An unlocked lock.
    pub const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }

    /// Waits until no writer holds the lock.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other thread holds the lock.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A condition variable.
#[derive(Debug, Default)]
pub struct KernelCondvar(sync::Condvar);

impl KernelCondvar {
    /// A condition variable without waiting threads.
    pub const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    /// Releases the lock, waits for a notification, and takes the lock again.
    ///
    /// May return without a notification.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as [`wait`](Self::wait) until `condition` is false.
    pub fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        self.0.wait_while(guard, condition).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as [`wait`](Self::wait), at most for `limit`.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
    ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
        self.0.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as [`wait_while`](Self::wait_while), at most for `limit`.
    pub fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
        self.0.wait_timeout_while(guard, limit, condition).unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes one waiting thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_panic_of_a_holder_poisons_nothing() {
        let (mutex, lock, come) = (KernelMutex::new(1), KernelRwLock::new(1), KernelCondvar::new());
        let panics = catch_unwind(AssertUnwindSafe(|| {
            let (mut first, mut second) = (mutex.lock(), lock.write());
            (*first, *second) = (2, 2);
            panic!("a holder");
        }));
        assert!(panics.is_err());
        assert_eq!(mutex.try_lock().map(|value| *value), Some(2));
        assert_eq!((*mutex.lock(), *lock.read()), (2, 2));
        *lock.write() = 3;
        assert_eq!(*come.wait_while(mutex.lock(), |value| *value == 0), 2);
        let held = mutex.lock();
        assert!(mutex.try_lock().is_none());
        drop(held);
        let mut mutex = mutex;
        *mutex.get_mut() += 1;
        assert_eq!(mutex.into_inner(), 3);
    }
}
