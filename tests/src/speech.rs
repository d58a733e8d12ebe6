//! The protocol of the control connection, spoken by hand: what a peer other than Upcall could
//! send.
//!
//! The messages are deliberately written down a second time. They are what is on the wire, so that
//! a change to them without a change of the version shows.

use crate::party::PATIENCE;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use upcall::stub::Interface;
use upcall_os::doorbell::Doorbell;
use upcall_os::memory::{Mapping, MemoryFile};
use upcall_os::socket::{Connection, Received};
use upcall_shm::astack::AStackPlan;
use upcall_shm::channel::{self, Channel};
use upcall_shm::region::{Region, RegionView};
use upcall_shm::single::SingleCaller;
use upcall_shm::slot::{Slot, SlotMessage};
use upcall_shm::station::Station;

/// The version that this program speaks.
pub const VERSION: u32 = 9;

/// A client's request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ToServer {
    /// The number that the answer repeats.
    pub serial: u32,
    /// The request itself.
    pub request: Request,
}

/// The requests of a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "as in the runtime")]
pub enum Request {
    Open {
        version: u32,
    },
    Bind {
        id: u16,
        name: String,
        interface: String,
        procedures: Vec<(String, u64, String)>,
        stacks: u32,
    },
    Stacks {
        id: u16,
    },
    Unbind {
        id: u16,
    },
    OpenLane {
        number: u16,
        vp: Option<u16>,
    },
    Segment {
        number: u16,
        len: u64,
    },
    DropSegment {
        number: u16,
    },
    List,
    Tallies,
    Stalled,
}

/// A server's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ToClient {
    /// The serial number of the request.
    pub serial: u32,
    /// The answer.
    pub answer: Answer,
}

/// The answers of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "as in the runtime")]
pub enum Answer {
    Opened {
        home: u16,
    },
    /// For each procedure: its number, its simultaneous calls, and the size of its A-stack in
    /// bytes.
    Bound {
        procedures: Vec<(u16, u16, u32)>,
    },
    Mapped,
    Exports,
    Refused(Refusal),
}

/// Why a server refuses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "as in the runtime")]
pub enum Refusal {
    Version(String),
    Denied(String),
    NoSuchName,
    WrongInterface {
        exported: String,
    },
    /// The mismatches that are listed, and the number of others.
    Mismatch(Vec<(String, String, Option<String>)>, u32),
    Resource {
        what: String,
        code: i32,
    },
    Protocol(String),
    Quota(String),
}

/// The outcome of a call: the tag of its reply.
#[allow(missing_docs, reason = "as in the runtime")]
pub mod outcome {
    pub const DONE: u16 = 0;
    pub const REFUSED: u16 = 1;
    pub const PANICKED: u16 = 2;
    pub const NO_SUCH_PROCEDURE: u16 = 3;
    pub const REVOKED: u16 = 4;
    pub const HELD: u16 = 5;
    pub const NO_SUCH_HANDLE: u16 = 6;
    pub const QUOTA: u16 = 7;
    pub const NO_MEMORY: u16 = 8;
    pub const RESULT_QUOTA: u16 = 9;
    pub const RESULT_NO_MEMORY: u16 = 10;
    pub const PANICKED_HELD: u16 = 11;
    pub const REFUSED_HELD: u16 = 12;
    pub const UNANSWERED: u16 = u16::MAX;
}

/// The runtime's own procedure that releases an object.
pub const RELEASE: u16 = 1023;
/// The runtime's own procedure that fetches a held result.
pub const FETCH: u16 = 1022;

/// The tag of a request: six bits of binding, ten bits of procedure.
pub fn tag(binding: u16, procedure: u16) -> u16 {
    binding << 10 | procedure & 0x3ff
}

/// The result of a wait for an answer.
#[derive(Debug)]
pub enum Came {
    /// An answer.
    Answer(Answer, Vec<OwnedFd>),
    /// The connection was closed.
    Closed,
    /// No answer in time.
    Nothing,
}

/// One end of a control connection, on which a test can send anything.
#[derive(Debug)]
pub struct Speaker(pub Connection);

/// Longest wait for one answer of a server.
const LIMIT: Duration = Duration::from_secs(10);

impl Speaker {
    /// Connects to the domain with this socket. Waits for a place in its queue of connections, as
    /// clients do.
    ///
    /// # Errors
    /// The kernel's; `EAGAIN` if the queue was full for a minute.
    pub fn connect(socket: &Path) -> io::Result<Self> {
        Connection::connect_until(socket, Instant::now() + PATIENCE).map(Self)
    }

    /// Connects without a wait, for hostile clients.
    ///
    /// # Errors
    /// The kernel's; `EAGAIN` if the queue is full.
    pub fn try_connect(socket: &Path) -> io::Result<Self> {
        Connection::connect(socket).map(Self)
    }

