//! A pair whose connection is lost: one side connects again, and the other side waits for that.
//!
//! Each pair in this state has one kernel thread, which ends with it: the thread ends, and another
//! one begins, only under the lock of the way. A listener that refuses means
//! that the other member's process has ended: its kernel answers, and nothing listens. While
//! nothing answers, its host may be cut off, and both sides try on for as long as their patience
//! lasts.

use super::gate::FarReader;
use super::inward::PairLost;
use super::pair::{FarPair, PairWay, ReopeningEnds, WireOwner, owner};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_net::link::{LinkError, LinkSide};
use upcall_net::{Lost, NoConnection, Wire, dial};

/// Time between two attempts: the first, and the longest.
const FIRST: Duration = Duration::from_millis(20);
const LAST: Duration = Duration::from_secs(1);

/// Maximum time of one attempt. When a cable is mended, an attempt that began before may find that
/// only late: its kernel repeats what was lost after ever longer pauses.
const ATTEMPT: Duration = Duration::from_secs(2);

/// The result of one attempt.
enum ReopenAttempt {
    /// The session goes on.
    Opened,
    /// The other side does not answer.
    Again,
    Over(PairLost),
}

/// Begins to reopen a pair whose connection is lost.
pub(super) fn begin(pair: &Arc<FarPair>, why: &Lost) {
    let (of_thread, why) = (pair.clone(), why.clone());
    let thread = std::thread::Builder::new().name("upcall-reopen".into());
    let spawned = thread.spawn(move || {
        let (pair, mut why) = (of_thread, why);
        // A pair that is cut again at once has this thread still.
        while pair.ends_to_reopen() == ReopeningEnds::No {
            let lost = match pair.side {
                LinkSide::Client => connect(&pair),
                LinkSide::Server => await_client(&pair, &why),
            };
            if let Some(lost) = lost {
                pair.over(lost);
            }
            why = Lost::Ended;
        }
    });
    if spawned.is_err() {
        // No other thread would notice when the patience is over.
        pair.over(PairLost::Gone);
    }
}

/// When the patience of a pair that is cut is over. `None`: it is not cut.
fn ends(way: &PairWay) -> Option<Instant> {
    match way {
        PairWay::Cut { ends, .. } => Some(*ends),
        _ => None,
    }
}

/// Waits for this time. Returns what is left of the patience; `None` if the pair is not cut any
/// more.
fn pause(pair: &FarPair, limit: Duration) -> Option<Duration> {
    let is_over = |way: &PairWay| ends(way).is_none().then_some(());
    match pair.wait(limit, is_over) {
        Some(()) => None,
        None => left(pair),
    }
}

/// What is left of the patience; `None` if the pair is not cut.
fn left(pair: &FarPair) -> Option<Duration> {
    let ends = pair.wait(Duration::ZERO, |way| Some(ends(way))).flatten()?;
    Some(ends.saturating_duration_since(Instant::now()))
}

/// Connects until the session goes on. Returns why it does not.
fn connect(pair: &Arc<FarPair>) -> Option<PairLost> {
    let mut interval = FIRST;
    let mut patience = left(pair)?;
    while !patience.is_zero() {
        match attempt(pair, patience.min(ATTEMPT)) {
            ReopenAttempt::Opened => return None,
            ReopenAttempt::Over(lost) => return Some(lost),
            ReopenAttempt::Again => {}
        }
        patience = pause(pair, interval)?;
        interval = (2 * interval).min(LAST);
    }
    Some(PairLost::Gone)
}

fn attempt(pair: &Arc<FarPair>, within: Duration) -> ReopenAttempt {
    let Some(mut link) = pair.take_link() else { return ReopenAttempt::Again };
    // Without descriptors the files cannot be read for now.
    let Ok(protection) = pair.gate.protection(&pair.place) else {
        pair.put_back(link);
        return ReopenAttempt::Again;
    };
    let deadline = Instant::now() + within;
    let terms = pair.gate.wire_terms();
    match dial(pair.place.address, &protection, &mut link, terms, deadline) {
        Ok((wire, first)) => take_over(pair, &wire, &first),
        Err(error) => {
            pair.put_back(link);
            match error {
                NoConnection::Refused(error) if is_gone(&error) => {
                    ReopenAttempt::Over(PairLost::Gone)
                }
                NoConnection::Lost(Lost::Link(LinkError::Forgotten)) | NoConnection::Version(_) => {
                    ReopenAttempt::Over(PairLost::Gone)
                }
                NoConnection::Lost(lost @ Lost::Link(_)) => {
                    ReopenAttempt::Over(PairLost::Broke(lost.to_string()))
                }
                // The other side may have been cut off within the handshake.
                _ => ReopenAttempt::Again,
            }
        }
    }
}

fn take_over(pair: &Arc<FarPair>, wire: &Arc<Wire>, first: &[u8]) -> ReopenAttempt {
    match owner(wire) {
        WireOwner::Own => {}
        WireOwner::Another => {
            wire.hang_up();
            return ReopenAttempt::Over(PairLost::Gone);
        }
        // It has ended already.
        WireOwner::Unknown => {
            if let Some(link) = wire.detach() {
                pair.put_back(Box::new(link));
            }
            return ReopenAttempt::Again;
        }
    }
    if wire.start(first, Box::new(FarReader::of_pair(pair, wire))).is_err() {
        return ReopenAttempt::Again;
    }
    pair.reopened(wire);
    // If the connection has been lost since, the way is cut, and this thread goes on.
    ReopenAttempt::Opened
}

/// Waits until the other side has connected again. Returns why it does not.
fn await_client(pair: &FarPair, why: &Lost) -> Option<PairLost> {
    // A closed connection is mostly the end of a process, which need not be waited for.
    if matches!(why, Lost::Ended | Lost::Error(_)) {
        left(pair)?;
        if has_ended(pair.place.address) {
            return Some(PairLost::Gone);
        }
    }
    while let Some(patience) = left(pair) {
        if patience.is_zero() {
            return Some(PairLost::Gone);
        }
        pause(pair, patience)?;
    }
    None
}

/// Returns `true` if a host answers that no member listens there any more.
///
/// # Blocking
/// For 2 s at most, if the host does not answer.
pub(super) fn has_ended(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, ATTEMPT).is_err_and(|error| is_gone(&error))
}

/// Returns `true` if a host answers that no process listens.
pub(super) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused
}
