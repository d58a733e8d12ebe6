//! From the queue of a member here to its receiver on another host.

use super::batch::{self, MessageBatch};
use super::room::SendRoom;
use upcall_net::{FrameBody, FrameKind};
use upcall_os::doorbell::Doorbell;
use upcall_shm::direct::{Incoming, Unreadable};
use upcall_shm::mailbag::Mailbag;
use upcall_shm::region::RegionView;
use upcall_shm::steps::{Steps, StepsReport};

/// The receiving end of the queue in which a member here sends to one elsewhere.
pub(super) struct OutwardQueue {
    queue: Incoming<Mailbag>,
    steps: RegionView<Steps>,
    /// The count of changes of the reports that were sent last.
    seen: u64,
    batch: MessageBatch,
    /// The doorbell that the sender notifies.
    _doorbell: Doorbell,
}

/// What is left in a queue after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pumped {
    /// Nothing.
    All,
    /// Messages for which the other side has no room yet.
    WaitsForRoom,
    /// Something that is worth another turn.
    More,
    /// Messages for which there is no memory now.
    NoMemory,
    /// The sender here broke the rules of the queue: nothing more of it is read.
    Broken,
}

/// Number of batches of a queue that are sent before other queues get a turn.
const TURN: usize = 16;

impl OutwardQueue {
    pub(super) fn new(queue: Mailbag, doorbell: Doorbell) -> Self {
        let steps = queue.steps();
        let batch = MessageBatch::default();
        Self { queue: Incoming::new(queue), steps, seen: 0, batch, _doorbell: doorbell }
    }

    /// Returns `true` if a turn finds something to send.
    pub(super) fn waits(&self) -> bool {
        self.queue.waits() || self.steps.changes() != self.seen
    }

    /// Sends what waits, as far as there is room.
    ///
    /// Reports are read before the messages: those that were sent before a report are found then. A
    /// report is sent after these messages and before those that follow: the receiver takes the
    /// former before it goes on, and the latter may be for what it does then.
    pub(super) fn pump(
        &mut self,
        room: &SendRoom,
        mut send: impl FnMut(FrameKind, FrameBody),
    ) -> Pumped {
        let (changes, report) = (self.steps.changes(), self.steps.reports());
        let mut due = (changes != self.seen).then_some(report);
        for _ in 0..TURN {
            let filled = self.fill(room, due);
            if let Some(body) = self.batch.take() {
                room.sent(body.len);
                send(FrameKind::Deliver, body);
            }
            // A sender that reports more messages than there are only misleads its receiver.
            let is_due = matches!(filled, Filled::Report | Filled::Empty);
            if let Some(report) = due.take_if(|_| is_due) {
                self.seen = changes;
                send(FrameKind::Report, encode(report));
            }
            let pumped = match filled {
                Filled::Batch | Filled::Report => continue,
                Filled::Empty => Pumped::All,
                Filled::NoRoom => Pumped::WaitsForRoom,
                Filled::NoMemory => Pumped::NoMemory,
                Filled::Broken => Pumped::Broken,
            };
            // The sender learns that it has room again.
            self.queue.tell();
            return pumped;
        }
        self.queue.tell();
        Pumped::More
    }

    /// Moves messages from the queue to a batch.
    fn fill(&mut self, room: &SendRoom, due: Option<StepsReport>) -> Filled {
        loop {
            if due.is_some_and(|report| self.queue.taken() == report.sent()) {
                return Filled::Report;
            }
            let arrived = match self.queue.peek() {
                Ok(Some(arrived)) => arrived,
                Ok(None) => return Filled::Empty,
                Err(Unreadable::Violation(_)) => return Filled::Broken,
                Err(Unreadable::Memory(_)) => return Filled::NoMemory,
            };
            let bytes = self.batch.bytes() + batch::size_of(arrived.len());
            if bytes > batch::LONG && self.batch.bytes() > 0 {
                return Filled::Batch;
            }
            if !room.allows_or_waits(bytes) {
                return Filled::NoRoom;
            }
            if self.batch.add(arrived.handler(), arrived.payload()).is_err() {
                return Filled::NoMemory;
            }
            arrived.dispose();
        }
    }
}

/// Why a batch is not filled further.
enum Filled {
    /// It is full.
    Batch,
    /// A report comes next.
    Report,
    /// The queue is empty.
    Empty,
    NoRoom,
    NoMemory,
    Broken,
}

fn encode(report: StepsReport) -> FrameBody {
    let words = report.to_words().to_vec();
    FrameBody { len: words.len() * 8, words }
}

/// Reads a report. `None`: it is none.
pub(super) fn decode(body: &FrameBody) -> Option<StepsReport> {
    let words = <[u64; StepsReport::WORDS]>::try_from(&body.words[..]).ok()?;
    (body.len == StepsReport::WORDS * 8).then(|| StepsReport::from_words(words))
}
