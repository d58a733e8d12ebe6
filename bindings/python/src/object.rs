//! Objects of a server that clients hold.

use crate::gate::{self, with_lock};
use crate::plan::Package;
use pyo3::prelude::*;

/// An object that a client holds.
pub struct ClientObject {
    package: &'static Package,
    resource: usize,
    value: Option<Py<PyAny>>,
}

impl ClientObject {
    pub fn new(package: &'static Package, resource: usize, value: Py<PyAny>) -> Self {
        Self { package, resource, value: Some(value) }
    }

    pub fn is(&self, package: &'static Package, resource: usize) -> bool {
        std::ptr::eq(self.package, package) && self.resource == resource
    }

    pub fn value<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.value.as_ref().map_or_else(|| py.None(), |value| value.clone_ref(py)).into_bound(py)
    }
}

impl Drop for ClientObject {
    fn drop(&mut self) {
        let Some(value) = self.value.take() else { return };
        if gate::is_shut() {
            return std::mem::forget(value);
        }
        upcall_thread::blocking(move || with_lock(move |_| drop(value)));
    }
}
