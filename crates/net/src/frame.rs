//! Messages in a stream of bytes.
//!
//! ```text
//!   each side first     "upcall\0n"   version (4)   window (2)   0 (2)
//!   then messages       length of the body (8)   call (4)   binding (4)   kind (2)
//!                       number (2)   0 (4)   time left (8)   body
//! ```
//! All numbers are little endian. A body is a block as it lies in shared memory, or a message of
//! `rpc`'s. The time left is in microseconds, 0 for no limit: it is not a point in time, because
//! the clocks of two machines differ. Everything here is untrusted input from the peer. A length is
//! compared with its maximum before it is used, and memory is allocated as the bytes arrive, never
//! because a length asks for it.
//!
//! There is no input or output here: bytes go in, and messages come out.

use std::fmt;
use std::mem::take;
use std::time::Duration;
use upcall_os::memory::free_in_pieces;
use upcall_sched::PIECE;
use upcall_shm::span::Span;

/// The version of the messages. Sides with different versions do not talk.
pub const VERSION: u32 = 4;

/// Maximum length of a body, in bytes. A longer one is not sent.
pub const MOST_BODY: usize = 256 << 20;

/// Maximum length of an answer that is not a reply, or of a farewell, in bytes.
pub const MOST_ANSWER: usize = 16 << 20;

/// Length of a preamble, in bytes.
pub const PREAMBLE: usize = 16;

/// Length of a message's header, in bytes.
pub const HEAD: usize = 32;

const MAGIC: [u8; 8] = *b"upcall\0n";

/// The first bytes that each side sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preamble {
    /// The protocol version of the sender.
    pub version: u32,
    /// Maximum number of calls that the sender takes at once on one connection.
    pub window: u16,
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A client's request that is not a call: mostly a request to bind.
    Ask,
    /// The answer to such a request.
    Answer,
    /// A call.
    Call,
    /// The reply to a call.
    Reply,
    /// The reason why the server is about to close the connection.
    Farewell,
}

/// The header of a message, before its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The kind of the message.
    pub kind: FrameKind,
    /// The call's number, which its reply repeats.
    pub call: u32,
    /// The binding's number.
    pub binding: u32,
    /// The procedure's number; in a reply, the outcome.
    pub number: u16,
    /// Time for which the caller still waits.
    pub left: Option<Duration>,
    /// Length of the body, in bytes.
    pub len: usize,
}

/// A body: words, and how many of their bytes are valid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameBody {
    /// The words.
    pub words: Vec<u64>,
    /// Number of valid bytes. The rest of the last word is zero.
    pub len: usize,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The header.
    pub head: FrameHeader,
    /// The body. Empty if it was not wanted.
    pub body: FrameBody,
}

/// There is no memory for a message, which was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory {
    /// Length of the message, in bytes.
    pub bytes: usize,
}

/// Bytes that are not a message: the peer is not Upcall, or broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameError(pub &'static str);

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for FrameError {}

impl Preamble {
    /// Encodes the preamble.
    pub fn to_bytes(self) -> [u8; PREAMBLE] {
        let mut bytes = [0; PREAMBLE];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.window.to_le_bytes());
        bytes
    }

    /// Returns `true` if a preamble may begin with these bytes.
    pub fn may_begin(bytes: &[u8]) -> bool {
        bytes.iter().zip(MAGIC).all(|(byte, magic)| *byte == magic)
    }

    /// Decodes a preamble. Another version is read too, so that it can be reported.
    ///
    /// # Errors
    /// The bytes are not a preamble.
    pub fn read(bytes: &[u8; PREAMBLE]) -> Result<Self, FrameError> {
        if bytes[..8] != MAGIC {
            return Err(FrameError("it does not speak Upcall's protocol"));
        }
        let (version, window) = (u32_at(bytes, 8), u16_at(bytes, 12));
        if version == VERSION && window == 0 {
            return Err(FrameError("it takes no calls at all"));
        }
        Ok(Self { version, window })
    }
}

