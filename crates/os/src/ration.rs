//! An allocator for tests that refuses one allocation, and counts live ones.
//!
//! A test's program has [`Rationed`] as its global allocator. [`refuse`] selects the allocation
//! that fails: the n-th from then on of those that have at least a given number of bytes. Rust's
//! collections abort if they cannot allocate a small node, so tests set a lower bound. [`held`]
//! returns how much the program has allocated and not freed. Unlike the memory that the kernel
//! counts, that is the same each time, since pages that the system's allocator keeps do not count.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};

/// The system's allocator, with [`refuse`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Rationed;

/// Minimum size of an allocation that counts, in bytes.
static LEAST: AtomicUsize = AtomicUsize::new(usize::MAX);
/// The number of the allocation that fails, from 1.
static NTH: AtomicUsize = AtomicUsize::new(usize::MAX);
static SEEN: AtomicUsize = AtomicUsize::new(0);
static REFUSED: AtomicBool = AtomicBool::new(false);
static BLOCKS: AtomicIsize = AtomicIsize::new(0);
static BYTES: AtomicIsize = AtomicIsize::new(0);

/// The allocations of a program that are not freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveAllocations {
    /// Number of blocks.
    pub blocks: usize,
    /// Their sizes together, in bytes.
    pub bytes: usize,
}

/// The live allocations of this program; none if [`Rationed`] is not its allocator.
pub fn held() -> LiveAllocations {
    let read = |counter: &AtomicIsize| counter.load(Ordering::Relaxed).max(0) as usize;
    LiveAllocations { blocks: read(&BLOCKS), bytes: read(&BYTES) }
}

/// Counts a block that was made (1), freed (-1) or resized (0), unless the allocation failed.
fn count(block: *mut u8, blocks: isize, bytes: isize) -> *mut u8 {
    if !block.is_null() {
        BLOCKS.fetch_add(blocks, Ordering::Relaxed);
        BYTES.fetch_add(bytes, Ordering::Relaxed);
    }
    block
}

/// What happened since [`refuse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RationOutcome {
    /// Number of allocations that counted.
    pub seen: usize,
    /// `true` if one was refused.
    pub refused: bool,
}

/// Refuses the `nth` allocation (from 1) of at least `least` bytes, in any thread.
///
/// A growing block counts with its new size.
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

// SAFETY: each block comes from the system's allocator and goes back to it, with the caller's
// layout. A null pointer means that there is no memory, and no block was made or changed.
unsafe impl GlobalAlloc for Rationed {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_refused(layout.size()) {
            return ptr::null_mut();
        }
        // SAFETY: the caller promises of `layout` what the system's allocator requires.
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
