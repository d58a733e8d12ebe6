//! Signals, while the interpreter's first thread waits in a call.
//!
//! Python's handlers run in that thread, when its interpreter next looks; and one in a call would
//! not look before the reply is there. So its calls carry a word that gives them up
//! ([`CancelToken::asking`]), which has the thread look when a signal ends its sleep. If a handler
//! raises (`KeyboardInterrupt`), the call is given up as at a deadline, and raises that.
//!
//! The interpreter's lock is taken past PyO3's count of who has it: on the short way of a call PyO3
//! does not know that it was given up.

use pyo3::ffi;
use pyo3::prelude::*;
use std::cell::RefCell;
use std::sync::OnceLock;
use upcall_rpc::CancelToken;

thread_local! {
    /// What a handler raised.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// The word of the first thread's calls.
pub fn word() -> &'static CancelToken {
    static WORD: OnceLock<CancelToken> = OnceLock::new();
    WORD.get_or_init(|| CancelToken::asking(ask))
}

/// Runs the handlers of signals that have come, on the interpreter's first thread. Whether one
/// raised.
pub fn ask() -> bool {
    // SAFETY: the first thread, in a call of its own: the interpreter lives, and the lock was given
    // up.
    let state = unsafe { ffi::PyGILState_Ensure() };
    // SAFETY: a line above.
    let py = unsafe { Python::assume_attached() };
    let raised = py.check_signals().err();
    let is_raised = raised.is_some();
    RAISED.with_borrow_mut(|place| *place = raised);
    // SAFETY: taken above, on this thread.
    unsafe { ffi::PyGILState_Release(state) };
    is_raised
}

/// Whether a handler has raised what nobody has taken yet.
pub fn is_raised() -> bool {
    RAISED.with_borrow(Option::is_some)
}

/// What a handler raised in the call that was given up.
pub fn raised() -> Option<PyErr> {
    RAISED.with_borrow_mut(Option::take)
}
