//! The least that the same bytes take between two hosts.
//!
//! A small call is a ping-pong over bare TCP of as many bytes as Upcall's null call has within TLS.
//! All other cases are rustls over bare TCP with the identities of Upcall: an argument in pieces of
//! a record each, a handshake with and without a ticket. Beside a large argument, the small calls
//! have a connection of their own. Each side has a kernel thread that reads and writes, and a
//! connection has nothing but its call.

use super::again_and_again;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, HandshakeKind, ServerConfig};
use rustls::{ServerConnection, StreamOwned};
use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use upcall_bench::child::{Outcome, Ready};
use upcall_bench::hosts::child::{ClientSide, Place, System, Ticket};
use upcall_bench::payload::Checksum;
use upcall_net::frame::HEAD;
use upcall_net::identity::{Credentials, HostName, HostStore};
use upcall_net::record::RECORD;

/// Number of plain bytes of a null call and of its reply.
const PLAIN: usize = RECORD + HEAD;
/// Number of bytes that TLS 1.3 adds to a record: a header, the kind, and the tag.
const OF_TLS: usize = 5 + 1 + 16;
/// Number of bytes of a null call on the network, and of its reply.
const SMALL: usize = PLAIN + OF_TLS;
/// Number of plain bytes that the server sums at once.
const PIECE: usize = 16 << 10;
/// Number of bytes that are read from the kernel at once. rustls by itself reads 4 KiB.
const READ: usize = 64 << 10;

/// The limit, as a system. Its server has the place's port for TLS, and the next one for bare TCP.
pub struct Limit;

impl System for Limit {
    const NAME: &'static str = "limit";
    type Client = Client;

    fn serve(place: &Place, ready: Ready) -> Outcome<()> {
        let credentials = HostStore::find()?.credentials()?;
        let secure = TcpListener::bind(place.server)?;
        let bare = TcpListener::bind(bare(place.server))?;
        ready.announce();
        let accept_bare = move || {
            bare.incoming().flatten().for_each(|stream| drop(thread::spawn(|| answer_bare(stream))))
        };
        thread::spawn(accept_bare);
        for stream in secure.incoming() {
            let (stream, config) = (stream?, credentials.server_config().clone());
            thread::spawn(|| answer_secure(stream, config));
        }
        Ok(())
    }

    fn connect(place: &Place) -> Outcome<Client> {
        let credentials = HostStore::find()?.credentials()?;
        let bare = TcpStream::connect(bare(place.server))?;
        bare.set_nodelay(true)?;
        let resuming = credentials.client_config().clone();
        let mut without = ClientConfig::clone(&resuming);
        without.resumption = Resumption::disabled();
        let name = server_name(&credentials, place.server)?;
        let server = Server { address: place.server, name, resuming, without: without.into() };
        let secure = server.connect(Ticket::Earlier)?;
        Ok(Client { bare, secure, server })
    }
}

/// Returns the address for bare TCP.
fn bare(server: SocketAddr) -> SocketAddr {
    SocketAddr::new(server.ip(), server.port() + 1)
}

/// Answers small calls until the client closes the connection.
fn answer_bare(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut bytes = [0; SMALL];
    loop {
        stream.read_exact(&mut bytes)?;
        stream.write_all(&bytes)?;
    }
}

/// A socket whose bytes are read in large pieces.
struct Socket(BufReader<TcpStream>);

impl Socket {
    fn new(stream: TcpStream) -> io::Result<Socket> {
        stream.set_nodelay(true)?;
        Ok(Socket(BufReader::with_capacity(READ, stream)))
    }
}

