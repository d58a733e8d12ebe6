//! The server's side of the socket: a thread for each connection.

use super::wire::{Fields, Incoming, begin, finish, malformed, number, put_entry, put_error};
use super::{DONE, FAILED, HEAD, operation};
use crate::files::Error;
use crate::tree::{Listing, MOST_BYTES, OpenFile, Tree, bytes};
use std::collections::HashMap;
use std::io::{self, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;

/// A listener with a tree to serve.
pub struct Server {
    listener: UnixListener,
    tree: Arc<Tree>,
}

/// Listens at `path`, which must not exist.
///
/// # Errors
/// The system's.
pub fn listen(path: &Path, tree: Arc<Tree>) -> io::Result<Server> {
    Ok(Server { listener: UnixListener::bind(path)?, tree })
}

impl Server {
    /// Serves all clients, for ever.
    pub fn run(self) {
        for stream in self.listener.incoming() {
            let Ok(stream) = stream else {
                // There are no descriptors left; they are free again when a connection ends.
                thread::sleep(std::time::Duration::from_millis(10));
                continue;
            };
            let connection = Connection {
                tree: self.tree.clone(),
                open: HashMap::new(),
                next: 0,
                reply: Vec::new(),
                chunk: Vec::new(),
            };
            // Without a thread the connection closes, which its client notices.
            drop(
                thread::Builder::new()
                    .name("socket".to_owned())
                    .spawn(move || connection.serve(stream)),
            );
        }
    }
}

enum Open {
    File(OpenFile),
    Directory(Listing),
}

struct Connection {
    tree: Arc<Tree>,
    /// The client's open files and directories, which are closed with the connection.
    open: HashMap<u32, Open>,
    next: u32,
    reply: Vec<u8>,
    /// The reply with a file's bytes. It keeps its length, so that its room is zeroed once and not
    /// in each call.
    chunk: Vec<u8>,
}

/// Where the reply to a request is.
enum Reply {
    /// The request has no reply.
    None,
    /// In `reply`.
    Small,
    /// In the first bytes of `chunk`; this is their number.
    Chunk(usize),
}

impl Connection {
    /// Serves until the client disconnects, or sends an invalid request.
    fn serve(mut self, mut stream: UnixStream) {
        let mut incoming = Incoming::new(4096 + 64);
        while let Ok(Some(request)) = incoming.frame(&mut stream) {
            let reply = match self.request(Fields(request)) {
                Ok(Reply::None) => continue,
                Ok(Reply::Small) => &mut self.reply[..],
                Ok(Reply::Chunk(length)) => &mut self.chunk[..length],
                Err(_) => return,
            };
            finish(reply);
            if stream.write_all(reply).is_err() {
                return;
            }
        }
    }

    /// Makes the reply. An error means that the request is invalid.
    fn request(&mut self, mut fields: Fields<'_>) -> io::Result<Reply> {
        begin(&mut self.reply, DONE);
        let operation = fields.u8()?;
        let done = match operation {
            operation::ROOT => {
                self.reply.extend_from_slice(bytes(self.tree.path()));
                Ok(())
            }
            operation::OPEN => {
                self.tree.file(fields.rest()).and_then(|file| self.keep(Open::File(file)))
            }
            operation::OPEN_DIRECTORY => self
                .tree
                .directory(fields.rest())
                .and_then(|directory| self.keep(Open::Directory(directory))),
            operation::CLOSE => {
                self.open.remove(&fields.u32()?).ok_or_else(unknown)?;
                return Ok(Reply::None);
            }
            operation::STAT | operation::READ => {
                let Some(Open::File(file)) = self.open.get(&fields.u32()?) else {
                    return Err(unknown());
                };
                if operation == operation::STAT {
                    stat(file, &mut self.reply)
                } else {
                    match read(file, fields.u64()?, fields.u32()?, &mut self.chunk) {
                        Ok(length) => return Ok(Reply::Chunk(length)),
                        Err(error) => Err(error),
                    }
                }
            }
            operation::ENTRIES => {
                let Some(Open::Directory(listing)) = self.open.get(&fields.u32()?) else {
                    return Err(unknown());
                };
                let found = listing.entries(fields.u64()?, fields.u32()?);
                found.map(|entries| {
                    entries.iter().for_each(|entry| put_entry(&mut self.reply, entry))
                })
            }
            _ => return Err(malformed("an unknown operation")),
        };
        if let Err(error) = done {
            begin(&mut self.reply, FAILED);
            put_error(&mut self.reply, &error);
        }
        Ok(Reply::Small)
    }

    fn keep(&mut self, open: Open) -> Result<(), Error> {
        while self.open.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        self.open.insert(self.next, open);
        self.reply.extend_from_slice(&self.next.to_le_bytes());
        self.next = self.next.wrapping_add(1);
        Ok(())
    }
}

fn stat(file: &OpenFile, reply: &mut Vec<u8>) -> Result<(), Error> {
    let status = file.stat()?;
    reply.push(number(status.kind) as u8);
    reply.extend_from_slice(&status.size.to_le_bytes());
    reply.extend_from_slice(&status.modified.to_le_bytes());
    Ok(())
}

/// Reads straight into the reply, and returns its length.
fn read(file: &OpenFile, offset: u64, most: u32, chunk: &mut Vec<u8>) -> Result<usize, Error> {
    if most > MOST_BYTES {
        return Err(Error::TooMuch(MOST_BYTES));
    }
    let room = HEAD + most as usize;
    if chunk.len() < room {
        chunk.resize(room, 0);
    }
    chunk[HEAD - 1] = DONE;
    Ok(HEAD + file.fill(offset, &mut chunk[HEAD..room])?)
}

fn unknown() -> io::Error {
    malformed("a number that is not open")
}
