//! Messages: a header, and a body of any length.
//!
//! ```text
//!   header    length of the body (8)   call (4)   binding (4)   kind (2)   number (2)   0 (4)
//!             time left (8)
//! ```
//! All numbers are little endian. A body is a block as it lies in shared memory, or a message of
//! `rpc`'s. The time left is in microseconds, 0 for no limit: it is not a point in time, because
//! the clocks of two machines differ. Everything here is untrusted input from the peer. A length is
//! compared with its maximum before it is used. Memory is allocated as the bytes arrive, for at
//! most [`AHEAD`] times as many, never because a length asks for it.
//!
//! There is no input or output here. [`crate::record`] cuts messages into pieces.

use crate::bodies;
use std::fmt;
use std::mem::take;
use std::time::Duration;
use upcall_os::memory::free_in_pieces;
use upcall_sched::PIECE;
use upcall_sched::turns::give_turn;
use upcall_shm::span::{Span, append_bytes, bytes_of};

/// Maximum length of a body, in bytes. A longer one is not sent.
pub const MOST_BODY: usize = 256 << 20;

/// Maximum length of an answer that is not a reply, or of a farewell, in bytes.
pub const MOST_ANSWER: usize = 16 << 20;

/// Length of a message's header, in bytes.
pub const HEAD: usize = 32;

/// How many times as much memory as bytes have arrived is allocated for a body at most.
const AHEAD: usize = 8;

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
    /// The caller has given a call up.
    Cancel,
    /// Messages between two members of a group.
    Deliver,
    /// A member's reports of barriers and reductions.
    Report,
    /// The receiver of messages has room for more.
    Room,
    /// A member sends nothing more, or knows that the other one sends nothing more.
    Leave,
    /// A member has lost a third one.
    Loss,
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

/// Bytes that are not a message: the peer is not Upcall, or broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameError(pub &'static str);

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for FrameError {}

/// This side has no memory for a part of a message. The peer has done nothing wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoLinkMemory;

impl FrameHeader {
    /// The header of a message of this kind: no call, no binding, the number 0, no time limit.
    ///
    /// The link sets the length when the message is sent.
    pub const fn of(kind: FrameKind) -> Self {
        Self { kind, call: 0, binding: 0, number: 0, left: None, len: 0 }
    }

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
            5 => FrameKind::Cancel,
            6 => FrameKind::Deliver,
            7 => FrameKind::Report,
            8 => FrameKind::Room,
            9 => FrameKind::Leave,
            10 => FrameKind::Loss,
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
}

impl FrameBody {
    /// The valid bytes.
    pub fn view(&self) -> Span<'_> {
        let all = Span::of_words(&self.words);
        all.part(0, self.len).unwrap_or(all)
    }

    /// The valid bytes, as they lie in memory.
    pub fn bytes(&self) -> &[u8] {
        let all = bytes_of(&self.words);
        all.get(..self.len).unwrap_or(all)
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
        filling.words.reserve(bytes.len().div_ceil(8));
        filling.take(bytes);
        filling.done()
    }
}

/// A body that arrives in pieces.
#[derive(Debug, Default)]
pub(crate) struct Filling {
    words: Vec<u64>,
    /// The bytes of the last word while it is incomplete.
    part: [u8; 8],
    have: usize,
    len: usize,
}

impl Filling {
    /// Adds bytes, of a body of which `left` are missing before them.
    ///
    /// # Errors
    /// There is no memory, and nothing was added.
    pub(crate) fn add(&mut self, bytes: &[u8], left: usize) -> Result<(), NoLinkMemory> {
        let words = bytes.len() / 8 + 2;
        if self.words.capacity() == 0
            && let Some(spare) = bodies::spare(left / 8 + 2)
        {
            self.words = spare;
        }
        if self.words.capacity() - self.words.len() < words {
            let ahead = left.min(AHEAD * bytes.len()) / 8 + 2;
            self.words.try_reserve(words.max(ahead)).map_err(|_| NoLinkMemory)?;
        }
        self.take(bytes);
        Ok(())
    }

    /// Adds bytes for which there is room.
    fn take(&mut self, mut bytes: &[u8]) {
        self.len += bytes.len();
        while self.have != 0 && !bytes.is_empty() {
            self.byte(bytes[0]);
            bytes = &bytes[1..];
        }
        let (words, rest) = bytes.split_at(bytes.len() & !7);
        let added = append_bytes(words, &mut self.words);
        debug_assert!(added.is_ok(), "there is room");
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

    /// The body, when all of it has arrived.
    pub(crate) fn done(mut self) -> FrameBody {
        if self.have != 0 {
            self.flush();
        }
        FrameBody { words: take(&mut self.words), len: self.len }
    }
}

/// Frees the memory in pieces, because a peer decided how long it is.
impl Drop for Filling {
    fn drop(&mut self) {
        free_in_pieces(take(&mut self.words), PIECE, |_| give_turn());
    }
}

/// Keeps the memory for the next body, or frees it in pieces: a peer decided how long it is.
impl Drop for FrameBody {
    fn drop(&mut self) {
        if let Some(words) = bodies::keep(take(&mut self.words)) {
            free_in_pieces(words, PIECE, |_| give_turn());
        }
    }
}

/// Reads a little-endian number.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Reads a little-endian number.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

/// Reads a little-endian number.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
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

    #[test]
    fn lengths_and_kinds_are_checked_first() {
        let mut bytes = head(FrameKind::Reply, 0).to_bytes();
        assert_eq!(FrameHeader::read(&bytes), Ok(head(FrameKind::Reply, 0)));
        bytes[16] = FrameKind::Loss as u8 + 1;
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
