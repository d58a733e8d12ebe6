//! Writes a checkpoint, on a thread of its own, so that the machine goes on while the disk works.
//!
//! The file has no name while it is written (`O_TMPFILE`), so nothing is left of it if this process
//! ends. When all of it is on the disk, it takes the place of the former file in one step. Where
//! the folder's file system has no files without names, the file has a name of its own at first.

use super::{CheckpointError, SavedPlace, SectionKind, SectionWords, preamble};
use crate::moves;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fsync, linkat, open, renameat, unlink};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Maximum number of sections that wait to be written.
const WAITING: usize = 256;
/// Only the owner reads a checkpoint: it has the memory of all tasks.
const MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// A checkpoint that was written: its length in bytes, or the error.
pub(crate) type Written = Result<u64, CheckpointError>;

/// A part of the file, or its end.
enum FilePiece {
    Section(SectionKind, Vec<u8>, Vec<u8>),
    End,
}

/// A checkpoint that is being written. Dropping this without [`end`](Self::end) leaves no file.
pub(crate) struct CheckpointWriter {
    pieces: Option<SyncSender<FilePiece>>,
    thread: Option<JoinHandle<()>>,
}

impl CheckpointWriter {
    /// Begins a checkpoint that will have this absolute path. `done` is called on the thread.
    ///
    /// # Errors
    /// See [`CheckpointError::File`].
    pub(crate) fn begin(
        path: PathBuf,
        done: impl FnOnce(Written) + Send + 'static,
    ) -> Result<Self, CheckpointError> {
        let failed = |error| CheckpointError::File { path: path.clone(), error };
        let file = Unnamed::create(&path).map_err(failed)?;
        let (sender, pieces) = sync_channel(WAITING);
        let to = path.clone();
        let write = move || {
            // `None`: the checkpoint was given up, and there is nothing to report.
            if let Some(written) = write(file, &to, &pieces).transpose() {
                done(written.map_err(|error| CheckpointError::File { path: to, error }));
            }
        };
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(write);
        let thread = Some(thread.map_err(failed)?);
        Ok(Self { pieces: Some(sender), thread })
    }

    /// Adds a section. Waits while the disk is slower. After an error, does nothing.
    pub(crate) fn section(&self, kind: SectionKind, contents: Vec<u8>) {
        self.send(FilePiece::Section(kind, Vec::new(), contents));
    }

    /// Adds a section about a task, in the same way.
    pub(crate) fn of_task(&self, kind: SectionKind, place: SavedPlace, contents: Vec<u8>) {
        // For this type this fails only without memory, and then the file is not whole.
        let place = postcard::to_stdvec(&place).unwrap_or_default();
        self.send(FilePiece::Section(kind, place, contents));
    }

    fn send(&self, piece: FilePiece) {
        // The thread has reported its error itself.
        let _ = self.pieces.as_ref().map(|pieces| pieces.send(piece));
    }

    /// Lets the file take its name once it is on the disk.
    pub(crate) fn end(&mut self) {
        self.send(FilePiece::End);
        self.pieces = None;
    }

    /// Waits until the file is written.
    pub(crate) fn wait(&mut self) {
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Drop for CheckpointWriter {
    fn drop(&mut self) {
        self.pieces = None;
        self.wait();
    }
}

/// Writes all pieces. `None`: there was no end.
fn write(mut file: Unnamed, path: &Path, pieces: &Receiver<FilePiece>) -> io::Result<Option<u64>> {
    let mut to = &file.file;
    to.write_all(&preamble())?;
    let (mut number, mut length) = (0, preamble().len() as u64);
    loop {
        let Ok(FilePiece::Section(kind, mut place, contents)) = pieces.recv() else {
            return Ok(None);
        };
        let words = SectionWords {
            kind: kind as u32,
            number,
            length: (place.len() + contents.len()) as u64,
            sum: sum(&place, &contents),
        };
        place.splice(..0, words.bytes());
        to.write_all(&place)?;
        to.write_all(&contents)?;
        length += (place.len() + contents.len()) as u64;
        number += 1;
        if kind == SectionKind::End {
            break;
        }
    }
    let Ok(FilePiece::End) = pieces.recv() else { return Ok(None) };
    file.take_name(path)?;
    Ok(Some(length))
}

/// The sum of a section's contents, which are in two parts.
pub(super) fn sum(place: &[u8], contents: &[u8]) -> u64 {
    moves::sum(place).rotate_left(7) ^ moves::sum(contents)
}

/// A file that is not visible under its name yet.
struct Unnamed {
    file: File,
    /// Its name until then, where it has to have one.
    name: Option<PathBuf>,
}

impl Unnamed {
    /// A file in the folder of this path.
    fn create(path: &Path) -> io::Result<Self> {
        let named = path.file_name().is_some() && !path.is_dir();
        let folder = path.parent().filter(|_| named).ok_or(io::ErrorKind::IsADirectory)?;
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        match open(folder, flags | OFlags::TMPFILE, MODE) {
            Ok(file) => return Ok(Self { file: file.into(), name: None }),
            // What file systems, and kernels, without such files say.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
        let name = other_name(path);
        let file = open(&name, flags | OFlags::CREATE | OFlags::EXCL, MODE)?;
        Ok(Self { file: file.into(), name: Some(name) })
    }

    /// Puts the file, once it is on the disk, in the place of this one.
    fn take_name(&mut self, path: &Path) -> io::Result<()> {
        fsync(&self.file)?;
        if self.name.is_none() {
            let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            let link = |to: &Path| linkat(CWD, &*own, CWD, to, AtFlags::SYMLINK_FOLLOW);
            match link(path) {
                Ok(()) => return sync_folder(path),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            let name = other_name(path);
            link(&name)?;
            self.name = Some(name);
        }
        if let Some(name) = &self.name {
            renameat(CWD, name, CWD, path)?;
        }
        self.name = None;
        sync_folder(path)
    }
}

impl Drop for Unnamed {
    fn drop(&mut self) {
        self.name.iter().for_each(|name| _ = unlink(name));
    }
}

/// A name beside the file's, which no other machine uses.
fn other_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".new.{}", std::process::id()));
    name.into()
}

/// Makes the file's name last.
fn sync_folder(path: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder: OwnedFd = open(path.parent().unwrap_or(path), flags, Mode::empty())?;
    match fsync(&folder) {
        // Some file systems cannot do that.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
