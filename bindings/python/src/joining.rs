//! How a process becomes a member: the terms, which the package's Python half collects.

use crate::error::raise;
use crate::group_error::join_error;
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::time::Duration;
use upcall::Pacing;
use upcall::message::{GroupBuilder, Invitation, MOST_MEMBERS, Rank};

/// Converts a non-negative number to the runtime's type; `otherwise` makes the error for a number
/// that does not fit.
pub fn natural<'py, N>(
    number: &Bound<'py, PyAny>,
    otherwise: impl FnOnce(Python<'py>) -> PyErr,
) -> PyResult<N>
where
    N: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    number.extract().map_err(|error: PyErr| {
        match error.is_instance_of::<PyOverflowError>(number.py()) {
            true => otherwise(number.py()),
            false => error,
        }
    })
}

pub fn seconds(seconds: f64, what: &str) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("{what}: {seconds} is not a number of seconds")))
}

/// A term by its name.
fn term<'py, T: FromPyObjectOwned<'py>>(terms: &Bound<'py, PyAny>, name: &str) -> PyResult<T> {
    let wrong = |error: T::Error| {
        let error: PyErr = error.into();
        PyTypeError::new_err(format!("argument '{name}': {}", error.value(terms.py())))
    };
    terms.getattr(name)?.extract().map_err(wrong)
}

/// A term that is a number of seconds, or `None`.
fn duration(terms: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<Duration>> {
    term::<Option<f64>>(terms, name)?.map(|given| seconds(given, name)).transpose()
}

/// Makes the builder of a group from `upcall._joining.Terms`.
pub fn builder(terms: &Bound<'_, PyAny>) -> PyResult<GroupBuilder> {
    let py = terms.py();
    let size = terms.getattr("size")?;
    let bad_group = |py, text: String| raise(py, "BadGroup", &text, &[]);
    let mut joining = match term::<Option<String>>(terms, "name")? {
        Some(name) => {
            let bad = |py| {
                let text = format!("a group has from 1 to {MOST_MEMBERS} members, not {size}");
                bad_group(py, text)
            };
            GroupBuilder::new(&name, natural(&size, bad)?)
        }
        None => GroupBuilder::from_environment().map_err(|wrong| join_error(py, &wrong))?,
    };
    if let Some(rank) = term::<Option<Bound<'_, PyAny>>>(terms, "rank")? {
        let bad = |py| bad_group(py, format!("there is no rank {rank} in a group of {size}"));
        joining = joining.rank(natural(&rank, bad)?);
    }
    let pacing = match term::<u8>(terms, "pacing")? {
        1 => Pacing::Poll,
        2 => Pacing::Sleep,
        _ => Pacing::Adaptive,
    };
    let patience = seconds(term(terms, "patience")?, "patience")?;
    joining = joining.within(patience).pacing(pacing).upcalls(false);
    joining = joining.timeout(duration(terms, "timeout")?);
    if let Some(limit) = term::<Option<Bound<'_, PyAny>>>(terms, "limit")? {
        let bad = |_| PyValueError::new_err(format!("limit: {limit} is not a number of bytes"));
        joining = joining.limit(natural(&limit, bad)?);
    }
    across(joining, terms)
}

/// Sets the terms of a group across hosts, and of members that join late.
fn across(mut joining: GroupBuilder, terms: &Bound<'_, PyAny>) -> PyResult<GroupBuilder> {
    if let Some(address) = term::<Option<String>>(terms, "across")? {
        joining = joining.across(address);
    }
    let room = terms.getattr("room")?;
    let bad = |_| PyValueError::new_err(format!("room: {room} is not a number of members"));
    joining = joining.room_for(natural(&room, bad)?);
    if let Some(silence) = duration(terms, "lost_after")? {
        joining = joining.lost_after(silence);
    }
    if let Some(patience) = duration(terms, "reconnect_within")? {
        joining = joining.reconnect_within(patience);
    }
    if let Some((first, end, invitation)) = term::<Option<(Rank, Rank, String)>>(terms, "late")? {
        let wrong = || format!("an invitation has {} hexadecimal digits", Invitation::TEXT);
        let invitation =
            Invitation::of_text(&invitation).ok_or_else(|| PyValueError::new_err(wrong()))?;
        joining = joining.late(first..end, invitation);
    }
    Ok(joining)
}
