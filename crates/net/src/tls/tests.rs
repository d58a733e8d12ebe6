//! Two channels back to back in memory.

mod hostile;

use super::*;
use crate::identity::{CertificateKind, HostClock, HostPermission, HostStore, IfRevoked};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fs;
use std::time::Duration;
use tempfile::TempDir;
use upcall_os::atomic::{AtomicU64, Ordering};

const DAY: u64 = 86_400;
/// The time at which all clocks begin, in seconds since 1970.
const BEGIN: u64 = 1_900_000_000;

fn name(text: &str) -> HostName {
    text.parse().unwrap()
}

/// Hosts with one clock each, which a test sets.
struct Host {
    store: HostStore,
    seconds: Arc<AtomicU64>,
    _folder: TempDir,
}

impl Host {
    fn new(label: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let seconds = Arc::new(AtomicU64::new(BEGIN));
        let clock = seconds.clone();
        let clock = HostClock::new(move || at(clock.load(Ordering::Relaxed)));
        let store = HostStore::at(folder.path().join("hosts")).with_clock(clock);
        store.init(&name(label)).unwrap();
        Self { store, seconds, _folder: folder }
    }

    fn now(&self) -> SystemTime {
        at(self.seconds.load(Ordering::Relaxed))
    }

    fn wait(&self, days: u64) {
        self.seconds.fetch_add(days * DAY, Ordering::Relaxed);
    }

    fn trust(&self, label: &str, other: &Self) {
        self.trust_to(label, other, HostPermission::Both);
    }

    fn trust_to(&self, label: &str, other: &Self, may: HostPermission) {
        let identity = other.store.own().unwrap().identity;
        self.store.trust(&name(label), &identity, may, IfRevoked::Refuse).unwrap();
    }

    fn fingerprint(&self) -> Fingerprint {
        self.store.own().unwrap().identity.fingerprint()
    }

    fn call(&self, label: &str) -> Result<TlsChannel, TlsError> {
        TlsChannel::client(&self.store.credentials().unwrap(), &name(label), self.now())
    }

    fn answer(&self) -> TlsChannel {
        TlsChannel::server(&self.store.credentials().unwrap()).unwrap()
    }

    fn peer(&self, channel: &TlsChannel) -> Option<Result<HostName, Stranger>> {
        channel.peer(&self.store.credentials().unwrap(), self.now())
    }

