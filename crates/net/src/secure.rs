//! What protects the bytes of a connection: TLS, or nothing.
//!
//! Without protection are connections within one machine, where the kernel says whose they are.

use crate::tls::{TlsChannel, TlsError};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use std::fmt;
use std::io::{self, IoSlice, Write};
use std::net::TcpStream;

/// See the module.
#[derive(Debug)]
pub enum Secure {
    /// Nothing.
    Clear,
    /// TLS 1.3 with both sides proved.
    Tls(Box<TlsChannel>),
}

/// Whether anything is left to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrote {
    All,
    Some,
}

/// Why the bytes of a connection cannot go on.
#[derive(Debug)]
pub enum SecureError {
    /// The kernel's error.
    Kernel(io::Error),
    /// The bytes are not those of the protected connection.
    Tls(TlsError),
}

impl fmt::Display for SecureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel(error) => error.fmt(f),
            Self::Tls(error) => error.fmt(f),
        }
    }
}

/// Writes to a socket without waiting.
struct Socket<'a>(&'a TcpStream);

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        again(|| rustix::net::send(self.0, bytes, FLAGS))
    }

    /// In one system call, and in as few packets as possible: the records of a handshake, or those
    /// of a long message.
    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        if let [piece] = pieces {
            return self.write(piece);
        }
        let mut none = SendAncillaryBuffer::default();
        again(|| rustix::net::sendmsg(self.0, pieces, &mut none, FLAGS))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

/// Sends until no signal interrupts it.
fn again(mut send: impl FnMut() -> rustix::io::Result<usize>) -> io::Result<usize> {
    loop {
        match send() {
            Err(Errno::INTR) => {}
            sent => return Ok(sent?),
        }
    }
}

/// The number of bytes that a socket took: 0 if it takes none now.
fn taken(written: io::Result<usize>) -> Result<usize, SecureError> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        written => written.map_err(SecureError::Kernel),
    }
}

impl Secure {
    /// Writes protected bytes that wait for the kernel.
    pub(crate) fn write(&mut self, stream: &TcpStream) -> Result<Wrote, SecureError> {
        let Self::Tls(channel) = self else { return Ok(Wrote::All) };
        match channel.write_to(&mut Socket(stream)) {
            Ok(()) => Ok(Wrote::All),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Wrote::Some),
            Err(error) => Err(SecureError::Kernel(error)),
        }
    }

    /// Protects bytes, and writes them if the kernel takes them. Returns how many were taken; 0 if
    /// the kernel takes none.
    pub(crate) fn put(
        &mut self,
        pieces: &[IoSlice<'_>],
        stream: &TcpStream,
    ) -> Result<usize, SecureError> {
        match self {
            Self::Clear => taken(Socket(stream).write_vectored(pieces)),
            Self::Tls(channel) => Ok(channel.put_pieces(pieces)),
        }
    }

    /// Takes bytes of the network, and hands the plain ones to `each`, in order. If that fails,
    /// nothing more is taken, and its error is the value within.
    pub(crate) fn take<E>(
        &mut self,
        bytes: &mut &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Result<(), E>, SecureError> {
        let taken = match self {
            Self::Clear => each(bytes),
            Self::Tls(channel) => channel.take_each(bytes, each).map_err(SecureError::Tls)?,
        };
        // What follows the end of a protected connection means nothing.
        *bytes = &[];
        Ok(taken)
    }

    /// Ends this direction of the connection.
    pub(crate) fn close(&mut self, stream: &TcpStream) {
        if let Self::Tls(channel) = self {
            channel.close();
            // The notice is a courtesy: the end of the connection follows anyway.
            let _ = channel.write_to(&mut Socket(stream));
        }
    }
}
