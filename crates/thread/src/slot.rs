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
//! **Colour.** The tops of equal slots would fall on the same few cache sets, so records are
//! shifted by a multiple of 64 bytes. For the same reason with the address cache, a slot is an odd
//! number of pages (its guard makes it so).

use crate::record::{Rec, Record};
use std::io;

/// The usable bytes of the smallest class.
const SMALLEST: usize = 16 * 1024;
/// Sizes are `SMALLEST << class`, up to 256 MiB.
pub(crate) const CLASSES: usize = 15;
pub(crate) const COLOURS: usize = 16;
pub(crate) const COLOUR_STEP: usize = 64;
/// What of a stack the record, its colour, and an ordinary closure with its result may take.
const OVERHEAD: usize = 2048;
/// What closure and result may take without the thread getting a larger stack for it.
pub(crate) const ORDINARY_PACKET: usize = 512;
const _: () = assert!(size_of::<Record>() + COLOURS * COLOUR_STEP <= OVERHEAD);

/// The class for a stack of `size` bytes with `packet` bytes of closure and result.
#[inline(always)]
pub(crate) fn class_for(size: usize, packet: usize) -> io::Result<u8> {
    // Eight times: on its way in and out a large value is copied through frames, above all in
    // unoptimised code.
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

/// The record of a slot with this lowest usable address.
#[inline(always)]
pub(crate) fn record_at(bottom: *mut u8, colour: usize, usable: usize) -> *mut Record {
    bottom.wrapping_add(usable - size_of::<Record>() - colour * COLOUR_STEP).cast()
}

/// The usable bytes of a thread's stack.
pub(crate) fn size(rec: Rec) -> usize {
    usable(rec.class.get())
}

/// Where the stack below the record begins: aligned to 64.
#[inline(always)]
pub(crate) fn top(rec: Rec) -> *mut u8 {
    // The record's own address, by a pointer that may be used for what is below.
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
