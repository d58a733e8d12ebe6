//! Communication between the processes of a machine. They are a group (UDM), whose members send
//! each other messages for tasks in other processes.
//!
//! A message to a task in another process is one message of the group: a header of four words, and
//! the block's contents, copied into memory that the two processes share. A long message goes in
//! [`parts`]. Everything else is rare: a [`ControlMessage`], or something of a task that moves
//! ([`packed`](crate::packed)).
//!
//! # Order
//! Both kinds use the same pair of members, so they arrive in the order in which they were sent: a
//! task's last message arrives before the report of its end. Between pairs the order is as with
//! PVM's daemon on one host, for processes of one host: a message that was sent because of another
//! one is handled after that one. For this, each message carries the time of a Lamport clock, which
//! never is behind a message that has arrived. The cause of a message always arrived before it. A
//! process that takes one message takes all that have arrived, and handles them in the order of
//! their times. Of very many it takes a part, and keeps those whose causes may be left
//! ([`causal`](crate::causal)).
//!
//! # Process death
//! The first process (rank 0) keeps the state of the whole machine. When another process dies, its
//! tasks have ended. When the first one dies, the others end.

mod lack;
mod parts;
#[cfg(test)]
mod tests;

use crate::causal::{Queues, StampedMessage};
use crate::counting::{Count, PeerCount};
use crate::holding::{HeldMessage, HoldMessage};
use crate::hosts::{HostComes, MemberOrder, SpawnPlace};
use crate::moves::{MoveMessage, RankSet, Refusal};
use crate::output::Catcher;
use crate::packed::{PackedHead, SentBlock};
use crate::shown::MoveCost;
use crate::task::TaskMessage;
use crate::tid::Tid;
use crate::wire::Packet;
pub(crate) use lack::LeftMessage;
use lack::LeftMessages;
use parts::{Completion, FAR_PART, MessagePart, MissingMemory, PART, Parts};
use rustix::event::{EventfdFlags, eventfd};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::{CString, OsString};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_message::{
    Event, ExpectError, Group, GroupBuilder, Handlers, Invitation, JoinError, Kind,
    Message as Arrived, Payload, Petition, Rank, SendError, Writer,
};
use upcall_ulp::{Block, UlpRange};

/// A task to be started, as it is sent to the process in which it will run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct TaskSpec {
    pub(crate) program: OsString,
    pub(crate) args: Vec<CString>,
    /// `NAME=value` strings, in addition to the process's environment.
    pub(crate) environment: Vec<CString>,
    pub(crate) parent: i32,
    pub(crate) context: i32,
    pub(crate) output: crate::output::Output,
    pub(crate) options: Vec<(i32, i32)>,
    /// The folder in which the task starts, if that is not the machine's.
    pub(crate) directory: Option<OsString>,
    /// The folder of its spawner's program, which is also searched for names.
    pub(crate) folder: Option<OsString>,
}

