//! Files that only their owner may change: checked when they are read, replaced atomically.
//!
//! A file is written beside its place, synchronised, and renamed. A process that is killed leaves
//! the old contents or the new, and perhaps a temporary file, which the next writer removes.

use super::error::{IdentityError, UnsafeMode};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Maximum length of a file, in bytes.
const LONGEST_FILE: u64 = 64 << 10;
/// Time that a command waits while another command changes the same folder.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval between attempts to take the lock.
const AGAIN: Duration = Duration::from_millis(20);
/// Time after a change in which another change may leave the same times on a file: above the tick
/// of every file system's clock.
const TICK: Duration = Duration::from_millis(100);

/// The users that may read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secrecy {
    /// All users.
    Public,
    /// Its owner.
    Private,
}

impl Secrecy {
    /// The mode of such a file.
    pub fn mode(self) -> u32 {
        match self {
            Self::Public => 0o644,
            Self::Private => 0o600,
        }
    }
}

/// Checks that only this user and root can change a file or folder.
fn check(path: &Path, found: &Metadata, mode: u32, secrecy: Secrecy) -> Result<(), IdentityError> {
    let own = rustix::process::geteuid().as_raw();
    let why = if found.uid() != own && found.uid() != 0 {
        UnsafeMode::Owner(found.uid())
    } else if found.mode() & 0o022 != 0 {
        UnsafeMode::Writable(mode)
    } else if secrecy == Secrecy::Private && found.mode() & 0o077 != 0 {
        UnsafeMode::Readable(mode)
    } else {
        return Ok(());
    };
    Err(IdentityError::Unsafe { path: path.into(), why })
}

/// Checks a folder. Returns `false` if there is none.
pub fn folder_is_there(path: &Path) -> Result<bool, IdentityError> {
    match fs::metadata(path) {
        Ok(found) if !found.is_dir() => {
            Err(IdentityError::Unsafe { path: path.into(), why: UnsafeMode::Kind })
        }
        Ok(found) => check(path, &found, 0o700, Secrecy::Public).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(IdentityError::io("read", path)(error)),
    }
}

/// Reads a file of text. Returns `None` if there is none.
///
/// # Errors
/// The kernel's; or others can change the file, or read it although it is private.
pub fn read(path: &Path, secrecy: Secrecy) -> Result<Option<String>, IdentityError> {
    let failed = || IdentityError::io("read", path);
    // Without waiting for the other end of a pipe that lies in the file's place.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(failed()(error.into())),
    };
    let found = file.metadata().map_err(failed())?;
    if !found.is_file() {
        return Err(IdentityError::Unsafe { path: path.into(), why: UnsafeMode::Kind });
    }
    check(path, &found, secrecy.mode(), secrecy)?;
    let mut text = String::new();
    let read = file.take(LONGEST_FILE + 1).read_to_string(&mut text).map_err(failed())?;
    if read as u64 > LONGEST_FILE {
        let what = format!("has more than {LONGEST_FILE} bytes");
        return Err(IdentityError::Malformed { path: path.into(), what });
    }
    Ok(Some(text))
}

/// The names of the files in a folder that end with `end`, without that, in order.
pub fn names(folder: &Path, end: &str) -> Result<Vec<String>, IdentityError> {
    if !folder_is_there(folder)? {
        return Ok(Vec::new());
    }
    let failed = || IdentityError::io("read", folder);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed())? {
        let name = entry.map_err(failed())?.file_name().into_string().unwrap_or_default();
        if let Some(name) = name.strip_suffix(end)
            && !name.starts_with('.')
        {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// The exclusive right to change a folder of identities. Ends when it is dropped, or with the
/// process.
pub struct FolderLock {
    _file: OwnedFd,
}

impl FolderLock {
    /// Makes the folder with its subfolders if they are missing, and waits for the right to change
    /// it.
    ///
    /// # Errors
    /// The kernel's; the folder is unsafe; or another command holds the lock for 10 s.
    pub fn take(folder: &Path, subfolders: &[&str]) -> Result<Self, IdentityError> {
        if let Some(parent) = folder.parent() {
            fs::create_dir_all(parent).map_err(IdentityError::io("make", parent))?;
        }
        make_folder(folder)?;
        let path = folder.join("lock");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR);
        let file = file.map_err(|error| IdentityError::io("write", &path)(error.into()))?;
        let until = Instant::now() + PATIENCE;
        while let Err(error) = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            match error {
                rustix::io::Errno::AGAIN if Instant::now() < until => std::thread::sleep(AGAIN),
                rustix::io::Errno::AGAIN => {
                    return Err(IdentityError::Busy { folder: folder.into() });
                }
                rustix::io::Errno::INTR => {}
                error => return Err(IdentityError::io("lock", &path)(error.into())),
            }
        }
        let own = Self { _file: file };
        remove_temporary(folder);
        for subfolder in subfolders {
            let path = folder.join(subfolder);
            make_folder(&path)?;
            remove_temporary(&path);
        }
        Ok(own)
    }

    /// Replaces a file of this folder, or makes it.
    ///
    /// # Errors
    /// The kernel's. The old contents are in place then.
    pub fn write(&self, path: &Path, text: &str, secrecy: Secrecy) -> Result<(), IdentityError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let fresh = path.with_file_name(format!(".{name}.tmp"));
        let written = write_file(&fresh, text, secrecy.mode()).and_then(|()| {
            step();
            fs::rename(&fresh, path)
        });
        if let Err(error) = written {
            let _ = fs::remove_file(&fresh);
            return Err(IdentityError::io("write", path)(error));
        }
        step();
        synchronise_folder(path)
    }

    /// Removes a file of this folder, if it is there.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove(&self, path: &Path) -> Result<(), IdentityError> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(IdentityError::io("remove", path)(error))
            }
            _ => {
                step();
                synchronise_folder(path)
            }
        }
    }
}

