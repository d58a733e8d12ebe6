//! A task whose contents arrive, in the process that it enters, or from a checkpoint.
//!
//! A part that cannot be taken names the reason: the task cannot run here, or its contents must be
//! sent because this process cannot read them.

use super::{MessageHead, PackedFolder, PackedTask, PartHead, SentBlock};
use crate::moves::{Refusal, ShownPath};
use crate::task::{BlockTable, Task, TaskMessage};
use crate::tid::Tid;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};
use std::{io, mem};
use upcall_ulp::twins::Adopted;
use upcall_ulp::{
    ArrivingUlp, Block, ClockOrigin, Image, NoImage, NotArrived, PageRun, PageSum, Ulp,
};

/// A task whose contents arrive.
#[derive(Debug)]
pub(crate) struct FillingTask {
    packed: PackedTask,
    image: Rc<Image>,
    ulp: ArrivingUlp,
    blocks: Vec<ArrivingBlock>,
    inbox: VecDeque<TaskMessage>,
    /// What has arrived of the next message.
    message: Vec<u8>,
    /// The sum of all pages that were sent, once all contents are here.
    sum: Option<PageSum>,
    /// Number of bytes that have arrived.
    bytes: u64,
}

/// The reason why a part was not taken.
#[derive(Debug)]
pub(crate) enum FillError {
    /// The task cannot run here.
    Refused(Refusal),
    /// The kernel does not let this process read the other one's memory.
    Unreadable,
}

impl From<Refusal> for FillError {
    fn from(why: Refusal) -> Self {
        Self::Refused(why)
    }
}

/// Returns `true` if the kernel does not let this process read the other one's memory.
pub(crate) fn is_unreadable(why: &NotArrived) -> bool {
    let NotArrived::Memory { error, .. } = why else { return false };
    matches!(not_read(error), FillError::Unreadable)
}

/// What a failed attempt to read another process's memory means.
fn not_read(error: &io::Error) -> FillError {
    match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::PERM | rustix::io::Errno::NOSYS) => FillError::Unreadable,
        _ if error.kind() == io::ErrorKind::OutOfMemory => Refusal::Memory.into(),
        _ => Refusal::Damaged.into(),
    }
}

#[derive(Debug)]
struct ArrivingBlock {
    block: Block,
    /// The offset of the next piece. `None`: the contents were here already.
    next: Option<usize>,
}

/// The reason to refuse a task if the kernel refuses what it takes, and otherwise `other`.
fn refused_by_kernel(error: &io::Error, other: Refusal) -> Refusal {
    match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => Refusal::Descriptors,
        Some(rustix::io::Errno::NOMEM) => Refusal::Memory,
        _ => other,
    }
}

/// The reason to refuse a task whose program cannot be used here. `None`: there is no such file.
pub(crate) fn refused_program(why: Option<NoImage>) -> Refusal {
    match why {
        Some(NoImage::File(_, error)) => refused_by_kernel(&error, Refusal::Program),
        _ => Refusal::Program,
    }
}

/// The reason to refuse a task whose ULP did not arrive.
fn refusal(why: &NotArrived) -> Refusal {
    match why {
        NotArrived::Processor(_) => Refusal::Processor,
        NotArrived::Version { .. } | NotArrived::OtherProgram { .. } => Refusal::Program,
        NotArrived::Slot(_) => Refusal::Memory,
        NotArrived::Memory { error, .. } => refused_by_kernel(error, Refusal::Memory),
        NotArrived::Descriptors(_) => Refusal::Descriptors,
        NotArrived::File { path, lack } => {
            Refusal::File { path: ShownPath::new(path), lack: *lack }
        }
        NotArrived::Unfit { .. } | NotArrived::Incomplete { .. } => Refusal::Damaged,
    }
}

