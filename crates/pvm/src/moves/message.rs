//! Messages of a move between processes, and what a process does for a move.

use super::roles::RankSet;
use crate::tid::Tid;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;
use upcall_message::Rank;
use upcall_ulp::{FileLack, FilePin};

/// A message between processes about a move. The number of the move, its epoch, is used only once
/// in a machine, so a late message of an earlier move of the same task is recognised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MoveMessage {
    /// First to old: let the task leave for process `to`.
    Move {
        /// The task.
        tid: Tid,
        /// Number of the move.
        epoch: u64,
        /// The new process.
        to: Rank,
    },
    /// New to first: before the move begins, it copies memory of the task, which takes time.
    Copies {
        /// The task.
        tid: Tid,
        /// Number of the move.
        epoch: u64,
    },
    /// Old to first: messages for the task that arrive from now on are late.
    Begun {
        /// The task.
        tid: Tid,
        /// Number of the move.
        epoch: u64,
    },
    /// Old to first: the task does not leave.
    Stays {
        /// The task.
        tid: Tid,
        /// Number of the move.
        epoch: u64,
        /// The reason.
        why: Pin,
    },
    /// First to all: keep messages for the task.
    Leaving {
        /// The task.
        tid: Tid,
        /// Number of the move.
        epoch: u64,
        /// The old process.
        from: Rank,
        /// The processes that take part: all that were in the machine.
        all: RankSet,
        /// Those of them that the old process flushes: they are on other hosts.
        far: RankSet,
    },
    /// All to old: no message of this process for the task follows until the move is settled.
    MarkedBefore {
        /// The task.
        tid: Tid,
        /// Number of the move.
        epoch: u64,
    },
    /// Old to those on other hosts: the task has stopped, and this process has sent all of its
    /// messages.
    Flush {
        /// The task.
        tid: Tid,
        /// Number of the move.
        epoch: u64,
    },
    /// Those to first: all messages have arrived that the task has sent from its old process.
    Flushed {
        /// The task.
        tid: Tid,
        /// Number of the move.
        epoch: u64,
    },
    /// New to first: the whole task is here.
    Ready {
        /// The task.
        tid: Tid,
        /// Number of the move.
        epoch: u64,
        /// Whether the task has brought messages along for other tasks that move.
        carries: bool,
    },
    /// New to first: the task cannot run here.
    Refused {
        /// The task.
        tid: Tid,
        /// Number of the move.
        epoch: u64,
        /// The reason.
        why: Refusal,
    },
    /// Any to first: this process keeps too much for the task.
    Full {
        /// The task.
        tid: Tid,
        /// Number of the move.
        epoch: u64,
    },
    /// First to all: the task runs in this process. The move is committed or aborted.
    Settled {
        /// The task.
        tid: Tid,
        /// Number of the move.
        epoch: u64,
        /// The process in which the task runs, and no other one does.
        rank: Rank,
    },
    /// All to that process: all messages that this process has kept for the task have been sent.
    MarkedAfter {
        /// The task.
        tid: Tid,
        /// Number of the move.
        epoch: u64,
    },
    /// New to old and first: the messages that the task has brought along have been sent, or are
    /// kept here.
    Resent {
        /// The task.
        tid: Tid,
        /// Number of the move.
        epoch: u64,
    },
    /// First to all: this process has ended, and no task carries messages any more for which the
    /// process owes a mark.
    Cleared {
        /// The process.
        rank: Rank,
    },
    /// First to a process that has joined: these have ended before.
    Ended {
        /// The processes.
        ranks: RankSet,
    },
    /// That process to first: nothing is kept for the task any more.
    Over {
        /// The task.
        tid: Tid,
        /// Number of the move.
        epoch: u64,
    },
    /// First to all: a task that has moved, or was moving, has ended.
    Gone {
        /// The task.
        tid: Tid,
    },
}

/// The reason why a task stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pin {
    /// The task has just ended.
    Ended,
    /// The task has not begun to run.
    Starts,
    /// A helper thread carries out a system call for the task.
    Call,
    /// The task has child processes.
    Children,
    /// The task holds a lock of a file.
    Lock,
    /// The task has a descriptor that cannot move.
    Descriptor,
    /// The task has mapped a file or shared memory, or has too many mappings.
    Mapping,
    /// The program's file was changed.
    Program,
    /// The task asked not to be moved.
    Wish,
    /// The task waits while a function of its library is half done, as in a handler of signals.
    Inside,
    /// The task has a descriptor that cannot move to another host.
    File(FilePin),
}

/// The reason why a process does not take a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// There is no memory.
    Memory,
    /// The program has another version there.
    Program,
    /// The processor there lacks what the task may use.
    Processor,
    /// There are too few descriptors.
    Descriptors,
    /// The kernel does not let the process take the task's open files, or use the memory of the
    /// process that has them.
    Files,
    /// The task's folder is another one there, or cannot be entered.
    Folder,
    /// The state did not arrive as it was sent.
    Damaged,
    /// Too many messages move with the tasks of its host.
    Messages {
        /// Maximum number of bytes for them.
        most: u64,
    },
    /// An open file of the task is not the same there.
    File {
        /// Its path.
        path: ShownPath,
        /// The reason.
        lack: FileLack,
    },
}

