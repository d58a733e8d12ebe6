//! TLS 1.3 with both sides proved, without I/O: bytes are arguments.
//!
//! What: a [`TlsChannel`] takes bytes of the network and gives plaintext, and the other way round.
//! TLS itself is rustls's. Both sides send their certificates; the client refuses every server but
//! the expected host, and the server learns the client's name from [`TlsChannel::peer`].
//!
//! What not: sockets, threads and time-outs. The caller moves the bytes, bounds how much it puts
//! in before it takes the output, and gives up a handshake that takes too long.
//!
//! # Rules for the caller
//! 1. After [`TlsChannel::take`], also after an error, send the output: it has replies and alerts.
//! 2. Once the handshake is over, ask [`TlsChannel::peer`] before any plaintext is used. A server
//!    finishes the handshake with a stranger, so that it can send the reason, and then closes.
//! 3. An end of the stream before [`TlsChannel::has_ended`] is a cut, not an end.
//!
//! # Resumption
//! A second connection between the same hosts uses a ticket of the first in place of certificates,
//! which saves two signatures on each side. [`TlsChannel::peer`] judges the certificates of the
//! first connection by the current files, so a revocation holds for resumed connections as well.
//! There is no early data, which could be replayed.

use crate::identity::{
    Credentials, Fingerprint, HostName, PROTOCOL, PeerRole, Stranger, server_name,
};
use rustls::{
    AlertDescription, CertificateError, ClientConnection, Connection, Error, HandshakeKind,
    OtherError, ServerConnection,
};
use std::convert::Infallible;
use std::fmt;
use std::io::{self, BufRead, IoSlice, Write};
use std::sync::Arc;
use std::time::SystemTime;

/// One end of a TLS connection; see the module.
#[derive(Debug)]
pub struct TlsChannel {
    connection: Connection,
    credentials: Arc<Credentials>,
    /// The host that was called; `None` for a server.
    called: Option<(HostName, Fingerprint)>,
    /// The peer speaks [`PROTOCOL`], which is known at the end of the handshake.
    agreed: bool,
    /// The peer has ended its direction.
    ended: bool,
}

impl TlsChannel {
    /// Begins a connection to a trusted host. The first bytes are in the output.
    ///
    /// # Errors
    /// No trusted host has the name, or it may not be called.
    pub fn client(
        credentials: &Arc<Credentials>,
        expected: &HostName,
        now: SystemTime,
    ) -> Result<Self, TlsError> {
        let trust = credentials.trust();
        let host = trust.host(expected);
        let host = host.ok_or_else(|| TlsError::NotTrusted { name: expected.clone() })?;
        trust.admit(host, PeerRole::Server, now)?;
        let identity = host.certificate.fingerprint();
        let config = credentials.client_config().clone();
        let connection = ClientConnection::new(config, server_name(identity))?;
        Ok(Self::new(connection.into(), credentials, Some((expected.clone(), identity))))
    }

    /// Accepts a connection from any host.
    ///
    /// # Errors
    /// The kernel gives no random numbers.
    pub fn server(credentials: &Arc<Credentials>) -> Result<Self, TlsError> {
        let connection = ServerConnection::new(credentials.server_config().clone())?;
        Ok(Self::new(connection.into(), credentials, None))
    }

    fn new(
        mut connection: Connection,
        credentials: &Arc<Credentials>,
        called: Option<(HostName, Fingerprint)>,
    ) -> Self {
        // The caller bounds what it puts in.
        connection.set_buffer_limit(None);
        Self { connection, credentials: credentials.clone(), called, agreed: false, ended: false }
    }

    /// Takes bytes of the network, and appends their plaintext to `plain`.
    ///
    /// It takes all bytes, unless the peer has ended the connection: what follows is left. The
    /// plaintext is never longer than the bytes that it arrived in.
    ///
    /// # Errors
    /// The connection cannot go on. An alert for the peer may be in the output. `plain` may have
    /// got what arrived before the fault.
    pub fn take(&mut self, bytes: &mut &[u8], plain: &mut Vec<u8>) -> Result<(), TlsError> {
        let add = |piece: &[u8]| {
            plain.extend_from_slice(piece);
            Ok(())
        };
        let Ok(()) = self.take_each::<Infallible>(bytes, add)?;
        Ok(())
    }

