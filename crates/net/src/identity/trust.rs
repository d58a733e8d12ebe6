//! The hosts that are trusted, and the judgement of a peer by them. Without I/O.

use super::certificate::{
    HostFault, IdentityCertificate, LONGEST_CHAIN, MOST_IN_CHAIN, OutOfTime, ValidTime,
};
use super::fingerprint::Fingerprint;
use super::name::HostName;
use super::permission::TrustedHost;
use super::stranger::{CertificateKind, PeerRole, Stranger};
use rustls::pki_types::CertificateDer;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::SystemTime;

/// Trusted hosts and revoked identities, as the files had them at one time.
#[derive(Debug, Default)]
pub struct TrustList {
    hosts: BTreeMap<HostName, TrustedHost>,
    names: HashMap<Fingerprint, HostName>,
    revoked: BTreeSet<Fingerprint>,
}

impl TrustList {
    /// Makes the list.
    ///
    /// # Errors
    /// Two names have the same identity. They are returned.
    pub fn new(
        hosts: Vec<TrustedHost>,
        revoked: BTreeSet<Fingerprint>,
    ) -> Result<Self, (HostName, HostName)> {
        let mut own = Self { revoked, ..Self::default() };
        for host in hosts {
            let name = host.name.clone();
            if let Some(other) = own.names.insert(host.certificate.fingerprint(), name.clone()) {
                return Err((other, name));
            }
            own.hosts.insert(name, host);
        }
        Ok(own)
    }

    /// The trusted hosts by their names. An identity among them may be revoked.
    pub fn hosts(&self) -> impl Iterator<Item = &TrustedHost> {
        self.hosts.values()
    }

    /// The host with this name.
    pub fn host(&self, name: &HostName) -> Option<&TrustedHost> {
        self.hosts.get(name)
    }

    /// The host with this identity.
    pub fn host_of(&self, fingerprint: Fingerprint) -> Option<&TrustedHost> {
        self.hosts.get(self.names.get(&fingerprint)?)
    }

    /// The revoked identities.
    pub fn revoked(&self) -> &BTreeSet<Fingerprint> {
        &self.revoked
    }

    /// Checks that a trusted host may play this part at this time, but for its host certificate.
    ///
    /// # Errors
    /// The reason why not.
    pub fn admit(
        &self,
        host: &TrustedHost,
        role: PeerRole,
        now: SystemTime,
    ) -> Result<(), Stranger> {
        let fingerprint = host.certificate.fingerprint();
        if self.revoked.contains(&fingerprint) {
            return Err(Stranger::Revoked { fingerprint });
        }
        check_time(host, host.certificate.valid(), CertificateKind::Identity, now)?;
        if !host.may.allows(role) {
            return Err(Stranger::NotAllowed { name: host.name.clone(), fingerprint, role });
        }
        Ok(())
    }

    /// Judges the certificates that a peer sent. That it has the key of the first one is for TLS
    /// to prove.
    ///
    /// # Errors
    /// The reason why the peer is not accepted.
    pub fn judge(
        &self,
        chain: &[CertificateDer<'_>],
        role: PeerRole,
        now: SystemTime,
    ) -> Result<HostName, Stranger> {
        check_length(chain)?;
        let [certificate, identity] = chain else {
            let what = "another number of certificates than two";
            return Err(Stranger::Malformed { what });
        };
        let malformed = |what| Stranger::Malformed { what };
        let identity = IdentityCertificate::from_der(identity).map_err(malformed)?;
        let fingerprint = identity.fingerprint();
        let host = self.host_of(fingerprint);
        // The trusted copy decides, if there is one: its key is the same.
        let identity = host.map_or(&identity, |host| &host.certificate);
        let valid = identity.check_host(certificate, role).map_err(|fault| match fault {
            HostFault::Malformed => malformed("a malformed certificate of a host"),
            HostFault::NotSigned => Stranger::NotSigned { claimed: fingerprint },
        })?;
        if self.revoked.contains(&fingerprint) {
            return Err(Stranger::Revoked { fingerprint });
        }
        let host = host.ok_or(Stranger::Unknown { fingerprint })?;
        self.admit(host, role, now)?;
        check_time(host, valid, CertificateKind::Host, now)?;
        Ok(host.name.clone())
    }
}

/// Checks the bounds of what a peer sent, before anything else reads it.
///
/// # Errors
/// [`Stranger::Malformed`]
pub fn check_length(chain: &[CertificateDer<'_>]) -> Result<(), Stranger> {
    let what = if chain.is_empty() {
        "no certificate"
    } else if chain.len() > MOST_IN_CHAIN {
        "more certificates than allowed"
    } else if chain.iter().map(|one| one.len()).sum::<usize>() > LONGEST_CHAIN {
        "longer certificates than allowed"
    } else {
        return Ok(());
    };
    Err(Stranger::Malformed { what })
}

fn check_time(
    host: &TrustedHost,
    valid: ValidTime,
    what: CertificateKind,
    now: SystemTime,
) -> Result<(), Stranger> {
    let (name, fingerprint) = (host.name.clone(), host.certificate.fingerprint());
    valid.check(now).map_err(|fault| match fault {
        OutOfTime::Early(until) => Stranger::NotYetValid { name, fingerprint, until },
        OutOfTime::Late(since) => Stranger::Expired { name, fingerprint, since, what },
    })
}
