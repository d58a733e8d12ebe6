//! The processes of one machine, and how they speak: they are a group (UDM), whose members send
//! each other what is for tasks that are elsewhere.
//!
//! A message to a task in another process is one message of the group: a header of five words, and
//! what the block holds, copied into memory that the two processes share. Everything else, which is
//! rare, is a [`ControlMessage`]. Both are of the same pair of members, so what is sent first
//! arrives first: a message that was sent before its sender ended comes before that end. Between
//! pairs it is as with PVM's daemon of one host: what was sent because of another message arrives
//! after that message. Each message has the time of Lamport's clock, which is never behind a
//! message that has arrived. A process that takes one message takes all that are there, in the
//! order of their times: what led to a message was there before it.
//!
//! The first process (rank 0) keeps what concerns the whole machine. When another one dies its
//! tasks have ended; when the first one dies the others end.

use crate::output::Catcher;
use crate::task::TaskMessage;
use rustix::event::{EventfdFlags, eventfd};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::{CString, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use upcall_message::{
    Event, Group, GroupBuilder, Handlers, JoinError, Kind, Message as Arrived, Payload, Rank,
    SendError, Writer,
};
use upcall_ulp::Block;

/// A task that is to be started, as it goes to the process in which it is to run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct TaskSpec {
    pub(crate) program: OsString,
    pub(crate) args: Vec<CString>,
    /// `NAME=value`, beside the process's own.
    pub(crate) environment: Vec<CString>,
    pub(crate) parent: i32,
    pub(crate) context: i32,
    pub(crate) output: crate::output::Output,
    pub(crate) options: Vec<(i32, i32)>,
    /// The folder that it begins in, if that is not the machine's.
    pub(crate) directory: Option<OsString>,
    /// Where its spawner's program lies: names are looked for there, too.
    pub(crate) folder: Option<std::path::PathBuf>,
}

/// What processes tell each other about tasks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ControlMessage {
    /// To the first one: a task asks for a service (`OP_…`).
    Ask { tid: i32, op: u64, question: Vec<u8> },
    /// Its answer.
    Answer { tid: i32, code: i32, packet: Vec<u8> },
    /// To the first one: a task spawns others.
    Spawn { tid: i32, plan: TaskSpec, count: u32 },
    /// From the first one: in each of these slots one is to be started.
    Start { request: u64, plan: TaskSpec, slots: Vec<u32> },
    /// They are, or PVM's error for each that is not.
    Started { request: u64, all: Vec<Result<i32, i32>>, name: String },
    /// From the first one: these were started together; now they may run.
    Together { tids: Vec<i32> },
    /// To the first one: a task has left the machine, and goes on alone.
    Left { tid: i32 },
    /// To the first one: it is one of the machine again.
    Entered { tid: i32 },
    /// To the first one: a task has ended, with this status; and who has caught its output.
    Ended { tid: i32, status: i32, catcher: Option<Catcher> },
    /// To whoever has it: a task is to be ended.
    Kill { tid: i32 },
    /// To whoever has it: a signal comes to a task.
    Signal { tid: i32, signal: i32 },
    /// To all: the machine ends.
    Halt,
    /// From the first one: do all of its tasks wait, and how many messages were sent and heard
    /// ([`stuck`](crate::node))?
    Count { question: u64 },
    /// This; and its tasks, if all wait.
    Counted { question: u64, count: Count, tasks: Vec<crate::shown::ShownTask> },
    /// From the first one: what do its tasks do?
    Look { number: u64 },
    /// This.
    Seen { number: u64, tasks: Vec<crate::shown::ShownTask> },
}

/// What a process says of itself, or all together. Of processes that have ended only their number
/// counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Count {
    pub(crate) all_wait: bool,
    pub(crate) sent: u64,
    pub(crate) heard: u64,
    pub(crate) lost: usize,
}

impl ControlMessage {
    /// Whether it is one by which messages are counted.
    fn counts(&self) -> bool {
        matches!(self, Self::Count { .. } | Self::Counted { .. })
    }
}

/// What has come from another process, and when it was sent.
#[derive(Debug)]
pub(crate) struct Stamped {
    pub(crate) stamp: u64,
    pub(crate) came: RemoteArrival,
}

/// See [`Stamped`].
#[derive(Debug)]
pub(crate) enum RemoteArrival {
    Message(TaskMessage),
    /// In a box, so that a message is not moved about with room for it.
    Control(Rank, Box<ControlMessage>),
}

/// A message as the group carries it.
struct Parcel(TaskMessage, u64);

const HEADER: usize = 4;

/// The kinds' places, in the order in which they are registered.
const PARCEL: u16 = 0;
const CONTROL: u16 = 1;

impl Payload for Parcel {
    type Owned = ();

    fn signature() -> String {
        "bytes".into()
    }

