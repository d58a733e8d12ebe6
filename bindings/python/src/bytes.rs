//! A `list<u8>` as a server's procedure gets it: in memory that the client can write.

use crate::error;
use crate::gate::without_lock;
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use upcall_rpc::Bytes;

/// The bytes, for as long as the call lasts. Readers hold the lock while they read, and `end` waits
/// for it, never with the interpreter's lock held.
type SharedBytes = Arc<Mutex<Option<Bytes<'static>>>>;

/// Bytes that a client sent, uninterpreted and not copied, for the time of the call.
///
/// The client can still change them, so there is no view of them as memory. They can be copied
/// (`bytes(data)`, `chunks`), or written to a descriptor. Once the procedure has returned, every
/// use raises `Closed`.
#[pyclass(frozen, name = "Bytes", module = "upcall")]
pub struct PyBytesView {
    shared: SharedBytes,
    at: usize,
    len: usize,
}

/// Ends the views of a call.
#[derive(Default)]
pub struct Lease(Vec<SharedBytes>);

impl Lease {
    /// Returns a view, which is valid until this lease is dropped.
    ///
    /// # Safety
    /// The lease is dropped before the memory of the bytes is reused.
    pub unsafe fn lend(&mut self, bytes: Bytes<'_>) -> PyBytesView {
        let len = bytes.len();
        // SAFETY: only the lifetime changes, and by the caller's contract the view ends in time.
        let bytes: Bytes<'static> = unsafe { std::mem::transmute(bytes) };
        let shared = Arc::new(Mutex::new(Some(bytes)));
        self.0.push(shared.clone());
        PyBytesView { shared, at: 0, len }
    }

    /// Returns `true` if there is no view to end.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.iter().for_each(|shared| *locked(shared) = None);
    }
}

fn locked(shared: &SharedBytes) -> MutexGuard<'_, Option<Bytes<'static>>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PyBytesView {
    /// Calls `look` with the bytes. A thread that holds the lock for long has released the
    /// interpreter's lock.
    fn look<T>(&self, py: Python<'_>, look: impl FnOnce(Bytes<'static>) -> T) -> PyResult<T> {
        let guard = match self.shared.try_lock() {
            Ok(guard) => guard,
            Err(_) => without_lock(py, || Guard(locked(&self.shared))).0,
        };
        let part = guard.and_then(|bytes| bytes.part(self.at, self.len));
        part.map(look).ok_or_else(|| error::closed(py, "the data of a call that has ended"))
    }

    /// A copy, for a result.
    pub fn copied(&self, py: Python<'_>) -> PyResult<Vec<u8>> {
        self.look(py, |bytes| bytes.to_vec())
    }
}

/// A guard that is returned to the thread that waited for it: `without_lock` runs on that thread.
struct Guard<'a>(MutexGuard<'a, Option<Bytes<'static>>>);

// SAFETY: the guard stays on its thread; only the bound of `without_lock` requires this.
unsafe impl Send for Guard<'_> {}

#[pymethods]
impl PyBytesView {
    fn __len__(&self) -> usize {
        self.len
    }

    /// Always raises `TypeError`, which says what to do.
    ///
    /// The client could change a byte between a check and a use.
    fn __getitem__(&self, _index: &Bound<'_, PyAny>) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "upcall.Bytes has no single bytes, because the client can still change them: call \
             bytes(data) first",
        ))
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.look(py, |bytes| copied(py, &bytes))?
    }

    fn __repr__(&self) -> String {
        format!("<upcall.Bytes of {} bytes>", self.len)
    }

    /// A part of the bytes: `length` bytes from `start` on.
    fn part(&self, start: usize, length: usize) -> PyResult<Self> {
        if start.checked_add(length).is_none_or(|end| end > self.len) {
            return Err(PyIndexError::new_err(format!(
                "{length} bytes from {start} on, of {}",
                self.len
            )));
        }
        Ok(Self { shared: self.shared.clone(), at: self.at + start, len: length })
    }

    /// Copies of consecutive parts of at most `size` bytes, for hashing and parsing without a copy
    /// of the whole.
    #[pyo3(signature = (size = 65536))]
    fn chunks(&self, size: usize) -> PyResult<Chunks> {
        if size == 0 {
            return Err(PyValueError::new_err("the size of a chunk is at least 1 byte"));
        }
        let whole = Self { shared: self.shared.clone(), at: self.at, len: self.len };
        Ok(Chunks { whole, size, next: Mutex::new(0) })
    }

    /// Writes all bytes to a file or a descriptor, without a copy in this process. Flushes what the
    /// file has buffered first.
    fn write_to(&self, py: Python<'_>, file: &Bound<'_, PyAny>) -> PyResult<()> {
        let descriptor: RawFd = match file.extract() {
            Ok(descriptor) => descriptor,
            Err(_) => {
                if file.hasattr("flush")? {
                    file.call_method0("flush")?;
                }
                file.call_method0("fileno")?.extract()?
            }
        };
        if descriptor < 0 {
            return Err(PyValueError::new_err(format!("{descriptor} is not a descriptor")));
        }
        let (shared, at, len) = (&self.shared, self.at, self.len);
        let written = without_lock(py, || {
            let guard = locked(shared);
            let part = guard.and_then(|bytes| bytes.part(at, len))?;
            // SAFETY: the caller's descriptor; if it is not open, the kernel reports that.
            let to = unsafe { BorrowedFd::borrow_raw(descriptor.as_raw_fd()) };
            Some(part.write_to(to))
        });
        written
            .ok_or_else(|| error::closed(py, "the data of a call that has ended"))?
            .map_err(PyErr::from)
    }
}

/// The iterator of `chunks`.
#[pyclass(frozen, module = "upcall._upcall")]
pub struct Chunks {
    whole: PyBytesView,
    size: usize,
    next: Mutex<usize>,
}

#[pymethods]
impl Chunks {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let len = self.size.min(self.whole.len - *next);
        if len == 0 {
            return Ok(None);
        }
        let part = self.whole.part(*next, len)?;
        *next += len;
        part.__bytes__(py).map(Some)
    }
}

/// A copy of bytes that a peer can write.
pub fn copied<'py>(
    py: Python<'py>,
    bytes: &upcall_rpc::Bytes<'_>,
) -> PyResult<Bound<'py, PyBytes>> {
    // SAFETY: any length may be requested; the result is null if there is no memory.
    let object =
        unsafe { ffi::PyBytes_FromStringAndSize(std::ptr::null(), bytes.len() as ffi::Py_ssize_t) };
    // SAFETY: a new reference, or null and an exception.
    let object = unsafe { Bound::from_owned_ptr_or_err(py, object) }?;
    if !bytes.is_empty() {
        // SAFETY: a `bytes` object that no other code has seen.
        let start = unsafe { ffi::PyBytes_AsString(object.as_ptr()) };
        // SAFETY: that many bytes of the object, which are fully written before they are read.
        let to = unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), bytes.len()) };
        let _ = bytes.copy_to(to);
    }
    Ok(object.cast_into::<PyBytes>()?)
}
