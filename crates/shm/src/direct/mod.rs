//! The queue of messages from one sender to one receiver: described and launched, read in place and
//! disposed of; direct as long as there is room, else diverted into a buffer that grows.
//!
//! Source: UDM, sections 3.1, 3.3 and 4.1. There the two ends are registers of a network interface:
//! a message is described in the output buffer and launched at once, and is read in the input
//! buffer until it is disposed of (D1 to D3); what cannot be delivered so is kept in virtual
//! memory, and read from there by the same instructions (D10, D11). Here they are memory that the
//! sender writes and the receiver reads, and two words that the receiver writes: how much it has
//! disposed of.
//!
//! # Why not the rings of calls
//! A call has a reply, so a lane has no more messages under way than slots, and needs no count of
//! what was taken ([`ring`](crate::ring)). Messages are not answered, and many are a word or two: a
//! slot of a line for each would take eight times the lines.
//!
//! # Layout
//! A message is a header word and its payload, in words, one after another. Where the next header
//! will be there is 0: that is all that a receiver looks at. The queue's own memory, its *home*, is
//! used round and round: a message that does not fit before the end lies at the beginning, and in
//! its place is a word that says so. The sender writes, in this order: the payload, the 0 after it,
//! the header. So the last store launches the message, whole, with all that comes with it; and what
//! was described and not launched nobody has seen.
//!
//! # Why nothing is overwritten unread
//! Positions at home are counted in words from the beginning of time. The sender writes below
//! `disposed + capacity` only, the 0 included, where `disposed` is the receiver's word, acquired;
//! and the receiver releases that after it has read what lies before. It tells so after a quarter
//! of the memory, or when asked to ([`Incoming::tell`]): a sender that finds no room has to see to
//! it that it is.
//!
//! # Divert
//! ```text
//!   home      … m m m ►2                  0 or m m …          ►2: go on in segment 2
//!   segment 2        m m m m m … m ►3             │           ⌂: go on at home
//!   segment 3                      m m m ⌂ ───────┘
//! ```
//! A sender that may not or will not wait for room diverts ([`Outgoing::divert`]): in the place of
//! the next header it says that the queue goes on in a *segment*, further memory that is written
//! once from the beginning to the end, and from there in another one. When the receiver has
//! disposed of all that was sent the sender goes back, with a word in the place of the next header,
//! to where it left home. So there is one path through all the memory, and the receiver follows it:
//! order does not depend on when either side notices what, and a message that is being read is
//! never moved. The sender needs no answer to divert, and once a message is launched the sender is
//! not needed for it any more.
//!
//! A message that does not fit into home goes to a segment of its own, of as many of the usual ones
//! in a row as it needs: a power of two, told by the word that leads there. So its payload is
//! written once and read where it lies, whatever its length.
//!
//! Two segments, or what the memory says, are *spares*: a sender takes one where it can, and
//! neither side gives up its pages or its mapping each time, which cost more than all that is
//! written there. They go back to the machine when the sender says so ([`Outgoing::shrink`]).
//!
//! Nothing is overwritten unread here either: a segment's memory is used anew only after the
//! receiver has said, by the same kind of word, that it has left it; and home is empty when the
//! sender goes back to it, since the receiver has passed the word that led away. That word is made
//! 0 before the one that leads back is released.
//!
//! `tests/models/loom_direct.rs` is the model.
//!
//! # Peers
//! The receiver believes nothing: a header that makes no sense, or is out of sequence, is a
//! [`Violation`], and stays one. A payload may change while it is read, so what matters is copied
//! first. The sender believes of the receiver's words only what can be true; one that is too small
//! stops it, as a receiver may anyway.

mod incoming;
mod outgoing;
#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(not(loom))]
pub use incoming::ReceivedMessage;
pub use incoming::{Arrived, Incoming};
pub use outgoing::{Draft, Outgoing};

#[cfg(not(loom))]
use crate::region::Cells;
use std::fmt;
use std::io;
use std::ops::Deref;
#[cfg(not(loom))]
use std::ptr::NonNull;
use upcall_os::atomic::AtomicU64;

/// A header of a message is told from all other words by this.
const MESSAGE: u64 = 1 << 63;
/// The message lies at the beginning of home.
const WRAP: u64 = 1 << 62;
/// The queue goes on at home.
const HOME: u64 = 1 << 61;
/// The queue goes on in the segment with the number in the lower bits, and the binary logarithm of
/// its length above them.
const SEGMENT: u64 = 1 << 60;
const SEGMENT_LENGTH: u32 = 52;
/// Above its number: 0, or one more than the number of the spare that it is.
const SEGMENT_SPARE: u32 = 44;
/// Bits of the count that goes with each message.
const SEQUENCE: u64 = 0x3fff;

