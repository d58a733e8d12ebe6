//! A machine in a file, from which `upcall pvm restart` lets it go on.
//!
//! ```text
//! ┌──────────────────────────────────┐ magic, version of this format, versions of a task's state
//! ├──────────────────────────────────┤
//! │ Head     hosts, time, folder …   │ each section: kind, number, length, sum of the contents,
//! │ Machine  all that is no task's   │ and a sum of these words
//! │ Task     a PackedTask            │ once for each task
//! │ Part     pages, blocks, inbox    │ of some task, in its order
//! │ End      number of tasks, names  │
//! └──────────────────────────────────┘
//! ```
//! The contents of `Task` and `Part` are what a move sends ([`packed`](crate::packed)).
//!
//! A file is [written](writing) whole or not at all. It is [read](reading) and checked to its end
//! before anything of it is used. The sums find damage. They are none against forgery, so each
//! value is checked where it is used, as what another process sends is.

mod former;
mod hosts;
mod naming;
mod order;
mod reading;
mod writing;

pub(crate) use self::hosts::{CheckpointHosts, RestoredHosts, SavedHost, saved_hosts};
pub(crate) use self::naming::{NamingStep, UntilWhole, clean};
pub(crate) use self::order::{SectionOrder, SectionRefusal, TaskSections};
pub(crate) use self::reading::Checkpoint;
pub(crate) use self::writing::{CheckpointWriter, WriterTrial, Written};

use crate::balance::BalancerKind;
use crate::moves::{Refusal, ShownPath};
use crate::tid::Tid;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fmt, io};
use upcall_ulp::UlpState;

const MAGIC: [u8; 8] = *b"UPVMSAVE";
/// Version of the format, to be raised when anything in a section changes.
const VERSION: u64 = 4;
/// The oldest version that is read ([`former`]).
const OLDEST: u64 = 3;
/// Length of what comes before the first section, in bytes.
const PREAMBLE: usize = 32;
/// Length of the words before a section's contents, in bytes.
const WORDS: usize = 32;

/// What a section contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SectionKind {
    /// A [`CheckpointHead`].
    Head = 1,
    /// A [`SavedMachine`](crate::machine::saved::SavedMachine).
    Machine,
    /// A [`SavedPlace`] and a [`PackedTask`](crate::packed::PackedTask).
    Task,
    /// A [`SavedPlace`] and a part of a task.
    Part,
    /// A [`CheckpointEnd`]. Nothing follows.
    End,
}

impl SectionKind {
    fn of(number: u32) -> Option<Self> {
        [Self::Head, Self::Machine, Self::Task, Self::Part, Self::End]
            .into_iter()
            .find(|kind| *kind as u32 == number)
    }
}

/// The task that a section is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedPlace {
    pub(crate) tid: Tid,
    /// The number of parts, or the number of this part from 0.
    pub(crate) at: u32,
}

/// A checkpoint in general.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CheckpointHead {
    /// When it was written, in seconds since 1970.
    pub(crate) seconds: u64,
    /// Number of processes of the home.
    pub(crate) processes: u32,
    /// How tasks are balanced, and the least number of processes that are used then.
    pub(crate) balancer: Option<BalancerKind>,
    pub(crate) least: u32,
    /// All hosts of the machine.
    pub(crate) hosts: Vec<SavedHost>,
    /// Sizes of a task's stack and memory, as texts.
    pub(crate) stack: String,
    pub(crate) memory: String,
    /// The folder in which the machine was started.
    pub(crate) folder: OsString,
    /// Folders that are searched first for programs.
    pub(crate) folders: Vec<OsString>,
}

/// The end of a checkpoint.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CheckpointEnd {
    /// Number of tasks.
    pub(crate) tasks: u32,
    /// For each process, the next name that it gives to a task.
    pub(crate) names: Vec<u32>,
}

