//! The contents of a ULP's memory that a fresh mapping would not have.

use super::state::{PageRun, UlpMapping};
use crate::layout::PAGE;
use crate::own::OwnFiles;
use crate::ulp::Ulp;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// Maximum size of a piece, in bytes.
pub const PIECE: usize = 64 << 10;
/// Number of entries of the kernel's map that are read at once.
const ENTRIES: usize = 8 << 10;

/// A checksum over all pieces, in any order. It finds damage, and is none against forgery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageSum {
    /// Number of pieces.
    pub pieces: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Sum of the hashes of the pieces with their addresses.
    pub hash: u64,
}

impl PageSum {
    /// Adds a piece.
    pub(super) fn add(&mut self, address: u64, bytes: &[u8]) {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let mixed = |hash: u64, word: u64| (hash ^ word).wrapping_mul(ODD).rotate_left(29);
        // Four chains, which the processor calculates at the same time.
        let mut chains = [1, 2, 3, 4].map(|chain| mixed(address, chain));
        let (lines, rest) = bytes.as_chunks::<32>();
        for line in lines {
            for (chain, word) in chains.iter_mut().zip(line.as_chunks().0) {
                *chain = mixed(*chain, u64::from_ne_bytes(*word));
            }
        }
        let ends = rest.iter().fold(bytes.len() as u64, |hash, byte| mixed(hash, (*byte).into()));
        self.hash = self.hash.wrapping_add(chains.into_iter().fold(ends, mixed));
        self.pieces += 1;
        self.bytes += bytes.len() as u64;
    }
}

/// What is still to be sent of a ULP's memory, and the sum of what was sent.
#[derive(Debug)]
pub struct UlpPages {
    slot: usize,
    left: VecDeque<PageRange>,
    buffer: Vec<u8>,
    sum: PageSum,
}

/// Pages that may differ from those of a fresh mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PageRange {
    start: u64,
    end: u64,
    /// Whether a fresh page is all zeros.
    is_anonymous: bool,
}

impl UlpPages {
    /// Finds the pages of these mappings that are the slot's own.
    ///
    /// Without the kernel's map, those are all. That is slow, but loses nothing: `mincore(2)` would
    /// leave out pages that were swapped out.
    pub(super) fn new(
        slot: usize,
        mappings: &[UlpMapping],
        map: Option<&File>,
    ) -> io::Result<Self> {
        let mut left = VecDeque::new();
        if map.is_none_or(|map| scan_all(map, mappings, &mut left).is_err()) {
            Self::find_each(mappings, map, &mut left)?;
        }
        Ok(Self { slot, left, buffer: Vec::new(), sum: PageSum::default() })
    }

    /// The same for one mapping after the other.
    fn find_each(
        mappings: &[UlpMapping],
        map: Option<&File>,
        left: &mut VecDeque<PageRange>,
    ) -> io::Result<()> {
        for one in mappings {
            let is_anonymous = one.offset.is_none();
            let all = PageRange { start: one.start, end: one.end, is_anonymous };
            // The other process takes no piece of two mappings, so ranges of two never join.
            let mut own = VecDeque::new();
            match map {
                Some(map) => add_own(map, all, &mut own)?,
                None => own.push_back(all),
            }
            left.append(&mut own);
        }
        Ok(())
    }

    /// The pages that are still to be sent.
    pub fn runs(&self) -> Vec<PageRun> {
        self.left.iter().map(|one| PageRun { start: one.start, end: one.end }).collect()
    }

    /// Sends pages of zeros as well. To be called if the other process's memory is not fresh.
    pub fn keep_zeros(&mut self) {
        self.left.iter_mut().for_each(|one| one.is_anonymous = false);
    }

    /// Adds pages of anonymous memory.
    pub(super) fn add(&mut self, run: PageRun) {
        let PageRun { start, end } = run;
        self.left.push_back(PageRange { start, end, is_anonymous: true });
    }

    /// Maximum number of bytes that are still to be sent.
    pub fn left(&self) -> u64 {
        self.left.iter().map(|one| one.end - one.start).sum()
    }

    /// Number of calls of [`send`](Self::send) with this budget until there are no more pieces.
    pub fn calls(&self, budget: usize) -> usize {
        let (mut calls, mut used) = (0, budget);
        for one in &self.left {
            let mut left = (one.end - one.start) as usize;
            while left > 0 {
                if used >= budget {
                    (calls, used) = (calls + 1, 0);
                }
                used += left.min(PIECE);
                left -= left.min(PIECE);
            }
        }
        calls
    }

    /// The sum of all pieces so far.
    pub fn sum(&self) -> PageSum {
        self.sum
    }

