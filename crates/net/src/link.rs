//! A link: messages in both directions between two processes, over one connection after another.
//!
//! The link is a state machine: bytes and time are arguments, and nothing here reads a clock or a
//! socket. [`crate::driver`] moves the bytes of real links; tests and the simulator move others.
//!
//! # Design
//! - Messages of any length are cut into records ([`crate::record`]), so that a long message delays
//!   no other one ([`crate::outgoing`]). Of a long body the receiver allows more as it takes it
//!   ([`crate::incoming`]).
//! - A *session* is the life of a link. It ends with its connection, or, if both sides have
//!   patience, survives a cut: each side counts the bytes of records that it has received, keeps
//!   what the peer has not acknowledged ([`crate::kept`]), and sends it again on the next
//!   connection from where the peer says. So each byte arrives once and in order, however
//!   often connections end, and messages are made of bytes.
//! - A client begins a session with a random key and may send at once. A client whose session goes
//!   on first waits for the server's count.
//! - A message that has begun must make progress: [`SLOWEST`] bytes a second, over [`GRACE`].
//!
//! # No deadlock
//! What a side may send depends on three things: the connection takes bytes, the peer allows bytes
//! of a body, and less than [`WINDOW`] bytes are unacknowledged. Credits and acknowledgements are
//! sent outside the window, so the last two are always released by a peer that reads. A peer that
//! reads nothing gets no more than [`WINDOW`] bytes and a bounded number of controls.
//! `tests::a_session_survives_cuts_at_any_byte` explores both sides with cuts.
//!
//! # Source
//! URPC section 3 (a channel for each pair, flow control above it); the resumption is TCP's sliding
//! window one layer up, because TCP's own ends with its connection.

use crate::frame::{FrameBody, FrameError, FrameHeader, NoLinkMemory};
use crate::incoming::{IncomingMessages, LinkEvent, NoPiece, Told, Wanted};
use crate::kept::{Keeps, KeptBytes};
use crate::outgoing::{DoneMessage, GivenUp, MessageLane, OutMessage, OutgoingMessages};
use crate::reader::{ReadPiece, RecordReader};
use crate::record::{HELLO, Hello, RecordHeader, RecordKind, SessionKey, SessionStart, VERSION};
use std::fmt;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of bytes of records that a peer has not acknowledged.
pub const WINDOW: u64 = 1 << 20;
/// Number of bytes received after which they are acknowledged, if no record is sent anyway. The
/// peer need not wait for it. A receiver of messages gives room back after three quarters of it,
/// which acknowledges as well. So it sends no record for this alone.
const ACKNOWLEDGE: u64 = WINDOW * 7 / 8;
/// Number of bytes that are prepared for the connection at a time.
const PREPARED: u64 = (64 << 10) + 1;
/// Maximum number of bytes for the connection in pieces: those that are prepared, and the last
/// record of them. After a cut more bytes may wait.
pub const MOST_OUTPUT: usize = (64 + 16) << 10;

/// Time over which messages that have begun must make progress.
pub const GRACE: Duration = Duration::from_secs(10);
/// Minimum rate of messages that have begun, in bytes per second.
pub const SLOWEST: usize = 64 << 10;

/// Which side of a link this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkSide {
    /// It connects.
    Client,
    /// It accepts connections.
    Server,
}

/// What one side brings to a link.
#[derive(Clone, Copy, Debug)]
pub struct LinkTerms {
    /// Maximum number of calls that it takes at once.
    pub window: u16,
    /// Time for which it keeps the session after a cut. Zero: the session ends with its connection.
    pub patience: Duration,
}

/// Why bytes do not continue a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// The peer broke the protocol.
    Broken(FrameError),
    /// The peer has another version of the protocol.
    Version(u32),
    /// The peer does not know the session any more.
    Forgotten,
    /// The peer began a message and did not go on with it.
    Slow,
    /// This side has no memory for a part of a message. The peer has done nothing wrong, and the
    /// session may go on with another connection.
    NoMemory,
}

