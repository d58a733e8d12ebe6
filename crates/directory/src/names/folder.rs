//! Which folder holds the names, and whether it may be used.
//!
//! | owner and mode | made by | who enters names | who removes dead names |
//! |---|---|---|---|
//! | the user, 0700 | Upcall, if missing | the user | the user |
//! | a service's user or root, 0755 | `install -d -m 0755` | its owner | its owner |
//! | root, 1777 (or 1770, a group) | `install -d -m 1777` | each user (in it) | each its own |
//!
//! A server uses a folder of its own user or of root. A folder that everyone may write needs the
//! sticky bit: without it another user could remove or rename entries. A client reads names in any
//! folder that `UPCALL_DIR` gives: a name leads to a socket, and the kernel says whose that is.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use upcall_os::socket::own_user;

/// Why there is no usable folder of names.
#[non_exhaustive]
pub enum FolderError {
    /// `UPCALL_DIR` is set, but empty.
    Empty,
    /// `UPCALL_DIR` is a relative path, which would depend on each program's working directory.
    Relative {
        /// The path.
        path: PathBuf,
    },
    /// The path is not a folder, but a file or a symbolic link.
    NotAFolder {
        /// The path.
        path: PathBuf,
        /// `true` if it is a symbolic link.
        is_link: bool,
    },
    /// The folder belongs to another user.
    Owner {
        /// The path.
        path: PathBuf,
        /// The owner of the folder.
        found: u32,
        /// The user of this process.
        expected: u32,
    },
    /// Every user may remove and rename entries of others, because the sticky bit is missing.
    Unprotected {
        /// The path.
        path: PathBuf,
        /// The mode of the folder.
        mode: u32,
    },
    /// The folder is on a file system that other machines use too.
    Network {
        /// The path.
        path: PathBuf,
    },
    /// The kernel refused to make, read, or change the folder.
    Unusable {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
}

impl fmt::Display for FolderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const OTHER: &str = "set UPCALL_DIR to another folder";
        match self {
            Self::Empty => f.write_str(
                "UPCALL_DIR is empty: set it to the absolute path of the folder of names, \
                 or unset it",
            ),
            Self::Relative { path } => {
                write!(
                    f,
                    "UPCALL_DIR is the relative path {}: set it to an absolute path",
                    path.display()
                )
            }
            Self::NotAFolder { path, is_link: true } => {
                let path = path.display();
                write!(
                    f,
                    "the folder of names {path} is a symbolic link, which is refused also if it \
                     leads to a folder: remove it, or {OTHER}"
                )
            }
            Self::NotAFolder { path, is_link: false } => {
                write!(
                    f,
                    "the folder of names {} is not a folder: remove it, or {OTHER}",
                    path.display()
                )
            }
            Self::Owner { path, found, expected } => write!(
                f,
                "the folder of names {} is of user {found}, and only that user may serve there{}; \
                 this process runs as user {expected}: start it as that user, or {OTHER}",
                path.display(),
                if *expected == 0 { ", not even root" } else { "" }
            ),
            Self::Unprotected { path, mode } => write!(
                f,
                "every user may remove the names in {} (mode {mode:04o}): \
                 protect it (chmod +t), or {OTHER}",
                path.display()
            ),
            Self::Network { path } => write!(
                f,
                "the folder of names {} is on a network file system, but sockets lead only to \
                 processes of one machine: {OTHER}",
                path.display()
            ),
            Self::Unusable { path, error } => {
                write!(f, "the folder of names {}: {error}{}; {OTHER}", path.display(), hint(error))
            }
        }
    }
}

upcall_os::error_debug!(FolderError {
    Empty, Relative { path }, NotAFolder { path, is_link }, Owner { path, found, expected },
    Unprotected { path, mode }, Network { path }, Unusable { path, error },
});

impl std::error::Error for FolderError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unusable { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// What the kernel's error means for a folder.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => " (this user may not)",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => " (the file system is full)",
        io::ErrorKind::ReadOnlyFilesystem => " (the file system is read-only)",
        _ => "",
    }
}

