//! Names on other hosts: `tcp://HOST:PORT/NAME`.
//!
//! No name of the folder has a colon or a slash, so none can be confused with one of these.

use crate::dial::own_store;
use crate::identity::HostName;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use upcall_directory::names;

const SCHEME: &str = "tcp://";

/// A server on another host, and a name there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FarName {
    /// As given by the program: `host:port`.
    pub server: String,
    /// The name.
    pub name: String,
}

/// Parses a name on another host. Returns `None` for a name on this host.
///
/// # Errors
/// The text starts like a name on another host, and is none.
pub fn parse(text: &str) -> Result<Option<FarName>, &'static str> {
    let Some(rest) = text.strip_prefix(SCHEME) else { return Ok(None) };
    let (server, name) =
        rest.split_once('/').ok_or("names on other machines are tcp://HOST:PORT/NAME")?;
    if name.is_empty() {
        return Err("no name follows the address: write tcp://HOST:PORT/NAME");
    }
    names::check(name)?;
    if !is_server(server) {
        return Err("it has no host and port before the name: write tcp://HOST:PORT/NAME, with a \
                    port from 1 to 65535");
    }
    Ok(Some(FarName { server: server.into(), name: name.into() }))
}

/// The server, `host:port`, in `tcp://HOST:PORT`.
///
/// # Errors
/// There is no server, or more text follows.
pub fn parse_server(text: &str) -> Result<&str, &'static str> {
    let server = text.strip_prefix(SCHEME).map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    server
        .filter(|server| !server.contains('/') && is_server(server))
        .ok_or("a server on another machine is tcp://HOST:PORT, without a name behind it")
}

/// Returns `true` if the text is HOST:PORT, with a port from 1 to 65535.
pub fn is_server(text: &str) -> bool {
    let parts = text.rsplit_once(':');
    parts.is_some_and(|(host, port)| {
        !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0)
    })
}

/// Resolves the addresses of a server: those that this user has set for a trusted host, or else
/// those that the system finds. Blocks for as long as the resolver takes.
///
/// # Errors
/// The server has no address.
pub(crate) fn resolve(server: &str) -> io::Result<Vec<SocketAddr>> {
    let known = known_address(server);
    known.as_deref().unwrap_or(server).to_socket_addrs().map(Vec::from_iter)
}

/// Where this user says that a trusted host's server listens, for the HOST and the PORT of
/// `server`.
fn known_address(server: &str) -> Option<String> {
    let (host, port) = server.rsplit_once(':')?;
    let (name, port) = (host.parse::<HostName>().ok()?, port.parse().ok()?);
    let credentials = own_store().ok()?.credentials().ok()?;
    Some(credentials.trust().host(&name)?.address(port)?.to_string())
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
                Some(FarName { server: server.into(), name: name.into() }),
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
            assert!(parse(bad).is_err(), "{bad}");
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
            assert!(parse_server(bad).is_err(), "{bad}");
        }
    }
}
