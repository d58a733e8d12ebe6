//! Threads that borrow from their spawner, as `std::thread::scope`.
//!
//! The scope does not end before all its threads have, so what they borrow outlives them. Their
//! results and closures are dropped before they count as ended. The count and the scope's waiter
//! are in an allocation of their own, since the last thread touches them when the scope may already
//! have ended.

use crate::block::block_unless;
use crate::deadline::shielded;
use crate::join::JoinHandle;
use crate::spawn::Builder;
use crate::thread::Thread;
use crate::waiter::WaiterCell;
use std::cell::UnsafeCell;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::thread::Result;
use std::time::{Duration, Instant};

/// A scope in which threads may be spawned; see [`scope`].
pub struct Scope<'scope, 'env: 'scope> {
    data: Arc<Data>,
    /// Invariant, as in `std`: the threads may write what they borrow.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

#[derive(Default)]
struct Data {
    running: AtomicUsize,
    /// A thread that was not joined has panicked.
    panicked: AtomicBool,
    main: WaiterCell,
}

/// Runs `f`, in which threads can be spawned that borrow what outlives the call.
///
/// Returns when all of them have ended. Blocks the calling thread only.
/// [`with_deadline`](crate::with_deadline) does not cut the wait for the threads short, since they
/// borrow.
///
/// ```
/// use upcall_thread as thread;
///
/// thread::run(|| {
///     let mut halves = [0_u64; 2];
///     thread::scope(|s| {
///         for (start, half) in halves.iter_mut().enumerate() {
///             s.spawn(move || *half = (start as u64 * 50 + 1..=start as u64 * 50 + 50).sum());
///         }
///     });
///     assert_eq!(halves.iter().sum::<u64>(), 5050);
/// });
/// ```
///
/// # Panics
/// If `f` panics, or a thread of the scope that was not joined has panicked.
pub fn scope<'env, F, T>(f: F) -> T
where
    F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T,
{
    let scope = Scope { data: Arc::default(), scope: PhantomData, env: PhantomData };
    let result = catch_unwind(AssertUnwindSafe(|| f(&scope)));
    shielded(|| scope.data.wait());
    match result {
        Err(payload) => resume_unwind(payload),
        Ok(_) if scope.data.panicked.load(Ordering::Relaxed) => {
            panic!("a thread of the scope panicked")
        }
        Ok(result) => result,
    }
}

impl Data {
    /// Waits until no thread runs.
    fn wait(&self) {
        while self.running.load(Ordering::Acquire) != 0 {
            block_unless(|waiter| {
                // The cell is empty, or holds this thread's own waiter from a wait that is over.
                drop(self.main.put(waiter));
                // With the fence in `end`: either the last thread finds the waiter, or this one
                // finds that no thread is left.
                fence(Ordering::SeqCst);
                if self.running.load(Ordering::Acquire) == 0 { self.main.take() } else { None }
            });
        }
    }

    /// Counts a thread as ended.
    fn end(&self) {
        if self.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            fence(Ordering::SeqCst);
            drop(self.main.take());
        }
    }
}

/// Ends a thread of the scope when dropped.
struct ThreadEndGuard {
    data: Arc<Data>,
    /// The thread reached its end.
    well: bool,
}

impl Drop for ThreadEndGuard {
    fn drop(&mut self) {
        if !self.well {
            self.data.panicked.store(true, Ordering::Relaxed);
        }
        self.data.end();
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a thread that may borrow for `'scope`.
    ///
    /// # Panics
    /// If the caller is not on a virtual processor, or there is no memory for the stack.
    pub fn spawn<F, T>(&'scope self, body: F) -> ScopedJoinHandle<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        match Builder::new().spawn_scoped(self, body) {
            Ok(handle) => handle,
            Err(error) => panic!("upcall-thread: cannot spawn a thread: {error}"),
        }
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope")
            .field("running", &self.data.running.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

/// Where a thread of a scope leaves its result.
///
/// The thread holds one reference and its handle the other.
struct ScopedPacket<'scope, T> {
    result: UnsafeCell<Option<Result<T>>>,
    data: Arc<Data>,
    scope: PhantomData<&'scope ()>,
}

// SAFETY: the thread writes the result, and the joiner reads it after the thread has ended.
unsafe impl<T: Send> Sync for ScopedPacket<'_, T> {}

impl<T> Drop for ScopedPacket<'_, T> {
    fn drop(&mut self) {
        if matches!(self.result.get_mut(), Some(Err(_))) {
            self.data.panicked.store(true, Ordering::Relaxed);
        }
    }
}

/// A closure whose borrows may end while the function that received it still runs.
///
/// After `end` the scope may end before the thread's last frames have returned. A plain argument
/// would promise the compiler that what it borrows outlives the call.
struct MaybeDangling<F>(MaybeUninit<F>);

impl<F> MaybeDangling<F> {
    fn new(inner: F) -> Self {
        Self(MaybeUninit::new(inner))
    }

