//! The direct queue: messages from one sender to one receiver, described and launched, read in place and disposed of.
//!
//! Source: UDM, sections 3 and 4.1. There the two ends are registers of a network interface: a message is described in the output buffer and launched at once, and is read in the input buffer until it is disposed of
//! (D1 to D3). Here they are memory that the sender writes and the receiver reads, and one word that the receiver writes: how much it has disposed of.
//!
//! # Why not the rings of calls
//! A call has a reply, so a lane has no more messages under way than slots, and needs no count of what was taken ([`ring`](crate::ring)). Messages are not answered, and many are a word or two: a slot of a line
//! for each would take eight times the lines.
//!
//! # Layout
//! A message is a header word and its payload, in words, one after another. Where the next header will be there is 0: that is all that a receiver looks at. A message that does not fit before the end of the memory lies at its
//! beginning, and in its place is a header that says so. The sender writes, in this order: the payload, the 0 after it, the header. So the last store launches the message, whole, with all that comes with it; and
//! what was described and not launched nobody has seen.
//!
//! # Why nothing is overwritten unread
//! Positions are counted in words from the beginning of time. The sender writes below `disposed + capacity` only, the 0 included, where `disposed` is the receiver's word, acquired; and the receiver releases that after it
//! has read what lies before. It tells so after a quarter of the memory, or when asked to ([`Incoming::tell`]): a sender that finds no room has to see to it that it is.
//!
//! `tests/loom_direct.rs` is the model.
//!
//! # Peers
//! The receiver believes nothing: a header that makes no sense, or is out of sequence, is a [`Violation`], and stays one. A payload may change while it is read, so what matters is copied first. The sender believes of the receiver's word only
//! what can be true; one that is too small stops it, as a receiver may anyway.

#[cfg(not(loom))]
use crate::span::{Room, Span};
use std::fmt;
use std::ops::Deref;
#[cfg(not(loom))]
use std::ptr::NonNull;
use upcall_os::atomic::{AtomicU64, Ordering};

/// A header is no other word than 0 if this is set.
const THERE: u64 = 1 << 63;
/// The message lies at the beginning of the memory.
const ELSEWHERE: u64 = 1 << 62;
/// Bits of the count that goes with each message.
const SEQUENCE: u64 = 0x3fff;

/// A message's header: handler and bytes of payload, and the count of the message.
const fn header(handler: u16, len: u32, count: u64) -> u64 {
    THERE | (count & SEQUENCE) << 48 | (handler as u64) << 32 | len as u64
}

/// Words of a message with so many bytes of payload, its header included.
const fn words_of(len: usize) -> u64 {
    1 + len.div_ceil(8) as u64
}

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no room before the receiver has disposed of more.
    Full,
    /// It is longer than the queue ever takes: so many bytes at most.
    TooLong {
        /// The most.
        most: usize,
    },
    /// The receiver says that it has disposed of what was never sent, or takes back what it has said.
    Violation,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("the queue is full; send again when its receiver has taken some"),
            Self::TooLong { most } => {
                write!(f, "the message is longer than the {most} bytes that the queue takes; send it by memory of its own")
            }
            Self::Violation => {
                f.write_str("the receiver says that it has taken what was never sent; it is faulty or hostile, so leave it")
            }
        }
    }
}

impl std::error::Error for Refused {}

/// A sender that does not keep to the layout. Nothing more can be received from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A word in a header's place that is no header.
    NoHeader(u64),
    /// A message that is longer than the rest of the memory, or than the queue takes.
    Length(u32),
    /// A message that is not the next one: the count that was found.
    Sequence(u16),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHeader(word) => write!(f, "{word:#x} is no message's header"),
            Self::Length(len) => write!(f, "a message of {len} bytes does not fit where it lies"),
            Self::Sequence(found) => write!(f, "message {found} is not the next one"),
        }
    }
}

impl std::error::Error for Violation {}

/// The most words of a queue: the length of a message is told in 32 bits.
const LARGEST: usize = 1 << 29;

/// The words of a queue, as both ends see them.
#[derive(Debug)]
struct Memory<W> {
    words: W,
    mask: u64,
}

impl<W: Deref<Target = [AtomicU64]>> Memory<W> {
    fn new(words: W) -> Self {
        let capacity = words.len();
        assert!(
            capacity.is_power_of_two() && (4..=LARGEST).contains(&capacity),
            "a queue has a power of two of words, from 4 to {LARGEST}, not {capacity}"
        );
        Self { words, mask: capacity as u64 - 1 }
    }

    #[inline(always)]
    fn capacity(&self) -> u64 {
        self.mask + 1
    }

