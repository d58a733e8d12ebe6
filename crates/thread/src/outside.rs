//! Threads as kernel threads, for checkers that cannot follow a switch of stacks.
//!
//! Those are Miri and ThreadSanitizer (`make miri-threads`, `make tsan`).
//!
//! With `--cfg upcall_kernel_threads`, and always under Miri, [`run`](crate::run) just runs its
//! body and [`spawn`](crate::spawn) starts a kernel thread. Everything above the switch is the same
//! code: records, join, locks and all that waits. What cannot be checked this way is the scheduler
//! itself, which has its models.

use crate::join::{leave_result, say_done};
use crate::kernel;
use crate::number;
use crate::record::{REF, Rec, ThreadVtable, WaitState};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Starts a thread whose record and packet have been filled in.
pub(crate) fn start(
    rec: Rec,
    table: &'static ThreadVtable,
    stack_size: Option<usize>,
) -> io::Result<()> {
    rec.word.store(2 * REF, Ordering::Relaxed);
    rec.token.store(0, Ordering::Relaxed);
    rec.state.set(WaitState::RUNS);
    rec.has_result.set(false);
    rec.id.set(number::draw());
    let mut builder = std::thread::Builder::new();
    if let Some(size) = stack_size {
        builder = builder.stack_size(size);
    }
    let main = move || {
        kernel::adopt(rec);
        // SAFETY: spawner and runner agree on the packet's type, and it is run once, here.
        unsafe { (table.run)(rec.packet.get()) };
        // The thread's own reference is released with its kernel thread's thread-locals.
        leave_result(rec);
        say_done(rec);
    };
    // SAFETY: what the packet borrows lives until the thread has ended, by the promise made to
    // `spawn_unchecked`.
    drop(unsafe { builder.spawn_unchecked(main) }?);
    Ok(())
}

/// Runs `body` on the caller, which is a kernel thread already.
pub(crate) fn run<T>(body: impl FnOnce() -> T) -> T {
    RUNNING.fetch_add(1, Ordering::Relaxed);
    let outcome = catch_unwind(AssertUnwindSafe(body));
    RUNNING.fetch_sub(1, Ordering::Relaxed);
    outcome.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Number of calls of [`run`] that have not returned.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Returns `true` if threads may be spawned: a call of [`run`] has not returned.
pub(crate) fn is_running() -> bool {
    RUNNING.load(Ordering::Relaxed) > 0
}