    /// The parts of `host.pem`: the private key, and the chain.
    fn key(&self) -> (PrivateKeyDer<'static>, Vec<CertificateDer<'static>>) {
        let text = fs::read(self.store.folder().join("host.pem")).unwrap();
        let chain = CertificateDer::pem_slice_iter(&text).map(Result::unwrap).collect();
        (PrivateKeyDer::from_pem_slice(&text).unwrap(), chain)
    }
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

/// Two hosts that trust each other.
fn pair() -> (Host, Host) {
    let (alpha, beta) = (Host::new("alpha"), Host::new("beta"));
    alpha.trust("b", &beta);
    beta.trust("a", &alpha);
    (alpha, beta)
}

/// Carries bytes one way. Returns what the receiver got.
fn carry(from: &mut TlsChannel, to: &mut TlsChannel) -> Result<Vec<u8>, TlsError> {
    let (mut network, mut plain) = (Vec::new(), Vec::new());
    from.output(&mut network);
    to.take(&mut &network[..], &mut plain).map(|()| plain)
}

/// Carries the bytes of the handshake both ways until there are no more.
fn shake(client: &mut TlsChannel, server: &mut TlsChannel) -> Result<(), TlsError> {
    while client.wants_write() || server.wants_write() {
        let forth = carry(client, server);
        let back = carry(server, client);
        assert!(forth?.is_empty() && back?.is_empty());
    }
    Ok(())
}

/// The errors of the client and of the server of a handshake that fails.
fn errors(
    client: &mut TlsChannel,
    server: &mut TlsChannel,
) -> (Option<TlsError>, Option<TlsError>) {
    let mut found = (None, None);
    while client.wants_write() || server.wants_write() {
        let forth = carry(client, server).err();
        found.1 = found.1.or(forth);
        let back = carry(server, client).err();
        found.0 = found.0.or(back);
    }
    found
}

fn connect(client: &Host, server: &Host) -> (TlsChannel, TlsChannel) {
    let (mut forth, mut back) = (client.call("b").unwrap(), server.answer());
    shake(&mut forth, &mut back).unwrap();
    (forth, back)
}

#[test]
fn hosts_that_trust_each_other_know_each_other_by_their_own_names() {
    let (alpha, beta) = pair();
    let (mut client, mut server) = (alpha.call("b").unwrap(), beta.answer());
    assert!(client.is_handshaking() && alpha.peer(&client).is_none());
    // What is put in early arrives after the handshake.
    client.put(b"early");
    let mut plain = Vec::new();
    while client.wants_write() || server.wants_write() {
        assert!(beta.peer(&server).is_none() || !server.is_handshaking());
        plain.extend(carry(&mut client, &mut server).unwrap());
        carry(&mut server, &mut client).unwrap();
    }
    assert_eq!(plain, b"early");
    assert_eq!(alpha.peer(&client), Some(Ok(name("b"))));
    assert_eq!(beta.peer(&server), Some(Ok(name("a"))));
    let long: Vec<u8> = (0..1_000_000_u32).map(|n| n as u8).collect();
    server.put(&long);
    client.put(b"x");
    assert_eq!(carry(&mut server, &mut client), Ok(long));
    assert_eq!(carry(&mut client, &mut server), Ok(b"x".to_vec()));
    client.close();
    assert!(!server.has_ended());
    assert_eq!(carry(&mut client, &mut server), Ok(vec![]));
    assert!(server.has_ended() && !client.has_ended());
    // What follows the end is left.
    let mut rest = &b"rest"[..];
    assert_eq!(server.take(&mut rest, &mut plain), Ok(()));
    assert_eq!(rest, b"rest");
}

#[test]
fn a_second_connection_is_resumed() {
    let (alpha, beta) = pair();
    let (first, second) = (connect(&alpha, &beta), connect(&alpha, &beta));
    assert!(!first.0.is_resumed() && !first.1.is_resumed());
    assert!(second.0.is_resumed() && second.1.is_resumed());
    assert_eq!(alpha.peer(&second.0), Some(Ok(name("b"))));
    assert_eq!(beta.peer(&second.1), Some(Ok(name("a"))));
}

#[test]
fn a_stranger_that_calls_can_be_given_the_reason() {
    let (alpha, beta) = (Host::new("alpha"), Host::new("beta"));
    alpha.trust("b", &beta);
    let (mut client, mut server) = connect(&alpha, &beta);
    let fingerprint = alpha.fingerprint();
    let stranger = beta.peer(&server).unwrap().unwrap_err();
    assert_eq!(stranger, Stranger::Unknown { fingerprint });
    server.put(stranger.to_string().as_bytes());
    server.close();
    let text = String::from_utf8(carry(&mut server, &mut client).unwrap()).unwrap();
    assert!(text.contains(&fingerprint.to_string()) && text.contains("host trust"), "{text}");
    assert!(client.has_ended());
    // A host that may serve only is no better.
    beta.trust_to("a", &alpha, HostPermission::Serve);
    let (_, server) = connect(&alpha, &beta);
    let role = PeerRole::Client;
    let stranger = Stranger::NotAllowed { name: name("a"), fingerprint, role };
    assert_eq!(beta.peer(&server), Some(Err(stranger)));
}

#[test]
fn a_server_that_is_not_the_expected_one_is_refused() {
    let (alpha, beta) = pair();
    let (middle, other) = (Host::new("middle"), Host::new("other"));
    middle.trust("a", &alpha);
    alpha.trust("other", &other);
    for (impostor, expected) in [(&middle, "b"), (&other, "b")] {
        let (mut client, mut server) = (alpha.call(expected).unwrap(), impostor.answer());
        let refused = errors(&mut client, &mut server);
        let found = impostor.fingerprint();
        let stranger = Stranger::NotExpected { expected: name("b"), found };
        assert_eq!(refused.0, Some(TlsError::Refused(stranger)));
        assert!(matches!(refused.1, Some(TlsError::Distrusted { .. })), "{refused:?}");
        assert!(client.is_handshaking() && server.is_handshaking());
        assert!(middle.peer(&server).is_none() && alpha.peer(&client).is_none());
    }
    // Names that are not trusted, or not to serve, are refused before a byte is sent.
    let unknown = alpha.call("c").unwrap_err();
    assert_eq!(unknown, TlsError::NotTrusted { name: name("c") });
    alpha.trust_to("b", &beta, HostPermission::Call);
    let error = alpha.call("b").unwrap_err();
    assert!(matches!(error, TlsError::Refused(Stranger::NotAllowed { .. })), "{error}");
}

#[test]
fn certificates_out_of_time_are_refused_by_both_sides() {
    let (alpha, beta) = pair();
    let fingerprint = beta.fingerprint();
    // A clock that is a day off does no harm, either way.
    beta.wait(1);
    connect(&alpha, &beta);
    alpha.wait(2);
    beta.store.renew().unwrap();
    let (client, server) = connect(&alpha, &beta);
    assert_eq!(beta.peer(&server), Some(Ok(name("a"))));
    assert_eq!(alpha.peer(&client), Some(Ok(name("b"))));
    // Beta's certificate expires, alpha's was renewed.
    alpha.wait(90);
    alpha.store.renew().unwrap();
    let (mut client, mut server) = (alpha.call("b").unwrap(), beta.answer());
    let refused = errors(&mut client, &mut server).0;
    let Some(TlsError::Refused(stranger)) = refused else { panic!("{refused:?}") };
    let Stranger::Expired { since, what: CertificateKind::Host, .. } = &stranger else {
        panic!("{stranger:?}")
    };
    assert_eq!(since.as_secs() / DAY, 1);
    let text = stranger.to_string();
    assert!(text.contains(&fingerprint.to_string()) && text.contains("host renew"), "{text}");
    // Beta's clock is far behind: alpha's new certificate is not valid yet there.
    beta.store.renew().unwrap();
    let beta_credentials = beta.store.credentials().unwrap();
    let (_, server) = {
        let (mut forth, mut back) = (alpha.call("b").unwrap(), beta.answer());
        let _ = errors(&mut forth, &mut back);
        (forth, back)
    };
    assert!(server.is_handshaking());
    alpha.seconds.store(beta.seconds.load(Ordering::Relaxed), Ordering::Relaxed);
    let (_, server) = connect(&alpha, &beta);
    let found = server.peer(&beta_credentials, beta.now()).unwrap();
    assert!(matches!(found, Err(Stranger::NotYetValid { .. })), "{found:?}");
    let late = server.peer(&beta_credentials, beta.now() + Duration::from_secs(400 * DAY)).unwrap();
    let late = late.unwrap_err();
    assert!(matches!(late, Stranger::Expired { what: CertificateKind::Host, .. }), "{late:?}");
    let late = server.peer(&beta_credentials, beta.now() + Duration::from_secs(4_000 * DAY));
    let late = late.unwrap().unwrap_err();
    assert!(matches!(late, Stranger::Expired { what: CertificateKind::Identity, .. }), "{late:?}");
}

#[test]
fn a_revocation_holds_at_once_also_for_open_and_resumed_connections() {
    let (alpha, beta) = pair();
    let (client, server) = connect(&alpha, &beta);
    // The server keeps what it has read, as a long-lived process does between two connections.
    let (old_alpha, old_beta) =
        (alpha.store.credentials().unwrap(), beta.store.credentials().unwrap());
    beta.store.revoke(&name("a")).unwrap();
    let revoked = |host: &Host| Some(Err(Stranger::Revoked { fingerprint: host.fingerprint() }));
    assert_eq!(beta.peer(&server), revoked(&alpha));
    let mut client_again = TlsChannel::client(&old_alpha, &name("b"), alpha.now()).unwrap();
    let mut server_again = TlsChannel::server(&old_beta).unwrap();
    shake(&mut client_again, &mut server_again).unwrap();
    assert!(server_again.is_resumed());
    assert_eq!(beta.peer(&server_again), revoked(&alpha));
    // The client's side.
    assert_eq!(alpha.peer(&client_again), Some(Ok(name("b"))));
    alpha.store.revoke(&name("b")).unwrap();
    assert_eq!(alpha.peer(&client_again), revoked(&beta));
    assert_eq!(alpha.peer(&client), revoked(&beta));
    assert_eq!(alpha.call("b").unwrap_err(), TlsError::NotTrusted { name: name("b") });
    // The refusal has dropped the tickets.
    let mut client = TlsChannel::client(&old_alpha, &name("b"), alpha.now()).unwrap();
    let mut server = TlsChannel::server(&old_beta).unwrap();
    shake(&mut client, &mut server).unwrap();
    assert!(!client.is_resumed());
}

#[test]
fn a_renewed_key_is_used_without_a_restart_and_without_new_trust() {
    let (alpha, beta) = pair();
    let used = |channel: &TlsChannel| channel.connection.peer_certificates().unwrap()[0].clone();
    let (first, _) = connect(&alpha, &beta);
    beta.store.renew().unwrap();
    let (second, server) = connect(&alpha, &beta);
    assert_ne!(used(&first), used(&second));
    assert_eq!(used(&second), beta.key().1[0]);
    assert_eq!(alpha.peer(&second), Some(Ok(name("b"))));
    assert_eq!(beta.peer(&server), Some(Ok(name("a"))));
}

#[test]
fn bytes_may_arrive_in_any_pieces_and_stop_anywhere() {
    let (alpha, beta) = pair();
    let (mut client, mut server) = (alpha.call("b").unwrap(), beta.answer());
    let mut flights = Vec::new();
    client.put(b"hello");
    while client.wants_write() || server.wants_write() {
        let (mut network, mut plain) = (Vec::new(), Vec::new());
        client.output(&mut network);
        for byte in &network {
            server.take(&mut &[*byte][..], &mut plain).unwrap();
        }
        flights.push((network, plain));
        let mut network = Vec::new();
        server.output(&mut network);
        for byte in &network {
            client.take(&mut &[*byte][..], &mut Vec::new()).unwrap();
        }
    }
    assert_eq!(beta.peer(&server), Some(Ok(name("a"))));
    assert_eq!(flights.iter().flat_map(|(_, plain)| plain.clone()).collect::<Vec<_>>(), b"hello");
    // A cut first flight leaves a handshake that waits, and has no answer.
    let first = &flights[0].0;
    for length in 0..first.len() {
        let mut server = beta.answer();
        server.take(&mut &first[..length], &mut Vec::new()).unwrap();
        assert!(server.is_handshaking() && !server.wants_write() && !server.has_ended());
    }
    // A recorded connection cannot be replayed: the server answers with other random numbers.
    let (mut server, mut plain) = (beta.answer(), Vec::new());
    let replayed = flights.iter().try_for_each(|(flight, _)| {
        server.output(&mut Vec::new());
        server.take(&mut &flight[..], &mut plain)
    });
    assert!(matches!(replayed, Err(TlsError::Broken { .. })), "{replayed:?}");
    assert!(plain.is_empty() && server.is_handshaking());
}

#[test]
fn output_that_a_socket_does_not_take_stays() {
    /// Takes a byte at each second write.
    #[derive(Default)]
    struct Slow(Vec<u8>, bool);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.0.push(bytes[0]);
            Ok(1)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let (alpha, beta) = pair();
    let (mut client, mut server) = connect(&alpha, &beta);
    client.put(b"slowly");
    let mut network = Slow::default();
    while client.wants_write() {
        let error = client.write_to(&mut network).map_err(|error| error.kind());
        assert!(error.is_ok() || error == Err(io::ErrorKind::WouldBlock));
    }
    let mut plain = Vec::new();
    server.take(&mut &network.0[..], &mut plain).unwrap();
    assert_eq!(plain, b"slowly");
}
