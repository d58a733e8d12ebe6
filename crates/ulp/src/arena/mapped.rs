//! One arena: its tree, and the part of it that is mapped.
//!
//! The arena is mapped by granules, as blocks need them. Anonymous mappings beside each other are
//! one to the kernel, so most arenas are one or two mappings. What becomes free goes back: a whole
//! granule is unmapped, and the pages of a whole span are dropped.

use super::NotPlaced;
use super::tree::{SPAN, Tree, WHOLE};
use crate::layout::{ARENA, ARENAS};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::io;
use std::ops::Range;

/// Logarithm of a granule's size in bytes, which is that of a huge page.
pub(super) const GRANULE: u32 = 21;
const GRANULES: usize = 1 << (WHOLE - GRANULE);

/// What gives and takes the memory of arenas: the kernel, or a test. All ranges are free.
pub(super) trait ArenaMemory {
    /// Maps zeros. With `small` none of them is ever a part of a huge page.
    fn map(&mut self, range: Range<u64>, small: bool) -> Result<(), Errno>;
    /// Unmaps what [`map`](Self::map) has mapped.
    fn unmap(&mut self, range: Range<u64>) -> Result<(), Errno>;
    /// Drops the contents of what [`map`](Self::map) has mapped.
    fn empty(&mut self, range: Range<u64>);
}

/// An arena. Sizes are logarithms.
pub(super) struct MappedArena<M> {
    start: u64,
    tree: Tree,
    /// A bit for each granule.
    mapped: [u64; GRANULES / 64],
    memory: M,
}

impl<M: ArenaMemory> MappedArena<M> {
    /// An arena of which nothing is mapped yet.
    pub(super) fn new(number: u32, memory: M) -> io::Result<Self> {
        let start = ARENAS + u64::from(number) * ARENA;
        Ok(Self { start, tree: Tree::new()?, mapped: [0; GRANULES / 64], memory })
    }

    /// Maps the first granule, which finds out whether the arena's addresses are free.
    pub(super) fn begin(&mut self) -> Result<(), Errno> {
        self.map(0, SPAN)
    }

    /// Returns `true` if the address is one of this arena's.
    pub(super) fn contains(&self, address: u64) -> bool {
        (self.start..self.start + ARENA).contains(&address)
    }

    /// Returns `true` if half of the arena is free in one piece.
    pub(super) fn has_half(&self) -> bool {
        self.tree.has_half()
    }

    /// Takes memory of this size. Returns `None` if there is none, or no addresses.
    pub(super) fn take(&mut self, size: u32) -> Option<u64> {
        loop {
            let at = self.tree.spot(size)?;
            match self.map(at, size) {
                Ok(()) => break self.tree.take(size).map(|at| self.start + at),
                // Another mapping is there. The place is taken from now on, and so never tried
                // again.
                Err(Errno::EXIST) => _ = self.tree.take(size.max(GRANULE))?,
                Err(_) => return None,
            }
        }
    }

    /// Takes exactly this memory, a multiple of its size.
    pub(super) fn take_this(&mut self, address: u64, size: u32) -> Result<(), NotPlaced> {
        let at = address - self.start;
        if !self.tree.fits_at(at, size) {
            return Err(NotPlaced::InUse);
        }
        self.map(at, size).map_err(|error| match error {
            Errno::EXIST => NotPlaced::InUse,
            _ => NotPlaced::NoMemory,
        })?;
        self.tree.take_this(at, size).inspect_err(|_| self.clear(at, size))
    }

    /// Returns `true` if exactly this memory is taken as one block.
    ///
    /// The place of another mapping is no block.
    pub(super) fn has(&self, address: u64, size: u32) -> bool {
        let at = address - self.start;
        at.is_multiple_of(1 << size)
            && self.tree.has(at, size)
            && self.run(granules_of(at, size), false).is_none()
    }

    /// Drops the contents of a block that stays taken, if it has whole spans.
    pub(super) fn empty(&mut self, address: u64, size: u32) {
        if size >= SPAN && self.has(address, size) {
            self.memory.empty(self.around(address - self.start, size));
        }
    }

    /// Unmaps all. Returns `false` if something is taken, or the kernel keeps a part mapped.
    pub(super) fn end(&mut self) -> bool {
        let is_free = self.tree.is_free(0, WHOLE);
        if is_free {
            self.unmap(0, WHOLE);
        }
        is_free && self.run(0..GRANULES, true).is_none()
    }

    /// Frees what [`take`](Self::take) has returned for this size.
    ///
    /// Returns `false`, and changes nothing, if no such memory is taken.
    pub(super) fn give(&mut self, address: u64, size: u32) -> bool {
        let at = address - self.start;
        if !at.is_multiple_of(1 << size) || !self.tree.give(at, size) {
            return false;
        }
        self.clear(at, size);
        true
    }

