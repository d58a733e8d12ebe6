//! The messages of the control connections, in postcard's encoding: for forming a group, and for opening a queue.

use serde::{Deserialize, Serialize};

/// The version of these messages and of the queues.
pub(crate) const VERSION: u32 = 2;

/// What a group is known by once it has formed. Nobody can guess it.
pub(crate) type GroupId = [u8; 16];

/// What one who connects says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
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
    /// To another member: brings a queue, by which it will send. Descriptors: the queue's memory, the bell that it will ring.
    Open { version: u32, group: GroupId, from: u32, to: u32 },
}

/// What the leader answers, once all are there.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Welcome {
    Formed { group: GroupId, rank: u32, members: Vec<Listed> },
    Refused(String),
}

/// A member, as its group knows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Listed {
    pub(crate) pid: u32,
    /// When that process began; 0 if it could not be seen.
    pub(crate) born: u64,
    pub(crate) socket: String,
}

/// What the receiver of a queue answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Opened {
    /// It is read from now on. Descriptor: the station of the receiver's domain, where it has this line.
    Yes {
        line: u16,
        makes_fences: bool,
    },
    No(String),
}

pub(crate) fn pack<T: Serialize>(message: &T) -> std::io::Result<Vec<u8>> {
    postcard::to_stdvec(message).map_err(std::io::Error::other)
}

pub(crate) fn unpack<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    postcard::from_bytes(bytes).map_err(|error| format!("a control message cannot be read: {error}"))
}
