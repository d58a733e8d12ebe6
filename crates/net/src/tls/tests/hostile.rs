//! Peers that forge certificates, bytes or versions.

use super::*;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ServerConfig};

/// A client's configuration with certificates and a key that need not fit together.
fn forged(
    host: &Host,
    key: &PrivateKeyDer<'static>,
    chain: Vec<CertificateDer<'static>>,
) -> ClientConfig {
    let mut config = ClientConfig::clone(host.store.credentials().unwrap().client_config());
    let key = rustls::crypto::ring::sign::any_supported_type(key).unwrap();
    let certified = CertifiedKey::new(chain, key);
    config.client_auth_cert_resolver = Arc::new(rustls::sign::SingleCertAndKey::from(certified));
    config
}

/// A client of `host` with another configuration.
fn client_of(host: &Host, config: ClientConfig) -> TlsChannel {
    let credentials = host.store.credentials().unwrap();
    let identity = credentials.trust().host(&name("b")).unwrap().certificate.fingerprint();
    let connection = ClientConnection::new(Arc::new(config), server_name(identity)).unwrap();
    TlsChannel::new(connection.into(), &credentials, Some((name("b"), identity)))
}

#[test]
fn a_copied_certificate_is_worth_nothing_without_its_key() {
    let (alpha, beta) = pair();
    let thief = Host::new("thief");
    thief.trust("b", &beta);
    let config = forged(&thief, &thief.key().0, alpha.key().1);
    let (mut client, mut server) = (client_of(&thief, config), beta.answer());
    let found = errors(&mut client, &mut server);
    assert!(matches!(found.1, Some(TlsError::Broken { .. })), "{found:?}");
    assert!(server.is_handshaking() && beta.peer(&server).is_none());
}

#[test]
fn certificates_that_do_not_belong_together_are_named() {
    let (alpha, beta) = pair();
    let thief = Host::new("thief");
    thief.trust("b", &beta);
    let (key, own) = thief.key();
    let copied = alpha.key().1;
    let claimed = alpha.fingerprint();
    let not_signed = Stranger::NotSigned { claimed };
    let malformed = |what| Stranger::Malformed { what };
    for (chain, reason) in [
        // A certificate of the thief's own beside the identity of another host.
        (vec![own[0].clone(), copied[1].clone()], not_signed),
        (vec![own[0].clone()], malformed("another number of certificates than two")),
        (
            vec![own[0].clone(), own[1].clone(), copied[1].clone()],
            malformed("another number of certificates than two"),
        ),
        (
            vec![own[0].clone(), copied[0].clone()],
            malformed("the certificate of a host in place of that of its identity"),
        ),
        (
            vec![own[0].clone(), vec![0x30, 0].into()],
            malformed("a malformed certificate of an identity"),
        ),
    ] {
        let (mut client, mut server) =
            (client_of(&thief, forged(&thief, &key, chain)), beta.answer());
        shake(&mut client, &mut server).unwrap();
        assert_eq!(beta.peer(&server), Some(Err(reason)));
    }
    // Too many, or too long ones, do not get that far.
    for chain in [vec![own[0].clone(); 5], vec![own[0].clone(), vec![0x30; 20_000].into()]] {
        let (mut client, mut server) =
            (client_of(&thief, forged(&thief, &key, chain)), beta.answer());
        let found = errors(&mut client, &mut server).1;
        let refused = matches!(found, Some(TlsError::Refused(Stranger::Malformed { .. })));
        assert!(refused && server.is_handshaking(), "{found:?}");
    }
    let mut config = forged(&thief, &key, Vec::new());
    config.client_auth_cert_resolver = Arc::new(NoCertificates);
    let (mut client, mut server) = (client_of(&thief, config), beta.answer());
    assert_eq!(errors(&mut client, &mut server).1, Some(TlsError::NoCertificate));
}

/// A client without certificates.
#[derive(Debug)]
struct NoCertificates;

