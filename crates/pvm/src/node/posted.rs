//! Receives that are posted: a waiting task has named the memory into which it receives
//! (`pvm_precv`), and a message that is sent from memory (`pvm_psend`) is copied there, once.
//!
//! - The host copies while neither task runs, because only one task of a process runs at a time. So
//!   the sender's data cannot change under the copy, and the sender goes on at once.
//! - A receive is posted as long as its task waits for it ([`TaskState::ReceivesInto`]). A signal
//!   ends the wait, and the library asks again after the handler, which may have received. A task
//!   that moves or is saved waits on without a place ([`TaskState::Receives`]).
//! - Messages match here as anywhere: a task that waits has no message in its inbox that fits, and
//!   the letters of the sender are read before its question. So nothing is overtaken.
//! - Either memory may be missing. Then the host's copy ends ([`UlpRange`]), and the message goes
//!   in a block: the sender copies to it and the receiver from it by their own code, and the task
//!   whose memory is missing gets its own signal. Until a receive ends, what is in its place is
//!   unspecified.
//! - Between processes the sender's host copies to the memory that both share, and the receiver's
//!   host from there to the place. So there are two copies, which is the least with such memory. A
//!   message whose data turn out to be missing is dropped by the receiver's host, and sent again in
//!   a block. The kernel could copy from process to process at once (`process_vm_readv`), but then
//!   the sender would have to wait for an answer. Its copy takes as long as the two (64 KiB: 3.2 µs
//!   instead of 3.0), and only from 1 MiB on less (145 µs instead of 180).
//! - The receiver's host must know at the first look which receive a message completes. With one
//!   other process it does: messages of one process come in the order of their times. With several
//!   it does if the message comes alone: the host keeps no message, and after it has seen this one
//!   the queues of all other processes are empty. Then all its causes are handled
//!   ([`causal`](crate::causal)). Otherwise messages are sorted first, and go by blocks.
//! - A message that is longer than the place fills it. The receiver gets the message's length.
//! - Handlers, probes and matching functions need messages in blocks. A library with one of them
//!   posts no receive.

use super::{NextTask, Node, halves};
use crate::places::{TaskLocation, TaskPlaces};
use crate::remote::SentFrom;
use crate::task::{Task, TaskMessage, TaskState, Want};
use crate::tid::Tid;
use crate::{error, ops};
use upcall_ulp::UlpRange;

/// What a task sends from its memory.
struct MemoryMessage {
    message: TaskMessage,
    data: UlpRange,
}

/// The request of a question's arguments. `None`: the memory is not the task's own.
fn request(task: &Task, [to, context, address, length]: [u64; 4]) -> Option<MemoryMessage> {
    let message = TaskMessage {
        source: task.tid.number(),
        destination: to as i32,
        tag: (to >> 32) as i32,
        context: context as i32,
        encoding: RAW,
        wait: 0,
        block: None,
        length: length as usize,
    };
    Some(MemoryMessage { message, data: task.ulp.range(address, length as usize)? })
}

/// PVM's `PvmDataRaw`.
const RAW: i32 = 1;

impl Node {
    /// Posts a receive into a task's memory if the task waits for a message.
    #[inline(never)]
    pub(super) fn post(&mut self, index: u32, want: Want, address: u64, length: usize) {
        let task = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut);
        if let Some(task) = task.filter(|task| task.state == TaskState::Receives(want, None))
            && let Some(place) = task.ulp.range(address, length)
        {
            task.state = TaskState::ReceivesInto(want, place);
        }
    }

    /// Sends a message from a task's memory, if that can be done.
    ///
    /// Not inlined: each turn would have a larger frame.
    #[inline(never)]
    pub(super) fn send_from(&mut self, index: u32, args: [u64; 4]) -> NextTask {
        let task = self.tasks.get(index as usize).and_then(Option::as_deref);
        let request = task.and_then(|task| request(task, args));
        let sent = request.map_or(SentFrom::Nothing, |request| self.send_memory(&request));
        if let Some(task) = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut) {
            task.ulp.answer((sent == SentFrom::All).into());
        }
        NextTask::Same
    }

    /// Sends a message from a task's memory. The message must go in a block
    /// ([`SentFrom::Nothing`]) also if its receiver in this process does not wait for it with a
    /// place, or if the memory of one of the two tasks is missing.
    fn send_memory(&mut self, MemoryMessage { message, data }: &MemoryMessage) -> SentFrom {
        let place = place(&self.places, &self.tasks, message);
        let location = Tid::of(message.destination).map(|to| self.places.place(to));
        let sent = match (place, location) {
            (Some(place), _) => match place.copy_from(*data) {
                Ok(_) => {
                    self.placed(message);
                    SentFrom::All
                }
                Err(_) => SentFrom::Nothing,
            },
            (None, Some(TaskLocation::There(rank))) => self.send_there_from(rank, message, *data),
            _ => SentFrom::Nothing,
        };
        if sent == SentFrom::All
            && let Some(traffic) = &mut self.traffic
        {
            traffic.count(message);
        }
        sent
    }

    /// Ends the receive of a message whose contents are in their place.
    pub(super) fn placed(&mut self, message: &TaskMessage) {
        let Some(seat) = self.places.seat(message.destination) else { return };
        let Some(task) = self.tasks.get_mut(seat as usize).and_then(Option::as_deref_mut) else {
            return;
        };
        complete(task, message);
        self.enqueue(seat);
    }
}

/// The place of the receive that waits for this message in a process with these tasks.
#[inline]
pub(super) fn place(
    places: &TaskPlaces,
    tasks: &[Option<Box<Task>>],
    message: &TaskMessage,
) -> Option<UlpRange> {
    let task = tasks.get(places.seat(message.destination)? as usize)?.as_deref()?;
    match task.state {
        TaskState::ReceivesInto(want, place)
            if want.fits(message) && task.tid.number() == message.destination =>
        {
            Some(place)
        }
        _ => None,
    }
}

/// Ends a receive, whose contents are in its place.
fn complete(task: &mut Task, message: &TaskMessage) {
    let mut words = [0; 8];
    words[ops::REPLY_LENGTH as usize] = message.length as u64;
    words[ops::REPLY_SOURCE as usize] = halves(message.source, message.tag);
    task.ulp.answer_with(ops::IN_PLACE, words);
    task.state = TaskState::Runs;
}

/// The answer to a test that asks how much was copied.
pub(super) fn copied() -> i32 {
    upcall_ulp::copied().map_or(error::NOT_IMPL, |bytes| (bytes % (1 << 31)) as i32)
}
