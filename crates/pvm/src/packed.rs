//! A task as it is sent to another process of the machine.
//!
//! The process that a task leaves sends, each as one message of the group:
//!
//! ```text
//! the messages that move along     PackedHead::Message   one for each
//! all but contents                 PackedHead::Task      a PackedTask
//! the contents, in parts           PackedHead::Part      pages, blocks, the inbox, and the end
//! ```
//! On one machine there is one part, which says where the contents are. If the new process has made
//! room for the pages (`PackedHead::Early`), they are written there before this part is sent, if
//! possible while the new process takes the rest of the task. What is not there it reads from the
//! old one's memory (`upcall_ulp::ArrivingUlp::pull`). Where the kernel refuses that, it asks for
//! the contents (`PackedHead::Contents`), and the old process sends them from then on.
//!
//! Blocks that the task holds are at the same addresses in the new process
//! (`upcall_ulp::twins`), since the task knows them. It does not know those of its inbox, so their
//! contents go into new blocks.
//!
//! What arrives is checked before it is used (`filling`). A task can write over its process's
//! memory, so the process may send anything.

mod filling;

pub(crate) use self::filling::{FillError, FillingTask, is_unreadable, refused_program};
use crate::moves::KeptMessage;
use crate::output::{Output, OutputTarget};
use crate::task::{Task, TaskMessage, TaskState, Want};
use crate::tid::Tid;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::time::{Duration, Instant};
use upcall_message::Rank;
use upcall_ulp::twins::BlockName;
use upcall_ulp::{Block, ImageIdentity, PIECE, PageRun, PageSum, UlpPages, UlpState, UlpWrites};

/// The owner of blocks of a machine that was checkpointed: no process has this rank.
pub(crate) const NO_OWNER: Rank = u32::MAX as Rank;

/// What comes before the contents of each message about a task that moves.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum PackedHead {
    /// A [`PackedTask`] follows, and then this number of parts. This number of messages move with
    /// it.
    Task { tid: Tid, epoch: u64, parts: u32, messages: u32 },
    /// A message that moves with the task follows.
    Message {
        tid: Tid,
        epoch: u64,
        /// The receiver, if the task itself has sent the message.
        receiver: Option<Tid>,
        stamp: u64,
        from: Rank,
        source: Option<Tid>,
        head: MessageHead,
    },
    /// A part of the contents follows.
    Part { tid: Tid, epoch: u64, at: u32, sum: u64 },
    /// An [`EarlyTask`] follows: the task still runs.
    Early { tid: Tid, epoch: u64 },
    /// A part follows that the new process has asked for, since it cannot read the old process's
    /// memory.
    Contents { tid: Tid, epoch: u64 },
    /// For or from a checkpoint: a [`PackedTask`] follows, and then this number of parts.
    Saved { tid: Tid, parts: u32 },
    /// For or from a checkpoint: a part of the contents follows.
    SavedPart { tid: Tid, at: u32, sum: u64 },
}

/// The reason why a task is packed.
#[derive(Debug)]
pub(crate) enum PackedFor {
    /// It leaves, and blocks with other holders here are shared from now on.
    Move {
        /// Whether the new process reads the contents itself.
        are_read: bool,
        early: SentEarly,
    },
    /// It goes on, and nothing about it changes here.
    Checkpoint,
}

impl PackedFor {
    /// Whether the contents are read, and what was sent before.
    fn contents(self) -> (bool, SentEarly) {
        match self {
            Self::Move { are_read, early } => (are_read, early),
            Self::Checkpoint => (false, SentEarly::Nothing),
        }
    }
}

/// What the new process has of a task from before its stop.
#[derive(Debug)]
pub(crate) enum SentEarly {
    /// Nothing, or nothing of use.
    Nothing,
    /// Its memory. The pages are to be written there.
    Room {
        /// The new process.
        to: Rank,
        /// Its number.
        process: u32,
        /// Pages that were written there while the task ran.
        written: Vec<PageRun>,
    },
    /// Copies of its pages.
    Pages(Box<CopiedPages>),
}

