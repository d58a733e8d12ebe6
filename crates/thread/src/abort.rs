//! Aborts the process where a panic, or a nested wait, would leave a thread half suspended.

/// The panic message of a nested wait.
pub(crate) const NESTED: &str = "upcall-thread: a thread that has published its waiter must not \
    block or yield before the wake; neither may Idle::poll or Idle::rest";

/// Aborts the process when a panic drops it.
pub(crate) struct Abort(pub(crate) &'static str);

impl Drop for Abort {
    // Inlined, and passes the text by value, so that it need not be in memory unless there is a
    // panic.
    #[inline(always)]
    fn drop(&mut self) {
        abort(self.0);
    }
}

#[cold]
fn abort(what: &str) -> ! {
    eprintln!(
        "upcall-thread: {what}; the process ends, because the thread below is half suspended"
    );
    std::process::abort();
}

pub(crate) fn without_panic<R>(what: &'static str, run: impl FnOnce() -> R) -> R {
    let guard = Abort(what);
    let result = run();
    std::mem::forget(guard);
    result
}
