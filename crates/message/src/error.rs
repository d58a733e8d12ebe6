//! Errors of each operation: what was tried, what was found, what to do.

use crate::{Event, Rank, Unfit};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::ops::Range;
use std::time::Duration;
use upcall_directory::names::{FolderError, NotEntered};
use upcall_shm::account::MOST;

/// The reason why a process did not become a member.
#[non_exhaustive]
pub enum JoinError {
    /// The name is not allowed for a group.
    BadName {
        /// The name.
        name: String,
        /// Why.
        why: &'static str,
    },
    /// A group cannot have this size, or has no such rank.
    BadSize {
        /// The size.
        size: usize,
        /// The rank that was asked for.
        rank: Option<Rank>,
    },
    /// A process that joins [late](crate::GroupBuilder::late) asks for a rank that is not among
    /// those that join together, or for none, or the group is too small for them.
    NotAmongLate {
        /// The rank that was asked for.
        rank: Option<Rank>,
        /// The ranks that join together.
        ranks: Range<Rank>,
        /// The size of the group, with its room.
        size: usize,
    },
    /// The kinds of messages are too many for members to exchange.
    TooManyKinds {
        /// Number of kinds.
        kinds: usize,
        /// Size of their names and signatures, in bytes.
        bytes: usize,
        /// Maximum size, in bytes.
        most: usize,
    },
    /// Not all members came in time.
    Incomplete {
        /// The name of the group.
        name: String,
        /// Time that was waited.
        after: Duration,
        /// What is known of the others.
        found: String,
    },
    /// The leader refuses this member: it has another version, size, or kinds of messages, or its
    /// rank is taken.
    Refused {
        /// The name of the group.
        name: String,
        /// The leader's reason.
        reason: String,
    },
    /// This process is no member of a job: a variable that describes the job is missing, or makes
    /// no sense.
    NoJob {
        /// The variable.
        variable: &'static str,
        /// Its value, if it is set.
        found: Option<String>,
    },
    /// The members are on several hosts, and this one or another one does not prove its identity
    /// ([`GroupBuilder::across`](crate::GroupBuilder::across)).
    NotProved {
        /// The address at which the members meet, or that of another member.
        address: String,
        /// The reason.
        why: String,
    },
    /// Members are to join after the group has formed, and no address is given at which they meet
    /// ([`GroupBuilder::across`](crate::GroupBuilder::across)).
    NoAddress {
        /// The name of the group.
        name: String,
    },
    /// The wait for the others was interrupted
    /// ([`Handlers::interruption`](crate::Handlers::interruption)).
    Interrupted,
    /// There is no usable folder of names.
    Folder(FolderError),
    /// A descriptor, memory, or another resource was not available.
    Resource {
        /// The resource.
        what: String,
        /// The kernel's error.
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
            Self::NotAmongLate { rank, ranks, size } => {
                match rank {
                    Some(rank) => write!(f, "this process asks for rank {rank} to join late")?,
                    None => f.write_str("this process asks for no rank to join late")?,
                }
                write!(
                    f,
                    ": ask for one of the ranks that join together, {ranks:?}, all of them below \
                     the size of the group with its room, {size}"
                )
            }
            Self::TooManyKinds { kinds, bytes, most } => write!(
                f,
                "the names and signatures of {kinds} kinds of messages take {bytes} bytes, and \
                 members can exchange {most}: register fewer, or with shorter names"
            ),
            Self::Incomplete { name, after, found } => {
                write!(
                    f,
                    "the group {name:?} did not form within {after:?}: {found}; start the others, \
                     or wait longer"
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
                f.write_str(
                    ": this program is to be started as a job, by `upcall job run --group N -- \
                     PROGRAM`, or on several hosts by `upcall job member`",
                )
            }
            Self::NotProved { address, why } => write!(
                f,
                "the members meet at {address}, and a host does not prove its identity: {why}; \
                 `upcall host --help` tells how hosts get to trust each other"
            ),
            Self::NoAddress { name } => write!(
                f,
                "no member can join the group {name:?} after it has formed, because it is on one \
                 host: give an address, HOST:PORT, at which the members meet (`across`)"
            ),
            Self::Folder(error) => error.fmt(f),
            Self::Interrupted => f.write_str("the wait for the others was interrupted"),
            Self::Resource { what, error } => write!(f, "{what}: {error}"),
        }
    }
}