/// A message between processes about tasks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ControlMessage {
    /// To the first process: a task asks for a service (`OP_…`).
    Ask { tid: i32, op: u64, question: Vec<u8> },
    /// The answer to [`Ask`](Self::Ask).
    Answer { tid: i32, code: i32, packet: Vec<u8> },
    /// To the first process: a task spawns others.
    Spawn { tid: i32, plan: TaskSpec, count: u32, place: SpawnPlace },
    /// From the first process: start a task in each of these slots.
    Start { request: u64, plan: TaskSpec, slots: Vec<u32> },
    /// The tids of the started tasks, or PVM's error for each failure.
    Started { request: u64, all: Vec<Result<i32, i32>>, name: String },
    /// From the first process: these tasks were started together, and may run now.
    Together { tids: Vec<i32> },
    /// To the first process: a task has left the machine, and goes on without it.
    Left { tid: i32, sent: SentCounts },
    /// To the first process: a task that had left has enrolled again.
    Entered { tid: i32 },
    /// To the first process: whether a reset spares the task from now on.
    Spared { tid: i32, is_spared: bool },
    /// To the first process: a task has ended with this status, and this task caught its output.
    Ended { tid: i32, status: i32, catcher: Option<Catcher>, sent: SentCounts },
    /// From the first process: end the task.
    Kill { tid: i32 },
    /// From the first process: send the task a signal.
    Signal { tid: i32, signal: i32 },
    /// From the first process to all: these tasks run in this process
    /// ([`places`](crate::places)).
    Lives { tids: Vec<i32>, rank: Rank, epoch: u32 },
    /// From the first process to all: a task has ended about which there was a `Lives`.
    Gone { tid: i32 },
    /// To all processes: the machine ends.
    Halt,
    /// From the first process: do all tasks wait, and how many messages were sent and received
    /// ([`stuck`](crate::node))?
    Count { question: u64 },
    /// The answer to [`Count`](Self::Count), with the process's tasks if all wait.
    Counted { question: u64, count: Count, tasks: Vec<crate::shown::ShownTask> },
    /// From the first process: what do the process's tasks do?
    Look { number: u64 },
    /// The answer to [`Look`](Self::Look).
    /// `time` is the processor time of its worker.
    Seen { number: u64, time: Duration, tasks: Vec<crate::shown::ShownTask> },
    /// From the first process: what have your tasks used since the last such question?
    Measure { round: u64, with_bytes: bool },
    /// The answer to [`Measure`](Self::Measure).
    Measured { round: u64, loads: crate::balance::MeasuredLoads },
    /// To the first process: a task computes here, and none did before.
    Wakes,
    /// To a process that holds back messages of the others: its Lamport time is to be later than
    /// this message ([`causal`](crate::causal)).
    Time,
    /// To the first process: another arena for blocks is needed soon.
    NeedsArena,
    /// The answer to [`NeedsArena`](Self::NeedsArena): the arena's number.
    Arena { number: u32 },
    /// A message about a move ([`moves`](crate::moves)).
    Move(MoveMessage),
    /// To the first process: a task has entered this process.
    Arrived { tid: Tid, cost: MoveCost },
    /// From the first process to all: what to do for this checkpoint ([`holding`](crate::holding)).
    Hold { number: u64, message: HoldMessage },
    /// The answer to [`Hold`](Self::Hold).
    Held { number: u64, message: HeldMessage },
    /// From the first process: the next name to give, after a restart.
    NextName { name: u32 },
    /// To the first process: this task of a checkpoint is whole, or the reason why it is not.
    Restored { tid: Tid, refused: Option<Refusal> },
    /// To the owner of these blocks: the process that says this has copies of them, since a task
    /// enters it.
    HasBlocks { tid: Tid, epoch: u64, blocks: Vec<SentBlock> },
    /// The answer to [`HasBlocks`](Self::HasBlocks): whether the addresses stay taken.
    LendsBlocks { tid: Tid, epoch: u64, all: bool },
    /// To the process that a task leaves: the pages of the last round have been read, or cannot be.
    HasPages { tid: Tid, epoch: u64, result: PagesRead },
    /// To the process that a task was to enter: it does not, or with all of its pages.
    DropPages { tid: Tid, epoch: u64 },
    /// To the process that a task leaves: send its contents, which cannot be read there.
    SendContents { tid: Tid, epoch: u64 },
    /// To the owner of these blocks: the process that says this has no copies of them any more.
    HadBlocks { blocks: Vec<SentBlock> },
    /// To the first process: the number of this process of another host, to be shown, and how many
    /// hosts it knows.
    Here { process: u32, hosts: u32 },
    /// From the first process to all: the hosts of the machine, as one word.
    Hosts { all: String },
    /// The answer to [`Hosts`](Self::Hosts): how many hosts this process knows.
    KnowsHosts { count: u32 },
    /// To the first process: this process of another host has ended, or cannot be reached.
    Unreachable { rank: Rank },
    /// From the first process: a message of the machine for a task.
    Late(LateMessage),
}

/// Number of messages that a process has sent to each process of another host, but the first one,
/// by rank.
pub(crate) type SentCounts = Vec<(Rank, u64)>;

/// A message of the machine about what has happened in a process of another host: a notice, or the
/// end of output. It goes by way of the first process, and must not overtake what came before: its
/// receiver's process delivers it when it has taken `count` messages of process `after`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LateMessage {
    pub(crate) after: Rank,
    pub(crate) count: u64,
    pub(crate) source: i32,
    pub(crate) to: Tid,
    pub(crate) tag: i32,
    pub(crate) context: i32,
    pub(crate) data: Packet,
}

/// The result of reading pages of a task in another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PagesRead {
    /// All are here.
    All,
    /// The task does not fit in here, or its pages do not exist.
    Refused,
    /// The kernel does not let this process read the other one's memory.
    Unreadable,
}

impl ControlMessage {
    /// Returns `true` if only the first process gives this order or answer.
    pub(crate) fn is_of_first(&self) -> bool {
        matches!(
            self,
            Self::Answer { .. }
                | Self::Start { .. }
                | Self::Together { .. }
                | Self::Kill { .. }
                | Self::Signal { .. }
                | Self::Lives { .. }
                | Self::Gone { .. }
                | Self::Halt
                | Self::Count { .. }
                | Self::Look { .. }
                | Self::Measure { .. }
                | Self::Arena { .. }
                | Self::Hold { .. }
                | Self::NextName { .. }
                | Self::Late(_)
                | Self::Hosts { .. }
        )
    }

    /// Returns `true` if the message belongs to the counting itself, and so is not counted.
    fn counts(&self) -> bool {
        matches!(
            self,
            Self::Count { .. }
                | Self::Counted { .. }
                | Self::Hold { message: HoldMessage::Count { .. }, .. }
                | Self::Held { message: HeldMessage::Counted { .. }, .. }
        )
    }
}

