//! A directory tree of the file system, and the guarantee that nothing outside of it is reached.
//!
//! The guarantee is the kernel's: every path is resolved by `openat2` with `RESOLVE_BENEATH`, which
//! refuses `..`, absolute paths and symbolic links as soon as one step leads above the root, at the
//! moment of that step. A check of the path, or resolving it first and opening it afterwards, could
//! not guarantee it, since a directory may be renamed or replaced by a link in between. Hence there
//! is no alternative here for kernels without `openat2`; [`Tree::open`] refuses to serve.
//!
//! This module is independent of calls; [`crate::serve`] and [`crate::socket`] make it available to
//! others.

use crate::files::{Entry, Error, Kind, Status};
use rustix::fd::OwnedFd;
use rustix::fs::{self, CWD, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Maximum number of bytes that one read returns.
pub const MOST_BYTES: u32 = 4 << 20;
/// Maximum number of names that one listing returns.
pub const MOST_ENTRIES: u32 = 4096;

/// Number of attempts to resolve a path when a rename somewhere in the system makes the result
/// uncertain (`EAGAIN`).
const ATTEMPTS: u32 = 128;

/// A directory tree, open for reading.
#[derive(Debug)]
pub struct Tree {
    root: OwnedFd,
    path: PathBuf,
}

/// Why a tree cannot be served.
#[derive(Debug)]
pub enum TreeError {
    /// The directory could not be opened.
    Root {
        /// The path of the directory.
        path: PathBuf,
        /// The system's error.
        source: Errno,
    },
    /// The kernel cannot keep paths inside the tree, so nothing is served.
    Unconfined {
        /// The error of `openat2`.
        source: Errno,
    },
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root { path, source: Errno::NOTDIR } => {
                write!(
                    f,
                    "{} is not a directory; name the directory whose files are to be served",
                    path.display()
                )
            }
            Self::Root { path, source } => {
                write!(
                    f,
                    "cannot open the directory {}: {source}; name one that this user can read",
                    path.display()
                )
            }
            Self::Unconfined { source } => write!(
                f,
                "this kernel does not offer openat2 ({source}), without which paths cannot be \
                kept inside the served directory; \
                 it needs Linux 5.6 or newer, and a container must not filter the call"
            ),
        }
    }
}

impl std::error::Error for TreeError {}

impl Tree {
    /// Opens the directory at `path`. The tree stays the same if the directory is renamed or
    /// replaced later.
    ///
    /// # Errors
    /// [`TreeError`] if it is not a readable directory, or the kernel has no `openat2`.
    pub fn open(path: &Path) -> Result<Self, TreeError> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = |source| TreeError::Root { path: path.to_owned(), source };
        let path =
            path.canonicalize().map_err(|e| root(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
        let tree = Self { root: fs::openat(CWD, &path, flags, Mode::empty()).map_err(root)?, path };
        match tree.resolve(b"", flags) {
            Ok(_) => Ok(tree),
            Err(source) => Err(TreeError::Unconfined { source }),
        }
    }

    /// Its path when it was opened: absolute, without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file to be read.
    ///
    /// # Errors
    /// [`Error`], as the interface describes.
    pub fn file(&self, path: &[u8]) -> Result<OpenFile, Error> {
        // Without O_NONBLOCK the open of a named pipe would block the server until the pipe has a
        // writer. Regular files ignore the flag.
        let file = OpenFile(
            self.resolve(path, OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC)
                .map_err(refusal)?,
        );
        match file.stat()?.kind {
            Kind::Regular => Ok(file),
            other => Err(Error::WrongKind(other)),
        }
    }

    /// Opens a directory and records its names.
    ///
    /// # Errors
    /// [`Error`], as the interface describes.
    pub fn directory(&self, path: &[u8]) -> Result<Listing, Error> {
        let opened = self.resolve(path, OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC);
        let directory = opened.map_err(|e| {
            if e == Errno::NOTDIR { self.not_a_directory(path) } else { refusal(e) }
        })?;
        let mut entries = Vec::new();
        for entry in Dir::read_from(&directory).map_err(refusal)? {
            let entry = entry.map_err(refusal)?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let kind = match entry.file_type() {
                // Some file systems do not give the type in the listing.
                FileType::Unknown => {
                    match fs::statat(&directory, name, fs::AtFlags::SYMLINK_NOFOLLOW) {
                        Ok(stat) => kind(FileType::from_raw_mode(stat.st_mode)),
                        Err(Errno::NOENT) => continue,
                        Err(e) => return Err(refusal(e)),
                    }
                }
                known => kind(known),
            };
            entries.push(Entry { name: name.to_bytes().to_vec(), kind });
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(Listing(entries))
    }

    /// The only access to the file system.
    fn resolve(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { b"." } else { path };
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..ATTEMPTS {
            match fs::openat2(&self.root, path, flags, Mode::empty(), within) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                done => return done,
            }
        }
        Err(Errno::AGAIN)
    }

    /// ENOTDIR means that the last part of the path, or one before it, is not a directory. The
    /// interface distinguishes the two.
    fn not_a_directory(&self, path: &[u8]) -> Error {
        let found = self.resolve(path, OFlags::PATH | OFlags::CLOEXEC).and_then(fs::fstat);
        found.map_or(Error::NotFound, |stat| {
            Error::WrongKind(kind(FileType::from_raw_mode(stat.st_mode)))
        })
    }
}

/// An open file of a tree.
#[derive(Debug)]
pub struct OpenFile(OwnedFd);

impl OpenFile {
    /// Fills `into` with the bytes from `offset` on, and returns how many there were. Fewer than
    /// requested means that the file ends there.
    ///
    /// # Errors
    /// [`Error::System`] and [`Error::Exhausted`].
    pub fn fill(&self, offset: u64, into: &mut [u8]) -> Result<usize, Error> {
        let mut filled = 0;
        while filled < into.len() {
            let Some(at) = place(offset, filled) else { break };
            match rustix::io::pread(&self.0, &mut into[filled..], at) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(refusal(e)),
            }
        }
        Ok(filled)
    }

