//! The messages of the control connection, in postcard's encoding. They are few and rare; calls do
//! not use them.

use crate::interface::{Descriptor, MOST_PROCEDURES, Mismatches, WantedProcedure};
use crate::names;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::net::SocketAddr;
use upcall_shm::tally::{KINDS, OUTCOMES, POWERS, PROCEDURES, Reading, SLOTS, WAYS};

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
    /// for reading. On the network the answer contains the numbers.
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
    /// The call statistics, on the network.
    Counted(CarriedCounts),
}

/// What a server counts, as it was at one time.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CarriedCounts {
    /// Number of bindings that found no slot.
    pub(crate) uncounted: u64,
    /// What clients hold, by kind: the number, the maximum, and how often more was refused.
    pub(crate) holdings: [[u64; 3]; KINDS],
    #[serde(deserialize_with = "counted")]
    pub(crate) bindings: Vec<CarriedReading>,
}

/// A [`Reading`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CarriedReading {
    pub(crate) id: (u16, u64),
    pub(crate) name: String,
    pub(crate) interface: String,
    pub(crate) client: u32,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) since: u64,
    pub(crate) outcomes: [u64; OUTCOMES],
    pub(crate) came: [u64; WAYS],
    pub(crate) bytes: [u64; 2],
    pub(crate) sizes: [u64; POWERS],
    pub(crate) times: [u64; POWERS],
    /// Up to the last procedure that was called.
    #[serde(deserialize_with = "of_procedures")]
    pub(crate) procedures: Vec<u64>,
}

impl From<Reading> for CarriedReading {
    fn from(read: Reading) -> Self {
        let Reading { id, name, interface, client, address, since, .. } = read;
        let Reading { outcomes, came, bytes, sizes, times, mut procedures, .. } = read;
        let called = procedures.iter().rposition(|&calls| calls > 0).map_or(0, |last| last + 1);
        procedures.truncate(called);
        Self {
            id,
            name,
            interface,
            client,
            address,
            since,
            outcomes,
            came,
            bytes,
            sizes,
            times,
            procedures,
        }
    }
}

impl From<CarriedReading> for Reading {
    fn from(counts: CarriedReading) -> Self {
        let CarriedReading { id, name, interface, client, address, since, .. } = counts;
        let CarriedReading { outcomes, came, bytes, sizes, times, procedures, .. } = counts;
        Self {
            id,
            name,
            interface,
            client,
            address,
            since,
            outcomes,
            came,
            bytes,
            sizes,
            times,
            procedures,
        }
    }
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

/// Reads the procedures that a client wants: at most one more than an interface can have.
fn few<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<WantedProcedure<'de>>, D::Error> {
    at_most(deserializer, MOST_PROCEDURES + 1, "more procedures than an interface has")
}

/// Reads the counts of bindings: at most as many as a server counts.
fn counted<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<CarriedReading>, D::Error> {
    at_most(deserializer, SLOTS, "more bindings than a server counts")
}

/// Reads the counts of procedures: at most as many as are counted.
fn of_procedures<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
    at_most(deserializer, PROCEDURES, "more procedures than are counted")
}

/// Reads a list of at most `most` elements, and of no more than there is memory for. `excess` is
/// the error for a longer one.
fn at_most<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
    most: usize,
    excess: &'static str,
) -> Result<Vec<T>, D::Error> {
    struct AtMost<T>(usize, &'static str, PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for AtMost<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {} elements", self.0)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
            let mut all = Vec::new();
            while let Some(next) = from.next_element()? {
                if all.len() >= self.0 {
                    return Err(A::Error::custom(self.1));
                }
                all.try_reserve(1).map_err(|_| A::Error::custom("no memory for a list"))?;
                all.push(next);
            }
            Ok(all)
        }
    }
    deserializer.deserialize_seq(AtMost(most, excess, PhantomData))
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

    fn reading(name: &str, procedures: Vec<u64>) -> Reading {
        Reading {
            id: (7, 9),
            name: name.into(),
            interface: "a:b/c@1.0.0".into(),
            client: 4711,
            address: "192.0.2.1:7000".parse().ok(),
            since: 12,
            outcomes: [u64::MAX; OUTCOMES],
            came: [1; WAYS],
            bytes: [2, 3],
            sizes: [4; POWERS],
            times: [5; POWERS],
            procedures,
        }
    }

    fn counts(bindings: Vec<Reading>) -> CarriedCounts {
        let bindings = bindings.into_iter().map(CarriedReading::from).collect();
        CarriedCounts { uncounted: 1, holdings: [[1, 2, 3]; KINDS], bindings }
    }

    #[test]
    fn counts_arrive_as_they_were_read() {
        let mut procedures = vec![0; PROCEDURES];
        procedures[2] = 70;
        let bytes = pack(&counts(vec![reading("files", procedures.clone())])).unwrap();
        let mut read: CarriedCounts = unpack(&bytes).unwrap();
        let read = Reading::from(read.bindings.remove(0));
        assert_eq!(read, reading("files", procedures[..3].to_vec()));
        // The longest counts of a server are an answer.
        let most = Reading {
            outcomes: [u64::MAX; OUTCOMES],
            came: [u64::MAX; WAYS],
            bytes: [u64::MAX; 2],
            sizes: [u64::MAX; POWERS],
            times: [u64::MAX; POWERS],
            ..reading(&"x".repeat(64), vec![u64::MAX; PROCEDURES])
        };
        let bytes = pack(&counts(vec![most; SLOTS])).unwrap();
        assert!(bytes.len() <= upcall_net::frame::MOST_ANSWER, "{}", bytes.len());
    }

    /// The server is another host's.
    #[test]
    fn more_counts_than_a_server_has_are_refused() {
        let long = pack(&counts(vec![reading("x", vec![1; PROCEDURES + 1])])).unwrap();
        assert!(unpack::<CarriedCounts>(&long).is_err());
        let many = pack(&counts(vec![reading("x", Vec::new()); SLOTS + 1])).unwrap();
        assert!(unpack::<CarriedCounts>(&many).is_err());
        let whole = pack(&counts(vec![reading("x", vec![1])])).unwrap();
        for len in 0..whole.len() {
            assert!(unpack::<CarriedCounts>(&whole[..len]).is_err(), "{len}");
        }
    }

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