/// A message without its contents.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct MessageHead {
    source: i32,
    destination: i32,
    tag: i32,
    context: i32,
    encoding: i32,
    wait: i32,
}

impl MessageHead {
    pub(crate) fn of(message: &TaskMessage) -> Self {
        let TaskMessage { source, destination, tag, context, encoding, wait, .. } = *message;
        Self { source, destination, tag, context, encoding, wait }
    }

    /// The message with these contents. `None`: there is no memory.
    pub(crate) fn with(self, contents: &[u8]) -> Option<TaskMessage> {
        let block = if contents.is_empty() { None } else { Some(Block::of(contents)?) };
        Some(self.with_block(block, contents.len()))
    }

    /// The message whose contents are in this block.
    fn with_block(self, block: Option<Block>, length: usize) -> TaskMessage {
        let Self { source, destination, tag, context, encoding, wait } = self;
        TaskMessage { source, destination, tag, context, encoding, wait, block, length }
    }
}

/// A block that a task holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SentBlock {
    pub(crate) name: BlockName,
    /// The process whose arena the block is in.
    pub(crate) owner: Rank,
    /// Whether the old process keeps a copy, so that no holder may write.
    pub(crate) is_shared: bool,
}

/// A task without contents of memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PackedTask {
    ulp: UlpState,
    program: OsString,
    state: PackedState,
    left: bool,
    /// The time until the next SIGALRM, and the period after that.
    alarm: Option<(Duration, Duration)>,
    pub(crate) folder: Option<PackedFolder>,
    pub(crate) umask: Option<u32>,
    parent: i32,
    siblings: Vec<Tid>,
    context: i32,
    output: Output,
    child_output: Output,
    options: Vec<(i32, i32)>,
    is_pinned: bool,
    /// When the task was stopped, by the kernel's clock.
    pub(crate) stopped: Duration,
    /// Whether the new process has pages of it already ([`EarlyTask`]).
    pub(crate) has_copy: bool,
    /// Pages of that copy that are not there any more.
    gone: Vec<PageRun>,
    pub(crate) blocks: Vec<SentBlock>,
    /// Indices into `blocks`, by handle.
    handles: Vec<Option<u32>>,
}

/// Pages of a task that has not stopped yet.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct EarlyTask {
    /// The ULP, in the first message: room is to be made for it.
    pub(crate) ulp: Option<UlpState>,
    pub(crate) program: OsString,
    /// The pages that will be written after the stop.
    pub(crate) expected: Vec<PageRun>,
    /// The pages that are to be read now.
    pub(crate) pages: Vec<PageRun>,
}

/// A folder, which must be the same one in the new process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PackedFolder {
    pub(crate) path: OsString,
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

/// What a task does, with times from now on.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum PackedState {
    Runs,
    Polls(Want),
    Receives(Want, Option<Duration>),
    Asks(u64),
    Sleeps(Option<Duration>),
    Awaits(i32, u16, Option<Duration>),
}

impl PackedState {
    /// `None`: the task does something with which it cannot move.
    fn of(state: TaskState, now: Instant) -> Option<Self> {
        let left = |until: Option<Instant>| until.map(|until| until.saturating_duration_since(now));
        Some(match state {
            TaskState::Starts | TaskState::Aside => return None,
            TaskState::Runs => Self::Runs,
            TaskState::Polls(want) => Self::Polls(want),
            TaskState::Receives(want, until) => Self::Receives(want, left(until)),
            TaskState::ReceivesInto(want, _) => Self::Receives(want, None),
            TaskState::Asks(op) => Self::Asks(op),
            TaskState::Sleeps(until) => Self::Sleeps(left(until)),
            TaskState::Awaits(descriptor, events, until) => {
                Self::Awaits(descriptor, events, left(until))
            }
        })
    }

