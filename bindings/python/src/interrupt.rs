//! Signals, while the interpreter's first thread waits in a call.
//!
//! Python's handlers run on that thread, when its interpreter next checks for signals; a thread in
//! a call would not check before the reply arrives. So its calls carry a token that can cancel them
//! ([`CancelToken::asking`]), which makes the thread check when a signal ends its sleep. If a
//! handler raises (`KeyboardInterrupt`), the call is cancelled as at a deadline, and raises that
//! exception.
//!
//! The interpreter's lock is acquired without PyO3's count of its holders: on the fast path of a
//! call PyO3 does not know that the lock was released.

use pyo3::ffi;
use pyo3::prelude::*;
use std::cell::RefCell;
use std::sync::OnceLock;
use upcall_rpc::CancelToken;

thread_local! {
    /// The exception that a handler raised.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// The token of the first thread's calls.
pub fn word() -> &'static CancelToken {
    static WORD: OnceLock<CancelToken> = OnceLock::new();
    WORD.get_or_init(|| CancelToken::asking(ask))
}

/// Runs the handlers of pending signals, on the interpreter's first thread. Returns `true` if a
/// handler raised.
pub fn ask() -> bool {
    // SAFETY: the first thread, in a call of its own: the interpreter is alive, and the lock was
    // released.
    let state = unsafe { ffi::PyGILState_Ensure() };
    // SAFETY: acquired above.
    let py = unsafe { Python::assume_attached() };
    let raised = py.check_signals().err();
    let is_raised = raised.is_some();
    RAISED.with_borrow_mut(|place| *place = raised);
    // SAFETY: acquired above, on this thread.
    unsafe { ffi::PyGILState_Release(state) };
    is_raised
}

/// Returns `true` if a handler has raised an exception that has not been taken yet.
pub fn is_raised() -> bool {
    RAISED.with_borrow(Option::is_some)
}

/// Takes the exception of a handler that cancelled the call.
pub fn raised() -> Option<PyErr> {
    RAISED.with_borrow_mut(Option::take)
}
