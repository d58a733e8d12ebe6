//! Errors of the files in which identities lie.

use super::fingerprint::Fingerprint;
use super::name::{BadHostName, HostName};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why the folder of identities cannot be used, or not as requested.
pub enum IdentityError {
    /// A variable names the folder by a relative path.
    Relative {
        /// The variable.
        variable: &'static str,
        /// Its value.
        found: PathBuf,
    },
    /// This host has no identity yet.
    Missing {
        /// The folder of identities.
        folder: PathBuf,
    },
    /// This host has no host key, or its file was removed.
    NoHostKey {
        /// The folder of identities.
        folder: PathBuf,
    },
    /// This host has an identity already.
    Exists {
        /// The folder of identities.
        folder: PathBuf,
        /// The identity.
        fingerprint: Fingerprint,
    },
    /// The identity of this host has expired.
    Expired {
        /// The folder of identities.
        folder: PathBuf,
    },
    /// Other users can change a file or a folder, or read a private key.
    Unsafe {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it, and how to mend it.
        why: UnsafeMode,
    },
    /// The kernel's error.
    Io {
        /// What was tried: "read", "write".
        tried: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// A file does not hold what it should.
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Another command changes the folder.
    Busy {
        /// The folder of identities.
        folder: PathBuf,
    },
    /// No trusted host has this name.
    NotTrusted {
        /// The name.
        name: HostName,
    },
    /// Another identity is trusted by this name.
    Taken {
        /// The name.
        name: HostName,
        /// The identity that has it.
        by: Fingerprint,
    },
    /// The identity is trusted by another name.
    Known {
        /// The identity.
        fingerprint: Fingerprint,
        /// Its name.
        name: HostName,
    },
    /// The identity was revoked.
    Revoked {
        /// The identity.
        fingerprint: Fingerprint,
    },
    /// A text is no certificate of an identity.
    BadCertificate {
        /// What was found.
        what: String,
    },
    /// A text is no name of a host.
    BadName(BadHostName),
    /// A library that makes keys and certificates, or prepares TLS, failed.
    Library {
        /// Its error.
        error: String,
    },
}

/// What makes a file or folder unsafe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsafeMode {
    /// Others can write to it. The mode that it should have.
    Writable(u32),
    /// Others can read a private key. The mode that it should have.
    Readable(u32),
    /// It belongs to this user, who is neither the own user nor root.
    Owner(u32),
    /// It is no regular file, or no folder.
    Kind,
}

impl IdentityError {
    /// Wraps the kernel's error, for `map_err`.
    pub(super) fn io(tried: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { tried, path: path.into(), error }
    }
}

upcall_os::error_debug!(IdentityError {
    Relative { variable, found },
    Missing { folder },
    NoHostKey { folder },
    Exists { folder, fingerprint },
    Expired { folder },
    Unsafe { path, why },
    Io { tried, path, error },
    Malformed { path, what },
    Busy { folder },
    NotTrusted { name },
    Taken { name, by },
    Known { fingerprint, name },
    Revoked { fingerprint },
    BadCertificate { what },
    BadName(error),
    Library { error },
});

impl From<BadHostName> for IdentityError {
    fn from(error: BadHostName) -> Self {
        Self::BadName(error)
    }
}

impl fmt::Display for IdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Relative { variable, found } => {
                write!(f, "{variable} is {}: set it to an absolute path", found.display())
            }
            Self::Missing { folder } => write!(
                f,
                "this host has no identity in {}: run `upcall host init`",
                folder.display()
            ),
            Self::NoHostKey { folder } => write!(
                f,
                "the host key in {} is missing: run `upcall host renew`",
                folder.display()
            ),
            Self::Exists { folder, fingerprint } => write!(
                f,
                "this host has the identity {fingerprint} in {} already: `upcall host renew` makes \
                 a new host key, and only a removed folder a new identity",
                folder.display()
            ),
            Self::Expired { folder } => write!(
                f,
                "the identity of this host has expired: remove identity.pem and host.pem from {}, \
                 and run `upcall host init`",
                folder.display()
            ),
            Self::Unsafe { path, why } => write_unsafe(f, path, *why),
            Self::Io { tried, path, error } => {
                write!(f, "cannot {tried} {}: {error}", path.display())
            }
            Self::Malformed { path, what } => write!(
                f,
                "{} {what}: restore it from a copy, or remove it and make it again",
                path.display()
            ),
            Self::Busy { folder } => write!(
                f,
                "another command has been changing {} for 10 s: try again when it has ended",
                folder.display()
            ),
            Self::NotTrusted { name } => {
                write!(f, "no trusted host is called {name}: see `upcall host list`")
            }
            Self::Taken { name, by } => write!(
                f,
                "{name} is the trusted identity {by} already: give another name, or run `upcall \
                 host revoke {name}` first"
            ),
            Self::Known { fingerprint, name } => {
                write!(f, "the identity {fingerprint} is trusted as {name} already: use that name")
            }
            Self::Revoked { fingerprint } => write!(
                f,
                "the identity {fingerprint} was revoked here: make a new one on that host, or give \
                 --again to trust this one"
            ),
            Self::BadCertificate { what } => {
                write!(f, "{what}: give what `upcall host show --pem` prints on the other host")
            }
            Self::BadName(error) => error.fmt(f),
            Self::Library { error } => write!(f, "cannot make or use keys: {error}"),
        }
    }
}

impl std::error::Error for IdentityError {}

fn write_unsafe(f: &mut fmt::Formatter<'_>, path: &Path, why: UnsafeMode) -> fmt::Result {
    let shown = path.display();
    let quoted = upcall_os::text::shell_word(&path.to_string_lossy()).to_string();
    match why {
        UnsafeMode::Writable(mode) => {
            write!(f, "other users can write to {shown}: run `chmod {mode:o} {quoted}`")
        }
        UnsafeMode::Readable(mode) => write!(
            f,
            "other users can read the private key in {shown}: run `chmod {mode:o} {quoted}`, and \
             make a new key if they may have read it"
        ),
        UnsafeMode::Owner(user) => write!(
            f,
            "{shown} belongs to user {user}: run `chown {} {quoted}` as root, or use another \
             folder (UPCALL_HOSTS)",
            rustix::process::geteuid().as_raw()
        ),
        UnsafeMode::Kind => write!(f, "{shown} is of the wrong kind: remove it"),
    }
}