    fn at(self, now: Instant) -> TaskState {
        let until = |left: Option<Duration>| left.and_then(|left| now.checked_add(left));
        match self {
            Self::Runs => TaskState::Runs,
            Self::Polls(want) => TaskState::Polls(want),
            Self::Receives(want, left) => TaskState::Receives(want, until(left)),
            Self::Asks(op) => TaskState::Asks(op),
            Self::Sleeps(left) => TaskState::Sleeps(until(left)),
            Self::Awaits(descriptor, events, left) => {
                TaskState::Awaits(descriptor, events, until(left))
            }
        }
    }
}

/// What comes before the contents of a part.
#[derive(Debug, Serialize, Deserialize)]
enum PartHead {
    /// All contents are in the old process's memory: the pages, the blocks, and the inbox. If pages
    /// were written here already, `written` is their number of bytes, and `pages` is empty.
    There { written: u64, pages: Vec<PageRun>, inbox: Vec<(MessageHead, u64, u64)> },
    /// Pages: the address and the length of each run.
    Pages(Vec<(u64, u32)>),
    /// A piece of this block's contents.
    Block { which: u32, offset: u64 },
    /// A piece of the next message in the inbox.
    Message { head: MessageHead, length: u64, offset: u64 },
    /// There are no more: the sum of all pages.
    End(PageSum),
}

/// What is still to be sent of a stopped task's contents.
#[derive(Debug)]
pub(crate) struct PackedParts {
    /// Whether the new process reads the contents itself.
    are_read: bool,
    /// The number of the new process if it has made room for the pages, and these are not written
    /// there yet.
    room: Option<u32>,
    /// Number of bytes that were written there.
    written: Option<u64>,
    pages: UlpPages,
    page_parts: usize,
    /// The task's blocks, each with its index and the offset of the next piece.
    blocks: VecDeque<(u32, Block, usize)>,
    /// The next message of the inbox, and the offset of its next piece.
    message: (usize, usize),
    count: u32,
    /// The watch of the task's writes, to be ended after the move ([`Self::into_writes`]).
    writes: Option<UlpWrites>,
}

/// What a copy of a task lacks that was made before the stop.
#[derive(Debug)]
pub(crate) struct CopiedPages {
    /// The pages that it does not have.
    pub(crate) pages: UlpPages,
    /// The pages that it has to drop.
    pub(crate) gone: Vec<PageRun>,
    pub(crate) writes: UlpWrites,
}

/// Maximum number of ranges of pages that are named in one message.
const MOST_RUNS: usize = 16 << 10;

/// The blocks that a task holds.
struct HeldBlocks {
    blocks: Vec<Block>,
    /// The same, as they are named to other processes.
    sent: Vec<SentBlock>,
    /// Indices into these, by handle.
    handles: Vec<Option<u32>>,
}

/// The blocks that a task holds. If it leaves, blocks with other holders here are shared.
fn held_blocks(task: &Task, leaves: bool, owner_of: impl Fn(&Block) -> Rank) -> HeldBlocks {
    let (mut blocks, mut handles) = (Vec::<Block>::new(), Vec::new());
    for held in task.held.slots() {
        handles.push(held.map(|block| {
            let known = blocks.iter().position(|one| one.name() == block.name());
            known.unwrap_or_else(|| {
                blocks.push(block.clone());
                blocks.len() - 1
            }) as u32
        }));
    }
    let in_inbox = |block: &Block| {
        let blocks = task.inbox.iter().filter_map(|message| message.block.as_ref());
        blocks.filter(|one| one.name() == block.name()).count()
    };
    let sent = blocks.iter().enumerate().map(|(at, block)| {
        let own = handles.iter().filter(|handle| **handle == Some(at as u32)).count();
        // One holder is this function.
        let others = block.holders() as usize > own + in_inbox(block) + 1;
        if others && leaves {
            block.share_afar();
        }
        let is_shared = others || block.is_shared_afar();
        SentBlock { name: block.name(), owner: owner_of(block), is_shared }
    });
    let sent = sent.collect();
    HeldBlocks { blocks, sent, handles }
}

