//! Writing values into a block.
//!
//! A block is the content of an A-stack: a fixed part whose layout is known when the interface is
//! compiled, and a tail for strings and lists of any length. The encoder writes in place: into the
//! slot's own words, the A-stack, or a segment (LRPC, section 3.5: one copy in).

use crate::interface::Limits;
use crate::pace::{OF_WRITING, PIECE, Pace};
use crate::session::{NoObjectSlot, Session};
use crate::value::Put;
use std::ops::Range;
use std::sync::Arc;
use upcall_shm::span::WritableSpan;

/// Writes one block; see the module.
#[derive(Debug)]
pub struct Encoder<'a> {
    room: WritableSpan<'a>,
    /// Offset of the next piece of the tail.
    tail: usize,
    limits: Limits,
    session: Option<&'a Arc<Session>>,
    fault: Option<EncodeError>,
    pace: Pace,
    contents: RoomContents,
}

/// What a block's memory holds before the block is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoomContents {
    /// Nothing that is secret to the reader of the block.
    Own,
    /// Other blocks, perhaps for another peer. So the encoder clears bytes that no value writes.
    Foreign,
}

/// Why a value could not be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EncodeError {
    /// A string or list is longer than the interface permits.
    TooLong {
        /// "string" or "list".
        what: &'static str,
        /// Its length in bytes or elements.
        len: u64,
        /// The maximum length.
        limit: u64,
    },
    /// The handle belongs to another binding.
    ForeignHandle,
    /// The client holds the maximum number of resources.
    TooManyObjects,
    /// There is no memory to record a resource that the client is to hold.
    NoMemory,
    /// The block is shorter than the values: the type computes a wrong size.
    Room,
}

/// Bytes that a piece of the tail takes. Every piece starts at a multiple of eight.
pub const fn piece(len: usize) -> usize {
    (len + 7) & !7
}

impl<'a> Encoder<'a> {
    pub(crate) fn new(
        room: WritableSpan<'a>,
        fixed: usize,
        limits: Limits,
        session: Option<&'a Arc<Session>>,
    ) -> Self {
        let pace = Pace::new(session.is_some());
        let contents = RoomContents::Own;
        Self { room, tail: piece(fixed), limits, session, fault: None, pace, contents }
    }

    /// Writes a whole block. `room` has at least [`block_len`] bytes.
    pub(crate) fn block<T: Put + ?Sized>(
        room: WritableSpan<'a>,
        value: &T,
        limits: Limits,
        session: Option<&'a Arc<Session>>,
    ) -> Result<(), EncodeError> {
        Self::new(room, T::SIZE, limits, session).put(value)
    }

    fn put<T: Put + ?Sized>(mut self, value: &T) -> Result<(), EncodeError> {
        value.put(&mut self, 0);
        self.fault.map_or(Ok(()), Err)
    }

    /// Writes a whole block into zeroed memory, and gives way after each piece.
    pub(crate) fn block_in_turns<T: Put + ?Sized>(
        room: WritableSpan<'a>,
        value: &T,
        limits: Limits,
    ) -> Result<(), EncodeError> {
        let mut encoder = Self::new(room, T::SIZE, limits, None);
        encoder.pace = Pace::of_caller();
        encoder.put(value)
    }

    /// Writes a whole block into memory that holds other blocks, and nothing of them is left. Gives
    /// way after each piece.
    pub(crate) fn block_over<T: Put + ?Sized>(
        room: WritableSpan<'a>,
        value: &T,
        limits: Limits,
    ) -> Result<(), EncodeError> {
        let mut encoder = Self::new(room, T::SIZE, limits, None);
        encoder.contents = RoomContents::Foreign;
        encoder.pace = Pace::of_caller();
        encoder.clear(0..encoder.tail.min(room.len()));
        value.put(&mut encoder, 0);
        encoder.clear(encoder.tail.min(room.len())..room.len());
        encoder.fault.map_or(Ok(()), Err)
    }

    /// A block in pieces begins: it takes `len` bytes from `at` on, and clears those between its
    /// pieces.
    pub(crate) fn begin_pieces(&mut self, at: usize, len: usize) {
        self.tail = self.tail.max(at + len);
    }

    /// Sets bytes to zero, if they may be of another block.
    pub(crate) fn clear(&mut self, bytes: Range<usize>) {
        const ZEROS: [u8; 4096] = [0; 4096];
        if self.contents == RoomContents::Own {
            return;
        }
        for at in bytes.clone().step_by(ZEROS.len()) {
            let zeros = &ZEROS[..ZEROS.len().min(bytes.end - at)];
            if self.room.copy_in(at, zeros).is_none() {
                return self.fail(EncodeError::Room);
            }
        }
    }

