//! Makes keys and certificates.

use super::certificate::seconds;
use super::error::IdentityError;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519, date_time_ymd,
};
use std::time::{Duration, SystemTime};

const DAY: u64 = 86_400;
/// Time before it was made in which a certificate is valid already, because clocks differ, in
/// seconds.
const BACKDATED: u64 = 2 * DAY;
/// Time in which an identity is valid, in seconds.
const IDENTITY_VALID: u64 = 3_652 * DAY;
/// Time in which a host's certificate is valid, in seconds.
const HOST_VALID: u64 = 90 * DAY;

/// A new private key with its certificate, both as PEM.
pub struct Issued {
    /// The private key.
    pub key: String,
    /// Its certificate.
    pub certificate: String,
}

impl From<rcgen::Error> for IdentityError {
    fn from(error: rcgen::Error) -> Self {
        Self::Library { error: error.to_string() }
    }
}

/// Makes an identity: a key, and a certificate that it signs itself.
pub fn issue_identity(now: SystemTime) -> Result<Issued, IdentityError> {
    let key = KeyPair::generate_for(&PKCS_ED25519)?;
    let certificate = identity_params(seconds(now)).self_signed(&key)?;
    Ok(Issued { key: key.serialize_pem(), certificate: certificate.pem() })
}

/// Makes a host's key, and a certificate that the identity's key signs. It expires with the
/// identity at the latest.
pub fn issue_host(
    identity_key: &str,
    identity_expires: SystemTime,
    now: SystemTime,
) -> Result<Issued, IdentityError> {
    let key = KeyPair::generate_for(&PKCS_ED25519)?;
    let signer = KeyPair::from_pem(identity_key)?;
    let now = seconds(now);
    let issuer = Issuer::new(identity_params(now), &signer);
    let to = now.saturating_add(HOST_VALID).min(seconds(identity_expires));
    let mut params = params("Upcall host", now, to);
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(Issued { key: key.serialize_pem(), certificate: certificate.pem() })
}

fn identity_params(now: u64) -> CertificateParams {
    let mut params = params("Upcall identity", now, now.saturating_add(IDENTITY_VALID));
    // It signs certificates of hosts, and of no further authority.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

/// `now` and `to` are in seconds since 1970.
fn params(subject: &str, now: u64, to: u64) -> CertificateParams {
    /// The last second that a certificate can express, with some to spare.
    const LAST: u64 = 253_370_764_799;
    let time = |at: u64| date_time_ymd(1970, 1, 1) + Duration::from_secs(at.min(LAST));
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, subject);
    params.not_before = time(now.saturating_sub(BACKDATED));
    params.not_after = time(to);
    params
}