/// Packs a stopped task, whose ULP has this state.
///
/// `owner_of` names the process in whose arena a block is. Returns `None` if the task does
/// something with which it cannot move.
pub(crate) fn pack(
    task: &Task,
    mut ulp: UlpState,
    folder: Option<PackedFolder>,
    owner_of: impl Fn(&Block) -> Rank,
    why: PackedFor,
) -> io::Result<Option<(PackedTask, PackedParts)>> {
    let now = Instant::now();
    // Not before the times that are left are calculated: by its clocks, no sleep of the task is too
    // short.
    ulp.clocks = task.ulp.clocks();
    let Some(state) = PackedState::of(task.state, now) else { return Ok(None) };
    let leaves = matches!(why, PackedFor::Move { .. });
    let (are_read, early) = why.contents();
    let (pages, gone, room, writes) = match early {
        SentEarly::Pages(copied) => (copied.pages, copied.gone, None, Some(copied.writes)),
        SentEarly::Room { to, process, written } => {
            let mut pages = task.ulp.pages(&ulp)?;
            if !written.is_empty() {
                pages.keep_zeros();
            }
            let gone = without(&written, &pages.runs());
            (pages, gone, Some((to, process)), None)
        }
        SentEarly::Nothing => (task.ulp.pages(&ulp)?, Vec::new(), None, None),
    };
    let has_copy = room.is_some() || writes.is_some();
    let HeldBlocks { blocks, sent, handles } = held_blocks(task, leaves, owner_of);
    // If the new process has nothing to map, the pages are written while it takes what was sent
    // before. The kernel does not let a process map memory while another one writes to it.
    let maps = room.is_some_and(|(to, _)| sent.iter().any(|block| block.owner != to));
    let room = room.map(|(_, process)| process);
    let written = room.filter(|_| maps).and_then(|process| pages.write_to(process).ok());
    let room = room.filter(|_| !maps);
    let page_parts = pages.calls(PIECE);
    let pieces = |length: usize| length.div_ceil(PIECE).max(1);
    let count = page_parts
        + blocks.iter().map(|block| pieces(block.capacity())).sum::<usize>()
        + task.inbox.iter().map(|message| pieces(message.length)).sum::<usize>()
        + 1;
    let blocks = blocks.into_iter().enumerate().map(|(at, block)| (at as u32, block, 0)).collect();
    let are_read = are_read && pages.runs().len() <= MOST_RUNS;
    // Where the new process does not read the memory, it cannot duplicate descriptors either.
    if !are_read && !ulp.names_all_files() {
        return Ok(None);
    }
    let count = if are_read { Some(1) } else { u32::try_from(count).ok() };
    let count = count.ok_or(io::ErrorKind::OutOfMemory)?;
    let parts = PackedParts {
        are_read,
        room,
        written,
        pages,
        page_parts,
        blocks,
        message: (0, 0),
        count,
        writes,
    };
    let packed = PackedTask {
        ulp,
        program: task.program.clone().into(),
        state,
        left: task.left,
        alarm: task.alarm.map(|(when, again)| (when.saturating_duration_since(now), again)),
        folder,
        umask: task.umask,
        parent: task.parent,
        siblings: task.siblings.clone(),
        context: task.context,
        output: task.output.clone(),
        child_output: task.child_output.clone(),
        options: task.options.clone(),
        is_pinned: task.is_pinned,
        stopped: Duration::ZERO,
        has_copy,
        gone,
        blocks: sent,
        handles,
    };
    Ok(Some((packed, parts)))
}

impl PackedParts {
    /// Number of all parts.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// The watch of the task's writes. Its end takes long as long as the task's memory is there.
    pub(crate) fn into_writes(self) -> Option<UlpWrites> {
        self.writes
    }

    /// From now on, parts have the contents themselves.
    pub(crate) fn send_contents(&mut self) {
        self.are_read = false;
    }

    /// Returns `true` if there is nothing after the next part.
    pub(crate) fn is_at_end(&self, task: &Task) -> bool {
        let has_messages = self.message.0 < task.inbox.len();
        self.are_read || self.page_parts == 0 && self.blocks.is_empty() && !has_messages
    }