upcall_os::error_debug!(JoinError {
    BadName { name, why }, BadSize { size, rank }, NotAmongLate { rank, ranks, size },
    TooManyKinds { kinds, bytes, most },
    Incomplete { name, after, found }, Refused { name, reason }, NoJob { variable, found },
    NotProved { address, why }, NoAddress { name }, Interrupted, Folder(error),
    Resource { what, error },
});

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

/// The reason why a message was not sent. No part of it was.
#[non_exhaustive]
pub enum SendError {
    /// There is no such member.
    NoSuchRank {
        /// The rank.
        rank: Rank,
        /// Number of members.
        size: usize,
    },
    /// The receiver has ended, or has left the group.
    Ended {
        /// The receiver.
        rank: Rank,
    },
    /// The message is too long.
    TooLong {
        /// Maximum size, in bytes.
        most: usize,
    },
    /// There is no room yet. Only [`Group::try_send`](crate::Group::try_send) and
    /// [`Group::send_within`](crate::Group::send_within) return this and the next two errors.
    Full,
    /// This member has used up its share of what the group may buffer
    /// ([`GroupBuilder::limit`](crate::GroupBuilder::limit)), and the receiver has made no room in
    /// time.
    Overflow {
        /// The receiver.
        rank: Rank,
        /// Bytes that this member has buffered, for all receivers.
        buffered: u64,
        /// Its share, in bytes.
        share: u64,
    },
    /// The machine, or a control group of this process, has little memory left, so nothing more is
    /// buffered, and the receiver has made no room in time.
    LowMemory {
        /// The receiver.
        rank: Rank,
        /// Bytes that are left.
        left: u64,
        /// Total memory, in bytes.
        of: u64,
    },
    /// There is no room in the queue, and no memory to buffer the message.
    NoMemory {
        /// The receiver.
        rank: Rank,
        /// The kernel's error.
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
        /// The resource that the receiver reports to lack.
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
        /// The reason.
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
                "member {rank} takes too few messages, and this member has buffered {buffered} \
                 of its {share} bytes: receive what waits here and send again, wait for longer, or \
                 form the group with a higher limit"
            ),
            Self::LowMemory { rank, left, of } => write!(
                f,
                "member {rank} takes too few messages, and no more are buffered for it while \
                 {left} of {of} bytes are left of the memory that this process may have: receive \
                 what waits here and send again, wait for longer, or make room"
            ),
            Self::NoMemory { rank, error } => {
                write!(f, "no memory for messages that wait for member {rank}: {error}")
            }
            Self::Violation { rank } => {
                write!(
                    f,
                    "member {rank} reports that it has taken messages that were never sent: it is \
                     faulty or hostile"
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

upcall_os::error_debug!(SendError {
    NoSuchRank { rank, size }, Ended { rank }, TooLong { most }, Full,
    Overflow { rank, buffered, share }, LowMemory { rank, left, of }, NoMemory { rank, error },
    Violation { rank }, Refused { rank, lack, errno, waiting }, Unreachable { rank, why },
    Unfit(error), Interrupted,
});

impl std::error::Error for SendError {}

/// A resource that a member lacks for the queue of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Lack {
    /// Memory, or address space.
    Memory,
    /// An entry in the process's or the machine's table of descriptors.
    Descriptors,
    /// One of the descriptors that the user may watch (`fs.epoll.max_user_watches`).
    Watches,
}

impl Lack {
    /// Returns the resource whose lack an error reports; `None` if the error reports something
    /// else.
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
        f.write_str("no message waits: check the flag first, or wait")
    }
}

impl std::error::Error for NothingThere {}

/// The reason why a member does not expect others ([`Group::expect`](crate::Group::expect)).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExpectError {
    /// The group is on one host, or has no room for more members.
    NoRoom,
    /// Another member listens at the address at which the members meet.
    NotLeader,
    /// This rank belongs to no room of the group, or is another member's.
    Taken {
        /// The rank.
        rank: Rank,
    },
}