    /// Passes pieces to `send`, each with its address, until `budget` bytes have been read.
    ///
    /// Returns `true` if there are no more. `ulp` must not have run since its state was taken.
    ///
    /// # Errors
    /// The memory cannot be read, or `send` has failed. The rest cannot be sent then.
    ///
    /// # Panics
    /// If `ulp` is another one.
    pub fn send(
        &mut self,
        ulp: &Ulp,
        budget: usize,
        mut send: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<bool> {
        assert_eq!(ulp.slot(), self.slot, "the ULP is another one");
        self.send_some(budget, &mut send)
    }

    fn send_some(
        &mut self,
        budget: usize,
        send: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<bool> {
        let (mut used, files) = (0, OwnFiles::get()?);
        while used < budget {
            let Some(PageRange { start, end, is_anonymous }) = self.left.front_mut() else {
                return Ok(true);
            };
            let (at, skips_zeros) = (*start, *is_anonymous);
            let length = (*end - at).min(PIECE as u64) as usize;
            *start += length as u64;
            if *start == *end {
                self.left.pop_front();
            }
            used += length;
            self.buffer.resize(length, 0);
            files.memory.read_exact_at(&mut self.buffer, at)?;
            for (first, bytes) in runs(&self.buffer, skips_zeros) {
                self.sum.add(at + first, bytes);
                send(at + first, bytes)?;
            }
        }
        Ok(self.left.is_empty())
    }
}

/// The parts of a piece, each with its offset, between pages of zeros.
fn runs(piece: &[u8], skips_zeros: bool) -> Vec<(u64, &[u8])> {
    if !skips_zeros {
        return vec![(0, piece)];
    }
    let (mut found, mut begin) = (Vec::new(), None);
    let pages = piece.chunks(PAGE as usize).enumerate();
    let zero = |page: &[u8]| page.as_chunks::<64>().0.iter().all(|line| *line == [0; 64]);
    for (page, is_zero) in pages.map(|(page, bytes)| (page * PAGE as usize, zero(bytes))) {
        match (is_zero, begin) {
            (false, None) => begin = Some(page),
            (true, Some(from)) => {
                found.push((from as u64, &piece[from..page]));
                begin = None;
            }
            _ => {}
        }
    }
    found.extend(begin.map(|from| (from as u64, &piece[from..])));
    found
}

/// The argument of `PAGEMAP_SCAN`, as the kernel has it (Linux 6.7).
#[repr(C)]
#[derive(Default)]
pub(super) struct PageScan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    found: u64,
    room: u64,
    most_pages: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    returned: u64,
}

impl PageScan {
    const FILE: u64 = 1 << 2;
    const PRESENT: u64 = 1 << 3;
    const SWAPPED: u64 = 1 << 4;
    /// The page was written since it was protected.
    pub(super) const WRITTEN: u64 = 1 << 1;

    /// The pages of mappings that are neither absent nor a file's.
    fn own(all: PageRun) -> Self {
        Self { inverted: Self::FILE, all_of: Self::FILE, ..Self::present(all) }
    }

    /// The pages of anonymous memory that are not absent. None is a file's, and to find out takes
    /// the kernel several times as long as the rest: it looks at a record of each page.
    fn present(all: PageRun) -> Self {
        let any_of = Self::PRESENT | Self::SWAPPED;
        Self { start: all.start, end: all.end, any_of, ..Self::default() }
    }

    /// The pages of watched memory that were written since they were protected. Protects them
    /// again.
    pub(super) fn written(all: PageRun) -> Self {
        const PROTECT: u64 = 1 << 0;
        Self { flags: PROTECT, all_of: Self::WRITTEN, ..Self::present(all) }
    }

    /// All pages of watched memory that are not absent. Pages that were written since they were
    /// protected have a mark.
    pub(super) fn present_and_written(all: PageRun) -> Self {
        Self { returned: Self::WRITTEN, ..Self::present(all) }
    }

    /// Adds the pages to `found`. See [`each`](Self::each).
    ///
    /// # Errors
    /// As with [`each`](Self::each). Nothing has been added then.
    pub(super) fn run(self, map: &File, found: &mut Vec<PageRun>) -> io::Result<()> {
        let before = found.len();
        let add = |run: PageRun, _| match found[before..].last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => found.push(run),
        };
        self.each(map, add).inspect_err(|_| found.truncate(before))
    }