/// The folder of names of this process.
///
/// This is the first of these that applies: 1. `$UPCALL_DIR`, an absolute path; 2. `upcall` in
/// `$XDG_RUNTIME_DIR` or `/run/user/UID`, if that folder is this user's; 3. `.upcall` in the home
/// folder, if that is this user's and on this machine; 4. `/tmp/upcall-UID`.
///
/// Only the last one could be created beforehand by another user, so only users without a home use
/// it.
///
/// # Errors
/// `UPCALL_DIR` is empty or relative, or `/tmp/upcall-UID` belongs to another user or is not a
/// folder.
pub fn folder() -> Result<PathBuf, FolderError> {
    if let Some(dir) = std::env::var_os("UPCALL_DIR") {
        let path = PathBuf::from(dir);
        return match path.as_os_str().is_empty() {
            true => Err(FolderError::Empty),
            false if path.is_relative() => Err(FolderError::Relative { path }),
            false => Ok(path),
        };
    }
    let user = own_user();
    let is_own =
        |dir: &Path| fs::metadata(dir).is_ok_and(|found| found.is_dir() && found.uid() == user);
    let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = given.into_iter().chain([format!("/run/user/{user}").into()]);
    if let Some(dir) = runtime.filter(|dir| dir.is_absolute()).find(|dir| is_own(dir)) {
        return Ok(dir.join("upcall"));
    }
    let home = std::env::home_dir().filter(|home| home.is_absolute() && is_own(home));
    if let Some(home) = home.filter(|home| !file_system(home).is_some_and(is_network)) {
        return Ok(home.join(".upcall"));
    }
    let path = PathBuf::from(format!("/tmp/upcall-{user}"));
    match fs::symlink_metadata(&path) {
        Ok(found) if !found.is_dir() => {
            Err(FolderError::NotAFolder { path, is_link: found.is_symlink() })
        }
        Ok(found) if found.uid() != user => {
            Err(FolderError::Owner { path, found: found.uid(), expected: user })
        }
        _ => Ok(path),
    }
}

/// Makes the folder if it is missing, and checks that a server may enter names there.
pub(super) fn prepare(folder: &Path) -> Result<(), FolderError> {
    let unusable = |error| FolderError::Unusable { path: folder.into(), error };
    match fs::DirBuilder::new().mode(0o700).recursive(true).create(folder) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(unusable(error)),
    }
    judge(folder, file_system(folder))
}

/// Checks that a server may enter names in a folder on this type of file system.
fn judge(folder: &Path, file_system: Option<u64>) -> Result<(), FolderError> {
    let unusable = |error| FolderError::Unusable { path: folder.into(), error };
    let found = fs::symlink_metadata(folder).map_err(unusable)?;
    let (own, mode) = (own_user(), found.mode() & 0o7777);
    if !found.is_dir() {
        let is_link = found.is_symlink();
        return Err(FolderError::NotAFolder { path: folder.into(), is_link });
    }
    if found.uid() != own && found.uid() != 0 {
        return Err(FolderError::Owner { path: folder.into(), found: found.uid(), expected: own });
    }
    if mode & 0o002 != 0 && mode & 0o1000 == 0 {
        return Err(FolderError::Unprotected { path: folder.into(), mode });
    }
    if file_system.is_some_and(is_network) {
        return Err(FolderError::Network { path: folder.into() });
    }
    Ok(())
}

/// What this process may remove in a folder: entries of dead processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sweeps {
    /// Nothing: the path is not a folder, or is a symbolic link.
    Nothing,
    /// The entries of its own user.
    Own,
    /// Everything: the folder is this user's, or this is root.
    All,
}

/// What this process may remove in this folder.
pub(super) fn sweeps(folder: &Path) -> Sweeps {
    let own = own_user();
    match fs::symlink_metadata(folder) {
        Ok(found) if !found.is_dir() => Sweeps::Nothing,
        Ok(found) if found.uid() == own || own == 0 => Sweeps::All,
        Ok(_) => Sweeps::Own,
        Err(_) => Sweeps::Nothing,
    }
}

