//! Upcalls in Python: handlers that run between two bytecodes of the interpreter's first thread,
//! which are its safe points.
//!
//! While a group is announced (`Group::announce`), the clerk's thread sends SIGURG to the first
//! thread. The package has a Python handler for it, which calls [`heed`], by which each announced
//! group runs the handlers of arrived messages. So the interpreter chooses the moment, and the
//! signal interrupts its own waits as any signal does. (A pending call, `Py_AddPendingCall`, would
//! do the same without a signal; but before Python 3.12, a pending call from another thread waits
//! until the first thread releases the interpreter's lock.) One signal is sent at a time. `ASKED`
//! is cleared before the groups check for messages, so a request after that check sends another
//! signal.

use crate::message::PyMember;
use pyo3::prelude::*;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set while a signal is on its way.
static ASKED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The announced groups of the interpreter's first thread.
    static ANNOUNCED: RefCell<Vec<Py<PyMember>>> = const { RefCell::new(Vec::new()) };
}

/// Announces a group: its arriving messages send the signal from now on.
pub fn add(member: Py<PyMember>) {
    ANNOUNCED.with_borrow_mut(|announced| announced.push(member));
    // A signal that was on its way when the last group was removed had no effect.
    ASKED.store(false, Ordering::SeqCst);
    ask();
}

/// Removes an announced group.
pub fn remove(member: &Py<PyMember>) {
    let gone = ANNOUNCED.with_borrow_mut(|announced| {
        let at = announced.iter().position(|other| other.is(member))?;
        Some(announced.swap_remove(at))
    });
    drop(gone);
}

/// Makes the interpreter's first thread check for messages soon. Any thread may call this, with or
/// without the lock.
pub fn ask() {
    if !ASKED.swap(true, Ordering::SeqCst) {
        // The first thread's number is that of the process.
        let first = std::process::id();
        // SAFETY: a system call on numbers.
        unsafe { libc::syscall(libc::SYS_tgkill, first, first, libc::SIGURG) };
    }
}

/// Runs the handlers of all announced groups. The signal handler calls it, on the interpreter's
/// first thread.
#[pyfunction]
pub fn heed(py: Python<'_>) -> PyResult<()> {
    ASKED.store(false, Ordering::SeqCst);
    let announced = ANNOUNCED.with_borrow(|announced| {
        announced.iter().map(|member| member.clone_ref(py)).collect::<Vec<_>>()
    });
    let raised =
        announced.iter().filter_map(|member| member.get().heed(py).err()).reduce(|first, other| {
            // The first exception is raised here; the others are only reported.
            other.write_unraisable(py, None);
            first
        });
    raised.map_or(Ok(()), Err)
}