    /// Passes the pages to `add`, in ascending order, with what is returned of their kind. There is
    /// one call of the kernel for each few hundred ranges, and nothing is read for absent pages.
    ///
    /// # Errors
    /// The kernel does not know the call, or refuses.
    pub(super) fn each(mut self, map: &File, mut add: impl FnMut(PageRun, u64)) -> io::Result<()> {
        const PAGEMAP_SCAN: u64 = 0xC060_6610;
        const ROOM: usize = 256;
        let mut ranges = [[0_u64; 3]; ROOM];
        self.size = size_of::<Self>() as u64;
        (self.found, self.room) = (ranges.as_mut_ptr().addr() as u64, ROOM as u64);
        self.returned = if self.returned == 0 { Self::PRESENT } else { self.returned };
        while self.start < self.end {
            ranges.as_mut_ptr().expose_provenance();
            // SAFETY: the kernel writes at most `room` entries to `ranges`, and the end to `self`,
            // both of which are local variables.
            let count = unsafe { libc::ioctl(map.as_raw_fd(), PAGEMAP_SCAN, &raw mut self) };
            if count < 0 || self.walk_end <= self.start {
                return Err(io::Error::last_os_error());
            }
            for [start, end, kind] in ranges[..count as usize].iter().copied() {
                add(PageRun { start, end }, kind);
            }
            self.start = self.walk_end;
        }
        Ok(())
    }
}

/// As [`add_own`] for all mappings, by the kernel's scan: one call for neighbours of a kind, since
/// a call takes longer than to pass over absent pages. No range is of two mappings.
///
/// # Errors
/// The kernel does not know the call, or refuses.
fn scan_all(
    map: &File,
    mappings: &[UlpMapping],
    ranges: &mut VecDeque<PageRange>,
) -> io::Result<()> {
    let mut found = Vec::new();
    for some in mappings.chunk_by(|one, other| one.offset.is_none() == other.offset.is_none()) {
        let all = PageRun { start: some[0].start, end: some[some.len() - 1].end };
        let is_anonymous = some[0].offset.is_none();
        let scan = if is_anonymous { PageScan::present(all) } else { PageScan::own(all) };
        scan.run(map, &mut found)?;
    }
    let mut first = 0;
    for PageRun { start, end } in found {
        while mappings.get(first).is_some_and(|one| one.end <= start) {
            first += 1;
        }
        for one in mappings[first..].iter().take_while(|one| one.start < end) {
            let (start, end) = (start.max(one.start), end.min(one.end));
            ranges.push_back(PageRange { start, end, is_anonymous: one.offset.is_none() });
        }
    }
    Ok(())
}

/// Adds a range, to the last one if they touch.
fn add(ranges: &mut VecDeque<PageRange>, new: PageRange) {
    match ranges.back_mut() {
        Some(last) if last.end == new.start && last.is_anonymous == new.is_anonymous => {
            last.end = new.end;
        }
        _ => ranges.push_back(new),
    }
}

