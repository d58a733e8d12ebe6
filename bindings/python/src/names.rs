//! The classes of the package's Python half that the engine instantiates and recognises.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyModule, PyType};

pub struct PythonNames {
    some: Py<PyType>,
    ok: Py<PyType>,
    err: Py<PyType>,
    pub errors: Py<PyModule>,
    pub serving: Py<PyModule>,
    pub accepting: Py<PyModule>,
    pub coroutine: Py<PyType>,
}

/// Imports the classes on first use, since the package imports the engine first.
pub fn get(py: Python<'_>) -> PyResult<&'static PythonNames> {
    static NAMES: PyOnceLock<PythonNames> = PyOnceLock::new();
    NAMES.get_or_try_init(py, || {
        let values = py.import("upcall._values")?;
        let class = |name| PyResult::Ok(values.getattr(name)?.cast_into::<PyType>()?.unbind());
        Ok(PythonNames {
            some: class("Some")?,
            ok: class("Ok")?,
            err: class("Err")?,
            errors: py.import("upcall.errors")?.unbind(),
            serving: py.import("upcall._serving")?.unbind(),
            accepting: py.import("upcall._accepting")?.unbind(),
            coroutine: py
                .import("types")?
                .getattr("CoroutineType")?
                .cast_into::<PyType>()?
                .unbind(),
        })
    })
}

fn value<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    object.getattr(pyo3::intern!(object.py(), "value"))
}

impl PythonNames {
    /// Returns the value of a `Some`.
    pub fn some<'py>(&self, object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        if object.is_instance(self.some.bind(object.py()))? {
            value(object).map(Some)
        } else {
            Ok(None)
        }
    }

    pub fn make_some<'py>(&self, value: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.some.bind(value.py()).call1((value,))
    }

    /// Returns the value of an `Ok` or `Err`, and which of the two it is.
    pub fn outcome<'py>(
        &self,
        object: &Bound<'py, PyAny>,
    ) -> PyResult<Option<(bool, Bound<'py, PyAny>)>> {
        if object.is_instance(self.ok.bind(object.py()))? {
            return Ok(Some((false, value(object)?)));
        }
        self.err(object).map(|found| found.map(|error| (true, error)))
    }

    /// Returns the value of an `Err`.
    pub fn err<'py>(&self, object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        if object.is_instance(self.err.bind(object.py()))? {
            value(object).map(Some)
        } else {
            Ok(None)
        }
    }

    pub fn make_outcome<'py>(
        &self,
        is_err: bool,
        value: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let class = if is_err { &self.err } else { &self.ok };
        class.bind(value.py()).call1((value,))
    }
}
