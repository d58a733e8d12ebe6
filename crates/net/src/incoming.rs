//! Messages that are arriving, and what the peer may still send of them.
//!
//! A body costs memory as it arrives, and only if it is wanted: the holder of the link charges an
//! account when a message begins. There is no input or output here.
//!
//! # How much of a long body is on its way
//! What is on its way, or waits in the receiver's kernel, delays every other message. So after the
//! first [`UNASKED`] bytes the sender of a body may be [`AHEAD`] bytes ahead of the receiver. When
//! the receiver has taken half of that, it allows more. On a long way this would be too little. If
//! half of the bytes are taken in less than two round trips, the receiver doubles their number, up
//! to [`MOST_AHEAD`] (as QUIC's implementations do).

use crate::frame::{Filling, Frame, FrameBody, FrameError, FrameHeader, NoLinkMemory};
use crate::outgoing::{BufferOwner, UNASKED};
use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

/// Maximum number of messages that arrive at once on a link.
pub const MOST_OPEN: usize = 1024;

/// Number of bytes by which the sender of a long body may be ahead at first.
const AHEAD: usize = 256 << 10;

/// Maximum number of bytes of a body by which its sender may be ahead.
pub const MOST_AHEAD: usize = 16 << 20;

/// Whether the body of a message is wanted.
pub enum Wanted {
    /// It is. The owner comes with the message, and is dropped if the message does not arrive.
    Yes(Option<BufferOwner>),
    /// Its bytes are dropped, and the rest need not be sent.
    No,
}

impl fmt::Debug for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Yes(_) => "Yes",
            Self::No => "No",
        })
    }
}

/// What has arrived.
pub enum LinkEvent {
    /// A message; without its body if that was not wanted.
    Came(Frame, Option<BufferOwner>),
    /// The peer gave up the rest of a message that was wanted.
    GivenUp(FrameHeader),
}

impl fmt::Debug for LinkEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Came(frame, _) => write!(f, "Came({:?})", frame.head),
            Self::GivenUp(head) => write!(f, "GivenUp({head:?})"),
        }
    }
}

struct InMessage {
    head: FrameHeader,
    /// `None` if the body is not wanted.
    filling: Option<(Filling, Option<BufferOwner>)>,
    /// Number of bytes that are missing, and that may arrive without another credit.
    left: usize,
    allowed: usize,
    /// When more was last allowed.
    credited: Instant,
}

/// The answer to the peer about a message that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Nothing: the body may come.
    Nothing,
    /// The rest is not wanted.
    Stop,
}

/// Why a piece of a body was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPiece {
    /// The peer broke the protocol.
    Broken(FrameError),
    /// This side has no memory for it. Nothing has changed: the piece may come again.
    NoMemory,
}

impl From<FrameError> for NoPiece {
    fn from(error: FrameError) -> Self {
        Self::Broken(error)
    }
}

impl From<NoLinkMemory> for NoPiece {
    fn from(_: NoLinkMemory) -> Self {
        Self::NoMemory
    }
}

/// See the module.
pub struct IncomingMessages {
    open: HashMap<u32, InMessage>,
    /// Number of bytes of a body by which its sender may be ahead.
    ahead: usize,
    /// The shortest round trip that is known.
    round_trip: Duration,
}

impl Default for IncomingMessages {
    fn default() -> Self {
        Self { open: HashMap::new(), ahead: AHEAD, round_trip: Duration::ZERO }
    }
}

impl fmt::Debug for IncomingMessages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IncomingMessages").field("open", &self.open.len()).finish()
    }
}