    /// Where the contents are. Pages for which there is room are written now. If they cannot be,
    /// the new process reads them.
    fn there(&self, task: &Task) -> PartHead {
        let at = |message: &TaskMessage| {
            let address = message.block.as_ref().map_or(0, Block::address);
            (MessageHead::of(message), address, message.length as u64)
        };
        let inbox = task.inbox.iter().map(at).collect();
        let write = |process| self.pages.write_to(process).ok();
        match self.written.or_else(|| self.room.and_then(write)) {
            Some(written) => PartHead::There { written, pages: Vec::new(), inbox },
            None => PartHead::There { written: 0, pages: self.pages.runs(), inbox },
        }
    }

    /// The next part.
    ///
    /// # Errors
    /// The task's memory cannot be read.
    pub(crate) fn next(&mut self, task: &Task) -> io::Result<Vec<u8>> {
        if self.are_read {
            return Ok(part(&self.there(task), &[]));
        }
        if self.page_parts > 0 {
            self.page_parts -= 1;
            let (mut runs, mut contents) = (Vec::new(), Vec::new());
            self.pages.send(&task.ulp, PIECE, |address, bytes| {
                runs.push((address, bytes.len() as u32));
                contents.extend_from_slice(bytes);
                Ok(())
            })?;
            return Ok(part(&PartHead::Pages(runs), &contents));
        }
        if let Some((which, block, offset)) = self.blocks.front_mut() {
            let (from, capacity) = (*offset, block.capacity());
            let end = capacity.min(from + PIECE);
            let head = PartHead::Block { which: *which, offset: from as u64 };
            let part = block.lent(capacity, |bytes| part(&head, &bytes[from..end]));
            *offset = end;
            if end == capacity {
                self.blocks.pop_front();
            }
            return part.ok_or_else(|| io::ErrorKind::InvalidData.into());
        }
        let (at, from) = self.message;
        let Some(message) = task.inbox.get(at) else {
            return Ok(part(&PartHead::End(self.pages.sum()), &[]));
        };
        let end = message.length.min(from + PIECE);
        self.message = if end == message.length { (at + 1, 0) } else { (at, end) };
        let (length, offset) = (message.length as u64, from as u64);
        let head = PartHead::Message { head: MessageHead::of(message), length, offset };
        match &message.block {
            None => Ok(part(&head, &[])),
            Some(block) => block
                .lent(message.length, |bytes| part(&head, &bytes[from..end]))
                .ok_or_else(|| io::ErrorKind::InvalidData.into()),
        }
    }
}

/// A part: its head, and then its contents.
fn part(head: &PartHead, contents: &[u8]) -> Vec<u8> {
    // For this type this does not fail.
    let mut bytes = postcard::to_stdvec(head).unwrap_or_default();
    bytes.extend_from_slice(contents);
    bytes
}

/// Whether something that a process has sent for a checkpoint can be read from it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SavedContents {
    Sound,
    Unsound,
}

impl SavedContents {
    fn of(is_sound: bool) -> Self {
        if is_sound { Self::Sound } else { Self::Unsound }
    }

    /// Checks a task that has these slots: the first one, and their number.
    pub(crate) fn of_task(contents: &[u8], slots: (u64, u64)) -> Self {
        let read = postcard::take_from_bytes::<PackedTask>(contents);
        Self::of(read.is_ok_and(|(task, rest)| {
            let has_arena = |block: &SentBlock| block.name.arena().is_some();
            rest.is_empty()
                && (task.ulp.slot, task.ulp.slots) == slots
                && !task.has_copy
                && !task.has_files()
                && task.blocks.iter().all(has_arena)
        }))
    }

    /// Checks a part of a task. Exactly the last one is the end of the contents.
    pub(crate) fn of_part(contents: &[u8], is_last: bool) -> Self {
        let read = postcard::take_from_bytes::<PartHead>(contents);
        Self::of(read.is_ok_and(|(head, _)| match head {
            PartHead::There { .. } => false,
            PartHead::End(_) => is_last,
            PartHead::Pages(_) | PartHead::Block { .. } | PartHead::Message { .. } => !is_last,
        }))
    }
}

