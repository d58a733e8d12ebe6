//! Splits a stream of bytes into records.
//!
//! A record may arrive in pieces of any length, also over several connections of one session. The
//! bytes of bodies are passed on as they arrive. There is no input or output here.

use crate::frame::{FrameError, FrameHeader, HEAD, u64_at};
use crate::record::{RECORD, RecordHeader, RecordKind};

/// See the module.
#[derive(Debug)]
pub struct RecordReader {
    /// The record's header, and what follows it at a fixed length.
    fixed: [u8; RECORD + HEAD],
    have: usize,
    /// The record whose body arrives, and how many bytes of it are missing.
    body: Option<(RecordHeader, usize)>,
}

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub enum ReadPiece<'a> {
    /// A message begins.
    Begin(RecordHeader, FrameHeader),
    /// The next bytes of a body.
    Body(RecordHeader, &'a [u8]),
    /// Another record, with its number.
    Control(RecordHeader, u64),
}

impl Default for RecordReader {
    fn default() -> Self {
        Self { fixed: [0; RECORD + HEAD], have: 0, body: None }
    }
}

impl RecordReader {
    /// Returns `true` if no record has begun.
    pub fn is_between(&self) -> bool {
        self.have == 0 && self.body.is_none()
    }

    /// Takes bytes off the front of `bytes`. Returns `None` when it needs more.
    ///
    /// # Errors
    /// The bytes are not a record. This stream cannot be read further.
    pub fn take<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<ReadPiece<'a>>, FrameError> {
        if let Some((record, left)) = &mut self.body {
            let record = *record;
            let (now, later) = bytes.split_at(bytes.len().min(*left));
            *bytes = later;
            *left -= now.len();
            if *left == 0 {
                self.body = None;
            }
            return Ok((!now.is_empty()).then_some(ReadPiece::Body(record, now)));
        }
        if !self.gather(RECORD, bytes) {
            return Ok(None);
        }
        let mut head = [0; RECORD];
        head.copy_from_slice(&self.fixed[..RECORD]);
        let record = RecordHeader::read(&head)?;
        let fixed = match record.kind {
            RecordKind::Begin => HEAD,
            RecordKind::Credit => 8,
            RecordKind::More | RecordKind::Reset | RecordKind::Stop | RecordKind::Ack => 0,
        };
        if !self.gather(RECORD + fixed, bytes) {
            return Ok(None);
        }
        self.have = 0;
        if record.len > fixed {
            self.body = Some((record, record.len - fixed));
        }
        let payload = &self.fixed[RECORD..];
        Ok(match record.kind {
            RecordKind::Begin => {
                let mut head = [0; HEAD];
                head.copy_from_slice(payload);
                Some(ReadPiece::Begin(record, FrameHeader::read(&head)?))
            }
            RecordKind::More => return self.take_body(bytes),
            RecordKind::Credit => Some(ReadPiece::Control(record, u64_at(payload, 0))),
            RecordKind::Reset | RecordKind::Stop | RecordKind::Ack => {
                Some(ReadPiece::Control(record, 0))
            }
        })
    }

    /// Takes back the last piece of a body, of `len` bytes: it will come again.
    pub fn put_back(&mut self, record: RecordHeader, len: usize) {
        self.body.get_or_insert((record, 0)).1 += len;
    }

    fn take_body<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<ReadPiece<'a>>, FrameError> {
        match bytes.is_empty() {
            true => Ok(None),
            false => self.take(bytes),
        }
    }

    /// Gathers `len` bytes. Returns `true` when they are there.
    fn gather(&mut self, len: usize, bytes: &mut &[u8]) -> bool {
        let wanted = len.saturating_sub(self.have).min(bytes.len());
        let (now, later) = bytes.split_at(wanted);
        self.fixed[self.have..self.have + wanted].copy_from_slice(now);
        self.have += wanted;
        *bytes = later;
        self.have >= len
    }
}
