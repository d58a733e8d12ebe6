//! Several calls at once on one connection of TLS over TCP, by the smallest multiplexer.
//!
//! A frame is a byte for its kind, the number of its call, its length, and as many bytes. A large
//! argument is cut into pieces, each of them a frame.

use crate::keys;
use crate::measure::{Failure, Outcome, REPLY, SMALL, measure};
use rustix::event::{PollFd, PollFlags, poll};
use rustls::{ClientConnection, Connection, ServerConnection};
use std::collections::HashSet;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Instant;

/// Length of a piece of a large argument, in bytes.
const PIECE: usize = 16 << 10;
/// Number of bytes that the kernel holds and has not sent, beyond which it takes no more pieces.
const UNSENT: u32 = 64 << 10;
/// Length of a frame's head, in bytes.
const HEAD: usize = 9;

/// A whole call, or a reply.
const WHOLE: u8 = 0;
/// A piece of an argument, which is not the last one.
const MIDDLE: u8 = 1;
/// The last piece of an argument.
const LAST: u8 = 2;

struct Mux {
    connection: Mutex<Connection>,
    stream: TcpStream,
    replied: Mutex<HashSet<u32>>,
    arrived: Condvar,
}

impl Mux {
    fn new(mut connection: Connection, stream: TcpStream) -> Result<Arc<Self>, Failure> {
        stream.set_nodelay(true)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut &stream)?;
        }
        stream.set_nonblocking(true)?;
        socket2::SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT)?;
        let (replied, arrived) = (Mutex::default(), Condvar::new());
        Ok(Arc::new(Self { connection: connection.into(), stream, replied, arrived }))
    }

    fn wait_until(&self, ready: PollFlags) -> io::Result<()> {
        poll(&mut [PollFd::new(&self.stream, ready)], None)?;
        Ok(())
    }

    fn flush(&self, connection: &mut Connection) -> io::Result<()> {
        while connection.wants_write() {
            match connection.write_tls(&mut &self.stream) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.wait_until(PollFlags::OUT)?;
                }
                written => drop(written?),
            }
        }
        Ok(())
    }

    fn send(&self, kind: u8, call: u32, body: &[u8]) -> io::Result<()> {
        let mut frame = vec![kind];
        frame.extend_from_slice(&call.to_le_bytes());
        frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
        frame.extend_from_slice(body);
        if kind != WHOLE {
            // A piece waits for room before it takes the lock, so small calls overtake it.
            self.wait_until(PollFlags::OUT)?;
        }
        let mut connection = self.connection.lock().expect("no panic");
        connection.writer().write_all(&frame)?;
        self.flush(&mut connection)
    }

    /// Reads frames until the connection ends, and passes on the kind and the call of each.
    fn read(&self, mut each: impl FnMut(u8, u32)) -> io::Result<()> {
        let (mut plain, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            self.read_plain(&mut plain, &mut buffer)?;
            let mut rest = &plain[..];
            while let Some((head, body)) = rest.split_at_checked(HEAD) {
                let number = |at: usize| {
                    u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"))
                };
                let Some((_, next)) = body.split_at_checked(number(5) as usize) else { break };
                each(head[0], number(1));
                rest = next;
            }
            let read = plain.len() - rest.len();
            plain.drain(..read);
            self.wait_until(PollFlags::IN)?;
        }
    }

    /// Reads what has arrived by now, perhaps with the end of the handshake.
    fn read_plain(&self, plain: &mut Vec<u8>, buffer: &mut [u8]) -> io::Result<()> {
        let mut connection = self.connection.lock().expect("no panic");
        match connection.read_tls(&mut &self.stream) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            read => drop(read?),
        }
        connection.process_new_packets().map_err(io::Error::other)?;
        self.flush(&mut connection)?;
        loop {
            match connection.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Ok(0) => return Ok(()),
                read => plain.extend_from_slice(&buffer[..read?]),
            }
        }
    }

    fn note_reply(&self, call: u32) {
        self.replied.lock().expect("no panic").insert(call);
        self.arrived.notify_all();
    }

    fn wait_for_reply(&self, call: u32) {
        let mut replied = self.replied.lock().expect("no panic");
        while !replied.remove(&call) {
            replied = self.arrived.wait(replied).expect("no panic");
        }
    }
}

pub fn serve(address: SocketAddr, folder: &Path) -> Outcome {
    let config = Arc::new(keys::of_server(folder)?);
    for stream in TcpListener::bind(address)?.incoming() {
        let mux = Mux::new(ServerConnection::new(config.clone())?.into(), stream?)?;
        thread::spawn(move || {
            // The end of a client is not an error.
            let _ = mux.read(|kind, call| {
                if kind != MIDDLE {
                    let _ = mux.send(WHOLE, call, &[1; REPLY]);
                }
            });
        });
    }
    Ok(())
}

pub fn call(address: SocketAddr, folder: &Path, calls: usize) -> Outcome {
    let connection =
        ClientConnection::new(keys::of_client(folder)?.into(), keys::NAME.try_into()?)?;
    let mux = Mux::new(connection.into(), TcpStream::connect(address)?)?;
    let reader = mux.clone();
    thread::spawn(move || reader.read(|_, call| reader.note_reply(call)));

    let mut last = 0;
    let mut null_calls = |what: &str| {
        measure(what, calls, || {
            // The large argument has an odd number.
            last += 2;
            mux.send(WHOLE, last, &[7; SMALL]).expect("a connection");
            mux.wait_for_reply(last);
        });
    };
    null_calls("mux null");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let large = scope.spawn(|| send_until(&mux, &is_over));
        null_calls("mux null, beside a large argument");
        is_over.store(true, Ordering::Relaxed);
        let rate = large.join().expect("no panic")?;
        println!("  the large argument: {rate:.2} GB/s");
        Ok(())
    })
}

/// Sends a large argument until `is_over`. Returns how fast it was sent, in GB a second.
fn send_until(mux: &Mux, is_over: &AtomicBool) -> io::Result<f64> {
    const CALL: u32 = 1;
    let (piece, began, mut sent) = ([3; PIECE], Instant::now(), 0);
    while !is_over.load(Ordering::Relaxed) {
        mux.send(MIDDLE, CALL, &piece)?;
        sent += PIECE;
    }
    mux.send(LAST, CALL, &piece)?;
    mux.wait_for_reply(CALL);
    Ok(sent as f64 / 1e9 / began.elapsed().as_secs_f64())
}
