//! Commands that make the keys of this host.

use super::certificate::IdentityCertificate;
use super::error::IdentityError;
use super::files::{FolderLock, Secrecy};
use super::issue::{issue_host, issue_identity};
use super::name::HostName;
use super::store::{HostStore, IDENTITY, OwnHost, SUBFOLDERS};

impl HostStore {
    /// Makes an identity for this host, and a first host key.
    ///
    /// # Errors
    /// There is an identity already; or the kernel's.
    ///
    /// # Blocking
    /// Waits for other commands that change the folder, for 10 s at most.
    pub fn init(&self, name: &HostName) -> Result<OwnHost, IdentityError> {
        let lock = FolderLock::take(&self.folder, &SUBFOLDERS)?;
        match self.own_with_key() {
            // Another `init` was killed before it made the host key.
            Ok((own, key)) if own.expires.is_none() && own.name == *name => {
                return self.make_host_key(&lock, own, &key);
            }
            Ok((own, _)) => {
                let fingerprint = own.identity.fingerprint();
                return Err(IdentityError::Exists { folder: self.folder.clone(), fingerprint });
            }
            Err(IdentityError::Missing { .. }) => {}
            Err(error) => return Err(error),
        }
        let made = issue_identity(self.clock.now())?;
        let identity = IdentityCertificate::from_pem(made.certificate.as_bytes())?;
        let text = format!("name: {name}\n{}{}", made.key, made.certificate);
        lock.write(&self.folder.join(IDENTITY), &text, Secrecy::Private)?;
        let own = OwnHost { name: name.clone(), identity, expires: None };
        self.make_host_key(&lock, own, &made.key)
    }

    /// Replaces the host key and its certificate. Other hosts trust the new one already.
    ///
    /// # Errors
    /// There is no identity, or it has expired; or the kernel's.
    ///
    /// # Blocking
    /// As [`HostStore::init`].
    pub fn renew(&self) -> Result<OwnHost, IdentityError> {
        // Without an identity no folder is made.
        self.own()?;
        let lock = FolderLock::take(&self.folder, &SUBFOLDERS)?;
        let (own, key) = self.own_with_key()?;
        self.make_host_key(&lock, own, &key)
    }

    fn make_host_key(
        &self,
        lock: &FolderLock,
        own: OwnHost,
        identity_key: &str,
    ) -> Result<OwnHost, IdentityError> {
        let now = self.clock.now();
        if own.identity.expires() <= now {
            return Err(IdentityError::Expired { folder: self.folder.clone() });
        }
        let made = issue_host(identity_key, own.identity.expires(), now)?;
        let identity = own.identity.pem();
        let text = format!("name: {}\n{}{}{identity}", own.name, made.key, made.certificate);
        lock.write(&self.host_file(), &text, Secrecy::Private)?;
        self.own()
    }
}
