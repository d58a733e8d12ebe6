//! The messages of the control connections, in postcard's encoding: for forming a group, and for
//! opening a queue.

use crate::error::Lack;
use crate::place::MemberPlace;
use serde::{Deserialize, Serialize};
use upcall_os::process::{self, Identity};
use upcall_os::socket::Peer;

/// Version of these messages and of the queues.
pub(crate) const VERSION: u32 = 9;

/// Identifies a group once it has formed. It cannot be guessed.
pub(crate) type GroupId = [u8; 16];

/// A request of a process that has connected.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum MemberRequest {
    /// To the leader: asks to become a member.
    Hello {
        version: u32,
        /// Number of members that it expects.
        size: u32,
        rank: Option<u32>,
        /// The name of its own socket, in the same folder.
        socket: String,
        /// Its kinds of messages, each with its signature.
        kinds: Vec<(String, String)>,
    },
    /// To another member: brings the queue through which this member will send. Descriptors: the
    /// queue's memory, and the doorbell that this member will notify.
    Open { version: u32, group: GroupId, from: u32, to: u32 },
}

/// The leader's answer, once all are there.
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

/// Reports that a member lacks a resource for a request.
///
/// A member without memory to read a request, or without a descriptor to identify its sender, does
/// not know what was requested. So this answer has the same position in [`Welcome`] and in
/// [`QueueOpenReply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lacks {
    pub(crate) lack: Lack,
    /// The kernel's error number, if the kernel refused the resource.
    pub(crate) errno: Option<i32>,
}

impl Lacks {
    /// The shortage that an error reports, if it reports one.
    pub(crate) fn of(error: &std::io::Error) -> Option<Self> {
        Some(Self { lack: Lack::of(error)?, errno: error.raw_os_error() })
    }

    /// Drops an error number that no kernel gives. A peer may have written any.
    pub(crate) fn checked(self) -> Self {
        Self { errno: self.errno.filter(|errno| (1..4096).contains(errno)), ..self }
    }
}

/// A member, as its group lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Listed {
    pub(crate) process: ProcessKey,
    pub(crate) socket: String,
    /// Where it is, in a group over several hosts.
    pub(crate) place: Option<MemberPlace>,
}

impl Listed {
    /// The entry of a member that has not joined yet.
    pub(crate) fn absent() -> Self {
        Self { process: ProcessKey::Numbered(0, 0), socket: String::new(), place: None }
    }

    /// The entry of a member on another host, whose process cannot be reached from here.
    pub(crate) fn elsewhere(self) -> Self {
        Self { process: ProcessKey::Numbered(0, 0), socket: String::new(), ..self }
    }
}

/// Identifies a member's process among all processes of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ProcessKey {
    /// The inode of its pidfds, which is the same in every PID namespace.
    Pidfd(u64),
    /// On kernels before 6.9: its process ID in the leader's PID namespace, 0 if it has none there,
    /// and its start time, 0 if that could not be seen.
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

    /// Returns `true` if the leader can have meant this process, `own`. A process ID may belong to
    /// another PID namespace.
    pub(crate) fn may_be(self, own: Self) -> bool {
        !matches!((self, own), (Self::Pidfd(_), Self::Pidfd(_))) || self == own
    }

    /// Returns `true` if both are the same process. A process without a number equals nothing, not
    /// even itself.
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

/// The answer of a queue's receiver.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum QueueOpenReply {
    /// The receiver reads the queue from now on. Descriptor: the station of its domain, where it
    /// has this line.
    Yes {
        line: u16,
        makes_fences: bool,
    },
    No(String),
    /// The receiver does not read the queue: it lives, and lacks a resource. The queue may be
    /// brought again.
    Lacks(Lacks),
}

/// Describes a process by its ID here, for reports.
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
