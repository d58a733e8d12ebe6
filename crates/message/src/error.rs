//! What can go wrong, for each operation: what was tried, what was found, what to do.

use crate::{Event, Rank, Unfit};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::time::Duration;
use upcall_directory::names::{FolderError, NotEntered};
use upcall_shm::account::MOST;

/// Why a process did not become a member.
#[derive(Debug)]
#[non_exhaustive]
pub enum JoinError {
    /// The name of the group cannot be one.
    BadName {
        /// The name.
        name: String,
        /// Why.
        why: &'static str,
    },
    /// There can be no group of this size, or no such rank in it.
    BadSize {
        /// The size.
        size: usize,
        /// The rank that was asked for.
        rank: Option<Rank>,
    },
    /// Members could not tell each other of all their kinds of messages.
    TooManyKinds {
        /// So many there are.
        kinds: usize,
        /// Bytes of their names and of what they carry.
        bytes: usize,
        /// The most.
        most: usize,
    },
    /// Not all members came in time.
    Incomplete {
        /// The name of the group.
        name: String,
        /// How long was waited.
        after: Duration,
        /// What is known of the others.
        found: String,
    },
    /// Who takes in the members refuses this one: another version, size, or kinds of messages, or
    /// its rank is taken.
    Refused {
        /// The name of the group.
        name: String,
        /// In its words.
        reason: String,
    },
    /// This process is no member of a job: a variable that tells of one is missing, or makes no
    /// sense.
    NoJob {
        /// The variable.
        variable: &'static str,
        /// What it says.
        found: Option<String>,
    },
    /// While it waited for the others ([`Handlers::interruption`](crate::Handlers::interruption)).
    Interrupted,
    /// There is no usable folder of names.
    Folder(FolderError),
    /// A descriptor, memory, or another resource could not be had.
    Resource {
        /// What for.
        what: String,
        /// The kernel's word.
        error: io::Error,
    },
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadName { name, why } => {
                write!(f, "{name:?} cannot be the name of a group: {why}")
            }
            Self::BadSize { size, rank: None } => {
                write!(f, "a group has from 1 to {MOST} members, not {size}")
            }
            Self::BadSize { size, rank: Some(rank) } => {
                write!(f, "there is no rank {rank} in a group of {size}")
            }
            Self::TooManyKinds { kinds, bytes, most } => write!(
                f,
                "the names of {kinds} kinds of messages, and what they carry, are {bytes} bytes, and members can tell each other {most}: register fewer, or with shorter names"
            ),
            Self::Incomplete { name, after, found } => {
                write!(
                    f,
                    "the group {name:?} did not form within {after:?}: {found}; start the others, or wait longer"
                )
            }
            Self::Refused { name, reason } => {
                write!(f, "the group {name:?} does not take this process in: {reason}")
            }
            Self::NoJob { variable, found } => {
                match found {
                    Some(found) => write!(f, "{variable}={found} makes no sense")?,
                    None => write!(f, "{variable} is not set")?,
                }
                f.write_str(": this program is to be started as a job, by `upcall job run --group N -- PROGRAM`")
            }
            Self::Folder(error) => error.fmt(f),
            Self::Interrupted => f.write_str("the wait for the others was interrupted"),
            Self::Resource { what, error } => write!(f, "{what}: {error}"),
        }
    }
}

impl std::error::Error for JoinError {}

impl From<NotEntered> for JoinError {
    fn from(error: NotEntered) -> Self {
        match error {
            NotEntered::BadName { name, why } => Self::BadName { name, why },
            NotEntered::Folder(error) => Self::Folder(error),
            NotEntered::Resource { what, error } => Self::Resource { what, error },
            other => Self::Resource {
                what: other.to_string(),
                error: io::ErrorKind::AlreadyExists.into(),
            },
        }
    }
}

