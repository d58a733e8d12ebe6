//! A pair whose connection is lost: one side connects again, and the other side waits for that.
//!
//! Each pair in this state has one kernel thread, which ends with it: the thread ends, and another
//! one begins, only under the lock of the way. A listener that refuses means
//! that the other member's process has ended: its kernel answers, and nothing listens. While
//! nothing answers, its host may be cut off, and both sides try on for as long as their patience
//! lasts.
//!
//! A process that has no memory for a message that arrives cuts the pair, too: the other side keeps
//! what was not taken. The pair is opened again after a rest, which grows while memory is short.

use super::inward::PairLost;
use super::pair::FarPair;
use super::way::{
    CutLimits, GaveBack, PairWay, Reopened, Reopening, ReopeningEnds, WireOwner, owner,
};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_net::link::{LinkError, LinkSide};
use upcall_net::record::SessionKey;
use upcall_net::{
    Attend, BufferOwner, Frame, FrameError, FrameHeader, FrameKind, HostLink, Lost, NoConnection,
    Wanted, Wire, dial,
};

/// Time between two attempts: the first, and the longest.
const FIRST: Duration = Duration::from_millis(20);
const LAST: Duration = Duration::from_secs(1);

/// Maximum time of one attempt. When a cable is mended, an attempt that began before may find that
/// only late: its kernel repeats what was lost after ever longer pauses.
const ATTEMPT: Duration = Duration::from_secs(2);

/// Maximum length of an answer, or of the reason why there is none, in bytes.
const MOST_SAID: usize = 16 << 10;

/// What the other side has said beside messages. It says one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Nothing,
    /// It has asked, or answered.
    Something,
    /// It has also given a reason for the end of the connection.
    Farewell,
}

/// Reads the connection of a pair.
pub(super) struct PairReader {
    pair: Arc<FarPair>,
    session: SessionKey,
    said: Said,
    /// The first message of the connection has arrived.
    is_known: bool,
}

impl PairReader {
    /// The reader of a connection on which the other side may answer.
    pub(super) fn of(pair: &Arc<FarPair>, session: SessionKey) -> Self {
        Self { pair: pair.clone(), session, said: Said::Nothing, is_known: false }
    }

    /// The reader of a connection on which the other side has asked.
    pub(super) fn after_request(pair: &Arc<FarPair>, session: SessionKey) -> Self {
        Self { said: Said::Something, ..Self::of(pair, session) }
    }
}

impl Attend for PairReader {
    fn begun(&mut self, head: &FrameHeader, _unsent: usize) -> Result<Wanted, FrameError> {
        self.said = match (head.kind, self.said) {
            // A pair that has not asked drops it.
            (FrameKind::Answer, Said::Nothing) if head.len <= MOST_SAID => Said::Something,
            (FrameKind::Farewell, Said::Nothing | Said::Something) if head.len <= MOST_SAID => {
                Said::Farewell
            }
            _ => return self.pair.begun(head),
        };
        Ok(Wanted::Yes(None))
    }

    fn came(&mut self, frame: Frame, _owner: Option<BufferOwner>) -> Result<(), FrameError> {
        match frame.head.kind {
            FrameKind::Answer => self.pair.answered(&frame.body),
            FrameKind::Farewell => self.pair.parted(&frame.body),
            _ => {
                if !std::mem::replace(&mut self.is_known, true) {
                    self.pair.is_known(self.session);
                }
                self.pair.came(frame)?;
            }
        }
        Ok(())
    }

    fn given_up(&mut self, _head: FrameHeader) -> Result<(), FrameError> {
        Err(FrameError("messages that do not go on"))
    }

    fn ended(self: Box<Self>, why: Lost) {
        self.pair.ended(self.session, &why);
    }

    fn cut(self: Box<Self>, why: Lost, link: HostLink) {
        cut(&self.pair, &why, link);
    }
}

/// The connection is lost, and its session may go on.
fn cut(pair: &Arc<FarPair>, why: &Lost, link: HostLink) {
    // The other side waits no longer than its patience.
    let rest = match why {
        Lost::NoMemory => pair.rest_for_memory().min(link.patience() / 2),
        _ => Duration::ZERO,
    };
    let begins = Instant::now() + rest;
    let (session, limits) = (link.session(), CutLimits { begins, ends: begins + link.patience() });
    let gave_back = pair.way.with(|way| {
        // The connection of an attempt to open the pair that was replaced, or refused.
        if !way.has_session(session) {
            return GaveBack::No;
        }
        // This side connects again.
        if let PairWay::Asks(_) = way {
            *way = PairWay::Unopened;
        }
        way.cut(session, limits);
        way.give_back(Box::new(link))
    });
    if gave_back == GaveBack::Yes {
        begin(pair, why);
    }
}