/// A message from another process, with its Lamport time.
pub(crate) type Stamped = StampedMessage<RemoteArrival>;

/// The content of a [`Stamped`] message.
#[derive(Debug)]
pub(crate) enum RemoteArrival {
    Message(TaskMessage),
    /// A message whose contents are in its receiver's memory already.
    Placed(TaskMessage),
    /// Boxed, so that moving a task's message does not move space for this one.
    Control(Box<ControlMessage>),
    /// Something of a task that moves.
    Packed(Box<(PackedHead, Vec<u8>)>),
}

/// A task's message with its Lamport time, as the group carries it.
struct Parcel {
    message: TaskMessage,
    stamp: u64,
    /// Number of bytes that have gone before, in parts.
    gone: usize,
    /// The contents, if they are not in a block.
    data: Option<UlpRange>,
    /// Whether the contents could not be read. Then the message has no receiver.
    is_void: Cell<bool>,
}

const HEADER: usize = 4;

/// A number that no task has.
const NOBODY: i32 = 0;

/// Numbers of the message kinds, in the order of their registration.
const PARCEL: u16 = 0;
const CONTROL: u16 = 1;
const PACKED: u16 = 2;
const PARTS: u16 = 3;
const LAST: u16 = 4;
const MEMORY: u16 = 5;

impl Payload for Parcel {
    type Owned = ();

    fn signature() -> String {
        "bytes".into()
    }

    fn size(&self) -> usize {
        HEADER * 8 + self.message.length - self.gone
    }

    fn write(&self, writer: &mut Writer<'_, '_>) {
        let Self { message, stamp, gone, data, is_void } = self;
        let halves = |low: i32, high: i32| u64::from(low as u32) | u64::from(high as u32) << 32;
        if let Some(data) = data {
            let room = writer.room().within(HEADER * 8, data.len());
            is_void.set(room.is_none_or(|room| data.copy_to_span(room).is_err()));
        }
        let destination = if is_void.get() { NOBODY } else { message.destination };
        writer.word(halves(message.source, destination));
        writer.word(halves(message.tag, message.context));
        writer.word(halves(message.encoding, message.wait));
        writer.word(*stamp);
        if let Some(block) = &message.block {
            block.lent(message.length, |bytes| writer.part(HEADER * 8, &bytes[*gone..]));
        }
    }

    fn read(_: &mut upcall_message::Reader<'_, '_>) -> Option<()> {
        None
    }
}

/// The result of reading a message of the group.
enum ReadMessage {
    Read(Stamped),
    /// A part of a longer message; or a malformed message, which is dropped: its sender does not
    /// follow the protocol.
    Nothing,
    /// There is no memory for it now. It stays in its queue.
    NoMemory(MissingMemory),
}

impl ReadMessage {
    fn of(read: Option<Stamped>) -> Self {
        read.map_or(Self::Nothing, Self::Read)
    }
}

/// The result of looking for a message.
enum NextArrival {
    Taken(Stamped),
    /// It stays in the queue of this sender.
    Stays(Rank),
    None,
}

/// The head of a task's message, without its contents, and its stamp.
#[inline(always)]
fn header(arrived: &Arrived<'_, '_>) -> Option<(TaskMessage, u64)> {
    let halves = |at| arrived.word(at).map(|word| (word as i32, (word >> 32) as i32));
    let (source, destination) = halves(0)?;
    let ((tag, context), (encoding, wait)) = (halves(1)?, halves(2)?);
    let (stamp, length) = (arrived.word(3)?, arrived.size().checked_sub(HEADER * 8)?);
    let message =
        TaskMessage { source, destination, tag, context, encoding, wait, block: None, length };
    Some((message, stamp))
}

/// Reads a task's message. `place` is where its contents go in the receiver's memory, if that waits
/// for them.
fn read_parcel(
    arrived: &Arrived<'_, '_>,
    whole: Completion,
    place: impl FnOnce(&TaskMessage) -> Option<UlpRange>,
) -> ReadMessage {
    let Some((mut message, stamp)) = header(arrived) else { return ReadMessage::Nothing };
    let (from, length) = (arrived.from(), message.length);
    if let Completion::Parcel = whole
        && let Some(place) = place(&message)
        && let Some(contents) = arrived.payload().part(HEADER * 8, length)
        && place.copy_from_span(contents).is_ok()
    {
        return ReadMessage::Read(Stamped { stamp, from, item: RemoteArrival::Placed(message) });
    }
    (message.block, message.length) = match whole {
        Completion::Parts(block, length) => (Some(block), length),
        Completion::Parcel if length > 0 => {
            // The group's message has these bytes, so only memory can be missing.
            match Block::written(length, |bytes| arrived.copy_out(HEADER * 8, bytes)) {
                Some(block) => (Some(block), length),
                None => return ReadMessage::NoMemory(MissingMemory(length)),
            }
        }
        Completion::Parcel => (None, 0),
        Completion::Lost => return ReadMessage::Nothing,
    };
    ReadMessage::Read(Stamped { stamp, from, item: RemoteArrival::Message(message) })
}