    fn into_inner(self) -> F {
        // SAFETY: `new` put it there, and it is taken out once, since `self` is forgotten.
        let inner = unsafe { self.0.assume_init_read() };
        std::mem::forget(self);
        inner
    }
}

impl<F> Drop for MaybeDangling<F> {
    fn drop(&mut self) {
        // SAFETY: `new` put it there, and it has not been taken out.
        unsafe { self.0.assume_init_drop() };
    }
}

impl Builder {
    /// Starts a thread in a scope; see [`scope`] and [`Builder::spawn`].
    ///
    /// # Errors
    /// As [`Builder::spawn`].
    pub fn spawn_scoped<'scope, F, T>(
        self,
        scope: &'scope Scope<'scope, '_>,
        body: F,
    ) -> io::Result<ScopedJoinHandle<'scope, T>>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        let data = Arc::clone(&scope.data);
        let packet = Arc::new(ScopedPacket {
            result: UnsafeCell::new(None),
            data: Arc::clone(&data),
            scope: PhantomData,
        });
        let theirs = Arc::clone(&packet);
        let body = MaybeDangling::new(body);
        let run = move || {
            // The guard also acts if a result is dropped here, because its handle is gone, and that
            // panics.
            let mut end = ThreadEndGuard { data, well: false };
            let result = catch_unwind(AssertUnwindSafe(body.into_inner()));
            // SAFETY: the joiner reads the result after this thread has ended.
            unsafe { *theirs.result.get() = Some(result) };
            drop(theirs);
            end.well = true;
            drop(end);
        };
        scope.data.running.fetch_add(1, Ordering::Relaxed);
        // SAFETY: everything borrowed is dropped before `end`, and the scope does not end before
        // that was called.
        match unsafe { self.spawn_unchecked(run) } {
            Ok(handle) => Ok(ScopedJoinHandle { handle, packet }),
            Err(error) => {
                scope.data.running.fetch_sub(1, Ordering::Relaxed);
                Err(error)
            }
        }
    }
}

/// The right to join a thread of a scope. Dropping it leaves the join to the scope.
pub struct ScopedJoinHandle<'scope, T> {
    handle: JoinHandle<()>,
    packet: Arc<ScopedPacket<'scope, T>>,
}

impl<T> ScopedJoinHandle<'_, T> {
    /// Waits for the thread to end and returns its result, or the payload of its panic.
    ///
    /// Blocks the calling thread only.
    pub fn join(self) -> Result<T> {
        let Self { handle, packet } = self;
        handle.join()?;
        taken(packet)
    }

    /// As [`join`](Self::join), for at most `timeout`.
    ///
    /// # Errors
    /// The handle itself, if the thread has not ended by then.
    pub fn join_timeout(self, timeout: Duration) -> std::result::Result<Result<T>, Self> {
        let Self { handle, packet } = self;
        match handle.join_timeout(timeout) {
            Ok(ended) => Ok(ended.and_then(|()| taken(packet))),
            Err(handle) => Err(Self { handle, packet }),
        }
    }

    /// As [`join`](Self::join), until `deadline` at most.
    ///
    /// # Errors
    /// The handle itself, if the thread has not ended by then.
    pub fn join_until(self, deadline: Instant) -> std::result::Result<Result<T>, Self> {
        let Self { handle, packet } = self;
        match handle.join_until(deadline) {
            Ok(ended) => Ok(ended.and_then(|()| taken(packet))),
            Err(handle) => Err(Self { handle, packet }),
        }
    }

    /// Returns `true` if the thread has ended, so that `join` would not wait.
    pub fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }

    /// A handle to the thread.
    pub fn thread(&self) -> Thread {
        self.handle.thread()
    }
}

/// The result of a thread that has ended.
fn taken<T>(packet: Arc<ScopedPacket<'_, T>>) -> Result<T> {
    // SAFETY: the thread has ended, and this is the only handle, which is consumed here.
    let result = unsafe { (*packet.result.get()).take() };
    result.expect("a thread of a scope leaves a result before it ends")
}

impl<T> fmt::Debug for ScopedJoinHandle<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopedJoinHandle").field("thread", &self.thread()).finish()
    }
}
