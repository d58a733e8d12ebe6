//! Listening at the addresses that a program has asked for.

use crate::door::NetworkListener;
use crate::identity::{HostStore, IdentityError};
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

/// Why a program does not listen at an address.
#[derive(Debug)]
pub enum NotListening {
    /// Other hosts can reach the address, and this one has no identity that it could prove.
    Unprotected {
        /// The address.
        address: String,
        /// What is missing.
        why: String,
    },
    /// The address is none, is taken, or is not one of this host.
    Unable {
        /// What was tried, and what to do if another process listens there.
        what: String,
        /// The kernel's error.
        error: io::Error,
    },
}

impl fmt::Display for NotListening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unprotected { address, why } => write!(
                f,
                "{address} can be reached from other hosts, to which this one has to prove its \
                 identity: {why}; or listen at 127.0.0.1"
            ),
            Self::Unable { what, error } => write!(f, "{what}: {error}"),
        }
    }
}

impl std::error::Error for NotListening {}

/// The identity of this host, which can be used now.
///
/// # Errors
/// This user has none, or it cannot be read.
pub fn usable_identity() -> Result<Arc<HostStore>, IdentityError> {
    let store = HostStore::find()?;
    store.credentials()?;
    Ok(Arc::new(store))
}

/// Resolves an address to listen at, HOST:PORT. Beyond loopback this host needs an identity.
///
/// # Errors
/// See [`NotListening`].
pub fn resolve_own(
    address: &str,
    identity: &Result<Arc<HostStore>, IdentityError>,
) -> Result<SocketAddr, NotListening> {
    let no_address = |why: String| {
        let text = format!("{why}; an address is HOST:PORT, such as 127.0.0.1:7411");
        unable(address, io::Error::new(io::ErrorKind::InvalidInput, text))
    };
    let at = address
        .to_socket_addrs()
        .map_err(|error| no_address(error.to_string()))?
        .next()
        .ok_or_else(|| no_address("the host has no address".into()))?;
    match identity {
        Err(error) if !at.ip().to_canonical().is_loopback() => {
            Err(NotListening::Unprotected { address: address.into(), why: error.to_string() })
        }
        _ => Ok(at),
    }
}

/// Listens at an address, which was `address` before it was [resolved](resolve_own).
///
/// # Errors
/// See [`NotListening`].
pub fn listen(at: SocketAddr, address: &str) -> Result<NetworkListener, NotListening> {
    NetworkListener::new(at).map_err(|error| unable(address, error))
}

fn unable(address: &str, error: io::Error) -> NotListening {
    let what = match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "listening at {address}, where another process listens: stop it, or choose another port"
        ),
        _ => format!("listening at {address}"),
    };
    NotListening::Unable { what, error }
}
