//! Messages that wait to be sent, and which of them is next.
//!
//! Messages of one lane are sent in order; those of different lanes share the link piece by piece.
//! A call is a lane of its own, so that a large argument delays no other call. Messages that fit in
//! one record go first, but after each [`MOST_PAYLOAD`] bytes of them a piece of a long one is
//! sent, so that neither kind starves.
//!
//! Of a long body the sender sends [`UNASKED`] bytes, and more as the receiver allows. There is no
//! input or output here.

use crate::frame::{FrameBody, FrameError, FrameHeader, HEAD, NoLinkMemory};
use crate::kept::KeptBytes;
use crate::record::{FIRST_PIECE, MOST_PAYLOAD, RECORD, RecordHeader, RecordKind};
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

/// Number of bytes of a body that are sent before the receiver has allowed any: a body of 1 MiB,
/// with what belongs to it. A sender that had to wait for the first permission would do nothing for
/// a round trip, and be woken.
pub const UNASKED: usize = (1 << 20) + (64 << 10);

/// Length from which a piece of a body is not copied, in bytes. A copy of a short one costs less
/// than another part of what is sent.
const LONG_PIECE: usize = 2 << 10;

/// Maximum number of records that tell the peer something about its messages and wait to be sent.
const MOST_CONTROLS: usize = 4096;

/// Messages of one lane are sent in order.
pub type MessageLane = u64;

/// An object that is kept until a message is sent or has arrived, and then dropped.
pub type BufferOwner = Box<dyn Any + Send>;

/// A message to send.
pub struct OutMessage {
    /// The header. Its length is that of the body.
    pub head: FrameHeader,
    /// The body.
    pub body: FrameBody,
    /// Is dropped when the message is sent, or will not be.
    pub owner: Option<BufferOwner>,
}

impl fmt::Debug for OutMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutMessage").field("head", &self.head).finish_non_exhaustive()
    }
}

/// A message that was sent or given up, to be dropped.
pub struct DoneMessage {
    _message: OutMessage,
    _shared: Option<Arc<FrameBody>>,
}

impl From<QueuedMessage> for DoneMessage {
    fn from(queued: QueuedMessage) -> Self {
        Self { _message: queued.message, _shared: queued.shared }
    }
}

/// How far a message that was given up had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// The peer will not see all of it.
    Unsent,
    /// All of it was sent, or it was never there.
    Sent,
}

struct QueuedMessage {
    message: OutMessage,
    /// Number of bytes of the body. Once a part of it was sent in place, the body is in `shared`.
    len: usize,
    shared: Option<Arc<FrameBody>>,
    /// Chosen when it begins.
    number: Option<u32>,
    /// Number of bytes of the body that were sent, and that may be.
    done: usize,
    allowed: usize,
}

/// See the module.
#[derive(Default)]
pub struct OutgoingMessages {
    controls: VecDeque<(RecordKind, u32, u64)>,
    lanes: HashMap<MessageLane, VecDeque<QueuedMessage>>,
    /// Lanes whose first message may be sent: whole in one record, or in pieces.
    short: VecDeque<MessageLane>,
    long: VecDeque<MessageLane>,
    /// Bytes of short messages since the last piece of a long one.
    ahead: usize,
    /// Messages that have begun and are not finished.
    open: HashMap<u32, MessageLane>,
    next: u32,
    messages: usize,
    /// Messages that are sent or given up. The holder of the lock drops them after it.
    done: Vec<DoneMessage>,
}

impl fmt::Debug for OutgoingMessages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutgoingMessages").field("messages", &self.messages).finish_non_exhaustive()
    }
}

impl OutgoingMessages {
    /// Adds a message to the end of a lane.
    pub fn add(&mut self, lane: MessageLane, mut message: OutMessage) {
        let len = message.body.len;
        message.head.len = len;
        let queue = self.lanes.entry(lane).or_default();
        let (number, shared) = (None, None);
        let queued = QueuedMessage { message, len, shared, number, done: 0, allowed: UNASKED };
        let is_short = queued.is_short();
        queue.push_back(queued);
        self.messages += 1;
        if queue.len() == 1 {
            self.turn(is_short).push_back(lane);
        }
    }

    /// Adds a record that tells the peer something about one of its messages.
    ///
    /// # Errors
    /// The peer causes such records and does not read them.
    pub fn control(
        &mut self,
        kind: RecordKind,
        message: u32,
        number: u64,
    ) -> Result<(), FrameError> {
        if self.controls.len() >= MOST_CONTROLS {
            return Err(FrameError("messages whose answers are not read"));
        }
        self.controls.push_back((kind, message, number));
        Ok(())
    }

    /// Gives up all messages of a lane.
    pub fn give_up(&mut self, lane: MessageLane) -> GivenUp {
        let Some(queue) = self.lanes.remove(&lane) else { return GivenUp::Sent };
        self.short.retain(|&other| other != lane);
        self.long.retain(|&other| other != lane);
        self.messages -= queue.len();
        for queued in queue {
            if let Some(number) = queued.number {
                self.open.remove(&number);
                self.controls.push_back((RecordKind::Reset, number, 0));
            }
            self.done.push(queued.into());
        }
        GivenUp::Unsent
    }

    /// The peer allows `more` bytes of a body.
    pub fn credit(&mut self, number: u32, more: u64) {
        let Some(&lane) = self.open.get(&number) else { return };
        let Some(queued) = self.lanes.get_mut(&lane).and_then(|queue| queue.front_mut()) else {
            return;
        };
        let waited = queued.done == queued.allowed;
        let more = usize::try_from(more).unwrap_or(usize::MAX);
        queued.allowed = queued.allowed.saturating_add(more);
        if waited && more > 0 {
            self.long.push_back(lane);
        }
    }