impl IncomingMessages {
    /// A message begins. Its event comes at once if the body is empty or not wanted.
    ///
    /// # Errors
    /// The message may not begin.
    pub fn begin(
        &mut self,
        number: u32,
        head: FrameHeader,
        wanted: Wanted,
        now: Instant,
    ) -> Result<(Told, Option<LinkEvent>), FrameError> {
        if self.open.len() >= MOST_OPEN {
            return Err(FrameError("more messages at once than there may be"));
        }
        if self.open.contains_key(&number) {
            return Err(FrameError("a message that has begun already"));
        }
        let empty = |owner| Some(came(head, FrameBody::default(), owner));
        let (told, filling, event) = match wanted {
            Wanted::Yes(owner) if head.len == 0 => return Ok((Told::Nothing, empty(owner))),
            Wanted::No if head.len == 0 => return Ok((Told::Nothing, empty(None))),
            Wanted::Yes(owner) => (Told::Nothing, Some((Filling::default(), owner)), None),
            Wanted::No => (Told::Stop, None, empty(None)),
        };
        let (left, allowed) = (head.len, UNASKED.min(head.len));
        let message = InMessage { head, filling, left, allowed, credited: now };
        self.open.insert(number, message);
        Ok((told, event))
    }

    /// A round trip took this long.
    pub fn note_round_trip(&mut self, took: Duration) {
        self.round_trip = match self.round_trip {
            Duration::ZERO => took,
            shortest => shortest.min(took),
        };
    }

    /// Bytes of a body arrive. Returns how many more the sender may send, if that has changed.
    ///
    /// # Errors
    /// No such message has begun, it is not that long, the peer was not allowed to send so much, or
    /// there is no memory. See [`NoPiece`].
    pub fn body(
        &mut self,
        number: u32,
        bytes: &[u8],
        now: Instant,
    ) -> Result<(Option<u64>, Option<LinkEvent>), NoPiece> {
        let message = self.open.get_mut(&number);
        let message = message.ok_or(FrameError("a piece of a message that has not begun"))?;
        if bytes.len() > message.left {
            return Err(FrameError("a piece that is longer than the rest of its message").into());
        }
        if bytes.len() > message.allowed {
            return Err(FrameError("more of a message than was allowed").into());
        }
        if let Some((filling, _)) = &mut message.filling {
            filling.add(bytes, message.left)?;
        }
        message.left -= bytes.len();
        message.allowed -= bytes.len();
        if message.left > 0 {
            return Ok((self.credit(number, now), None));
        }
        let message = self.open.remove(&number);
        let event = message.and_then(|InMessage { head, filling, .. }| {
            filling.map(|(filling, owner)| came(head, filling.done(), owner))
        });
        Ok((None, event))
    }

    /// Allows more of a body, if half of what its sender may be ahead was taken.
    fn credit(&mut self, number: u32, now: Instant) -> Option<u64> {
        let message = self.open.get_mut(&number)?;
        // At the end of a body everything is allowed. How fast the rest is taken says nothing about
        // the way.
        let is_all = message.left == message.allowed;
        if is_all || message.allowed > self.ahead / 2 || message.filling.is_none() {
            return None;
        }
        let took = now.saturating_duration_since(message.credited);
        if took < 2 * self.round_trip && self.ahead < MOST_AHEAD {
            self.ahead *= 2;
        }
        let more = (self.ahead - message.allowed).min(message.left - message.allowed);
        message.allowed += more;
        message.credited = now;
        (more > 0).then_some(more as u64)
    }

    /// The peer gave up the rest of a message.
    ///
    /// # Errors
    /// No such message has begun.
    pub fn reset(&mut self, number: u32) -> Result<Option<LinkEvent>, FrameError> {
        let message = self.open.remove(&number);
        let message = message.ok_or(FrameError("the end of a message that has not begun"))?;
        Ok(message.filling.is_some().then_some(LinkEvent::GivenUp(message.head)))
    }

    /// Number of bytes that are missing of all messages that have begun.
    pub fn missing(&self) -> usize {
        self.open.values().map(|message| message.left).sum()
    }

    /// Returns `true` if no message has begun.
    pub fn is_between(&self) -> bool {
        self.open.is_empty()
    }

    /// Drops all messages that have not arrived.
    pub fn clear(&mut self) {
        self.open.clear();
    }
}

fn came(head: FrameHeader, body: FrameBody, owner: Option<BufferOwner>) -> LinkEvent {
    LinkEvent::Came(Frame { head, body }, owner)
}
