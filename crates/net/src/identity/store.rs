//! The folder of identities.

use super::address::HostAddress;
use super::certificate::IdentityCertificate;
use super::credentials::{Credentials, HostClock, HostKey};
use super::error::IdentityError;
use super::files::{self, FolderLock, Secrecy, Stamps};
use super::fingerprint::Fingerprint;
use super::name::HostName;
use super::permission::{HostPermission, TrustedHost, field};
use super::trust::TrustList;
use rustls::pki_types::pem::{PemObject, SectionKind};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::collections::BTreeSet;
use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use upcall_os::lock::KernelMutex;

pub(super) const IDENTITY: &str = "identity.pem";
pub(super) const HOST: &str = "host.pem";
const TRUSTED: &str = "trusted";
const REVOKED: &str = "revoked";
pub(super) const SUBFOLDERS: [&str; 2] = [TRUSTED, REVOKED];

/// The folder with this user's identity on this host, and with the hosts that the user trusts.
///
/// | file | contents |
/// |---|---|
/// | `identity.pem` | the identity's private key and certificate; only commands read it |
/// | `host.pem` | the host's private key, its certificate, and that of the identity |
/// | `trusted/NAME.pem` | the identity of another host, what that may do, and where it listens |
/// | `revoked/HASH` | an identity that is not trusted any more |
///
/// Programs read the folder again when it has changed, so no change needs a restart. Files that
/// another user can change are refused, and so are private keys that another user can read.
pub struct HostStore {
    pub(super) folder: PathBuf,
    pub(super) clock: HostClock,
    last: KernelMutex<Option<Loaded>>,
}

struct Loaded {
    stamps: Stamps,
    contents: Contents,
    credentials: Arc<Credentials>,
}

impl fmt::Debug for HostStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostStore").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// This host's own identity.
#[derive(Clone, Debug)]
pub struct OwnHost {
    /// The name that was given to `upcall host init`.
    pub name: HostName,
    /// The certificate of the identity, which other hosts trust.
    pub identity: IdentityCertificate,
    /// The last second in which the certificate of the host key is valid; `None` if that key is
    /// missing.
    pub expires: Option<SystemTime>,
}

/// What to do with an identity that was revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfRevoked {
    /// Refuse it.
    Refuse,
    /// Trust it again.
    TrustAgain,
}

impl HostStore {
    /// Finds this user's folder.
    ///
    /// It is `$UPCALL_HOSTS`, else `$XDG_CONFIG_HOME/upcall/hosts`, else `~/.config/upcall/hosts`,
    /// and for a process without a home `/etc/upcall/hosts`. The folder need not exist.
    ///
    /// # Errors
    /// `UPCALL_HOSTS` is no absolute path.
    pub fn find() -> Result<Self, IdentityError> {
        let given = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        if let Some(found) = given("UPCALL_HOSTS").map(PathBuf::from) {
            return match found.is_absolute() {
                true => Ok(Self::at(found)),
                false => Err(IdentityError::Relative { variable: "UPCALL_HOSTS", found }),
            };
        }
        // The specification of XDG_CONFIG_HOME says to ignore a relative path.
        let config = given("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let home = || given("HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let config = config.or_else(|| Some(home()?.join(".config")));
        Ok(Self::at(config.unwrap_or("/etc".into()).join("upcall/hosts")))
    }

    /// Takes the folder at a path. It need not exist.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), clock: HostClock::default(), last: KernelMutex::new(None) }
    }

