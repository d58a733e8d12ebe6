//! Initialisation that runs once: [`Once`], [`OnceLock`], [`LazyLock`].
//!
//! A function that panics does not count as run, and the next thread tries again; so nothing is
//! poisoned. The types of `std` would block the processor with all its threads, and for ever, if
//! the initialising thread blocks on that processor.

use crate::block::Waited;
use crate::condvar::Condvar;
use crate::deadline::after;
use crate::mutex::Mutex;
use std::cell::UnsafeCell;
use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A function that is run once, as `std::sync::Once`, for both kinds of threads.
pub struct Once {
    done: AtomicBool,
    running: Mutex<()>,
    complete: Condvar,
}

impl Once {
    /// Creates a `Once` for which no function has run.
    pub const fn new() -> Self {
        Self { done: AtomicBool::new(false), running: Mutex::new(()), complete: Condvar::new() }
    }

    /// Returns `true` if a function has run to its end.
    #[inline]
    pub fn is_completed(&self) -> bool {
        // Acquire: the caller sees what the function did.
        self.done.load(Ordering::Acquire)
    }

    /// Runs `f`, unless a function has run already.
    ///
    /// While another thread runs a function, waits for it. Calling this from inside `f` blocks for
    /// ever.
    ///
    /// # Panics
    /// If `f` panics. Then no function counts as run, and another thread's function can run.
    #[inline]
    pub fn call_once(&self, f: impl FnOnce()) {
        if !self.is_completed() {
            self.call_first(f);
        }
    }

    #[cold]
    fn call_first(&self, f: impl FnOnce()) {
        let running = self.running.lock();
        if self.is_completed() {
            return;
        }
        f();
        self.done.store(true, Ordering::Release);
        drop(running);
        self.complete.notify_all();
    }

    /// Blocks the calling thread until a function has run to its end.
    pub fn wait(&self) {
        self.wait_until(None);
    }

    /// As [`wait`](Self::wait), for at most `timeout`.
    pub fn wait_timeout(&self, timeout: Duration) -> Waited {
        self.wait_until(after(timeout))
    }

    fn wait_until(&self, deadline: Option<Instant>) -> Waited {
        if self.is_completed() {
            return Waited::Woken;
        }
        // Under the lock, no thread is between the end of its function and its notification. But
        // the lock may be held for long.
        let Some(mut running) = self.running.lock_by(|| deadline) else { return Waited::TimedOut };
        let mut waited = Waited::Woken;
        while !self.is_completed() && waited == Waited::Woken {
            (running, waited) = self.complete.wait_by(running, deadline);
        }
        if self.is_completed() { Waited::Woken } else { Waited::TimedOut }
    }
}

impl Default for Once {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Once").field("completed", &self.is_completed()).finish()
    }
}

/// A value that is set once, as `std::sync::OnceLock`, for both kinds of threads.
pub struct OnceLock<T> {
    once: Once,
    /// Initialised when `once` is completed.
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: shared references to the value go to all threads, and a value set by one may be dropped
// by another.
unsafe impl<T: Send + Sync> Sync for OnceLock<T> {}
// SAFETY: holds the value by value.
unsafe impl<T: Send> Send for OnceLock<T> {}

impl<T> OnceLock<T> {
    /// Creates an unset value.
    pub const fn new() -> Self {
        Self { once: Once::new(), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// Returns the value, if it is set.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        self.once.is_completed().then(|| self.there())
    }

    /// Returns the value, if it is set.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        // SAFETY: `once` is completed, so the value is there; and the borrow is unique.
        self.once.is_completed().then(|| unsafe { self.value.get_mut().assume_init_mut() })
    }

    /// Sets the value.
    ///
    /// # Errors
    /// Returns `value` if one is set already.
    pub fn set(&self, value: T) -> Result<(), T> {
        let mut value = Some(value);
        self.once.call_once(|| {
            if let Some(value) = value.take() {
                self.write(value);
            }
        });
        value.map_or(Ok(()), Err)
    }

    /// Returns the value, after setting it to the result of `make` if it is not set.
    ///
    /// While another thread makes a value, waits for that. Calling this from inside `make` blocks
    /// for ever.
    ///
    /// # Panics
    /// If `make` panics. Then the value stays unset.
    #[inline]
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        self.once.call_once(|| self.write(make()));
        self.there()
    }

    /// Blocks the calling thread until the value is set.
    pub fn wait(&self) -> &T {
        self.once.wait();
        self.there()
    }

    /// As [`wait`](Self::wait), for at most `timeout`.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<&T> {
        (self.once.wait_timeout(timeout) == Waited::Woken).then(|| self.there())
    }

    /// Takes the value, which is then unset.
    pub fn take(&mut self) -> Option<T> {
        if !std::mem::take(self.once.done.get_mut()) {
            return None;
        }
        // SAFETY: the value was there, and the flag has been cleared.
        Some(unsafe { self.value.get_mut().assume_init_read() })
    }

    /// Returns the value, if it is set.
    pub fn into_inner(mut self) -> Option<T> {
        self.take()
    }

    /// Sets the value, inside `once`.
    fn write(&self, value: T) {
        // SAFETY: one thread is inside `once`, and the value is not read before `once` is
        // completed.
        unsafe { &mut *self.value.get() }.write(value);
    }

    /// Returns the value. `once` must be completed.
    #[inline(always)]
    fn there(&self) -> &T {
        debug_assert!(self.once.is_completed());
        // SAFETY: the value is not written again once it is there.
        let value = unsafe { &*self.value.get() };
        // SAFETY: `once` is completed, so the value is there.
        unsafe { value.assume_init_ref() }
    }
}

impl<T> Drop for OnceLock<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> From<T> for OnceLock<T> {
    fn from(value: T) -> Self {
        let cell = Self::new();
        let _ = cell.set(value);
        cell
    }
}

impl<T: fmt::Debug> fmt::Debug for OnceLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnceLock").field(&self.get()).finish()
    }
}

/// A value that is made at its first use, as `std::sync::LazyLock`.
///
/// It is for both kinds of threads.
pub struct LazyLock<T, F = fn() -> T> {
    value: OnceLock<T>,
    make: F,
}

impl<T, F: Fn() -> T> LazyLock<T, F> {
    /// Creates a value that is not made yet. `make` runs once, or again if it panics.
    pub const fn new(make: F) -> Self {
        Self { value: OnceLock::new(), make }
    }

    /// Returns the value, made now if this is the first use. Dereferencing does the same.
    #[inline]
    pub fn force(this: &Self) -> &T {
        this.value.get_or_init(&this.make)
    }
}

impl<T, F: Fn() -> T> Deref for LazyLock<T, F> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        Self::force(self)
    }
}

impl<T: fmt::Debug, F> fmt::Debug for LazyLock<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LazyLock").field(&self.value.get()).finish()
    }
}
