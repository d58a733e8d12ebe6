//! Names on other machines, with the errors of binding.

use crate::error::BindError;
use upcall_net::address;

pub(crate) use upcall_net::FarName as Address;

fn bad(text: &str) -> impl FnOnce(&'static str) -> BindError {
    let name = text.into();
    |why| BindError::BadName { name, why }
}

/// Parses a name on another machine. Returns `None` for a name on this machine.
///
/// # Errors
/// The text starts like a name on another machine, and is none.
pub(crate) fn parse(text: &str) -> Result<Option<Address>, BindError> {
    address::parse(text).map_err(bad(text))
}

/// The server, `host:port`, in `tcp://HOST:PORT`.
///
/// # Errors
/// There is no server, or more text follows.
pub(crate) fn parse_server(text: &str) -> Result<&str, BindError> {
    address::parse_server(text).map_err(bad(text))
}
