//! Upcalls in Python: handlers that run between two bytecodes of the interpreter's first thread,
//! which are its safe points.
//!
//! While a group is announced (`Group::announce`) the clerk's thread sends the first thread SIGURG,
//! for which the package has a handler in Python meanwhile; that calls [`heed`], by which each
//! announced group runs what has come. So it is the interpreter who chooses the moment, and waits
//! of its own are interrupted as by any signal. (A call that it is asked to make,
//! `Py_AddPendingCall`, would do the same without a signal; but before Python 3.12 one that another
//! thread asks for waits until the first thread gives up the interpreter's lock.) One signal is
//! sent at a time: `ASKED` is taken back before the groups look, so who asks after that look asks
//! again.

use crate::message::PyMember;
use pyo3::prelude::*;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// A signal is on its way.
static ASKED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Those that are announced, of the interpreter's first thread.
    static ANNOUNCED: RefCell<Vec<Py<PyMember>>> = const { RefCell::new(Vec::new()) };
}

/// This group heeds what comes from now on.
pub fn add(member: Py<PyMember>) {
    ANNOUNCED.with_borrow_mut(|announced| announced.push(member));
    // A signal that was on its way when the last one went has come to nothing.
    ASKED.store(false, Ordering::SeqCst);
    ask();
}

/// This one does no longer.
pub fn remove(member: &Py<PyMember>) {
    let gone = ANNOUNCED.with_borrow_mut(|announced| {
        let at = announced.iter().position(|other| other.is(member))?;
        Some(announced.swap_remove(at))
    });
    drop(gone);
}

/// Has the interpreter's first thread look soon. By any thread, with the lock or without.
pub fn ask() {
    if !ASKED.swap(true, Ordering::SeqCst) {
        // The first thread has the number of the process.
        let first = std::process::id();
        // SAFETY: a system call on numbers.
        unsafe { libc::syscall(libc::SYS_tgkill, first, first, libc::SIGURG) };
    }
}

/// What the handler of the signal calls, on the interpreter's first thread.
#[pyfunction]
pub fn heed(py: Python<'_>) -> PyResult<()> {
    ASKED.store(false, Ordering::SeqCst);
    let announced = ANNOUNCED.with_borrow(|announced| {
        announced.iter().map(|member| member.clone_ref(py)).collect::<Vec<_>>()
    });
    let raised =
        announced.iter().filter_map(|member| member.get().heed(py).err()).reduce(|first, other| {
            // One is raised here; the others are told of.
            other.write_unraisable(py, None);
            first
        });
    raised.map_or(Ok(()), Err)
}