/// Types of file systems whose files other machines see as well, as `statfs(2)` numbers them: NFS,
/// SMB (three kinds), AFS, Ceph, Coda, Lustre, GFS2, OCFS2.
const NETWORK: [u64; 10] = [
    0x6969,
    0x517b,
    0xff53_4d42,
    0xfe53_4d42,
    0x5346_414f,
    0x00c3_6400,
    0x7375_7245,
    0x0bd0_0bd0,
    0x0116_1970,
    0x7461_636f,
];

fn is_network(file_system: u64) -> bool {
    NETWORK.contains(&file_system)
}

/// The type of the file system that a folder is on, or `None` if the kernel does not tell.
fn file_system(folder: &Path) -> Option<u64> {
    // The kernel's type is signed on some machines.
    rustix::fs::statfs(folder).ok().map(|found| found.f_type as u64 & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn place(what: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("upcall-folder-{what}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn a_folder_is_made_for_this_user_alone() {
        let path = place("made");
        prepare(&path.join("below")).unwrap();
        assert_eq!(fs::metadata(path.join("below")).unwrap().mode() & 0o7777, 0o700);
        prepare(&path.join("below")).unwrap();
        assert_eq!(sweeps(&path.join("below")), Sweeps::All);
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn what_is_in_the_way_is_refused() {
        let path = place("way");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), "").unwrap();
        std::os::unix::fs::symlink(&path, path.join("link")).unwrap();
        for name in ["file", "link"] {
            let found = prepare(&path.join(name));
            assert!(matches!(found, Err(FolderError::NotAFolder { .. })), "{name}: {found:?}");
            let text = found.unwrap_err().to_string();
            assert_eq!(text.contains("is a symbolic link"), name == "link", "{text}");
            assert_eq!(text.contains("is not a folder"), name == "file", "{text}");
            assert_eq!(sweeps(&path.join(name)), Sweeps::Nothing);
        }
        let below = prepare(&path.join("file/below"));
        assert!(matches!(below, Err(FolderError::Unusable { .. })), "{below:?}");
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn the_error_of_another_users_folder_states_the_rule_for_root_too() {
        for expected in [0, 61_002] {
            let error = FolderError::Owner { path: "/run/svc".into(), found: 61_001, expected };
            let text = error.to_string();
            for part in [
                "/run/svc is of user 61001, and only that user may serve there".into(),
                format!("runs as user {expected}: start it as that user, or set UPCALL_DIR"),
            ] {
                assert!(text.contains(&part), "{part}: {text}");
            }
            assert_eq!(text.contains(", not even root;"), expected == 0, "{text}");
        }
    }

    #[test]
    fn a_folder_that_everyone_may_write_needs_the_sticky_bit() {
        let path = place("sticky");
        fs::create_dir(&path).unwrap();
        let with = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            prepare(&path)
        };
        assert!(matches!(with(0o777), Err(FolderError::Unprotected { mode: 0o777, .. })));
        for mode in [0o1777, 0o1770, 0o775, 0o755, 0o700] {
            with(mode).unwrap();
        }
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_network_file_system_is_refused() {
        let path = place("network");
        prepare(&path).unwrap();
        for network in NETWORK {
            let text = judge(&path, Some(network)).unwrap_err().to_string();
            assert!(
                text.contains("network file system") && text.contains("UPCALL_DIR"),
                "{network:#x}: {text}"
            );
        }
        // ext4, tmpfs, overlay, and two that may be local or remote, FUSE and 9p.
        for local in [0xef53, 0x0102_1994, 0x794c_7630, 0x6573_5546, 0x0102_1997] {
            judge(&path, Some(local)).unwrap();
        }
        // The number that is judged is the kernel's.
        let tmpfs = file_system(Path::new("/dev/shm"));
        assert!(tmpfs.is_none_or(|found| found == 0x0102_1994), "{tmpfs:x?}");
        fs::remove_dir_all(path).unwrap();
    }
}