    /// Replaces the clock, for tests.
    #[must_use]
    pub fn with_clock(self, clock: HostClock) -> Self {
        Self { clock, ..self }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The key of this host and the hosts that it trusts, as the files are now.
    ///
    /// Returns the same value as before if no file was changed, after one `stat` for each. A caller
    /// asks at every new connection.
    ///
    /// # Errors
    /// There is no identity; a file is malformed or unsafe; or the kernel's.
    pub fn credentials(&self) -> Result<Arc<Credentials>, IdentityError> {
        let mut last = self.last.lock();
        if let Some(loaded) = &*last
            && loaded.stamps.hold()
        {
            return Ok(loaded.credentials.clone());
        }
        let (stamps, contents) = self.load()?;
        if let Some(loaded) = &mut *last
            && loaded.contents == contents
        {
            loaded.stamps = stamps;
            return Ok(loaded.credentials.clone());
        }
        let credentials = Arc::new(Credentials::new(
            contents.host_key(&self.folder)?,
            contents.trust_list(&self.folder)?,
            &self.clock,
        )?);
        *last = Some(Loaded { stamps, contents, credentials: credentials.clone() });
        Ok(credentials)
    }

    fn load(&self) -> Result<(Stamps, Contents), IdentityError> {
        if !files::folder_is_there(&self.folder)? {
            return Err(IdentityError::Missing { folder: self.folder.clone() });
        }
        let trusted = self.folder.join(TRUSTED);
        let watched = [self.folder.clone(), self.host_file(), self.folder.join(REVOKED)];
        // The folder's stamp is older than the list of its files, so a file that is added later
        // changes it.
        let folders = Stamps::take(watched.into_iter().chain([trusted.clone()]).collect());
        let names = files::names(&trusted, ".pem")?;
        let paths = names.iter().map(|name| trusted.join(format!("{name}.pem"))).collect();
        let stamps = folders.and(Stamps::take(paths));
        let contents = Contents::read(&self.folder, &names)?;
        Ok((stamps, contents))
    }

    /// This host's own identity.
    ///
    /// # Errors
    /// There is none; or as [`HostStore::credentials`].
    pub fn own(&self) -> Result<OwnHost, IdentityError> {
        Ok(self.own_with_key()?.0)
    }

    pub(super) fn own_with_key(&self) -> Result<(OwnHost, String), IdentityError> {
        let missing = || IdentityError::Missing { folder: self.folder.clone() };
        if !files::folder_is_there(&self.folder)? {
            return Err(missing());
        }
        let path = self.folder.join(IDENTITY);
        let text = files::read(&path, Secrecy::Private)?.ok_or_else(missing)?;
        let malformed =
            || IdentityError::Malformed { path: path.clone(), what: "holds no identity".into() };
        let name = field(&text, "name").and_then(|name| name.parse().ok()).ok_or_else(malformed)?;
        let (key, certificates) = text.split_at(text.rfind("-----BEGIN").ok_or_else(malformed)?);
        let identity =
            IdentityCertificate::from_pem(certificates.as_bytes()).map_err(|_| malformed())?;
        let host = files::read(&self.host_file(), Secrecy::Private)?;
        let expires = match &host {
            Some(text) => Some(host_key(&self.host_file(), text)?.expires()?),
            None => None,
        };
        Ok((OwnHost { name, identity, expires }, key.into()))
    }

    pub(super) fn host_file(&self) -> PathBuf {
        self.folder.join(HOST)
    }

    /// The hosts that are trusted, and the revoked identities.
    ///
    /// # Errors
    /// A file is malformed or unsafe; or the kernel's.
    pub fn list(&self) -> Result<TrustList, IdentityError> {
        if !files::folder_is_there(&self.folder)? {
            return Ok(TrustList::default());
        }
        let names = files::names(&self.folder.join(TRUSTED), ".pem")?;
        Contents::read_trust(&self.folder, &names)?.trust_list(&self.folder)
    }

    /// Trusts another host's identity, or changes what a trusted host may do. Its addresses stay.
    ///
    /// # Errors
    /// The name or the identity is taken; the identity was revoked; or the kernel's.
    ///
    /// # Blocking
    /// Waits for other commands that change the folder, for 10 s at most.
    pub fn trust(
        &self,
        name: &HostName,
        certificate: &IdentityCertificate,
        may: HostPermission,
        if_revoked: IfRevoked,
    ) -> Result<(), IdentityError> {
        self.trust_at(name, certificate, may, if_revoked, None)
    }

    /// Like [`HostStore::trust`], with the addresses of the host's servers. `None` leaves them as
    /// they are.
    ///
    /// # Errors
    /// As [`HostStore::trust`].
    ///
    /// # Blocking
    /// As [`HostStore::trust`].
    pub fn trust_at(
        &self,
        name: &HostName,
        certificate: &IdentityCertificate,
        may: HostPermission,
        if_revoked: IfRevoked,
        addresses: Option<Vec<HostAddress>>,
    ) -> Result<(), IdentityError> {
        let lock = FolderLock::take(&self.folder, &SUBFOLDERS)?;
        let list = self.list()?;
        let fingerprint = certificate.fingerprint();
        let was_revoked = list.revoked().contains(&fingerprint);
        if was_revoked && if_revoked == IfRevoked::Refuse {
            return Err(IdentityError::Revoked { fingerprint });
        }
        if let Some(other) = list.host(name)
            && other.certificate.fingerprint() != fingerprint
        {
            let by = other.certificate.fingerprint();
            return Err(IdentityError::Taken { name: name.clone(), by });
        }
        if let Some(other) = list.host_of(fingerprint)
            && other.name != *name
        {
            return Err(IdentityError::Known { fingerprint, name: other.name.clone() });
        }
        let known = || list.host(name).map(|known| known.addresses.clone());
        let addresses = addresses.or_else(known).unwrap_or_default();
        let certificate = certificate.clone();
        let host = TrustedHost { name: name.clone(), may, addresses, certificate };
        lock.write(&self.trusted_file(name), &host.text(), Secrecy::Public)?;
        match was_revoked {
            true => lock.remove(&self.revoked_file(fingerprint)),
            false => Ok(()),
        }
    }

    /// Revokes the identity of a trusted host, and removes the host.
    ///
    /// New connections are refused from now on, also resumed ones.
    ///
    /// # Errors
    /// No host has the name; or the kernel's.
    ///
    /// # Blocking
    /// As [`HostStore::trust`].
    pub fn revoke(&self, name: &HostName) -> Result<Fingerprint, IdentityError> {
        let not_trusted = || IdentityError::NotTrusted { name: name.clone() };
        if !files::folder_is_there(&self.folder)? {
            return Err(not_trusted());
        }
        let lock = FolderLock::take(&self.folder, &SUBFOLDERS)?;
        let list = self.list()?;
        let fingerprint = list.host(name).ok_or_else(not_trusted)?.certificate.fingerprint();
        // In this order: a command that is killed between leaves a host that is revoked.
        let text = format!("name: {name}\nfingerprint: {fingerprint}\n");
        lock.write(&self.revoked_file(fingerprint), &text, Secrecy::Public)?;
        lock.remove(&self.trusted_file(name))?;
        Ok(fingerprint)
    }

    fn trusted_file(&self, name: &HostName) -> PathBuf {
        self.folder.join(TRUSTED).join(format!("{name}.pem"))
    }

    fn revoked_file(&self, fingerprint: Fingerprint) -> PathBuf {
        self.folder.join(REVOKED).join(fingerprint.hex())
    }
}

/// The files as they were read.
#[derive(Default, PartialEq, Eq)]
struct Contents {
    host: Option<String>,
    trusted: Vec<(HostName, String)>,
    revoked: BTreeSet<Fingerprint>,
}

impl Contents {
    fn read(folder: &Path, names: &[String]) -> Result<Self, IdentityError> {
        let host = files::read(&folder.join(HOST), Secrecy::Private)?;
        Ok(Self { host, ..Self::read_trust(folder, names)? })
    }