    fn size(&self) -> usize {
        HEADER * 8 + self.0.length
    }

    fn write(&self, writer: &mut Writer<'_, '_>) {
        let Self(message, stamp) = self;
        let halves = |low: i32, high: i32| u64::from(low as u32) | u64::from(high as u32) << 32;
        writer.word(halves(message.source, message.destination));
        writer.word(halves(message.tag, message.context));
        writer.word(halves(message.encoding, message.wait));
        writer.word(*stamp);
        if let Some(block) = &message.block {
            block.lent(message.length, |bytes| writer.part(HEADER * 8, bytes));
        }
    }

    fn read(_: &mut upcall_message::Reader<'_, '_>) -> Option<()> {
        None
    }
}

fn read_parcel(arrived: &Arrived<'_, '_>) -> Option<Stamped> {
    let halves = |at| arrived.word(at).map(|word| (word as i32, (word >> 32) as i32));
    let ((source, destination), (tag, context), (encoding, wait)) =
        (halves(0)?, halves(1)?, halves(2)?);
    let stamp = arrived.word(3)?;
    let length = arrived.size().checked_sub(HEADER * 8)?;
    let block = match length {
        0 => None,
        _ => Block::written(length, |bytes| arrived.copy_out(HEADER * 8, bytes)),
    };
    let length = if block.is_some() { length } else { 0 };
    let came = RemoteArrival::Message(TaskMessage {
        source,
        destination,
        tag,
        context,
        encoding,
        wait,
        block,
        length,
    });
    Some(Stamped { stamp, came })
}

fn read_control(from: Rank, bytes: &[u8]) -> Option<Stamped> {
    let (stamp, bytes) = bytes.split_first_chunk()?;
    let came = RemoteArrival::Control(from, Box::new(postcard::from_bytes(bytes).ok()?));
    Some(Stamped { stamp: u64::from_ne_bytes(*stamp), came })
}

/// This process's place among those of its machine.
pub(crate) struct MachineLink {
    group: Group,
    parcel: Kind<Parcel>,
    control: Kind<[u8]>,
    /// Of the last message that was sent, or came, the latest.
    stamp: Cell<u64>,
    /// Each process has a processor to itself, as far as is known here.
    is_alone: bool,
    /// Processes that have ended, of which nobody was told yet.
    lost: RefCell<VecDeque<Rank>>,
    /// For each process.
    counts: Box<[PeerCounts]>,
}

/// Of messages to another process, and from it, but for those by which they are counted.
#[derive(Debug, Default)]
struct PeerCounts {
    sent: Cell<u64>,
    heard: Cell<u64>,
    /// It has ended.
    is_lost: Cell<bool>,
}

fn count(cell: &Cell<u64>) {
    cell.set(cell.get().wrapping_add(1));
}

/// Of a wait, before it is one of the group's.
const LOOKS: u32 = 300;

/// How long a message waits for room before the messages that wait here are taken: the receiver may
/// wait for room here.
const PATIENCE: Duration = Duration::from_millis(100);

impl MachineLink {
    /// Joins the others; blocks until all are there.
    pub(crate) fn join(name: &str, rank: Rank, size: usize) -> Result<Self, JoinError> {
        let mut handlers = Handlers::new();
        let (parcel, control) =
            (handlers.kind::<Parcel>("message"), handlers.kind::<[u8]>("control"));
        // Nothing is taken but where the node asks for it.
        let group = GroupBuilder::new(name, size).rank(rank).upcalls(false).join(handlers)?;
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let counts = (0..size).map(|_| PeerCounts::default()).collect();
        Ok(Self {
            stamp: Cell::new(0),
            group,
            parcel,
            control,
            is_alone: size <= processors,
            lost: RefCell::default(),
            counts,
        })
    }

    pub(crate) fn size(&self) -> usize {
        self.group.size()
    }

    pub(crate) fn process(&self, rank: Rank) -> i32 {
        self.group.process(rank).map_or(0, |pid| pid as i32)
    }

    /// Waits for [`PATIENCE`] if there is no room and no buffer may be had. The message, if it was
    /// not sent.
    pub(crate) fn send(
        &self,
        to: Rank,
        message: TaskMessage,
    ) -> Result<(), (SendError, TaskMessage)> {
        let parcel = Parcel(message, self.stamp());
        match self.group.send_within(to, self.parcel, &parcel, PATIENCE) {
            Ok(()) => {
                count(&self.counts[to].sent);
                Ok(())
            }
            Err(error) => Err((error, parcel.0)),
        }
    }

    /// The same.
    pub(crate) fn tell(&self, to: Rank, control: &ControlMessage) -> Result<(), SendError> {
        let bytes = self.stamp().to_ne_bytes().to_vec();
        // Of these types it cannot fail but for memory.
        let Ok(bytes) = postcard::to_extend(control, bytes) else { return Ok(()) };
        self.group.send_within(to, self.control, &bytes[..], PATIENCE)?;
        if !control.counts() {
            count(&self.counts[to].sent);
        }
        Ok(())
    }

