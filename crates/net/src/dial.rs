//! Connecting to a server, until its first hello.

use crate::frame::FrameError;
use crate::identity::{Credentials, HostName, HostStore, IdentityError, PeerRole};
use crate::link::{HostLink, LinkError, LinkTerms};
use crate::lost::Lost;
use crate::record::HELLO;
use crate::secure::Secure;
use crate::tls::{TlsChannel, TlsError};
use crate::wire::{LinkSocket, Wire, WireHost, WireTerms, is_here};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};
use upcall_os::random;
use upcall_os::unforked::Unforked;

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

impl Protection {
    /// Chooses the protection of a connection to `server`, HOST:PORT as the program gave it, at one
    /// of its addresses.
    ///
    /// HOST is the name of a trusted host, or the address is one of this machine.
    ///
    /// # Errors
    /// Why the server cannot be proved.
    pub fn choose(server: &str, at: SocketAddr) -> Result<Self, String> {
        let is_here = at.ip().to_canonical().is_loopback();
        let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
        let Ok(name) = host.trim_matches(['[', ']']).parse::<HostName>() else {
            return match is_here {
                true => Ok(Self::Clear),
                false => Err(format!("{host} cannot be the name of a trusted host")),
            };
        };
        match own_store().and_then(|store| Ok((store, store.credentials()?))) {
            Ok((store, credentials)) if !is_here || credentials.trust().host(&name).is_some() => {
                Ok(Self::Host(store.clone(), credentials, name))
            }
            Ok(_) => Ok(Self::Clear),
            Err(_) if is_here => Ok(Self::Clear),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The store of this process's user.
///
/// # Errors
/// `UPCALL_HOSTS` is no absolute path.
pub fn own_store() -> Result<&'static Arc<HostStore>, IdentityError> {
    static STORE: OnceLock<Arc<HostStore>> = OnceLock::new();
    match STORE.get() {
        Some(store) => Ok(store),
        None => HostStore::find().map(|store| STORE.get_or_init(|| Arc::new(store))),
    }
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
    /// The kernel gives no random bytes for the key of a session.
    NoKey(io::Error),
}

impl fmt::Display for NoConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(error) | Self::NoThread(error) => error.fmt(f),
            Self::Lost(lost) => lost.fmt(f),
            Self::Silent => f.write_str("it does not answer"),
            Self::Version(found) => LinkError::Version(*found).fmt(f),
            Self::NotProved(error) => error.fmt(f),
            Self::NoKey(error) => write!(f, "no random bytes for the key of a session: {error}"),
        }
    }
}

impl std::error::Error for NoConnection {}

/// Begins a session as its client, which goes on for `patience` after a cut.
///
/// Its key is random: a host that guesses the key could take the session over.
///
/// # Errors
/// [`NoConnection::NoKey`].
pub fn new_link(patience: Duration) -> Result<HostLink, NoConnection> {
    let key = random::bytes().map_err(NoConnection::NoKey)?;
    Ok(HostLink::client(key, LinkTerms { window: OWN_WINDOW, patience }))
}

/// Connects to a server, and begins the session of `link` there, or goes on with it.
///
/// Returns the connection, which has the link, and the bytes that came after the server's hello.
///
/// # Errors
/// See [`NoConnection`]. The link is cut, as it was.
///
/// # Blocking
/// Blocks the kernel thread, until `deadline` at most.
pub fn dial(
    address: SocketAddr,
    protection: &Protection,
    link: &mut HostLink,
    terms: WireTerms,
    deadline: Instant,
) -> Result<(Arc<Wire>, Vec<u8>), NoConnection> {
    let reached = reach(address, protection, link, terms, deadline);
    reached.inspect_err(|_| link.cut()).map(|(socket, secure, terms, first)| {
        let ended = link.ended();
        (Wire::on(socket, secure, std::mem::replace(link, ended), terms), first)
    })
}

fn reach(
    address: SocketAddr,
    protection: &Protection,
    link: &mut HostLink,
    terms: WireTerms,
    deadline: Instant,
) -> Result<(LinkSocket, Secure, WireTerms, Vec<u8>), NoConnection> {
    let left = time_left(deadline).ok_or_else(|| refused(io::ErrorKind::TimedOut.into()))?;
    let stream = TcpStream::connect_timeout(&address, left).and_then(Unforked::new);
    let stream = stream.map_err(refused)?;
    stream.set_nodelay(true).map_err(refused)?;
    link.connect();
    let mut terms = terms;
    let (secure, first) = match protection {
        Protection::Clear => {
            if !is_here(address, stream.local_addr().map_err(refused)?) {
                let what = "the address is not one of this machine".into();
                return Err(NoConnection::NotProved(TlsError::Broken { what }));
            }
            greet(&stream, link, deadline)?;
            (Secure::Clear, Vec::new())
        }
        Protection::Host(store, credentials, name) => {
            let now = SystemTime::now();
            let channel = TlsChannel::client(credentials, name, now);
            let mut channel = channel.map_err(NoConnection::NotProved)?;
            let first = greet_host(&stream, &mut channel, link, deadline)?;
            if let Some(Err(stranger)) = channel.peer(credentials, now) {
                return Err(NoConnection::NotProved(stranger.into()));
            }
            let host = WireHost::new(store.clone(), name.clone(), PeerRole::Server);
            let not_trusted = || TlsError::NotTrusted { name: name.clone() };
            terms.host = Some(host.ok_or_else(|| NoConnection::NotProved(not_trusted()))?);
            (Secure::Tls(Box::new(channel)), first)
        }
    };
    let socket = LinkSocket::new(stream, &terms).map_err(refused)?;
    Ok((socket, secure, terms, first))
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
    while link.missing_of_hello() > 0 {
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

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use upcall_os::seccomp;

    #[test]
    fn no_session_begins_with_a_key_that_can_be_guessed() {
        let refused = std::thread::spawn(|| {
            // Without a supervisor the kernel refuses the call: `getrandom` on x86-64.
            drop(seccomp::listen(&[318]).unwrap());
            new_link(Duration::ZERO).map(drop)
        });
        let refused = refused.join().unwrap().unwrap_err();
        assert!(matches!(refused, NoConnection::NoKey(_)), "{refused}");
    }
}