    /// Unmaps the granules around a free place, or drops its spans, as far as they are free.
    fn clear(&mut self, at: u64, size: u32) {
        let (granules, spans) = (size.max(GRANULE), size.max(SPAN));
        if self.tree.is_free(at, granules) {
            self.unmap(at, granules);
        } else if self.tree.is_free(at, spans) {
            self.memory.empty(self.around(at, spans));
        }
    }

    /// Maps what is not mapped yet of the granules around a place, or nothing more.
    fn map(&mut self, at: u64, size: u32) -> Result<(), Errno> {
        let granules = granules_of(at, size);
        let mut from = granules.start;
        while let Some(run) = self.run(from..granules.end, false) {
            from = run.end;
            if let Err(error) = self.memory.map(self.addresses(&run), size < GRANULE) {
                self.unmap(at, size.max(GRANULE));
                return Err(error);
            }
            self.mark(run, true);
        }
        Ok(())
    }

    /// Unmaps the granules of a free place.
    fn unmap(&mut self, at: u64, size: u32) {
        let granules = granules_of(at, size);
        let mut from = granules.start;
        while let Some(run) = self.run(from..granules.end, true) {
            from = run.end;
            let addresses = self.addresses(&run);
            match self.memory.unmap(addresses.clone()) {
                Ok(()) => self.mark(run, false),
                // To unmap the middle of a mapping makes two, and there is a maximum. The granules
                // stay mapped for other blocks.
                Err(_) => self.memory.empty(addresses),
            }
        }
    }

    /// The first granules among these that are all mapped, or all not mapped.
    fn run(&self, granules: Range<usize>, mapped: bool) -> Option<Range<usize>> {
        let start = self.next(granules.clone(), mapped)?;
        let end = self.next(start..granules.end, !mapped).unwrap_or(granules.end);
        Some(start..end)
    }

    /// The first granule among these that is mapped, or that is not mapped.
    fn next(&self, granules: Range<usize>, mapped: bool) -> Option<usize> {
        let mut at = granules.start;
        while at < granules.end {
            let word = self.mapped[at / 64];
            let word = if mapped { word } else { !word };
            match word >> (at % 64) {
                0 => at = (at / 64 + 1) * 64,
                word => {
                    let found = at + word.trailing_zeros() as usize;
                    return Some(found).filter(|found| *found < granules.end);
                }
            }
        }
        None
    }

    fn mark(&mut self, granules: Range<usize>, mapped: bool) {
        for granule in granules {
            let (word, bit) = (&mut self.mapped[granule / 64], 1 << (granule % 64));
            *word = if mapped { *word | bit } else { *word & !bit };
        }
    }

    fn addresses(&self, granules: &Range<usize>) -> Range<u64> {
        let address = |granule: usize| self.start + ((granule as u64) << GRANULE);
        address(granules.start)..address(granules.end)
    }

    /// The addresses of the place of this size around an offset.
    fn around(&self, at: u64, size: u32) -> Range<u64> {
        let start = self.start + (at >> size << size);
        start..start + (1 << size)
    }
}

/// The granules that the place of this size around an offset lies in.
fn granules_of(at: u64, size: u32) -> Range<usize> {
    let first = (at >> size << size) >> GRANULE;
    first as usize..(first + (1_u64 << size).div_ceil(1 << GRANULE)) as usize
}

/// The memory of this process.
pub(super) struct Kernel;

impl ArenaMemory for Kernel {
    fn map(&mut self, range: Range<u64>, small: bool) -> Result<(), Errno> {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE | MapFlags::NORESERVE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let (at, length) = (range.start as *mut c_void, (range.end - range.start) as usize);
        // SAFETY: nothing is mapped there, or the kernel refuses.
        let at = unsafe { mmap_anonymous(at, length, protection, flags) }?;
        if small {
            // A short message would take 2 MiB where huge pages are the rule. A refusal only costs
            // memory. SAFETY: mapped just now; the advice changes no contents.
            let _ = unsafe { madvise(at, length, Advice::LinuxNoHugepage) };
        }
        Ok(())
    }

    fn unmap(&mut self, range: Range<u64>) -> Result<(), Errno> {
        // SAFETY: `map` has mapped this, and no block is there: the arena's tree has freed all.
        unsafe { munmap(range.start as *mut c_void, (range.end - range.start) as usize) }
    }

    fn empty(&mut self, range: Range<u64>) {
        let (at, length) = (range.start as *mut c_void, (range.end - range.start) as usize);
        // A refusal only costs memory. SAFETY: as in `unmap`, so nothing relies on the contents.
        let _ = unsafe { madvise(at, length, Advice::LinuxDontNeed) };
    }
}
