//! The interpreter's lock, and what becomes of it when the interpreter ends or the process forks.
//!
//! A thread gives the lock up while it waits for a reply ([`without_lock`]), and a thread of the
//! runtime takes it to run a procedure ([`with_lock`]). Two things can go wrong there.
//!
//! *The interpreter ends* while threads wait. Whoever takes its lock after that is ended by it on
//! the spot (Python 3.11 to 3.13, by `pthread_exit`), which no Rust frame survives. So at exit
//! ([`close`], by `atexit`) the gate is shut: threads that come back later sleep forever, which is
//! as long as the process lasts; and the interpreter's thread waits, with the lock given up, until
//! those have the lock that were past the gate. Dekker's protocol, all of it sequentially
//! consistent: either such a thread sees the gate shut, or `close` sees the thread.
//!
//! *The process forks.* A child has the channels of its parent, whose lanes the parent goes on
//! using, and none of the runtime's threads. It must touch nothing of them: calls are refused there
//! ([`is_forked`]), and bindings are not given up there but forgotten.

use pyo3::ffi;
use pyo3::prelude::*;
use std::cell::Cell;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

static SHUT: AtomicBool = AtomicBool::new(false);

/// Threads that were let past the gate and do not have the lock yet.
static COMING: AtomicUsize = AtomicUsize::new(0);

/// This process is a copy of one that used the runtime.
static FORKED: AtomicBool = AtomicBool::new(false);

/// At exit others have so long to get what they came for.
const PATIENCE: Duration = Duration::from_secs(2);

thread_local! {
    /// Whether this is the process's first thread, which is the one that ends the interpreter.
    static FIRST: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Whether the calling thread is the process's first one, which ends the interpreter and handles
/// signals.
#[inline]
pub fn is_first_thread() -> bool {
    FIRST.get().unwrap_or_else(|| {
        // SAFETY: asks for a number.
        let process = unsafe { libc::getpid() };
        // SAFETY: as above.
        let thread = unsafe { libc::gettid() };
        FIRST.set(Some(process == thread));
        process == thread
    })
}

/// Past the gate, until this is dropped.
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

/// The lock, given up: it is taken back when this is dropped.
pub struct ReleasedGil(*mut ffi::PyThreadState);

impl ReleasedGil {
    /// Gives the lock up.
    ///
    /// # Safety
    /// The calling thread has it, and does nothing with Python until this is dropped, on the same
    /// thread.
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
        // SAFETY: the state that the lock was given up with, on this thread; and the interpreter
        // lives: see the module.
        unsafe { ffi::PyEval_RestoreThread(self.0) };
        drop(coming);
    }
}

fn sleep_for_ever() -> Option<Coming> {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// Runs `work` without the interpreter's lock. It may take it again, by [`with_lock`].
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

/// Runs `work` with the interpreter's lock; `None` if there is no interpreter any more.
pub fn with_lock<T>(work: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    let coming = Coming::announce()?;
    Python::try_attach(|py| {
        drop(coming);
        work(py)
    })
}

/// Whether the interpreter ends.
pub fn is_shut() -> bool {
    SHUT.load(Ordering::SeqCst)
}

/// Shuts the gate. For `atexit`, which runs while the interpreter is whole.
pub fn close(py: Python<'_>) {
    SHUT.store(true, Ordering::SeqCst);
    py.detach(|| {
        let start = Instant::now();
        while COMING.load(Ordering::SeqCst) > 0 && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Has a fork noticed from now on. Called before anything of the runtime is used.
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

/// Whether this process is the child of one that used the runtime before it forked.
#[inline]
pub fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}
