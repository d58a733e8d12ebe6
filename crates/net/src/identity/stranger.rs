//! Why a peer's certificates are not accepted.

use super::fingerprint::Fingerprint;
use super::name::HostName;
use std::fmt;
use std::time::Duration;

/// The part that the peer of a connection plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRole {
    /// The peer calls servers here, and needs the permission `call`.
    Client,
    /// The peer serves calls from here, and needs the permission `serve`.
    Server,
}

/// A peer that is not accepted, and why.
///
/// The text is safe to show to the peer, too: it names fingerprints, and labels that this user
/// chose for the peer itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stranger {
    /// No trusted identity has this fingerprint.
    Unknown {
        /// The identity that the peer proved.
        fingerprint: Fingerprint,
    },
    /// The identity was revoked.
    Revoked {
        /// The identity that the peer proved.
        fingerprint: Fingerprint,
    },
    /// The host's certificate has expired, or that of its identity.
    Expired {
        /// The label of the host.
        name: HostName,
        /// The identity that the peer proved.
        fingerprint: Fingerprint,
        /// The time since it expired.
        since: Duration,
        /// What has expired.
        what: CertificateKind,
    },
    /// The host's certificate, or that of its identity, is not valid yet.
    NotYetValid {
        /// The label of the host.
        name: HostName,
        /// The identity that the peer proved.
        fingerprint: Fingerprint,
        /// The time until it is valid.
        until: Duration,
    },
    /// The host's certificate is not signed by the identity that was sent with it.
    NotSigned {
        /// The identity that was claimed, and not proved.
        claimed: Fingerprint,
    },
    /// A trusted host that may not do what it tries.
    NotAllowed {
        /// The label of the host.
        name: HostName,
        /// The identity that the peer proved.
        fingerprint: Fingerprint,
        /// What the peer tries to be.
        role: PeerRole,
    },
    /// The host that answers is not the called host.
    NotExpected {
        /// The label of the host that was called.
        expected: HostName,
        /// The identity of the host that answers.
        found: Fingerprint,
    },
    /// The peer sent no certificates, too many bytes of them, or malformed ones.
    Malformed {
        /// What was found.
        what: &'static str,
    },
}

/// Which of a host's two certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateKind {
    /// That of the host key, which `upcall host renew` replaces.
    Host,
    /// That of the identity key.
    Identity,
}

impl fmt::Display for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { fingerprint } => write!(
                f,
                "the identity {fingerprint} is not trusted here: compare the fingerprint, then run \
                 `upcall host trust NAME FILE`"
            ),
            Self::Revoked { fingerprint } => write!(
                f,
                "the identity {fingerprint} was revoked here: make a new one on that host, or run \
                 `upcall host trust --again`"
            ),
            Self::Expired { name, fingerprint, since, what: CertificateKind::Host } => write!(
                f,
                "the certificate of {name} ({fingerprint}) expired {} ago: run `upcall host renew` \
                 on {name}, and compare the clocks",
                WholeUnits(*since)
            ),
            Self::Expired { name, fingerprint, since, what: CertificateKind::Identity } => write!(
                f,
                "the identity of {name} ({fingerprint}) expired {} ago: make a new one there with \
                 `upcall host init`, and trust it here",
                WholeUnits(*since)
            ),
            Self::NotYetValid { name, fingerprint, until } => write!(
                f,
                "the certificate of {name} ({fingerprint}) is valid only in {}: set the clocks of \
                 both hosts",
                WholeUnits(*until)
            ),
            Self::NotSigned { claimed } => write!(
                f,
                "the peer claims the identity {claimed}, and its certificate is not signed by it: \
                 the peer is an impostor, or its files are damaged"
            ),
            Self::NotAllowed { name, fingerprint, role: PeerRole::Client } => write!(
                f,
                "{name} ({fingerprint}) is trusted, but may not call servers here: see `upcall \
                 host trust --may call`"
            ),
            Self::NotAllowed { name, fingerprint, role: PeerRole::Server } => write!(
                f,
                "{name} ({fingerprint}) is trusted, but may not be called from here: see `upcall \
                 host trust --may serve`"
            ),
            Self::NotExpected { expected, found } => write!(
                f,
                "another host answers than {expected}, with the identity {found}: check the \
                 address, or trust that identity if {expected} has a new one"
            ),
            Self::Malformed { what } => write!(
                f,
                "the peer sent {what}: it has to send the certificates that `upcall host init` made"
            ),
        }
    }
}

impl std::error::Error for Stranger {}

/// A time in its largest whole unit.
struct WholeUnits(Duration);

impl fmt::Display for WholeUnits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (number, unit) = match seconds {
            0..120 => (seconds, "s"),
            120..7_200 => (seconds / 60, "minutes"),
            7_200..172_800 => (seconds / 3_600, "hours"),
            _ => (seconds / 86_400, "days"),
        };
        write!(f, "{number} {unit}")
    }
}
