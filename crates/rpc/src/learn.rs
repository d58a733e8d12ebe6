//! What servers say of their exports, wherever they are: for `upcall ls`, and for who knows an
//! interface only when it runs.

use crate::brought::aside;
use crate::error::BindError;
use crate::link;
use crate::network::{address, far};
use crate::wire::Exported;
use upcall_directory::policy::{self, Policy};

/// What the server of `name`, a name as for [`Binding::bind`](crate::Binding::bind), says of it.
/// Blocks the calling thread as that does.
///
/// # Errors
/// As for [`Binding::bind`](crate::Binding::bind).
pub fn exported(name: &str) -> Result<Exported, BindError> {
    let Some(address) = address::parse(name)? else {
        return exported_here(name, &policy::own_user_or_root());
    };
    let found = aside(|| far::list(&address.server))?
        .into_iter()
        .find(|exported| exported.name == address.name);
    found.ok_or(BindError::NotThere { name: address.name, server: address.server })
}

/// The same of a server that `accepts` accepts, in place of one of this user or root.
///
/// # Errors
/// As for [`Binding::bind_expecting`](crate::Binding::bind_expecting).
pub fn exported_expecting(name: &str, accepts: &Policy) -> Result<Exported, BindError> {
    address::refuse_far(name)?;
    exported_here(name, accepts)
}

fn exported_here(name: &str, accepts: &Policy) -> Result<Exported, BindError> {
    let (_, exports) = link::list_named_expecting(name, accepts)?;
    let found = exports.into_iter().find(|exported| exported.name == name);
    found.ok_or_else(|| BindError::ServerGone { name: name.into() })
}

/// What the server at `tcp://HOST:PORT` exports to those who come in there. Who is not let in is
/// told nothing. Blocks the calling thread for at most about 5 s; where HOST is no number, for as
/// long as this machine takes to look it up besides, which has no limit of ours.
///
/// # Errors
/// No such address; nobody is there, or nobody of ours; it does not let us in, does not answer, or
/// answers nonsense.
pub fn list_far(server: &str) -> Result<Vec<Exported>, BindError> {
    let server = address::parse_server(server)?;
    aside(|| far::list(server))
}