    /// Like [`take`](Self::take), but hands each piece of plaintext to `each`, in order. If that
    /// fails, nothing more is taken, and its error is the value within.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn take_each<E>(
        &mut self,
        bytes: &mut &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Result<(), E>, TlsError> {
        while !bytes.is_empty() {
            let read = self.connection.read_tls(bytes);
            let read = read.map_err(|error| TlsError::Broken { what: error.to_string() })?;
            self.ended = self.connection.process_new_packets()?.peer_has_closed();
            if !self.agreed && !self.connection.is_handshaking() {
                self.agree()?;
            }
            if self.agreed {
                let taken = self.read_plain(&mut each)?;
                if taken.is_err() {
                    return Ok(taken);
                }
            }
            if read == 0 {
                break;
            }
        }
        Ok(Ok(()))
    }

    /// Checks that both sides speak the same protocol inside of TLS. rustls lets a peer leave it
    /// out.
    fn agree(&mut self) -> Result<(), TlsError> {
        match self.connection.alpn_protocol() {
            Some(PROTOCOL) => self.agreed = true,
            _ => {
                self.connection.send_close_notify();
                return Err(TlsError::OtherProtocol);
            }
        }
        Ok(())
    }

    fn read_plain<E>(
        &mut self,
        each: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Result<(), E>, TlsError> {
        let mut reader = self.connection.reader();
        loop {
            let piece = match reader.fill_buf() {
                Ok([]) => return Ok(Ok(())),
                Ok(piece) => piece,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Ok(())),
                Err(error) => return Err(TlsError::Broken { what: error.to_string() }),
            };
            let (taken, length) = (each(piece), piece.len());
            if taken.is_err() {
                return Ok(taken);
            }
            reader.consume(length);
        }
    }

    /// Encrypts plaintext into the output. Before the end of the handshake it is kept until then.
    ///
    /// The caller bounds how much output it lets pile up. Pieces of about 64 KiB, each followed by
    /// [`TlsChannel::write_to`], are the fastest: the output of a longer one leaves the caches.
    /// After [`TlsChannel::close`] the plaintext is dropped.
    pub fn put(&mut self, plain: &[u8]) {
        // A writer without a limit takes everything.
        let _ = self.connection.writer().write_all(plain);
    }

