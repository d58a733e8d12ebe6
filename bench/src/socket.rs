//! A bare Unix stream socket: what a program uses today without a system for calls.
//!
//! Each side has one thread per connection. A request and a reply are a length and that many bytes,
//! sent by one system call.

use std::io::{self, BufReader, IoSlice, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use crate::bytes::{self, Bytes, Exchange};
use crate::case::BIG;
use crate::child::{ClientSide, Outcome, Place, Ready, System, Throughput};

/// The system `unix-socket`.
pub struct UnixSocket;

impl System for UnixSocket {
    const NAME: &'static str = "unix-socket";
    type Client = Client;

    fn serve(place: &Place, ready: Ready) -> Outcome<()> {
        let listener = UnixListener::bind(path(place))?;
        ready.announce();
        for stream in listener.incoming() {
            let mut connection = Connection::new(stream?);
            thread::spawn(move || {
                let (mut request, mut reply) = (Vec::new(), Vec::new());
                // Ends when the client has ended, which every error here means.
                while connection.receive(&mut request).is_ok() {
                    reply.clear();
                    if bytes::serve(&request, &mut reply).is_err()
                        || connection.send(&reply, &[]).is_err()
                    {
                        break;
                    }
                }
            });
        }
        Ok(())
    }

    fn connect(place: &Place) -> Outcome<Client> {
        let path = path(place);
        Ok(Client { calls: connect(&path)?, path })
    }
}

fn path(place: &Place) -> PathBuf {
    place.dir.join("calls.sock")
}

fn connect(path: &PathBuf) -> Outcome<Bytes<Connection>> {
    Ok(Bytes::new(Connection::new(UnixStream::connect(path)?)))
}

/// A connection of length-prefixed messages. Reads go through a small buffer, so that a short
/// message takes one system call; the body of a long message bypasses it.
struct Connection {
    stream: BufReader<UnixStream>,
}

impl Connection {
    fn new(stream: UnixStream) -> Connection {
        Connection { stream: BufReader::with_capacity(512, stream) }
    }

    fn send(&mut self, head: &[u8], body: &[u8]) -> io::Result<()> {
        let len = ((head.len() + body.len()) as u32).to_le_bytes();
        let mut parts = &mut [IoSlice::new(&len), IoSlice::new(head), IoSlice::new(body)][..];
        while !parts.is_empty() {
            let sent = self.stream.get_mut().write_vectored(parts)?;
            if sent == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            IoSlice::advance_slices(&mut parts, sent);
        }
        Ok(())
    }

    fn receive(&mut self, message: &mut Vec<u8>) -> io::Result<()> {
        let mut len = [0; 4];
        self.stream.read_exact(&mut len)?;
        message.resize(u32::from_le_bytes(len) as usize, 0);
        self.stream.read_exact(message)
    }
}

impl Exchange for Connection {
    fn exchange(&mut self, head: &[u8], body: &[u8], reply: &mut Vec<u8>) -> Outcome<()> {
        self.send(head, body)?;
        Ok(self.receive(reply)?)
    }
}

/// A client with one connection, and more connections for more callers.
pub struct Client {
    calls: Bytes<Connection>,
    path: PathBuf,
}

impl ClientSide for Client {
    fn null(&mut self) -> Outcome<()> {
        self.calls.null()
    }
    fn add(&mut self, a: i32, b: i32) -> Outcome<i32> {
        self.calls.add(a, b)
    }
    fn big_in(&mut self, data: &[u8; BIG]) -> Outcome<u64> {
        self.calls.big_in(data)
    }
    fn big_in_out(&mut self, data: &[u8; BIG]) -> Outcome<[u8; BIG]> {
        self.calls.big_in_out(data)
    }
    fn bytes_in(&mut self, data: &[u8]) -> Outcome<u64> {
        self.calls.bytes_in(data)
    }

    fn throughput(&mut self, callers: usize, time: Duration) -> Option<Outcome<Throughput>> {
        Some(Throughput::kernel_threads(callers, time, || connect(&self.path)))
    }
}