/// Adds the pages of a mapping that are neither absent nor the file's.
fn add_own(map: &File, all: PageRange, found: &mut VecDeque<PageRange>) -> io::Result<()> {
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    const FILE: u64 = 1 << 61;
    let mut bytes = vec![0; ENTRIES * 8];
    let mut at = all.start;
    while at < all.end {
        let count = ((all.end - at) / PAGE).min(ENTRIES as u64) as usize;
        let bytes = &mut bytes[..count * 8];
        map.read_exact_at(bytes, at / PAGE * 8)?;
        for entry in bytes.as_chunks().0.iter().map(|entry| u64::from_ne_bytes(*entry)) {
            let end = at + PAGE;
            if entry & (PRESENT | SWAPPED) != 0 && entry & FILE == 0 {
                add(found, PageRange { start: at, end, ..all });
            }
            at = end;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_zeros_are_left_out_only_where_fresh_ones_are_zeros() {
        let page = PAGE as usize;
        let mut piece = vec![0; 5 * page];
        piece[page] = 1;
        piece[3 * page - 1] = 1;
        piece[5 * page - 1] = 1;
        let found = runs(&piece, true);
        let places = found.iter().map(|(at, bytes)| (*at as usize, bytes.len()));
        assert_eq!(places.collect::<Vec<_>>(), [(page, 2 * page), (4 * page, page)]);
        assert_eq!(runs(&piece, false), [(0, &piece[..])]);
        assert!(runs(&piece[..page], true).is_empty());
    }

    #[test]
    fn the_sum_depends_on_each_byte_and_address_and_not_on_the_order() {
        let sum = |pieces: &[(u64, &[u8])]| {
            let mut sum = PageSum::default();
            pieces.iter().for_each(|(at, bytes)| sum.add(*at, bytes));
            sum
        };
        let (one, other) = ([7; 100], [8; 64]);
        assert_eq!(sum(&[(0, &one), (4096, &other)]), sum(&[(4096, &other), (0, &one)]));
        assert_ne!(sum(&[(0, &one), (4096, &other)]), sum(&[(4096, &one), (0, &other)]));
        for byte in 0..one.len() {
            let mut bent = one;
            bent[byte] ^= 0x10;
            assert_ne!(sum(&[(0, &one)]), sum(&[(0, &bent)]), "{byte}");
        }
        assert_ne!(sum(&[(0, &one)]), sum(&[(0, &one[..99])]));
    }

    /// What is sent of some memory of this test's, with or without the kernel's map.
    fn sent(map: Option<&File>, memory: &[u8], start: usize) -> Vec<(u64, Vec<u8>)> {
        let start = memory[start..].as_ptr().addr() as u64;
        let mapping = UlpMapping { start, end: start + 8 * PAGE, protection: 3, offset: None };
        let mut pages = UlpPages::new(0, &[mapping], map).unwrap();
        let mut all = Vec::new();
        let mut keep = |at, bytes: &[u8]| {
            all.push((at - start, bytes.to_vec()));
            Ok(())
        };
        while !pages.send_some(1, &mut keep).unwrap() {}
        assert_eq!(pages.left(), 0);
        all
    }

    #[test]
    fn the_kernels_scan_and_its_map_agree() {
        let mut memory = vec![0_u8; 3000 * PAGE as usize];
        let first = (memory.as_ptr().addr() as u64).next_multiple_of(PAGE);
        let skipped = first - memory.as_ptr().addr() as u64;
        // More ranges than the kernel reports at once, some of which touch.
        for page in (0..2900).filter(|page| page % 3 == 0 || page % 7 == 0) {
            memory[(skipped + page * PAGE) as usize] = 1;
        }
        // A page of the first one is not asked for.
        let mapping = |start, end| UlpMapping { start, end, protection: 3, offset: None };
        let mappings = [
            mapping(first, first + 99 * PAGE),
            mapping(first + 100 * PAGE, first + 1000 * PAGE),
            mapping(first + 1000 * PAGE, first + 2900 * PAGE),
        ];
        let map = File::open("/proc/self/pagemap").unwrap();
        let (mut scanned, mut read) = (VecDeque::new(), VecDeque::new());
        for UlpMapping { start, end, .. } in mappings {
            let mut own = VecDeque::new();
            add_own(&map, PageRange { start, end, is_anonymous: true }, &mut own).unwrap();
            read.append(&mut own);
        }
        assert!(read.len() > 500, "{}", read.len());
        match scan_all(&map, &mappings, &mut scanned) {
            Ok(()) => assert_eq!(scanned, read),
            Err(error) => eprintln!("skipped: {error}"),
        }
        // What cannot be scanned leaves nothing.
        let none = File::open("/dev/null").unwrap();
        assert!(scan_all(&none, &mappings, &mut read).is_err());
        let all = read[0];
        assert_eq!(
            add_own(&none, all, &mut read).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
    }

    #[test]
    fn no_piece_is_of_two_mappings() {
        let memory = vec![1_u8; 10 * PAGE as usize];
        let start = (memory.as_ptr().addr() as u64).next_multiple_of(PAGE);
        let (middle, end) = (start + 3 * PAGE, start + 5 * PAGE);
        let mapping = |start, end, protection| UlpMapping { start, end, protection, offset: None };
        let mappings = [mapping(start, middle, 3), mapping(middle, end, 1)];
        for map in [File::open("/proc/self/pagemap").ok(), None] {
            let mut pages = UlpPages::new(0, &mappings, map.as_ref()).unwrap();
            let mut all = Vec::new();
            let mut keep = |at, bytes: &[u8]| {
                all.push((at, bytes.len() as u64));
                Ok(())
            };
            while !pages.send_some(1, &mut keep).unwrap() {}
            assert_eq!(all, [(start, middle - start), (middle, end - middle)]);
        }
    }

    #[test]
    fn without_the_kernels_map_the_same_pages_are_sent() {
        let mut memory = vec![0; 10 * PAGE as usize];
        let start = memory.as_ptr().addr().next_multiple_of(PAGE as usize) - memory.as_ptr().addr();
        memory[start + 2 * PAGE as usize] = 1;
        memory[start + 7 * PAGE as usize] = 2;
        let by_map = sent(OwnFiles::get().unwrap().pages.as_ref(), &memory, start);
        assert_eq!(by_map, sent(None, &memory, start));
        assert_eq!(by_map.len(), 2);
    }
}