    /// The bytes from `offset` on: `most` of them or fewer, none only at or beyond the end of the
    /// file.
    ///
    /// # Errors
    /// [`Error::TooMuch`] above [`MOST_BYTES`]; otherwise like [`fill`](Self::fill).
    pub fn read(&self, offset: u64, most: u32) -> Result<Vec<u8>, Error> {
        if most > MOST_BYTES {
            return Err(Error::TooMuch(MOST_BYTES));
        }
        let mut data: Vec<u8> = Vec::with_capacity(most as usize);
        while data.len() < most as usize {
            let Some(at) = place(offset, data.len()) else { break };
            match rustix::io::pread(&self.0, rustix::buffer::spare_capacity(&mut data), at) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(refusal(e)),
            }
        }
        // The allocator may have given more room than requested, and the file may have filled it.
        data.truncate(most as usize);
        Ok(data)
    }

    /// The file's status now.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn stat(&self) -> Result<Status, Error> {
        let stat = fs::fstat(&self.0).map_err(refusal)?;
        Ok(Status {
            kind: kind(FileType::from_raw_mode(stat.st_mode)),
            size: stat.st_size.cast_unsigned(),
            modified: stat.st_mtime,
        })
    }
}

/// The names in a directory, as they were when it was opened.
#[derive(Debug)]
pub struct Listing(Vec<Entry>);

impl Listing {
    /// At most `most` names from number `start` on.
    ///
    /// # Errors
    /// [`Error::TooMuch`] above [`MOST_ENTRIES`].
    pub fn entries(&self, start: u64, most: u32) -> Result<&[Entry], Error> {
        if most > MOST_ENTRIES {
            return Err(Error::TooMuch(MOST_ENTRIES));
        }
        let start = usize::try_from(start).unwrap_or(usize::MAX).min(self.0.len());
        let end = start.saturating_add(most as usize).min(self.0.len());
        Ok(&self.0[start..end])
    }
}

/// The position of byte `filled` of a read that began at `offset`; `None` beyond what the kernel
/// can address.
fn place(offset: u64, filled: usize) -> Option<u64> {
    offset.checked_add(filled as u64).filter(|at| i64::try_from(*at).is_ok())
}

fn kind(of: FileType) -> Kind {
    match of {
        FileType::RegularFile => Kind::Regular,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Link,
        _ => Kind::Other,
    }
}

fn refusal(errno: Errno) -> Error {
    match errno {
        Errno::NOENT | Errno::NOTDIR => Error::NotFound,
        Errno::ACCESS | Errno::PERM => Error::Denied,
        Errno::XDEV => Error::Outside,
        Errno::INVAL | Errno::NAMETOOLONG | Errno::LOOP => Error::BadPath,
        Errno::ISDIR => Error::WrongKind(Kind::Directory),
        // This happens when opening a socket, or a device without a driver.
        Errno::NXIO | Errno::NODEV => Error::WrongKind(Kind::Other),
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => Error::Exhausted,
        other => Error::System(other.raw_os_error()),
    }
}

/// A path as text for people. Bytes that are not UTF-8 are escaped, so that nothing is hidden.
pub fn shown(path: &[u8]) -> String {
    match std::str::from_utf8(path) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => path.escape_ascii().to_string(),
    }
}

/// The bytes of a path.
pub fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}
