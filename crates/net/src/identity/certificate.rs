//! The two kinds of certificates, as `webpki` checks them.
//!
//! An *identity certificate* is self-signed, and belongs to a long-lived Ed25519 key. A *host
//! certificate* is signed by it, and belongs to the key that TLS uses. No other shape is accepted:
//! no intermediate certificates, no other kinds of keys. A check takes the time as an argument.

use super::error::IdentityError;
use super::fingerprint::Fingerprint;
use super::stranger::PeerRole;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::SignatureScheme;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::pem::{PemObject, SectionKind};
use rustls::pki_types::{CertificateDer, UnixTime};
use std::time::{Duration, SystemTime};
use webpki::{EndEntityCert, KeyUsage};

/// Maximum length of the certificates of a chain together, in bytes.
pub const LONGEST_CHAIN: usize = 16 << 10;
/// Maximum number of certificates in a chain.
pub const MOST_IN_CHAIN: usize = 4;

/// The signatures that are accepted: Ed25519 alone.
pub static ALGORITHMS: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[webpki::ring::ED25519],
    mapping: &[(SignatureScheme::ED25519, &[webpki::ring::ED25519])],
};

/// The DER of an Ed25519 public key up to its 32 bytes (RFC 8410, section 4).
const ED25519_KEY: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// The time in which a certificate is valid, in seconds since 1970, with both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValidTime {
    /// The first second.
    pub from: u64,
    /// The last second.
    pub to: u64,
}

/// A time outside of a certificate's validity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfTime {
    /// The certificate is valid in this time.
    Early(Duration),
    /// The certificate expired this time ago.
    Late(Duration),
}

impl ValidTime {
    /// Checks that the time is within.
    ///
    /// # Errors
    /// The distance to the validity.
    pub fn check(self, now: SystemTime) -> Result<(), OutOfTime> {
        let now = seconds(now);
        match (now < self.from, now > self.to) {
            (true, _) => Err(OutOfTime::Early(Duration::from_secs(self.from - now))),
            (_, true) => Err(OutOfTime::Late(Duration::from_secs(now - self.to))),
            _ => Ok(()),
        }
    }

    /// Reads the validity of a certificate.
    ///
    /// `webpki` has no accessor for it, but reports both ends when a check at another time fails.
    /// It checks the time before all else.
    fn of(certificate: &EndEntityCert<'_>) -> Option<Self> {
        let at = |time: u64| {
            let time = UnixTime::since_unix_epoch(Duration::from_secs(time));
            let usage = KeyUsage::client_auth();
            certificate.verify_for_usage(ALGORITHMS.all, &[], &[], time, usage, None, None).err()
        };
        let from = match at(0)? {
            webpki::Error::CertNotValidYet { not_before, .. } => not_before.as_secs(),
            _ => 0,
        };
        match at(u64::MAX)? {
            webpki::Error::CertExpired { not_after, .. } if not_after.as_secs() >= from => {
                Some(Self { from, to: not_after.as_secs() })
            }
            _ => None,
        }
    }
}

/// Seconds since 1970; an earlier time counts as 1970.
pub fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A certificate of an identity key that was checked but for its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityCertificate {
    der: CertificateDer<'static>,
    fingerprint: Fingerprint,
    valid: ValidTime,
}

impl IdentityCertificate {
    /// Reads a certificate that came from a peer.
    ///
    /// # Errors
    /// What was found instead.
    pub fn from_der(der: &CertificateDer<'_>) -> Result<Self, &'static str> {
        const MALFORMED: &str = "a malformed certificate of an identity";
        let certificate = EndEntityCert::try_from(der).map_err(|_| MALFORMED)?;
        let key = certificate.subject_public_key_info();
        if key.len() != ED25519_KEY.len() + 32 || !key.starts_with(&ED25519_KEY) {
            return Err("a certificate of an identity whose key is no Ed25519 key");
        }
        let valid = ValidTime::of(&certificate).ok_or(MALFORMED)?;
        // Only a certificate that may sign others is refused as that of a host.
        let (time, usage) = (unix(valid.from), KeyUsage::client_auth());
        match certificate.verify_for_usage(ALGORITHMS.all, &[], &[], time, usage, None, None) {
            Err(webpki::Error::CaUsedAsEndEntity) => {}
            _ => return Err("the certificate of a host in place of that of its identity"),
        }
        let fingerprint = Fingerprint::of_key(&key);
        Ok(Self { fingerprint, valid, der: der.clone().into_owned() })
    }

    /// Reads the text that `upcall host show --pem` prints.
    ///
    /// # Errors
    /// [`IdentityError::BadCertificate`], also for a text with a private key: its owner must not
    /// hand that out.
    pub fn from_pem(text: &[u8]) -> Result<Self, IdentityError> {
        let bad = |what: String| IdentityError::BadCertificate { what };
        let mut found = Vec::new();
        for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(text).take(MOST_IN_CHAIN) {
            match section.map_err(|_| bad("this is malformed PEM".into()))? {
                (SectionKind::Certificate, der) => found.push(CertificateDer::from(der)),
                (SectionKind::PrivateKey, _) => {
                    return Err(bad("this holds a private key, which has to stay secret".into()));
                }
                _ => {}
            }
        }
        match &found[..] {
            [] => Err(bad("no certificate was found".into())),
            [one] => Self::from_der(one).map_err(|what| bad(format!("this is {what}"))),
            _ => Err(bad(format!("{} certificates were found in place of one", found.len()))),
        }
    }

    /// The fingerprint of the identity key.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The last second in which the certificate is valid.
    pub fn expires(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(self.valid.to)
    }

    /// The time in which the certificate is valid.
    pub fn valid(&self) -> ValidTime {
        self.valid
    }

    /// The certificate as DER.
    pub fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// The certificate as PEM.
    pub fn pem(&self) -> String {
        let digits = STANDARD.encode(&self.der);
        let mut out = String::from("-----BEGIN CERTIFICATE-----\n");
        for at in (0..digits.len()).step_by(64) {
            out += &digits[at..digits.len().min(at + 64)];
            out.push('\n');
        }
        out + "-----END CERTIFICATE-----\n"
    }

    /// Checks that this identity has signed a host's certificate. Returns the time in which that
    /// is valid.
    ///
    /// # Errors
    /// The certificate is malformed, or not signed by this identity for this role.
    pub fn check_host(
        &self,
        host: &CertificateDer<'_>,
        role: PeerRole,
    ) -> Result<ValidTime, HostFault> {
        let certificate = EndEntityCert::try_from(host).map_err(|_| HostFault::Malformed)?;
        let valid = ValidTime::of(&certificate).ok_or(HostFault::Malformed)?;
        let anchor = webpki::anchor_from_trusted_cert(&self.der).map_err(|_| HostFault::Malformed);
        let usage = match role {
            PeerRole::Client => KeyUsage::client_auth(),
            PeerRole::Server => KeyUsage::server_auth(),
        };
        // The caller judges the time, so that an impostor is named as one also when it is late.
        let (anchors, time) = ([anchor?], unix(valid.from));
        certificate
            .verify_for_usage(ALGORITHMS.all, &anchors, &[], time, usage, None, None)
            .map_err(|_| HostFault::NotSigned)?;
        Ok(valid)
    }
}

/// Why a certificate is none of a host with this identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostFault {
    /// The certificate cannot be read.
    Malformed,
    /// The identity has not signed it, or not for this role.
    NotSigned,
}

fn unix(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}
