//! Identities of hosts: that of this host, and those that it trusts.
//!
//! What: each user (or service) has one *identity* on each host, a long-lived key with a
//! certificate that the key signs itself. Other hosts trust the identity by its fingerprint, under
//! a name of their own, as ssh's `known_hosts` and `authorized_keys` do in one. The identity signs
//! the certificate of a short-lived *host key*, which TLS uses. So the host key can be replaced
//! without any other host noticing, and programs that serve never read the identity's private key.
//!
//! What not: the handshake ([`crate::tls`]), and the decision what a host may do with a server,
//! which is the policy's as for local clients. There is no authority above hosts.
//!
//! [`HostStore`] reads and changes the files. [`Credentials`] are one state of them, which TLS
//! uses; [`Credentials::judge`] gives the name of a peer or the reason why it is a [`Stranger`].
//! That judgement does no I/O, and takes the time as an argument.

mod address;
mod certificate;
mod credentials;
mod error;
mod files;
mod fingerprint;
#[cfg(feature = "issue")]
mod issue;
#[cfg(feature = "issue")]
mod making;
mod name;
mod permission;
mod store;
mod stranger;
#[cfg(all(test, feature = "issue"))]
mod tests;
mod trust;
mod verifier;

pub use address::HostAddress;
pub use certificate::{HostFault, IdentityCertificate, OutOfTime, ValidTime};
pub use credentials::{Credentials, HostClock, HostKey, PROTOCOL};
pub use error::{IdentityError, UnsafeMode};
pub use fingerprint::{BadFingerprint, Fingerprint};
pub use name::{BadHostName, HostName};
pub use permission::{HostPermission, TrustedHost};
pub use store::{HostStore, IfRevoked, OwnHost};
pub use stranger::{CertificateKind, PeerRole, Stranger};
pub use trust::TrustList;
pub(crate) use verifier::server_name;
