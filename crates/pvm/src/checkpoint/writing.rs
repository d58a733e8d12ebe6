//! Writes a checkpoint, on a thread of its own, so that the machine goes on while the disk works.
//!
//! The file takes the place of the former one when all of it is on the disk, in one step
//! ([`naming`](super::naming)).
//!
//! # Cancellation
//! A checkpoint is cancelled or gets its name, and not both: [`CheckpointEnds`] goes once from
//! `Open` to one of these. If it is cancelled, the thread reports that after the file is gone.

use super::naming::{FormerFile, NamingStep, NewFile, UntilWhole, clean, sync};
use super::{CheckpointError, PREAMBLE, SavedPlace, SectionKind, SectionWords, WORDS, preamble};
use crate::moves;
use rustix::process::Signal;
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use upcall_os::{signal, write_back};

/// Number of bytes that are written at once: each switch to the thread takes as long as the copy of
/// a section.
const GATHERED: usize = 1 << 20;
/// Maximum number of such pieces that wait to be written.
const WAITING: usize = 16;
/// Number of bytes after which the kernel begins to write them to the disk.
const AHEAD: u64 = 4 << 20;

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
    ends: Arc<Mutex<CheckpointEnds>>,
}

/// How a checkpoint ends; see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckpointEnds {
    Open,
    Cancelled,
    /// It gets its name.
    Named,
}

/// What a test wants of a writer.
pub(crate) trait WriterTrial: Send {
    /// Called before each step.
    fn before(&mut self, step: NamingStep);

    /// Whether the file is to have a name from the beginning.
    fn until_whole(&self) -> UntilWhole;
}

impl CheckpointWriter {
    /// Begins a checkpoint that will have this absolute path. `done` is called on the thread.
    ///
    /// # Errors
    /// See [`CheckpointError::File`].
    pub(crate) fn begin(
        path: PathBuf,
        mut trial: impl WriterTrial + 'static,
        done: impl FnOnce(Written) + Send + 'static,
    ) -> Result<Self, CheckpointError> {
        let failed = |error| CheckpointError::File { path: path.clone(), error };
        trial.before(NamingStep::Create);
        let file = NewFile::create(&path, trial.until_whole()).map_err(failed)?;
        let (sender, pieces) = sync_channel(WAITING);
        let (to, ends) = (path.clone(), Arc::new(Mutex::new(CheckpointEnds::Open)));
        let thread_ends = ends.clone();
        let write = move || {
            // A file that is too long for the limit is an error, and does not end the process.
            let _ = signal::block(Signal::XFSZ.as_raw());
            // `None`: the checkpoint was given up, and there is nothing to report.
            match write(file, &to, &pieces, &thread_ends, &mut |step| trial.before(step)) {
                Ok(None) => {}
                Ok(Some((length, former))) => {
                    trial.before(NamingStep::Clean);
                    clean(&to);
                    done(Ok(length));
                    // The kernel takes a while to give back what a large file has.
                    drop(former);
                }
                Err(WriteError::Cancelled) => done(Err(CheckpointError::Cancelled)),
                Err(WriteError::File(error)) => {
                    done(Err(CheckpointError::File { path: to, error }));
                }
            }
        };
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(write);
        let thread = Some(thread.map_err(failed)?);
        Ok(Self { pieces: Some(sender), gathered: Vec::new(), bytes: 0, thread, ends })
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

    /// Lets the file not take its name, unless it does already. The thread reports which it is.
    pub(crate) fn cancel(&self) {
        ends_as(&self.ends, CheckpointEnds::Cancelled);
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

/// Why a file does not get its name.
enum WriteError {
    File(io::Error),
    Cancelled,
}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> Self {
        Self::File(error)
    }
}

/// Lets a checkpoint end in this way, unless it ends in another one. Returns how it ends.
fn ends_as(ends: &Mutex<CheckpointEnds>, as_one: CheckpointEnds) -> CheckpointEnds {
    // Nothing panics while it holds this.
    let mut ends = ends.lock().unwrap_or_else(PoisonError::into_inner);
    if *ends == CheckpointEnds::Open {
        *ends = as_one;
    }
    *ends
}

/// Writes all pieces, and returns their length. `None`: there was no end.
fn write(
    mut file: NewFile,
    path: &Path,
    pieces: &Receiver<FilePiece>,
    ends: &Mutex<CheckpointEnds>,
    step: &mut dyn FnMut(NamingStep),
) -> Result<Option<(u64, FormerFile)>, WriteError> {
    let mut written = WrittenPart { number: 0, length: PREAMBLE as u64, begun: 0 };
    (&file.file).write_all(&preamble())?;
    loop {
        match pieces.recv() {
            Ok(FilePiece::Sections(all)) => written.add(&file.file, &all)?,
            Ok(FilePiece::End) => break,
            Err(_) => return Ok(None),
        }
    }
    step(NamingStep::Sync);
    sync(&file.file)?;
    if ends_as(ends, CheckpointEnds::Named) == CheckpointEnds::Cancelled {
        return Err(WriteError::Cancelled);
    }
    let former = file.take_name(path, step)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    struct NoTrial;

    impl WriterTrial for NoTrial {
        fn before(&mut self, _step: NamingStep) {}

        fn until_whole(&self) -> UntilWhole {
            UntilWhole::Named
        }
    }

    #[test]
    fn a_checkpoint_is_cancelled_without_a_file_unless_it_has_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        std::fs::write(&path, "former").unwrap();
        let begin = || {
            let (sender, done) = channel();
            let done_to = move |written| sender.send(written).unwrap();
            (CheckpointWriter::begin(path.clone(), NoTrial, done_to).unwrap(), done)
        };
        let (mut writer, done) = begin();
        writer.section(SectionKind::Head, vec![0; 2 * GATHERED]);
        writer.cancel();
        writer.end();
        assert!(matches!(done.recv().unwrap(), Err(CheckpointError::Cancelled)));
        assert_eq!(std::fs::read(&path).unwrap(), b"former");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let (mut writer, done) = begin();
        writer.end();
        assert!(done.recv().unwrap().is_ok());
        // Too late.
        writer.cancel();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), PREAMBLE as u64);
    }
}
