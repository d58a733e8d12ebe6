//! Clients and resources as Python objects: a binding with its terms and, for a resource, its
//! handle.

use crate::gate::{self, is_forked, without_lock};
use crate::plan::{Package, ProcedurePlan};
use crate::{error, interrupt};
use pyo3::prelude::*;
use pyo3::types::PyType;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};
use upcall_rpc::{Binding, Handle};

/// What a class represents; it is set when the class is declared.
#[pyclass(frozen, name = "Kind", module = "upcall._upcall")]
#[derive(Clone, Copy)]
pub struct PyKind {
    pub package: &'static Package,
    pub interface: usize,
    /// The resource's number.
    pub resource: Option<usize>,
}

/// A `PyCaller` on its way into an object.
#[pyclass(frozen, name = "Made", module = "upcall._upcall")]
pub struct PyMade(pub Mutex<Option<PyCaller>>);

pub const OPEN: u8 = 0;
pub const CLOSED: u8 = 1;
const GIVEN: u8 = 2;

/// A client, or a resource; see the module.
#[pyclass(frozen, subclass, weakref, name = "Caller", module = "upcall._upcall")]
pub struct PyCaller {
    pub package: &'static Package,
    pub interface: usize,
    /// `None` once it is closed.
    pub binding: Option<Binding>,
    /// The same binding for the interpreter's first thread, whose calls signals interrupt; `None`
    /// if the program has set a token of its own.
    first: Option<Binding>,
    pub handle: Option<u64>,
    pub state: AtomicU8,
}

impl Drop for PyCaller {
    fn drop(&mut self) {
        let Some(binding) = self.binding.take() else { return };
        let first = self.first.take();
        if is_forked() {
            return std::mem::forget((binding, first));
        }
        let held = self.handle.filter(|_| *self.state.get_mut() == OPEN);
        // The server notices the end by itself, and no thread may wait any more.
        if gate::is_shut() {
            return;
        }
        let drop_it = move || {
            held.into_iter().for_each(|handle| binding.release(Handle(handle)));
            drop((binding, first));
        };
        // Dropping the last part of a binding, or a resource, waits for the server.
        gate::with_lock(|py| without_lock(py, drop_it));
    }
}

impl PyCaller {
    pub fn new(kind: PyKind, binding: Binding, handle: Option<u64>) -> Self {
        let PyKind { package, interface, .. } = kind;
        let first = (!binding.has_cancel()).then(|| binding.with_cancel(interrupt::word()));
        Self {
            package,
            interface,
            binding: Some(binding),
            first,
            handle,
            state: AtomicU8::new(OPEN),
        }
    }

    /// Makes a resource for a handle that a result contained.
    pub fn resource<'py>(
        py: Python<'py>,
        package: &'static Package,
        resource: usize,
        binding: Binding,
        handle: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let told = &package.resources[resource];
        let kind = PyKind { package, interface: told.interface, resource: Some(resource) };
        Self::new(kind, binding, Some(handle)).into_object(told.client.bind(py))
    }

    fn into_object<'py>(self, class: &Bound<'py, PyType>) -> PyResult<Bound<'py, PyAny>> {
        class.call1((PyMade(Mutex::new(Some(self))),))
    }

    pub fn binding(&self) -> Option<&Binding> {
        self.binding.as_ref()
    }

    /// Returns the handle while the resource is open.
    pub fn handle(&self) -> Option<u64> {
        self.handle.filter(|_| self.state.load(Ordering::Relaxed) == OPEN)
    }

    pub fn was_given(&self) {
        self.state.store(GIVEN, Ordering::Relaxed);
    }

    pub fn is_usable(&self) -> bool {
        self.state.load(Ordering::Relaxed) == OPEN && !is_forked()
    }

    /// Returns the binding, or the exception that says why it is unusable.
    pub fn usable(&self, py: Python<'_>) -> PyResult<&Binding> {
        if is_forked() {
            return Err(error::forked(py));
        }
        let what = if self.handle.is_some() { "the resource" } else { "the client" };
        let open = self.binding.as_ref().filter(|_| self.state.load(Ordering::Relaxed) == OPEN);
        open.ok_or_else(|| error::closed(py, what))
    }

    /// The binding that the calling thread's calls go through.
    #[inline]
    pub fn calling(&self) -> Option<&Binding> {
        if gate::is_first_thread() {
            self.first.as_ref().or(self.binding.as_ref())
        } else {
            self.binding.as_ref()
        }
    }

    pub fn package(&self) -> &'static Package {
        self.package
    }

    pub fn procedure(&self, number: usize) -> Option<&'static ProcedurePlan> {
        self.package.interfaces.get(self.interface)?.as_ref()?.procedures.get(number)
    }

    pub fn with<'py>(
        slf: &Bound<'py, Self>,
        terms: impl FnOnce(&Binding) -> Binding,
    ) -> PyResult<Bound<'py, PyAny>> {
        let this = slf.get();
        let binding = terms(this.usable(slf.py())?);
        let kind = PyKind { package: this.package, interface: this.interface, resource: None };
        Self::new(kind, binding, None).into_object(&slf.get_type())
    }
}