    /// Marks the whole block as refused.
    pub(crate) fn refuse(&mut self, fault: EncodeError) {
        self.fail(fault);
    }

    #[cold]
    fn fail(&mut self, fault: EncodeError) {
        self.fault.get_or_insert(fault);
    }

    /// Writes a byte.
    #[inline(always)]
    pub fn u8(&mut self, at: usize, value: u8) {
        if self.room.put_u8(at, value).is_none() {
            self.fail(EncodeError::Room);
        }
    }

    /// Writes two bytes at a multiple of two.
    #[inline(always)]
    pub fn u16(&mut self, at: usize, value: u16) {
        if self.room.put_u16(at, value).is_none() {
            self.fail(EncodeError::Room);
        }
    }

    /// Writes four bytes at a multiple of four.
    #[inline(always)]
    pub fn u32(&mut self, at: usize, value: u32) {
        if self.room.put_u32(at, value).is_none() {
            self.fail(EncodeError::Room);
        }
    }

    /// Writes eight bytes at a multiple of eight.
    #[inline(always)]
    pub fn u64(&mut self, at: usize, value: u64) {
        if self.room.put_u64(at, value).is_none() {
            self.fail(EncodeError::Room);
        }
    }

    /// Writes consecutive bytes at `at`.
    ///
    /// A long run is written piece by piece if others get turns ([`crate::pace`]). Else it is
    /// written in one copy, which is faster.
    #[inline]
    pub fn run(&mut self, at: usize, bytes: &[u8]) {
        if bytes.len() <= PIECE || !self.pace.gives_way() {
            if self.room.copy_in(at, bytes).is_none() {
                self.fail(EncodeError::Room);
            }
            self.spent(bytes.len());
        } else {
            self.long_run(at, bytes);
        }
    }

    #[cold]
    fn long_run(&mut self, at: usize, bytes: &[u8]) {
        for (piece, from) in bytes.chunks(PIECE).enumerate() {
            if self.room.copy_in(at + piece * PIECE, from).is_none() {
                return self.fail(EncodeError::Room);
            }
            self.spent(from.len());
        }
    }

    /// Records that `bytes` were written; see [`Decoder::spent`](crate::Decoder::spent).
    #[inline]
    pub fn spent(&self, bytes: usize) {
        self.pace.spent(bytes);
    }

    /// Writes a string or a list of bytes: its descriptor at `at`, and its bytes to the tail.
    pub fn bytes(&mut self, at: usize, bytes: &[u8], what: &'static str) {
        let limit = if what == "string" { self.limits.string } else { self.limits.list };
        if let Some(tail) = self.reserve(at, bytes.len(), 1, limit, what) {
            self.clear(tail + (bytes.len() & !7)..self.tail);
            self.run(tail, bytes);
            self.spent(OF_WRITING);
        }
    }

    /// Writes the descriptor of a list at `at`, reserves its elements in the tail, and returns
    /// their offset. Returns `None` if the list is too long.
    pub fn list(&mut self, at: usize, count: usize, stride: usize) -> Option<usize> {
        let tail = self.reserve(at, count, stride, self.limits.list, "list")?;
        self.clear(tail..self.tail);
        Some(tail)
    }

    fn reserve(
        &mut self,
        at: usize,
        count: usize,
        stride: usize,
        limit: u64,
        what: &'static str,
    ) -> Option<usize> {
        if count as u64 > limit {
            self.fail(EncodeError::TooLong { what, len: count as u64, limit });
            return None;
        }
        let tail = self.tail;
        self.tail += piece(count * stride);
        self.u64(at, tail as u64);
        self.u64(at + 8, count as u64);
        Some(tail)
    }

    /// Gives an object of the server to the client, which gets a handle in its session.
    pub(crate) fn export(&mut self, at: usize, object: Box<dyn std::any::Any + Send + Sync>) {
        match self.session {
            Some(session) => match session.insert(object) {
                Ok(handle) => self.u64(at, handle),
                Err(NoObjectSlot::TooMany) => self.fail(EncodeError::TooManyObjects),
                Err(NoObjectSlot::NoMemory) => self.fail(EncodeError::NoMemory),
            },
            None => self.fail(EncodeError::ForeignHandle),
        }
    }
}

/// Bytes of the block of a value.
#[inline]
pub fn block_len<T: Put + ?Sized>(value: &T) -> usize {
    if T::FIXED { T::SIZE } else { piece(T::SIZE) + value.tail() }
}