impl rustls::client::ResolvesClientCert for NoCertificates {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

#[test]
fn changed_bytes_and_garbage_are_refused() {
    let (alpha, beta) = pair();
    let broken = |result: Result<(), TlsError>| match result {
        Err(TlsError::Broken { .. } | TlsError::OldVersion { .. } | TlsError::Alert { .. }) => {}
        other => panic!("{other:?}"),
    };
    for garbage in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64], &[0xff; 64], &[0x16, 3, 1, 0xff, 0xff]]
    {
        broken(beta.answer().take(&mut &garbage[..], &mut Vec::new()));
        broken(alpha.call("b").unwrap().take(&mut &garbage[..], &mut Vec::new()));
    }
    // Each changed byte after the handshake is noticed, but for the constant type and version of a
    // record, which nothing depends on.
    let (mut client, mut server) = connect(&alpha, &beta);
    client.put(b"pay 100");
    let mut network = Vec::new();
    client.output(&mut network);
    for at in 0..network.len() {
        let (mut client, mut server) = connect(&alpha, &beta);
        client.put(b"pay 100");
        let (mut network, mut plain) = (Vec::new(), Vec::new());
        client.output(&mut network);
        network[at] ^= 1;
        let taken = server.take(&mut &network[..], &mut plain);
        match at {
            0..3 => assert!(taken.is_err() || plain == b"pay 100", "{at}: {taken:?}"),
            // A longer record only waits for its rest.
            3..5 => assert!(plain.is_empty(), "{at}: {taken:?}"),
            _ => assert!(taken.is_err() && plain.is_empty(), "{at}: {taken:?}"),
        }
    }
    assert_eq!(server.take(&mut &network[..], &mut Vec::new()), Ok(()));
    // The same bytes again are no message.
    broken(server.take(&mut &network[..], &mut Vec::new()));
}

/// A first flight of a client with TLS 1.2 alone, which has no extension `supported_versions`.
fn hello_of_tls12() -> Vec<u8> {
    let extensions: &[u8] = &[
        0, 10, 0, 4, 0, 2, 0, 29, // groups: X25519
        0, 11, 0, 2, 1, 0, // points: uncompressed
        0, 13, 0, 4, 0, 2, 8, 7, // signatures: Ed25519
    ];
    let mut hello = vec![3, 3];
    hello.extend([7; 32]);
    hello.extend([0, 0, 2, 0xc0, 0x2b, 1, 0]); // no session, one suite, no compression
    hello.extend((extensions.len() as u16).to_be_bytes());
    hello.extend(extensions);
    record(1, &hello)
}

/// A handshake message in one record.
fn record(kind: u8, message: &[u8]) -> Vec<u8> {
    let mut out = vec![22, 3, 3];
    out.extend((message.len() as u16 + 4).to_be_bytes());
    out.extend([kind, 0]);
    out.extend((message.len() as u16).to_be_bytes());
    out.extend(message);
    out
}

#[test]
fn a_peer_without_tls_1_3_is_refused() {
    let (alpha, beta) = pair();
    let mut server = beta.answer();
    let error = server.take(&mut &hello_of_tls12()[..], &mut Vec::new()).unwrap_err();
    assert!(matches!(error, TlsError::OldVersion { .. }), "{error:?}");
    // The alert reaches the peer as one about the version.
    assert_eq!(carry(&mut server, &mut alpha.call("b").unwrap()).unwrap_err().to_string(), {
        TlsError::OldVersion { what: "ProtocolVersion".into() }.to_string()
    });
    let mut hello = vec![3, 3];
    hello.extend([7; 32]);
    hello.extend([0, 0xc0, 0x2b, 0]);
    let mut client = alpha.call("b").unwrap();
    let error = client.take(&mut &record(2, &hello)[..], &mut Vec::new()).unwrap_err();
    assert!(matches!(error, TlsError::OldVersion { .. }), "{error:?}");
}

#[test]
fn a_peer_with_another_protocol_inside_is_refused() {
    let (alpha, beta) = pair();
    for protocols in [vec![b"upcall/2".to_vec()], Vec::new()] {
        let (key, chain) = alpha.key();
        let mut config = forged(&alpha, &key, chain);
        config.alpn_protocols = protocols.clone();
        let (mut client, mut server) = (client_of(&alpha, config), beta.answer());
        client.put(b"x");
        let found = errors(&mut client, &mut server);
        assert_eq!(found.1, Some(TlsError::OtherProtocol));
        assert!(beta.peer(&server).is_none());
        // A server that answers without a protocol, or with a wrong one.
        let mut config = ServerConfig::clone(beta.store.credentials().unwrap().server_config());
        config.alpn_protocols = protocols;
        let connection = ServerConnection::new(Arc::new(config)).unwrap();
        let credentials = beta.store.credentials().unwrap();
        let mut server = TlsChannel::new(connection.into(), &credentials, None);
        let mut client = alpha.call("b").unwrap();
        let found = errors(&mut client, &mut server);
        assert_eq!(found.0, Some(TlsError::OtherProtocol));
        assert!(alpha.peer(&client).is_none());
    }
}