    /// Sends bytes. It is not an error here if the other end has closed the connection; a send to a
    /// full connection is retried for a while.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
        for _ in 0..1000 {
            match self.0.send(bytes, descriptors) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(1))
                }
                sent => return sent.is_ok(),
            }
        }
        false
    }

    /// Sends a request.
    pub fn tell(&self, request: Request, descriptors: &[BorrowedFd<'_>]) -> bool {
        let bytes =
            postcard::to_stdvec(&ToServer { serial: 1, request }).expect("a message can be packed");
        self.send(&bytes, descriptors)
    }

    /// Sends bytes, possibly none, with more descriptors than a message of the protocol may have.
    /// Returns `false` if the other end has hung up.
    ///
    /// # Panics
    /// If there are more descriptors than the kernel lets through, 253.
    pub fn send_of(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(
            control.push(SendAncillaryMessage::ScmRights(descriptors)),
            "{} descriptors",
            descriptors.len()
        );
        sendmsg(&self.0, &[io::IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).is_ok()
    }

    /// Waits for an answer.
    pub fn hear(&self) -> Came {
        match self.0.receive_within(Duration::ZERO, LIMIT) {
            Ok(Received::Message(message)) => {
                match postcard::from_bytes::<ToClient>(&message.bytes) {
                    Ok(said) => Came::Answer(said.answer, message.descriptors),
                    Err(_) => Came::Closed,
                }
            }
            Ok(Received::Nothing) => Came::Nothing,
            Ok(Received::Closed) | Err(_) => Came::Closed,
        }
    }

    /// Sends a request and waits for its answer.
    pub fn ask(&self, request: Request, descriptors: &[BorrowedFd<'_>]) -> Came {
        self.tell(request, descriptors);
        self.hear()
    }
}

/// A proper channel, with all its parts that a client may write.
#[derive(Debug)]
pub struct Hold {
    /// The control connection.
    pub speaker: Speaker,
    /// The channel's memory.
    pub channel: std::sync::Arc<Region>,
    /// The A-stacks' memory.
    pub astacks: std::sync::Arc<Region>,
    /// The memory of the segment with number 1.
    pub segment: std::sync::Arc<Region>,
    /// The client's station.
    pub station: Station,
    /// The doorbell that wakes the server.
    pub server_doorbell: Doorbell,
    /// The numbers of the procedures of `trial`, in the interface's order.
    pub numbers: Vec<u16>,
    /// Number of A-stacks.
    pub stacks: usize,
}

/// The descriptors of the memory of a [`Hold`], which usually closes them once it has mapped them.
pub struct Files {
    /// The channel's descriptor.
    pub channel: MemoryFile,
    /// The A-stacks' descriptor.
    pub astacks: MemoryFile,
    /// The segment's descriptor.
    pub segment: MemoryFile,
    /// The station of the server's domain.
    pub station: OwnedFd,
}

/// A request for all procedures of an interface, without A-stacks yet.
pub fn bind_all(id: u16, name: &str, interface: &Interface) -> Request {
    let wanted =
        interface.procedures.iter().map(|p| (p.name.to_string(), p.hash, p.signature.to_string()));
    Request::Bind {
        id,
        name: name.into(),
        interface: interface.id.to_string(),
        procedures: wanted.collect(),
        stacks: 0,
    }
}

/// The list of procedures that a server without an interface gives.
pub fn any_list(procedures: usize) -> Vec<(u16, u16, u32)> {
    (0..procedures as u16).map(|number| (number, 5, 1024)).collect()
}

/// The A-stacks of a binding with this list.
pub fn plan(procedures: &[(u16, u16, u32)]) -> AStackPlan {
    AStackPlan::for_procedures(procedures.iter().map(|&(_, calls, bytes)| (bytes, calls)))
}

fn mapped(file: &MemoryFile) -> io::Result<std::sync::Arc<Region>> {
    Region::new(Mapping::shared(file)?).ok_or_else(|| io::Error::other("read-only"))
}

impl Hold {
    /// Opens a channel to the domain at `socket`, binds `name` as `trial`, and opens one lane, that
    /// of a kernel thread (0).
    ///
    /// # Errors
    /// If the server or the kernel refused.
    pub fn new(socket: &Path, name: &str) -> io::Result<Self> {
        Self::of(socket, name, &crate::interfaces::trial::INTERFACE)
    }

    /// Opens a channel as [`Hold::new`] does, for another interface.
    ///
    /// # Errors
    /// As [`Hold::new`].
    pub fn of(socket: &Path, name: &str, interface: &Interface) -> io::Result<Self> {
        Self::with_files(socket, name, interface).map(|(hold, _)| hold)
    }

    /// Opens a channel as [`Hold::of`] does, and also returns the descriptors of all memory that
    /// both sides share.
    ///
    /// # Errors
    /// As [`Hold::new`].
    pub fn with_files(
        socket: &Path,
        name: &str,
        interface: &Interface,
    ) -> io::Result<(Self, Files)> {
        let speaker = Speaker::connect(socket)?;
        let station = Station::new()?;
        let channel_file = MemoryFile::create("upcall-channel", channel::BYTES)?;
        let region = mapped(&channel_file)?;
        Channel::create(region.clone()).map_err(io::Error::other)?;
        let opened = speaker
            .ask(Request::Open { version: VERSION }, &[channel_file.as_fd(), station.as_fd()]);
        let Came::Answer(Answer::Opened { .. }, descriptors) = opened else {
            return Err(io::Error::other(format!("not opened: {opened:?}")));
        };
        let [server_station, doorbell] =
            <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| io::Error::other("descriptors"))?;
        let bound = speaker.ask(bind_all(0, name, interface), &[]);
        let Came::Answer(Answer::Bound { procedures }, _) = bound else {
            return Err(io::Error::other(format!("not bound: {bound:?}")));
        };
        let plan = plan(&procedures);
        // If the calls of an interface need no A-stacks, there are some nevertheless, which the
        // server does not know of.
        let astacks_file = MemoryFile::create("upcall-astacks", plan.bytes().max(64))?;
        let astacks = mapped(&astacks_file)?;
        if plan.bytes() > 0 {
            let given = speaker.ask(Request::Stacks { id: 0 }, &[astacks_file.as_fd()]);
            let Came::Answer(Answer::Mapped, _) = given else {
                return Err(io::Error::other(format!("A-stacks not mapped: {given:?}")));
            };
        }
        let numbers = procedures.iter().map(|&(number, ..)| number).collect();
        let (segment_file, segment) = MemoryFile::create_filled("upcall-segment", 1 << 20)?;
        let segment = Region::new(segment).ok_or_else(|| io::Error::other("read-only"))?;
        let given =
            speaker.ask(Request::Segment { number: 1, len: 1 << 20 }, &[segment_file.as_fd()]);
        let Came::Answer(Answer::Mapped, _) = given else {
            return Err(io::Error::other(format!("not mapped: {given:?}")));
        };
        speaker.tell(Request::OpenLane { number: 0, vp: None }, &[]);
        let stacks = plan.classes().iter().map(|class| usize::from(class.count)).sum();
        let server_doorbell = Doorbell::adopt(doorbell)?;
        let files = Files {
            channel: channel_file,
            astacks: astacks_file,
            segment: segment_file,
            station: server_station,
        };
        Ok((
            Self {
                speaker,
                channel: region,
                astacks,
                segment,
                station,
                server_doorbell,
                numbers,
                stacks,
            },
            files,
        ))
    }

    /// The calling end of lane 0. Take it only once: a second one would count its calls from the
    /// beginning again.
    ///
    /// # Panics
    /// If the channel's memory is too short for the lane.
    pub fn caller(&self) -> Caller<'_> {
        let lane = Channel::join(self.channel.clone()).ok().and_then(|channel| channel.lane(0));
        Caller { hold: self, slot: SingleCaller::new(lane.expect("a lane").single) }
    }

    /// The number of the procedure of `trial` with this name.
    ///
    /// # Panics
    /// If there is no such procedure.
    pub fn number(&self, name: &str) -> u16 {
        let at = crate::interfaces::trial::INTERFACE
            .procedures
            .iter()
            .position(|procedure| procedure.name == name);
        self.numbers[at.unwrap_or_else(|| panic!("no procedure {name}"))]
    }
}

/// Interval between two probes for a reply.
pub const LOOKS: Duration = Duration::from_micros(20);

/// The calling end of a kernel thread's lane, on which a test can send anything.
#[derive(Debug)]
pub struct Caller<'a> {
    hold: &'a Hold,
    slot: SingleCaller<RegionView<Slot>>,
}

impl Caller<'_> {
    /// Sends a request and waits for its reply; `None` if there is none in time. After such a
    /// request no other may follow.
    pub fn call(&self, request: &SlotMessage) -> Option<SlotMessage> {
        self.slot.send(request);
        // The server probes its lanes after it has published that it sleeps. So it sees the request
        // or this ring.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.hold.server_doorbell.notify();
        let start = std::time::Instant::now();
        let mut reply = SlotMessage::new(0, 0, 0);
        while !self.slot.take(&mut reply) {
            if start.elapsed() > LIMIT {
                return None;
            }
            std::thread::sleep(LOOKS);
        }
        Some(reply)
    }
}