    /// Like [`put`](Self::put), with bytes that lie in several places. Returns their number.
    pub fn put_pieces(&mut self, pieces: &[IoSlice<'_>]) -> usize {
        // A writer without a limit takes everything.
        self.connection.writer().write_vectored(pieces).unwrap_or(0)
    }

    /// Returns `true` if there are bytes for the network.
    pub fn wants_write(&self) -> bool {
        self.connection.wants_write()
    }

    /// Writes bytes for the network, straight from where they were encrypted, until there are no
    /// more or the writer takes none.
    ///
    /// # Errors
    /// The writer's, also [`io::ErrorKind::WouldBlock`]. What it did not take stays.
    pub fn write_to(&mut self, network: &mut impl Write) -> io::Result<()> {
        while self.connection.wants_write() {
            if self.connection.write_tls(network)? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Appends the bytes for the network to a buffer.
    pub fn output(&mut self, network: &mut Vec<u8>) {
        // A vector takes everything.
        let _ = self.write_to(network);
    }

    /// Returns `true` until the handshake is over.
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking() || !self.agreed
    }

    /// Returns `true` if the connection was resumed by a ticket.
    pub fn is_resumed(&self) -> bool {
        self.connection.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// The peer's name, or the reason why it is not accepted, by the files as they are now.
    ///
    /// `None` until the handshake is over. `current` is what
    /// [`HostStore::credentials`](crate::identity::HostStore::credentials) returns now. It need not
    /// be what the connection began with.
    pub fn peer(
        &self,
        current: &Credentials,
        now: SystemTime,
    ) -> Option<Result<HostName, Stranger>> {
        if self.is_handshaking() {
            return None;
        }
        let chain = self.connection.peer_certificates().unwrap_or_default();
        let Some((expected, identity)) = &self.called else {
            return Some(current.judge(chain, PeerRole::Client, now));
        };
        let judged = current.judge(chain, PeerRole::Server, now).and_then(|name| {
            // The name may have another identity by now, or the identity another name.
            let found = current.trust().host(&name).map(|host| host.certificate.fingerprint());
            match found {
                Some(found) if name != *expected || found != *identity => {
                    Err(Stranger::NotExpected { expected: expected.clone(), found })
                }
                _ => Ok(name),
            }
        });
        if judged.is_err() {
            // The server may have newer certificates than the ticket.
            self.credentials.forget_sessions(*identity);
        }
        Some(judged)
    }

    /// Ends this direction of the connection. The notice for the peer is in the output.
    pub fn close(&mut self) {
        self.connection.send_close_notify();
    }

    /// Returns `true` if the peer has ended its direction, after all bytes that it sent.
    pub fn has_ended(&self) -> bool {
        self.ended
    }
}

/// Why a TLS connection cannot begin or go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsError {
    /// No trusted host has this name.
    NotTrusted {
        /// The name that was called.
        name: HostName,
    },
    /// The server is not the called host, or may not be called.
    Refused(Stranger),
    /// The peer does not accept this host's certificate.
    Distrusted {
        /// The peer's alert.
        alert: String,
    },
    /// The peer has no TLS 1.3.
    OldVersion {
        /// What was found.
        what: String,
    },
    /// The peer speaks another protocol inside of TLS.
    OtherProtocol,
    /// The peer sent no certificate.
    NoCertificate,
    /// The peer ended the connection with an alert.
    Alert {
        /// The alert.
        alert: String,
    },
    /// The bytes are no TLS, or were changed on their way.
    Broken {
        /// What was found.
        what: String,
    },
    /// TLS cannot work on this host.
    Unusable {
        /// The library's error.
        what: String,
    },
}

impl From<Stranger> for TlsError {
    fn from(stranger: Stranger) -> Self {
        Self::Refused(stranger)
    }
}

impl From<Error> for TlsError {
    fn from(error: Error) -> Self {
        match error {
            Error::InvalidCertificate(CertificateError::Other(OtherError(inner))) => {
                match inner.downcast_ref::<Stranger>() {
                    Some(stranger) => Self::Refused(stranger.clone()),
                    None => Self::Broken { what: inner.to_string() },
                }
            }
            Error::NoCertificatesPresented => Self::NoCertificate,
            Error::NoApplicationProtocol => Self::OtherProtocol,
            Error::AlertReceived(alert) => of_alert(alert),
            Error::PeerIncompatible(what) => Self::OldVersion { what: format!("{what:?}") },
            Error::FailedToGetRandomBytes | Error::FailedToGetCurrentTime | Error::General(_) => {
                Self::Unusable { what: error.to_string() }
            }
            _ => Self::Broken { what: error.to_string() },
        }
    }
}

fn of_alert(alert: AlertDescription) -> TlsError {
    let text = format!("{alert:?}");
    match alert {
        AlertDescription::NoApplicationProtocol => TlsError::OtherProtocol,
        AlertDescription::ProtocolVersion => TlsError::OldVersion { what: text },
        AlertDescription::BadCertificate
        | AlertDescription::CertificateExpired
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnknownCA => TlsError::Distrusted { alert: text },
        _ => TlsError::Alert { alert: text },
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotTrusted { name } => write!(
                f,
                "no trusted host is called {name}: see `upcall host list`, and add it with `upcall \
                 host trust {name} FILE`"
            ),
            Self::Refused(stranger) => stranger.fmt(f),
            Self::Distrusted { alert } => write!(
                f,
                "the client does not accept the certificate of this host ({alert}): trust this \
                 host there, with what `upcall host show --pem` prints here"
            ),
            Self::OldVersion { what } => write!(
                f,
                "the peer has no TLS 1.3 ({what}): it is no Upcall program, or a proxy changes the \
                 connection"
            ),
            Self::OtherProtocol => write!(
                f,
                "the peer does not speak the protocol `upcall/1`: compare the versions of Upcall, \
                 and check the address"
            ),
            Self::NoCertificate => write!(
                f,
                "the client sent no certificate: it has to be an Upcall program with an identity \
                 (`upcall host init`)"
            ),
            Self::Alert { alert } => write!(f, "the peer ended the connection: {alert}"),
            Self::Broken { what } => write!(
                f,
                "the bytes that arrived are no TLS, or were changed on their way ({what}): check \
                 the address"
            ),
            Self::Unusable { what } => write!(f, "TLS cannot work on this host: {what}"),
        }
    }
}

impl std::error::Error for TlsError {}

#[cfg(all(test, feature = "issue"))]
mod tests;
