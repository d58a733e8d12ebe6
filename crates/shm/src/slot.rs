//! A slot: one message in one cache line.
//!
//! ```text
//!           63      48 47      32 31      16 15       0
//!  word 0  |v|  lap   |   call   |    tag   |  astack  |   the control word: released last
//!  word 1  |dstr place| segment |       length       |   where the values are, and how long
//!  words 2 to 7   the values themselves, when they fit in 48 bytes
//! ```
//!
//! `v` is set if the other words are valid: a message without values is one store. `lap` is how
//! often the ring has gone round, which makes the slot valid: the reader knows which lap it
//! expects, so no index is shared. `call` is the caller's number of the call, echoed in the reply.
//! `tag` is the procedure in a request and the outcome in a reply. A null call moves this one line
//! to the server and one back, which is the least that two processors can do.
//!
//! `d` says that the sender's processor comes with the message, and `s` asks the receiver to yield
//! rather than sleep when all is answered. `t` says that the last word is the time at which the
//! caller gives the call up; then the slot has room for 40 bytes of values. `r` asks the receiver
//! to rest when all is answered.

use crate::region::Cells;
use std::hint::black_box;
use upcall_os::atomic::{AtomicU64, Ordering};

/// Maximum number of bytes of values in a slot.
pub const INLINE: usize = 48;

/// Maximum number of bytes of values in a slot that has a deadline.
pub const TIMED_INLINE: usize = INLINE - 8;

const INLINE_WORDS: usize = INLINE / 8;

/// One message in one cache line; see the module.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Slot {
    control: AtomicU64,
    rest: [AtomicU64; 7],
}

// SAFETY: atomics only, `repr(C)`, every bit pattern valid, no drop.
unsafe impl Cells for Slot {}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == 64 && align_of::<Slot>() == 64);

/// Where the values of a message are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ValueLocation {
    /// In the slot.
    Inline = 0,
    /// In the A-stack that the control word names.
    AStack = 1,
    /// At the start of the segment that word 1 names; word 2 has their length.
    Segment = 2,
}

/// A private copy of a slot.
///
/// The slot is read once, so what is checked is what is used.
#[derive(Clone, Copy, Debug)]
pub struct SlotMessage {
    control: u64,
    extent: u64,
    /// The values, if they are in the slot.
    pub values: [u64; INLINE_WORDS],
}

const DONATED: u64 = 1 << 63;
const STAY: u64 = 1 << 62;
const TIMED: u64 = 1 << 61;
const REST: u64 = 1 << 60;
const FLAGS: u64 = DONATED | STAY | TIMED | REST;

/// Set in the control word if there are values.
const VALUES: u64 = 1 << 63;

/// Mask of a lap.
const LAP: u16 = 0x7fff;

/// The A-stack number that means none.
pub const NO_ASTACK: u16 = u16::MAX;

impl SlotMessage {
    /// A message without values.
    #[inline]
    pub const fn new(call: u16, tag: u16, astack: u16) -> Self {
        let control = (call as u64) << 32 | (tag as u64) << 16 | astack as u64;
        Self { control, extent: 0, values: [0; INLINE_WORDS] }
    }

    /// Sets where the values are, their length in bytes, and their segment.
    ///
    /// Segment 0 means none.
    #[inline]
    pub const fn place(&mut self, place: ValueLocation, segment: u16, len: u32) {
        self.extent = (place as u64) << 48 | (segment as u64) << 32 | len as u64;
    }

    /// Sets the caller's number of the call.
    #[inline]
    pub fn set_call(&mut self, call: u16) {
        // Stores the whole word. After a store of only the part that changes, the load of the whole
        // word that follows would wait until all earlier stores are out.
        self.control = black_box(self.control & !(0xffff << 32) | u64::from(call) << 32);
    }

    /// Sets the time at which the caller gives the call up, of `upcall_os::clock`.
    ///
    /// To be called last, and only with at most [`TIMED_INLINE`] bytes of values in the slot.
    #[inline]
    pub const fn set_deadline(&mut self, stamp: u64) {
        self.values[INLINE_WORDS - 1] = stamp;
        self.extent |= TIMED;
    }

    /// The time at which the caller gives the call up, if any.
    #[inline]
    pub const fn deadline(&self) -> Option<u64> {
        if self.extent & TIMED == 0 { None } else { Some(self.values[INLINE_WORDS - 1]) }
    }

    /// Flags that the sender gave the receiver its processor.
    ///
    /// The sender sleeps until the reply.
    #[inline]
    pub const fn donate(&mut self) {
        self.extent |= DONATED;
    }

    /// Returns `true` if the sender's processor came with the message.
    #[inline]
    pub const fn donated(&self) -> bool {
        self.extent & DONATED != 0
    }

    /// Asks the receiver to yield, rather than sleep, when all is answered.
    ///
    /// The receiver runs on the sender's processor.
    #[inline]
    pub const fn ask_to_stay(&mut self) {
        self.extent |= STAY;
    }

    /// Returns `true` if the receiver is asked to yield rather than sleep.
    #[inline]
    pub const fn asks_to_stay(&self) -> bool {
        self.extent & STAY != 0
    }

    /// Asks the receiver not to poll for further messages when all is answered.
    ///
    /// Others have more use for the receiver's own processor.
    #[inline]
    pub const fn ask_to_rest(&mut self) {
        self.extent |= REST;
    }

