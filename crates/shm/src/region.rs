//! A region: mapped shared memory, and typed views of the words in it.

use crate::span::{Span, WritableSpan};
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use upcall_os::atomic::{AtomicU64, Ordering};
use upcall_os::memory::Mapping;

/// Types that may be viewed in memory that a peer writes at the same time.
///
/// # Safety
/// The type consists of the crate's atomics and padding only, every bit pattern is valid, it is
/// `repr(C)` and it needs no drop.
pub unsafe trait Cells: Sync + 'static {}

// SAFETY: an atomic.
unsafe impl Cells for AtomicU64 {}

/// Shared memory that this side may write. Views keep it mapped.
#[derive(Debug)]
pub struct Region(Mapping);

impl Region {
    /// Takes over a writable mapping; `None` if it is read-only.
    pub fn new(mapping: Mapping) -> Option<Arc<Self>> {
        mapping.writable().then(|| Arc::new(Self(mapping)))
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `false`: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The `len` bytes from `at`; `None` if they do not lie within.
    #[inline]
    pub fn room(&self, at: usize, len: usize) -> Option<WritableSpan<'_>> {
        let end = at.checked_add(len)?;
        if end > self.0.len() {
            return None;
        }
        // SAFETY: `at <= len()`, so the address stays within the mapping or one past its end.
        let start = unsafe { self.0.start().add(at) };
        // SAFETY: the range lies within a writable mapping that lives as long as `self`, and shared
        // memory is only ever touched through this crate's atomic or opaque accesses.
        Some(unsafe { WritableSpan::new(start, len) })
    }

    /// Views one `T` at `at`; `None` if it does not lie within, or is not aligned.
    pub fn view<T: Cells>(self: &Arc<Self>, at: usize) -> Option<RegionView<T>> {
        let start = self.cells::<T>(at, 1)?;
        Some(RegionView { cells: start, region: self.clone() })
    }

    /// Views `count` consecutive `T` at `at`; `None` as for [`view`](Self::view).
    pub fn view_slice<T: Cells>(
        self: &Arc<Self>,
        at: usize,
        count: usize,
    ) -> Option<RegionView<[T]>> {
        let start = self.cells::<T>(at, count)?;
        Some(RegionView {
            cells: NonNull::slice_from_raw_parts(start, count),
            region: self.clone(),
        })
    }

    fn cells<T: Cells>(&self, at: usize, count: usize) -> Option<NonNull<T>> {
        let bytes = size_of::<T>().checked_mul(count)?;
        let start = self.room(at, bytes)?.start().cast::<T>();
        start.is_aligned().then_some(start)
    }
}

/// Shared memory that a peer writes, and that this side only reads.
#[derive(Debug)]
pub struct ReadOnlyRegion(Mapping);

impl ReadOnlyRegion {
    /// Takes over a mapping.
    pub fn new(mapping: Mapping) -> Self {
        Self(mapping)
    }

    /// The `len` bytes from `at`; `None` if they do not lie within.
    #[inline]
    pub fn span(&self, at: usize, len: usize) -> Option<Span<'_>> {
        // SAFETY: the mapping lives as long as `self`; others write to it from other processes, or
        // by this crate's atomics and opaque copies.
        unsafe { Span::new(self.0.start(), self.0.len()) }.part(at, len)
    }

    /// Loads the word at byte `at` with acquire.
    ///
    /// # Panics
    /// The word does not lie within, or `at` is not a multiple of 8.
    pub fn word(&self, at: usize) -> u64 {
        assert!(
            at.is_multiple_of(8) && at < self.0.len() && self.0.len() - at >= 8,
            "word {at} of {} bytes",
            self.0.len()
        );
        // SAFETY: `at` lies within the mapping.
        let word = unsafe { self.0.start().add(at) }.cast::<AtomicU64>();
        // SAFETY: the mapping is page-aligned and lives as long as `self`, `at` is a multiple of
        // the alignment, and the word is only loaded: others may write it.
        unsafe { word.as_ref() }.load(Ordering::Acquire)
    }
}

/// A view of `T` in a region; keeps the region mapped.
pub struct RegionView<T: ?Sized> {
    cells: NonNull<T>,
    region: Arc<Region>,
}

// SAFETY: `T` is `Cells`, hence `Sync`, and the mapping belongs to the process.
unsafe impl<T: ?Sized + Sync> Send for RegionView<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Sync> Sync for RegionView<T> {}

impl<T: ?Sized> Deref for RegionView<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the constructor checked bounds and alignment, `region` keeps it mapped, and `T:
        // Cells` permits writes by others.
        unsafe { self.cells.as_ref() }
    }
}

impl<T: ?Sized> Clone for RegionView<T> {
    fn clone(&self) -> Self {
        Self { cells: self.cells, region: self.region.clone() }
    }
}

impl<T: ?Sized> fmt::Debug for RegionView<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegionView({:p})", self.cells)
    }
}

#[cfg(all(test, not(miri), not(loom)))]
mod tests {
    use super::*;
    use crate::slot::Slot;
    use upcall_os::memory::MemoryFile;

    fn region(len: usize) -> Arc<Region> {
        Region::new(Mapping::shared(&MemoryFile::create("t", len).unwrap()).unwrap()).unwrap()
    }

    #[test]
    fn views_stay_within_and_aligned() {
        let region = region(4096);
        assert!(region.view::<Slot>(0).is_some());
        assert!(region.view::<Slot>(4096 - 64).is_some());
        assert!(region.view::<Slot>(4096 - 63).is_none());
        assert!(region.view::<Slot>(8).is_none());
        assert!(region.view_slice::<Slot>(64, 63).is_some());
        assert!(region.view_slice::<Slot>(64, 64).is_none());
        assert!(region.view_slice::<Slot>(0, usize::MAX / 2).is_none());
        assert!(region.room(usize::MAX, 2).is_none());
    }

    #[test]
    fn a_read_only_mapping_is_no_region() {
        let file = MemoryFile::create("t", 4096).unwrap();
        assert!(Region::new(Mapping::read_only(&file).unwrap()).is_none());
    }
}