/// The bytes before the first section.
fn preamble() -> [u8; PREAMBLE] {
    let mut bytes = [0; PREAMBLE];
    let [state, layout] = UlpState::VERSIONS;
    bytes[..8].copy_from_slice(&MAGIC);
    for (at, word) in [VERSION, state, layout].into_iter().enumerate() {
        bytes[8 + at * 8..][..8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// The words before a section: its kind, its number, and the length and the sum of its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SectionWords {
    kind: u32,
    number: u32,
    length: u64,
    sum: u64,
}

impl SectionWords {
    fn bytes(self) -> [u8; WORDS] {
        let mut bytes = [0; WORDS];
        bytes[..4].copy_from_slice(&self.kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.length.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sum.to_le_bytes());
        let own = crate::moves::sum(&bytes[..24]);
        bytes[24..].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    /// `None`: the words are damaged.
    fn of(bytes: &[u8; WORDS]) -> Option<Self> {
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        let words = Self { kind: half(0), number: half(4), length: word(8), sum: word(16) };
        (words.bytes() == *bytes).then_some(words)
    }
}

/// The time since 1970.
pub(crate) fn seconds_now() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or(Duration::ZERO).as_secs()
}

/// Why a checkpoint was not written whose asker has gone, or wants it no more.
pub(crate) const CANCELLED: &str = "it was cancelled; the machine goes on";

/// A task that cannot go on from a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskStays {
    /// The task.
    pub tid: Tid,
    /// The name of its program.
    pub program: String,
    /// The host on which it was to go on.
    pub host: String,
    /// The reason.
    pub why: Refusal,
}

/// Maximum number of tasks that an error names.
const NAMED: usize = 20;

/// The tasks as options of `upcall pvm restart`.
fn without(tasks: &[Tid]) -> String {
    let named = tasks.iter().take(NAMED).map(|tid| format!("--without {tid}"));
    let more = if tasks.len() > NAMED { " ..." } else { "" };
    named.collect::<Vec<_>>().join(" ") + more
}

/// The reason why a machine was not saved, or does not go on from a checkpoint.
#[derive(Debug)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file could not be opened, read or written.
    File {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// The file is no checkpoint.
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file was written by another version.
    Version {
        /// The file.
        path: PathBuf,
        /// The versions of the format and of the tasks, as they were found.
        found: [u64; 3],
    },
    /// The file ends too early.
    Short {
        /// The file.
        path: PathBuf,
        /// The position of the section that is not whole, in bytes.
        at: u64,
    },
    /// The file has been changed, or damaged.
    Damaged {
        /// The file.
        path: PathBuf,
        /// The position of the section, in bytes.
        at: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// There is no memory for a section.
    Memory {
        /// The file.
        path: PathBuf,
        /// The section's length, in bytes.
        length: u64,
    },
    /// A program is missing, or has changed since the checkpoint.
    Program {
        /// The program.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
        /// The tasks that run it.
        tasks: Vec<Tid>,
    },
    /// The machine's folder cannot be entered.
    Folder {
        /// The folder.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// Tasks cannot go on.
    Tasks {
        /// The tasks.
        all: Vec<TaskStays>,
    },
    /// The checkpoint has no such task.
    NoTask {
        /// The number that was given.
        tid: Tid,
        /// The tasks that it has.
        others: Vec<Tid>,
    },
    /// A process has ended before the machine went on.
    Process,
    /// A process takes nothing of its tasks, or does not answer.
    Silent {
        /// The process, with its host.
        process: String,
    },
    /// The addresses of the messages in the checkpoint cannot be used.
    Addresses,
    /// The one who has asked for the checkpoint wants it no more, or has ended.
    Cancelled,
}

/// A path as it is shown: a file may have any name.
fn shown(path: &Path) -> ShownPath {
    ShownPath::new(path)
}

fn write_tasks(f: &mut fmt::Formatter<'_>, all: &[TaskStays]) -> fmt::Result {
    let tasks = if all.len() == 1 { "task" } else { "tasks" };
    write!(f, "{} {tasks} of the checkpoint cannot go on:", all.len())?;
    for TaskStays { tid, program, host, why } in all.iter().take(NAMED) {
        write!(f, "\n  {tid} ({program}) on host {host}: {why}")?;
    }
    if all.len() > NAMED {
        write!(f, "\n  and {} more", all.len() - NAMED)?;
    }
    let tids = all.iter().map(|one| one.tid).collect::<Vec<_>>();
    write!(
        f,
        "\nProvide what is missing, or other hosts, or let the machine go on without them: {}",
        without(&tids)
    )
}

impl fmt::Display for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, error } => write!(f, "{}: {error}", shown(path)),
            Self::Foreign { path } => write!(
                f,
                "{} is not a checkpoint: give a file that `upcall pvm checkpoint` has written",
                shown(path)
            ),
            Self::Version { path, found: [format, state, layout] } => {
                let [own_state, own_layout] = UlpState::VERSIONS;
                write!(
                    f,
                    "{} is a checkpoint of another version of Upcall ({format}.{state}.{layout}, \
                     and this is {VERSION}.{own_state}.{own_layout}): restart it with that version",
                    shown(path)
                )
            }
            Self::Short { path, at } => write!(
                f,
                "{} ends within the section at {at}, so the checkpoint is not whole",
                shown(path)
            ),
            Self::Damaged { path, at, what } => write!(
                f,
                "{} is damaged: {what} in the section at {at}. Use another checkpoint",
                shown(path)
            ),
            Self::Memory { path, length } => {
                write!(f, "{}: no memory for {length} bytes of the checkpoint", shown(path))
            }
            Self::Program { path, why, tasks } => write!(
                f,
                "{} is not the program that tasks of the checkpoint run: {why}. Restore the file, \
                 with its time, or let the machine go on without them: {}",
                shown(path),
                without(tasks)
            ),
            Self::Folder { path, error } => {
                write!(f, "the machine's folder {} cannot be entered: {error}", shown(path))
            }
            Self::Tasks { all } => write_tasks(f, all),
            Self::NoTask { tid, others } => {
                let named = others.iter().take(NAMED).map(Tid::to_string).collect::<Vec<_>>();
                let more = if others.len() > NAMED { " ..." } else { "" };
                write!(f, "the checkpoint has no task {tid}, but {}{more}", named.join(", "))
            }
            Self::Cancelled => f.write_str(CANCELLED),
            Self::Process => f.write_str("a process of the machine has ended: try again"),
            Self::Silent { process } => write!(
                f,
                "no answer of {process}, which is to have tasks of the checkpoint: it is stopped, \
                 or its host is overloaded. Try again, or leave its host out"
            ),
            Self::Addresses => f.write_str(
                "the addresses of the messages in the checkpoint are taken, or are none: restart \
                 it in fewer processes",
            ),
        }
    }
}

impl std::error::Error for CheckpointError {}