    /// Words of the longest message, its header included: what always fits when the queue is empty, wherever the next message begins.
    #[inline(always)]
    fn longest(&self) -> u64 {
        self.capacity() / 2
    }

    #[inline(always)]
    fn word(&self, position: u64) -> &AtomicU64 {
        &self.words[(position & self.mask) as usize]
    }

    /// Words from a position to the end of the memory.
    #[inline(always)]
    fn left(&self, position: u64) -> u64 {
        self.capacity() - (position & self.mask)
    }

    /// The words of the payload of the message of so many that lies at `position`.
    #[cfg(not(loom))]
    #[inline]
    fn payload(&self, position: u64, size: u64) -> NonNull<u8> {
        let first = (position & self.mask) as usize + 1;
        NonNull::from(&self.words[first..first + size as usize - 1]).cast()
    }
}

/// The sending end.
#[derive(Debug)]
pub struct Outgoing<W, D> {
    memory: Memory<W>,
    disposed: D,
    /// Where the next header goes.
    next: u64,
    /// What lies before may be written: as of the last look at the receiver's word.
    until: u64,
    sent: u64,
}

impl<W: Deref<Target = [AtomicU64]>, D: Deref<Target = AtomicU64>> Outgoing<W, D> {
    /// The sending end of a queue that nothing was sent through yet: all of its words are 0, and so is the receiver's.
    ///
    /// # Panics
    /// There are fewer than four words, more than 2^29, or not a power of two.
    pub fn new(words: W, disposed: D) -> Self {
        let memory = Memory::new(words);
        Self { until: memory.capacity(), memory, disposed, next: 0, sent: 0 }
    }

    /// The most bytes of payload that it takes.
    pub fn most(&self) -> usize {
        (self.memory.longest() as usize - 1) * 8
    }

    /// Whether all that was launched has been disposed of, for all that the receiver has said. It does not say so at once ([`Incoming::tell`]).
    pub fn is_empty(&self) -> bool {
        self.disposed.load(Ordering::Acquire) == self.next
    }

    /// Sends a message of whole words. Never blocks.
    ///
    /// # Errors
    /// See [`Refused`]; then nothing was sent.
    #[inline]
    pub fn try_send(&mut self, handler: u16, payload: &[u64]) -> Result<(), Refused> {
        let draft = self.describe(handler, payload.len() * 8)?;
        for (at, word) in payload.iter().enumerate() {
            draft.put(at, *word);
        }
        draft.launch();
        Ok(())
    }

    /// Finds room for a message of so many bytes, to be written there and launched. Never blocks.
    ///
    /// # Errors
    /// See [`Refused`].
    #[inline]
    pub fn describe(&mut self, handler: u16, len: usize) -> Result<Draft<'_, W, D>, Refused> {
        let size = words_of(len);
        if size > self.memory.longest() {
            return Err(Refused::TooLong { most: self.most() });
        }
        let left = self.memory.left(self.next);
        let begin = if size <= left { self.next } else { self.next + left };
        let end = begin + size;
        // One more for the 0 in the place of the next header.
        if end >= self.until {
            self.look(end)?;
        }
        Ok(Draft { queue: self, handler, len: len as u32, begin, end })
    }

    /// Looks how far the receiver is, for who wants to write up to `end`.
    #[cold]
    fn look(&mut self, end: u64) -> Result<(), Refused> {
        let disposed = self.disposed.load(Ordering::Acquire);
        let until = disposed.wrapping_add(self.memory.capacity());
        if disposed > self.next || until < self.until {
            return Err(Refused::Violation);
        }
        self.until = until;
        if end < until { Ok(()) } else { Err(Refused::Full) }
    }
}

/// A message that is being described. Dropped, it was never there.
#[derive(Debug)]
#[must_use = "it is launched, or nobody sees it"]
pub struct Draft<'a, W, D> {
    queue: &'a mut Outgoing<W, D>,
    handler: u16,
    len: u32,
    begin: u64,
    end: u64,
}

