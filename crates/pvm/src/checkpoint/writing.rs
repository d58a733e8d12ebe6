//! Writes a checkpoint, on a thread of its own, so that the machine goes on while the disk works.
//!
//! The file has no name while it is written (`O_TMPFILE`), so nothing is left of it if this process
//! ends. When all of it is on the disk, it takes the place of the former file in one step. Where
//! the folder's file system has no files without names, the file has a name of its own at first.

use super::{CheckpointError, PREAMBLE, SavedPlace, SectionKind, SectionWords, WORDS, preamble};
use crate::moves;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fsync, linkat, open, renameat, unlink};
use rustix::io::Errno;
use rustix::process::Signal;
use std::collections::hash_map::RandomState;
use std::fs::File;
use std::hash::BuildHasher;
use std::io::{self, IoSlice, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use upcall_os::{signal, write_back};

/// Number of bytes that are written at once: each switch to the thread takes as long as the copy of
/// a section.
const GATHERED: usize = 1 << 20;
/// Maximum number of such pieces that wait to be written.
const WAITING: usize = 16;
/// Number of bytes after which the kernel begins to write them to the disk.
const AHEAD: u64 = 4 << 20;
/// Only the owner reads a checkpoint: it has the memory of all tasks.
const MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// A checkpoint that was written: its length in bytes, or the error.
pub(crate) type Written = Result<u64, CheckpointError>;

/// A part of the file, or its end.
enum FilePiece {
    Sections(Vec<FileSection>),
    End,
}

/// A section, without its words.
struct FileSection {
    kind: SectionKind,
    /// The task that the section is about, as it is written.
    place: Vec<u8>,
    contents: Vec<u8>,
    /// The sum of the contents, if it is known.
    sum: Option<u64>,
}

/// A checkpoint that is being written. Dropping this without [`end`](Self::end) leaves no file.
pub(crate) struct CheckpointWriter {
    pieces: Option<SyncSender<FilePiece>>,
    /// Sections that were not passed to the thread yet, and their number of bytes.
    gathered: Vec<FileSection>,
    bytes: usize,
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
            // A file that is too long for the limit is an error, and does not end the process.
            let _ = signal::block(Signal::XFSZ.as_raw());
            // `None`: the checkpoint was given up, and there is nothing to report.
            match write(file, &to, &pieces) {
                Ok(None) => {}
                Ok(Some((length, former))) => {
                    done(Ok(length));
                    // The kernel takes a while to give back what a large file has.
                    drop(former);
                }
                Err(error) => done(Err(CheckpointError::File { path: to, error })),
            }
        };
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(write);
        let thread = Some(thread.map_err(failed)?);
        Ok(Self { pieces: Some(sender), gathered: Vec::new(), bytes: 0, thread })
    }

    /// Adds a section. Waits while the disk is slower. After an error, does nothing.
    pub(crate) fn section(&mut self, kind: SectionKind, contents: Vec<u8>) {
        self.add(FileSection { kind, place: Vec::new(), contents, sum: None });
    }

    /// Adds a section about a task, in the same way. `sum` is the sum of the contents, if the
    /// caller has it.
    pub(crate) fn of_task(
        &mut self,
        kind: SectionKind,
        place: SavedPlace,
        contents: Vec<u8>,
        sum: Option<u64>,
    ) {
        // For this type this does not fail.
        let place = postcard::to_stdvec(&place).unwrap_or_default();
        self.add(FileSection { kind, place, contents, sum });
    }

    fn add(&mut self, section: FileSection) {
        self.bytes += section.contents.len();
        self.gathered.push(section);
        if self.bytes >= GATHERED {
            self.pass();
        }
    }

    /// Passes the gathered sections to the thread.
    fn pass(&mut self) {
        let all = std::mem::take(&mut self.gathered);
        self.bytes = 0;
        self.send(FilePiece::Sections(all));
    }

    fn send(&self, piece: FilePiece) {
        // The thread has reported its error itself.
        let _ = self.pieces.as_ref().map(|pieces| pieces.send(piece));
    }

    /// Lets the file take its name once it is on the disk.
    pub(crate) fn end(&mut self) {
        self.pass();
        self.send(FilePiece::End);
        self.pieces = None;
    }

    /// Lets the thread end by itself, because the file is written.
    pub(crate) fn leave(mut self) {
        self.thread = None;
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

/// The file that had the name before, if there was one. Its contents go when this is dropped.
type FormerFile = Option<OwnedFd>;

/// Writes all pieces, and returns their length. `None`: there was no end.
fn write(
    mut file: Unnamed,
    path: &Path,
    pieces: &Receiver<FilePiece>,
) -> io::Result<Option<(u64, FormerFile)>> {
    let mut written = WrittenPart { number: 0, length: PREAMBLE as u64, begun: 0 };
    (&file.file).write_all(&preamble())?;
    loop {
        match pieces.recv() {
            Ok(FilePiece::Sections(all)) => written.add(&file.file, &all)?,
            Ok(FilePiece::End) => break,
            Err(_) => return Ok(None),
        }
    }
    let former = file.take_name(path)?;
    Ok(Some((written.length, former)))
}

/// What has been written of a file.
struct WrittenPart {
    /// Number of sections.
    number: u32,
    /// Number of bytes, and of those that are on their way to the disk.
    length: u64,
    begun: u64,
}

impl WrittenPart {
    /// Writes sections.
    fn add(&mut self, to: &File, sections: &[FileSection]) -> io::Result<()> {
        let heads = sections.iter().map(|section| self.head(section)).collect::<Vec<_>>();
        let both = heads
            .iter()
            .zip(sections)
            .flat_map(|(head, section)| [IoSlice::new(head), IoSlice::new(&section.contents)]);
        write_all(to, &mut both.collect::<Vec<_>>())?;
        if self.length - self.begun >= AHEAD {
            // The disk works while this process packs the next tasks.
            write_back::begin(to, self.begun, self.length - self.begun);
            self.begun = self.length;
        }
        Ok(())
    }

    /// What comes before the contents of the next section.
    fn head(&mut self, section: &FileSection) -> Vec<u8> {
        let FileSection { kind, place, contents, sum } = section;
        let length = (place.len() + contents.len()) as u64;
        let sum = joined(place, sum.unwrap_or_else(|| moves::sum(contents)));
        let words = SectionWords { kind: *kind as u32, number: self.number, length, sum };
        self.number += 1;
        self.length += WORDS as u64 + length;
        [&words.bytes()[..], place].concat()
    }
}

/// Writes all of these, one after the other.
fn write_all(mut to: &File, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match to.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => IoSlice::advance_slices(&mut slices, count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The sum of a section's contents, which are in two parts.
pub(super) fn sum(place: &[u8], contents: &[u8]) -> u64 {
    joined(place, moves::sum(contents))
}

/// The same from the sum of the second part.
fn joined(place: &[u8], contents: u64) -> u64 {
    moves::sum(place).rotate_left(7) ^ contents
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
    fn take_name(&mut self, path: &Path) -> io::Result<FormerFile> {
        fsync(&self.file)?;
        if self.name.is_none() {
            let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            let link = |to: &Path| linkat(CWD, &*own, CWD, to, AtFlags::SYMLINK_FOLLOW);
            match link(path) {
                Ok(()) => return sync_folder(path).map(|()| None),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            let name = other_name(path);
            link(&name)?;
            self.name = Some(name);
        }
        let former = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        if let Some(name) = &self.name {
            renameat(CWD, name, CWD, path)?;
        }
        self.name = None;
        sync_folder(path)?;
        Ok(former.ok())
    }
}

impl Drop for Unnamed {
    fn drop(&mut self) {
        self.name.iter().for_each(|name| _ = unlink(name));
    }
}

/// A name beside the file's, which no other file has. A machine that was killed may have left one,
/// and had the same process number in another namespace.
fn other_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    let random = RandomState::new().hash_one(0);
    name.push(format!(".new.{}.{random:016x}", std::process::id()));
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
