//! Readers of certificates that another host sends, or that a person was given as a file.

use std::path::Path;
use std::time::{Duration, SystemTime};
use upcall_net::identity::{
    HostName, HostPermission, IdentityCertificate, PeerRole, Stranger, TrustList, TrustedHost,
};

/// The certificates of a host and of its identity, made by `upcall host init`. Their keys are lost.
const CHAIN: &str = include_str!("hosts.pem");

const END: &str = "-----END CERTIFICATE-----\n";

/// Judges a chain of certificates, each after its length in two bytes. Only the unchanged
/// certificate of a host is accepted. Then reads the same bytes as a file.
pub(super) fn hosts(bytes: &[u8]) {
    let (host, trusted) = known();
    let valid = trusted.certificate.expires() - Duration::from_secs(3_652 * 86_400);
    let list = TrustList::new(vec![trusted.clone()], Default::default()).expect("one host");
    let (mut chain, mut rest) = (Vec::new(), bytes);
    while let Some((length, after)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes(*length)).min(after.len());
        let (one, after) = after.split_at(length);
        chain.push(one.into());
        rest = after;
    }
    for role in [PeerRole::Client, PeerRole::Server] {
        for now in [valid, SystemTime::UNIX_EPOCH, valid + Duration::from_secs(1 << 33)] {
            if let Ok(name) = list.judge(&chain, role, now) {
                assert!(name == trusted.name && *chain[0] == *host && now == valid);
            }
        }
    }
    let text = String::from_utf8_lossy(bytes);
    if let Ok(read) = TrustedHost::read(trusted.name, Path::new("file"), &text) {
        let again = TrustedHost::read(read.name.clone(), Path::new("file"), &read.text());
        assert_eq!(again.expect("what was written"), read);
    }
}

/// The host's own certificate as DER, and its identity as a trusted host.
fn known() -> (Vec<u8>, TrustedHost) {
    let [host, identity] = parts();
    let certificate = IdentityCertificate::from_der(&identity.into()).expect("an identity");
    let name = "known".parse::<HostName>().expect("a name");
    let addresses = vec!["10.0.0.2:7000".parse().expect("an address")];
    (host, TrustedHost { name, may: HostPermission::Both, addresses, certificate })
}

/// Both certificates as DER.
fn parts() -> [Vec<u8>; 2] {
    let (host, identity) = CHAIN.split_at(CHAIN.find(END).expect("two certificates") + END.len());
    [host, identity].map(der)
}

/// Decodes base64 between the lines of PEM.
fn der(pem: &str) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = pem.lines().filter(|line| !line.starts_with('-')).flat_map(str::bytes);
    let digits = digits.filter_map(|digit| DIGITS.iter().position(|known| *known == digit));
    let (mut out, mut held, mut bits) = (Vec::new(), 0_u32, 0);
    for digit in digits {
        (held, bits) = (held << 6 | digit as u32, bits + 6);
        if bits >= 8 {
            bits -= 8;
            out.push((held >> bits) as u8);
            held &= (1 << bits) - 1;
        }
    }
    out
}

/// Judges the first sample at a time at which its certificates are valid.
pub(super) fn first_verdict() -> Result<HostName, Stranger> {
    let (host, trusted) = known();
    let [_, identity] = parts();
    let now = trusted.certificate.expires() - Duration::from_secs(3_652 * 86_400);
    let list = TrustList::new(vec![trusted], Default::default()).expect("one host");
    list.judge(&[host.into(), identity.into()], PeerRole::Client, now)
}

/// A chain that is accepted, others that are not, and a file.
pub(super) fn hosts_samples() -> Vec<Vec<u8>> {
    let [host, identity] = parts();
    let chain = |parts: &[&[u8]]| {
        let sized = parts.iter().map(|part| [&(part.len() as u16).to_le_bytes(), *part].concat());
        sized.collect::<Vec<_>>().concat()
    };
    let (_, trusted) = known();
    vec![
        chain(&[&host, &identity]),
        chain(&[&identity, &host]),
        chain(&[&host]),
        chain(&[&host, &identity, &host, &identity, &host]),
        trusted.text().into_bytes(),
    ]
}