    /// The peer does not want the rest of a message.
    pub fn stop(&mut self, number: u32) {
        let Some(lane) = self.open.remove(&number) else { return };
        self.long.retain(|&other| other != lane);
        self.controls.push_back((RecordKind::Reset, number, 0));
        self.finish(lane);
    }

    /// Number of messages that are not sent.
    pub fn count(&self) -> usize {
        self.messages
    }

    /// Returns `true` if a record can be sent now.
    pub fn has_next(&self) -> bool {
        self.has_control() || !self.short.is_empty() || !self.long.is_empty()
    }

    /// Returns `true` if a record that is no part of a message waits.
    pub fn has_control(&self) -> bool {
        !self.controls.is_empty()
    }

    /// Takes the messages that are sent or given up.
    pub fn take_done(&mut self) -> Vec<DoneMessage> {
        std::mem::take(&mut self.done)
    }

    /// Drops all messages.
    pub fn clear(&mut self) {
        let lanes = std::mem::take(&mut self.lanes);
        self.done.extend(lanes.into_values().flatten().map(DoneMessage::from));
        (self.short, self.long, self.open) = Default::default();
        (self.messages, self.controls) = Default::default();
    }

    /// Writes the next record that is no part of a message.
    ///
    /// # Errors
    /// There is no memory. The record stays the next one.
    pub fn write_control(
        &mut self,
        kept: &mut KeptBytes,
        received: u32,
    ) -> Result<(), NoLinkMemory> {
        let Some(&(kind, message, number)) = self.controls.front() else { return Ok(()) };
        let payload = number.to_le_bytes();
        let len = if kind == RecordKind::Credit { payload.len() } else { 0 };
        let record = RecordHeader { kind, len, message, received };
        kept.add(RECORD + len, |block| {
            block.extend_from_slice(&record.to_bytes());
            block.extend_from_slice(&payload[..len]);
        })?;
        self.controls.pop_front();
        Ok(())
    }

    /// Writes the next piece of a message.
    ///
    /// # Errors
    /// There is no memory. The piece stays the next one of its length.
    pub fn write_piece(&mut self, kept: &mut KeptBytes, received: u32) -> Result<(), NoLinkMemory> {
        let long_is_due = self.ahead >= MOST_PAYLOAD && !self.long.is_empty();
        let short = if long_is_due { None } else { self.short.pop_front() };
        let Some(lane) = short.or_else(|| self.long.pop_front()) else { return Ok(()) };
        let Some(queued) = self.lanes.get_mut(&lane).and_then(|queue| queue.front_mut()) else {
            return Ok(());
        };
        let begins = queued.number.is_none();
        let message = match queued.number {
            Some(number) => number,
            None => {
                while self.open.contains_key(&self.next) {
                    self.next = self.next.wrapping_add(1);
                }
                let number = self.next;
                self.next = self.next.wrapping_add(1);
                number
            }
        };
        let written = match queued.write(message, kept, received) {
            Ok(written) => written,
            Err(error) => {
                self.turn(short.is_some()).push_front(lane);
                return Err(error);
            }
        };
        queued.number = Some(message);
        self.ahead = if short.is_some() { self.ahead + written } else { 0 };
        if queued.done == queued.len {
            self.open.remove(&message);
            self.finish(lane);
            return Ok(());
        }
        if begins {
            self.open.insert(message, lane);
        }
        if queued.done < queued.allowed {
            self.long.push_back(lane);
        }
        Ok(())
    }

    /// Removes the first message of a lane, which is in no turn, and gives the next one its turn.
    fn finish(&mut self, lane: MessageLane) {
        let Some(queue) = self.lanes.get_mut(&lane) else { return };
        if let Some(queued) = queue.pop_front() {
            self.messages -= 1;
            self.done.push(queued.into());
        }
        match queue.front().map(QueuedMessage::is_short) {
            Some(is_short) => self.turn(is_short).push_back(lane),
            None => drop(self.lanes.remove(&lane)),
        }
    }

    fn turn(&mut self, is_short: bool) -> &mut VecDeque<MessageLane> {
        if is_short { &mut self.short } else { &mut self.long }
    }
}

impl QueuedMessage {
    fn is_short(&self) -> bool {
        self.len <= FIRST_PIECE
    }

    /// Writes a record. Returns its length.
    fn write(
        &mut self,
        message: u32,
        kept: &mut KeptBytes,
        received: u32,
    ) -> Result<usize, NoLinkMemory> {
        let begins = self.number.is_none();
        let (kind, most, fixed) = match begins {
            true => (RecordKind::Begin, FIRST_PIECE, HEAD),
            false => (RecordKind::More, MOST_PAYLOAD, 0),
        };
        let len = (self.len - self.done).min(most).min(self.allowed - self.done);
        let record = RecordHeader { kind, len: fixed + len, message, received };
        let mut beginning = [0; RECORD + HEAD];
        beginning[..RECORD].copy_from_slice(&record.to_bytes());
        beginning[RECORD..].copy_from_slice(&self.message.head.to_bytes());
        let beginning = &beginning[..RECORD + fixed];
        let part = self.done..self.done + len;
        if len >= LONG_PIECE {
            let body = &mut self.message.body;
            let shared = self.shared.get_or_insert_with(|| Arc::new(std::mem::take(body)));
            kept.add_with(beginning, shared, part)?;
        } else {
            let body = self.shared.as_deref().unwrap_or(&self.message.body);
            kept.add(beginning.len() + len, |block| {
                block.extend_from_slice(beginning);
                block.extend_from_slice(&body.bytes()[part]);
            })?;
        }
        self.done += len;
        Ok(RECORD + fixed + len)
    }
}