pub(crate) fn read_control(from: Rank, bytes: &[u8]) -> Option<Stamped> {
    let (stamp, bytes) = bytes.split_first_chunk()?;
    let item = RemoteArrival::Control(Box::new(postcard::from_bytes(bytes).ok()?));
    Some(Stamped { stamp: u64::from_ne_bytes(*stamp), from, item })
}

/// Reads something of a task that moves.
fn read_packed(arrived: &Arrived<'_, '_>) -> ReadMessage {
    let mut bytes = Vec::new();
    if bytes.try_reserve_exact(arrived.size()).is_err() {
        return ReadMessage::NoMemory(MissingMemory(arrived.size()));
    }
    bytes.resize(arrived.size(), 0);
    let copied = arrived.copy_out(0, &mut bytes);
    ReadMessage::of(copied.and_then(|()| packed_of(arrived.from(), bytes)))
}

pub(crate) fn packed_of(from: Rank, mut bytes: Vec<u8>) -> Option<Stamped> {
    let (stamp, rest) = bytes.split_first_chunk()?;
    let stamp = u64::from_ne_bytes(*stamp);
    let (head, rest) = postcard::take_from_bytes(rest).ok()?;
    let before = bytes.len() - rest.len();
    drop(bytes.drain(..before));
    Some(Stamped { stamp, from, item: RemoteArrival::Packed(Box::new((head, bytes))) })
}

/// Whether ends of processes are to be detected, which costs more than to find no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HearEnds {
    Yes,
    No,
}

/// What was sent of a message from a task's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SentFrom {
    All,
    /// It must go in a block: it is too long, or a part of it cannot be read.
    Nothing,
}

/// This process's membership in the group of its machine's processes.
pub(crate) struct MachineLink {
    group: Group,
    parcel: Kind<Parcel>,
    control: Kind<[u8]>,
    packed: Kind<[u8]>,
    part: Kind<MessagePart>,
    /// The last bytes of a message in parts.
    last: Kind<Parcel>,
    /// A message from its sender's memory. Only for these it is worth while to find out whether the
    /// receiver waits with memory of its own.
    memory: Kind<Parcel>,
    /// The long messages that are arriving.
    parts: Parts,
    /// Messages that stay in their queues, because there is no memory for them.
    left: LeftMessages,
    /// Number of bytes that have gone of a long message for whose next part there was no room.
    gone: Cell<usize>,
    /// Lamport time: the latest of all messages sent and received.
    stamp: Cell<u64>,
    /// Whether each process has a CPU to itself, as far as this process knows.
    is_alone: bool,
    /// Changes that [`change_if`](Self::change_if) has not returned yet.
    changes: RefCell<VecDeque<LinkChange>>,
    /// Indexed by rank.
    counts: Box<[PeerCounts]>,
    /// The processes of this host.
    near: Range<Rank>,
    /// Whether this is the first process.
    is_first: bool,
}

/// A change of who is in the machine, or wants to be.
#[derive(Debug)]
pub(crate) enum LinkChange {
    /// This process has joined.
    Joined(Rank),
    /// This process has ended.
    Lost(Rank),
    /// To the first process: a host asks for something.
    Asked(Petition),
}

/// Version of the messages between processes. Part of a kind's name, so that the group refuses
/// processes of another one, which other hosts may have.
const PROTOCOL: &str = concat!("control ", env!("CARGO_PKG_VERSION"), ".5");

/// Messages to and from another process, without those of the counting itself.
#[derive(Debug, Default)]
struct PeerCounts {
    sent: Cell<u64>,
    heard: Cell<u64>,
    /// Whether the process has ended.
    is_lost: Cell<bool>,
}

fn count(cell: &Cell<u64>) {
    cell.set(cell.get().wrapping_add(1));
}

/// Number of pauses of the processor, with polls before each, until a wait blocks.
const LOOKS: u32 = 300;
/// Number of polls before a pause, which takes some 50 ns: a message is found sooner.
const BURST: u32 = 4;
/// Maximum time for which a wait polls while a task moves.
const MOVE_LOOK: Duration = Duration::from_millis(1);

/// Returns `true` if a process is not to wait for the others any more.
pub(crate) type JoinInterruption = Box<dyn Fn() -> bool>;

/// Maximum time that a send waits for room before arrived messages are taken. The receiver may
/// itself wait for room here.
const PATIENCE: Duration = Duration::from_millis(100);

