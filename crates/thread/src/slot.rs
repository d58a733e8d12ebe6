//! The slot of one stack: its parts, its sizes, and where its record lies.
//!
//! ```text
//! one slot                                                  (addresses grow to the right)
//! ┌────────────┬──────────────────────────────────────┬──────────┬────────┬──────────────┐
//! │ guard page │ stack, growing down ◄────────────────│ closure  │ record │ colour       │
//! │ (faults)   │                                      │ + result │ 128 B  │ 0..960 B     │
//! └────────────┴──────────────────────────────────────┴──────────┴────────┴──────────────┘
//!  4 KiB         16 KiB << class, 64 KiB by default, 1 MiB for workers
//! ```
//! **Colour.** The tops of equal slots would all fall on the same few cache sets, so records are
//! shifted by a multiple of 64 bytes. A slot is an odd number of pages (the guard makes it so), to
//! avoid the same conflict in the address cache.

use crate::record::{Rec, Record};
use std::io;

/// Usable bytes of the smallest class.
const SMALLEST: usize = 16 * 1024;
/// Number of size classes. The sizes are `SMALLEST << class`, up to 256 MiB.
pub(crate) const CLASSES: usize = 15;
pub(crate) const COLOURS: usize = 16;
pub(crate) const COLOUR_STEP: usize = 64;
/// Bytes of a stack that the record, its colour, and an ordinary closure with its result may take.
const OVERHEAD: usize = 2048;
/// Bytes that closure and result may take before the thread gets a larger stack for them.
pub(crate) const ORDINARY_PACKET: usize = 512;
const _: () = assert!(size_of::<Record>() + COLOURS * COLOUR_STEP <= OVERHEAD);

/// The class for a stack of `size` bytes with `packet` bytes of closure and result.
#[inline(always)]
pub(crate) fn class_for(size: usize, packet: usize) -> io::Result<u8> {
    // Eight times: on its way in and out, a large value is copied through several frames, above all
    // in unoptimised code.
    let bytes = size.saturating_add(packet.saturating_sub(ORDINARY_PACKET).saturating_mul(8));
    (0..CLASSES).find(|&class| bytes <= SMALLEST << class).map(|class| class as u8).ok_or_else(
        || {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "a stack of {bytes} bytes was asked for; the largest is {} bytes",
                    SMALLEST << (CLASSES - 1)
                ),
            )
        },
    )
}

pub(crate) const fn usable(class: u8) -> usize {
    SMALLEST << class as usize
}

/// The record of a slot whose lowest usable address is `bottom`.
#[inline(always)]
pub(crate) fn record_at(bottom: *mut u8, colour: usize, usable: usize) -> *mut Record {
    bottom.wrapping_add(usable - size_of::<Record>() - colour * COLOUR_STEP).cast()
}

/// Usable bytes of a thread's stack.
pub(crate) fn size(rec: Rec) -> usize {
    usable(rec.class.get())
}

/// Where the stack below the record begins: aligned to 64.
#[inline(always)]
pub(crate) fn top(rec: Rec) -> *mut u8 {
    // The record's own address, by a pointer that may be used for the memory below it.
    let top = rec.bottom.get().with_addr(std::ptr::from_ref(rec).addr());
    debug_assert_eq!(
        top,
        record_at(rec.bottom.get(), usize::from(rec.colour.get()), size(rec)).cast()
    );
    top
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_the_least_that_fit() {
        const SIZE: usize = 64 * 1024;
        assert_eq!(class_for(0, 0).unwrap(), 0);
        assert_eq!(usable(class_for(SIZE, 0).unwrap()), SIZE);
        assert_eq!(usable(class_for(SIZE + 1, 0).unwrap()), 2 * SIZE);
        assert_eq!(usable(class_for(SIZE, ORDINARY_PACKET + 1).unwrap()), 2 * SIZE);
        assert_eq!(class_for(usize::MAX, 1).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