impl FrameHeader {
    /// Encodes the header.
    pub fn to_bytes(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[..8].copy_from_slice(&(self.len as u64).to_le_bytes());
        bytes[8..12].copy_from_slice(&self.call.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.binding.to_le_bytes());
        bytes[16..18].copy_from_slice(&(self.kind as u16).to_le_bytes());
        bytes[18..20].copy_from_slice(&self.number.to_le_bytes());
        // At least 1, even if the caller's time is up: 0 would mean no limit.
        let left =
            self.left.map_or(0, |left| u64::try_from(left.as_micros()).unwrap_or(u64::MAX).max(1));
        bytes[24..].copy_from_slice(&left.to_le_bytes());
        bytes
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// The bytes are not a header, or the body would be longer than [`MOST_BODY`].
    pub fn read(bytes: &[u8; HEAD]) -> Result<Self, FrameError> {
        let kind = match u16_at(bytes, 16) {
            0 => FrameKind::Ask,
            1 => FrameKind::Answer,
            2 => FrameKind::Call,
            3 => FrameKind::Reply,
            4 => FrameKind::Farewell,
            _ => return Err(FrameError("a message of an unknown kind")),
        };
        if u32_at(bytes, 20) != 0 {
            return Err(FrameError("a message whose reserved bytes are not zero"));
        }
        let len = usize::try_from(u64_at(bytes, 0)).ok().filter(|&len| len <= MOST_BODY);
        Ok(Self {
            kind,
            call: u32_at(bytes, 8),
            binding: u32_at(bytes, 12),
            number: u16_at(bytes, 18),
            left: Some(u64_at(bytes, 24)).filter(|&left| left != 0).map(Duration::from_micros),
            len: len.ok_or(FrameError("a message that is longer than messages may be"))?,
        })
    }

    /// Allocates memory for a message with this body.
    ///
    /// # Errors
    /// There is no memory.
    pub fn room(body: &FrameBody) -> Result<Vec<u8>, NoMemory> {
        let (mut room, len) = (Vec::new(), HEAD + body.len);
        room.try_reserve_exact(len).map_err(|_| NoMemory { bytes: len })?;
        Ok(room)
    }

    /// Encodes the message with this body into `room`.
    ///
    /// Calls `between` between the pieces of a long message, so that others get a turn.
    pub fn write(
        mut self,
        body: &FrameBody,
        mut room: Vec<u8>,
        mut between: impl FnMut(),
    ) -> Vec<u8> {
        self.len = body.len;
        room.extend_from_slice(&self.to_bytes());
        let all = body.view();
        for at in (0..body.len).step_by(PIECE) {
            if at > 0 {
                between();
            }
            all.part(at, PIECE.min(body.len - at))
                .iter()
                .for_each(|piece| piece.append_to(&mut room));
        }
        room
    }

    /// Encodes the message with this body, for bodies of a few bytes.
    ///
    /// # Aborts
    /// There is no memory for the message.
    pub fn with(self, body: &FrameBody) -> Vec<u8> {
        self.write(body, Vec::with_capacity(HEAD + body.len), || {})
    }
}

impl FrameBody {
    /// The valid bytes.
    pub fn view(&self) -> Span<'_> {
        let all = Span::of_words(&self.words);
        all.part(0, self.len).unwrap_or(all)
    }

    /// Copies the valid bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.view().append_to(&mut bytes);
        bytes
    }
}

impl From<&[u8]> for FrameBody {
    fn from(bytes: &[u8]) -> Self {
        let mut filling = Filling::default();
        filling.take(bytes);
        filling.done()
    }
}

/// A body that arrives in pieces.
#[derive(Debug, Default)]
struct Filling {
    words: Vec<u64>,
    /// The bytes of the last word while it is incomplete.
    part: [u8; 8],
    have: usize,
    len: usize,
}

