//! The messages of the control connections, in postcard's encoding: for forming a group, and for
//! opening a queue.

use crate::error::Lack;
use serde::{Deserialize, Serialize};
use upcall_os::process::{self, Identity};
use upcall_os::socket::Peer;

/// The version of these messages and of the queues.
pub(crate) const VERSION: u32 = 4;

/// What a group is known by once it has formed. Nobody can guess it.
pub(crate) type GroupId = [u8; 16];

/// What one who connects says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum MemberRequest {
    /// To the leader: wants to be a member.
    Hello {
        version: u32,
        /// How many members it expects.
        size: u32,
        rank: Option<u32>,
        /// The name of its own socket, in the same folder.
        socket: String,
        /// Its kinds of messages, with what they carry.
        kinds: Vec<(String, String)>,
    },
    /// To another member: brings a queue, by which it will send. Descriptors: the queue's memory,
    /// the doorbell that it will ring.
    Open { version: u32, group: GroupId, from: u32, to: u32 },
}

/// What the leader answers, once all are there.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Welcome {
    Formed {
        group: GroupId,
        rank: u32,
        members: Vec<Listed>,
    },
    Refused(String),
    /// The leader lacks a resource: the applicant looks again.
    Lacks(Lacks),
}

/// A member lacks a resource for what was asked.
///
/// A member without memory to read a request, or without a descriptor to see who makes it, cannot
/// tell what was asked. So this answer has the same place in [`Welcome`] and in [`QueueOpenReply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lacks {
    pub(crate) lack: Lack,
    /// The kernel's error number, where the kernel refused the resource.
    pub(crate) errno: Option<i32>,
}

impl Lacks {
    /// The shortage that an error reports, if it reports one.
    pub(crate) fn of(error: &std::io::Error) -> Option<Self> {
        Some(Self { lack: Lack::of(error)?, errno: error.raw_os_error() })
    }

    /// The same with an error number that the kernel can give. A peer may have written any.
    pub(crate) fn checked(self) -> Self {
        Self { errno: self.errno.filter(|errno| (1..4096).contains(errno)), ..self }
    }
}

/// A member, as its group knows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Listed {
    pub(crate) process: ProcessKey,
    pub(crate) socket: String,
}

/// What tells a member's process apart from all others of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ProcessKey {
    /// The inode of its pidfds, which is the same in every PID namespace.
    Pidfd(u64),
    /// On kernels before 6.9: the number that it has in the leader's PID namespace, 0 if it has
    /// none there, and when it began, 0 if that could not be seen.
    Numbered(u32, u64),
}

impl ProcessKey {
    /// The process at the other end of a connection.
    pub(crate) fn of(peer: &Peer) -> Self {
        peer.process().map_or(Self::Numbered(peer.pid, 0), Self::from)
    }

    /// This process.
    ///
    /// # Errors
    /// No descriptor or no memory left.
    pub(crate) fn own() -> std::io::Result<Self> {
        Ok(process::own()?.map_or(Self::Numbered(std::process::id(), 0), Self::from))
    }

    /// Whether the leader can have meant this process by it, `own`: a number may be one of another
    /// PID namespace.
    pub(crate) fn may_be(self, own: Self) -> bool {
        !matches!((self, own), (Self::Pidfd(_), Self::Pidfd(_))) || self == own
    }

    /// Whether both are the same process. A process without a number equals nothing, not even
    /// itself.
    pub(crate) fn is(self, other: Self) -> bool {
        match (self, other) {
            (Self::Numbered(one, _), Self::Numbered(other, _)) => one == other && one != 0,
            _ => self == other,
        }
    }
}

impl From<Identity> for ProcessKey {
    fn from(identity: Identity) -> Self {
        match identity {
            Identity::Pidfd(inode) => Self::Pidfd(inode),
            Identity::Numbered(pid, born) => Self::Numbered(pid, born),
        }
    }
}

/// What the receiver of a queue answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum QueueOpenReply {
    /// It is read from now on. Descriptor: the station of the receiver's domain, where it has this
    /// line.
    Yes {
        line: u16,
        makes_fences: bool,
    },
    No(String),
    /// It is not read: the receiver lacks a resource for it, and lives. It may be brought again.
    Lacks(Lacks),
}

/// A process by its number here, for reports.
pub(crate) fn shown(pid: u32) -> String {
    match pid {
        0 => "a process of another PID namespace".into(),
        pid => format!("process {pid}"),
    }
}

pub(crate) fn pack<T: Serialize>(message: &T) -> std::io::Result<Vec<u8>> {
    postcard::to_stdvec(message).map_err(std::io::Error::other)
}

pub(crate) fn unpack<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    postcard::from_bytes(bytes)
        .map_err(|error| format!("a control message cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_reads_the_same_to_applicants_and_to_senders() {
        for lack in [Lack::Memory, Lack::Descriptors, Lack::Watches] {
            let lacks = Lacks { lack, errno: Some(12) };
            let bytes = pack(&QueueOpenReply::Lacks(lacks)).unwrap();
            assert_eq!(bytes, pack(&Welcome::Lacks(lacks)).unwrap());
            assert!(matches!(unpack(&bytes), Ok(Welcome::Lacks(read)) if read == lacks));
            assert!(matches!(unpack(&bytes), Ok(QueueOpenReply::Lacks(read)) if read == lacks));
        }
    }

    #[test]
    fn an_error_number_that_no_kernel_gives_is_dropped() {
        for (errno, checked) in [(0, None), (-12, None), (i32::MAX, None), (12, Some(12))] {
            let lacks = Lacks { lack: Lack::Memory, errno: Some(errno) };
            assert_eq!(lacks.checked().errno, checked);
        }
    }
}