/// A message's header: handler and bytes of payload, and the count of the message.
const fn header(handler: u16, len: u32, count: u64) -> u64 {
    MESSAGE | (count & SEQUENCE) << 48 | (handler as u64) << 32 | len as u64
}

/// Words of a message with so many bytes of payload, its header included.
const fn words_of(len: usize) -> u64 {
    1 + len.div_ceil(8) as u64
}

/// The memory of a queue, as one of its ends has it.
pub trait QueueMemory {
    /// A piece of it.
    type Words: Deref<Target = [AtomicU64]> + fmt::Debug;
    /// The receiver's words.
    type Told: Deref<Target = ReceiverProgress> + fmt::Debug;

    /// So many segments of the usual length there can be at a time, spares among them: two at
    /// least.
    const SEGMENTS: u64;

    /// So many of those are spares: 254 at most.
    const SPARES: usize;

    /// The queue's own memory: a power of two of words, from 4 to 2^29.
    fn home(&self) -> Self::Words;

    /// Where the receiver tells what it has disposed of.
    fn told(&self) -> Self::Told;

    /// Words of a segment: a power of two, as many as home has at least, and 2^26 at most.
    fn segment_words(&self) -> u64;

    /// A segment. For the sender: the receiver has left those whose place it takes.
    ///
    /// # Errors
    /// It cannot be had; nothing has changed then.
    fn segment(&mut self, place: SegmentLocation) -> io::Result<Self::Words>;

    /// The receiver has left one: its memory may go back to the machine, unless it is a spare.
    fn leave(&mut self, place: SegmentLocation);

    /// The memory of a spare that nobody uses may go back to the machine.
    fn shrink(&mut self, spare: u8);

    /// Whether a segment is at hand: to enter and to leave it neither allocates nor frees anything
    /// on this side. For the receiver.
    fn is_at_hand(&self, _: SegmentLocation) -> bool {
        false
    }

    /// The sender has gone to a segment or home: so many messages were sent before, and so many
    /// segments were used. For who counts.
    fn sender_moved(&self, _sent: u64, _is_away: bool, _segments: u64) {}

    /// The receiver has told its sender something, or has gone to a segment or home: so many
    /// messages were taken, and so many segments are left. For who counts.
    fn receiver_told(&self, _taken: u64, _left: u64) {}
}

/// Where a segment lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentLocation {
    /// Where those of its number lie, and as many behind it as belong to it. Those of one number
    /// modulo [`SEGMENTS`](Memory::SEGMENTS) take the same place; they do not go round the end.
    Row {
        /// Its number from the beginning of time.
        number: u64,
        /// How many it is made of.
        many: u64,
    },
    /// In a spare.
    Spare(u8),
}

/// What the receiver has disposed of; written by it alone, in a line of its own.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ReceiverProgress {
    /// Words at home, from the beginning of time.
    disposed: AtomicU64,
    /// The place in the segments; see [`place`].
    diverted: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<ReceiverProgress>() == 64);

// SAFETY: atomics and padding only, `repr(C)`, no drop.
#[cfg(not(loom))]
unsafe impl Cells for ReceiverProgress {}

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendRefusal {
    /// There is no room before the receiver has disposed of more, or the sender diverts.
    Full,
    /// It does not fit into the queue: [`divert_for`](Outgoing::divert_for) it.
    Outsized,
    /// It is longer than any segment: so many bytes at most.
    TooLong {
        /// The most.
        most: usize,
    },
    /// The receiver says that it has disposed of what was never sent, or takes back what it has
    /// said.
    Violation,
}

impl fmt::Display for SendRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("the queue is full; send again when its receiver has taken some"),
            Self::Outsized => f.write_str("the message does not fit into the queue; it needs a segment of its own"),
            Self::TooLong { most } => write!(f, "the message is longer than {most} bytes; send it in parts"),
            Self::Violation => {
                f.write_str("the receiver says that it has taken what was never sent; it is faulty or hostile, so leave it")
            }
        }
    }
}

impl std::error::Error for SendRefusal {}

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

/// Why nothing can be received.
#[derive(Debug)]
pub enum Unreadable {
    /// The sender breaks the rules.
    Violation(Violation),
    /// The next message lies in a segment that this side could not map. Nothing is lost: look
    /// again.
    Memory(io::Error),
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Violation(violation) => write!(f, "{violation}"),
            Self::Memory(error) => {
                write!(f, "the memory with the next message cannot be mapped: {error}")
            }
        }
    }
}

