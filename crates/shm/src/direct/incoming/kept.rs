//! A message that has arrived, kept beside the queue until it is disposed of.

use super::*;
use std::sync::Arc;

impl<M: QueueMemory> Incoming<M> {
    /// Disposes of a kept message. Returns `false` if it is no longer the next one.
    pub fn dispose_of(&mut self, kept: &ReceivedMessage<M::Words>) -> bool {
        let is_next = self.taken == kept.count;
        if is_next {
            self.pass(kept.size);
        }
        is_next
    }
}

impl<M: QueueMemory> Arrived<'_, M> {
    /// Keeps the message, to dispose of it later ([`Incoming::dispose_of`]).
    ///
    /// Until then the queue is not read.
    pub fn keep(&self) -> ReceivedMessage<M::Words>
    where
        M::Words: Clone,
    {
        let first = self.queue.area.index(self.queue.next) + 1;
        let (words, count) = (self.queue.area.words.clone(), self.queue.taken);
        let handed = self.queue.handed.payload.clone();
        ReceivedMessage {
            handed,
            words,
            first,
            handler: self.handler,
            len: self.len,
            size: self.size,
            count,
        }
    }
}

/// A message that has arrived, with the memory that it lies in.
///
/// The memory stays mapped while this lives, even without the queue. The description of the message
/// was read once; the sender can still write the rest.
#[derive(Debug)]
pub struct ReceivedMessage<W> {
    words: W,
    /// The payload, if it was handed over.
    handed: Option<Arc<dyn HandedPayload>>,
    /// Index of the payload's first word.
    first: usize,
    handler: u16,
    len: u32,
    size: u64,
    /// Number of messages taken before it.
    count: u64,
}

impl<W: Deref<Target = [AtomicU64]>> ReceivedMessage<W> {
    /// The handler that the sender named, unchecked.
    pub fn handler(&self) -> u16 {
        self.handler
    }

    /// Bytes of payload.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns `true` if it has no payload.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The payload.
    pub fn payload(&self) -> Span<'_> {
        if let Some(handed) = &self.handed {
            let words = Span::of_words(handed.words());
            return words.part(0, self.len()).unwrap_or(words);
        }
        let payload =
            NonNull::from(&self.words[self.first..self.first + self.size as usize - 1]).cast();
        // SAFETY: as many words are there as the length needs; `words` keeps them mapped, and
        // shared memory is only ever touched by atomic or opaque accesses.
        unsafe { Span::new(payload, self.len as usize) }
    }
}
