//! Messages of one pair that travel together.
//!
//! ```text
//!   kind (16 bits)   0 (16 bits)   length in bytes (32 bits)   payload, to whole words
//! ```
//! One after another, in words. There is no input or output here, and what is read is untrusted.

use std::collections::TryReserveError;
use upcall_net::{FrameBody, bodies};
use upcall_shm::span::{Span, WritableSpan};

/// Number of bytes after which a batch is sent. A longer message travels alone.
pub(crate) const LONG: usize = 64 << 10;

/// Number of bytes that a message with a payload of `len` bytes takes in a batch.
pub(crate) fn size_of(len: usize) -> usize {
    8 + len.next_multiple_of(8)
}

/// A batch of one message with a payload of `len` bytes, all of which `write` writes.
///
/// # Errors
/// There is no memory.
pub(crate) fn of_one(
    kind: u16,
    len: usize,
    write: impl FnOnce(WritableSpan<'_>),
) -> Result<FrameBody, TryReserveError> {
    let mut words = bodies::filled(1 + len.div_ceil(8))?;
    words[0] = header(kind, len);
    if let [_, .., last] = &mut words[..] {
        *last = 0;
    }
    let room = WritableSpan::of_words(&mut words[1..]);
    write(room.within(0, len).unwrap_or(room));
    Ok(FrameBody { len: words.len() * 8, words })
}

fn header(kind: u16, len: usize) -> u64 {
    u64::from(kind) << 48 | len as u64
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct MessageBatch {
    words: Vec<u64>,
}

impl MessageBatch {
    /// Adds a message.
    ///
    /// # Errors
    /// There is no memory, and nothing was added.
    pub(crate) fn add(&mut self, kind: u16, payload: Span<'_>) -> Result<(), TryReserveError> {
        let words = 1 + payload.len().div_ceil(8);
        if self.words.capacity() == 0
            && let Some(spare) = bodies::spare(words)
        {
            self.words = spare;
        }
        self.words.try_reserve(words)?;
        self.words.push(header(kind, payload.len()));
        payload.append_to_words(&mut self.words)
    }

    /// Number of bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.words.len() * 8
    }

    /// Takes the messages, if there are any.
    pub(crate) fn take(&mut self) -> Option<FrameBody> {
        let words = std::mem::take(&mut self.words);
        let len = words.len() * 8;
        (len > 0).then_some(FrameBody { words, len })
    }
}

/// A message in a batch.
#[derive(Debug)]
pub(crate) struct BatchMessage<'a> {
    pub(crate) kind: u16,
    pub(crate) payload: Span<'a>,
    /// Where the message after it is.
    pub(crate) next: usize,
}

/// Words that are no batch of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadBatch;

/// The message at word `at` of a batch; `None` at its end.
///
/// # Errors
/// There is no message.
pub(crate) fn message_at(words: &[u64], at: usize) -> Result<Option<BatchMessage<'_>>, BadBatch> {
    let Some(&header) = words.get(at) else { return Ok(None) };
    let len = header as u32 as usize;
    let next = at + 1 + len.div_ceil(8);
    let body = words.get(at + 1..next).ok_or(BadBatch)?;
    let payload = Span::of_words(body).part(0, len).ok_or(BadBatch)?;
    match (header >> 32) as u16 {
        0 => Ok(Some(BatchMessage { kind: (header >> 48) as u16, payload, next })),
        _ => Err(BadBatch),
    }
}

/// Checks that words are a batch.
///
/// # Errors
/// They are none.
pub(crate) fn check(words: &[u64]) -> Result<(), BadBatch> {
    let mut at = 0;
    while let Some(message) = message_at(words, at)? {
        at = message.next;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_added() {
        let mut batch = MessageBatch::default();
        let all: Vec<Vec<u8>> = [0, 1, 7, 8, 9, 1000].map(|len| vec![len as u8; len]).into();
        let mut bytes = 0;
        for (kind, payload) in all.iter().enumerate() {
            batch.add(kind as u16, Span::of_bytes(payload)).unwrap();
            bytes += size_of(payload.len());
        }
        assert_eq!(batch.bytes(), bytes);
        let body = batch.take().unwrap();
        assert_eq!((body.len, batch.take()), (bytes, None));
        check(&body.words).unwrap();
        let (mut at, mut count) = (0, 0);
        while let Some(message) = message_at(&body.words, at).unwrap() {
            let mut payload = Vec::new();
            message.payload.append_to(&mut payload);
            assert_eq!((message.kind, &payload), (count as u16, &all[count]));
            (at, count) = (message.next, count + 1);
        }
        assert_eq!(count, all.len());
    }

    #[test]
    fn a_batch_of_one_has_nothing_of_earlier_bodies() {
        for len in [0, 1, 8, 70_001] {
            // Its memory is kept for the next one.
            drop(FrameBody { words: vec![u64::MAX; 9000], len: 72_000 });
            let write = |room: WritableSpan<'_>| {
                assert_eq!(room.len(), len);
                room.copy_in(0, &vec![5; len]).unwrap();
            };
            let body = of_one(9, len, write).unwrap();
            let mut batch = MessageBatch::default();
            batch.add(9, Span::of_bytes(&vec![5; len])).unwrap();
            assert_eq!(Some(body), batch.take(), "{len}");
        }
    }

    #[test]
    fn words_that_are_no_batch_are_refused() {
        for bad in [&[1][..], &[9, 0], &[u64::from(u32::MAX)], &[1 << 32, 0], &[0, 0, 17, 0, 0]] {
            assert_eq!(check(bad), Err(BadBatch), "{bad:?}");
        }
        check(&[]).unwrap();
    }
}