impl<W: Deref<Target = [AtomicU64]>, D: Deref<Target = AtomicU64>> Draft<'_, W, D> {
    /// Writes a word of the payload.
    ///
    /// # Panics
    /// It is none of the payload's.
    #[inline]
    pub fn put(&self, at: usize, word: u64) {
        let words = self.end - self.begin - 1;
        assert!((at as u64) < words, "word {at} of a message of {} bytes", self.len);
        self.queue.memory.word(self.begin + 1 + at as u64).store(word, Ordering::Relaxed);
    }

    /// Where the payload goes, for writing bytes.
    #[cfg(not(loom))]
    pub fn room(&mut self) -> Room<'_> {
        let payload = self.queue.memory.payload(self.begin, self.end - self.begin);
        // SAFETY: as many words are there as the length needs; they live as long as the queue, whose sending end is borrowed by this draft alone, and shared memory is only ever touched by atomic or opaque
        // accesses.
        unsafe { Room::new(payload, self.len as usize) }
    }

    /// Launches it: with one store it is there, as a whole.
    #[inline]
    pub fn launch(self) {
        let Self { queue, handler, len, begin, end } = self;
        let header = header(handler, len, queue.sent);
        queue.memory.word(end).store(0, Ordering::Relaxed);
        if begin == queue.next {
            queue.memory.word(begin).store(header, Ordering::Release);
        } else {
            queue.memory.word(begin).store(header, Ordering::Relaxed);
            queue.memory.word(queue.next).store(THERE | ELSEWHERE, Ordering::Release);
        }
        queue.bring_near(end);
        queue.next = end;
        queue.sent += 1;
    }
}

impl<W: Deref<Target = [AtomicU64]>, D: Deref<Target = AtomicU64>> Outgoing<W, D> {
    /// Stores go out in order: one to a line that the receiver has read last would hold up those after it, until the line has come. So it is asked for two lines before.
    #[inline(always)]
    fn bring_near(&self, end: u64) {
        const LINE: u64 = 8;
        if (self.next ^ end) & !(LINE - 1) != 0 && end + 3 * LINE < self.until {
            prefetch_to_write(self.memory.word(end + 2 * LINE));
        }
    }
}

#[inline(always)]
fn prefetch_to_write(word: &AtomicU64) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: a prefetch has no effect that a program can see, whatever the address; where the processor does not know this one it does nothing.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_ET0 }>((&raw const *word).cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    let _ = word;
}

/// The receiving end.
#[derive(Debug)]
pub struct Incoming<W, D> {
    memory: Memory<W>,
    disposed: D,
    /// Where the next header is.
    next: u64,
    /// What the sender was told of.
    told: u64,
    taken: u64,
}

impl<W: Deref<Target = [AtomicU64]>, D: Deref<Target = AtomicU64>> Incoming<W, D> {
    /// The receiving end of a queue that nothing was taken from yet.
    ///
    /// # Panics
    /// There are fewer than four words, more than 2^29, or not a power of two.
    pub fn new(words: W, disposed: D) -> Self {
        Self { memory: Memory::new(words), disposed, next: 0, told: 0, taken: 0 }
    }

    /// Whether a message is there. One load, of a line that stays in this processor's cache until the sender writes it.
    #[inline]
    pub fn waits(&self) -> bool {
        self.memory.word(self.next).load(Ordering::Acquire) != 0
    }

    /// The next message, where it lies; `None` if none is there. It stays the next one until it is disposed of.
    ///
    /// # Errors
    /// The sender breaks the rules: see [`Violation`]. From then on nothing else is received.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Arrived<'_, W, D>>, Violation> {
        let mut header = self.memory.word(self.next).load(Ordering::Acquire);
        if header == 0 {
            return Ok(None);
        }
        if header & ELSEWHERE != 0 {
            header = self.go_on_at_the_beginning(header)?;
        }
        let (count, handler, len) = ((header >> 48 & SEQUENCE) as u16, (header >> 32) as u16, header as u32);
        let size = words_of(len as usize);
        let limit = self.memory.left(self.next).min(self.memory.longest());
        if header & (THERE | ELSEWHERE) != THERE || u64::from(count) != self.taken & SEQUENCE || size > limit {
            return Err(self.violation(header, size > limit));
        }
        Ok(Some(Arrived { queue: self, handler, len, size }))
    }

    #[cold]
    fn go_on_at_the_beginning(&mut self, header: u64) -> Result<u64, Violation> {
        let left = self.memory.left(self.next);
        if header != THERE | ELSEWHERE || left == self.memory.capacity() {
            return Err(Violation::NoHeader(header));
        }
        // Published with what sent us there.
        let header = self.memory.word(0).load(Ordering::Relaxed);
        if header & (THERE | ELSEWHERE) != THERE {
            return Err(Violation::NoHeader(header));
        }
        self.next += left;
        Ok(header)
    }

    #[cold]
    fn violation(&self, header: u64, long: bool) -> Violation {
        match header & (THERE | ELSEWHERE) {
            THERE if long => Violation::Length(header as u32),
            THERE => Violation::Sequence((header >> 48 & SEQUENCE) as u16),
            _ => Violation::NoHeader(header),
        }
    }

    /// Tells the sender of all that was disposed of: to be done when nothing waits, and when the sender waits for room. Costs it the line with that word, so not more often.
    #[inline]
    pub fn tell(&mut self) {
        if self.told != self.next {
            self.told = self.next;
            self.disposed.store(self.next, Ordering::Release);
        }
    }
}