/// Why a message was not sent. Then nothing of it was.
#[derive(Debug)]
#[non_exhaustive]
pub enum SendError {
    /// There is no such member.
    NoSuchRank {
        /// The rank.
        rank: Rank,
        /// How many members there are.
        size: usize,
    },
    /// The receiver has ended, or has left the group.
    Ended {
        /// The receiver.
        rank: Rank,
    },
    /// The message is longer than so many bytes.
    TooLong {
        /// The most.
        most: usize,
    },
    /// There is no room yet. Only [`Group::try_send`](crate::Group::try_send) and
    /// [`Group::send_within`](crate::Group::send_within) report this and the two that follow.
    Full,
    /// This member has its share of what the group may buffer in use
    /// ([`GroupBuilder::limit`](crate::GroupBuilder::limit)), and the receiver has made no room in time.
    Overflow {
        /// The receiver.
        rank: Rank,
        /// Bytes that this member has buffered, for all receivers.
        buffered: u64,
        /// Its share.
        share: u64,
    },
    /// The machine, or a control group of this process, has little memory left, so nothing more is
    /// buffered, and the receiver has made no room in time.
    LowMemory {
        /// The receiver.
        rank: Rank,
        /// Bytes that are left.
        left: u64,
        /// Of so many.
        of: u64,
    },
    /// There is no room in the queue, and no memory for what does not fit there.
    NoMemory {
        /// The receiver.
        rank: Rank,
        /// The kernel's word.
        error: io::Error,
    },
    /// The receiver does not keep to the protocol.
    Violation {
        /// The receiver.
        rank: Rank,
    },
    /// The receiver lives, and refuses this member's queue for lack of a resource.
    ///
    /// This message was not sent. Messages that were sent before wait in this process, and the next
    /// send offers the queue again.
    Refused {
        /// The receiver.
        rank: Rank,
        /// The resource that the receiver lacks, by its own report.
        lack: Lack,
        /// The receiver's error number, if its kernel refused the resource.
        errno: Option<i32>,
        /// Number of messages that were sent before. None of them has arrived.
        waiting: u64,
    },
    /// No queue to the receiver could be opened.
    Unreachable {
        /// The receiver.
        rank: Rank,
        /// Why.
        why: String,
    },
    /// The payload is not what the kind of message carries
    /// ([`Group::send_foreign`](crate::Group::send_foreign)).
    Unfit(Unfit),
    /// The wait for room was interrupted
    /// ([`Handlers::interruption`](crate::Handlers::interruption)).
    Interrupted,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchRank { rank, size } => {
                write!(f, "there is no rank {rank} in a group of {size}")
            }
            Self::Ended { rank } => write!(f, "member {rank} has ended or left the group"),
            Self::TooLong { most } => {
                write!(f, "the message is longer than {most} bytes: send it in parts")
            }
            Self::Full => f.write_str(
                "there is no room yet: receive what waits here, and send again, or wait for longer",
            ),
            Self::Overflow { rank, buffered, share } => write!(
                f,
                "member {rank} takes too little, and {buffered} bytes are buffered already, of {share} that this member may: receive what waits here and send again, wait for longer, or have the group formed with a higher limit"
            ),
            Self::LowMemory { rank, left, of } => write!(
                f,
                "member {rank} takes too little, and nothing more is buffered for it while {left} bytes of {of} are left of the memory that this process may have: receive what waits here and send again, wait for longer, or make room"
            ),
            Self::NoMemory { rank, error } => {
                write!(f, "no memory for messages that wait for member {rank}: {error}")
            }
            Self::Violation { rank } => {
                write!(
                    f,
                    "member {rank} says that it has taken what was never sent: it is faulty or hostile"
                )
            }
            Self::Refused { rank, lack, errno, waiting } => {
                write!(
                    f,
                    "member {rank} lives, and refuses the queue of this one for want of {lack}"
                )?;
                if let Some(errno) = errno {
                    write!(f, " ({})", io::Error::from_raw_os_error(*errno))?;
                }
                f.write_str(": the message was not sent")?;
                if *waiting > 0 {
                    write!(
                        f,
                        ", and {waiting} sent before wait in this process until it takes the queue"
                    )?;
                }
                f.write_str("; make room in that process, and send again")
            }
            Self::Unreachable { rank, why } => {
                write!(f, "no queue to member {rank} could be opened: {why}")
            }
            Self::Unfit(unfit) => {
                write!(f, "the payload is not what messages of this kind carry: {unfit}")
            }
            Self::Interrupted => {
                f.write_str("the wait for room was interrupted, and nothing was sent")
            }
        }
    }
}

impl std::error::Error for SendError {}

/// A resource that a member lacks for the queue of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Lack {
    /// Memory, or address space.
    Memory,
    /// A place in the process's or the machine's table of descriptors.
    Descriptors,
    /// A place among the descriptors that the user may wait for (`fs.epoll.max_user_watches`).
    Watches,
}

impl Lack {
    /// The resource whose lack an error reports. `None` if the error reports something else.
    pub(crate) fn of(error: &io::Error) -> Option<Self> {
        use rustix::io::Errno;
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOMEM | Errno::NOBUFS) => Some(Self::Memory),
            Some(Errno::MFILE | Errno::NFILE) => Some(Self::Descriptors),
            Some(Errno::NOSPC) => Some(Self::Watches),
            Some(_) => None,
            None => (error.kind() == io::ErrorKind::OutOfMemory).then_some(Self::Memory),
        }
    }
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Descriptors => "descriptors",
            Self::Watches => "descriptors to wait for",
        })
    }
}

/// No message waits (UDM: `receive` and `peek` are errors then).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NothingThere;

impl fmt::Display for NothingThere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no message waits: look at the flag first, or wait")
    }
}

impl std::error::Error for NothingThere {}

/// Why waiting for other members has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunError {
    /// Another member is lost, so what was waited for may never come.
    Lost(Event),
    /// Another member has given the barrier or reduction up, by its own word, for want of a third
    /// one. Nothing that this process knows confirms that the third one has ended: it may have left
    /// just now, or broken the protocol towards the other member only; or the other member lies.
    GivenUp {
        /// The member that has given up.
        by: Rank,
        /// The member that it misses.
        missed: Rank,
    },
    /// A message waits that has no handler, and those of its sender behind it.
    Unhandled {
        /// The sender.
        rank: Rank,
        /// The kind of the message.
        kind: String,
    },
    /// A member that waits for this one cannot be reached, because this process or that member has
    /// no memory or descriptor left for the queue. A barrier or reduction goes on with the next
    /// call.
    Unsent {
        /// The member.
        rank: Rank,
        /// Why, in the words of [`SendError`].
        why: String,
    },
    /// See [`Handlers::interruption`](crate::Handlers::interruption). A barrier or reduction goes
    /// on with the next call.
    Interrupted,
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(Event::Ended { rank }) => {
                write!(f, "member {rank} has ended or left the group")
            }
            Self::Lost(Event::Violation { rank, what }) => {
                write!(f, "member {rank} does not keep to the protocol: {what}")
            }
            Self::GivenUp { by, missed } => {
                write!(
                    f,
                    "member {by} has given up, and reports that member {missed} never comes: no barrier or reduction of this group holds any more"
                )
            }
            Self::Unsent { rank, why } => {
                write!(
                    f,
                    "member {rank} waits for this one, which cannot reach it: {why}; make room, and call again"
                )
            }
            Self::Interrupted => f.write_str("the wait was interrupted"),
            Self::Unhandled { rank, kind } => {
                write!(
                    f,
                    "a message {kind:?} from member {rank} has no handler here: register one, or receive it first"
                )
            }
        }
    }
}

impl std::error::Error for RunError {}
