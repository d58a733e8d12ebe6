//! Numbers that are never used twice in the life of the process: of threads, and of waits.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// The first few are words of their own in `Record::ticket` and `Record::token`.
static NUMBERS: AtomicU64 = AtomicU64::new(16);

/// Number of numbers that a processor draws at once.
const BLOCK: u64 = 4096;

/// A fresh number.
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
    /// The next one.
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
