//! Questions to a server on another machine that need no binding: its exports, its counts, and
//! whether it answers.
//!
//! Each takes one round trip on the connection that bindings share, and is bounded by the patience
//! of a bind. A server answers the clients that it admits, and no others.

use super::far::FarLink;
use crate::error::BindError;
use crate::link::{patience_ends, refused};
use crate::terms::BindTerms;
use crate::wire::{self, ClientRequest, Exported, ServerReply};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_directory::policy::Policy;
use upcall_os::lock::KernelMutex;
use upcall_shm::tally::{KINDS, Reading};

/// The exports of the server at that address. Blocks the kernel thread.
pub(crate) fn list(server: &str, accepts: Option<&Policy>) -> Result<Vec<Exported>, BindError> {
    let deadline = patience_ends();
    let shown = shown(server);
    let link = FarLink::to(server, &shown, BindTerms::new(accepts), deadline)?;
    exports(&link, &shown, deadline)
}

fn shown(server: &str) -> String {
    format!("tcp://{server}")
}

fn exports(link: &FarLink, shown: &str, deadline: Instant) -> Result<Vec<Exported>, BindError> {
    match link.ask(0, &ClientRequest::List, shown, deadline)? {
        ServerReply::Listed(exports) => {
            exports
                .iter()
                .try_for_each(wire::check_exported)
                .map_err(|what| BindError::Protocol { what: what.into() })?;
            Ok(exports)
        }
        ServerReply::Refused(refusal) => Err(refused(shown, "", refusal)),
        _ => Err(BindError::Protocol { what: "another answer than the exports".into() }),
    }
}

/// What [`ping`](crate::ping) has found.
#[derive(Clone, Debug)]
pub struct Pinged {
    /// The trusted host that the server has proved to be on; `None` if it is on this machine.
    pub host: Option<String>,
    /// Time until the connection could be used, with the proof of both sides.
    pub connected: Duration,
    /// Time of each round trip.
    pub round_trips: Vec<Duration>,
}

/// Connects to the server at that address, and asks it `count` times. Blocks the kernel thread.
pub(crate) fn ping(server: &str, count: usize) -> Result<Pinged, BindError> {
    let (shown, start) = (shown(server), Instant::now());
    let link = FarLink::to(server, &shown, BindTerms::new(None), patience_ends())?;
    let connected = start.elapsed();
    let mut round_trips = Vec::new();
    for _ in 0..count {
        let start = Instant::now();
        match link.ask(0, &ClientRequest::List, &shown, patience_ends())? {
            ServerReply::Listed(_) => round_trips.push(start.elapsed()),
            ServerReply::Refused(refusal) => return Err(refused(&shown, "", refusal)),
            _ => {
                return Err(BindError::Protocol { what: "another answer than the exports".into() });
            }
        }
    }
    let host = link.caller.host().map(|name| name.as_str().to_string());
    Ok(Pinged { host, connected, round_trips })
}

/// A server on another machine, for questions that are asked again and again.
///
/// It keeps its connection between two questions, and opens a new one for the next question when
/// that has ended.
pub struct FarServer {
    server: String,
    link: KernelMutex<Option<Arc<FarLink>>>,
}

impl fmt::Debug for FarServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FarServer({})", self.server)
    }
}

/// What a server on another machine has counted, as it was at one time.
#[derive(Clone, Debug)]
pub struct FarCounts {
    /// The statistics of its bindings.
    pub bindings: Vec<Reading>,
    /// Number of bindings that it does not count.
    pub uncounted: u64,
    /// For each kind of what clients hold: the number, the maximum, and how often more was
    /// refused.
    pub holdings: [[u64; 3]; KINDS],
}

impl FarServer {
    /// The server `host:port`, which is not asked anything yet.
    pub(crate) fn new(server: &str) -> Self {
        Self { server: server.into(), link: KernelMutex::default() }
    }

    /// Its exports. Blocks the kernel thread.
    pub(crate) fn exports(&self) -> Result<Vec<Exported>, BindError> {
        let (shown, deadline) = (shown(&self.server), patience_ends());
        exports(&*self.link(&shown, deadline)?, &shown, deadline)
    }

    /// What it has counted. Blocks the kernel thread.
    pub(crate) fn counts(&self) -> Result<FarCounts, BindError> {
        let (shown, deadline) = (shown(&self.server), patience_ends());
        let link = self.link(&shown, deadline)?;
        let asked = link.ask(0, &ClientRequest::Tallies, &shown, deadline);
        match asked.map_err(without_the_question)? {
            ServerReply::Counted(counts) => Ok(FarCounts {
                bindings: counts.bindings.into_iter().map(Reading::from).collect(),
                uncounted: counts.uncounted,
                holdings: counts.holdings,
            }),
            ServerReply::Refused(refusal) => Err(refused(&shown, "", refusal)),
            _ => Err(BindError::Protocol { what: "another answer than the counts".into() }),
        }
    }

    fn link(&self, shown: &str, deadline: Instant) -> Result<Arc<FarLink>, BindError> {
        let known = self.link.lock().clone().filter(|link| link.caller.closed().is_none());
        if let Some(link) = known {
            return Ok(link);
        }
        let link = FarLink::to(&self.server, shown, BindTerms::new(None), deadline)?;
        // The last owner of a connection is not dropped under the lock.
        let before = self.link.lock().replace(link.clone());
        drop(before);
        Ok(link)
    }
}

/// A server of an older version ends the connection when it is asked for its counts.
fn without_the_question(error: BindError) -> BindError {
    match error {
        BindError::Unreachable { server, why } => {
            let why = format!("{why}. A server of Upcall 0.2.0 gives no counts to other hosts");
            BindError::Unreachable { server, why }
        }
        error => error,
    }
}
