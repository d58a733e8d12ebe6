//! The interpreter's lock, and what happens to it when the interpreter ends or the process forks.
//!
//! A thread releases the lock while it waits for a reply ([`without_lock`]), and a thread of the
//! runtime acquires it to run a procedure ([`with_lock`]). Two things can go wrong there.
//!
//! *The interpreter ends* while threads wait. A thread that acquires its lock after that is ended
//! by it at once (Python 3.11 to 3.13, by `pthread_exit`), which no Rust frame survives. So the
//! gate is shut at exit ([`close`], by `atexit`). Threads that return later sleep forever, that is,
//! until the process ends. The interpreter's thread releases the lock, and waits until the threads
//! that were past the gate have acquired it. This is Dekker's protocol, sequentially consistent
//! throughout: either such a thread sees the gate shut, or `close` sees the thread.
//!
//! *The process forks.* A child has the channels of its parent, whose lanes the parent continues to
//! use, and none of the runtime's threads. It must touch none of them: there, calls are refused
//! ([`is_forked`]), and bindings are forgotten instead of closed.

use crate::interrupt;
use pyo3::ffi;
use pyo3::prelude::*;
use std::cell::Cell;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use upcall_rpc::BindError;

static SHUT: AtomicBool = AtomicBool::new(false);

/// Number of threads that have passed the gate and do not have the lock yet.
static COMING: AtomicUsize = AtomicUsize::new(0);

/// Set if this process was forked from a process that used the runtime.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Maximum time that exit waits for threads that are past the gate.
const PATIENCE: Duration = Duration::from_secs(2);

thread_local! {
    /// Whether this is the process's first thread, which ends the interpreter.
    static FIRST: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Returns `true` on the process's first thread, which ends the interpreter and handles signals.
#[inline]
pub fn is_first_thread() -> bool {
    FIRST.get().unwrap_or_else(|| {
        // SAFETY: returns a number.
        let process = unsafe { libc::getpid() };
        // SAFETY: as above.
        let thread = unsafe { libc::gettid() };
        FIRST.set(Some(process == thread));
        process == thread
    })
}

/// Keeps a thread counted as past the gate until this is dropped.
struct Coming;

impl Coming {
    fn announce() -> Option<Self> {
        COMING.fetch_add(1, Ordering::SeqCst);
        let coming = Self;
        if SHUT.load(Ordering::SeqCst) { None } else { Some(coming) }
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        COMING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The released lock, which is acquired again when this is dropped.
pub struct ReleasedGil(*mut ffi::PyThreadState);

impl ReleasedGil {
    /// Releases the lock.
    ///
    /// # Safety
    /// The calling thread has the lock, and uses nothing of Python until this is dropped on the
    /// same thread.
    #[inline]
    pub unsafe fn go() -> Self {
        // SAFETY: the caller's contract.
        Self(unsafe { ffi::PyEval_SaveThread() })
    }
}

impl Drop for ReleasedGil {
    #[inline]
    fn drop(&mut self) {
        let coming =
            if is_first_thread() { None } else { Coming::announce().or_else(sleep_for_ever) };
        // SAFETY: the state that the lock was released with, on this thread; the interpreter is
        // alive, as the module's documentation explains.
        unsafe { ffi::PyEval_RestoreThread(self.0) };
        drop(coming);
    }
}

fn sleep_for_ever() -> Option<Coming> {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// Runs `work` without the interpreter's lock. `work` may acquire it again by [`with_lock`].
pub fn without_lock<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    let (result, coming) = py.detach(|| {
        let result = work();
        let coming =
            if is_first_thread() { None } else { Coming::announce().or_else(sleep_for_ever) };
        (result, coming)
    });
    drop(coming);
    result
}

/// Repeats `attempt` without the interpreter's lock while no server serves a name, for at most
/// `limit`. On the first thread, a signal handler that raises ends the wait.
pub fn wait_for_server<T: Send>(
    py: Python<'_>,
    limit: Duration,
    mut attempt: impl FnMut() -> Result<T, BindError> + Send,
) -> PyResult<Result<T, BindError>> {
    let first = is_first_thread();
    let bound = without_lock(py, || {
        upcall_rpc::wait_while_absent(limit, || {
            if first && interrupt::ask() {
                return Err(BindError::Protocol { what: "a signal interrupts the wait".into() });
            }
            attempt()
        })
    });
    interrupt::raised().map_or(Ok(bound), Err)
}

/// Runs `work` with the interpreter's lock. Returns `None` if the interpreter has ended.
pub fn with_lock<T>(work: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    let coming = Coming::announce()?;
    Python::try_attach(|py| {
        drop(coming);
        work(py)
    })
}

/// Returns `true` if the interpreter is ending.
pub fn is_shut() -> bool {
    SHUT.load(Ordering::SeqCst)
}

/// Shuts the gate. For `atexit`, which runs while the interpreter is still whole.
pub fn close(py: Python<'_>) {
    SHUT.store(true, Ordering::SeqCst);
    py.detach(|| {
        let start = Instant::now();
        while COMING.load(Ordering::SeqCst) > 0 && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Makes forks be noticed from now on. Called before anything of the runtime is used.
pub fn watch_forks() {
    extern "C" fn in_child() {
        FORKED.store(true, Ordering::Relaxed);
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a function that may run in any child.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Returns `true` if this process was forked from a process that used the runtime.
#[inline]
pub fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}