    /// What is sent from now on comes after all that a process can have sent that has ended, and of
    /// which nothing more is heard here.
    pub(crate) fn leap(&self) {
        self.stamp.set(self.stamp.get().saturating_add(1 << 40));
    }

    /// Of the next message that is sent.
    fn stamp(&self) -> u64 {
        self.stamp.set(self.stamp.get() + 1);
        self.stamp.get()
    }

    /// The next that has come.
    #[inline]
    pub(crate) fn next(&self) -> Option<Stamped> {
        if self.group.available() { self.take() } else { None }
    }

    /// The same, and hears which processes have ended.
    pub(crate) fn take(&self) -> Option<Stamped> {
        loop {
            // What is not whole is of a process that does not keep to what was agreed, and is
            // nothing.
            if let Some((from, stamped)) = self
                .group
                .receive(|arrived| self.read(arrived).map(|read| (arrived.from(), read)))
                .ok()?
            {
                if !matches!(&stamped.came, RemoteArrival::Control(_, control) if control.counts())
                {
                    count(&self.counts[from].heard);
                }
                self.stamp.set(self.stamp.get().max(stamped.stamp));
                return Some(stamped);
            }
        }
    }

    fn read(&self, arrived: &Arrived<'_, '_>) -> Option<Stamped> {
        match arrived.kind() {
            PARCEL => read_parcel(arrived),
            CONTROL => read_control(arrived.from(), &arrived.get(self.control)?),
            _ => None,
        }
    }

    /// Which process has ended.
    pub(crate) fn lost(&self) -> Option<Rank> {
        let before = self.lost.borrow_mut().pop_front();
        before.or_else(|| self.ended())
    }

    fn ended(&self) -> Option<Rank> {
        match self.group.event()? {
            Event::Ended { rank } | Event::Violation { rank, .. } => {
                self.counts[rank].is_lost.set(true);
                Some(rank)
            }
            _ => None,
        }
    }

    /// Whether it is known that this process has ended.
    pub(crate) fn is_lost(&self, rank: Rank) -> bool {
        self.counts[rank].is_lost.get()
    }

    /// Of messages to those that are there, and from them.
    pub(crate) fn count(&self, all_wait: bool) -> Count {
        let mut all = Count { all_wait, ..Count::default() };
        for one in &self.counts {
            if one.is_lost.get() {
                all.lost += 1;
            } else {
                all.sent = all.sent.wrapping_add(one.sent.get());
                all.heard = all.heard.wrapping_add(one.heard.get());
            }
        }
        all
    }

    /// The doorbell was rung: whether something is there. The ring may be for messages that were
    /// taken long ago; later messages ring again in any case.
    pub(crate) fn heard<A>(&self, doorbell: &LinkDoorbell<A>) -> bool {
        // Silent first: what comes after that rings again, and the rest is looked at.
        let _ = rustix::io::read(&*doorbell.descriptor, &mut [0; 8]);
        self.group.heed();
        self.has_come()
    }

    /// Whether something is there to be taken.
    pub(crate) fn has_come(&self) -> bool {
        self.lost.borrow_mut().extend(self.ended());
        self.group.available() || !self.lost.borrow().is_empty()
    }

    /// Until something has come, or this long; whether it has. Looks by itself for some
    /// microseconds, where each process has a processor: what comes next in a chain of messages
    /// comes then, and to begin a wait takes longer than all else that a message takes.
    pub(crate) fn wait(&self, within: Option<Duration>) -> bool {
        for _ in 0..if self.is_alone { LOOKS } else { 0 } {
            if self.group.available() {
                return true;
            }
            std::hint::spin_loop();
        }
        self.group.wait(within)
    }

    /// Gives back memory that is kept for long messages, or says when that is to be done: for who
    /// does not sleep by [`wait`](Self::wait).
    pub(crate) fn settle(&self) -> Option<Duration> {
        self.group.settle()
    }

    /// What can be waited for beside other descriptors, as long as it lives: it is ready when
    /// something has come. `None`: none can be had.
    pub(crate) fn doorbell(&self) -> Option<LinkDoorbell<impl Sized>> {
        let descriptor = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?);
        let rings = descriptor.clone();
        let notify = Arc::new(move || _ = rustix::io::write(&rings, &1_u64.to_ne_bytes()));
        Some(LinkDoorbell { descriptor, _announced: self.group.announce(notify).ok()? })
    }
}

/// See [`MachineLink::doorbell`].
pub(crate) struct LinkDoorbell<A> {
    descriptor: Arc<OwnedFd>,
    _announced: A,
}

impl<A> LinkDoorbell<A> {
    pub(crate) fn descriptor(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }
}
