//! Errors of groups as exceptions.

use crate::error::raise;
use crate::interrupt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyString;
use upcall::message::{Event, ExpectError, JoinError, RunError, SendError};

fn number_object<'py>(py: Python<'py>, number: usize) -> PyResult<Bound<'py, PyAny>> {
    Ok(number.into_pyobject(py)?.into_any())
}

pub fn join_error(py: Python<'_>, error: &JoinError) -> PyErr {
    let class = match error {
        JoinError::BadName { .. }
        | JoinError::BadSize { .. }
        | JoinError::TooManyKinds { .. }
        | JoinError::NoAddress { .. }
        | JoinError::NotAmongLate { .. } => "BadGroup",
        JoinError::Incomplete { .. } => "Incomplete",
        JoinError::Refused { .. } => "NotTakenIn",
        JoinError::NoJob { .. } => "NoJob",
        JoinError::NotProved { .. } => "HostNotProved",
        JoinError::Resource { .. } | JoinError::Folder(_) => "NoMembership",
        JoinError::Interrupted => {
            if let Some(raised) = interrupt::raised() {
                return raised;
            }
            "JoinError"
        }
        _ => "JoinError",
    };
    raise(py, class, &error.to_string(), &[])
}

#[cold]
pub fn send_error(py: Python<'_>, error: &SendError) -> PyErr {
    let class = match error {
        SendError::NoSuchRank { .. } => "NoSuchRank",
        SendError::Ended { .. } => "ReceiverEnded",
        SendError::TooLong { .. } => "MessageTooLong",
        SendError::Full => "Full",
        SendError::Overflow { .. } | SendError::LowMemory { .. } => "Overflow",
        SendError::NoMemory { .. } => "NoBuffer",
        SendError::Violation { .. } => "ReceiverViolation",
        SendError::Unreachable { .. } => "NoQueue",
        SendError::Refused { .. } => "QueueRefused",
        SendError::Unfit(unfit) => return PyValueError::new_err(unfit.to_string()),
        SendError::Interrupted => {
            if let Some(raised) = interrupt::raised() {
                return raised;
            }
            "SendError"
        }
        _ => "SendError",
    };
    raise(py, class, &error.to_string(), &[])
}

pub fn run_error(py: Python<'_>, error: &RunError) -> PyErr {
    let of = |class: &str, rank: usize, kind: Option<&str>| match number_object(py, rank) {
        Ok(rank) => {
            let mut attributes = vec![("rank", rank)];
            attributes.extend(kind.map(|kind| ("kind", PyString::new(py, kind).into_any())));
            raise(py, class, &error.to_string(), &attributes)
        }
        Err(other) => other,
    };
    let of_two = |class: &str, [(one, first), (other, second)]: [(&'static str, usize); 2]| match (
        number_object(py, first),
        number_object(py, second),
    ) {
        (Ok(first), Ok(second)) => {
            raise(py, class, &error.to_string(), &[(one, first), (other, second)])
        }
        (Err(other), _) | (_, Err(other)) => other,
    };
    match error {
        RunError::Lost(Event::Ended { rank }) => of("MemberEnded", *rank, None),
        RunError::GivenUp { by, missed } => of_two("GivenUp", [("by", *by), ("missed", *missed)]),
        RunError::Parted { one, other } => of_two("Parted", [("one", *one), ("other", *other)]),
        RunError::Lost(Event::Violation { rank, .. }) => of("MemberViolation", *rank, None),
        RunError::Unhandled { rank, kind } => of("Unhandled", *rank, Some(kind)),
        RunError::Unsent { rank, .. } => of("Unsent", *rank, None),
        RunError::Growing => raise(py, "Growing", &error.to_string(), &[]),
        RunError::Interrupted => {
            interrupt::raised().unwrap_or_else(|| raise(py, "RunError", &error.to_string(), &[]))
        }
        _ => raise(py, "RunError", &error.to_string(), &[]),
    }
}

#[cold]
pub fn expect_error(py: Python<'_>, error: &ExpectError) -> PyErr {
    let class = match error {
        ExpectError::NoRoom => "NoRoom",
        ExpectError::NotLeader => "NotLeader",
        ExpectError::Taken { .. } => "RankTaken",
        _ => "ExpectError",
    };
    raise(py, class, &error.to_string(), &[])
}