fn make_folder(path: &Path) -> Result<(), IdentityError> {
    if !folder_is_there(path)? {
        match fs::DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(IdentityError::io("make", path)(error));
            }
            _ => _ = folder_is_there(path)?,
        }
    }
    Ok(())
}

/// Removes what writers that were killed have left.
fn remove_temporary(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') && name.ends_with(".tmp") {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn write_file(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    // The process's mask does not apply to this.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    step();
    file.write_all(text.as_bytes())?;
    step();
    file.sync_all()
}

fn synchronise_folder(path: &Path) -> Result<(), IdentityError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    File::open(folder).and_then(|file| file.sync_all()).map_err(IdentityError::io("write", folder))
}

/// What the kernel says of some files, to notice when one of them was changed.
#[derive(Debug)]
pub struct Stamps {
    files: Vec<(PathBuf, Option<[u64; 7]>)>,
    /// A change may have left no mark, because another one was made just before the stamps.
    fresh: bool,
}

impl Stamps {
    /// Takes the stamps. The caller reads the files afterwards.
    pub fn take(files: Vec<PathBuf>) -> Self {
        let stamped = files.into_iter().map(|path| {
            let stamp = stamp(&path);
            (path, stamp)
        });
        let files: Vec<_> = stamped.collect();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let settled = |stamp: &[u64; 7]| Duration::new(stamp[5], stamp[6] as u32) + TICK < now;
        let fresh = !files.iter().filter_map(|(_, stamp)| stamp.as_ref()).all(settled);
        Self { files, fresh }
    }

    /// The stamps of both.
    pub fn and(mut self, other: Self) -> Self {
        self.files.extend(other.files);
        self.fresh |= other.fresh;
        self
    }

    /// Returns `true` if no file was changed since.
    pub fn hold(&self) -> bool {
        !self.fresh && self.files.iter().all(|(path, then)| stamp(path) == *then)
    }
}

/// The file's number, length, mode with owner, and times of its last changes.
fn stamp(path: &Path) -> Option<[u64; 7]> {
    let found = fs::metadata(path).ok()?;
    Some([
        found.ino(),
        found.size(),
        u64::from(found.mode()) << 32 | u64::from(found.uid()),
        found.mtime() as u64,
        found.mtime_nsec() as u64,
        found.ctime().max(0) as u64,
        (found.ctime_nsec() as u64).min(999_999_999),
    ])
}

#[cfg(not(all(test, feature = "issue")))]
fn step() {}

#[cfg(all(test, feature = "issue"))]
pub use steps::{kill_at, step};

/// Kills at each step of a change, as far as one process can: a panic that runs no clean-up of a
/// file.
#[cfg(all(test, feature = "issue"))]
mod steps {
    use std::cell::Cell;

    std::thread_local! {
        static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    pub fn step() {
        LEFT.with(|left| match left.get() {
            Some(0) => {
                left.set(None);
                panic!("killed");
            }
            Some(more) => left.set(Some(more - 1)),
            None => {}
        });
    }

    /// Runs a change that ends after some steps. Returns `false` if it has fewer.
    pub fn kill_at(step: u32, change: impl FnOnce() + std::panic::UnwindSafe) -> bool {
        LEFT.set(Some(step));
        let done = std::panic::catch_unwind(change);
        LEFT.set(None);
        done.is_err()
    }
}
