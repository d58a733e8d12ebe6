//! A message that has arrived, and is kept beside the queue until it is disposed of.

use super::*;

impl<M: QueueMemory> Incoming<M> {
    /// Disposes of a message that was kept. False: it is not the next one any more.
    pub fn dispose_of(&mut self, kept: &ReceivedMessage<M::Words>) -> bool {
        let is_next = self.taken == kept.count;
        if is_next {
            self.pass(kept.size);
        }
        is_next
    }
}

impl<M: QueueMemory> Arrived<'_, M> {
    /// Keeps it for a while, beside the queue: to be disposed of later ([`Incoming::dispose_of`]).
    /// Until then the queue is not read.
    pub fn keep(&self) -> ReceivedMessage<M::Words>
    where
        M::Words: Clone,
    {
        let first = self.queue.area.index(self.queue.next) + 1;
        let (words, count) = (self.queue.area.words.clone(), self.queue.taken);
        ReceivedMessage {
            words,
            first,
            handler: self.handler,
            len: self.len,
            size: self.size,
            count,
        }
    }
}

/// A message that has arrived, with the memory that it lies in: that stays mapped as long as this
/// lives, also without the queue. What describes the message was read once; the sender can
/// still write the rest.
#[derive(Debug)]
pub struct ReceivedMessage<W> {
    words: W,
    /// Where its payload begins.
    first: usize,
    handler: u16,
    len: u32,
    size: u64,
    /// Messages that were taken before it.
    count: u64,
}

impl<W: Deref<Target = [AtomicU64]>> ReceivedMessage<W> {
    /// The handler that it names, by the sender's word.
    pub fn handler(&self) -> u16 {
        self.handler
    }

    /// Bytes of payload.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether it has no payload.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The payload.
    pub fn payload(&self) -> Span<'_> {
        let payload =
            NonNull::from(&self.words[self.first..self.first + self.size as usize - 1]).cast();
        // SAFETY: as many words are there as the length needs; `words` keeps them mapped, and
        // shared memory is only ever touched by atomic or opaque accesses.
        unsafe { Span::new(payload, self.len as usize) }
    }
}
