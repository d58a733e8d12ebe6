//! Connecting to a server by its name, at the first of its addresses that answers.

use crate::address::resolve;
use crate::caller::{CallerTerms, NetworkCaller};
use crate::dial::{NoConnection, Protection};
use crate::wire::WireTerms;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Minimum time after which a server is lost.
pub const LEAST_LOST_AFTER: Duration = Duration::from_secs(1);

/// Why a server is not reached.
#[derive(Debug)]
pub enum Unreached {
    /// Its name has no address.
    NoAddress(io::Error),
    /// It is not proved, or the connection would not be protected.
    NotProved(String),
    /// No connection to the last of its addresses.
    NoConnection(NoConnection),
}

impl fmt::Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAddress(error) => error.fmt(f),
            Self::NotProved(why) => f.write_str(why),
            Self::NoConnection(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for Unreached {}

/// Connects to a server, HOST:PORT as the program gave it, which is lost after `lost_after` without
/// a sign of life.
///
/// # Errors
/// See [`Unreached`].
///
/// # Blocking
/// Blocks the kernel thread, until `deadline` at most, and for as long as the resolver takes.
pub fn reach(
    server: &str,
    lost_after: Duration,
    of: CallerTerms,
    deadline: Instant,
) -> Result<Arc<NetworkCaller>, Unreached> {
    let terms = WireTerms { lost_after: lost_after.max(LEAST_LOST_AFTER), host: None };
    let mut last = Unreached::NoAddress(io::Error::other("it has no address"));
    let addresses = resolve(server).map_err(Unreached::NoAddress)?;
    for (index, at) in addresses.iter().enumerate() {
        // An address that does not answer leaves time for those after it.
        let rest = (addresses.len() - index) as u32;
        let ends = Instant::now() + deadline.saturating_duration_since(Instant::now()) / rest;
        let protection = Protection::choose(server, *at).map_err(Unreached::NotProved)?;
        match NetworkCaller::connect(*at, &protection, terms.clone(), of, ends) {
            Ok(caller) => return Ok(caller),
            Err(NoConnection::NotProved(error)) => {
                return Err(Unreached::NotProved(error.to_string()));
            }
            Err(
                last @ (NoConnection::Version(_)
                | NoConnection::NoThread(_)
                | NoConnection::NoKey(_)),
            ) => return Err(Unreached::NoConnection(last)),
            Err(error) => last = Unreached::NoConnection(error),
        }
    }
    Err(last)
}
