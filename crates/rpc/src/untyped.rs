//! Calls by code that knows how values lie in a block, but not as types of Rust: stubs in other
//! languages, and `upcall call`.
//!
//! These calls take the same paths as those of Rust stubs: through the slot, an A-stack, or a
//! segment. A block of arguments consists of its fixed part and the pieces of its tail
//! ([`Pieces`]), each in the caller's own memory, so that long values are still copied once. A
//! closure reads the results from where the server wrote them.

use crate::binding::{Binding, ServerLocation};
use crate::brought::CallMemory;
use crate::call::{ResultReader, inline_room};
use crate::decode::{Decoder, DecoderSide, Malformed};
use crate::encode::{EncodeError, Encoder, piece};
use crate::error::CallError;
use crate::interface::Limits;
use crate::server::outcome;
use crate::value::{Layout, Put};
use std::any::Any;
use std::sync::Arc;
use upcall_os::fault::{Point, point};
use upcall_sched::WaitLimit;
use upcall_shm::slot::{INLINE, NO_ASTACK, SlotMessage, ValueLocation};
use upcall_shm::span::Span;

/// The values of a message that travel in its slot.
pub type InlineWords = [u64; INLINE / 8];

/// A block in pieces.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pieces<'a> {
    /// The fixed part.
    pub fixed: &'a [u8],
    /// The tail: for each piece its offset in the block, a multiple of eight, and its bytes.
    pub tail: &'a [(usize, &'a [u8])],
    /// Length of the block: the end of its last piece, rounded up to a multiple of eight.
    pub len: usize,
}

impl<'a> Pieces<'a> {
    /// A block that is in one piece.
    pub fn whole(block: &'a [u8]) -> Self {
        Self { fixed: block, tail: &[], len: block.len() }
    }
}

impl Layout for Pieces<'_> {
    const SIZE: usize = 0;
    const ALIGN: usize = 8;
    const FIXED: bool = false;
}

impl Put for Pieces<'_> {
    fn tail(&self) -> usize {
        self.len
    }

    fn put(&self, encoder: &mut Encoder<'_>, at: usize) {
        encoder.begin_pieces(at, self.len);
        let fixed = (0, self.fixed);
        let pieces = || std::iter::once(&fixed).chain(self.tail);
        // Pieces in another order may have gaps anywhere.
        let mut end = if pieces().is_sorted_by_key(|(start, _)| start) { 0 } else { self.len };
        encoder.clear(at..at + end);
        for (start, bytes) in pieces() {
            encoder.clear(at + end..at + start);
            encoder.run(at + start, bytes);
            end = end.max(start + bytes.len());
        }
        encoder.clear(at + end..at + self.len);
    }
}

/// A server's block of results in pieces, with the objects that the client receives.
#[derive(Debug)]
pub struct ResultBlock<'a> {
    /// The block, with arbitrary bytes in the places of handles.
    pub block: Pieces<'a>,
    /// The offset of each handle in the block, and its object, which goes into the client's
    /// session. Objects that are not given in the end are dropped.
    pub objects: std::cell::RefCell<Vec<(usize, Arc<Foreign>)>>,
    /// Set if the values break the interface's limits. The client then receives only this error.
    pub fault: Option<EncodeError>,
}

/// An object of a server that is not of a Rust type.
pub type Foreign = dyn Any + Send + Sync;

impl Layout for ResultBlock<'_> {
    const SIZE: usize = 0;
    const ALIGN: usize = 8;
    const FIXED: bool = false;
}

impl Put for ResultBlock<'_> {
    fn tail(&self) -> usize {
        // At least one word, so that the encoder asks for the fault.
        if self.fault.is_some() { 8 } else { self.block.len }
    }

    fn put(&self, encoder: &mut Encoder<'_>, at: usize) {
        if let Some(fault) = &self.fault {
            return encoder.refuse(fault.clone());
        }
        self.block.put(encoder, at);
        for (start, object) in self.objects.take() {
            encoder.export(at + start, Box::new(object));
        }
    }
}