/// A message that has arrived, where it lies: its sender can still write there.
#[derive(Debug)]
pub struct Arrived<'a, W, D> {
    queue: &'a mut Incoming<W, D>,
    handler: u16,
    len: u32,
    size: u64,
}

impl<W: Deref<Target = [AtomicU64]>, D: Deref<Target = AtomicU64>> Arrived<'_, W, D> {
    /// The handler that it names, by the sender's word.
    #[inline]
    pub fn handler(&self) -> u16 {
        self.handler
    }

    /// Bytes of payload.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether it has no payload.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A word of the payload; `None` beyond its end. The last one may be a part of one.
    #[inline]
    pub fn word(&self, at: usize) -> Option<u64> {
        let at = at as u64;
        (at < self.size - 1).then(|| self.queue.memory.word(self.queue.next + 1 + at).load(Ordering::Relaxed))
    }

    /// The payload.
    #[cfg(not(loom))]
    #[inline]
    pub fn payload(&self) -> Span<'_> {
        let payload = self.queue.memory.payload(self.queue.next, self.size);
        // SAFETY: as many words are there as the length needs; they live as long as the queue, and shared memory is only ever touched by atomic or opaque accesses.
        unsafe { Span::new(payload, self.len as usize) }
    }

    /// Disposes of it: the next one appears, and what it took is the sender's again.
    #[inline]
    pub fn dispose(self) {
        let Self { queue, size, .. } = self;
        queue.next += size;
        queue.taken += 1;
        if queue.next - queue.told > queue.memory.mask / 4 {
            queue.tell();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::sync::Arc;

    type Words = Arc<[AtomicU64]>;

    type Sending = Outgoing<Words, Arc<AtomicU64>>;
    type Receiving = Incoming<Words, Arc<AtomicU64>>;

    fn queue(capacity: usize) -> (Sending, Receiving, Words, Arc<AtomicU64>) {
        let words: Words = (0..capacity).map(|_| AtomicU64::new(0)).collect();
        let disposed = Arc::new(AtomicU64::new(0));
        let ends = (Outgoing::new(words.clone(), disposed.clone()), Incoming::new(words.clone(), disposed.clone()));
        (ends.0, ends.1, words, disposed)
    }

    fn receive(incoming: &mut Receiving) -> Option<(u16, Vec<u64>)> {
        let arrived = incoming.peek().unwrap()?;
        let words = (0..arrived.len() / 8).map(|at| arrived.word(at).unwrap()).collect();
        assert_eq!([arrived.len().div_ceil(8), usize::MAX].map(|beyond| arrived.word(beyond)), [None; 2]);
        let message = (arrived.handler(), words);
        arrived.dispose();
        Some(message)
    }

    #[test]
    fn every_order_of_sending_and_taking_gives_what_was_sent() {
        let mut dice = 1_u64;
        let mut roll = |sides: u64| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (dice >> 33) % sides
        };
        for capacity in [4, 8, 64] {
            let (mut outgoing, mut incoming, ..) = queue(capacity);
            let (mut expected, mut number, mut full) = (VecDeque::new(), 0, 0);
            for _ in 0..if cfg!(miri) { 300 } else { 100_000 } {
                if roll(2) == 0 {
                    let len = roll(capacity as u64 / 2);
                    let payload: Vec<u64> = (0..len).map(|at| number + at).collect();
                    match outgoing.try_send(number as u16, &payload) {
                        Ok(()) => expected.push_back((number as u16, payload)),
                        Err(refused) => {
                            assert_eq!(refused, Refused::Full);
                            full += 1;
                            incoming.tell();
                        }
                    }
                    number += 1;
                } else {
                    assert_eq!(incoming.waits(), !expected.is_empty());
                    assert_eq!(receive(&mut incoming), expected.pop_front());
                }
            }
            assert!(full > 0);
            incoming.tell();
            assert_eq!(outgoing.is_empty(), expected.is_empty());
        }
    }

    #[test]
    fn what_always_fits_fits_wherever_it_begins() {
        for before in 0..16 {
            let (mut outgoing, mut incoming, ..) = queue(16);
            for _ in 0..before {
                outgoing.try_send(0, &[]).unwrap();
                receive(&mut incoming).unwrap();
            }
            incoming.tell();
            let most = outgoing.most();
            assert_eq!(outgoing.describe(0, most + 1).unwrap_err(), Refused::TooLong { most });
            outgoing.try_send(1, &vec![5; most / 8]).unwrap();
            assert_eq!(receive(&mut incoming), Some((1, vec![5; most / 8])));
        }
    }

    #[test]
    fn bytes_of_any_number_are_carried() {
        let (mut outgoing, mut incoming, ..) = queue(64);
        let bytes: Vec<u8> = (1..=200).collect();
        for len in 0..200 {
            let mut draft = outgoing.describe(7, len).unwrap();
            draft.room().copy_in(0, &bytes[..len]).unwrap();
            draft.launch();
            let arrived = incoming.peek().unwrap().unwrap();
            let mut copy = vec![0; arrived.len()];
            arrived.payload().copy_out(0, &mut copy).unwrap();
            assert_eq!(copy, bytes[..len]);
            arrived.dispose();
            incoming.tell();
        }
    }

    #[test]
    fn what_was_not_launched_was_never_there() {
        let (mut outgoing, mut incoming, ..) = queue(8);
        let draft = outgoing.describe(1, 16).unwrap();
        draft.put(0, 1);
        drop(draft);
        assert!(!incoming.waits() && incoming.peek().unwrap().is_none());
        outgoing.try_send(2, &[3]).unwrap();
        assert_eq!(receive(&mut incoming), Some((2, vec![3])));
    }

    #[test]
    #[should_panic(expected = "of a message of 8 bytes")]
    fn nothing_is_written_beside_a_message() {
        let (mut outgoing, ..) = queue(8);
        outgoing.describe(1, 8).unwrap().put(usize::MAX, 1);
    }

    #[test]
    fn a_peeked_message_stays() {
        let (mut outgoing, mut incoming, ..) = queue(8);
        outgoing.try_send(2, &[3]).unwrap();
        assert_eq!(incoming.peek().unwrap().unwrap().word(0), Some(3));
        assert_eq!(receive(&mut incoming), Some((2, vec![3])));
    }

    #[test]
    fn a_sender_that_breaks_the_rules_is_found() {
        let bad = [
            (1, Violation::NoHeader(1)),
            (ELSEWHERE | 5, Violation::NoHeader(ELSEWHERE | 5)),
            (header(0, 0, 1), Violation::Sequence(1)),
            (header(0, u32::MAX, 0), Violation::Length(u32::MAX)),
            (header(0, 25, 0), Violation::Length(25)),
            (THERE | ELSEWHERE, Violation::NoHeader(THERE | ELSEWHERE)),
            (u64::MAX, Violation::NoHeader(u64::MAX)),
        ];
        for (word, violation) in bad {
            let (_, mut incoming, words, _) = queue(8);
            words[0].store(word, Ordering::Release);
            for _ in 0..2 {
                assert_eq!(incoming.peek().unwrap_err(), violation, "{word:#x}");
            }
        }
        // What lies elsewhere is to be there.
        for elsewhere in [0, THERE | ELSEWHERE, 5] {
            let (mut outgoing, mut incoming, words, _) = queue(8);
            outgoing.try_send(0, &[]).unwrap();
            receive(&mut incoming).unwrap();
            words[1].store(THERE | ELSEWHERE, Ordering::Release);
            words[0].store(elsewhere, Ordering::Release);
            assert_eq!(incoming.peek().unwrap_err(), Violation::NoHeader(elsewhere));
        }
    }

    #[test]
    fn a_receiver_that_breaks_the_rules_is_found() {
        for said in [1, 8, u64::MAX, u64::MAX - 3] {
            let (mut outgoing, _, _, disposed) = queue(4);
            disposed.store(said, Ordering::Release);
            let sent = (0..8).map(|_| outgoing.try_send(0, &[])).find(Result::is_err);
            // Three may have been sent before it is asked; one may have been taken by then.
            assert!(matches!(sent, Some(Err(Refused::Violation | Refused::Full))), "{said}: {sent:?}");
            assert!(said == 1 || sent == Some(Err(Refused::Violation)), "{said}: {sent:?}");
        }
        // What was told is not taken back.
        let (mut outgoing, mut incoming, _, disposed) = queue(4);
        for _ in 0..4 {
            outgoing.try_send(0, &[]).unwrap();
            receive(&mut incoming).unwrap();
            incoming.tell();
        }
        disposed.store(1, Ordering::Release);
        let sent = (0..8).map(|_| outgoing.try_send(0, &[])).find(Result::is_err);
        assert_eq!(sent, Some(Err(Refused::Violation)));
    }
}
