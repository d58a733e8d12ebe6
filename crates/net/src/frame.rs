//! Messages in a stream of bytes.
//!
//! ```text
//!   each side first     "upcall\0n"   version (4)   window (2)   0 (2)
//!   then messages       length of the body (8)   call (4)   binding (4)   kind (2)   number (2)   0 (4)   time left (8)   body
//! ```
//! All numbers are little endian. A body is a block as it lies in shared memory, or a message of
//! `rpc`'s. The time left is in microseconds, 0 for no end: clocks of two machines differ, so a
//! moment could not be sent. Everything here is the peer's word. A length is compared with the most
//! that there may be before anything is done with it, and memory is taken as the bytes come, never
//! because a length says so.
//!
//! No input and no output here: bytes go in, messages come out.

use std::fmt;
use std::mem::take;
use std::time::Duration;
use upcall_os::memory::free_in_pieces;
use upcall_sched::PIECE;
use upcall_shm::span::Span;

/// The version of the messages. Sides of different versions do not talk.
pub const VERSION: u32 = 3;

/// The longest body: what is longer is not sent.
pub const MOST_BODY: usize = 256 << 20;

/// The longest answer to what is not a call, and the longest farewell.
pub const MOST_ANSWER: usize = 16 << 20;

/// Bytes of what each side says first.
pub const PREAMBLE: usize = 16;

/// Bytes before a body.
pub const HEAD: usize = 32;

const MAGIC: [u8; 8] = *b"upcall\0n";

/// What each side says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preamble {
    /// The version that it speaks.
    pub version: u32,
    /// How many calls it takes at once on one connection.
    pub window: u16,
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// The client asks for something that is not a call: a binding, above all.
    Ask,
    /// The answer to that.
    Answer,
    /// A call.
    Call,
    /// Its reply.
    Reply,
    /// The server is about to close the connection, and says why.
    Farewell,
}

/// What stands before a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// What it is.
    pub kind: FrameKind,
    /// The call's number, by which its reply finds it.
    pub call: u32,
    /// The binding's number.
    pub binding: u32,
    /// The procedure's number; in a reply the outcome.
    pub number: u16,
    /// How long the caller still waits.
    pub left: Option<Duration>,
    /// Bytes of the body.
    pub len: usize,
}

/// A body: words, of which so many bytes count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameBody {
    /// The words.
    pub words: Vec<u64>,
    /// The bytes that count; those behind them in the last word are zeros.
    pub len: usize,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub head: FrameHeader,
    /// Its body. Empty if nobody wanted it.
    pub body: FrameBody,
}

/// There is no memory for a message, which was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory {
    /// Bytes of the message.
    pub bytes: usize,
}

/// Bytes that are no message: the peer is not one, or broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameError(pub &'static str);

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for FrameError {}

impl Preamble {
    /// As it is sent.
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

    /// As it was received. Another version is read too, so that it can be named.
    ///
    /// # Errors
    /// It is not one.
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
    /// As it is sent.
    pub fn to_bytes(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[..8].copy_from_slice(&(self.len as u64).to_le_bytes());
        bytes[8..12].copy_from_slice(&self.call.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.binding.to_le_bytes());
        bytes[16..18].copy_from_slice(&(self.kind as u16).to_le_bytes());
        bytes[18..20].copy_from_slice(&self.number.to_le_bytes());
        // A caller whose time is up now still has some, or it would have it for ever.
        let left =
            self.left.map_or(0, |left| u64::try_from(left.as_micros()).unwrap_or(u64::MAX).max(1));
        bytes[24..].copy_from_slice(&left.to_le_bytes());
        bytes
    }

    /// As it was received.
    ///
    /// # Errors
    /// It is not one, or its body would be longer than [`MOST_BODY`].
    pub fn read(bytes: &[u8; HEAD]) -> Result<Self, FrameError> {
        let kind = match u16_at(bytes, 16) {
            0 => FrameKind::Ask,
            1 => FrameKind::Answer,
            2 => FrameKind::Call,
            3 => FrameKind::Reply,
            4 => FrameKind::Farewell,
            _ => return Err(FrameError("a message of no known kind")),
        };
        if u32_at(bytes, 20) != 0 {
            return Err(FrameError("a message with something where nothing is to be"));
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

    /// Memory for a message with this body.
    ///
    /// # Errors
    /// There is none.
    pub fn room(body: &FrameBody) -> Result<Vec<u8>, NoMemory> {
        let (mut room, len) = (Vec::new(), HEAD + body.len);
        room.try_reserve_exact(len).map_err(|_| NoMemory { bytes: len })?;
        Ok(room)
    }

    /// Writes the message with this body, as it is sent, into `room`. Calls `between` between the
    /// pieces of a long one, so that others have a turn.
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

    /// The message with this body, as it is sent, for bodies of a few bytes.
    ///
    /// # Aborts
    /// There is no memory for it.
    pub fn with(self, body: &FrameBody) -> Vec<u8> {
        self.write(body, Vec::with_capacity(HEAD + body.len), || {})
    }
}

impl FrameBody {
    /// The bytes that count.
    pub fn view(&self) -> Span<'_> {
        let all = Span::of_words(&self.words);
        all.part(0, self.len).unwrap_or(all)
    }

    /// A copy of them.
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

/// A body that comes in pieces.
#[derive(Debug, Default)]
struct Filling {
    words: Vec<u64>,
    /// The bytes of the last word, while it is not whole.
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

/// A peer decided how long it is, so its memory goes in pieces.
impl Drop for Filling {
    fn drop(&mut self) {
        free_in_pieces(take(&mut self.words), PIECE, |_| {});
    }
}

/// A peer decided how long it is, so its memory goes in pieces.
impl Drop for FrameBody {
    fn drop(&mut self) {
        free_in_pieces(take(&mut self.words), PIECE, |_| {});
    }
}

/// Takes a stream of bytes apart into messages.
#[derive(Debug)]
pub struct Deframer(DeframerState);

#[derive(Debug)]
enum DeframerState {
    Head {
        bytes: [u8; HEAD],
        have: usize,
    },
    /// `None`: nobody wants the body, and it is dropped as it comes.
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
    /// Takes bytes off the front of `bytes`, up to the end of a message or of all of them. `wants`
    /// is asked as soon as a message's head is there whether its body is wanted; if not, the
    /// message comes without it.
    ///
    /// # Errors
    /// What has come is no message, or `wants` says that it must not be. Nothing more comes out of
    /// this stream.
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

    /// Whether no message has begun.
    pub fn is_between(&self) -> bool {
        matches!(self.0, DeframerState::Head { have: 0, .. })
    }

    /// Bytes of the body that is under way, if its head is here.
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