/// The session of a pair goes on with another connection, unless that is lost or the pair is over.
pub(super) fn reopened(pair: &FarPair, wire: &Arc<Wire>) {
    if pair.way.with(|way| way.reopen(wire)) == Reopened::No {
        wire.hang_up();
    }
    pair.home.rouse();
}

/// Takes the link of the session with this key, with which the other side wants to go on. `None`:
/// not now.
///
/// The listener's thread calls this, so it waits for no end of an old connection: that can be held
/// up by its client. The client tries again.
pub(super) fn resume(pair: &Arc<FarPair>, session: SessionKey) -> Option<Box<HostLink>> {
    let open = pair.way.with(|way| match way {
        PairWay::Cut { session: own, .. } if *own == session => Err(way.take_link()),
        PairWay::Open { wire, .. } if wire.session() == session => Ok(wire.clone()),
        _ => Err(None),
    });
    let open = match open {
        Ok(wire) => wire,
        Err(link) => return link,
    };
    // The other side has noticed the cut first.
    let link = open.detach()?;
    let begins = Instant::now();
    let limits = CutLimits { begins, ends: begins + link.patience() };
    let is_cut = pair.way.with(|way| {
        let is_open = matches!(way, PairWay::Open { .. });
        way.cut(session, limits);
        is_open
    });
    if !is_cut {
        return None;
    }
    begin(pair, &Lost::Silent(Duration::ZERO));
    Some(Box::new(link))
}

/// The result of one attempt.
enum ReopenAttempt {
    /// The session goes on.
    Opened,
    /// The other side does not answer.
    Again,
    Over(PairLost),
}

/// Starts the thread that reopens a pair whose connection is lost, unless there is one.
fn begin(pair: &Arc<FarPair>, why: &Lost) {
    if pair.way.begins_to_reopen() == Reopening::GoesOn {
        return;
    }
    let (of_thread, why) = (pair.clone(), why.clone());
    let thread = std::thread::Builder::new().name("upcall-reopen".into());
    let spawned = thread.spawn(move || {
        let (pair, mut why) = (of_thread, why);
        // A pair that is cut again at once has this thread still.
        while pair.way.ends_to_reopen() == ReopeningEnds::No {
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

/// Waits for this time. Returns what is left of the patience; `None` if the pair is not cut any
/// more.
fn pause(pair: &FarPair, limit: Duration) -> Option<Duration> {
    let is_over = |way: &PairWay| way.ends().is_none().then_some(());
    match pair.way.wait(limit, is_over) {
        Some(()) => None,
        None => left(pair),
    }
}

/// What is left of the patience; `None` if the pair is not cut.
fn left(pair: &FarPair) -> Option<Duration> {
    let ends = pair.way.read(PairWay::ends)?;
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
    let Some(place) = pair.place() else { return ReopenAttempt::Over(PairLost::Gone) };
    let Some(mut link) = pair.way.take_link() else { return ReopenAttempt::Again };
    // Without descriptors the files cannot be read for now.
    let Ok(protection) = pair.home.protection(place) else {
        pair.way.put_back(link);
        return ReopenAttempt::Again;
    };
    let deadline = Instant::now() + within;
    let terms = pair.home.wire_terms();
    match dial(place.address, &protection, &mut link, terms, deadline) {
        Ok((wire, first)) => take_over(pair, &wire, &first),
        Err(error) => {
            pair.way.put_back(link);
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
                pair.way.put_back(Box::new(link));
            }
            return ReopenAttempt::Again;
        }
    }
    if wire.start(first, Box::new(PairReader::of(pair, wire.session()))).is_err() {
        return ReopenAttempt::Again;
    }
    reopened(pair, wire);
    // If the connection has been lost since, the way is cut, and this thread goes on.
    ReopenAttempt::Opened
}

/// Waits until the other side has connected again. Returns why it does not.
fn await_client(pair: &FarPair, why: &Lost) -> Option<PairLost> {
    // A closed connection is mostly the end of a process, which need not be waited for. The kernel
    // may close the connection of a process that ends some time before its listener.
    let mut interval = match why {
        Lost::Ended | Lost::Error(_) => Duration::ZERO,
        _ => LAST,
    };
    while let Some(patience) = left(pair) {
        if patience.is_zero() {
            return Some(PairLost::Gone);
        }
        pause(pair, patience.min(interval))?;
        if pair.address().is_some_and(has_ended) {
            return Some(PairLost::Gone);
        }
        interval = (2 * interval).clamp(FIRST, LAST);
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
