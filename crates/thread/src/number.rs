//! Numbers of threads and of waits, never used twice in the life of the process.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Starts at 16, since the first few values have meanings of their own in `Record::ticket` and
/// `Record::token`.
static NUMBERS: AtomicU64 = AtomicU64::new(16);

/// Number of numbers that a processor draws at once.
const BLOCK: u64 = 4096;

/// Draws a fresh number.
pub(crate) fn draw() -> u64 {
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

/// The fresh numbers of one processor.
#[derive(Default)]
pub(crate) struct NumberBlock {
    next: Cell<u64>,
    end: Cell<u64>,
}

impl NumberBlock {
    #[inline(always)]
    pub(crate) fn next(&self) -> u64 {
        let next = self.next.get();
        let next = if next == self.end.get() { self.draw_block() } else { next };
        self.next.set(next + 1);
        next
    }

    #[cold]
    fn draw_block(&self) -> u64 {
        let first = NUMBERS.fetch_add(BLOCK, Ordering::Relaxed);
        self.end.set(first + BLOCK);
        first
    }
}
