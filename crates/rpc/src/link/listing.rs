//! Requests to a domain on a connection of their own: its exports and its call statistics.

use super::connect::{connect, refused};
use super::control::{ControlConnection, patience_ends};
use crate::error::BindError;
use crate::wire::{self, ClientRequest, ServerReply};
use std::os::fd::OwnedFd;
use std::path::Path;
use upcall_directory::policy::{self, Policy};
use upcall_os::memory::MemoryFile;
use upcall_os::socket::Peer;
use upcall_shm::tally::PeerTallies;

/// Maximum length, in bytes, of a domain's list of exports.
pub const MOST_LISTED: usize = 64 << 20;

/// Asks a domain's socket for its identity and its exports, as `upcall ls` shows them.
///
/// # Errors
/// The domain has ended, does not answer, or breaks the protocol.
pub fn list(socket: &Path) -> Result<(Peer, Vec<crate::wire::Exported>), BindError> {
    list_of(&socket.display().to_string(), socket, &policy::own_user_or_root(), MOST_LISTED)
}

/// The exports of a domain that `accepts` accepts, instead of a domain of this user or of root. A
/// list of more than `most` bytes is refused.
///
/// # Errors
/// As for [`list`].
pub fn list_expecting(
    socket: &Path,
    accepts: &Policy,
    most: usize,
) -> Result<(Peer, Vec<crate::wire::Exported>), BindError> {
    list_of(&socket.display().to_string(), socket, accepts, most)
}

/// Like [`list`], for the domain that exports `name`.
///
/// # Errors
/// The name is invalid, no domain exports it, or as for [`list`].
pub fn list_named(name: &str) -> Result<(Peer, Vec<crate::wire::Exported>), BindError> {
    list_named_expecting(name, &policy::own_user_or_root()).map_err(BindError::with_hint)
}

/// Like [`list_named`], for a domain that `accepts` accepts instead of a domain of this user or of
/// root. Looks for no hint if no domain exports the name.
///
/// # Errors
/// As for [`list_named`].
pub fn list_named_expecting(
    name: &str,
    accepts: &Policy,
) -> Result<(Peer, Vec<crate::wire::Exported>), BindError> {
    list_of(name, &crate::names::find(name)?, accepts, MOST_LISTED)
}

/// The call statistics of a domain's bindings, for `upcall stat`.
///
/// # Errors
/// As for [`list`].
pub fn tallies(socket: &Path) -> Result<(Peer, PeerTallies), BindError> {
    tallies_expecting(socket, &policy::own_user_or_root())
}

/// Like [`tallies`], for a domain that `accepts` accepts instead of a domain of this user or of
/// root.
///
/// # Errors
/// As for [`list`].
pub fn tallies_expecting(
    socket: &Path,
    accepts: &Policy,
) -> Result<(Peer, PeerTallies), BindError> {
    let shown = socket.display().to_string();
    let (peer, answer, given) = ask_once(&shown, socket, ClientRequest::Tallies, accepts)?;
    let (ServerReply::Tallies, Some(fd)) = (answer, given) else {
        return Err(BindError::Protocol { what: "another answer than the tallies".into() });
    };
    let tallies =
        PeerTallies::join(fd).map_err(|error| BindError::Protocol { what: error.to_string() })?;
    Ok((peer, tallies))
}

fn list_of(
    shown: &str,
    socket: &Path,
    accepts: &Policy,
    most: usize,
) -> Result<(Peer, Vec<crate::wire::Exported>), BindError> {
    let (peer, answer, given) = ask_once(shown, socket, ClientRequest::List, accepts)?;
    let (ServerReply::Exports, Some(fd)) = (answer, given) else {
        return Err(BindError::Protocol { what: "another answer than the exports".into() });
    };
    let bytes = MemoryFile::read_all(&fd, most)
        .map_err(|error| BindError::Resource { what: format!("the exports of {shown}"), error })?;
    let exports: Vec<crate::wire::Exported> =
        wire::unpack(&bytes).map_err(|what| BindError::Protocol { what })?;
    let checked = exports.iter().try_for_each(wire::check_exported);
    checked.map_err(|what| BindError::Protocol { what: what.into() })?;
    Ok((peer, exports))
}

/// Makes one request on a connection of its own. Returns the peer, its answer, and the last
/// descriptor that came with the answer. A refusal is an error.
fn ask_once(
    shown: &str,
    socket: &Path,
    request: ClientRequest<'_>,
    accepts: &Policy,
) -> Result<(Peer, ServerReply, Option<OwnedFd>), BindError> {
    let deadline = patience_ends();
    let (connection, mut peer) = connect(shown, socket, deadline, accepts)?;
    let control = ControlConnection::new(connection, &mut peer);
    let asked = control.exchange(request, &[], deadline);
    match asked.map_err(|error| control.failed(error, shown))? {
        (ServerReply::Refused(refusal), _) => Err(refused(shown, "", refusal)),
        (answer, mut descriptors) => Ok((peer, answer, descriptors.pop())),
    }
}