impl From<FrameError> for LinkError {
    fn from(error: FrameError) -> Self {
        Self::Broken(error)
    }
}

impl From<NoLinkMemory> for LinkError {
    fn from(_: NoLinkMemory) -> Self {
        Self::NoMemory
    }
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(how) => write!(f, "the other side broke the protocol: {how}"),
            Self::Version(found) => write!(
                f,
                "the other side has version {found} of the protocol and this side version \
                 {VERSION}: update the older of the two"
            ),
            Self::Forgotten => {
                write!(f, "the other side has ended the session, or was started anew")
            }
            Self::NoMemory => write!(f, "this process has no memory for a message"),
            Self::Slow => write!(f, "the other side began a message and did not finish it in time"),
        }
    }
}

impl std::error::Error for LinkError {}

/// What a link waits for on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkPhase {
    /// There is no connection.
    Cut,
    /// The peer's hello, before which nothing may be sent but one's own.
    Greets,
    /// The peer's hello. Records may be sent already.
    Sends,
    /// Records.
    Open,
}

/// Messages that were sent or given up, and bodies that were received.
pub struct DoneMessages {
    /// The messages.
    pub messages: Vec<DoneMessage>,
    _bodies: Vec<Arc<FrameBody>>,
}

/// See the module.
pub struct HostLink {
    side: LinkSide,
    session: SessionKey,
    terms: LinkTerms,
    phase: LinkPhase,
    /// The peer's window, once its first hello has arrived.
    peer: Option<u16>,
    /// Bytes of the own hello that are not sent.
    hello: Vec<u8>,
    /// The peer's hello, as far as it has arrived.
    greeting: Vec<u8>,
    reader: RecordReader,
    incoming: IncomingMessages,
    outgoing: OutgoingMessages,
    kept: KeptBytes,
    /// Number of bytes of records received, and told to the peer.
    received: u64,
    told: u64,
    progress: Option<ProgressCheck>,
}

/// When messages that have begun must have made progress.
#[derive(Clone, Copy, Debug)]
struct ProgressCheck {
    ends: Instant,
    /// The number of received bytes that has to be reached by then.
    wanted: u64,
}

impl fmt::Debug for HostLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostLink")
            .field("side", &self.side)
            .field("phase", &self.phase)
            .field("incoming", &self.incoming)
            .field("outgoing", &self.outgoing)
            .finish_non_exhaustive()
    }
}

impl HostLink {
    /// Begins a session as its client, without a connection yet.
    pub fn client(session: SessionKey, terms: LinkTerms) -> Self {
        Self::new(LinkSide::Client, session, terms)
    }

    /// Begins the session that a client's hello wants, without a connection yet.
    ///
    /// # Errors
    /// The client has another version, or wants a session to go on that is not known.
    pub fn server(hello: &Hello, terms: LinkTerms) -> Result<Self, LinkError> {
        if hello.version != VERSION {
            return Err(LinkError::Version(hello.version));
        }
        if hello.begins == SessionStart::GoesOn {
            return Err(LinkError::Forgotten);
        }
        let patience = terms.patience.min(hello.patience);
        Ok(Self::new(LinkSide::Server, hello.session, LinkTerms { patience, ..terms }))
    }

    fn new(side: LinkSide, session: SessionKey, terms: LinkTerms) -> Self {
        Self {
            side,
            session,
            terms,
            phase: LinkPhase::Cut,
            peer: None,
            hello: Vec::new(),
            greeting: Vec::new(),
            reader: RecordReader::default(),
            incoming: IncomingMessages::default(),
            outgoing: OutgoingMessages::default(),
            kept: KeptBytes::new(keeps(terms.patience)),
            received: 0,
            told: 0,
            progress: None,
        }
    }

    /// The key of the session.
    pub fn session(&self) -> SessionKey {
        self.session
    }

