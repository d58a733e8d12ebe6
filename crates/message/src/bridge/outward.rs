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
    /// The count of changes of the reports that were read last.
    seen: u64,
    /// The reports that were read, if not all of them were sent, and those that were sent.
    due: Option<StepsReport>,
    told: StepsReport,
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
        Self {
            queue: Incoming::new(queue),
            steps,
            seen: 0,
            due: None,
            told: StepsReport::default(),
            batch,
            _doorbell: doorbell,
        }
    }

    /// Returns `true` if a turn finds something to send.
    pub(super) fn waits(&self) -> bool {
        self.queue.waits() || self.due.is_some() || self.steps.changes() != self.seen
    }

    /// Counts a message that goes past the queue, in which nothing waits.
    pub(super) fn skip(&mut self) {
        self.queue.skip();
    }

    /// Sends what waits, as far as there is room.
    ///
    /// A report is sent after the messages that were sent before it, and before those that follow:
    /// the receiver takes the former before it goes on, and the latter may be for what it does
    /// then.
    pub(super) fn pump(
        &mut self,
        room: &SendRoom,
        mut send: impl FnMut(FrameKind, FrameBody),
    ) -> Pumped {
        for _ in 0..TURN {
            let filled = self.fill(room);
            if let Some(body) = self.batch.take() {
                room.sent(body.len);
                send(FrameKind::Deliver, body);
                // The sender may wait for this room.
                self.queue.tell();
            }
            if let Filled::Report(report) = filled {
                self.told = report;
                self.due.take_if(|due| *due == report);
                send(FrameKind::Report, encode(report));
            }
            let pumped = match filled {
                Filled::Batch | Filled::Report(_) => continue,
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
    ///
    /// Before each message it looks for reports: a sender that has made a report before this
    /// message has stored it before.
    fn fill(&mut self, room: &SendRoom) -> Filled {
        loop {
            let taken = self.queue.taken();
            if let Some(due) = self.due {
                let report = due.as_of(taken, self.told);
                if report != self.told {
                    return Filled::Report(report);
                }
            }
            let due = self.due;
            let Self { queue, steps, seen, batch, .. } = &mut *self;
            let mut has_reported = || {
                let changes = steps.changes();
                (std::mem::replace(seen, changes) != changes).then(|| steps.reports())
            };
            let arrived = match queue.peek() {
                Ok(arrived) => arrived,
                Err(Unreadable::Violation(_)) => return Filled::Broken,
                Err(Unreadable::Memory(_)) => return Filled::NoMemory,
            };
            if let Some(report) = has_reported() {
                self.due = Some(report);
                continue;
            }
            let Some(arrived) = arrived else {
                // A sender that reports more messages than it has sent misleads its receiver.
                return due.map_or(Filled::Empty, Filled::Report);
            };
            let bytes = batch.bytes() + batch::size_of(arrived.len());
            if bytes > batch::LONG && batch.bytes() > 0 {
                return Filled::Batch;
            }
            if !room.allows_or_waits(bytes) {
                return Filled::NoRoom;
            }
            if batch.add(arrived.handler(), arrived.payload()).is_err() {
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
    /// This report comes next.
    Report(StepsReport),
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
