//! Opening a pair: its client connects and asks, and its server waits for that.
//!
//! # An answer that is lost in a cut
//! The client asks in a session, and the server answers there. Then the client sends a first
//! message, and the server sends messages after that only. If the connection is lost before the
//! client has the answer, the client makes another attempt, with a higher number and in a session
//! of its own. The server answers it in place of the attempt before ([`PairWay::answer`]), in whose
//! session neither side has sent a message. So nothing is lost with that session, and nothing comes
//! twice.
//!
//! A client that has the answer makes no further attempt: it goes on with the session
//! ([`reopening`]), also if its first message was lost. The server knows the session since its
//! answer. An attempt that arrives after a later one is refused.

use super::inward::PairLost;
use super::pair::FarPair;
use super::reopening::{self, PairReader};
use super::requests::open_request;
use super::way::{Opening, PairLane, PairWay, WireOwner, owner};
use crate::member::Roster;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_net::link::LinkSide;
use upcall_net::{NoConnection, dial, new_link};

/// Maximum time of an attempt to open a pair.
pub(super) const ATTEMPT: Duration = Duration::from_secs(2);

/// Time between two attempts to open a pair.
const PAUSE: Duration = Duration::from_millis(20);

/// Why a pair cannot be opened.
#[derive(Debug)]
pub(super) enum NotOpened {
    /// One side does not prove its host, or the other side refuses, for this reason.
    Refused(String),
    /// The kernel gives no random bytes for the key of a session.
    NoKey(io::Error),
}

impl From<String> for NotOpened {
    fn from(why: String) -> Self {
        Self::Refused(why)
    }
}

/// Opens the pair, as its client. Returns `true` if it is open or the other member has ended,
/// `false` if that takes longer.
///
/// # Errors
/// It cannot be opened.
pub(super) fn open(
    pair: &Arc<FarPair>,
    roster: &Roster,
    limit: Duration,
) -> Result<bool, NotOpened> {
    if !pair.way.is_unopened() {
        return Ok(await_opening(pair, limit)?);
    }
    let place = pair.place().ok_or_else(|| "the member has not joined yet".to_string())?;
    let protection = pair.home.protection(place)?;
    let attempt = pair.next_attempt();
    if attempt > 1 {
        pair.way.wait(PAUSE.min(limit), |_| None::<()>);
    }
    let pass = pair.home.passes().and_then(|passes| passes.shown_to(pair.rank));
    let request = open_request(roster, pair.rank, attempt, (roster.own_port(), pair.most), pass)
        .ok_or_else(|| "the request cannot be written".to_string())?;
    let mut link = match new_link(pair.home.terms.patience) {
        Ok(link) => link,
        Err(NoConnection::NoKey(error)) => return Err(NotOpened::NoKey(error)),
        Err(error) => return Err(error.to_string().into()),
    };
    let deadline = Instant::now() + ATTEMPT;
    let (address, terms) = (place.address, pair.home.wire_terms());
    let (wire, first) = match dial(address, &protection, &mut link, terms, deadline) {
        Ok(dialled) => dialled,
        Err(NoConnection::NotProved(error)) => return Err(error.to_string().into()),
        // It has listened since before it became a member.
        Err(NoConnection::Refused(error)) if reopening::is_gone(&error) => {
            pair.over(PairLost::Gone);
            return Ok(true);
        }
        Err(_) => return Ok(false),
    };
    match owner(&wire) {
        WireOwner::Own => {}
        WireOwner::Another => {
            wire.hang_up();
            return Err(NotOpened::Refused("another user listens there".into()));
        }
        WireOwner::Unknown => {
            wire.hang_up();
            return Ok(false);
        }
    }
    pair.way.leave(PairWay::Asks(wire.clone()));
    let reader = PairReader::of(pair, wire.session());
    if wire.start(&first, Box::new(reader)).is_err() {
        pair.way.leave(PairWay::Unopened);
        return Ok(false);
    }
    drop(wire.try_send(PairLane::Messages.number(), request));
    Ok(await_opening(pair, limit)?)
}

/// Waits until the client opens the pair. Returns `true` if it is open or the other member has
/// ended, `false` if that takes longer.
///
/// # Errors
/// It cannot be opened.
pub(super) fn await_client(pair: &FarPair, limit: Duration) -> Result<bool, NotOpened> {
    if await_opening(pair, limit)? {
        return Ok(true);
    }
    let is_gone = pair.address().is_some_and(reopening::has_ended);
    if is_gone {
        pair.over(PairLost::Gone);
    }
    Ok(is_gone)
}

/// Waits until the pair is open. Returns `false` if that takes longer.
///
/// # Errors
/// It cannot be opened.
fn await_opening(pair: &FarPair, limit: Duration) -> Result<bool, String> {
    let opened = pair.way.wait(limit, |way| match way {
        PairWay::Open { opening: Opening::Known, .. }
        | PairWay::Cut { opening: Opening::Known, .. }
        | PairWay::Over => Some(Ok(true)),
        PairWay::Refused(why) => Some(Err(why.clone())),
        PairWay::Unopened if pair.side == LinkSide::Client => Some(Ok(false)),
        PairWay::Unopened | PairWay::Asks(_) | PairWay::Open { .. } | PairWay::Cut { .. } => None,
    });
    opened.unwrap_or(Ok(false))
}
