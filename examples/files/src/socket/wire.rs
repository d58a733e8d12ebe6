//! Numbers, names and errors as bytes, and frames out of a stream.

use super::{HEAD, LONGEST};
use crate::files::{Entry, Error, Kind};
use std::io::{self, Read};
use std::os::unix::net::UnixStream;

/// The part of a frame that is yet to be read.
pub(super) struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub fn take(&mut self, count: usize) -> io::Result<&'a [u8]> {
        let (taken, rest) =
            self.0.split_at_checked(count).ok_or_else(|| malformed("a frame ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn u8(&mut self) -> io::Result<u8> {
        Ok(self.take(1)?[0])
    }

    pub fn u32(&mut self) -> io::Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> io::Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub fn kind(&mut self) -> io::Result<Kind> {
        kind(u32::from(self.u8()?))
    }

    pub fn rest(self) -> &'a [u8] {
        self.0
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| malformed("a frame ends too early"))
    }
}

pub(super) fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Begins a frame. [`finish`] fills in its length.
pub(super) fn begin(frame: &mut Vec<u8>, first: u8) {
    frame.clear();
    frame.extend_from_slice(&[0, 0, 0, 0, first]);
}

pub(super) fn finish(frame: &mut [u8]) {
    let length = u32::try_from(frame.len() - 4).unwrap_or(u32::MAX);
    frame[..4].copy_from_slice(&length.to_le_bytes());
}

pub(super) fn put_entry(frame: &mut Vec<u8>, entry: &Entry) {
    frame.push(number(entry.kind) as u8);
    frame.extend_from_slice(&u16::try_from(entry.name.len()).unwrap_or(u16::MAX).to_le_bytes());
    frame.extend_from_slice(&entry.name);
}

pub(super) fn entry(fields: &mut Fields<'_>) -> io::Result<Entry> {
    let kind = fields.kind()?;
    let length = u16::from_le_bytes(fields.array()?);
    Ok(Entry { name: fields.take(usize::from(length))?.to_vec(), kind })
}

pub(super) fn put_error(frame: &mut Vec<u8>, error: &Error) {
    let (code, detail) = match error {
        Error::NotFound => (0, 0),
        Error::Denied => (1, 0),
        Error::Outside => (2, 0),
        Error::BadPath => (3, 0),
        Error::WrongKind(kind) => (4, number(*kind)),
        Error::TooMuch(most) => (5, *most),
        Error::Exhausted => (6, 0),
        Error::System(number) => (7, number.cast_unsigned()),
    };
    frame.push(code);
    frame.extend_from_slice(&detail.to_le_bytes());
}

pub(super) fn error(fields: &mut Fields<'_>) -> io::Result<Error> {
    let (code, detail) = (fields.u8()?, fields.u32()?);
    Ok(match code {
        0 => Error::NotFound,
        1 => Error::Denied,
        2 => Error::Outside,
        3 => Error::BadPath,
        4 => Error::WrongKind(kind(detail)?),
        5 => Error::TooMuch(detail),
        6 => Error::Exhausted,
        7 => Error::System(detail.cast_signed()),
        _ => return Err(malformed("an unknown error")),
    })
}

pub(super) fn number(kind: Kind) -> u32 {
    match kind {
        Kind::Regular => 0,
        Kind::Directory => 1,
        Kind::Link => 2,
        Kind::Other => 3,
    }
}

fn kind(number: u32) -> io::Result<Kind> {
    Ok(match number {
        0 => Kind::Regular,
        1 => Kind::Directory,
        2 => Kind::Link,
        3 => Kind::Other,
        _ => return Err(malformed("an unknown kind")),
    })
}

/// Frames from a stream. One read of the socket takes as much as is there.
pub(super) struct Incoming {
    buffer: Vec<u8>,
    /// Start of the unread bytes in the buffer.
    start: usize,
    /// End of the unread bytes in the buffer.
    end: usize,
}

impl Incoming {
    pub fn new(room: usize) -> Self {
        Self { buffer: vec![0; room.max(HEAD)], start: 0, end: 0 }
    }

    /// The next frame without its length; `None` at the end of the stream.
    pub fn frame(&mut self, stream: &mut UnixStream) -> io::Result<Option<&[u8]>> {
        if !self.fill(stream, 4)? {
            return Ok(None);
        }
        let mut head = Fields(&self.buffer[self.start..self.end]);
        let length = head.u32()? as usize;
        if length == 0 || length > LONGEST - 4 {
            return Err(malformed("a frame of a length that no frame has"));
        }
        if !self.fill(stream, 4 + length)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let at = self.start + 4;
        self.start = at + length;
        Ok(Some(&self.buffer[at..at + length]))
    }

    /// Reads until `count` bytes are in the buffer. Returns `false` if the stream ends before the
    /// first of them.
    fn fill(&mut self, stream: &mut UnixStream, count: usize) -> io::Result<bool> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.start + count > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if count > self.buffer.len() {
                self.buffer.resize(count, 0);
            }
        }
        while self.end - self.start < count {
            match stream.read(&mut self.buffer[self.end..]) {
                Ok(0) if self.start == self.end => return Ok(false),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.end += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }
}
