//! The work: every regular file of a tree, read from beginning to end and digested, by any carrier
//! of the calls.
//!
//! The walk uses only [`Transport`], so a plain function call, a call to another process and a
//! socket do the same work in the same order. Links are counted and not followed: their targets
//! inside the tree are found under their own names.

use crate::files::{Entry, Error, Kind, Status};
use crate::tree::shown;
use sha2::{Digest, Sha256};
use std::fmt;

/// A carrier of a walk's calls.
pub trait Transport {
    /// An open file.
    type File;
    /// An open directory.
    type Directory;

    /// Opens a file to be read.
    ///
    /// # Errors
    /// [`Problem`], as in every other call.
    fn open(&mut self, path: &[u8]) -> Result<Self::File, Problem>;

    /// The file's status now.
    fn stat(&mut self, file: &Self::File) -> Result<Status, Problem>;

    /// The bytes from `offset` on: at most `most`, none only at the end. They are valid until the
    /// next call.
    fn read(&mut self, file: &Self::File, offset: u64, most: u32) -> Result<&[u8], Problem>;

    /// Closes a file, without waiting for a reply.
    fn close(&mut self, file: Self::File) -> Result<(), Problem>;

    /// Opens a directory to be listed.
    fn open_directory(&mut self, path: &[u8]) -> Result<Self::Directory, Problem>;

    /// The names from number `start` on: at most `most`, none if there are no more.
    fn entries(
        &mut self,
        directory: &Self::Directory,
        start: u64,
        most: u32,
    ) -> Result<Vec<Entry>, Problem>;

    /// Closes a directory, without waiting for a reply.
    fn close_directory(&mut self, directory: Self::Directory) -> Result<(), Problem>;
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The server refused: this file is lost, and the walk goes on.
    Refused(Error),
    /// There was no reply: the walk is over.
    Broken(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(error) => f.write_str(&reason(error)),
            Self::Broken(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Problem {}

/// The server's refusal in words.
pub fn reason(error: &Error) -> String {
    match error {
        Error::NotFound => "no such file".to_owned(),
        Error::Denied => "the server's user may not read it".to_owned(),
        Error::Outside => "the path leads out of the served tree".to_owned(),
        Error::BadPath => {
            "no usable path (too long, too many links, or a zero byte in it)".to_owned()
        }
        Error::WrongKind(Kind::Regular) => "it is a regular file".to_owned(),
        Error::WrongKind(Kind::Directory) => "it is a directory".to_owned(),
        Error::WrongKind(Kind::Link) => "it is a symbolic link".to_owned(),
        Error::WrongKind(Kind::Other) => "it is a pipe, a socket or a device".to_owned(),
        Error::TooMuch(most) => {
            format!("more was asked for than the server gives at once ({most})")
        }
        Error::Exhausted => "the server has no descriptors or no memory left".to_owned(),
        Error::System(number) => std::io::Error::from_raw_os_error(*number).to_string(),
    }
}

/// A SHA-256 digest.
pub type Sum = [u8; 32];

/// A file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its path from the root of the tree.
    pub path: Vec<u8>,
    /// Number of bytes that were read.
    pub bytes: u64,
    /// The digest of these bytes.
    pub sum: Sum,
}

/// The result of a walk, which accounts for everything in the tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walked {
    /// The regular files, in the order of the walk.
    pub files: Vec<Seen>,
    /// Number of directories, including the root.
    pub directories: u64,
    /// Number of symbolic links, which were not followed.
    pub links: u64,
    /// Number of pipes, sockets and devices, which were not opened.
    pub others: u64,
    /// Number of names that are not UTF-8. Their files were read like all others.
    pub foreign_names: u64,
    /// What could not be read, and why.
    pub refused: Vec<(Vec<u8>, Problem)>,
}

impl Walked {
    /// Number of bytes that were read.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|f| f.bytes).sum()
    }

    /// One digest over everything that was read: of each file its path, its length and its digest,
    /// in the order of the walk.
    pub fn sum(&self) -> Sum {
        let mut over_all = Sha256::new();
        for file in &self.files {
            over_all.update((file.path.len() as u64).to_le_bytes());
            over_all.update(&file.path);
            over_all.update(file.bytes.to_le_bytes());
            over_all.update(file.sum);
        }
        over_all.finalize().into()
    }