impl MachineLink {
    /// Joins the group as process `rank`. Blocks until all processes have joined, or `is_over`
    /// returns `true`.
    pub(crate) fn join(
        order: &MemberOrder,
        is_over: Option<JoinInterruption>,
    ) -> Result<Self, JoinError> {
        let MemberOrder { group, ranks, hosts, meeting, invitation, .. } = order;
        let (rank, most) = (ranks.start, hosts.most());
        let (size, near) = (hosts.size(), hosts.ranks(hosts.of(rank)));
        let mut handlers = Handlers::new();
        let parcel = handlers.kind::<Parcel>("message");
        let (control, packed) = (handlers.kind::<[u8]>(PROTOCOL), handlers.kind::<[u8]>("moved"));
        let part = handlers.kind::<MessagePart>("part");
        let last = handlers.kind::<Parcel>("last");
        let memory = handlers.kind::<Parcel>("memory");
        is_over.into_iter().for_each(|is_over| handlers.join_interruption(is_over));
        // Without upcalls, messages are taken only when the node asks for them.
        let first = if invitation.is_some() { most } else { size };
        let mut builder = GroupBuilder::new(group, first).rank(rank).upcalls(false);
        if let Some(meeting) = meeting {
            builder = builder.across(&*meeting.address).reconnect_within(meeting.patience);
            builder = builder.within(meeting.within);
            builder = match invitation {
                Some(invitation) => builder.late(near.clone(), invitation.clone()),
                None => builder.room_for(most - size),
            };
        }
        let group = builder.join(handlers)?;
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let of = |rank| PeerCounts {
            is_lost: Cell::new(!group.has_joined(rank)),
            ..PeerCounts::default()
        };
        let counts = (0..most).map(of).collect();
        Ok(Self {
            stamp: Cell::new(0),
            group,
            parcel,
            control,
            packed,
            part,
            last,
            memory,
            parts: Parts::new(most),
            left: LeftMessages::default(),
            gone: Cell::new(0),
            is_alone: near.len() <= processors,
            changes: RefCell::default(),
            counts,
            near,
            is_first: rank == 0,
        })
    }

    /// Expects the processes with these ranks to join from now on, with the invitation: from any
    /// host, or from that which has asked.
    pub(crate) fn expect(
        &self,
        ranks: Range<Rank>,
        how: HostComes<'_>,
    ) -> Result<Invitation, ExpectError> {
        match how {
            HostComes::Started => self.group.expect(ranks),
            HostComes::ByItself(petition) => self.group.expect_from(ranks, petition),
        }
    }

    /// Expels the processes with these ranks: they have ended for this process, or do not join. No
    /// later process needs a connection with them.
    pub(crate) fn expel(&self, ranks: &Range<Rank>) {
        self.group.expel(ranks);
    }

    pub(crate) fn size(&self) -> usize {
        self.group.size()
    }

    /// A process's number, by which this one may use its memory. 0, which no process has, if it is
    /// not visible or on another host.
    pub(crate) fn process(&self, rank: Rank) -> i32 {
        if !self.near.contains(&rank) {
            return 0;
        }
        self.group.process(rank).map_or(0, |pid| pid as i32)
    }

    /// Sends a message. A kept message has the time of its sending. Waits for at most
    /// [`PATIENCE`] if there is no room, for each part of a long message. Returns the message with
    /// the error if it was not sent. If there was no room, the caller must send the same message
    /// next: some parts may have gone.
    pub(crate) fn send(
        &self,
        to: Rank,
        message: TaskMessage,
        stamp: Option<u64>,
    ) -> Result<(), (SendError, TaskMessage)> {
        let gone = match self.send_parts(to, &message) {
            Ok(gone) => gone,
            Err(error) => return Err((error, message)),
        };
        let stamp = stamp.unwrap_or_else(|| self.stamp());
        let parcel = Parcel { message, stamp, gone, data: None, is_void: Cell::new(false) };
        let kind = if gone == 0 { self.parcel } else { self.last };
        match self.group.send_within(to, kind, &parcel, PATIENCE) {
            Ok(()) => {
                count(&self.counts[to].sent);
                Ok(())
            }
            Err(error) => {
                self.gone.set(gone);
                Err((error, parcel.message))
            }
        }
    }

    /// Sends a message without a block from its sender's memory, in the same way.
    pub(crate) fn send_from(
        &self,
        to: Rank,
        message: &TaskMessage,
        data: UlpRange,
    ) -> Result<SentFrom, SendError> {
        if data.len() > self.part_of(to) {
            return Ok(SentFrom::Nothing);
        }
        let (message, data) = (message.clone(), Some(data));
        let stamp = self.stamp();
        let parcel = Parcel { message, stamp, gone: 0, data, is_void: Cell::new(false) };
        self.group.send_within(to, self.memory, &parcel, PATIENCE)?;
        count(&self.counts[to].sent);
        Ok(if parcel.is_void.get() { SentFrom::Nothing } else { SentFrom::All })
    }

    /// Length of a part of a message to this process, in bytes.
    fn part_of(&self, to: Rank) -> usize {
        if self.near.contains(&to) { PART } else { FAR_PART }
    }

    /// Numbers of messages to processes of other hosts, but the first process.
    pub(crate) fn sent_afar(&self) -> SentCounts {
        let afar = |rank: &Rank| *rank != 0 && !self.near.contains(rank);
        let sent = |rank: Rank| (rank, self.counts[rank].sent.get());
        (0..self.size()).filter(afar).map(sent).collect()
    }