    /// Returns `true` if the session goes on after a cut.
    pub fn survives(&self) -> bool {
        !self.terms.patience.is_zero() && self.peer.is_some()
    }

    /// Time for which the session goes on after a cut.
    pub fn patience(&self) -> Duration {
        self.terms.patience
    }

    /// Maximum number of calls that the peer takes at once; `None` before its first hello.
    pub fn peer_window(&self) -> Option<u16> {
        self.peer
    }

    /// Number of bytes of the peer's hello that have not arrived, for a client.
    pub fn missing_of_hello(&self) -> usize {
        HELLO - self.greeting.len()
    }

    /// A client has a new connection.
    pub fn connect(&mut self) {
        // A server that does not know the session may have died after it took what was sent.
        let is_fresh = self.peer.is_none() && self.kept.is_unused();
        let (begins, phase) = match is_fresh {
            true => (SessionStart::Begins, LinkPhase::Sends),
            false => (SessionStart::GoesOn, LinkPhase::Greets),
        };
        self.phase = phase;
        self.greet(begins);
    }

    /// A server has a new connection, and this hello came on it.
    ///
    /// # Errors
    /// The client wants bytes that are no longer there.
    pub fn accept(&mut self, hello: &Hello) -> Result<(), LinkError> {
        self.peer = Some(hello.window);
        self.kept.resume(hello.received)?;
        self.phase = LinkPhase::Open;
        self.greet(hello.begins);
        Ok(())
    }

    fn greet(&mut self, begins: SessionStart) {
        let hello = Hello {
            version: VERSION,
            window: self.terms.window,
            begins,
            session: self.session,
            received: self.received,
            patience: self.terms.patience,
        };
        self.told = self.received;
        self.hello = hello.to_bytes().to_vec();
        self.greeting.clear();
    }

    /// The connection is gone. Messages stay for the next one.
    pub fn cut(&mut self) {
        self.phase = LinkPhase::Cut;
        self.hello.clear();
        self.progress = None;
    }

    /// Adds a message to the end of a lane.
    pub fn send(&mut self, lane: MessageLane, message: OutMessage) {
        self.outgoing.add(lane, message);
    }

    /// Gives up the messages of a lane.
    pub fn give_up(&mut self, lane: MessageLane) -> GivenUp {
        self.outgoing.give_up(lane)
    }

    /// A round trip on the connection took this long.
    pub fn note_round_trip(&mut self, took: Duration) {
        self.incoming.note_round_trip(took);
    }

    /// Number of messages of which not everything is sent.
    pub fn unsent(&self) -> usize {
        self.outgoing.count()
    }

    /// The next bytes for the connection. Empty if there are none now.
    ///
    /// # Errors
    /// There is no memory.
    pub fn output(&mut self) -> Result<&[u8], LinkError> {
        if !self.hello.is_empty() {
            return Ok(&self.hello);
        }
        if !self.sends() {
            return Ok(&[]);
        }
        while self.kept.count_unsent() < PREPARED && self.may_write() {
            let received = self.received as u32;
            match self.outgoing.has_control() {
                true => self.outgoing.write_control(&mut self.kept, received)?,
                false => self.outgoing.write_piece(&mut self.kept, received)?,
            }
            self.told = self.received;
        }
        Ok(self.kept.unsent())
    }

    /// The next bytes for the connection, in as many pieces as `pieces` has room for, and at most
    /// `most` of them. The first piece is the beginning of what [`output`](Self::output) returns.
    /// Returns the number of pieces.
    ///
    /// # Errors
    /// There is no memory.
    pub fn output_pieces<'a>(
        &'a mut self,
        pieces: &mut [IoSlice<'a>],
        most: usize,
    ) -> Result<usize, LinkError> {
        if self.output()?.is_empty() {
            return Ok(0);
        }
        if let (false, Some(first)) = (self.hello.is_empty(), pieces.first_mut()) {
            *first = IoSlice::new(&self.hello);
            return Ok(1);
        }
        let (mut count, mut room) = (0, most.min(MOST_OUTPUT));
        for (piece, unsent) in pieces.iter_mut().zip(self.kept.unsent_pieces()) {
            let now = unsent.len().min(room);
            *piece = IoSlice::new(&unsent[..now]);
            (count, room) = (count + 1, room - now);
            if room == 0 {
                break;
            }
        }
        Ok(count)
    }