/// A path in a message of another process, for people to read: it has no control characters, and
/// at most [`ShownPath::MOST`] bytes, the last ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct ShownPath(String);

impl ShownPath {
    /// Maximum length, in bytes.
    pub const MOST: usize = 200;

    /// The path as it is shown.
    pub fn new(path: &Path) -> Self {
        let shown = path.to_string_lossy();
        let shown = shown.chars().map(|one| if one.is_control() { '?' } else { one });
        let mut shown = shown.collect::<String>();
        if shown.len() > Self::MOST {
            let mut from = shown.len() + DOTS.len() - Self::MOST;
            while !shown.is_char_boundary(from) {
                from += 1;
            }
            shown.replace_range(..from, DOTS);
        }
        Self(shown)
    }
}

/// What a path begins with whose beginning is not shown.
const DOTS: &str = "...";

impl TryFrom<String> for ShownPath {
    type Error = &'static str;

    fn try_from(shown: String) -> Result<Self, Self::Error> {
        let is_sound = shown.len() <= Self::MOST && !shown.contains(char::is_control);
        if is_sound { Ok(Self(shown)) } else { Err("a path that is too long, or cannot be shown") }
    }
}

impl fmt::Display for ShownPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The reason why a task was not moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotMoved {
    /// There is no such task.
    NoTask,
    /// There is no such process, or it has ended.
    NoProcess,
    /// The task is in that process already.
    Here,
    /// The task is being moved, or another request waits for the end of its last move.
    UnderWay,
    /// The maximum number of tasks are being moved.
    TooMany,
    /// The task is pinned.
    Pinned(Pin),
    /// The new process has refused the task.
    Refused(Refusal),
    /// The new process has ended.
    Lost,
    /// The task has ended, perhaps with its process.
    Ended,
    /// The task is being killed.
    Killed,
    /// A process has not answered in time.
    TimedOut,
    /// Too many messages for the task were kept.
    Full,
    /// A checkpoint of the machine is being written.
    Saving,
    /// The move was cancelled.
    Cancelled,
    /// Each task of the machine has a process of its own.
    Apart,
    /// A host has just joined the machine.
    HostJoined,
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ended => "it has ended",
            Self::Starts => "it has not begun to run",
            Self::Call => "a helper carries out a system call for it",
            Self::Children => "it has child processes",
            Self::Lock => "it holds a lock of a file",
            Self::Descriptor => "it has a descriptor that cannot move",
            Self::Mapping => "it has mapped a file or shared memory",
            Self::Program => "its program's file was changed",
            Self::Wish => "it has asked not to be moved",
            Self::Inside => "it waits while a function of its library is half done",
            Self::File(pin) => return pin.fmt(f),
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "there is no memory for it",
            Self::Program => "its program has another version there",
            Self::Processor => "the processor there lacks features that it may use",
            Self::Descriptors => "there are too few descriptors",
            Self::Files => {
                "the kernel does not let it take the task's open files (pidfd_getfd, \
                 process_vm_readv)"
            }
            Self::Folder => "its folder cannot be entered there",
            Self::Damaged => "its state did not arrive whole",
            Self::Messages { most } => {
                return write!(
                    f,
                    "more than {most} bytes of messages move with it and with other tasks of its \
                     host: try again when they have taken some"
                );
            }
            Self::File { path, lack } => return write!(f, "its open file {path} {lack}"),
        })
    }
}

impl fmt::Display for NotMoved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoTask => f.write_str("there is no such task"),
            Self::NoProcess => f.write_str("there is no such process"),
            Self::Here => f.write_str("the task is in that process already"),
            Self::UnderWay => f.write_str("the task's last move is not over yet: try again later"),
            Self::TooMany => f.write_str("too many tasks are being moved: try again later"),
            Self::Pinned(why) => write!(f, "the task cannot leave its process: {why}"),
            Self::Refused(why) => write!(f, "the other process does not take the task: {why}"),
            Self::Lost => f.write_str("the other process has ended; the task goes on"),
            Self::Saving => f.write_str("a checkpoint is being written: try again later"),
            Self::Ended => f.write_str("the task has ended"),
            Self::Killed => f.write_str("the task is being killed"),
            Self::TimedOut => f.write_str("a process did not answer in time; the task goes on"),
            Self::Full => f.write_str("too many messages for the task waited; the task goes on"),
            Self::Apart => f.write_str("--as-processes gives each task a process of its own"),
            Self::HostJoined => f.write_str("a host has joined in the meantime: try again"),
            Self::Cancelled => f.write_str("the move was cancelled; the task goes on"),
        }
    }
}

/// A message for a task that moves, until it can be delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptMessage<M> {
    /// The Lamport time of its sending.
    pub stamp: u64,
    /// The process from which it was sent.
    pub from: Rank,
    /// The task that has sent it.
    pub source: Option<Tid>,
    /// Its length, in bytes.
    pub length: usize,
    /// The message.
    pub message: M,
}

