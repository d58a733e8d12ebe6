//! The protocol of the control connection, spoken by hand: what a peer could send that was not made
//! by Upcall.
//!
//! The messages are written down here a second time on purpose. They are what is on the wire, and a
//! change to them that is not a change of the version shows.

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
pub const VERSION: u32 = 8;

/// A client's request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ToServer {
    /// Comes back in the answer.
    pub serial: u32,
    /// What is wanted.
    pub request: Request,
}

/// What a client can want.
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
    /// The request's.
    pub serial: u32,
    /// The answer.
    pub answer: Answer,
}

/// What a server can answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "as in the runtime")]
pub enum Answer {
    Opened {
        home: u16,
    },
    /// Of each procedure its number, its simultaneous calls, and the bytes of its A-stack.
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
    /// Those that are told, and how many more there are.
    Mismatch(Vec<(String, String, Option<String>)>, u32),
    Resource {
        what: String,
        code: i32,
    },
    Protocol(String),
    Ceiling(String),
}

/// How a call went: the tag of its reply.
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
    pub const UNANSWERED: u16 = u16::MAX;
}

/// The runtime's own procedure that lets go of an object.
pub const RELEASE: u16 = 1023;
/// The one that fetches a result which was kept.
pub const FETCH: u16 = 1022;

/// The tag of a request: six bits of binding, ten of procedure.
pub fn tag(binding: u16, procedure: u16) -> u16 {
    binding << 10 | procedure & 0x3ff
}

/// What came of saying something.
#[derive(Debug)]
pub enum Came {
    /// An answer.
    Answer(Answer, Vec<OwnedFd>),
    /// The connection was closed.
    Closed,
    /// Nothing in time.
    Nothing,
}

/// One end of a control connection, in the hands of somebody who says what he likes.
#[derive(Debug)]
pub struct Speaker(pub Connection);

/// How long a server may take for one answer.
const LIMIT: Duration = Duration::from_secs(10);

impl Speaker {
    /// Connects to the domain with this socket. Waits for a place in its queue of connections, as
    /// clients do.
    ///
    /// # Errors
    /// The kernel's; `EAGAIN`: the queue was full for a minute.
    pub fn connect(socket: &Path) -> io::Result<Self> {
        Connection::connect_until(socket, Instant::now() + PATIENCE).map(Self)
    }

    /// The same without a wait, for hostile clients.
    ///
    /// # Errors
    /// The kernel's; `EAGAIN`: the queue is full.
    pub fn try_connect(socket: &Path) -> io::Result<Self> {
        Connection::connect(socket).map(Self)
    }

    /// Sends bytes. A connection that the other end has closed takes nothing, and that is no error
    /// here; a full one is tried again for a while.
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

    /// Sends bytes, which may be none, with more descriptors than a message of the protocol may
    /// have. Returns `false` if the other end has hung up.
    ///
    /// # Panics
    /// More descriptors than the kernel lets through, 253.
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

/// A proper channel, with everything in it that a client may write.
#[derive(Debug)]
pub struct Hold {
    /// The control connection.
    pub speaker: Speaker,
    /// The channel's memory.
    pub channel: std::sync::Arc<Region>,
    /// The A-stacks' memory.
    pub astacks: std::sync::Arc<Region>,
    /// A segment's memory; its number is 1.
    pub segment: std::sync::Arc<Region>,
    /// Our station.
    pub station: Station,
    /// The doorbell that wakes the server.
    pub server_doorbell: Doorbell,
    /// The numbers of the procedures of `trial`, in its order.
    pub numbers: Vec<u16>,
    /// How many A-stacks there are.
    pub stacks: usize,
}

/// The descriptors of the memory of a [`Hold`], which closes them as a rule once it has mapped
/// them.
pub struct Files {
    /// The channel's.
    pub channel: MemoryFile,
    /// The A-stacks'.
    pub astacks: MemoryFile,
    /// The segment's.
    pub segment: MemoryFile,
    /// The station of the server's domain.
    pub station: OwnedFd,
}

/// Asks for all procedures of an interface, and brings no A-stacks yet.
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

/// The list that a server gives which has no interface.
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
    /// Opens a channel to the domain at `socket`, binds `name` as `trial`, and opens a lane of a
    /// kernel thread (0) and none else.
    ///
    /// # Errors
    /// The server refused, or the kernel did.
    pub fn new(socket: &Path, name: &str) -> io::Result<Self> {
        Self::of(socket, name, &crate::interfaces::trial::INTERFACE)
    }

    /// The same for another interface.
    ///
    /// # Errors
    /// As [`Hold::new`].
    pub fn of(socket: &Path, name: &str, interface: &Interface) -> io::Result<Self> {
        Self::with_files(socket, name, interface).map(|(hold, _)| hold)
    }

    /// The same, and the descriptors of all memory that both sides share.
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
        // An interface whose calls need none gets some nevertheless, which the server does not know
        // of.
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

    /// The calling end of lane 0. To be asked for once: a second one would count its calls from the
    /// beginning again.
    ///
    /// # Panics
    /// The channel's memory is too short for it.
    pub fn caller(&self) -> Caller<'_> {
        let lane = Channel::join(self.channel.clone()).ok().and_then(|channel| channel.lane(0));
        Caller { hold: self, slot: SingleCaller::new(lane.expect("a lane").single) }
    }

    /// The number of the procedure of `trial` with this name.
    ///
    /// # Panics
    /// There is none.
    pub fn number(&self, name: &str) -> u16 {
        let at = crate::interfaces::trial::INTERFACE
            .procedures
            .iter()
            .position(|procedure| procedure.name == name);
        self.numbers[at.unwrap_or_else(|| panic!("no procedure {name}"))]
    }
}

/// Pause between two looks for a reply.
pub const LOOKS: Duration = Duration::from_micros(20);

/// The calling end of a kernel thread's lane, in the hands of somebody who sends what he likes.
#[derive(Debug)]
pub struct Caller<'a> {
    hold: &'a Hold,
    slot: SingleCaller<RegionView<Slot>>,
}

impl Caller<'_> {
    /// Sends a request and waits for its reply; `None` if there is none in time. A request whose
    /// reply has not come must be the last.
    pub fn call(&self, request: &SlotMessage) -> Option<SlotMessage> {
        self.slot.send(request);
        // The server looks at its lanes after it has said that it sleeps; so it sees the request,
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
