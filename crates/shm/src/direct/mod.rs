//! The queue of messages from one sender to one receiver.
//!
//! A message is described and launched, read in place and disposed of. It goes directly while there
//! is room, and else is diverted into a buffer that grows.
//!
//! Source: UDM, sections 3.1, 3.3 and 4.1. There the two ends are registers of a network interface.
//! A message is described in the output buffer and launched at once, and is read in the input
//! buffer until it is disposed of (D1 to D3). A message that cannot be delivered so is kept in
//! virtual memory, and read from there by the same instructions (D10, D11). Here the two ends are
//! memory that the sender writes and the receiver reads, and two words in which the receiver
//! reports how much it has disposed of.
//!
//! # Why not the rings of calls
//! A call has a reply, so a lane has at most as many messages under way as slots, and needs no
//! count of what was taken ([`ring`](crate::ring)). Messages are not answered, and many are a word
//! or two: a slot of one line for each would take eight times the lines.
//!
//! # Layout
//! A message is a header word and its payload, in words, one after another. The place of the next
//! header holds 0 until that message is there, and the receiver probes only this word. The queue's
//! own memory, its *home*, is a ring: a message that does not fit before the end lies at the
//! beginning, and in its place is a word that says so. The sender writes the payload, then the 0
//! after it, then the header. So the last store launches the message as a whole, with all that
//! comes with it. A message that was described and not launched has no effect.
//!
//! # Why nothing is overwritten unread
//! Positions at home are counted in words since the queue was made. The sender writes, the 0
//! included, only below `disposed + capacity`, where `disposed` is the receiver's word, loaded with
//! acquire. The receiver stores it with release after it has read what lies before. It does so
//! after a quarter of the memory, or when asked to ([`Incoming::tell`]): a sender that finds no
//! room has to ask for the report.
//!
//! # Divert
//! ```text
//!   home      … m m m ►2                  0 or m m …          ►2: go on in segment 2
//!   segment 2        m m m m m … m ►3             │           ⌂: go on at home
//!   segment 3                      m m m ⌂ ───────┘
//! ```
//! A sender that may not or will not wait for room diverts ([`Outgoing::divert`]). In the place of
//! the next header it writes that the queue goes on in a *segment*: further memory that is written
//! once from the beginning to the end, and that leads to another segment. When the receiver has
//! disposed of all that was sent, the sender goes back to where it left home, with a word in the
//! place of the next header. So there is one path through all the memory, and the receiver follows
//! it. Order does not depend on when either side notices what, and a message that is being read is
//! never moved. The sender needs no answer to divert, and a launched message no longer depends on
//! its sender.
//!
//! A message that does not fit into home goes to a segment of its own, made of as many usual
//! segments in a row as it needs: a power of two, given by the word that leads there. So its
//! payload is written once and read where it lies, at any length.
//!
//! Some segments ([`QueueMemory::SPARES`]) are *spares*. A sender prefers a spare, and neither side
//! gives up a spare's pages or mapping after each use, which would cost more than all that is
//! written there. The sender gives the memory of spares back to the machine with
//! [`Outgoing::shrink`].
//!
//! Nothing is overwritten unread in a segment either. Its memory is reused only after the receiver
//! has reported, by the same kind of word, that it has left the segment. Home is empty when the
//! sender goes back to it, since the receiver has passed the word that led away. The sender sets
//! that word to 0 before it releases the word that leads back.
//!
//! `tests/models/loom_direct.rs` is the model.
//!
//! # Peers
//! The receiver trusts nothing: a header that makes no sense, or is out of sequence, is a
//! [`Violation`], and remains one. A payload may change while it is read, so a receiver copies what
//! it checks first. The sender accepts from the receiver's words only what can be true. A word that
//! is too small stops the sender, but a receiver can stop it anyway.

#[cfg(not(loom))]
mod handed;
mod incoming;
mod outgoing;
#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(not(loom))]
pub use handed::{HandedPayload, HandedPayloads};
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

