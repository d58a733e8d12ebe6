//! Names on other machines: `tcp://HOST:PORT/NAME`.
//!
//! No name of the folder has a colon or a slash, so none can be taken for one of these.

use crate::error::BindError;
use crate::names;
use std::net::{SocketAddr, ToSocketAddrs};

const SCHEME: &str = "tcp://";

/// Where a name is looked for on another machine, and the name there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// As it was given: `host:port`.
    pub(crate) server: String,
    pub(crate) name: String,
}

/// Takes a name on another machine apart; `None` if it is one of this machine.
///
/// # Errors
/// It is none, although it begins as one.
pub(crate) fn parse(text: &str) -> Result<Option<Address>, BindError> {
    let Some(rest) = text.strip_prefix(SCHEME) else { return Ok(None) };
    let bad = |why| BindError::BadName { name: text.into(), why };
    let (server, name) = rest.split_once('/').ok_or_else(|| bad("names on other machines are tcp://HOST:PORT/NAME"))?;
    names::check(name).map_err(bad)?;
    match server.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0) => {
            Ok(Some(Address { server: server.into(), name: name.into() }))
        }
        _ => Err(bad("it has no host and port before the name: they are tcp://HOST:PORT/NAME")),
    }
}

impl Address {
    /// The addresses that stand behind it. Asks the resolver, which may block for as long as that takes.
    ///
    /// # Errors
    /// It has none.
    pub(crate) fn resolve(&self) -> Result<Vec<SocketAddr>, BindError> {
        let found = self.server.to_socket_addrs().map(Vec::from_iter);
        found.map_err(|error| BindError::Unreachable { server: self.server.clone(), why: error.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_other_machines() {
        for (text, server, name) in [
            ("tcp://host:7000/files", "host:7000", "files"),
            ("tcp://127.0.0.1:1/a", "127.0.0.1:1", "a"),
            ("tcp://[::1]:65535/x-1.v2", "[::1]:65535", "x-1.v2"),
        ] {
            assert_eq!(parse(text).unwrap(), Some(Address { server: server.into(), name: name.into() }), "{text}");
        }
        for here in ["files", "", "tcp", "tcp.files", "udp://host:1/a"] {
            assert_eq!(parse(here).unwrap(), None, "{here}");
        }
        for bad in [
            "tcp://",
            "tcp://host:7000",
            "tcp://host:7000/",
            "tcp://host:7000/a/b",
            "tcp://host/a",
            "tcp://:7000/a",
            "tcp://host:0/a",
            "tcp://host:70000/a",
            "tcp://host:7000/domain.1",
        ] {
            assert!(matches!(parse(bad), Err(BindError::BadName { .. })), "{bad}");
        }
    }
}
