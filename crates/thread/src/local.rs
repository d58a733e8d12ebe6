//! Thread-local values.
//!
//! `std::thread_local!` gives one value to each kernel thread, so all threads of a virtual
//! processor share it. The values here are for both kinds of threads: on a virtual processor each
//! user-level thread has its own, elsewhere each kernel thread.

use crate::current::current_record;
use crate::extra::Extra;
use crate::locals::{AccessError, Local};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Declares thread-local values, with the syntax of `std::thread_local!`.
///
/// A value is created at the thread's first use of it. It is dropped on the thread when that ends,
/// before a joiner runs on (the end of a [`scope`](crate::scope) does not wait for the drop). A
/// thread that never ends, because [`run`](crate::run) returned first, drops nothing.
///
/// ```
/// use std::cell::Cell;
/// use upcall_thread as thread;
///
/// thread::thread_local! {
///     static CALLS: Cell<u32> = const { Cell::new(0) };
/// }
///
/// thread::run(|| {
///     CALLS.set(1);
///     let other = thread::spawn(|| CALLS.replace(7)).join().unwrap();
///     assert_eq!((CALLS.get(), other), (1, 0));
/// });
/// ```
#[macro_export]
macro_rules! thread_local {
    () => {};
    (
        $(#[$attr:meta])* $vis:vis static $name:ident: $t:ty = const $init:block
        $(; $($rest:tt)*)?
    ) => {
        $(#[$attr])* $vis static $name: $crate::LocalKey<$t> =
            $crate::LocalKey::new(|| const $init);
        $($crate::thread_local!($($rest)*);)?
    };
    ($(#[$attr:meta])* $vis:vis static $name:ident: $t:ty = $init:expr $(; $($rest:tt)*)?) => {
        $(#[$attr])* $vis static $name: $crate::LocalKey<$t> = $crate::LocalKey::new(|| $init);
        $($crate::thread_local!($($rest)*);)?
    };
}

/// The key of a thread-local value; see [`thread_local!`](crate::thread_local!).
pub struct LocalKey<T: 'static> {
    make: fn() -> T,
    /// Index into each thread's values, plus one; 0 until the first use.
    place: AtomicUsize,
}

static PLACES: AtomicUsize = AtomicUsize::new(0);

impl<T: 'static> LocalKey<T> {
    /// Used by the macro.
    #[doc(hidden)]
    pub const fn new(make: fn() -> T) -> Self {
        Self { make, place: AtomicUsize::new(0) }
    }

    /// Runs `f` with the calling thread's value, which is created at the first use.
    ///
    /// # Panics
    /// If the value has been dropped already.
    pub fn with<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        match self.try_with(f) {
            Ok(result) => result,
            Err(error) => panic!("upcall-thread: {error}"),
        }
    }

    /// As [`with`](Self::with), but returns an error where that panics.
    ///
    /// # Errors
    /// The value has been dropped already: the thread is ending.
    pub fn try_with<R>(&'static self, f: impl FnOnce(&T) -> R) -> Result<R, AccessError> {
        let locals = &current_record().extra_or_new(Extra::default).locals;
        let place = self.place();
        let value = match locals.find::<T>(place)? {
            Some(value) => value,
            None => {
                // The initialiser may use other values, or this one, and may block.
                let made: Box<dyn Any> = Box::new((self.make)());
                drop(locals.put(place, Local::Value(made)));
                locals.find::<T>(place)?.ok_or(AccessError)?
            }
        };
        // SAFETY: the value is in a box that only this thread removes, and not before it ends.
        // Until then `put` is called only for unused places, except for a value that used itself in
        // its own initialiser, of which no reference is left by then.
        Ok(f(unsafe { &*value }))
    }

    #[inline]
    fn place(&self) -> usize {
        match self.place.load(Ordering::Relaxed) {
            0 => self.first_use(),
            place => place - 1,
        }
    }

    #[cold]
    fn first_use(&self) -> usize {
        let new = PLACES.fetch_add(1, Ordering::Relaxed) + 1;
        match self.place.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => new - 1,
            Err(place) => place - 1,
        }
    }
}

impl<T: 'static> LocalKey<Cell<T>> {
    /// Stores `value`.
    pub fn set(&'static self, value: T) {
        self.with(|cell| cell.set(value));
    }

    /// Returns a copy of the value.
    pub fn get(&'static self) -> T
    where
        T: Copy,
    {
        self.with(Cell::get)
    }

    /// Returns the value and leaves its type's default in its place.
    pub fn take(&'static self) -> T
    where
        T: Default,
    {
        self.with(Cell::take)
    }

    /// Returns the value and leaves `value` in its place.
    pub fn replace(&'static self, value: T) -> T {
        self.with(|cell| cell.replace(value))
    }
}

impl<T: 'static> LocalKey<RefCell<T>> {
    /// Runs `f` with the value borrowed.
    ///
    /// # Panics
    /// If the value is mutably borrowed.
    pub fn with_borrow<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        self.with(|cell| f(&cell.borrow()))
    }

    /// Runs `f` with the value mutably borrowed.
    ///
    /// # Panics
    /// If the value is borrowed.
    pub fn with_borrow_mut<R>(&'static self, f: impl FnOnce(&mut T) -> R) -> R {
        self.with(|cell| f(&mut cell.borrow_mut()))
    }
}

impl<T> fmt::Debug for LocalKey<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalKey").finish_non_exhaustive()
    }
}
