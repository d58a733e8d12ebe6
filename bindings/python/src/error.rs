//! The runtime's errors as exceptions. The classes are in `upcall/errors.py`; the texts come from
//! the runtime.

use crate::names;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::time::Duration;
use upcall_rpc::{BindError, CallError, ServeError};

/// The duration that the keyword argument `name` gives as a number of seconds; zero without one.
pub fn seconds(name: &str, given: Option<&Bound<'_, PyAny>>) -> PyResult<Duration> {
    let Some(given) = given else { return Ok(Duration::ZERO) };
    let number: f64 = given.extract().map_err(|_| {
        let class = given.get_type().name().map_or("?".into(), |name| name.to_string());
        PyTypeError::new_err(format!("`{name}` is a number of seconds, and {class} was given"))
    })?;
    let text = format!("`{name}` is a number of seconds, not negative");
    let wrong = |_| PyValueError::new_err(text);
    Duration::try_from_secs_f64(number).map_err(wrong)
}

/// A value that cannot be written.
#[derive(Debug)]
pub enum ConversionError {
    /// The type is wrong: where, and what was expected and found.
    Type(String, String),
    /// The type is right, but the value is not allowed: where, and why.
    Value(String, String),
    /// An error of the call itself.
    Call(CallError),
    /// The resource was closed or given away.
    Gone(String),
    Python(PyErr),
}