    /// The connection has taken the first `count` bytes of the last output.
    pub fn sent(&mut self, count: usize) {
        if self.hello.is_empty() {
            self.kept.sent(count);
        } else {
            self.hello.drain(..count.min(self.hello.len()));
        }
    }

    /// Takes the messages that are sent or given up, to be dropped outside a lock.
    pub fn take_done(&mut self) -> DoneMessages {
        DoneMessages { messages: self.outgoing.take_done(), _bodies: self.kept.take_freed() }
    }

    fn sends(&self) -> bool {
        matches!(self.phase, LinkPhase::Sends | LinkPhase::Open)
    }

    fn may_write(&self) -> bool {
        self.outgoing.has_control() || (self.outgoing.has_next() && self.kept.count() < WINDOW)
    }

    /// Bytes have arrived on the connection.
    ///
    /// `wants` judges each message that begins. What has arrived is added to `events`, also when
    /// this fails.
    ///
    /// # Errors
    /// See [`LinkError`]. The connection cannot be used further, nor can the session, except after
    /// [`LinkError::NoMemory`]: the peer sends again what was not taken.
    pub fn take(
        &mut self,
        mut bytes: &[u8],
        now: Instant,
        wants: &mut dyn FnMut(&FrameHeader) -> Result<Wanted, FrameError>,
        events: &mut Vec<LinkEvent>,
    ) -> Result<(), LinkError> {
        if self.phase != LinkPhase::Open && !self.take_hello(&mut bytes)? {
            return Ok(());
        }
        while !bytes.is_empty() {
            let before = bytes.len();
            let piece = self.reader.take(&mut bytes)?;
            self.received += (before - bytes.len()) as u64;
            match piece {
                None => {}
                Some(ReadPiece::Begin(record, head)) => {
                    self.kept.acknowledged(record.received)?;
                    let wanted = wants(&head)?;
                    let begun = self.incoming.begin(record.message, head, wanted, now)?;
                    let (told, event) = begun;
                    events.extend(event);
                    match told {
                        Told::Nothing => {}
                        Told::Stop => self.outgoing.control(RecordKind::Stop, record.message, 0)?,
                    }
                }
                Some(ReadPiece::Body(record, piece)) => {
                    self.kept.acknowledged(record.received)?;
                    let taken = self.incoming.body(record.message, piece, now);
                    let (more, event) = taken.map_err(|why| self.no_piece(why, record, piece))?;
                    events.extend(event);
                    if let Some(more) = more {
                        self.outgoing.control(RecordKind::Credit, record.message, more)?;
                    }
                }
                Some(ReadPiece::Control(record, number)) => {
                    self.kept.acknowledged(record.received)?;
                    self.take_control(record, number, events)?;
                }
            }
        }
        let keeps = keeps(self.terms.patience) == Keeps::UntilAcknowledged;
        if keeps && self.received - self.told >= ACKNOWLEDGE && !self.outgoing.has_control() {
            self.outgoing.control(RecordKind::Ack, 0, 0)?;
        }
        self.note_progress(now);
        Ok(())
    }

    /// A piece of a body was not taken, for this reason.
    fn no_piece(&mut self, why: NoPiece, record: RecordHeader, piece: &[u8]) -> LinkError {
        match why {
            NoPiece::Broken(error) => error.into(),
            NoPiece::NoMemory => {
                // The next hello asks for it again. No record has told the peer of it.
                self.reader.put_back(record, piece.len());
                self.received -= piece.len() as u64;
                LinkError::NoMemory
            }
        }
    }