impl PackedTask {
    /// The path of the task's program.
    pub(crate) fn program(&self) -> &OsString {
        &self.program
    }

    /// Returns `true` if the task has files.
    pub(crate) fn has_files(&self) -> bool {
        !self.ulp.descriptors.is_empty()
    }

    /// The program's file, and in which state it was.
    pub(crate) fn image(&self) -> &ImageIdentity {
        &self.ulp.image
    }

    /// The task as it goes on in another machine, from a checkpoint. Its blocks have no owner
    /// there, and the `console` does not catch its output.
    pub(crate) fn in_another_machine(mut self, console: Tid) -> Self {
        self.blocks.iter_mut().for_each(|block| block.owner = NO_OWNER);
        for output in [&mut self.output, &mut self.child_output] {
            if output.to == OutputTarget::Task(console) {
                *output = Output::log();
            }
        }
        self
    }
}

/// The parts of `runs` that are in none of `others`. Both are in order.
fn without(runs: &[PageRun], others: &[PageRun]) -> Vec<PageRun> {
    let mut left = Vec::new();
    for PageRun { mut start, end } in runs.iter().copied() {
        let first = others.partition_point(|other| other.end <= start);
        for other in others[first..].iter().take_while(|other| other.start < end) {
            if start < other.start {
                left.push(PageRun { start, end: other.start });
            }
            start = other.end;
        }
        if start < end {
            left.push(PageRun { start, end });
        }
    }
    left
}

/// The head and the contents of a message that moves with a task.
pub(crate) fn kept_head(
    (tid, epoch): (Tid, u64),
    receiver: Option<Tid>,
    kept: &KeptMessage<TaskMessage>,
) -> (PackedHead, Vec<u8>) {
    let KeptMessage { stamp, from, source, message, .. } = kept;
    let head = MessageHead::of(message);
    let contents = message.block.as_ref().and_then(|block| block.read(message.length));
    let (stamp, from, source) = (*stamp, *from, *source);
    let head = PackedHead::Message { tid, epoch, receiver, stamp, from, source, head };
    (head, contents.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_a_checkpoint_cannot_have_are_found() {
        let there = PartHead::There { written: 0, pages: Vec::new(), inbox: Vec::new() };
        let block = PartHead::Block { which: 0, offset: 0 };
        let sound = |head: &PartHead, is_last| {
            SavedContents::of_part(&part(head, b"x"), is_last) == SavedContents::Sound
        };
        let end = PartHead::End(PageSum::default());
        assert_eq!([&there, &block, &end].map(|head| sound(head, false)), [false, true, false]);
        assert_eq!([&there, &block, &end].map(|head| sound(head, true)), [false, false, true]);
        assert_eq!(SavedContents::of_part(b"\xff", false), SavedContents::Unsound);
        assert_eq!(SavedContents::of_task(b"", (0, 1)), SavedContents::Unsound);
    }

    #[test]
    fn runs_without_others_are_what_is_in_none_of_them() {
        let runs = |all: &[(u64, u64)]| {
            all.iter().map(|(start, end)| PageRun { start: *start, end: *end }).collect::<Vec<_>>()
        };
        let left = |one: &[(u64, u64)], other: &[(u64, u64)]| without(&runs(one), &runs(other));
        let all = [(2, 4), (4, 6), (10, 20), (30, 31)];
        assert_eq!(left(&all, &[]), runs(&all));
        assert_eq!(left(&all, &[(0, 100)]), runs(&[]));
        assert_eq!(left(&[], &[(0, 100)]), runs(&[]));
        // At the start, in the middle, at the end, over two, and between them.
        let others = [(3, 5), (6, 10), (11, 13), (15, 16), (19, 31)];
        assert_eq!(left(&all, &others), runs(&[(2, 3), (5, 6), (10, 11), (13, 15), (16, 19)]));
    }
}