    /// Returns `true` if this process has taken `count` messages of another one, or all that come.
    pub(crate) fn has_taken(&self, from: Rank, count: u64) -> bool {
        let counts = self.counts.get(from);
        counts.is_none_or(|one| one.is_lost.get() || one.heard.get() >= count)
    }

    /// Sends all but the last bytes of a long message. Returns the number of bytes that have gone.
    fn send_parts(&self, to: Rank, message: &TaskMessage) -> Result<usize, SendError> {
        let (mut gone, most) = (self.gone.take(), self.part_of(to));
        let Some(block) = message.block.as_ref().filter(|_| message.length > most) else {
            return Ok(0);
        };
        while message.length - gone > most {
            let range = gone..gone + most;
            let part = MessagePart { block: block.clone(), length: message.length, range };
            if let Err(error) = self.group.send_within(to, self.part, &part, PATIENCE) {
                self.gone.set(gone);
                return Err(error);
            }
            gone += most;
        }
        Ok(gone)
    }

    /// Sends a control message, in the same way.
    pub(crate) fn tell(&self, to: Rank, control: &ControlMessage) -> Result<(), SendError> {
        let bytes = self.stamp().to_ne_bytes().to_vec();
        // For these types this does not fail.
        let Ok(bytes) = postcard::to_extend(control, bytes) else { return Ok(()) };
        self.group.send_within(to, self.control, &bytes[..], PATIENCE)?;
        if !control.counts() {
            count(&self.counts[to].sent);
        }
        Ok(())
    }

    /// Sends something of a task that moves, in the same way.
    pub(crate) fn pack(
        &self,
        to: Rank,
        head: &PackedHead,
        contents: &[u8],
    ) -> Result<(), SendError> {
        let bytes = self.stamp().to_ne_bytes().to_vec();
        let Ok(mut bytes) = postcard::to_extend(head, bytes) else { return Ok(()) };
        bytes.extend_from_slice(contents);
        self.group.send_within(to, self.packed, &bytes[..], PATIENCE)?;
        count(&self.counts[to].sent);
        Ok(())
    }

    /// Gives up a message that could not be sent.
    pub(crate) fn give_up(&self) {
        self.gone.set(0);
    }

    /// The Lamport time of this process.
    pub(crate) fn time(&self) -> u64 {
        self.stamp.get()
    }

    /// Advances the clock past all messages of a process that has ended and whose last messages
    /// were lost. Later messages are ordered after them.
    pub(crate) fn leap(&self) {
        self.stamp.set(self.stamp.get().saturating_add(1 << 40));
    }

    /// The time of the next message to be sent.
    pub(crate) fn stamp(&self) -> u64 {
        // Another process may have sent any time.
        self.stamp.set(self.stamp.get().saturating_add(1));
        self.stamp.get()
    }

    /// The next message that has arrived.
    #[inline]
    pub(crate) fn next(&self) -> Option<Stamped> {
        self.next_or_end(HearEnds::No, nowhere)
    }

    /// The next message that has arrived, as [`take`](Self::take) takes it. Detects processes that
    /// have ended only if `ends` says so.
    #[inline]
    pub(crate) fn next_or_end(
        &self,
        ends: HearEnds,
        place: impl Fn(&TaskMessage) -> Option<UlpRange>,
    ) -> Option<Stamped> {
        if !self.is_to_look(ends) {
            return None;
        }
        match self.take(place, |_| false) {
            NextArrival::Taken(stamped) => Some(stamped),
            NextArrival::Stays(_) | NextArrival::None => None,
        }
    }

    /// Returns `false` if a look would find nothing. Costs little: most looks find nothing.
    #[inline]
    fn is_to_look(&self, ends: HearEnds) -> bool {
        ends == HearEnds::Yes || self.group.may_have()
    }

    /// The next message that has arrived, in a machine of more than two processes. As
    /// [`next_or_end`](Self::next_or_end), but contents go to their `place` only if no message of
    /// another process waits. So it is the next one in the order of causes if its taker keeps no
    /// other message ([`causal`](crate::causal)).
    pub(crate) fn next_for_place(
        &self,
        ends: HearEnds,
        place: impl Fn(&TaskMessage) -> Option<UlpRange>,
    ) -> Option<Stamped> {
        if !self.is_to_look(ends) {
            return None;
        }
        let has_place = |arrived: &Arrived<'_, '_>| {
            arrived.kind() == MEMORY && header(arrived).is_some_and(|(it, _)| place(&it).is_some())
        };
        match self.take(nowhere, has_place) {
            NextArrival::Taken(stamped) => Some(stamped),
            NextArrival::None => None,
            // All messages that may have caused it were sent before it was.
            NextArrival::Stays(from) if self.group.waiting() == [from] => self.take_of(from, place),
            NextArrival::Stays(from) => self.take_of(from, nowhere),
        }
    }

