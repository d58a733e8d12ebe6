//! The messages of the control connection, in postcard's encoding. They are few and rare; calls do
//! not use them.

use crate::interface::{Descriptor, MOST_PROCEDURES, Mismatches, WantedProcedure};
use crate::names;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::io;

/// The version of these messages and of the channel's protocol.
pub(crate) const VERSION: u32 = 9;

/// A client's request. The answer repeats `serial`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ToServer<'a> {
    pub(crate) serial: u32,
    #[serde(borrow)]
    pub(crate) request: ClientRequest<'a>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ClientRequest<'a> {
    /// Opens the channel. Descriptors: its memory, the client's station.
    Open { version: u32 },
    /// Imports an interface as binding `id`. Descriptor, if `stacks` is not 0: memory of `stacks`
    /// bytes for the A-stacks. The client computes that size from its own copy of the interface,
    /// which normally saves a second request. If the server's list needs more, this memory is not
    /// used.
    Bind {
        id: u16,
        name: &'a str,
        interface: &'a str,
        #[serde(borrow, deserialize_with = "few")]
        procedures: Vec<WantedProcedure<'a>>,
        stacks: u32,
    },
    /// Brings the A-stacks that a binding's list needs beyond the client's guess. Descriptor: their
    /// memory.
    Stacks { id: u16 },
    /// Gives a binding up. No answer.
    Unbind { id: u16 },
    /// Opens a lane. Descriptor, for the lane of a virtual processor: its doorbell. No answer; a
    /// server that cannot open the lane closes the connection.
    OpenLane { number: u16, vp: Option<u16> },
    /// Brings a segment. Descriptor: its memory, which has no holes, and which the server seals
    /// once it has mapped it.
    Segment { number: u16, len: u64 },
    /// Takes a segment back. No answer.
    DropSegment { number: u16 },
    /// Asks for the exports. The answer has one descriptor: the list as text. On the network the
    /// answer contains the list.
    List,
    /// Asks for the call statistics of all bindings. The answer has one descriptor: their memory,
    /// for reading.
    Tallies,
    /// Reports that a call waits in a lane that the server does not probe. No answer.
    Stalled,
}

/// The serial number of a message that answers no request: the server is about to close the
/// connection, and says why. It also ends a wait for any answer.
pub(crate) const UNASKED: u32 = 0;

/// The server's answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ToClient {
    pub(crate) serial: u32,
    pub(crate) answer: ServerReply,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ServerReply {
    /// The channel is open. Descriptors: the server's station, and its doorbell.
    Opened { home: u16 },
    /// The binding is open: the procedure descriptor list, in the order of the wanted procedures.
    /// If the list needs larger A-stacks than came with the request, the client brings them next.
    Bound { procedures: Vec<Descriptor> },
    /// The segment is mapped, or the A-stacks are.
    Mapped,
    /// The exports follow in the descriptor.
    Exports,
    /// The request is refused.
    Refused(BindRefusal),
    /// The call statistics follow in the descriptor.
    Tallies,
    /// The exports, on the network.
    Listed(Vec<Exported>),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum BindRefusal {
    Version(String),
    Denied(String),
    NoSuchName,
    WrongInterface {
        exported: String,
    },
    Mismatch(Mismatches),
    Resource {
        what: String,
        code: i32,
    },
    Protocol(String),
    /// The client holds too much already.
    Quota(String),
}

impl fmt::Display for BindRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(why) | Self::Denied(why) | Self::Protocol(why) | Self::Quota(why) => {
                f.write_str(why)
            }
            Self::Resource { what, code } => {
                write!(f, "{what}: {}", io::Error::from_raw_os_error(*code))
            }
            Self::NoSuchName => f.write_str("no such name"),
            Self::WrongInterface { exported } => write!(f, "the name is of {exported}"),
            Self::Mismatch(procedures) => {
                write!(
                    f,
                    "{} procedures have other types",
                    procedures.told.len() + procedures.more as usize
                )
            }
        }
    }
}

/// One export, as a domain describes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Exported {
    /// The name that it is exported under.
    pub name: String,
    /// The interface's full name.
    pub interface: String,
    /// The WIT text that the server was compiled from.
    pub source: String,
    /// The limits beside it, as TOML text.
    pub limits: String,
    /// Number of clients that are bound to it now.
    pub clients: u32,
    /// Its procedures: name and signature.
    pub procedures: Vec<(String, String)>,
}

/// Maximum length of an interface's full name in a list, in bytes. Names that people write have a
/// tenth of it.
const LONGEST_INTERFACE: usize = 1024;

/// Checks an export before it is shown or bound: the peer may have sent anything.
pub(crate) fn check_exported(export: &Exported) -> Result<(), &'static str> {
    names::check(&export.name).map_err(|_| "an export whose name cannot be one")?;
    if export.interface.len() > LONGEST_INTERFACE {
        return Err("an export whose interface has too long a name");
    }
    Ok(())
}

/// Reads the procedures that a client wants: at most one more than an interface can have, and no
/// more than there is memory for.
fn few<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<WantedProcedure<'de>>, D::Error> {
    struct Few;
    impl<'de> Visitor<'de> for Few {
        type Value = Vec<WantedProcedure<'de>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of procedures")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
            let mut all = Vec::new();
            while let Some(wanted) = from.next_element()? {
                if all.len() > MOST_PROCEDURES {
                    return Err(A::Error::custom("more procedures than an interface has"));
                }
                all.try_reserve(1)
                    .map_err(|_| A::Error::custom("no memory for the list of procedures"))?;
                all.push(wanted);
            }
            Ok(all)
        }
    }
    deserializer.deserialize_seq(Few)
}

pub(crate) fn pack<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let len = postcard::experimental::serialized_size(message).map_err(io::Error::other)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
    postcard::to_extend(message, bytes).map_err(io::Error::other)
}

pub(crate) fn unpack<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    postcard::from_bytes(bytes)
        .map_err(|error| format!("a control message cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_list_says_has_a_limit() {
        let export = |name: &str, interface: String| Exported {
            name: name.into(),
            interface,
            source: String::new(),
            limits: String::new(),
            clients: 0,
            procedures: Vec::new(),
        };
        assert_eq!(check_exported(&export("files", "a:b/c@1.0.0".into())), Ok(()));
        assert_eq!(check_exported(&export("files", "x".repeat(LONGEST_INTERFACE))), Ok(()));
        assert!(check_exported(&export("files", "x".repeat(LONGEST_INTERFACE + 1))).is_err());
        assert!(check_exported(&export("../files", "a:b/c".into())).is_err());
    }
}