/// Set in a message header, and in no other word.
const MESSAGE: u64 = 1 << 63;
/// The message lies at the beginning of home; in a header, its payload was handed over.
const WRAP: u64 = 1 << 62;
/// The queue goes on at home.
const HOME: u64 = 1 << 61;
/// The queue goes on in the segment whose number is in the lower bits. The binary logarithm of its
/// length is above them.
const SEGMENT: u64 = 1 << 60;
const SEGMENT_LENGTH: u32 = 52;
/// Bit position of the spare that the segment lies in: 0 for none, or its number plus one.
const SEGMENT_SPARE: u32 = 44;
/// Mask of the message count in a header.
const SEQUENCE: u64 = 0x3fff;

/// A message's header: its handler, its bytes of payload, and its count.
const fn header(handler: u16, len: u32, count: u64) -> u64 {
    MESSAGE | (count & SEQUENCE) << 48 | (handler as u64) << 32 | len as u64
}

/// Words of a message with `len` bytes of payload, its header included.
const fn words_of(len: usize) -> u64 {
    1 + len.div_ceil(8) as u64
}

/// What a sender that diverts goes on in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextSegment {
    /// A spare, whose pages are there.
    Spare,
    /// New memory: the receiver has left no spare yet.
    New,
    /// Memory of its own, because the message does not fit into a spare.
    Own,
}

/// The memory of a queue, as one of its ends sees it.
pub trait QueueMemory {
    /// Home, or a segment.
    type Words: Deref<Target = [AtomicU64]> + fmt::Debug;
    /// The receiver's words.
    type Told: Deref<Target = ReceiverProgress> + fmt::Debug;

    /// Maximum number of segments of the usual length at a time, spares included: at least two.
    const SEGMENTS: u64;

    /// Number of those that are spares: at most 254.
    const SPARES: usize;

    /// The queue's own memory: a power of two of words, from 4 to 2^29.
    fn home(&self) -> Self::Words;

    /// The words in which the receiver reports what it has disposed of.
    fn told(&self) -> Self::Told;

    /// Words of a segment: a power of two, at least as many as home has, and at most 2^26.
    fn segment_words(&self) -> u64;

    /// A segment. For the sender: the receiver has left the segments whose place it takes.
    ///
    /// # Errors
    /// The memory is not available; then nothing has changed.
    fn segment(&mut self, place: SegmentLocation) -> io::Result<Self::Words>;

    /// Notes that the receiver has left a segment.
    ///
    /// The segment's memory may go back to the machine, unless it is a spare.
    fn leave(&mut self, place: SegmentLocation);

    /// Notes that the memory of an unused spare may go back to the machine.
    fn shrink(&mut self, spare: u8);

    /// Returns `true` if the receiver enters and leaves the segment without allocation.
    ///
    /// Then neither step allocates or frees anything on this side.
    fn is_at_hand(&self, _: SegmentLocation) -> bool {
        false
    }

    /// The list of payloads that the sender hands over, for a receiver in its process.
    #[cfg(not(loom))]
    fn handed(&self) -> Option<std::sync::Arc<HandedPayloads>> {
        None
    }

    /// Notes that the sender has gone to a segment or home, for statistics.
    ///
    /// `sent` messages were sent before, and `segments` segments are used by now.
    fn sender_moved(&self, _sent: u64, _is_away: bool, _segments: u64) {}

    /// Notes that the receiver has reported progress or moved, for statistics.
    ///
    /// `taken` messages were taken, and `left` segments left.
    fn receiver_told(&self, _taken: u64, _left: u64) {}
}

/// Where a segment lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentLocation {
    /// In its place in the row of segments, and in as many after it as belong to it. Segments whose
    /// numbers are equal modulo [`SEGMENTS`](QueueMemory::SEGMENTS) share a place. A long segment
    /// does not wrap around the end.
    Row {
        /// Its number, counted since the queue was made.
        number: u64,
        /// Number of usual segments it is made of.
        many: u64,
    },
    /// In the spare of this number.
    Spare(u8),
}

/// What the receiver has disposed of, in a line that it alone writes.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ReceiverProgress {
    /// Number of words disposed of at home since the queue was made.
    disposed: AtomicU64,
    /// The place in the segments; see [`place`].
    diverted: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<ReceiverProgress>() == 64);

// SAFETY: atomics and padding only, `repr(C)`, no drop.
#[cfg(not(loom))]
unsafe impl Cells for ReceiverProgress {}