    /// The next message that has arrived, unless it `stays` in its queue. Also detects processes
    /// that have ended. For a task's message, `place` is where its contents go in the receiver's
    /// memory, if that waits for them.
    ///
    /// Not inlined: most looks find nothing.
    #[inline(never)]
    fn take(
        &self,
        place: impl Fn(&TaskMessage) -> Option<UlpRange>,
        stays: impl Fn(&Arrived<'_, '_>) -> bool,
    ) -> NextArrival {
        let (mut before, mut staying) = (RankSet::default(), None);
        loop {
            let read = self.group.receive_or_leave(|arrived| {
                if stays(arrived) {
                    staying = Some(arrived.from());
                    return None;
                }
                self.read_or_leave(arrived, &place)
            });
            match (read, staying) {
                (Err(_), _) => return NextArrival::None,
                (Ok(Some(ReadMessage::Read(stamped))), _) => {
                    self.note(&stamped);
                    return NextArrival::Taken(stamped);
                }
                (Ok(Some(_)), _) => {}
                (Ok(None), Some(from)) => return NextArrival::Stays(from),
                // Other senders have had their turns.
                (Ok(None), None) if self.left.last().is_none_or(|from| !before.insert(from)) => {
                    return NextArrival::None;
                }
                (Ok(None), None) => {}
            }
        }
    }

    /// The next message of this sender, as [`take`](Self::take) takes that of any one.
    fn take_of(
        &self,
        from: Rank,
        place: impl Fn(&TaskMessage) -> Option<UlpRange>,
    ) -> Option<Stamped> {
        loop {
            let read = |arrived: &Arrived<'_, '_>| self.read_or_leave(arrived, &place);
            match self.group.receive_from_or_leave(from, read).ok()?? {
                ReadMessage::Read(stamped) => {
                    self.note(&stamped);
                    return Some(stamped);
                }
                ReadMessage::Nothing | ReadMessage::NoMemory(_) => {}
            }
        }
    }

    /// Reads a message. `None`: it stays, because there is no memory for it.
    #[inline(always)]
    fn read_or_leave(
        &self,
        arrived: &Arrived<'_, '_>,
        place: impl FnOnce(&TaskMessage) -> Option<UlpRange>,
    ) -> Option<ReadMessage> {
        let read = self.read(arrived, place);
        match read {
            ReadMessage::NoMemory(lack) => {
                self.left.left(arrived.from(), lack);
                return None;
            }
            ReadMessage::Read(_) | ReadMessage::Nothing => self.left.taken(arrived.from()),
        }
        Some(read)
    }

