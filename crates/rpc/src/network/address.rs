//! Names on other machines: `tcp://HOST:PORT/NAME`.
//!
//! No name of the folder has a colon or a slash, so none can be confused with one of these.

use crate::error::BindError;
use crate::names;
use std::net::{SocketAddr, ToSocketAddrs};

const SCHEME: &str = "tcp://";

/// A server on another machine, and a name there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// As given by the program: `host:port`.
    pub(crate) server: String,
    pub(crate) name: String,
}

/// Parses a name on another machine. Returns `None` for a name on this machine.
///
/// # Errors
/// The text starts like a name on another machine, and is none.
pub(crate) fn parse(text: &str) -> Result<Option<Address>, BindError> {
    let Some(rest) = text.strip_prefix(SCHEME) else { return Ok(None) };
    let bad = |why| BindError::BadName { name: text.into(), why };
    let (server, name) = rest
        .split_once('/')
        .ok_or_else(|| bad("names on other machines are tcp://HOST:PORT/NAME"))?;
    if name.is_empty() {
        return Err(bad("no name follows the address: write tcp://HOST:PORT/NAME"));
    }
    names::check(name).map_err(bad)?;
    if !is_server(server) {
        return Err(bad(
            "it has no host and port before the name: write tcp://HOST:PORT/NAME, with a port \
             from 1 to 65535",
        ));
    }
    Ok(Some(Address { server: server.into(), name: name.into() }))
}

/// The server, `host:port`, in `tcp://HOST:PORT`.
///
/// # Errors
/// There is no server, or more text follows.
pub(crate) fn parse_server(text: &str) -> Result<&str, BindError> {
    let server = text.strip_prefix(SCHEME).map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    let bad = || BindError::BadName {
        name: text.into(),
        why: "a server on another machine is tcp://HOST:PORT, without a name behind it",
    };
    server.filter(|server| !server.contains('/') && is_server(server)).ok_or_else(bad)
}

fn is_server(text: &str) -> bool {
    let parts = text.rsplit_once(':');
    parts.is_some_and(|(host, port)| {
        !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0)
    })
}

/// Resolves a server's addresses. Blocks for as long as the resolver takes.
///
/// # Errors
/// The server has no address.
pub(crate) fn resolve(server: &str) -> Result<Vec<SocketAddr>, BindError> {
    let found = server.to_socket_addrs().map(Vec::from_iter);
    found.map_err(|error| BindError::Unreachable { server: server.into(), why: error.to_string() })
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
            assert_eq!(
                parse(text).unwrap(),
                Some(Address { server: server.into(), name: name.into() }),
                "{text}"
            );
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

    #[test]
    fn servers_on_other_machines() {
        for (text, server) in [("tcp://host:7000", "host:7000"), ("tcp://[::1]:1/", "[::1]:1")] {
            assert_eq!(parse_server(text).unwrap(), server, "{text}");
        }
        for bad in [
            "host:7000",
            "tcp://",
            "tcp://host",
            "tcp://host:0",
            "tcp://host:7000/files",
            "tcp://host:7000//",
            "udp://h:1",
        ] {
            assert!(matches!(parse_server(bad), Err(BindError::BadName { .. })), "{bad}");
        }
    }
}