impl From<PyErr> for ConversionError {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl ConversionError {
    pub fn within(self, outer: impl FnOnce() -> String) -> Self {
        match self {
            Self::Type(at, what) => Self::Type(outer() + &at, what),
            Self::Value(at, what) => Self::Value(outer() + &at, what),
            Self::Gone(at) => Self::Gone(outer() + &at),
            other => other,
        }
    }
}

/// Makes an exception of the package, with attributes.
pub fn raise(
    py: Python<'_>,
    class: &str,
    text: &str,
    attributes: &[(&str, Bound<'_, PyAny>)],
) -> PyErr {
    let make = || {
        let error = names::get(py)?.errors.bind(py).getattr(class)?.call1((text,))?;
        attributes.iter().try_for_each(|(name, value)| error.setattr(*name, value))?;
        PyResult::Ok(PyErr::from_value(error))
    };
    make().unwrap_or_else(|other| other)
}

fn text<'py>(py: Python<'py>, text: impl AsRef<str>) -> Bound<'py, PyAny> {
    pyo3::types::PyString::new(py, text.as_ref()).into_any()
}

fn flag(py: Python<'_>, flag: bool) -> Bound<'_, PyAny> {
    pyo3::types::PyBool::new(py, flag).to_owned().into_any()
}

fn number(py: Python<'_>, number: u64) -> Bound<'_, PyAny> {
    match number.into_pyobject(py) {
        Ok(number) => number.into_any(),
        Err(never) => match never {},
    }
}

/// A call's error, or the exception of a signal handler that cancelled the call.
#[cold]
pub fn of_call(py: Python<'_>, error: &CallError, binding: &upcall_rpc::Binding) -> PyErr {
    if matches!(error, CallError::Aborted { .. })
        && let Some(raised) = crate::interrupt::raised()
    {
        return raised;
    }
    call(py, error, binding.name(), binding.server())
}

/// A call's error; `name` and `pid` identify the server.
#[cold]
pub fn call(py: Python<'_>, error: &CallError, name: &str, pid: u32) -> PyErr {
    let said = error.to_string();
    match error {
        CallError::Failed(why) => raise(
            py,
            "CallFailed",
            &format!("{said} (the server of {name:?}, process {pid})"),
            &[
                ("why", text(py, why.to_string())),
                ("name", text(py, name)),
                ("server_pid", number(py, pid.into())),
            ],
        ),
        CallError::Aborted { sent } => {
            raise(py, "CallAborted", &said, &[("sent", flag(py, *sent))])
        }
        CallError::TooLong { len, limit, .. } => raise(
            py,
            "TooLong",
            &said,
            &[("length", number(py, *len)), ("limit", number(py, *limit))],
        ),
        CallError::ForeignHandle => raise(py, "ForeignHandle", &said, &[]),
        CallError::Refused(_) => raise(py, "Refused", &said, &[]),
        CallError::NoSuchHandle => raise(py, "NoSuchHandle", &said, &[]),
        CallError::Panicked(message) => {
            raise(py, "Panicked", &said, &[("message", text(py, message))])
        }
        CallError::Revoked => raise(py, "Revoked", &said, &[]),
        CallError::NoSuchProcedure => raise(py, "NoSuchProcedure", &said, &[]),
        CallError::BadReply(_) => raise(py, "Malformed", &said, &[]),
        CallError::Quota { .. } | CallError::ResultQuota { .. } | CallError::NoMemory { .. } => {
            let sent = matches!(error, CallError::ResultQuota { .. });
            raise(py, "NoMemory", &said, &[("sent", flag(py, sent))])
        }
        _ => raise(py, "CallError", &said, &[]),
    }
}

#[cold]
pub fn bind(py: Python<'_>, error: &BindError) -> PyErr {
    let class = match error {
        BindError::BadName { .. } => "BadName",
        BindError::NoSuchName { .. } => "NoSuchName",
        BindError::ServerGone { .. } | BindError::HungUp { .. } => "ServerGone",
        BindError::NoAnswer { .. } => "NoAnswer",
        BindError::WrongUser { .. } => "WrongUser",
        BindError::Denied { .. } => "Denied",
        BindError::QuotaReached { .. } => "QuotaReached",
        BindError::Version { .. } => "WrongVersion",
        BindError::WrongInterface { .. } => "WrongInterface",
        BindError::Mismatch { .. } => "Mismatch",
        BindError::Resource { .. } | BindError::Folder(_) => "NoResource",
        BindError::Protocol { .. } => "BrokenProtocol",
        BindError::Unreachable { .. } => "Unreachable",
        BindError::NotThere { .. } => "NotThere",
        BindError::NotProved { .. } => "NotProved",
        _ => "BindError",
    };
    raise(py, class, &error.to_string(), &[])
}

/// The same, or the exception of a function that was asked whether the server is accepted.
#[cold]
pub fn bind_expecting(
    py: Python<'_>,
    error: &BindError,
    accepts: Option<&crate::accepts::Accepts>,
) -> PyErr {
    let raised = accepts
        .filter(|_| matches!(error, BindError::WrongUser { .. }))
        .and_then(crate::accepts::Accepts::raised);
    raised.unwrap_or_else(|| bind(py, error))
}

#[cold]
pub fn serve(py: Python<'_>, error: &ServeError) -> PyErr {
    let said = error.to_string();
    match error {
        ServeError::BadName { .. } => raise(py, "BadName", &said, &[]),
        ServeError::NameTaken { pid, .. } => {
            raise(py, "NameTaken", &said, &[("server_pid", number(py, (*pid).into()))])
        }
        ServeError::ExportedHere { .. }
        | ServeError::NameStale { .. }
        | ServeError::NameInTheWay { .. } => raise(py, "NameTaken", &said, &[]),
        ServeError::Unprotected { .. } => raise(py, "Unprotected", &said, &[]),
        ServeError::Folder(_) | ServeError::Resource { .. } => raise(py, "NoExport", &said, &[]),
        _ => raise(py, "ServeError", &said, &[]),
    }
}

/// The exception for a fault of an argument or of a server's result, named `what`.
#[cold]
pub fn fault(py: Python<'_>, fault: ConversionError, what: &str, name: &str, pid: u32) -> PyErr {
    match fault {
        ConversionError::Type(at, text) => PyTypeError::new_err(format!("{what}{at}: {text}")),
        ConversionError::Value(at, text) => PyValueError::new_err(format!("{what}{at}: {text}")),
        ConversionError::Gone(at) => {
            let text =
                format!("{what}{at}: the resource was closed, or given away; nothing was sent");
            raise(py, "Closed", &text, &[])
        }
        ConversionError::Call(error) => call(py, &error, name, pid),
        ConversionError::Python(error) => error,
    }
}

/// The exception for a resource or client that is used after its end.
#[cold]
pub fn closed(py: Python<'_>, what: &str) -> PyErr {
    raise(py, "Closed", &format!("{what} was closed, or given away"), &[])
}

#[cold]
pub fn forked(py: Python<'_>) -> PyErr {
    raise(
        py,
        "Forked",
        "this process was forked from one that used upcall, and its bindings are the parent's: \
        start processes anew \
        (multiprocessing.get_context(\"spawn\"), subprocess), or fork before upcall is first used",
        &[],
    )
}

/// The exception for a panic of the engine.
#[cold]
pub fn bug(panic: &(dyn std::any::Any + Send)) -> PyErr {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    PyRuntimeError::new_err(format!(
        "a bug in upcall, please report it: {}",
        text.unwrap_or("a panic without a text")
    ))
}
