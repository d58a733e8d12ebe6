//! Petitions: requests of processes that are no members.

use crate::error::{self, raise};
use crate::gate::{self, without_lock};
use crate::group_error::join_error;
use crate::joining::seconds;
use crate::message::asker;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Mutex;
use upcall::message::{Petition, petition_interruptible};

/// A request of a process that is no member, such as for an invitation.
///
/// `request` is what was asked. `host` is the proved identity of the other process's host, or
/// `None` for this machine. `answer(bytes)` and `refuse(why)` reply once.
#[pyclass(frozen, name = "Petition", module = "upcall.message")]
pub struct PyPetition {
    petition: Mutex<Option<Petition>>,
    #[pyo3(get)]
    request: Py<PyBytes>,
    #[pyo3(get)]
    host: Option<String>,
}

impl PyPetition {
    pub fn new(py: Python<'_>, petition: Petition) -> Self {
        let request = PyBytes::new(py, petition.bytes()).unbind();
        let host = petition.host().map(Into::into);
        Self { petition: Mutex::new(Some(petition)), request, host }
    }

    fn take(&self, py: Python<'_>) -> PyResult<Petition> {
        self.with(py, Option::take)
    }

    /// Calls `with` with the petition, which has not been answered yet.
    pub fn with<R>(
        &self,
        py: Python<'_>,
        with: impl FnOnce(&mut Option<Petition>) -> Option<R>,
    ) -> PyResult<R> {
        let mut petition = self.petition.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        with(&mut petition)
            .ok_or_else(|| raise(py, "Closed", "the petition was answered or refused before", &[]))
    }
}

#[pymethods]
impl PyPetition {
    fn answer(&self, py: Python<'_>, answer: &[u8]) -> PyResult<()> {
        self.take(py).map(|petition| petition.answer(answer))
    }

    fn refuse(&self, py: Python<'_>, why: &str) -> PyResult<()> {
        self.take(py).map(|petition| petition.refuse(why))
    }
}

/// Asks at an address, and returns the answer.
#[pyfunction]
pub fn petition<'py>(
    py: Python<'py>,
    across: &str,
    request: &[u8],
    patience: f64,
) -> PyResult<Bound<'py, PyBytes>> {
    if gate::is_forked() {
        return Err(error::forked(py));
    }
    gate::watch_forks();
    let within = seconds(patience, "patience")?;
    let is_interrupted = asker();
    let answer =
        without_lock(py, move || petition_interruptible(across, request, within, is_interrupted));
    answer.map(|answer| PyBytes::new(py, &answer)).map_err(|wrong| join_error(py, &wrong))
}
