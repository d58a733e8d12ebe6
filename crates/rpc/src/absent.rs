//! Waiting for a server that does not serve a name yet.

use crate::error::BindError;
use std::time::Duration;
use upcall_directory::absent::{self, Absence};

/// Repeats `attempt` until it succeeds, until it fails although a server is there, or until
/// `limit` is over. Blocks the calling thread. An attempt that runs when the limit is reached is
/// not cut short.
///
/// # Errors
/// The error of the last attempt, with a hint where a name may be that no process exports. The
/// attempts themselves need not look for that hint.
pub fn wait_while_absent<T>(
    limit: Duration,
    attempt: impl FnMut() -> Result<T, BindError>,
) -> Result<T, BindError> {
    absent::wait_while_absent(limit, attempt, absence).map_err(BindError::with_hint)
}

/// What is absent, if the error says that no server is there now, and one may be there later.
fn absence(error: &BindError) -> Option<Absence<'_>> {
    match error {
        BindError::NoSuchName { folder, .. } => Some(Absence::Name(folder)),
        BindError::ServerGone { .. }
        | BindError::HungUp { .. }
        | BindError::NoAnswer { .. }
        | BindError::Unreachable { .. }
        | BindError::NotThere { .. } => Some(Absence::Holder),
        _ => None,
    }
}
