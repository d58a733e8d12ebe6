//! The certificate checks of both sides of a TLS connection.

use super::certificate::ALGORITHMS;
use super::fingerprint::Fingerprint;
use super::stranger::{PeerRole, Stranger};
use super::trust::{TrustList, check_length};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::verify_tls13_signature;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    PeerIncompatible, SignatureScheme,
};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The identity of a server as a name, by which rustls keeps tickets.
pub fn server_name(identity: Fingerprint) -> ServerName<'static> {
    let hex = identity.hex();
    let name = format!("x{}.x{}", &hex[..32], &hex[32..]);
    ServerName::try_from(name).expect("two labels of letters and digits")
}

/// Reads what [`server_name`] made.
fn identity_of(name: &ServerName<'_>) -> Option<Fingerprint> {
    let name = name.to_str();
    let (first, second) = name.strip_prefix('x')?.split_once(".x")?;
    Fingerprint::from_hex(&format!("{first}{second}"))
}

/// The verifier of both sides.
///
/// A client refuses every server but the expected one. A server lets any client prove that it has
/// the key of its certificate, and judges it when the handshake is over: only then can it tell the
/// client the reason.
#[derive(Debug)]
pub struct HostVerifier {
    trust: Arc<TrustList>,
}

impl HostVerifier {
    /// Makes a verifier that trusts these hosts.
    pub fn new(trust: Arc<TrustList>) -> Self {
        Self { trust }
    }

    fn check_server(
        &self,
        chain: &[CertificateDer<'_>],
        expected: &ServerName<'_>,
        now: SystemTime,
    ) -> Result<(), Stranger> {
        let called = identity_of(expected).and_then(|identity| self.trust.host_of(identity));
        let judged = self.trust.judge(chain, PeerRole::Server, now);
        let Some(called) = called else {
            return judged.and(Err(Stranger::Malformed { what: "an answer for no known host" }));
        };
        let found = match judged {
            Ok(name) if name == called.name => return Ok(()),
            Ok(name) => self.trust.host(&name).map(|host| host.certificate.fingerprint()),
            Err(Stranger::Unknown { fingerprint }) => Some(fingerprint),
            Err(stranger) => return Err(stranger),
        };
        let found = found.unwrap_or(called.certificate.fingerprint());
        Err(Stranger::NotExpected { expected: called.name.clone(), found })
    }
}

fn refused(stranger: Stranger) -> Error {
    CertificateError::Other(OtherError(Arc::new(stranger))).into()
}

/// The certificates of a peer within their bounds.
fn chain_of<'a>(
    first: &'a CertificateDer<'_>,
    rest: &'a [CertificateDer<'_>],
) -> Result<Vec<CertificateDer<'a>>, Error> {
    let chain = [first].into_iter().chain(rest).map(|one| CertificateDer::from(one.as_ref()));
    let chain: Vec<_> = chain.collect();
    check_length(&chain).map_err(refused)?;
    Ok(chain)
}

fn system_time(time: UnixTime) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(time.as_secs())
}

impl ServerCertVerifier for HostVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let chain = chain_of(end_entity, intermediates)?;
        self.check_server(&chain, server_name, system_time(now)).map_err(refused)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls13RequiredForQuic.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &ALGORITHMS)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ALGORITHMS.supported_schemes()
    }
}

impl ClientCertVerifier for HostVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        chain_of(end_entity, intermediates)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        ServerCertVerifier::verify_tls12_signature(self, message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &ALGORITHMS)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ALGORITHMS.supported_schemes()
    }
}