    /// Returns `true` if a message stays in its queue, because there is no memory for it.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.left.are_there() || self.group.lacking().is_some()
    }

    /// A message that stays in its queue.
    pub(crate) fn left(&self) -> Option<LeftMessage> {
        let unread = || self.group.lacking().map(|from| LeftMessage { from, bytes: None });
        self.left.last_left().or_else(unread)
    }

    /// Notes a message that was taken.
    #[inline(always)]
    fn note(&self, stamped: &Stamped) {
        if !matches!(&stamped.item, RemoteArrival::Control(control) if control.counts()) {
            count(&self.counts[stamped.from].heard);
        }
        self.stamp.set(self.stamp.get().max(stamped.stamp));
    }

    #[inline]
    fn read(
        &self,
        arrived: &Arrived<'_, '_>,
        place: impl FnOnce(&TaskMessage) -> Option<UlpRange>,
    ) -> ReadMessage {
        match arrived.kind() {
            PARCEL => {
                self.parts.forget(arrived.from());
                read_parcel(arrived, Completion::Parcel, nowhere)
            }
            MEMORY => {
                self.parts.forget(arrived.from());
                read_parcel(arrived, Completion::Parcel, place)
            }
            LAST => match self.parts.complete(arrived, HEADER * 8) {
                Ok(whole) => read_parcel(arrived, whole, nowhere),
                Err(lack) => ReadMessage::NoMemory(lack),
            },
            PARTS => match self.parts.part(arrived) {
                Ok(()) => ReadMessage::Nothing,
                Err(lack) => ReadMessage::NoMemory(lack),
            },
            CONTROL => ReadMessage::of(
                arrived.get(self.control).and_then(|bytes| read_control(arrived.from(), &bytes)),
            ),
            PACKED => read_packed(arrived),
            _ => ReadMessage::Nothing,
        }
    }

    /// The next change. A process that has ended comes only if `is_over` returns `true` for it.
    /// Otherwise it comes at a later call.
    #[inline]
    pub(crate) fn change_if(&self, is_over: impl FnOnce(Rank) -> bool) -> Option<LinkChange> {
        let mut changes = self.changes.borrow_mut();
        if changes.is_empty() {
            changes.push_back(self.change()?);
        }
        if let Some(LinkChange::Lost(rank)) = changes.front()
            && !is_over(*rank)
        {
            return None;
        }
        changes.pop_front()
    }

    fn change(&self) -> Option<LinkChange> {
        let event = std::iter::from_fn(|| self.group.event())
            // Two others that have lost each other may still be reached both.
            .find(|event| !matches!(event, Event::Parted { .. }));
        match event {
            Some(Event::Ended { rank } | Event::Violation { rank, .. }) => {
                self.counts[rank].is_lost.set(true);
                self.parts.forget(rank);
                Some(LinkChange::Lost(rank))
            }
            Some(Event::Joined { rank }) => {
                self.counts[rank].is_lost.set(false);
                Some(LinkChange::Joined(rank))
            }
            Some(_) => None,
            None if self.is_first => self.group.petition().map(LinkChange::Asked),
            None => None,
        }
    }

    /// Returns `true` if this process knows that the other one has ended, or has not joined yet.
    pub(crate) fn is_lost(&self, rank: Rank) -> bool {
        self.counts[rank].is_lost.get()
    }

    /// Counts of messages to and from the processes that have not ended.
    pub(crate) fn count(&self, all_wait: bool) -> Count {
        let mut all = Count { all_wait, ..Count::default() };
        for (rank, one) in self.counts.iter().enumerate() {
            let (sent, heard) = (one.sent.get(), one.heard.get());
            if one.is_lost.get() {
                all.lost.insert(rank);
            } else if sent > 0 || heard > 0 {
                all.peers.push(PeerCount { rank, sent, heard });
            }
        }
        all
    }

    /// Handles a ring of the doorbell. Returns `true` if a message or an end has arrived. The ring
    /// may be for messages that were taken long ago; later messages ring again in any case.
    pub(crate) fn heard<A>(&self, doorbell: &LinkDoorbell<A>) -> bool {
        // Silences the doorbell first: what arrives after that rings again, and what arrived before
        // is found below.
        let _ = rustix::io::read(&*doorbell.descriptor, &mut [0; 8]);
        self.group.heed();
        self.has_come()
    }

    /// Returns `true` if a message, or the end of a process, can be taken.
    pub(crate) fn has_come(&self) -> bool {
        self.changes.borrow_mut().extend(self.change());
        self.group.available() || !self.changes.borrow().is_empty()
    }

    /// Waits until a message has arrived, for at most `within`. Returns `true` if one has.
    ///
    /// On one host, if each process has a CPU, polls for some microseconds first: the next message
    /// of a chain arrives in that time, and blocking costs more than everything else about a
    /// message. While a task moves, which is then stopped for as long as that takes, it polls for
    /// longer.
    ///
    /// In a machine of several hosts the group polls, which also reads the links.
    pub(crate) fn wait(&self, within: Option<Duration>, moves: bool) -> bool {
        if self.is_alone
            && self.near.len() == self.counts.len()
            && (self.polls() || moves && self.polls_longer())
        {
            return true;
        }
        self.group.wait(within)
    }

    /// Polls for a message for a short time. Returns `false` only if there is none.
    pub(crate) fn polls(&self) -> bool {
        for _ in 0..LOOKS {
            // Whether there is a message, the caller finds out by taking it.
            if (0..BURST).any(|_| self.group.may_have()) {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    fn polls_longer(&self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < MOVE_LOOK {
            if self.polls() {
                return true;
            }
        }
        false
    }

    /// Frees memory that is kept for long messages, or returns when to do so. For callers that do
    /// not block in [`wait`](Self::wait).
    pub(crate) fn settle(&self) -> Option<Duration> {
        self.group.settle()
    }

    /// A doorbell that can be waited for beside other descriptors, as long as it lives. It rings
    /// when something arrives. `None`: it could not be created.
    pub(crate) fn doorbell(&self) -> Option<LinkDoorbell<impl Sized>> {
        let descriptor = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?);
        let rings = descriptor.clone();
        let notify = Arc::new(move || _ = rustix::io::write(&rings, &1_u64.to_ne_bytes()));
        Some(LinkDoorbell { descriptor, _announced: self.group.announce(notify).ok()? })
    }
}

/// No place: the contents go to a block.
fn nowhere(_: &TaskMessage) -> Option<UlpRange> {
    None
}

impl Queues<RemoteArrival> for MachineLink {
    fn next(&self) -> Option<Stamped> {
        self.next()
    }

    fn next_of(&self, from: Rank) -> Option<Stamped> {
        self.take_of(from, nowhere)
    }

    fn is_short(&self) -> bool {
        self.is_short()
    }

    fn waiting(&self) -> Vec<Rank> {
        self.group.waiting()
    }
}

/// The doorbell that [`MachineLink::doorbell`] returns.
pub(crate) struct LinkDoorbell<A> {
    descriptor: Arc<OwnedFd>,
    _announced: A,
}

impl<A> LinkDoorbell<A> {
    pub(crate) fn descriptor(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }
}
