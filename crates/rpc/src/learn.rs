//! The exports of servers on any machine, for `upcall ls` and for programs that learn an interface
//! only when they run.

use crate::brought::aside;
use crate::error::BindError;
use crate::link;
use crate::network::address;
use crate::network::questions::{self, FarCounts, FarServer, Pinged};
use crate::wire::Exported;
use upcall_directory::policy::{self, Policy};

/// What the server of `name` says about this export. `name` is a name as for
/// [`Binding::bind`](crate::Binding::bind), which also says how long this blocks.
///
/// # Errors
/// As for [`Binding::bind`](crate::Binding::bind).
pub fn exported(name: &str) -> Result<Exported, BindError> {
    try_exported(name, None).map_err(BindError::with_hint)
}

/// Like [`exported`], or like [`exported_expecting`] if `accepts` is given, but looks for no hint
/// if no process exports `name`. For an attempt of [`wait_while_absent`](crate::wait_while_absent).
///
/// # Errors
/// As for [`exported`] and [`exported_expecting`].
pub fn try_exported(name: &str, accepts: Option<&Policy>) -> Result<Exported, BindError> {
    let Some(address) = address::parse(name)? else {
        let own = policy::own_user_or_root();
        return exported_here(name, accepts.unwrap_or(&own));
    };
    let found = aside(|| questions::list(&address.server, accepts))?
        .into_iter()
        .find(|exported| exported.name == address.name);
    found.ok_or(BindError::NotThere { name: address.name, server: address.server })
}

/// Like [`exported`], for a server that `accepts` accepts instead of a server of this user or of
/// root.
///
/// # Errors
/// As for [`Binding::bind_expecting`](crate::Binding::bind_expecting).
pub fn exported_expecting(name: &str, accepts: &Policy) -> Result<Exported, BindError> {
    try_exported(name, Some(accepts)).map_err(BindError::with_hint)
}

fn exported_here(name: &str, accepts: &Policy) -> Result<Exported, BindError> {
    let (_, exports) = link::list_named_expecting(name, accepts)?;
    let found = exports.into_iter().find(|exported| exported.name == name);
    found.ok_or_else(|| BindError::ServerGone { name: name.into() })
}

/// Connects to the server at `tcp://HOST:PORT`, and asks it `count` times for its exports.
///
/// # Blocking
/// As [`list_far`] for each request.
///
/// # Errors
/// As [`list_far`].
pub fn ping(server: &str, count: usize) -> Result<Pinged, BindError> {
    let server = address::parse_server(server)?;
    aside(|| questions::ping(server, count))
}

/// The exports of the server at `tcp://HOST:PORT`. A client that the server does not admit learns
/// nothing.
///
/// # Blocking
/// Blocks the calling thread for at most 5 s, and also while this machine's resolver looks up a
/// HOST that is not a number.
///
/// # Errors
/// The address is invalid; no Upcall server listens there; or the server does not admit this
/// client, does not answer, or breaks the protocol.
pub fn list_far(server: &str) -> Result<Vec<Exported>, BindError> {
    let server = address::parse_server(server)?;
    aside(|| questions::list(server, None))
}

impl FarServer {
    /// The server at `tcp://HOST:PORT`, which is not asked anything yet.
    ///
    /// # Errors
    /// The address is invalid.
    pub fn at(server: &str) -> Result<Self, BindError> {
        address::parse_server(server).map(Self::new)
    }

    /// Its exports, as [`list_far`] gives them.
    ///
    /// # Errors
    /// As [`list_far`].
    ///
    /// # Blocking
    /// As [`list_far`].
    pub fn list(&self) -> Result<Vec<Exported>, BindError> {
        aside(|| self.exports())
    }

    /// What it has counted, as [`tallies`](crate::link::tallies) gives it for a server on this
    /// machine.
    ///
    /// # Errors
    /// As [`list_far`]; or the server is of a version that gives no counts to other hosts.
    ///
    /// # Blocking
    /// As [`list_far`].
    pub fn read(&self) -> Result<FarCounts, BindError> {
        aside(|| self.counts())
    }
}
