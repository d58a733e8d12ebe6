//! Memory shared by a sender and a receiver that trust each other: the floor for queues of
//! messages, and a word by which the two wait for each other independently of the measured queue.
//!
//! As in [`crate::raw`], nothing here defends against a hostile peer, and only the floor may use
//! it.
//!
//! ```text
//! 0        a page with the gate
//! 4 KiB    words from sender to receiver, 64 KiB; then a line with the number of words disposed of
//! then     the same from receiver to sender
//! ```
//! A queue is a sequence of words: a message's header, its payload, and 0 at the position of the
//! next header. The writer writes the words before `disposed + WORDS`, and the reader reads what a
//! header has published. That is the invariant on which the `unsafe` blocks below rest.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::*};

use super::child::{Payload, Side};
use crate::payload::checksum;
use crate::raw::{self, LINE, Mapping, PAGE, Page};

/// Size of one queue, in words.
const WORDS: usize = 8192;
const QUEUE: usize = WORDS * 8 + LINE;
const LEN: usize = PAGE + 2 * QUEUE;

/// Creates the memory of a pair.
///
/// # Errors
/// The kernel has no memory or descriptors left.
pub fn create() -> io::Result<OwnedFd> {
    raw::create(LEN)
}

type Memory = Mapping<LEN>;

/// The word by which the two wait for each other independently of their queues.
pub struct Gate(Page);

impl Gate {
    /// Opens the gate of a pair, by the path of its memory.
    ///
    /// # Errors
    /// The memory does not exist.
    pub fn open(path: &Path) -> io::Result<Gate> {
        Ok(Gate(Page::open(path)?))
    }

    /// Sets the word, after all preceding accesses.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.line(0).store(value, Release);
    }

    /// Waits until the word has one of two values, and returns it.
    #[inline]
    pub fn wait(&self, one: u64, other: u64) -> u64 {
        let mut looks = 0_u32;
        loop {
            let found = self.0.line(0).load(Acquire);
            if found == one || found == other {
                return found;
            }
            looks += 1;
            // The other side is not running: give it the processor.
            if looks.is_multiple_of(1 << 14) {
                std::thread::yield_now();
            }
        }
    }
}

/// Set in every header, so that a header is not 0.
const THERE: u64 = 1 << 63;
/// Header flag: the message is at the beginning of the queue's memory.
const ELSEWHERE: u64 = 1 << 62;

/// Offset of a queue.
fn queue_from(side: Side) -> usize {
    match side {
        Side::Sender => PAGE,
        Side::Receiver => PAGE + QUEUE,
    }
}

/// One end of a queue.
struct End {
    memory: Memory,
    at: usize,
    /// Position in words since the queue was created.
    next: u64,
}

impl End {
    fn open(path: &Path, from: Side) -> io::Result<End> {
        Ok(End { memory: Memory::open(path)?, at: queue_from(from), next: 0 })
    }

    #[inline(always)]
    fn words(&self) -> &[AtomicU64; WORDS] {
        assert!(self.at.is_multiple_of(8) && self.at + WORDS * 8 <= LEN);
        // SAFETY: within the mapping, aligned, mapped as long as `self`, and any bits are valid
        // words; both sides access them by atomics, or in turn.
        unsafe { self.memory.at(self.at).cast().as_ref() }
    }

    #[inline(always)]
    fn word(&self, position: u64) -> &AtomicU64 {
        &self.words()[position as usize % WORDS]
    }

    fn disposed(&self) -> &AtomicU64 {
        self.memory.word(self.at + WORDS * 8)
    }

    #[inline(always)]
    fn left(&self, position: u64) -> u64 {
        WORDS as u64 - position % WORDS as u64
    }

    /// Returns the address of a payload of this number of words, with its header at `header`.
    #[inline(always)]
    fn payload(&self, header: u64, words: usize) -> NonNull<u8> {
        let first = header as usize % WORDS + 1;
        NonNull::from(&self.words()[first..first + words]).cast()
    }
}

/// The sending end.
pub struct Outgoing {
    end: End,
    until: u64,
}

impl Outgoing {
    /// Opens the end of the queue by which `side` sends.
    ///
    /// # Errors
    /// The memory does not exist.
    pub fn open(path: &Path, side: Side) -> io::Result<Outgoing> {
        Ok(Outgoing { end: End::open(path, side)?, until: WORDS as u64 })
    }

    /// Returns the position for a message of this number of words with its header, if there is
    /// room.
    #[inline(always)]
    fn room(&mut self, size: u64) -> Option<u64> {
        let left = self.end.left(self.end.next);
        let begin = if size < left { self.end.next } else { self.end.next + left };
        if begin + size >= self.until {
            self.until = self.end.disposed().load(Acquire) + WORDS as u64;
            if begin + size >= self.until {
                return None;
            }
        }
        Some(begin)
    }

    #[inline(always)]
    fn launch(&mut self, handler: u16, begin: u64, words: u64) {
        let end = begin + 1 + words;
        self.end.word(end).store(0, Relaxed);
        self.end.word(begin).store(THERE | u64::from(handler) << 32 | words, Release);
        if begin != self.end.next {
            self.end.word(self.end.next).store(THERE | ELSEWHERE, Release);
        }
        if (self.end.next ^ end) & !(LINE as u64 / 8 - 1) != 0 {
            ask_for(self.end.word(end + 2 * LINE as u64 / 8));
        }
        self.end.next = end;
    }