    /// Records one name of a directory. Returns its path if the walk is to visit it.
    pub(crate) fn meet(&mut self, directory: &[u8], name: &[u8], kind: Kind) -> Option<Vec<u8>> {
        self.foreign_names += u64::from(std::str::from_utf8(name).is_err());
        match kind {
            Kind::Regular | Kind::Directory => Some(joined(directory, name)),
            Kind::Link => {
                self.links += 1;
                None
            }
            Kind::Other => {
                self.others += 1;
                None
            }
        }
    }
}

/// Number of names requested in one call.
const PAGE: u32 = 128;

/// Number of bytes after which a file without a size counts as endless.
const ENDLESS: u64 = 1 << 30;

/// Walks the tree, in chunks of `chunk` bytes. Calls `progress` with the bytes of each file when it
/// is done.
///
/// # Errors
/// [`Problem::Broken`], and [`Problem::Refused`] for the root itself. What is refused below it is
/// recorded in [`Walked::refused`].
pub fn walk<T: Transport>(
    transport: &mut T,
    chunk: u32,
    progress: &mut dyn FnMut(u64),
) -> Result<Walked, Problem> {
    let mut walked = Walked::default();
    let mut waiting = vec![Vec::new()];
    while let Some(directory) = waiting.pop() {
        let entries = match listing(transport, &directory) {
            Ok(entries) => entries,
            Err(refused @ Problem::Refused(_)) if !directory.is_empty() => {
                walked.refused.push((directory, refused));
                continue;
            }
            Err(problem) => return Err(problem),
        };
        walked.directories += 1;
        let below = waiting.len();
        for entry in entries {
            let Some(path) = walked.meet(&directory, &entry.name, entry.kind) else { continue };
            if entry.kind == Kind::Directory {
                waiting.push(path);
                continue;
            }
            match file(transport, path, chunk) {
                Ok(seen) => {
                    progress(seen.bytes);
                    walked.files.push(seen);
                }
                Err((path, refused @ Problem::Refused(_))) => walked.refused.push((path, refused)),
                Err((path, Problem::Broken(why))) => {
                    return Err(Problem::Broken(format!("while reading {}: {why}", shown(&path))));
                }
            }
        }
        // A stack returns the last entry first, and the names are sorted.
        waiting[below..].reverse();
    }
    Ok(walked)
}

/// Reads one file from beginning to end.
///
/// The end is the file's size when it was opened, or earlier if the file has shrunk since. So a
/// growing file does not keep the walk from ending.
///
/// # Errors
/// [`Problem`], with the path given back.
pub fn file<T: Transport>(
    transport: &mut T,
    path: Vec<u8>,
    chunk: u32,
) -> Result<Seen, (Vec<u8>, Problem)> {
    let read = |transport: &mut T| {
        let file = transport.open(&path)?;
        let done = contents(transport, &file, chunk);
        transport.close(file)?;
        done
    };
    match read(transport) {
        Ok((bytes, sum)) => Ok(Seen { path, bytes, sum }),
        Err(problem) => Err((path, problem)),
    }
}

fn contents<T: Transport>(
    transport: &mut T,
    file: &T::File,
    chunk: u32,
) -> Result<(u64, Sum), Problem> {
    let size = transport.stat(file)?.size;
    let mut sum = Sha256::new();
    let mut at = 0;
    loop {
        let left = if size == 0 { ENDLESS - at } else { size - at };
        if left == 0 {
            break;
        }
        let data = transport.read(file, at, u32::try_from(left).unwrap_or(u32::MAX).min(chunk))?;
        if data.is_empty() {
            break;
        }
        if data.len() as u64 > left.min(u64::from(chunk)) {
            return Err(Problem::Broken(format!(
                "{} bytes came where at most {} were asked for",
                data.len(),
                left.min(u64::from(chunk))
            )));
        }
        sum.update(data);
        at += data.len() as u64;
    }
    Ok((at, sum.finalize().into()))
}

fn listing<T: Transport>(transport: &mut T, path: &[u8]) -> Result<Vec<Entry>, Problem> {
    let directory = transport.open_directory(path)?;
    let mut all = Vec::new();
    let done = loop {
        match transport.entries(&directory, all.len() as u64, PAGE) {
            Ok(page) if page.is_empty() => break Ok(all),
            Ok(mut page) => all.append(&mut page),
            Err(problem) => break Err(problem),
        }
    };
    transport.close_directory(directory)?;
    done
}

fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() {
        return name.to_vec();
    }
    [directory, b"/", name].concat()
}
