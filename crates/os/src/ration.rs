//! An allocator that refuses one allocation, and counts what is held, for tests.
//!
//! A test's program has [`Rationed`] as its global allocator. [`refuse`] says which allocation
//! fails: the n-th from then on of those that have at least a given number of bytes. Rust's
//! collections abort where a small node of theirs cannot be had, so tests set a lower bound.
//! [`held`] says how much the program has allocated and not freed: unlike the memory that the
//! kernel counts, that is the same each time: pages that the system's allocator keeps do not count.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};

/// The system's allocator, with [`refuse`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Rationed;

/// Bytes from which on an allocation counts.
static LEAST: AtomicUsize = AtomicUsize::new(usize::MAX);
/// The number of the allocation that fails, from 1.
static NTH: AtomicUsize = AtomicUsize::new(usize::MAX);
static SEEN: AtomicUsize = AtomicUsize::new(0);
static REFUSED: AtomicBool = AtomicBool::new(false);
static BLOCKS: AtomicIsize = AtomicIsize::new(0);
static BYTES: AtomicIsize = AtomicIsize::new(0);

/// What a program has allocated and not freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveAllocations {
    /// Number of blocks.
    pub blocks: usize,
    /// Their sizes together, in bytes.
    pub bytes: usize,
}

/// What this program holds now; nothing if [`Rationed`] is not its allocator.
pub fn held() -> LiveAllocations {
    let read = |counter: &AtomicIsize| counter.load(Ordering::Relaxed).max(0) as usize;
    LiveAllocations { blocks: read(&BLOCKS), bytes: read(&BYTES) }
}

/// Counts a block that was made (1), freed (-1) or resized (0), unless it could not be had.
fn count(block: *mut u8, blocks: isize, bytes: isize) -> *mut u8 {
    if !block.is_null() {
        BLOCKS.fetch_add(blocks, Ordering::Relaxed);
        BYTES.fetch_add(bytes, Ordering::Relaxed);
    }
    block
}

/// What has happened since [`refuse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RationOutcome {
    /// Number of allocations that counted.
    pub seen: usize,
    /// Whether one was refused.
    pub refused: bool,
}

/// Refuses the `nth` allocation (from 1) of at least `least` bytes, in any thread. Growing counts
/// with the new size.
pub fn refuse(nth: usize, least: usize) {
    lift();
    NTH.store(nth, Ordering::SeqCst);
    LEAST.store(least, Ordering::SeqCst);
}

/// Refuses nothing from now on.
pub fn lift() -> RationOutcome {
    LEAST.store(usize::MAX, Ordering::SeqCst);
    RationOutcome {
        seen: SEEN.swap(0, Ordering::SeqCst),
        refused: REFUSED.swap(false, Ordering::SeqCst),
    }
}

fn is_refused(bytes: usize) -> bool {
    if bytes < LEAST.load(Ordering::Relaxed) {
        return false;
    }
    let is_it = SEEN.fetch_add(1, Ordering::SeqCst) + 1 == NTH.load(Ordering::SeqCst);
    if is_it {
        REFUSED.store(true, Ordering::SeqCst);
    }
    is_it
}

// SAFETY: each block comes from the system's allocator and goes back to it, with the layout that
// the caller gave; a null pointer says that there is no memory, and no block was made or changed.
unsafe impl GlobalAlloc for Rationed {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_refused(layout.size()) {
            return ptr::null_mut();
        }
        // SAFETY: what the caller promises of `layout` is what the system's allocator asks for.
        count(unsafe { System.alloc(layout) }, 1, layout.size() as isize)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_refused(layout.size()) {
            return ptr::null_mut();
        }
        // SAFETY: as in `alloc`.
        count(unsafe { System.alloc_zeroed(layout) }, 1, layout.size() as isize)
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if bytes > layout.size() && is_refused(bytes) {
            return ptr::null_mut();
        }
        // SAFETY: `block` came from the system's allocator, with this layout; the caller promises
        // the rest.
        count(
            unsafe { System.realloc(block, layout, bytes) },
            0,
            bytes as isize - layout.size() as isize,
        )
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(block, -1, -(layout.size() as isize));
        // SAFETY: `block` came from the system's allocator, with this layout.
        unsafe { System.dealloc(block, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_that_is_asked_for_is_refused() {
        refuse(2, 1000);
        let sizes = [999, 1000, 5000, 1000].map(is_refused);
        assert_eq!(sizes, [false, false, true, false]);
        assert_eq!(lift(), RationOutcome { seen: 3, refused: true });
        assert!(!is_refused(1 << 20));
        assert_eq!(lift(), RationOutcome { seen: 0, refused: false });
    }
}
