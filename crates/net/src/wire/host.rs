//! The host at the other end of a connection, and the trust in it.

use crate::identity::{Fingerprint, HostName, HostStore, IdentityError, PeerRole, Stranger};
use crate::lost::Lost;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

/// The host at the other end of a connection.
#[derive(Clone, Debug)]
pub struct WireHost {
    /// The files by which it is judged.
    pub store: Arc<HostStore>,
    /// The name that it has proved.
    pub name: HostName,
    /// The identity that it has proved.
    pub identity: Fingerprint,
    /// What it does on this connection.
    pub role: PeerRole,
}

impl WireHost {
    /// The trusted host of this name, by the files as they are now.
    pub fn new(store: Arc<HostStore>, name: HostName, role: PeerRole) -> Option<Self> {
        let credentials = store.credentials().ok()?;
        let identity = credentials.trust().host(&name)?.certificate.fingerprint();
        Some(Self { store, name, identity, role })
    }

    /// Judges the host by the files as they are now.
    pub(super) fn is_trusted(&self) -> Result<(), Lost> {
        let untrusted = |error: &dyn fmt::Display| Lost::Untrusted(error.to_string());
        let unreadable = |error: IdentityError| Lost::Unprotected(error.to_string());
        let credentials = self.store.credentials().map_err(unreadable)?;
        let trust = credentials.trust();
        if trust.revoked().contains(&self.identity) {
            return Err(untrusted(&Stranger::Revoked { fingerprint: self.identity }));
        }
        let host = trust.host_of(self.identity).filter(|host| host.name == self.name);
        let host = host.ok_or_else(|| {
            untrusted(&format_args!("the host {} is no longer trusted here", self.name))
        })?;
        trust.admit(host, self.role, SystemTime::now()).map_err(|error| untrusted(&error))
    }
}