impl PackedTask {
    /// Begins to make the task here. `image` is its program, and `copy` what was copied before it
    /// stopped.
    ///
    /// # Errors
    /// The reason why the task cannot run here.
    pub(crate) fn arrive(
        self,
        image: Rc<Image>,
        copy: Option<ArrivingUlp>,
    ) -> Result<FillingTask, Refusal> {
        let ulp = match copy.filter(|_| self.has_copy) {
            Some(mut ulp) => {
                ulp.update(&image, &self.ulp).map_err(|why| refusal(&why))?;
                ulp.empty(&self.gone).map_err(|why| refusal(&why))?;
                ulp
            }
            None if self.has_copy => return Err(Refusal::Damaged),
            None => Ulp::arrive(&image, &self.ulp).map_err(|why| refusal(&why))?,
        };
        let mut blocks = Vec::new();
        blocks.try_reserve(self.blocks.len()).map_err(|_| Refusal::Memory)?;
        for sent in &self.blocks {
            let owner = u32::try_from(sent.owner).map_err(|_| Refusal::Damaged)?;
            let adopted = Block::adopt(sent.name, owner).map_err(|_| Refusal::Memory)?;
            blocks.push(match adopted {
                Adopted::Here(block) => ArrivingBlock { block, next: None },
                Adopted::Empty(block) => ArrivingBlock { block, next: Some(0) },
            });
        }
        let (inbox, message, sum, bytes) = (VecDeque::new(), Vec::new(), None, 0);
        Ok(FillingTask { packed: self, image, ulp, blocks, inbox, message, sum, bytes })
    }
}

impl FillingTask {
    /// The task's own folder, if it has one.
    pub(crate) fn folder(&self) -> Option<&PackedFolder> {
        self.packed.folder.as_ref()
    }

    /// Returns `true` if the task has files.
    pub(crate) fn has_files(&self) -> bool {
        self.packed.has_files()
    }

    /// Opens the task's files, which it had open on another host.
    ///
    /// # Errors
    /// A file is not the same here, or there are too few descriptors.
    pub(crate) fn open_files(&mut self) -> Result<(), Refusal> {
        if self.has_files() {
            self.ulp.open_files().map_err(|why| refusal(&why))?;
        }
        Ok(())
    }

    /// When the task was stopped, by the kernel's clock, and the number of bytes that have arrived.
    pub(crate) fn since(&self) -> (Duration, u64) {
        (self.packed.stopped, self.bytes)
    }

    /// The blocks of which this process has copies now.
    pub(crate) fn blocks(&self) -> &[SentBlock] {
        &self.packed.blocks
    }

    /// Takes the next part of a checkpoint, which has the contents themselves.
    ///
    /// # Errors
    /// The reason why the task cannot run here.
    pub(crate) fn fill_saved(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        let (head, contents) = postcard::take_from_bytes(bytes).map_err(|_| Refusal::Damaged)?;
        match head {
            PartHead::There { .. } => Err(Refusal::Damaged),
            head => self.fill_contents(head, contents),
        }
    }

    /// Takes the next part, from this process.
    ///
    /// # Errors
    /// See [`FillError`]. Nothing of the part was taken.
    pub(crate) fn fill(&mut self, process: u32, bytes: &[u8]) -> Result<(), FillError> {
        self.count(bytes.len() as u64);
        let (head, contents) = postcard::take_from_bytes(bytes).map_err(|_| Refusal::Damaged)?;
        match head {
            PartHead::There { written, pages, inbox } => {
                self.count(written);
                self.read(process, &pages, &inbox)
            }
            head => Ok(self.fill_contents(head, contents)?),
        }
    }

    /// Reads all contents from the old process's memory.
    fn read(
        &mut self,
        process: u32,
        pages: &[PageRun],
        inbox: &[(MessageHead, u64, u64)],
    ) -> Result<(), FillError> {
        self.ulp.pull(process, pages).map_err(|why| match &why {
            NotArrived::Memory { error, .. } => not_read(error),
            why => refusal(why).into(),
        })?;
        let taken = self.ulp.take_descriptors(process);
        taken.map_err(|error| refused_by_kernel(&error, Refusal::Files))?;
        for one in self.blocks.iter_mut().filter(|one| one.next.is_some()) {
            one.block.pull(process).map_err(|error| not_read(&error))?;
            one.next = Some(one.block.capacity());
            self.bytes = self.bytes.saturating_add(one.block.capacity() as u64);
        }
        for (head, address, length) in inbox {
            let block = match *length as usize {
                0 => None,
                length => Some(
                    Block::pulled(process, *address, length).map_err(|error| not_read(&error))?,
                ),
            };
            self.inbox.push_back(head.with_block(block, *length as usize));
            self.count(*length);
        }
        pages.iter().for_each(|run| self.count(run.end - run.start));
        self.sum = Some(PageSum::default());
        Ok(())
    }

