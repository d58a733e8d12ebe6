//! The same tree, read without any server: the calls are proved against it.
//!
//! This shares no code with the walk or the server, except the form of its result, so that a
//! mistake in one of them is not made twice.

use crate::files::{Error, Kind};
use crate::tree::bytes;
use crate::walk::{Problem, Seen, Walked};
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Reads every regular file below `root`, in the order of the walk. Calls `progress` with the bytes
/// of each file.
///
/// # Errors
/// If `root` could not be listed. What is refused below it is recorded.
pub fn read_tree(root: &Path, progress: &mut dyn FnMut(u64)) -> io::Result<Walked> {
    let mut walked = Walked::default();
    directory(root, b"", progress, &mut walked)?;
    Ok(walked)
}

fn directory(
    root: &Path,
    path: &[u8],
    progress: &mut dyn FnMut(u64),
    walked: &mut Walked,
) -> io::Result<()> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root.join(OsStr::from_bytes(path)))? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let kind = match kind {
            _ if kind.is_file() => Kind::Regular,
            _ if kind.is_dir() => Kind::Directory,
            _ if kind.is_symlink() => Kind::Link,
            _ => Kind::Other,
        };
        names.push((entry.file_name(), kind));
    }
    names.sort_by(|(a, _), (b, _)| a.cmp(b));
    walked.directories += 1;
    let mut below = Vec::new();
    for (name, kind) in names {
        match walked.meet(path, name.as_bytes(), kind) {
            Some(path) if kind == Kind::Directory => below.push(path),
            Some(path) => match read_file(root, &path) {
                Ok(seen) => {
                    progress(seen.bytes);
                    walked.files.push(seen);
                }
                Err(e) => walked.refused.push((path, problem(&e))),
            },
            None => {}
        }
    }
    for path in below {
        if let Err(e) = directory(root, &path, progress, walked) {
            walked.refused.push((path, problem(&e)));
        }
    }
    Ok(())
}

/// Reads one file from beginning to end.
///
/// # Errors
/// The system's.
pub fn read_file(root: &Path, path: &[u8]) -> io::Result<Seen> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let mut file: File = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(root.join(OsStr::from_bytes(path)))?;
    let size = file.metadata()?.len();
    let mut sum = Sha256::new();
    // As in the walk, the size at opening is the end, so that a file that is still being written
    // has an end.
    let mut left = if size == 0 { u64::MAX } else { size };
    let mut bytes = 0;
    let mut buffer = vec![0; 128 << 10];
    loop {
        let room = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match file.read(&mut buffer[..room]) {
            Ok(0) => break,
            Ok(n) => {
                sum.update(&buffer[..n]);
                (bytes, left) = (bytes + n as u64, left - n as u64);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(Seen { path: path.to_vec(), bytes, sum: sum.finalize().into() })
}

/// Returns `true` if this is the directory that the server reports as its own.
pub fn same_directory(mine: &Path, served: &[u8]) -> bool {
    let Ok(mine) = mine.canonicalize() else { return false };
    bytes(&mine) == served
}

fn problem(error: &io::Error) -> Problem {
    Problem::Refused(match error.kind() {
        io::ErrorKind::NotFound => Error::NotFound,
        io::ErrorKind::PermissionDenied => Error::Denied,
        _ => Error::System(error.raw_os_error().unwrap_or(0)),
    })
}
