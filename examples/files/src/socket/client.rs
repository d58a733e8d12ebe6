//! The client's side of the socket.

use super::wire::{Fields, Incoming, begin, entry, error, finish, malformed};
use super::{DONE, FAILED, operation};
use crate::files::{Entry, Status};
use crate::walk::{Problem, Transport};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A connection, as a transport.
pub struct Socket {
    stream: UnixStream,
    outgoing: Vec<u8>,
    incoming: Incoming,
}

/// An open file or directory: its number at the server. It is closed by the transport's `close`, or
/// with the connection.
#[derive(Debug)]
pub struct Handle(u32);

impl Socket {
    /// Connects to a server that listens at `path`. The client requests at most `chunk` bytes at
    /// once.
    ///
    /// # Errors
    /// The system's.
    pub fn connect(path: &Path, chunk: u32) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        Ok(Self { stream, outgoing: Vec::new(), incoming: Incoming::new(chunk as usize + 64) })
    }

    /// The directory that is served.
    ///
    /// # Errors
    /// [`Problem`], as for every call.
    pub fn root(&mut self) -> Result<Vec<u8>, Problem> {
        begin(&mut self.outgoing, operation::ROOT);
        Ok(self.call()?.rest().to_vec())
    }

    fn call(&mut self) -> Result<Fields<'_>, Problem> {
        self.send()?;
        let frame = self.incoming.frame(&mut self.stream).map_err(broken)?;
        let mut fields = Fields(
            frame.ok_or_else(|| Problem::Broken("the server closed the socket".to_owned()))?,
        );
        match fields.u8().map_err(broken)? {
            DONE => Ok(fields),
            FAILED => Err(Problem::Refused(error(&mut fields).map_err(broken)?)),
            _ => Err(broken(malformed("a reply that is neither done nor failed"))),
        }
    }

    fn send(&mut self) -> Result<(), Problem> {
        finish(&mut self.outgoing);
        self.stream.write_all(&self.outgoing).map_err(broken)
    }

    fn opened(&mut self, operation: u8, path: &[u8]) -> Result<Handle, Problem> {
        begin(&mut self.outgoing, operation);
        self.outgoing.extend_from_slice(path);
        self.call()?.u32().map(Handle).map_err(broken)
    }

    fn about(&mut self, operation: u8, handle: &Handle) {
        begin(&mut self.outgoing, operation);
        self.outgoing.extend_from_slice(&handle.0.to_le_bytes());
    }
}

fn broken(error: io::Error) -> Problem {
    Problem::Broken(format!("the socket failed: {error}"))
}

impl Transport for Socket {
    type File = Handle;
    type Directory = Handle;

    fn open(&mut self, path: &[u8]) -> Result<Handle, Problem> {
        self.opened(operation::OPEN, path)
    }

    fn stat(&mut self, file: &Handle) -> Result<Status, Problem> {
        self.about(operation::STAT, file);
        let mut fields = self.call()?;
        let mut read = || {
            Ok(Status {
                kind: fields.kind()?,
                size: fields.u64()?,
                modified: fields.u64()?.cast_signed(),
            })
        };
        read().map_err(broken)
    }

    fn read(&mut self, file: &Handle, offset: u64, most: u32) -> Result<&[u8], Problem> {
        self.about(operation::READ, file);
        self.outgoing.extend_from_slice(&offset.to_le_bytes());
        self.outgoing.extend_from_slice(&most.to_le_bytes());
        Ok(self.call()?.rest())
    }

    fn close(&mut self, file: Handle) -> Result<(), Problem> {
        self.about(operation::CLOSE, &file);
        self.send()
    }

    fn open_directory(&mut self, path: &[u8]) -> Result<Handle, Problem> {
        self.opened(operation::OPEN_DIRECTORY, path)
    }

    fn entries(
        &mut self,
        directory: &Handle,
        start: u64,
        most: u32,
    ) -> Result<Vec<Entry>, Problem> {
        self.about(operation::ENTRIES, directory);
        self.outgoing.extend_from_slice(&start.to_le_bytes());
        self.outgoing.extend_from_slice(&most.to_le_bytes());
        let mut fields = self.call()?;
        let mut entries = Vec::new();
        while !fields.0.is_empty() {
            entries.push(entry(&mut fields).map_err(broken)?);
        }
        Ok(entries)
    }

    fn close_directory(&mut self, directory: Handle) -> Result<(), Problem> {
        self.close(directory)
    }
}