    /// Adds to the number of bytes that have arrived. The old process may have named any number.
    fn count(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Returns `true` if all contents are here.
    pub(crate) fn is_whole(&self) -> bool {
        self.sum.is_some()
    }

    fn fill_contents(&mut self, head: PartHead, contents: &[u8]) -> Result<(), Refusal> {
        match head {
            PartHead::There { .. } => Err(Refusal::Damaged),
            PartHead::Pages(runs) => self.fill_pages(&runs, contents),
            PartHead::Block { which, offset } => self.fill_block(which, offset, contents),
            PartHead::Message { head, length, offset } => {
                let (length, offset) = (length as usize, offset as usize);
                let left = length.checked_sub(offset).ok_or(Refusal::Damaged)?;
                if offset != self.message.len() || contents.len() > left {
                    return Err(Refusal::Damaged);
                }
                self.message.try_reserve(contents.len()).map_err(|_| Refusal::Memory)?;
                self.message.extend_from_slice(contents);
                if self.message.len() == length {
                    let whole = head.with(&mem::take(&mut self.message));
                    self.inbox.push_back(whole.ok_or(Refusal::Memory)?);
                }
                Ok(())
            }
            PartHead::End(sum) => {
                self.sum = Some(sum);
                Ok(())
            }
        }
    }

    fn fill_pages(&mut self, runs: &[(u64, u32)], contents: &[u8]) -> Result<(), Refusal> {
        let mut left = contents;
        for (address, length) in runs {
            let run = left.split_at_checked(*length as usize);
            let (run, rest) = run.ok_or(Refusal::Damaged)?;
            self.ulp.fill(*address, run).map_err(|why| refusal(&why))?;
            left = rest;
        }
        Ok(())
    }

    fn fill_block(&mut self, which: u32, offset: u64, contents: &[u8]) -> Result<(), Refusal> {
        let one = self.blocks.get_mut(which as usize).ok_or(Refusal::Damaged)?;
        let Some(next) = &mut one.next else { return Ok(()) };
        if *next as u64 != offset || one.block.fill(*next, contents).is_err() {
            return Err(Refusal::Damaged);
        }
        *next += contents.len();
        Ok(())
    }

    /// Makes the task, which can run then, and whose clocks have this origin.
    ///
    /// # Errors
    /// The reason why the task cannot run here.
    pub(crate) fn finish(self, tid: Tid, clocks: ClockOrigin) -> Result<Task, Refusal> {
        let Self { packed, image, ulp, blocks, inbox, message, sum, .. } = self;
        let is_whole =
            |one: &ArrivingBlock| one.next.is_none_or(|next| next == one.block.capacity());
        let sum = sum.filter(|_| message.is_empty() && blocks.iter().all(is_whole));
        let sum = sum.ok_or(Refusal::Damaged)?;
        let ulp = ulp.finish(sum, clocks).map_err(|why| refusal(&why))?;
        let mut slots = Vec::new();
        slots.try_reserve(packed.handles.len()).map_err(|_| Refusal::Memory)?;
        for handle in &packed.handles {
            let block = handle.map(|at| blocks.get(at as usize).ok_or(Refusal::Damaged));
            slots.push(block.transpose()?.map(|one| one.block.clone()));
        }
        for (one, sent) in blocks.iter().zip(&packed.blocks) {
            one.block.filled();
            if sent.is_shared {
                one.block.share_afar();
            }
        }
        let now = Instant::now();
        let alarm = |(left, again)| Some((now.checked_add(left)?, again));
        Ok(Task {
            ulp,
            state: packed.state.at(now),
            ticket: 0,
            runs: 0,
            tid,
            held: BlockTable::of(slots),
            inbox,
            left: packed.left,
            descriptor: None,
            alarm: packed.alarm.and_then(alarm),
            folder: None,
            umask: packed.umask,
            parent: packed.parent,
            siblings: packed.siblings,
            context: packed.context,
            program: packed.program.into(),
            image,
            output: packed.output,
            child_output: packed.child_output,
            options: packed.options,
            is_pinned: packed.is_pinned,
        })
    }
}
