//! Connecting to a server that the client accepts, and the errors of that.

use super::control::PATIENCE;
use crate::error::BindError;
use crate::interface::Mismatches;
use crate::wire::{self, BindRefusal};
use std::io;
use std::path::Path;
use std::time::Instant;
use upcall_directory::policy::Policy;
use upcall_os::socket::{Connection, Peer, says_ended};

/// Connects to the server with this socket, if `accepts` accepts it.
pub(super) fn connect(
    name: &str,
    socket: &Path,
    deadline: Instant,
    accepts: &Policy,
) -> Result<(Connection, Peer), BindError> {
    let connection =
        Connection::connect_until(socket, deadline).map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                crate::names::sweep();
                BindError::ServerGone { name: name.into() }
            }
            io::ErrorKind::WouldBlock => BindError::NoAnswer { name: name.into(), after: PATIENCE },
            io::ErrorKind::PermissionDenied => {
                BindError::Denied { name: name.into(), reason: crate::names::not_open(socket) }
            }
            _ => BindError::Resource { what: format!("connecting to {}", socket.display()), error },
        })?;
    let peer = connection.peer().map_err(|error| match says_ended(&error) {
        true => {
            crate::names::sweep();
            BindError::ServerGone { name: name.into() }
        }
        false => {
            BindError::Resource { what: format!("the identity of the server of {name:?}"), error }
        }
    })?;
    check(name, &peer, accepts)?;
    Ok((connection, peer))
}

/// Applies the client's policy to a server.
pub(super) fn check(name: &str, server: &Peer, accepts: &Policy) -> Result<(), BindError> {
    accepts(server).map_err(|reason| BindError::WrongUser {
        name: name.into(),
        found: Some(server.uid),
        reason,
    })
}

pub(crate) fn refused(name: &str, wanted: &str, refusal: BindRefusal) -> BindError {
    let name = name.to_string();
    match refusal {
        BindRefusal::Version(reason) => BindError::Version { name, own: wire::VERSION, reason },
        BindRefusal::Denied(reason) => BindError::Denied { name, reason },
        BindRefusal::NoSuchName => BindError::ServerGone { name },
        BindRefusal::WrongInterface { exported } => {
            BindError::WrongInterface { name, wanted: wanted.into(), exported }
        }
        BindRefusal::Mismatch(Mismatches { told, more }) => {
            BindError::Mismatch { name, procedures: told, more }
        }
        BindRefusal::Resource { what, code } => BindError::Resource {
            what: format!("in the server of {name:?}: {what}"),
            error: io::Error::from_raw_os_error(code),
        },
        BindRefusal::Quota(reason) => BindError::QuotaReached { name, reason },
        BindRefusal::Protocol(what) => BindError::Protocol { what },
    }
}

/// Makes a kernel error into a [`BindError`] that names the missing resource.
pub(super) fn unable(what: &'static str) -> impl Fn(io::Error) -> BindError {
    move |error| BindError::Resource { what: what.to_owned(), error }
}