    /// Sends words. Returns `false` if there is no room.
    #[inline(always)]
    pub fn words<const N: usize>(&mut self, handler: u16, words: &[u64; N]) -> bool {
        let Some(begin) = self.room(1 + N as u64) else { return false };
        for (at, word) in words.iter().enumerate() {
            self.end.word(begin + 1 + at as u64).store(*word, Relaxed);
        }
        self.launch(handler, begin, N as u64);
        true
    }

    /// Sends bytes, a whole number of words. Returns `false` if there is no room.
    ///
    /// # Panics
    /// `bytes` is not a whole number of words, or takes more than half of the queue.
    #[inline]
    pub fn bytes(&mut self, handler: u16, bytes: &[u8]) -> bool {
        assert!(bytes.len().is_multiple_of(8) && bytes.len() < WORDS * 4);
        let words = (bytes.len() / 8) as u64;
        let Some(begin) = self.room(1 + words) else { return false };
        let place = self.end.payload(begin, bytes.len() / 8);
        // SAFETY: `room` found this number of contiguous words, which the reader has disposed of;
        // `bytes` is private memory.
        unsafe { place.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        self.launch(handler, begin, words);
        true
    }
}

/// Prefetches a line for writing: stores complete in order, and a store to a missing line would
/// delay the following ones.
#[inline(always)]
fn ask_for(word: &AtomicU64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect that a program can see, for any address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_ET0 }>(
            (&raw const *word).cast(),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = word;
}

/// The receiving end.
pub struct Incoming {
    end: End,
}

impl Incoming {
    /// Opens the end of the queue by which `side` receives.
    ///
    /// # Errors
    /// The memory does not exist.
    pub fn open(path: &Path, side: Side) -> io::Result<Incoming> {
        Ok(Incoming { end: End::open(path, side.other())? })
    }

    /// Returns the next message, in place. It is disposed of when the next one is requested.
    #[inline(always)]
    pub fn next(&mut self) -> Option<Message<'_>> {
        let mut header = self.end.word(self.end.next).load(Acquire);
        if header == 0 {
            return None;
        }
        if header & ELSEWHERE != 0 {
            self.end.next += self.end.left(self.end.next);
            header = self.end.word(self.end.next).load(Acquire);
        }
        let begin = self.end.next;
        self.end.next += 1 + (header & 0xffff_ffff);
        Some(Message { end: &self.end, begin, header })
    }

    /// Tells the writer that all messages from [`next`](Self::next) were disposed of.
    #[inline(always)]
    pub fn dispose(&mut self) {
        self.end.disposed().store(self.end.next, Release);
    }
}

/// A message.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    end: &'a End,
    begin: u64,
    header: u64,
}

impl Message<'_> {
    /// Returns the handler that the message names.
    #[inline(always)]
    pub fn handler(&self) -> u16 {
        (self.header >> 32) as u16
    }
}

impl Payload for Message<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        (self.header & 0xffff_ffff) as usize * 8
    }

    #[inline(always)]
    fn word(&self, at: usize) -> u64 {
        self.end.word(self.begin + 1 + at as u64).load(Relaxed)
    }

    #[inline]
    fn checksum(&self) -> u64 {
        let place =
            NonNull::slice_from_raw_parts(self.end.payload(self.begin, self.len() / 8), self.len());
        // SAFETY: a header has published this number of contiguous words, which the writer leaves
        // alone until they are disposed of: not before this borrow of the queue's end is over.
        checksum(unsafe { place.as_ref() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::{expected, fill};
    use std::os::fd::AsRawFd;

    #[test]
    fn what_is_sent_arrives_in_order_also_around_the_end() {
        let file = create().unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let mut outgoing = Outgoing::open(Path::new(&path), Side::Sender).unwrap();
        let mut incoming = Incoming::open(Path::new(&path), Side::Receiver).unwrap();
        let mut bytes = vec![0; 10_000];
        for round in 0..50 {
            fill(&mut bytes, round);
            assert!(
                outgoing.words(1, &[round, 2])
                    && outgoing.words(2, &[])
                    && outgoing.bytes(3, &bytes)
            );
            let first = incoming.next().unwrap();
            assert_eq!(
                (first.handler(), first.len(), first.word(0), first.word(1)),
                (1, 16, round, 2)
            );
            assert_eq!(
                incoming.next().map(|message| (message.handler(), message.len())),
                Some((2, 0))
            );
            let third = incoming.next().unwrap();
            assert_eq!(
                (third.handler(), third.len(), third.checksum()),
                (3, 10_000, expected(10_000, round))
            );
            assert!(incoming.next().is_none());
            incoming.dispose();
        }
        let taken = (0..).take_while(|_| outgoing.bytes(0, &bytes)).count();
        assert!((5..7).contains(&taken), "{taken}");
        let mut back = Outgoing::open(Path::new(&path), Side::Receiver).unwrap();
        assert!(back.words(4, &[]));
        assert_eq!(
            Incoming::open(Path::new(&path), Side::Sender)
                .unwrap()
                .next()
                .map(|message| message.handler()),
            Some(4)
        );
    }

    #[test]
    fn the_gate_is_waited_for() {
        let file = create().unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let gates = [(); 2].map(|()| Gate::open(Path::new(&path)).unwrap());
        gates[0].set(3);
        assert_eq!((gates[1].wait(3, 5), gates[1].wait(5, 3)), (3, 3));
    }

    #[test]
    fn another_size_is_refused() {
        let file = raw::create(0).unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        assert!(
            Gate::open(Path::new(&path)).is_err_and(|error| error.to_string().contains(" 0 bytes"))
        );
        let file = raw::create(PAGE).unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        assert!(
            Incoming::open(Path::new(&path), Side::Sender)
                .is_err_and(|error| error.to_string().contains(" 4096 bytes"))
        );
    }
}