impl Filling {
    fn take(&mut self, mut bytes: &[u8]) {
        self.len += bytes.len();
        while self.have != 0 && !bytes.is_empty() {
            self.byte(bytes[0]);
            bytes = &bytes[1..];
        }
        let (words, rest) = bytes.as_chunks::<8>();
        self.words.extend(words.iter().map(|word| u64::from_le_bytes(*word)));
        rest.iter().for_each(|&byte| self.byte(byte));
    }

    fn byte(&mut self, byte: u8) {
        self.part[self.have] = byte;
        self.have += 1;
        if self.have == 8 {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.words.push(u64::from_le_bytes(self.part));
        (self.part, self.have) = ([0; 8], 0);
    }

    fn done(mut self) -> FrameBody {
        if self.have != 0 {
            self.flush();
        }
        FrameBody { words: take(&mut self.words), len: self.len }
    }
}

/// Frees the memory in pieces, because a peer decided how long it is.
impl Drop for Filling {
    fn drop(&mut self) {
        free_in_pieces(take(&mut self.words), PIECE, |_| {});
    }
}

/// Frees the memory in pieces, because a peer decided how long it is.
impl Drop for FrameBody {
    fn drop(&mut self) {
        free_in_pieces(take(&mut self.words), PIECE, |_| {});
    }
}

/// Splits a stream of bytes into messages.
#[derive(Debug)]
pub struct Deframer(DeframerState);

#[derive(Debug)]
enum DeframerState {
    Head {
        bytes: [u8; HEAD],
        have: usize,
    },
    /// `filling` is `None` if the body is not wanted: its bytes are dropped as they arrive.
    Body {
        head: FrameHeader,
        left: usize,
        filling: Option<Filling>,
    },
}

const BETWEEN: DeframerState = DeframerState::Head { bytes: [0; HEAD], have: 0 };

impl Default for Deframer {
    fn default() -> Self {
        Self(BETWEEN)
    }
}

impl Deframer {
    /// Takes bytes off the front of `bytes`, up to the end of a message.
    ///
    /// As soon as a message's header is complete, `wants` is called and returns `true` if the body
    /// is wanted. Otherwise the message is returned without its body.
    ///
    /// # Errors
    /// The bytes are not a message, or `wants` refuses it. This stream cannot be read further.
    pub fn take(
        &mut self,
        bytes: &mut &[u8],
        wants: impl FnOnce(&FrameHeader) -> Result<bool, FrameError>,
    ) -> Result<Option<Frame>, FrameError> {
        if let DeframerState::Head { bytes: head, have } = &mut self.0 {
            let (now, later) = bytes.split_at(bytes.len().min(HEAD - *have));
            head[*have..*have + now.len()].copy_from_slice(now);
            *have += now.len();
            *bytes = later;
            if *have < HEAD {
                return Ok(None);
            }
            let head = FrameHeader::read(head)?;
            let filling = wants(&head)?.then(Filling::default);
            self.0 = DeframerState::Body { head, left: head.len, filling };
        }
        let DeframerState::Body { head, left, filling } = &mut self.0 else { return Ok(None) };
        let (now, later) = bytes.split_at(bytes.len().min(*left));
        if let Some(filling) = filling {
            let room = filling.words.try_reserve(now.len() / 8 + 2);
            room.map_err(|_| FrameError("no memory for the body of a message"))?;
            filling.take(now);
        }
        *left -= now.len();
        *bytes = later;
        if *left > 0 {
            return Ok(None);
        }
        let frame =
            Frame { head: *head, body: filling.take().map(Filling::done).unwrap_or_default() };
        self.0 = BETWEEN;
        Ok(Some(frame))
    }

    /// Returns `true` if no message has begun.
    pub fn is_between(&self) -> bool {
        matches!(self.0, DeframerState::Head { have: 0, .. })
    }

