//! What a host proves itself with, and whom it trusts: one state of the files, ready for TLS.

use super::certificate::{ALGORITHMS, IdentityCertificate};
use super::error::IdentityError;
use super::fingerprint::Fingerprint;
use super::name::HostName;
use super::stranger::{PeerRole, Stranger};
use super::trust::TrustList;
use super::verifier::{HostVerifier, server_name};
use rustls::client::{ClientSessionMemoryCache, ClientSessionStore, Resumption};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{ClientConfig, Error, ServerConfig};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The protocol inside of TLS, as both sides name it in the handshake (ALPN).
pub const PROTOCOL: &[u8] = b"upcall/1";

/// Minimum number of servers whose tickets for resumption a client keeps.
const FEWEST_SESSIONS: usize = 64;

/// A clock, which tests replace.
#[derive(Clone)]
pub struct HostClock(Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl HostClock {
    /// Makes a clock of a function.
    pub fn new(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The time.
    pub fn now(&self) -> SystemTime {
        (self.0)()
    }
}

impl Default for HostClock {
    fn default() -> Self {
        Self::new(SystemTime::now)
    }
}

impl fmt::Debug for HostClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostClock")
    }
}

impl TimeProvider for HostClock {
    fn current_time(&self) -> Option<UnixTime> {
        let since = self.now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
        Some(UnixTime::since_unix_epoch(since))
    }
}

/// The key of a host with its certificates: that of the host and that of its identity.
pub struct HostKey {
    /// The host's private key.
    pub key: PrivateKeyDer<'static>,
    /// The certificate that the identity signed.
    pub certificate: CertificateDer<'static>,
    /// The certificate of the identity.
    pub identity: IdentityCertificate,
}

impl HostKey {
    /// The last second in which the certificate of the key is valid.
    ///
    /// # Errors
    /// The identity has not signed the certificate.
    pub fn expires(&self) -> Result<SystemTime, IdentityError> {
        let checked = self.identity.check_host(&self.certificate, PeerRole::Server);
        let valid = checked.map_err(|_| IdentityError::Library {
            error: "the identity has not signed the host's certificate".into(),
        })?;
        Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(valid.to))
    }
}

/// A host's key and the hosts that it trusts, as the files had them at one time.
///
/// All connections of one `Credentials` share their tickets, so a further connection to the same
/// host is resumed without certificates. A change of the files makes new `Credentials`
/// ([`super::HostStore::credentials`]), which begin without tickets.
pub struct Credentials {
    fingerprint: Fingerprint,
    trust: Arc<TrustList>,
    client: Arc<ClientConfig>,
    sessions: Arc<ClientSessionMemoryCache>,
    server: Arc<ServerConfig>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("fingerprint", &self.fingerprint)
            .field("trust", &self.trust)
            .finish_non_exhaustive()
    }
}

impl Credentials {
    /// Prepares TLS with a host's key.
    ///
    /// # Errors
    /// The key does not belong to the certificate, or the kernel gives no random numbers.
    pub fn new(own: HostKey, trust: TrustList, clock: &HostClock) -> Result<Self, IdentityError> {
        let fingerprint = own.identity.fingerprint();
        let trust = Arc::new(trust);
        let verifier = Arc::new(HostVerifier::new(trust.clone()));
        let room = trust.hosts().count().max(FEWEST_SESSIONS);
        let sessions = Arc::new(ClientSessionMemoryCache::new(room));
        let (client, server) = configure(own, &verifier, sessions.clone(), clock)
            .map_err(|error| IdentityError::Library { error: error.to_string() })?;
        let (client, server) = (Arc::new(client), Arc::new(server));
        Ok(Self { fingerprint, trust, client, sessions, server })
    }

    /// The fingerprint of this host's identity.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The hosts that are trusted.
    pub fn trust(&self) -> &TrustList {
        &self.trust
    }

    /// Judges the certificates of a peer, after TLS has proved that it has their key.
    ///
    /// # Errors
    /// The reason why the peer is not accepted.
    pub fn judge(
        &self,
        chain: &[CertificateDer<'_>],
        role: PeerRole,
        now: SystemTime,
    ) -> Result<HostName, Stranger> {
        self.trust.judge(chain, role, now)
    }

    /// TLS as a client.
    pub fn client_config(&self) -> &Arc<ClientConfig> {
        &self.client
    }

    /// TLS as a server.
    pub fn server_config(&self) -> &Arc<ServerConfig> {
        &self.server
    }

    /// Drops all tickets for a server, so that the next connection to it proves its identity again.
    pub fn forget_sessions(&self, identity: Fingerprint) {
        let name = server_name(identity);
        while self.sessions.take_tls13_ticket(&name).is_some() {}
    }
}

fn configure(
    own: HostKey,
    verifier: &Arc<HostVerifier>,
    sessions: Arc<ClientSessionMemoryCache>,
    clock: &HostClock,
) -> Result<(ClientConfig, ServerConfig), Error> {
    let provider = Arc::new(CryptoProvider {
        signature_verification_algorithms: ALGORITHMS,
        ..ring::default_provider()
    });
    let chain = vec![own.certificate, own.identity.der().clone()];
    let clock: Arc<dyn TimeProvider> = Arc::new(clock.clone());
    let mut client = ClientConfig::builder_with_details(provider.clone(), clock.clone())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier.clone())
        .with_client_auth_cert(chain.clone(), own.key.clone_key())?;
    client.alpn_protocols = vec![PROTOCOL.into()];
    // The fingerprint that stands for a name is no name, and need not go out in the clear.
    client.enable_sni = false;
    client.resumption = Resumption::store(sessions);
    let mut server = ServerConfig::builder_with_details(provider, clock)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier.clone())
        .with_single_cert(chain, own.key)?;
    server.alpn_protocols = vec![PROTOCOL.into()];
    // Tickets hold the session, so a server keeps no memory for clients that have gone. No early
    // data (`max_early_data_size` is 0): it could be replayed.
    server.ticketer = ring::Ticketer::new()?;
    Ok((client, server))
}