/// The messages that move with a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenMessages<M> {
    /// Messages for the task that it has not been given yet.
    pub late: Vec<KeptMessage<M>>,
    /// Messages of the task, for tasks that are being moved themselves.
    pub carried: Vec<(Tid, KeptMessage<M>)>,
}

/// What a process knows about where a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskPlace {
    /// Messages for the task go to [`Moves::keep`](super::Moves::keep), and those that arrive for
    /// it to [`Moves::arrived`](super::Moves::arrived).
    Held,
    /// In this process, which may be the own one.
    In(Rank),
    /// The task has ended. Its number may be used again.
    Ended,
}

/// What the driver has to do. The driver carries out all effects in their order before it handles
/// anything else, and before a task runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveEffect<M, E> {
    /// Send this message to another process.
    Tell {
        /// The other process.
        to: Rank,
        /// The message.
        message: MoveMessage,
    },
    /// Send a kept message for a task to another process, with the stamp that it has.
    Send {
        /// The other process.
        to: Rank,
        /// The task.
        tid: Tid,
        /// The message.
        kept: KeptMessage<M>,
    },
    /// Send a message with the stamp that it has, as if a task here sent it now. Its sender has
    /// brought it along.
    Resend {
        /// The receiver.
        tid: Tid,
        /// The message.
        kept: KeptMessage<M>,
    },
    /// Send this errand for a task (an answer, a signal, the end) to its process, which may be the
    /// own one.
    Errand {
        /// The process.
        to: Rank,
        /// The task.
        tid: Tid,
        /// The errand.
        errand: E,
    },
    /// Record where a task is.
    Place {
        /// The task.
        tid: Tid,
        /// Its place.
        place: TaskPlace,
    },
    /// Put this message into the inbox of a task in this process.
    Deliver {
        /// The task.
        tid: Tid,
        /// The message.
        message: M,
    },
    /// Call [`Moves::begin`](super::Moves::begin), or [`Moves::stays`](super::Moves::stays) if the
    /// task is pinned.
    MayLeave {
        /// The task.
        tid: Tid,
    },
    /// Stop the task at its next point, and then call [`Moves::frozen`](super::Moves::frozen), or
    /// [`Moves::stays`](super::Moves::stays) if it is pinned by then.
    Freeze {
        /// The task.
        tid: Tid,
    },
    /// Send the stopped task's state without its memory, for [`Moves::take`](super::Moves::take).
    Take {
        /// The new process.
        to: Rank,
        /// The task.
        tid: Tid,
        /// Number of the move.
        epoch: u64,
        /// Number of parts that follow.
        parts: u32,
        /// The messages that move with it.
        messages: TakenMessages<M>,
    },
    /// Send this part of the stopped task's memory, for [`Moves::part`](super::Moves::part).
    SendPart {
        /// The new process.
        to: Rank,
        /// The task.
        tid: Tid,
        /// Number of the move.
        epoch: u64,
        /// Number of the part, from 0.
        at: u32,
    },
    /// Let the task run, if it is stopped or was just taken.
    Run {
        /// The task.
        tid: Tid,
    },
    /// Free all of a task that runs elsewhere, or has ended: it must not run here.
    Free {
        /// The task.
        tid: Tid,
    },
    /// Make room for a task. [`Moves::refuse`](super::Moves::refuse) says that there is none.
    Prepare {
        /// The task.
        tid: Tid,
    },
    /// Fill a part of the task's memory.
    Fill {
        /// The task.
        tid: Tid,
        /// Number of the part, from 0.
        at: u32,
        /// Its contents.
        bytes: Vec<u8>,
    },
    /// All parts are here: call [`Moves::ready`](super::Moves::ready), or
    /// [`Moves::refuse`](super::Moves::refuse).
    Finish {
        /// The task.
        tid: Tid,
    },
    /// Report the result of a request: the process in which the task now runs.
    Report {
        /// The number that came with the request.
        asker: u64,
        /// The task.
        tid: Tid,
        /// The result.
        result: Result<Rank, NotMoved>,
    },
}

/// A sum over the bytes of a part, which differs if a byte does.
///
/// Four chains, which the processor calculates at the same time.
pub fn sum(bytes: &[u8]) -> u64 {
    let mixed =
        |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let mut chains = [1, 2, 3, 4];
    let (lines, rest) = bytes.as_chunks::<32>();
    // Loops, since calls of closures take most of a move's time where nothing is optimised.
    for line in lines {
        let (words, _) = line.as_chunks();
        let [a, b, c, d] = &mut chains;
        *a = mixed(*a, u64::from_le_bytes(words[0]));
        *b = mixed(*b, u64::from_le_bytes(words[1]));
        *c = mixed(*c, u64::from_le_bytes(words[2]));
        *d = mixed(*d, u64::from_le_bytes(words[3]));
    }
    let mut sum = bytes.len() as u64;
    for chain in chains {
        sum = mixed(sum, chain);
    }
    let (words, rest) = rest.as_chunks();
    for word in words {
        sum = mixed(sum, u64::from_le_bytes(*word));
    }
    if rest.is_empty() {
        return sum;
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mixed(sum, u64::from_le_bytes(last))
}