impl fmt::Display for ExpectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoom => f.write_str(
                "no member can join this group later: form it across hosts, with room for more",
            ),
            Self::NotLeader => f.write_str(
                "this member does not listen at the address at which the members meet: expect \
                 others in the member that does",
            ),
            Self::Taken { rank } => {
                write!(f, "rank {rank} is another member's: expect ranks that nobody has")
            }
        }
    }
}

impl std::error::Error for ExpectError {}

/// The reason why waiting for other members has ended.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunError {
    /// Another member is lost, so what was waited for may never come.
    Lost(Event),
    /// Another member reports that it has given up the barrier or reduction, because a third one is
    /// missing. Nothing that this process knows confirms that the third one has ended: it may have
    /// left just now, or broken the protocol towards the other member only; or the other member
    /// lies.
    GivenUp {
        /// The member that has given up.
        by: Rank,
        /// The member that it misses.
        missed: Rank,
    },
    /// Two other members have lost each other, and both live ([`Event::Parted`]). So they cannot
    /// both take part in a barrier, reduction or collective operation, and none holds any more.
    /// Messages with both go on.
    Parted {
        /// The member with the lower rank.
        one: Rank,
        /// The other member.
        other: Rank,
    },
    /// A message has no handler; it waits, and so do those of its sender behind it.
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
        /// The reason, as [`SendError`] describes it.
        why: String,
    },
    /// The wait was interrupted ([`Handlers::interruption`](crate::Handlers::interruption)). A
    /// barrier, reduction or collective operation goes on with the next call.
    Interrupted,
    /// A member has called another collective operation than this one, or with another root, type
    /// or length. All members call the same operations in the same order.
    Mismatched {
        /// The member; this one, if an earlier operation of its own has not ended.
        rank: Rank,
        /// The operation that this member has called.
        here: String,
        /// The operation that the other member has called.
        there: String,
    },
    /// The group has [room](crate::GroupBuilder::room_for) for members that join later, so it has
    /// no barriers, reductions and collective operations.
    Growing,
    /// There is no memory for the items of a collective operation, which goes on with the next
    /// call.
    NoMemory {
        /// The size that was asked for, in bytes.
        bytes: usize,
    },
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(Event::Ended { rank }) => {
                write!(f, "member {rank} has ended or left the group")
            }
            Self::Lost(Event::Joined { rank }) => {
                write!(f, "member {rank} has joined after the others")
            }
            Self::Parted { one, other } | Self::Lost(Event::Parted { one, other }) => {
                write!(
                    f,
                    "members {one} and {other} have lost each other, and both live: no barrier, \
                     reduction or collective operation of this group holds any more; exchange \
                     messages with both, or leave the group"
                )
            }
            Self::Lost(Event::Violation { rank, what }) => {
                write!(f, "member {rank} does not keep to the protocol: {what}")
            }
            Self::GivenUp { by, missed } => {
                write!(
                    f,
                    "member {by} has given up, and reports that member {missed} never comes: no \
                     barrier, reduction or collective operation of this group holds any more"
                )
            }
            Self::Unsent { rank, why } => {
                write!(
                    f,
                    "member {rank} waits for this one, which cannot reach it: {why}; make room, \
                     and call again"
                )
            }
            Self::Interrupted => f.write_str("the wait was interrupted"),
            Self::Mismatched { rank, here, there } => {
                write!(
                    f,
                    "member {rank} has called {there}, and this member {here}: all members call \
                     the same collective operations in the same order"
                )
            }
            Self::Growing => f.write_str(
                "members may join this group later, so it has no barriers, reductions and \
                 collective operations: use messages, or a group without room for more",
            ),
            Self::NoMemory { bytes } => {
                write!(
                    f,
                    "no memory for {bytes} bytes of a collective operation: make room, and call \
                     again"
                )
            }
            Self::Unhandled { rank, kind } => {
                write!(
                    f,
                    "a message {kind:?} from member {rank} has no handler here: register one, or \
                     receive it first"
                )
            }
        }
    }
}

upcall_os::error_debug!(RunError {
    Lost(error), GivenUp { by, missed }, Parted { one, other }, Unhandled { rank, kind },
    Unsent { rank, why }, Interrupted, Mismatched { rank, here, there }, Growing,
    NoMemory { bytes },
});

impl std::error::Error for RunError {}
