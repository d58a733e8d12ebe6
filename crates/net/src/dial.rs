//! Connecting to a server, until its first hello.

use crate::frame::FrameError;
use crate::identity::{Credentials, HostName, HostStore, PeerRole};
use crate::link::{HostLink, LinkError, LinkTerms};
use crate::lost::Lost;
use crate::record::{HELLO, SessionKey};
use crate::secure::Secure;
use crate::tls::{TlsChannel, TlsError};
use crate::wire::{Wire, WireHost, WireTerms};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Maximum number of calls that a client would take from its server at once.
const OWN_WINDOW: u16 = 0x7fff;

/// How a server is proved, and the connection to it protected.
#[derive(Clone, Debug)]
pub enum Protection {
    /// Not at all: it is within this machine.
    Clear,
    /// By TLS: it is this host, as those who are trusted here know it.
    Host(Arc<HostStore>, Arc<Credentials>, HostName),
}

/// Why there is no connection.
#[derive(Debug)]
pub enum NoConnection {
    /// The kernel's error.
    Refused(io::Error),
    /// Connected, but the other side did not answer, or does not speak this protocol.
    Lost(Lost),
    /// Connected, but the other side sent nothing in time.
    Silent,
    /// The other side's protocol has this version.
    Version(u32),
    /// The other side is not proved, or the connection not protected.
    NotProved(TlsError),
    /// No kernel thread is left here to serve the connection.
    NoThread(io::Error),
}

impl fmt::Display for NoConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(error) | Self::NoThread(error) => error.fmt(f),
            Self::Lost(lost) => lost.fmt(f),
            Self::Silent => f.write_str("it does not answer"),
            Self::Version(found) => LinkError::Version(*found).fmt(f),
            Self::NotProved(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for NoConnection {}

/// Connects to a server.
///
/// Returns the connection, the number of calls that the server takes at once, and the bytes that
/// came after its hello.
///
/// # Errors
/// See [`NoConnection`].
///
/// # Blocking
/// Blocks the kernel thread, until `deadline` at most.
pub(crate) fn dial(
    address: SocketAddr,
    protection: &Protection,
    terms: WireTerms,
    deadline: Instant,
) -> Result<(Arc<Wire>, u16, Vec<u8>), NoConnection> {
    let left = time_left(deadline).ok_or_else(|| refused(io::ErrorKind::TimedOut.into()))?;
    let stream = TcpStream::connect_timeout(&address, left).map_err(refused)?;
    stream.set_nodelay(true).map_err(refused)?;
    let terms_of_link = LinkTerms { window: OWN_WINDOW, patience: Duration::ZERO };
    let mut link = HostLink::client(session_key(), terms_of_link);
    link.connect();
    let mut terms = terms;
    let (secure, first) = match protection {
        Protection::Clear => {
            greet(&stream, &mut link, deadline)?;
            (Secure::Clear, Vec::new())
        }
        Protection::Host(store, credentials, name) => {
            let now = SystemTime::now();
            let channel = TlsChannel::client(credentials, name, now);
            let mut channel = channel.map_err(NoConnection::NotProved)?;
            let first = greet_host(&stream, &mut channel, &mut link, deadline)?;
            if let Some(Err(stranger)) = channel.peer(credentials, now) {
                return Err(NoConnection::NotProved(stranger.into()));
            }
            let host = WireHost::new(store.clone(), name.clone(), PeerRole::Server);
            let not_trusted = || TlsError::NotTrusted { name: name.clone() };
            terms.host = Some(host.ok_or_else(|| NoConnection::NotProved(not_trusted()))?);
            (Secure::Tls(Box::new(channel)), first)
        }
    };
    let window = link.peer_window().unwrap_or(1);
    let wire = Wire::new(stream, secure, link, terms).map_err(refused)?;
    Ok((wire, window, first))
}

fn refused(error: io::Error) -> NoConnection {
    NoConnection::Refused(error)
}

/// Exchanges hellos, and reads nothing that comes after the server's.
fn greet(
    mut stream: &TcpStream,
    link: &mut HostLink,
    deadline: Instant,
) -> Result<(), NoConnection> {
    let hello = link.output().map_err(lost)?.to_vec();
    stream.write_all(&hello).map_err(lost)?;
    link.sent(hello.len());
    while link.peer_window().is_none() {
        let mut bytes = [0; HELLO];
        let count = read(stream, &mut bytes[..link.missing_of_hello()], deadline)?;
        take_hello(link, &bytes[..count])?;
    }
    stream.set_read_timeout(None).map_err(refused)
}

/// Proves both sides, and exchanges hellos. Returns the plain bytes that came after the server's.
fn greet_host(
    mut stream: &TcpStream,
    channel: &mut TlsChannel,
    link: &mut HostLink,
    deadline: Instant,
) -> Result<Vec<u8>, NoConnection> {
    let hello = link.output().map_err(lost)?.to_vec();
    // It is kept until the server is proved.
    channel.put(&hello);
    link.sent(hello.len());
    let (mut plain, mut bytes) = (Vec::new(), [0; 4096]);
    while plain.len() < HELLO {
        channel.write_to(&mut stream).map_err(lost)?;
        let count = match read(stream, &mut bytes, deadline) {
            // A client that the server refuses within TLS gets an alert, which came before.
            Err(NoConnection::Lost(Lost::Ended)) if channel.is_handshaking() => {
                return Err(NoConnection::NotProved(TlsError::Broken {
                    what: "the other side closed the connection during the handshake".into(),
                }));
            }
            read => read?,
        };
        let taken = channel.take(&mut &bytes[..count], &mut plain);
        if let Err(error) = taken {
            // The other side gets the reason, if it still listens.
            let _ = channel.write_to(&mut stream);
            return Err(NoConnection::NotProved(error));
        }
    }
    channel.write_to(&mut stream).map_err(lost)?;
    let rest = plain.split_off(HELLO);
    take_hello(link, &plain)?;
    stream.set_read_timeout(None).map_err(refused)?;
    Ok(rest)
}

fn take_hello(link: &mut HostLink, bytes: &[u8]) -> Result<(), NoConnection> {
    let mut nothing_more = |_: &_| Err(FrameError("a message before a hello"));
    let taken = link.take(bytes, Instant::now(), &mut nothing_more, &mut Vec::new());
    taken.map_err(|error| match error {
        LinkError::Version(found) => NoConnection::Version(found),
        error => lost(error),
    })
}

/// Reads some bytes.
fn read(
    mut stream: &TcpStream,
    bytes: &mut [u8],
    deadline: Instant,
) -> Result<usize, NoConnection> {
    loop {
        let left = time_left(deadline).ok_or(NoConnection::Silent)?;
        stream.set_read_timeout(Some(left)).map_err(refused)?;
        match stream.read(bytes) {
            Ok(0) => return Err(lost(Lost::Ended)),
            Ok(count) => return Ok(count),
            Err(error) if is_time_out(&error) => {}
            Err(error) => return Err(lost(error)),
        }
    }
}

fn lost(why: impl Into<Lost>) -> NoConnection {
    NoConnection::Lost(why.into())
}

fn is_time_out(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn time_left(deadline: Instant) -> Option<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(left)
}

/// A random key of a session.
fn session_key() -> SessionKey {
    let mut key = SessionKey::default();
    // getrandom fills up to 256 bytes at once, without being interrupted by signals.
    let _ = rustix::rand::getrandom(&mut key[..], rustix::rand::GetRandomFlags::empty());
    key
}