    fn take_control(
        &mut self,
        record: RecordHeader,
        number: u64,
        events: &mut Vec<LinkEvent>,
    ) -> Result<(), LinkError> {
        match record.kind {
            RecordKind::Credit => self.outgoing.credit(record.message, number),
            RecordKind::Stop => self.outgoing.stop(record.message),
            RecordKind::Reset => events.extend(self.incoming.reset(record.message)?),
            RecordKind::Ack | RecordKind::Begin | RecordKind::More => {}
        }
        Ok(())
    }

    /// Takes the server's hello. Returns `true` when all of it has arrived.
    fn take_hello(&mut self, bytes: &mut &[u8]) -> Result<bool, LinkError> {
        let (now, later) = bytes.split_at(bytes.len().min(HELLO - self.greeting.len()));
        self.greeting.extend_from_slice(now);
        *bytes = later;
        if !Hello::may_begin(&self.greeting) {
            return Err(FrameError("it does not speak Upcall's protocol").into());
        }
        // A hello of another version may be shorter.
        if let Some(found) = Hello::version_of(&self.greeting).filter(|&found| found != VERSION) {
            return Err(LinkError::Version(found));
        }
        let Some(hello) = self.greeting.first_chunk::<HELLO>() else { return Ok(false) };
        let hello = Hello::read(hello)?;
        let goes_on = self.phase == LinkPhase::Greets;
        if hello.session != self.session || (goes_on && hello.begins == SessionStart::Begins) {
            return Err(LinkError::Forgotten);
        }
        if self.peer.is_none() {
            self.terms.patience = self.terms.patience.min(hello.patience);
            self.kept.keep(keeps(self.terms.patience));
        }
        self.peer = Some(hello.window);
        if goes_on {
            self.kept.resume(hello.received)?;
        }
        self.phase = LinkPhase::Open;
        Ok(true)
    }

    /// The next time at which [`HostLink::tick`] has something to do.
    pub fn due(&self) -> Option<Instant> {
        self.progress.map(|check| check.ends)
    }

    /// Time has passed.
    ///
    /// # Errors
    /// The peer is too slow.
    pub fn tick(&mut self, now: Instant) -> Result<(), LinkError> {
        let Some(check) = self.progress.filter(|check| check.ends <= now) else { return Ok(()) };
        if self.received < check.wanted {
            return Err(LinkError::Slow);
        }
        self.progress = None;
        self.note_progress(now);
        Ok(())
    }

    /// Sets the next check of the progress of what has begun, if anything has.
    fn note_progress(&mut self, now: Instant) {
        // A peer whose session survives cuts may be stopped for any time. What it has begun is
        // bounded by the holder of the link.
        if self.survives() || self.incoming.is_between() && self.reader.is_between() {
            self.progress = None;
        } else if self.progress.is_none() {
            let least = SLOWEST * GRACE.as_secs() as usize;
            // Of a record's header at least one more byte.
            let wanted = self.received + self.incoming.missing().clamp(1, least) as u64;
            self.progress = Some(ProgressCheck { ends: now + GRACE, wanted });
        }
    }

    /// Takes the link out of a connection that is lost, and leaves a link that has ended.
    pub fn take_out(&mut self) -> Self {
        let ended = self.ended();
        let mut taken = std::mem::replace(self, ended);
        taken.cut();
        taken
    }

    /// A link in place of this one, which has neither a connection nor messages.
    pub(crate) fn ended(&self) -> Self {
        let terms = LinkTerms { patience: Duration::ZERO, ..self.terms };
        Self::new(self.side, self.session, terms)
    }

    /// Ends the session: nothing more is sent, and nothing that has begun will arrive.
    pub fn end(&mut self) {
        self.cut();
        self.outgoing.clear();
        self.incoming.clear();
    }
}

fn keeps(patience: Duration) -> Keeps {
    match patience.is_zero() {
        true => Keeps::UntilSent,
        false => Keeps::UntilAcknowledged,
    }
}

#[cfg(test)]
mod tests;
