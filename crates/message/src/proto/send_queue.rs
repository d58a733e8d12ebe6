//! The sending end of one pair, and one attempt to send a message through it.

use crate::proto::flow::{Buffers, Flow, NewMemory, NoRoom, Pause, Unsent};
use std::io;
use std::time::{Duration, Instant};
use upcall_os::headroom::Headroom;
use upcall_shm::direct::{Draft, Outgoing, QueueMemory, SendRefusal};

/// The result of an attempt to send a message.
#[derive(Debug)]
pub enum Attempt<R> {
    /// There was room, and the driver has launched it.
    Launched(R),
    /// Messages go to a segment from now on: there is room at the next attempt.
    Diverted,
    /// There is no room now.
    NoRoom {
        /// The reason.
        why: Obstacle,
        /// How the sender waits before the next attempt.
        pause: Pause,
    },
    /// All messages are to be diverted, and there is no memory for a segment.
    NoMemory(io::Error),
    /// The message is too long.
    TooLong {
        /// Maximum number of bytes.
        most: usize,
    },
    /// The receiver does not keep to the protocol.
    Violation,
}

/// The reason why there is no room for a message.
#[derive(Debug)]
pub enum Obstacle {
    /// The queue is full, and the receiver takes messages.
    Full,
    /// All possible segments are in use.
    NoSegment,
    /// The sender's share of what its group may buffer allows no further segment.
    Overflow {
        /// Bytes that are buffered.
        buffered: u64,
    },
    /// Little memory is left.
    LowMemory(Headroom),
    /// There is no memory for a segment.
    NoMemory(io::Error),
}

/// The sending end of one pair, with the sender's patience.
#[derive(Debug)]
pub struct SendQueue<M: QueueMemory> {
    queue: Outgoing<M>,
    flow: Flow,
}

impl<M: QueueMemory> SendQueue<M> {
    /// Creates the sending end of a queue that nothing was sent through yet. Its sender waits for
    /// room for `timeout` before it diverts.
    pub fn new(memory: M, timeout: Option<Duration>) -> Self {
        let (mut queue, flow) = (Outgoing::new(memory), Flow::new(timeout));
        if flow.is_always_diverted() {
            queue.stay_diverted();
        }
        Self { queue, flow }
    }

    /// Changes when the sender takes new memory.
    pub fn takes_new_memory(&mut self, when: NewMemory) {
        self.flow.takes_new_memory(when);
    }

    /// The queue itself, for its counts.
    #[inline]
    pub fn outgoing(&self) -> &Outgoing<M> {
        &self.queue
    }

    /// The receiver's progress when its messages were last diverted.
    pub fn diverted_at(&self) -> Option<u64> {
        self.flow.diverted_at()
    }

    /// Gives memory back that is kept for the next segments. Returns `false` if some is still kept.
    pub fn shrink(&mut self) -> bool {
        self.queue.shrink()
    }

    /// Counts a message that has gone past the queue.
    pub fn skip(&mut self) {
        self.queue.skip();
        self.flow.fits();
    }

    /// Returns `true` if a message that has room needs nothing else.
    ///
    /// The sender waits for nothing, and the direct way is open. Then [`describe`](Self::describe)
    /// is enough.
    #[inline(always)]
    pub fn is_calm(&self) -> bool {
        self.flow.is_calm()
    }

    /// Finds room for a message of `len` bytes in the queue as it is.
    ///
    /// # Errors
    /// See [`SendRefusal`].
    #[inline(always)]
    pub fn describe(&mut self, handler: u16, len: usize) -> Result<Draft<'_, M>, SendRefusal> {
        self.queue.describe(handler, len)
    }

    /// Attempts to send a message of `len` bytes. `launch` writes and launches it where there is
    /// room.
    #[inline]
    pub fn attempt<R>(
        &mut self,
        (handler, len): (u16, usize),
        now: impl Fn() -> Instant,
        buffers: &impl Buffers,
        launch: impl FnOnce(Draft<'_, M>) -> R,
    ) -> Attempt<R> {
        if self.flow.is_always_diverted() && !self.queue.is_diverted() {
            return self.queue.divert().map_or_else(Attempt::NoMemory, |()| Attempt::Diverted);
        }
        match self.queue.describe(handler, len) {
            Ok(draft) => {
                let launched = launch(draft);
                self.flow.fits();
                Attempt::Launched(launched)
            }
            Err(SendRefusal::TooLong { most }) => Attempt::TooLong { most },
            Err(SendRefusal::Violation) => Attempt::Violation,
            Err(SendRefusal::Full) => self.without_room(None, now(), buffers),
            // A message that does not fit into the queue at all has no room to wait for.
            Err(SendRefusal::Outsized) => self.without_room(Some(len), now(), buffers),
        }
    }

    /// Diverts, or makes the sender wait: there is no room for a message, or none in the queue at
    /// all for one of `outsized` bytes.
    #[cold]
    fn without_room<R>(
        &mut self,
        outsized: Option<usize>,
        now: Instant,
        buffers: &impl Buffers,
    ) -> Attempt<R> {
        let Self { queue, flow } = self;
        let progress = queue.progress();
        let segment = queue.memory().segment_words() * 8;
        let here = queue.buffered() * segment;
        let next = queue.next_segment(outsized.unwrap_or(0));
        let unsent = Unsent { now, progress, outsized, segment, here, next };
        let decision = flow.without_room(unsent, buffers);
        let why = match decision {
            NoRoom::Divert => match queue.divert_for(outsized.unwrap_or(0)) {
                Ok(()) => {
                    flow.diverted(progress);
                    return Attempt::Diverted;
                }
                Err(error) if error.kind() == io::ErrorKind::StorageFull => Obstacle::NoSegment,
                Err(error) => Obstacle::NoMemory(error),
            },
            NoRoom::Full | NoRoom::Spare => Obstacle::Full,
            NoRoom::Overflow { buffered } => Obstacle::Overflow { buffered },
            NoRoom::LowMemory(headroom) => Obstacle::LowMemory(headroom),
        };
        let pause = match (flow.pause(now, progress), decision) {
            (Pause::Short, NoRoom::Spare) => Pause::Backlog,
            (pause, _) => pause,
        };
        Attempt::NoRoom { why, pause }
    }
}