    /// Returns `true` if the receiver is asked to rest rather than poll.
    #[inline]
    pub const fn asks_to_rest(&self) -> bool {
        self.extent & REST != 0
    }

    /// The caller's number of the call.
    #[inline]
    pub const fn call(&self) -> u16 {
        (self.control >> 32) as u16
    }

    /// The procedure (request), or the outcome (reply).
    #[inline]
    pub const fn tag(&self) -> u16 {
        (self.control >> 16) as u16
    }

    /// The A-stack, or [`NO_ASTACK`].
    #[inline]
    pub const fn astack(&self) -> u16 {
        self.control as u16
    }

    /// Where the values are; `None` for a place that does not exist.
    #[inline]
    pub const fn values_in(&self) -> Option<ValueLocation> {
        match (self.extent & !FLAGS) >> 48 {
            0 => Some(ValueLocation::Inline),
            1 => Some(ValueLocation::AStack),
            2 => Some(ValueLocation::Segment),
            _ => None,
        }
    }

    /// The segment that goes with the message; 0 if none.
    #[inline]
    pub const fn segment(&self) -> u16 {
        (self.extent >> 32) as u16
    }

    /// Number of bytes of values, in the slot or the A-stack.
    #[inline]
    pub const fn len(&self) -> usize {
        self.extent as u32 as usize
    }

    /// Number of words after the extent that are valid.
    #[inline]
    const fn words(&self) -> usize {
        if self.extent & TIMED == 0
            && (self.extent & !FLAGS) >> 48 == ValueLocation::Inline as u64
            && self.len() < INLINE
        {
            self.len().div_ceil(8)
        } else {
            INLINE_WORDS
        }
    }

    /// Returns `true` if there are no values.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Slot {
    /// Returns `true` if the slot holds the message of this lap; acquires it then.
    #[inline]
    pub(crate) fn holds(&self, lap: u16) -> bool {
        (self.control.load(Ordering::Acquire) >> 48) as u16 & LAP == lap & LAP
    }

    /// The tag of the message of this lap, if it is there.
    #[inline]
    pub(crate) fn tag(&self, lap: u16) -> Option<u16> {
        let control = self.control.load(Ordering::Acquire);
        ((control >> 48) as u16 & LAP == lap & LAP).then_some((control >> 16) as u16)
    }

    /// Copies the message of this lap into `image`.
    ///
    /// Returns `false`, and does nothing, if it is not there.
    ///
    /// If the message has no values, those of `image` stay. After its last value, `image` may hold
    /// what an earlier message had there.
    ///
    /// The copy is made in place: an image that is written word by word and then moved by vectors
    /// makes the processor wait for its own stores.
    #[inline]
    pub(crate) fn read(&self, lap: u16, image: &mut SlotMessage) -> bool {
        let control = self.control.load(Ordering::Acquire);
        if (control >> 48) as u16 & LAP != lap & LAP {
            return false;
        }
        image.control = control & 0xffff_ffff_ffff;
        image.extent = 0;
        if control & VALUES != 0 {
            image.extent = self.rest[0].load(Ordering::Relaxed);
            for (value, word) in image.values.iter_mut().zip(&self.rest[1..]) {
                *value = word.load(Ordering::Relaxed);
            }
        }
        true
    }

    /// Writes the message and publishes it for this lap.
    #[inline]
    pub(crate) fn write(&self, image: &SlotMessage, lap: u16) {
        let mut control = image.control | ((lap & LAP) as u64) << 48;
        if image.extent != 0 {
            // The receiver reads this line all the time. Each store that it can see separately
            // would cost a transfer, so only the valid words are stored.
            control |= VALUES;
            self.rest[0].store(image.extent, Ordering::Relaxed);
            for (word, value) in self.rest[1..].iter().zip(&image.values).take(image.words()) {
                word.store(*value, Ordering::Relaxed);
            }
        }
        self.control.store(control, Ordering::Release);
    }

    /// Prefetches the line.
    #[inline]
    pub(crate) fn prefetch(&self) {
        #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
        // SAFETY: a prefetch of any address has no effect that a program can see.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
                (&raw const self.control).cast(),
            );
        }
    }
}

/// A message at rest, in its reader's own memory.
///
/// It is copied word by word. A copy in larger pieces would load what was just stored in words. For
/// that the processor would wait until all its stores are out, among them those of messages, whose
/// lines it does not have.
#[derive(Debug, Default)]
pub struct StoredMessage {
    // The compiler does not merge accesses to atomics.
    control: StoredWord,
    extent: StoredWord,
    values: [StoredWord; INLINE_WORDS],
}

type StoredWord = std::sync::atomic::AtomicU64;
const RELAXED: std::sync::atomic::Ordering = std::sync::atomic::Ordering::Relaxed;

impl StoredMessage {
    /// Stores `image`.
    #[inline]
    pub fn write(&self, image: &SlotMessage) {
        self.control.store(image.control, RELAXED);
        self.extent.store(image.extent, RELAXED);
        if image.extent != 0 {
            for (word, value) in self.values.iter().zip(&image.values) {
                word.store(*value, RELAXED);
            }
        }
    }

    /// Loads the message into `image`.
    ///
    /// Values that the message does not have stay as they were.
    #[inline]
    pub fn read(&self, image: &mut SlotMessage) {
        image.control = self.control.load(RELAXED);
        image.extent = self.extent.load(RELAXED);
        if image.extent != 0 {
            for (value, word) in image.values.iter_mut().zip(&self.values) {
                *value = word.load(RELAXED);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
