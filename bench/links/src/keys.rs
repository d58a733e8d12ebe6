//! The certificate of the trial, and what both sides make of it.

use crate::measure::{Failure, Outcome};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// The name in the certificate.
pub const NAME: &str = "trial";

/// The protocol that both sides name, which QUIC requires.
const PROTOCOL: &[u8] = b"trial";

/// Writes a certificate and its key into `folder`.
pub fn make(folder: &Path) -> Outcome {
    let made = rcgen::generate_simple_self_signed(vec![NAME.into()])?;
    fs::create_dir_all(folder)?;
    fs::write(folder.join("certificate.der"), made.cert.der())?;
    fs::write(folder.join("key.der"), made.key_pair.serialize_der())?;
    Ok(())
}

/// A certificate, its key, and the roots that consist of that certificate.
type Keys = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>, RootCertStore);

fn read(folder: &Path) -> Result<Keys, Failure> {
    let certificate = CertificateDer::from(fs::read(folder.join("certificate.der"))?);
    let key = PrivatePkcs8KeyDer::from(fs::read(folder.join("key.der"))?);
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone())?;
    Ok((vec![certificate], key.into(), roots))
}

pub fn of_server(folder: &Path) -> Result<ServerConfig, Failure> {
    let (certificates, key, roots) = read(folder)?;
    let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build()?;
    let mut config = ServerConfig::builder_with_protocol_versions(&[&TLS13])
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates, key)?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(config)
}

pub fn of_client(folder: &Path) -> Result<ClientConfig, Failure> {
    let (certificates, key, roots) = read(folder)?;
    let mut config = ClientConfig::builder_with_protocol_versions(&[&TLS13])
        .with_root_certificates(roots)
        .with_client_auth_cert(certificates, key)?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(config)
}