impl Binding {
    /// Calls procedure `number`, whose arguments and results are in the slot, without strings,
    /// lists or resources. The first `len` bytes of `words` are the arguments; on return, `words`
    /// has the results. Otherwise like [`Binding::call`].
    ///
    /// # Errors
    /// See [`CallError`].
    ///
    /// # Panics
    /// `number` is not a procedure of the interface, or `len` exceeds the words.
    #[inline]
    pub fn call_words(
        &self,
        number: u16,
        words: &mut InlineWords,
        len: usize,
    ) -> Result<(), CallError> {
        let number = self.first + number;
        let until = self.until();
        let near = match &self.inner.way {
            ServerLocation::Near(near) if len <= inline_room(until) => near,
            _ => return self.call_words_elsewhere(number, words, len, until),
        };
        let mut message =
            SlotMessage::new(0, self.inner.procedures[usize::from(number)].tag, NO_ASTACK);
        if len > 0 {
            carry(words, &mut message.values, len);
            message.place(ValueLocation::Inline, 0, len as u32);
        }
        point(Point::ClientWrote);
        if until.is_for_ever() {
            self.send_for_ever(near, &mut message)?;
        } else {
            let terms = self.terms(near, number, until);
            self.send_until(terms, &mut message, &mut CallMemory::nothing(), ignore)?;
        }
        point(Point::ClientAnswered);
        if message.tag() == outcome::DONE && message.values_in() == Some(ValueLocation::Inline) {
            carry(&message.values, words, message.len());
            return Ok(());
        }
        let results = ResultReader::new(ignore, |span: Span<'_>| read_words(words, span));
        self.uncommon(self.terms(near, number, until), &message, CallMemory::nothing(), results)
    }

    /// Like [`Binding::call_words`], to another machine, or if a deadline leaves too little room in
    /// the slot.
    #[cold]
    #[inline(never)]
    fn call_words_elsewhere(
        &self,
        number: u16,
        words: &mut InlineWords,
        len: usize,
        until: WaitLimit<'_>,
    ) -> Result<(), CallError> {
        let mut block = [0; INLINE];
        Span::of_words(words).copy_out(0, &mut block);
        let args = Pieces::whole(&block[..len]);
        match &self.inner.way {
            ServerLocation::Near(near) => {
                let bound = &self.inner.procedures[usize::from(number)];
                let terms = self.terms(near, number, until);
                let results = ResultReader::new(ignore, |span: Span<'_>| read_words(words, span));
                self.call_in_memory(bound, terms, len, &args, results)
            }
            ServerLocation::Far(_) => {
                self.call_far(number, len, &args, ignore, |span| read_words(words, span))
            }
        }
    }

    /// Calls procedure `number` with a block in pieces; `read` reads its results. If the call is
    /// given up, `late` reads them when they arrive, because the client owns the resources in them.
    ///
    /// # Errors
    /// See [`CallError`].
    ///
    /// # Panics
    /// `number` is not a procedure of the interface.
    pub fn call_pieces<T>(
        &self,
        number: u16,
        args: &Pieces<'_>,
        late: impl Fn(&Decoder<'_>) + Copy + Send + 'static,
        read: impl FnOnce(&Decoder<'_>) -> Result<T, Malformed>,
    ) -> Result<T, CallError> {
        let number = self.first + number;
        let bound = &self.inner.procedures[usize::from(number)];
        let fixed = self.inner.interface.procedures[usize::from(number)].results.fixed as usize;
        let limits = self.limits(number);
        let unread = move |binding: &Binding, span: Span<'_>, limits: Limits| {
            late(&Decoder::new(span, fixed, limits, DecoderSide::Client(binding)));
        };
        let read = |span: Span<'_>| {
            Ok(read(&Decoder::new(span, fixed, limits, DecoderSide::Client(self)))?)
        };
        match &self.inner.way {
            ServerLocation::Near(near) => self.call_in_memory(
                bound,
                self.terms(near, number, self.until()),
                args.len,
                args,
                ResultReader::new(unread, read),
            ),
            ServerLocation::Far(_) => self.call_far(number, args.len, args, unread, read),
        }
    }

    /// Calls procedure `number` with a block of arguments that is laid out already, and returns a
    /// copy of the block of its results. For callers that learn the interface only when they run.
    /// The client keeps resources in results that arrive after a deadline until it unbinds.
    ///
    /// # Errors
    /// See [`CallError`].
    ///
    /// # Panics
    /// `number` is not a procedure of the interface.
    pub fn call_block(&self, number: u16, args: &[u8]) -> Result<Vec<u8>, CallError> {
        self.call_pieces(number, &Pieces::whole(args), |_| {}, |results| results.block())
    }
}

/// Copies the words that hold `len` bytes. A single word is copied alone, as it was written: a load
/// of it together with its neighbours would wait until all of them have left the processor's store
/// buffer.
#[inline]
fn carry(from: &InlineWords, to: &mut InlineWords, len: usize) {
    match len {
        0 => {}
        1..=8 => to[0] = from[0],
        _ => *to = *from,
    }
}

fn read_words(to: &mut InlineWords, span: Span<'_>) -> Result<(), CallError> {
    // The last word may be incomplete.
    let (mut block, len) = ([0; INLINE], span.len().min(INLINE));
    let _ = span.copy_out(0, &mut block[..len]);
    to.iter_mut()
        .zip(block.as_chunks().0)
        .for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
    Ok(())
}

/// For results without resources.
fn ignore(_: &Binding, _: Span<'_>, _: Limits) {}

impl<'a> Decoder<'a> {
    /// A decoder for a block in memory of this process alone: a copy of a block that a peer wrote.
    /// It has no binding and no session, so handles in the block are mere numbers.
    pub fn of_copy(block: &'a [u8], fixed: usize, limits: Limits) -> Self {
        Self::new(Span::of_bytes(block), fixed, limits, DecoderSide::None)
    }

    /// Copies the bytes at `at`.
    ///
    /// # Errors
    /// The block ends before they do.
    pub fn copy_out(&self, at: usize, to: &mut [u8]) -> Result<(), Malformed> {
        self.span.copy_out(at, to).ok_or(Malformed::Short { at })
    }

    /// Claims a piece of the tail by its descriptor, which was read before, and returns a view of
    /// it: at most `limit` elements of `stride` bytes from `start` on. No byte is claimed twice.
    ///
    /// # Errors
    /// The piece is longer than the limit, or than what is left of the block.
    pub fn claim_piece(
        &self,
        start: u64,
        count: u64,
        stride: usize,
        limit: u64,
    ) -> Result<Span<'a>, Malformed> {
        let at = usize::try_from(start).unwrap_or(usize::MAX);
        let bytes = self.claim_read((start, count), stride, limit, at)?;
        self.span.part(at, bytes).ok_or(Malformed::Short { at })
    }

    /// The maximum lengths of values.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Copies the whole block.
    ///
    /// # Errors
    /// As for [`Decoder::room`].
    pub fn block(&self) -> Result<Vec<u8>, Malformed> {
        let mut block = self.room(self.span.len())?;
        self.span.append_to(&mut block);
        Ok(block)
    }

    /// The object of a handle that was read before. Returns `None` if the client does not hold it.
    pub fn object(&self, handle: u64) -> Option<Arc<Foreign>> {
        match self.side {
            DecoderSide::Server(session) => session.get(handle),
            _ => None,
        }
    }

    /// Like [`Decoder::object`], and ends the client's hold on the object.
    pub fn take_object(&self, handle: u64) -> Option<Arc<Foreign>> {
        match self.side {
            DecoderSide::Server(session) => session.take(handle),
            _ => None,
        }
    }
}

const _: () = assert!(piece(INLINE) == INLINE);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::Limits;
    use upcall_shm::span::WritableSpan;

    #[test]
    fn between_pieces_nothing_is_left_of_the_block_before() {
        let (fixed, first, last) = (&[1; 9][..], &[2; 7][..], &[3; 16][..]);
        let orders = [[(24, first), (40, last)], [(40, last), (24, first)]];
        for tail in &orders {
            let block = Pieces { fixed, tail, len: 56 };
            let mut words = [u64::MAX; 9];
            let room = WritableSpan::of_words(&mut words);
            Encoder::block_over(room, &block, Limits::default()).unwrap();
            let found: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let mut expected = [0; 72];
            expected[..9].copy_from_slice(fixed);
            expected[24..31].copy_from_slice(first);
            expected[40..56].copy_from_slice(last);
            assert_eq!(found, expected);
        }
    }
}