    /// Length of the current message's body, or 0 if its header is incomplete.
    pub fn under_way(&self) -> usize {
        match &self.0 {
            DeframerState::Head { .. } => 0,
            DeframerState::Body { head, .. } => head.len,
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(kind: FrameKind, len: usize) -> FrameHeader {
        FrameHeader {
            kind,
            call: 7,
            binding: 70_000,
            number: 1023,
            left: Some(Duration::from_micros(5)),
            len,
        }
    }

    fn all(mut bytes: &[u8], piece: usize) -> Result<Vec<Frame>, FrameError> {
        let (mut deframer, mut frames) = (Deframer::default(), Vec::new());
        while !bytes.is_empty() {
            let (mut now, later) = bytes.split_at(piece.min(bytes.len()));
            while !now.is_empty() {
                frames.extend(deframer.take(&mut now, |head| Ok(head.number != 13))?);
            }
            bytes = later;
        }
        assert!(deframer.is_between());
        Ok(frames)
    }

    #[test]
    fn messages_come_out_as_they_went_in_however_the_bytes_come() {
        let bodies: Vec<Vec<u8>> =
            [0, 1, 7, 8, 9, 100].iter().map(|&len| (0..len).collect()).collect();
        let sent: Vec<u8> = bodies
            .iter()
            .flat_map(|body| head(FrameKind::Call, body.len()).with(&FrameBody::from(&**body)))
            .collect();
        for piece in [1, 3, 8, 31, 32, 33, 1000] {
            let frames = all(&sent, piece).unwrap();
            let found: Vec<_> = frames.iter().map(|frame| frame.body.to_vec()).collect();
            assert_eq!(found, bodies, "in pieces of {piece}");
            assert!(frames.iter().all(|frame| frame.head == head(FrameKind::Call, frame.body.len)));
        }
    }

    #[test]
    fn what_nobody_wants_is_passed_over() {
        let mut sent = FrameHeader { number: 13, ..head(FrameKind::Call, 0) }
            .with(&FrameBody::from(&[1; 99][..]));
        sent.extend(head(FrameKind::Call, 0).with(&FrameBody::from(&[2; 3][..])));
        let frames = all(&sent, 10).unwrap();
        assert_eq!(
            (frames[0].head.len, frames[0].body.len, frames[1].body.to_vec()),
            (99, 0, vec![2; 3])
        );
    }

    #[test]
    fn lengths_and_kinds_are_checked_first() {
        let mut bytes = head(FrameKind::Reply, 0).to_bytes();
        assert_eq!(FrameHeader::read(&bytes), Ok(head(FrameKind::Reply, 0)));
        bytes[16] = 5;
        assert!(FrameHeader::read(&bytes).is_err());
        for len in [MOST_BODY as u64 + 1, 1 << 40, u64::MAX] {
            let mut bytes = head(FrameKind::Reply, 0).to_bytes();
            bytes[..8].copy_from_slice(&len.to_le_bytes());
            assert!(FrameHeader::read(&bytes).is_err(), "{len}");
        }
        let mut bytes = head(FrameKind::Reply, 0).to_bytes();
        bytes[23] = 1;
        assert!(FrameHeader::read(&bytes).is_err());
    }

    #[test]
    fn who_speaks_something_else_is_told_from_who_speaks_another_version() {
        let own = Preamble { version: VERSION, window: 64 };
        assert_eq!(Preamble::read(&own.to_bytes()), Ok(own));
        let newer = Preamble { version: VERSION + 1, window: 0 };
        assert_eq!(Preamble::read(&newer.to_bytes()), Ok(newer));
        assert!(Preamble::read(&Preamble { window: 0, ..own }.to_bytes()).is_err());
        assert!(Preamble::read(b"GET / HTTP/1.1\r\n").is_err());
    }

    #[test]
    fn a_caller_whose_time_is_up_does_not_wait_for_ever() {
        let none = FrameHeader { left: None, ..head(FrameKind::Call, 0) };
        assert_eq!(FrameHeader::read(&none.to_bytes()).unwrap().left, None);
        let over = FrameHeader { left: Some(Duration::ZERO), ..none };
        assert_eq!(
            FrameHeader::read(&over.to_bytes()).unwrap().left,
            Some(Duration::from_micros(1))
        );
    }
}