    fn read_trust(folder: &Path, names: &[String]) -> Result<Self, IdentityError> {
        let trusted = folder.join(TRUSTED);
        let mut own = Self::default();
        for name in names {
            // The kernel's folder may list a file that was removed since.
            let path = trusted.join(format!("{name}.pem"));
            if let Some(text) = files::read(&path, Secrecy::Public)? {
                let what = "is not named as a host can be".to_owned();
                let name = name.parse().map_err(|_| IdentityError::Malformed { path, what })?;
                own.trusted.push((name, text));
            }
        }
        let revoked = folder.join(REVOKED);
        for name in files::names(&revoked, "")? {
            let what = "is not named by the hash of an identity".to_owned();
            let path = revoked.join(&name);
            let found = Fingerprint::from_hex(&name);
            own.revoked.insert(found.ok_or(IdentityError::Malformed { path, what })?);
        }
        Ok(own)
    }

    fn host_key(&self, folder: &Path) -> Result<HostKey, IdentityError> {
        match &self.host {
            Some(text) => host_key(&folder.join(HOST), text),
            None if folder.join(IDENTITY).exists() => {
                Err(IdentityError::NoHostKey { folder: folder.into() })
            }
            None => Err(IdentityError::Missing { folder: folder.into() }),
        }
    }

    fn trust_list(&self, folder: &Path) -> Result<TrustList, IdentityError> {
        let file = |name: &HostName| folder.join(TRUSTED).join(format!("{name}.pem"));
        let read =
            |(name, text): &(HostName, String)| TrustedHost::read(name.clone(), &file(name), text);
        let hosts = self.trusted.iter().map(read).collect::<Result<_, _>>()?;
        TrustList::new(hosts, self.revoked.clone()).map_err(|(first, second)| {
            let what = format!("holds the same identity as {first}.pem");
            IdentityError::Malformed { path: file(&second), what }
        })
    }
}

/// Reads the file of the host's key.
fn host_key(path: &Path, text: &str) -> Result<HostKey, IdentityError> {
    let malformed =
        || IdentityError::Malformed { path: path.into(), what: "holds no key of a host".into() };
    let mut certificates = Vec::new();
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(text.as_bytes()) {
        if let (SectionKind::Certificate, der) = section.map_err(|_| malformed())? {
            certificates.push(CertificateDer::from(der));
        }
    }
    let key = PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_| malformed())?;
    let [certificate, identity] = &certificates[..] else { return Err(malformed()) };
    let identity = IdentityCertificate::from_der(identity).map_err(|_| malformed())?;
    Ok(HostKey { key, certificate: certificate.clone(), identity })
}