impl Read for Socket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.get_mut().write(bytes)
    }

    fn write_vectored(&mut self, pieces: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.get_mut().write_vectored(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Answers requests until the client closes the connection. A request is a header that begins with
/// the length of an argument and the number of times that it comes, 0 for once, and the argument so
/// many times. The reply is a header that begins with the sum of all sums.
fn answer_secure(stream: TcpStream, config: Arc<ServerConfig>) -> Outcome<()> {
    let mut stream = StreamOwned::new(ServerConnection::new(config)?, Socket::new(stream)?);
    let (mut head, mut piece) = ([0; PLAIN], vec![0; PIECE]);
    loop {
        stream.read_exact(&mut head)?;
        let len = u64::from_le_bytes(*head.first_chunk().ok_or("no length")?) as usize;
        let count = u64::from_le_bytes(*head[8..].first_chunk().ok_or("no count")?);
        let mut all = 0_u64;
        for _ in 0..count.max(1) {
            let (mut left, mut sum) = (len, Checksum::default());
            while left > 0 {
                let part = &mut piece[..left.min(PIECE)];
                stream.read_exact(part)?;
                sum.piece(part);
                left -= part.len();
            }
            all = all.wrapping_add(sum.value());
        }
        head[..8].copy_from_slice(&all.to_le_bytes());
        stream.write_all(&head)?;
    }
}

/// A connection that TLS protects.
type Secure = StreamOwned<ClientConnection, Socket>;

/// Passes bytes to the server. Returns their checksum.
fn pass(stream: &mut Secure, data: &[u8]) -> Outcome<u64> {
    let mut head = [0; PLAIN];
    head[..8].copy_from_slice(&(data.len() as u64).to_le_bytes());
    stream.write_all(&head)?;
    stream.write_all(data)?;
    stream.read_exact(&mut head)?;
    Ok(u64::from_le_bytes(*head.first_chunk().ok_or("no checksum")?))
}

/// Passes bytes to the server again and again, and waits for the reply to the last time.
///
/// Returns the sum of all checksums.
fn stream(stream: &mut Secure, data: &[u8], count: u64) -> Outcome<u64> {
    let mut head = [0; PLAIN];
    head[..8].copy_from_slice(&(data.len() as u64).to_le_bytes());
    head[8..16].copy_from_slice(&count.to_le_bytes());
    stream.write_all(&head)?;
    for _ in 0..count {
        stream.write_all(data)?;
    }
    stream.read_exact(&mut head)?;
    Ok(u64::from_le_bytes(*head.first_chunk().ok_or("no checksum")?))
}

/// The name by which the verifier of Upcall's identities knows the server.
fn server_name(credentials: &Credentials, server: SocketAddr) -> Outcome<ServerName<'static>> {
    let host: HostName = server.ip().to_string().parse()?;
    let host = credentials.trust().host(&host).ok_or("the server's host is not trusted")?;
    let hex = host.certificate.fingerprint().hex();
    let (first, second) = hex.split_at(32);
    Ok(ServerName::try_from(format!("x{first}.x{second}"))?)
}

/// How to connect to the server.
struct Server {
    address: SocketAddr,
    name: ServerName<'static>,
    resuming: Arc<ClientConfig>,
    without: Arc<ClientConfig>,
}

impl Server {
    /// Connects, and makes a small call.
    fn connect(&self, ticket: Ticket) -> Outcome<Secure> {
        let config = if ticket == Ticket::Earlier { &self.resuming } else { &self.without };
        let stream = Socket::new(TcpStream::connect(self.address)?)?;
        let client = ClientConnection::new(config.clone(), self.name.clone())?;
        let mut stream = StreamOwned::new(client, stream);
        pass(&mut stream, &[])?;
        Ok(stream)
    }
}

/// The client, with its two connections.
pub struct Client {
    bare: TcpStream,
    secure: Secure,
    server: Server,
}

/// Makes a small call.
fn ping(stream: &mut TcpStream) -> Outcome<()> {
    let mut bytes = [0; SMALL];
    stream.write_all(&bytes)?;
    Ok(stream.read_exact(&mut bytes)?)
}

impl ClientSide for Client {
    fn null(&mut self) -> Outcome<()> {
        ping(&mut self.bare)
    }

    fn bytes_in(&mut self, data: &[u8]) -> Outcome<u64> {
        pass(&mut self.secure, data)
    }

    fn beside(
        &mut self,
        data: &[u8],
        small: &mut dyn FnMut(&mut Self) -> Outcome<()>,
    ) -> Outcome<(u64, u64)> {
        let mut other = self.server.connect(Ticket::Earlier)?;
        again_and_again(|| pass(&mut other, data), || small(self))
    }

    fn message_round(&mut self) -> Outcome<()> {
        ping(&mut self.bare)
    }

    fn messages(&mut self, data: &[u8], count: u64) -> Outcome<u64> {
        stream(&mut self.secure, data, count)
    }

    fn reconnect(&mut self, ticket: Ticket) -> Outcome<Duration> {
        let begun = Instant::now();
        let secure = self.server.connect(ticket)?;
        let spent = begun.elapsed();
        let resumed = secure.conn.handshake_kind() == Some(HandshakeKind::Resumed);
        if ticket == Ticket::None && resumed {
            return Err("a connection without a ticket was resumed".into());
        }
        self.secure = secure;
        Ok(spent)
    }
}

/// The sums of both sides are the same.
#[cfg(test)]
#[test]
fn a_sum_in_pieces_is_that_of_the_whole() {
    let data = vec![7; 3 * PIECE + 8];
    let mut sum = Checksum::default();
    data.chunks(PIECE).for_each(|piece| sum.piece(piece));
    assert_eq!(sum.value(), upcall_bench::payload::checksum(&data));
}