/// Why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendRefusal {
    /// There is no room until the receiver has disposed of more, or the sender diverts.
    Full,
    /// It does not fit into the queue: use [`divert_for`](Outgoing::divert_for).
    Outsized,
    /// It is longer than any segment.
    TooLong {
        /// Maximum number of bytes of payload.
        most: usize,
    },
    /// The receiver reports as disposed of what was never sent, or takes back what it has reported.
    Violation,
}

impl fmt::Display for SendRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str(
                "the queue is full; \
                 send again when its receiver has taken some",
            ),
            Self::Outsized => f.write_str(
                "the message does not fit into the queue; it needs a segment of its own",
            ),
            Self::TooLong { most } => write!(
                f,
                "the message is longer than {most} bytes; \
                 send it in parts"
            ),
            Self::Violation => {
                f.write_str("the receiver reports taking what was never sent; do not trust it")
            }
        }
    }
}

impl std::error::Error for SendRefusal {}

/// How a sender broke the layout. Nothing more can be received from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A word in a header's place is no header.
    NoHeader(u64),
    /// A message is longer than the rest of the memory, or than the queue takes.
    Length(u32),
    /// A message is not the next one; this count was found.
    Sequence(u16),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHeader(word) => write!(f, "{word:#x} is not a message header"),
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
    /// The next message lies in a segment that this side could not map. Nothing is lost: probe
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

/// Maximum number of words of a piece of memory: a header has 32 bits for the length in bytes.
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

    /// Number of words from a position to the end of the memory.
    #[inline(always)]
    fn left(&self, position: u64) -> u64 {
        self.capacity() - (position & self.mask)
    }

    /// The payload of the message of `size` words at `position`.
    #[cfg(not(loom))]
    #[inline]
    fn payload(&self, position: u64, size: u64) -> NonNull<u8> {
        let first = self.index(position) + 1;
        NonNull::from(&self.words[first..first + size as usize - 1]).cast()
    }
}

/// Words of the longest message, its header included. It fits into an empty home, at any position
/// of the next message.
const fn longest(home: u64) -> u64 {
    home / 2
}

/// Words of the longest segment: 1 GiB.
const LONGEST_SEGMENT: u64 = 1 << 27;

/// Distance between the place numbers of one segment and those of the next. It is so large that "in
/// it, with all disposed of" differs from "left", however long the segment is. It leaves 2^36
/// segments of the usual length, or 64 PiB of diverted messages for one pair.
const STRIDE: u64 = 2 * LONGEST_SEGMENT;

/// The number of a place in the segments. The beginning of the first segment is not 0, since a
/// receiver there has left home.
const fn place(segment: u64, next: u64) -> u64 {
    segment * STRIDE + next + 1
}

/// The number of the first of `many` segments in a row, if those before `next` are in use. They do
/// not wrap around the end.
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

    /// The segment after those before `next`, for a message of `size` words; `None` if it is too
    /// long.
    fn of(size: u64, words: u64, next: u64, segments: u64) -> Option<Self> {
        // One more, for the word that follows the message.
        let many = (size + 1).div_ceil(words).next_power_of_two();
        Self::checked(many, words, next, segments)
    }

    fn checked(many: u64, words: u64, next: u64, segments: u64) -> Option<Self> {
        let fits = many <= Self::most(words, segments);
        fits.then(|| Self { first: first_of(next, many, segments), many, spare: None })
    }

    /// Maximum number of segments in a row. The next row then has room beside the row that is
    /// still read, at any position of that row.
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

    /// The segment that a word leads to; `None` if the word is not valid.
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

    fn place(self) -> SegmentLocation {
        match self.spare {
            Some(spare) => SegmentLocation::Spare(spare),
            None => SegmentLocation::Row { number: self.first, many: self.many },
        }
    }

    /// The number of the next segment.
    fn next(self) -> u64 {
        self.first + self.many
    }

    /// The number of the place after its end.
    fn end(self) -> u64 {
        self.next() * STRIDE
    }
}

/// Home, while the queue goes on in a segment. The word that leads away is at `next`.
#[derive(Debug)]
struct DivertedHome<W> {
    home: Area<W>,
    next: u64,
}