impl std::error::Error for Unreadable {}

/// The most words of a piece of memory: the length of a message is told in 32 bits.
const LARGEST: usize = 1 << 29;

/// Home, or a segment.
#[derive(Debug)]
struct Area<W> {
    words: W,
    mask: u64,
}

impl<W: Deref<Target = [AtomicU64]>> Area<W> {
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

    #[inline(always)]
    fn index(&self, position: u64) -> usize {
        (position & self.mask) as usize
    }

    #[inline(always)]
    fn word(&self, position: u64) -> &AtomicU64 {
        &self.words[self.index(position)]
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
        let first = self.index(position) + 1;
        NonNull::from(&self.words[first..first + size as usize - 1]).cast()
    }
}

/// Words of the longest message, its header included: what always fits into an empty home, wherever
/// the next message begins.
const fn longest(home: u64) -> u64 {
    home / 2
}

/// Words of the longest segment: 1 GiB.
const LONGEST_SEGMENT: u64 = 1 << 27;

/// How far the numbers of places in one segment are from those in the next: so far that "in it, with all disposed of" is not "left", however long it is. There are 2^36 segments of the usual length then, or 64 PiB of what was diverted by one pair.
const STRIDE: u64 = 2 * LONGEST_SEGMENT;

/// The number of a place in the segments. That of the beginning of the first one is not 0: who is
/// there has left home.
const fn place(segment: u64, next: u64) -> u64 {
    segment * STRIDE + next + 1
}

/// The number of the first of so many segments in a row, if those before `next` are in use: they do
/// not go round the end.
const fn first_of(next: u64, many: u64, segments: u64) -> u64 {
    let left = segments - next % segments;
    if many <= left { next } else { next + left }
}

/// The segment that a queue goes on in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SegmentRun {
    first: u64,
    many: u64,
    spare: Option<u8>,
}

impl SegmentRun {
    const NONE: Self = Self { first: 0, many: 0, spare: None };

    /// The segment after those before `next`, for a message of so many words. `None`: it is too
    /// long.
    fn of(size: u64, words: u64, next: u64, segments: u64) -> Option<Self> {
        // One more for the word after it.
        let many = (size + 1).div_ceil(words).next_power_of_two();
        Self::checked(many, words, next, segments)
    }

    fn checked(many: u64, words: u64, next: u64, segments: u64) -> Option<Self> {
        let fits = many <= Self::most(words, segments);
        fits.then(|| Self { first: first_of(next, many, segments), many, spare: None })
    }

    /// So many segments in a row one may have: so few that there is room for the next one beside
    /// one that is still read, wherever it begins.
    fn most(words: u64, segments: u64) -> u64 {
        let most = (segments / 4).min(LONGEST_SEGMENT / words).max(1);
        1 << most.ilog2()
    }

    /// The word that leads there.
    fn word(self) -> u64 {
        let spare = self.spare.map_or(0, |spare| u64::from(spare) + 1);
        SEGMENT
            | u64::from(self.many.ilog2()) << SEGMENT_LENGTH
            | spare << SEGMENT_SPARE
            | self.first
    }

    /// Where such a word leads, if it may.
    fn from_word<M: QueueMemory>(word: u64, words: u64, next: u64) -> Option<Self> {
        let many = 1_u64.checked_shl(((word & !SEGMENT) >> SEGMENT_LENGTH) as u32)?;
        let run = Self::checked(many, words, next, M::SEGMENTS)?;
        let run = match (word >> SEGMENT_SPARE) as u8 {
            0 => run,
            spare if many == 1 && usize::from(spare) <= M::SPARES => {
                Self { spare: Some(spare - 1), ..run }
            }
            _ => return None,
        };
        (run.word() == word).then_some(run)
    }

    /// Where it lies.
    fn place(self) -> SegmentLocation {
        match self.spare {
            Some(spare) => SegmentLocation::Spare(spare),
            None => SegmentLocation::Row { number: self.first, many: self.many },
        }
    }

    /// The number of the next one.
    fn next(self) -> u64 {
        self.first + self.many
    }

    /// The number of the place behind it.
    fn end(self) -> u64 {
        self.next() * STRIDE
    }
}

/// Home, while the queue goes on in a segment: the word that leads away is at `next`.
#[derive(Debug)]
struct DivertedHome<W> {
    home: Area<W>,
    next: u64,
}
