//! Messages in place, for Python: objects with a buffer, which is memory that the sender can write.
//!
//! # Why no buffer outlives its memory
//! A [`PyPlace`] holds the memory of its message (`Lying`), and an exported buffer holds the place.
//! So the memory is mapped as long as any buffer exists, even if the group, its threads or the
//! interpreter end. The member holds the message (`Held`, in [`HeldMessages`]) until the place has
//! ended and no buffer is exported; only then is the message disposed of, so an honest sender does
//! not overwrite it earlier. Any thread may drop places and buffers: they leave a note, and the
//! group's thread releases the message in its next method call.

use crate::error;
use pyo3::exceptions::{PyIndexError, PyOverflowError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::cell::RefCell;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use upcall::message::{Held, Lying};

/// The uses of a message that are left.
#[derive(Default)]
struct Looks {
    /// Number of exported buffers.
    buffers: usize,
    /// Set once no more buffers may be exported.
    over: bool,
}

/// Shared by a place and by the member that holds its message. No Python code is called while it is
/// locked, since that may run finalizers, which release buffers.
type SharedLooks = Arc<Mutex<Looks>>;

fn locked(looks: &SharedLooks) -> MutexGuard<'_, Looks> {
    looks.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The messages that a member holds.
#[derive(Default)]
pub struct HeldMessages(RefCell<Vec<(Held, SharedLooks)>>);

impl HeldMessages {
    /// Holds a message of the given kind until its place ends.
    pub fn place(&self, held: Held, kind: Py<PyAny>) -> PyPlace {
        let (lying, looks) = (held.lying().clone(), SharedLooks::default());
        self.0.borrow_mut().push((held, looks.clone()));
        PyPlace { lying, kind, looks }
    }

    /// Releases the messages whose places have ended and that have no buffers left.
    #[inline]
    pub fn let_go(&self) {
        if !self.0.borrow().is_empty() {
            self.let_go_of_some();
        }
    }

    #[cold]
    fn let_go_of_some(&self) {
        let is_over = |(_, looks): &mut (Held, SharedLooks)| {
            let looks = locked(looks);
            looks.over && looks.buffers == 0
        };
        let over: Vec<_> = self.0.borrow_mut().extract_if(.., is_over).collect();
        drop(over);
    }
}

/// A message in place: see `upcall.message`.
#[pyclass(frozen, name = "Place", module = "upcall.message")]
pub struct PyPlace {
    lying: Arc<Lying>,
    kind: Py<PyAny>,
    looks: SharedLooks,
}

impl Drop for PyPlace {
    fn drop(&mut self) {
        locked(&self.looks).over = true;
    }
}

impl PyPlace {
    /// Ends the place: no more buffers are exported. Returns `true` if some are left.
    pub fn end(&self) -> bool {
        let mut looks = locked(&self.looks);
        looks.over = true;
        looks.buffers > 0
    }

    fn is_over(&self) -> bool {
        locked(&self.looks).over
    }

    /// Counts a buffer that is about to be exported. Returns `false` if the place has ended.
    fn begin_buffer(&self) -> bool {
        let mut looks = locked(&self.looks);
        if !looks.over {
            looks.buffers += 1;
        }
        !looks.over
    }

    fn end_buffer(&self) {
        locked(&self.looks).buffers -= 1;
    }
}

#[cold]
fn over(py: Python<'_>) -> PyErr {
    error::closed(py, "the place of a message, whose `with` has ended,")
}

#[pymethods]
impl PyPlace {
    /// The sender's rank.
    #[getter]
    fn sender(&self) -> usize {
        self.lying.from()
    }

    /// The message's kind.
    #[getter]
    fn kind(&self, py: Python<'_>) -> Py<PyAny> {
        self.kind.clone_ref(py)
    }

    /// Size of the payload, in bytes.
    #[getter]
    fn size(&self) -> usize {
        self.lying.payload().len()
    }

    /// A word of the payload.
    fn word(&self, py: Python<'_>, at: &Bound<'_, PyAny>) -> PyResult<u64> {
        let beyond = || {
            PyIndexError::new_err(format!(
                "there is no word {at} in a message of {} bytes",
                self.size()
            ))
        };
        let place = at.extract::<usize>().map_err(|error| {
            match error.is_instance_of::<PyOverflowError>(py) {
                true => beyond(),
                false => error,
            }
        })?;
        if self.is_over() {
            return Err(over(py));
        }
        place.checked_mul(8).and_then(|at| self.lying.payload().u64(at)).ok_or_else(beyond)
    }

    fn __len__(&self) -> usize {
        self.size()
    }

    fn __repr__(&self) -> String {
        let over = if self.is_over() { ", over" } else { "" };
        format!("<Place: a message of {} bytes from member {}{over}>", self.size(), self.sender())
    }

    /// # Safety
    /// As the buffer protocol requires.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let place = slf.get();
        if !place.begin_buffer() {
            return Err(over(slf.py()));
        }
        let payload = place.lying.payload();
        let (start, len) = (payload.as_ptr().cast_mut().cast(), payload.len() as ffi::Py_ssize_t);
        // SAFETY: the interpreter passed the view to be filled in. The bytes are mapped as long as
        // the place exists, to which the view gets a reference, and they are read-only.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 1, flags) };
        if filled == 0 {
            return Ok(());
        }
        place.end_buffer();
        Err(PyErr::fetch(slf.py()))
    }

    /// # Safety
    /// As the buffer protocol requires.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.end_buffer();
    }
}
