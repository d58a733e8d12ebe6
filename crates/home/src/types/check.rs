//! The check of an object: finds what is not sound in it, and repairs that.
//!
//! The home runs this walk over memory that a guest wrote before it died. The walk is bounded by
//! the memory that the guest has touched and paid for, and not by the values in it:
//!
//! - **Only existing pages are read** ([`Pages`]). The kernel lists them. A read of any other page
//!   would allocate that page, at the home's expense.
//! - **No byte belongs to two blocks** ([`Claims`]). The walk of a cyclic list ends at the first
//!   repeated element, because the second claim on the element fails.
//! - **A budget bounds the rest.** The walk may read eight times as many bytes as exist. A sound
//!   object needs about three times.
//!
//! The walk needs two bits of memory for each 16 claimed bytes. It allocates them in pieces of 2
//! KiB, each of which covers 128 KiB of the object, and only where a block begins or ends. So each
//! page of the guest's costs the home 4 KiB at most.

use super::arena::Arena;
use super::{DataError, Memory, Shared};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use upcall_os::memory::MemoryFile;

/// Unit of [`Pages`], in bytes. Page sizes of all machines are multiples of it.
const PAGE: usize = 4096;

/// Maximum number of bytes that a walk reads for each existing byte.
const LOOKS: u64 = 8;

/// Number of bytes that a walk may read in addition, because even an object without pages has a
/// root.
const LEAST: u64 = 1 << 20;

/// Number of bytes between two pauses of a walk.
const PIECE: u64 = 1 << 20;

/// The pages of an object's data that exist, as the kernel reports them.
#[derive(Debug)]
pub(crate) enum Pages {
    /// The memory is private to this process.
    All,
    /// Runs of pages in ascending order, as first page and number of pages.
    Runs(Vec<(u32, u32)>),
}

impl Pages {
    /// The pages within `data`, which begins at a page boundary of the file.
    ///
    /// # Errors
    /// The kernel's error, or no memory is left for the answer.
    pub(crate) fn of(file: &MemoryFile, data: Range<usize>) -> io::Result<Self> {
        let mut runs = Vec::<(u32, u32)>::new();
        file.each_backed(data.clone(), |run| {
            runs.try_reserve(1).map_err(io::Error::other)?;
            let first = (run.start - data.start) / PAGE;
            runs.push((first as u32, ((run.end - data.start).div_ceil(PAGE) - first) as u32));
            Ok(())
        })?;
        Ok(Self::Runs(runs))
    }

    /// Number of existing bytes among the first `length`.
    fn bytes(&self, length: usize) -> u64 {
        match self {
            Self::All => length as u64,
            Self::Runs(runs) => runs.iter().map(|&(_, pages)| u64::from(pages) * PAGE as u64).sum(),
        }
    }

    /// The end of the last existing page. `None` if that is not known.
    pub(crate) fn end(&self) -> Option<usize> {
        match self {
            Self::All => None,
            Self::Runs(runs) => {
                Some(runs.last().map_or(0, |&(first, pages)| (first + pages) as usize * PAGE))
            }
        }
    }

    /// The existing parts of a range, in ascending order.
    pub(crate) fn parts(&self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let (all, runs) = match self {
            Self::All => (Some(range.clone()).filter(|range| !range.is_empty()), &[][..]),
            Self::Runs(runs) => (None, &runs[..]),
        };
        let page = (range.start / PAGE) as u32;
        let from = runs.partition_point(|&(first, pages)| first + pages <= page);
        let parts = runs[from..]
            .iter()
            .map(|&(first, pages)| first as usize * PAGE..(first + pages) as usize * PAGE);
        let (start, end) = (range.start, range.end);
        let parts = parts
            .map(move |part| part.start.max(start)..part.end.min(end))
            .take_while(|part| part.start < part.end);
        all.into_iter().chain(parts)
    }

    /// Returns `true` if all of a range exists.
    fn has(&self, range: Range<usize>) -> bool {
        range.is_empty() || self.parts(range.clone()).next().is_some_and(|part| part == range)
    }
}

/// Number of units in a piece of [`Claims`], and of words for one bit each.
const UNITS: u64 = 8192;
const WORDS: usize = UNITS as usize / 64;

/// Two bits for each unit: whether a block covers it, and whether a block begins there.
#[derive(Debug)]
struct Bits(Vec<u64>);

impl Bits {
    fn new() -> Result<Self, DataError> {
        let mut words = Vec::new();
        words.try_reserve_exact(2 * WORDS).map_err(|_| NO_MEMORY)?;
        words.resize(2 * WORDS, 0);
        Ok(Self(words))
    }

    /// The words that hold a range of units, with a mask of its bits in each.
    fn masks(range: Range<u64>) -> impl Iterator<Item = (usize, u64)> {
        (range.start / 64..range.end.div_ceil(64)).map(move |word| {
            let from = range.start.saturating_sub(word * 64);
            let to = (range.end - word * 64).min(64);
            (word as usize, (!0 >> (64 - (to - from))) << from)
        })
    }

    fn has_any(&self, range: Range<u64>) -> bool {
        Self::masks(range).any(|(word, mask)| self.0[word] & mask != 0)
    }

    fn set(&mut self, range: Range<u64>, to: bool) {
        Self::masks(range)
            .for_each(|(word, mask)| if to { self.0[word] |= mask } else { self.0[word] &= !mask });
    }

    fn set_begin(&mut self, unit: u64, to: bool) {
        let (word, mask) = (WORDS + unit as usize / 64, 1 << (unit % 64));
        if to { self.0[word] |= mask } else { self.0[word] &= !mask }
    }

    fn begins(&self, unit: u64) -> bool {
        self.0[WORDS + unit as usize / 64] >> (unit % 64) & 1 != 0
    }

    /// The next unit from `from` on that a block covers; or, `within` a block, the first unit that
    /// the block does not cover.
    fn next(&self, from: u64, within: bool) -> Option<u64> {
        (from / 64..WORDS as u64).find_map(|word| {
            let (has, begins) = (self.0[word as usize], self.0[WORDS + word as usize]);
            let found =
                if within { !has | begins } else { has } & (!0 << from.saturating_sub(word * 64));
            (found != 0).then(|| word * 64 + u64::from(found.trailing_zeros()))
        })
    }
}

const NO_MEMORY: DataError = DataError::Unchecked { why: "no memory is left for the check" };

/// The pieces in which a block begins and ends, with its units there.
type BlockEnds = [Option<(u64, Range<u64>)>; 2];

/// The claimed blocks of an arena. Lengths of blocks are multiples of a unit.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// The pieces in which blocks begin or end.
    pieces: BTreeMap<u64, Bits>,
    /// Runs of pieces within one block: the first piece, and the one after the last.
    within: BTreeMap<u64, u64>,
}

impl Claims {
    fn is_within(&self, pieces: Range<u64>) -> bool {
        self.within.range(..pieces.end).next_back().is_some_and(|(_, end)| *end > pieces.start)
    }

    /// The first and last piece of a block with its units there, and the pieces in between.
    fn split(units: &Range<u64>) -> (BlockEnds, Range<u64>) {
        let (first, last) = (units.start / UNITS, (units.end - 1) / UNITS);
        let part = |piece: u64| {
            let from = units.start.max(piece * UNITS) - piece * UNITS;
            (piece, from..units.end.min((piece + 1) * UNITS) - piece * UNITS)
        };
        let other = (last > first).then(|| part(last));
        ([Some(part(first)), other], first + 1..last.max(first + 1))
    }

    /// Claims a block. Returns `false` if a part of it is claimed already.
    pub(crate) fn claim(&mut self, units: Range<u64>) -> Result<bool, DataError> {
        let (ends, between) = Self::split(&units);
        for (piece, part) in ends.iter().flatten() {
            let is_had = self.pieces.get(piece).is_some_and(|bits| bits.has_any(part.clone()));
            if is_had || self.is_within(*piece..piece + 1) {
                return Ok(false);
            }
        }
        if !between.is_empty() {
            if self.pieces.range(between.clone()).next().is_some()
                || self.is_within(between.clone())
            {
                return Ok(false);
            }
            self.within.insert(between.start, between.end);
        }
        for (piece, part) in ends.into_iter().flatten() {
            let bits = match self.pieces.entry(piece) {
                std::collections::btree_map::Entry::Occupied(there) => there.into_mut(),
                std::collections::btree_map::Entry::Vacant(none) => none.insert(Bits::new()?),
            };
            bits.set(part, true);
        }
        if let Some(bits) = self.pieces.get_mut(&(units.start / UNITS)) {
            bits.set_begin(units.start % UNITS, true);
        }
        Ok(true)
    }

    fn release(&mut self, units: Range<u64>) {
        let (ends, between) = Self::split(&units);
        if !between.is_empty() {
            self.within.remove(&between.start);
        }
        if let Some(bits) = self.pieces.get_mut(&(units.start / UNITS)) {
            bits.set_begin(units.start % UNITS, false);
        }
        for (piece, part) in ends.into_iter().flatten() {
            if let Some(bits) = self.pieces.get_mut(&piece) {
                bits.set(part, false);
                if !bits.has_any(0..UNITS) {
                    self.pieces.remove(&piece);
                }
            }
        }
    }

    fn begins(&self, unit: u64) -> bool {
        self.pieces.get(&(unit / UNITS)).is_some_and(|bits| bits.begins(unit % UNITS))
    }

    /// Calls `with` for each block in ascending order.
    pub(crate) fn each(
        &self,
        mut with: impl FnMut(Range<u64>) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let (mut open, mut after) = (None, 0);
        for (&piece, bits) in &self.pieces {
            if let Some(begun) = open
                && piece != after
                && self.within.get(&after) != Some(&piece)
            {
                with(begun..after * UNITS)?;
                open = None;
            }
            let mut at = 0;
            while let Some(found) = bits.next(at, open.is_some()) {
                if let Some(begun) = open.take() {
                    with(begun..piece * UNITS + found)?;
                }
                at = found;
                if bits.begins(found) {
                    open = Some(piece * UNITS + found);
                    at += 1;
                }
                if at == UNITS {
                    break;
                }
            }
            after = piece + 1;
        }
        open.map_or(Ok(()), |begun| with(begun..after * UNITS))
    }
}

/// Returns `true` if a walk may go on. Called now and then.
type GoesOn = Box<dyn FnMut() -> bool>;

/// A walk over an object.
///
/// Each type claims what it holds in the arena, and may repair what an operation has left that
/// ended in the middle.
pub struct Check {
    claims: Claims,
    pages: Arc<Pages>,
    /// Number of bytes that may still be read.
    left: u64,
    /// Number of bytes until the next pause.
    piece: u64,
    goes_on: Option<GoesOn>,
    mends: bool,
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check")
            .field("left", &self.left)
            .field("mends", &self.mends)
            .finish_non_exhaustive()
    }
}

impl Check {
    /// A walk over an object of `length` bytes.
    fn new(pages: Pages, length: usize, goes_on: Option<GoesOn>, mends: bool) -> Self {
        let left = pages.bytes(length).saturating_mul(LOOKS).saturating_add(LEAST);
        Self {
            claims: Claims::default(),
            pages: Arc::new(pages),
            left,
            piece: PIECE,
            goes_on,
            mends,
        }
    }

    /// Returns `true` if a fault is to be repaired where possible.
    ///
    /// Otherwise it is reported as an error.
    pub fn mends(&self) -> bool {
        self.mends
    }

    /// Accounts for a read of `bytes`, and pauses now and then.
    ///
    /// # Errors
    /// [`DataError::Unchecked`]: the budget is spent, or the home has dropped the object.
    pub(crate) fn look_at(&mut self, bytes: u64) -> Result<(), DataError> {
        let spent = DataError::Unchecked {
            why: "that would take longer than a sound object of this size needs",
        };
        self.left = self.left.checked_sub(bytes).ok_or(spent)?;
        if self.piece > bytes {
            self.piece -= bytes;
            return Ok(());
        }
        self.piece = PIECE;
        let goes_on = self.goes_on.as_mut().is_none_or(|goes_on| goes_on());
        if goes_on {
            Ok(())
        } else {
            Err(DataError::Unchecked { why: "the home has let go of the object" })
        }
    }

    /// Accounts for a read of `bytes` at `at`, all of which must exist.
    pub(crate) fn expect(
        &mut self,
        memory: Memory<'_>,
        at: u64,
        bytes: u64,
        what: &'static str,
    ) -> Result<(), DataError> {
        self.look_at(bytes.max(16))?;
        let wrong = || DataError::corrupt(what, usize::try_from(at).unwrap_or(usize::MAX));
        let (at, bytes) = (
            usize::try_from(at).map_err(|_| wrong())?,
            usize::try_from(bytes).map_err(|_| wrong())?,
        );
        let end = at.checked_add(bytes).filter(|&end| end <= memory.len()).ok_or_else(wrong)?;
        if self.pages.has(at..end) { Ok(()) } else { Err(wrong()) }
    }

    /// Returns `true` if `bytes` from `at` on exist.
    pub(crate) fn exist(&self, at: usize, bytes: usize) -> bool {
        at.checked_add(bytes).is_some_and(|end| self.pages.has(at..end))
    }

    /// The existing parts of `bytes` from `at` on. All other bytes there are zeros.
    pub(crate) fn parts(
        &self,
        at: usize,
        bytes: usize,
    ) -> impl Iterator<Item = Range<usize>> + use<> {
        let (pages, mut next, end) = (self.pages.clone(), at, at.saturating_add(bytes));
        std::iter::from_fn(move || {
            let part = pages.parts(next..end).next()?;
            next = part.end;
            Some(part)
        })
    }

    /// Claims a block with `bytes` at this offset for the caller. All of the bytes must exist.
    pub(crate) fn claim(
        &mut self,
        memory: Memory<'_>,
        at: u64,
        bytes: u64,
        what: &'static str,
    ) -> Result<(), DataError> {
        self.claim_sparse(memory, at, bytes, what)?;
        self.expect(memory, at, bytes, what)
    }

    /// Like [`claim`](Self::claim), for a block of which only the beginning must exist.
    pub(crate) fn claim_sparse(
        &mut self,
        memory: Memory<'_>,
        at: u64,
        bytes: u64,
        what: &'static str,
    ) -> Result<(), DataError> {
        let wrong = || DataError::corrupt(what, usize::try_from(at).unwrap_or(usize::MAX));
        let units = Arena::new(memory).units(at, bytes).ok_or_else(wrong)?;
        // Includes the header, which is 8 bytes before.
        self.expect(memory, at - 8, 16, what)?;
        if self.claims.claim(units)? { Ok(()) } else { Err(wrong()) }
    }

    /// Ends a claim.
    pub(crate) fn release(&mut self, memory: Memory<'_>, at: u64, bytes: u64) {
        if let Some(units) = Arena::new(memory).units(at, bytes) {
            self.claims.release(units);
        }
    }

    /// Returns `true` if a block at this offset is claimed.
    pub(crate) fn is_claimed(&self, memory: Memory<'_>, at: u64) -> bool {
        Arena::new(memory).units(at, 0).is_some_and(|units| self.claims.begins(units.start))
    }
}

/// Checks an object whose root is a `T`.
///
/// If it `mends`, the arena is rebuilt, and blocks to which nothing leads become free. The walk
/// ends early if `goes_on` returns `false`.
pub(crate) fn check<T: Shared>(
    memory: Memory<'_>,
    pages: Pages,
    mends: bool,
    goes_on: Option<GoesOn>,
) -> Result<(), DataError> {
    let mut check = Check::new(pages, memory.len(), goes_on, mends);
    T::check(memory.spot(0), &mut check)?;
    if mends { Arena::new(memory).rebuild(&check.claims, check.pages.end()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::tests::Random;
    use upcall_shm::span::WritableSpan;

    #[test]
    fn blocks_are_claimed_once_and_found_in_order() {
        for seed in 0..40 {
            let (mut random, mut claims, mut own) =
                (Random(seed), Claims::default(), Vec::<Range<u64>>::new());
            for _ in 0..400 {
                let begin = random.below(6 * UNITS);
                let long = [random.below(8), random.below(300), random.below(4 * UNITS)]
                    [random.below(3) as usize]
                    + 1;
                let units = begin..begin + long;
                let is_free =
                    own.iter().all(|other| other.end <= units.start || units.end <= other.start);
                assert_eq!(claims.claim(units.clone()), Ok(is_free), "{units:?} beside {own:?}");
                if is_free {
                    own.push(units);
                } else if random.below(2) == 0 {
                    claims.release(own.swap_remove(random.below(own.len() as u64) as usize));
                }
            }
            own.sort_by_key(|units| units.start);
            let mut found = Vec::new();
            let all = claims.each(|units| {
                found.push(units);
                Ok(())
            });
            assert_eq!(all, Ok(()));
            assert_eq!(found, own, "seed {seed}");
            assert!(own.iter().all(|units| claims.begins(units.start)), "seed {seed}");
        }
    }

    #[test]
    fn a_walk_ends_when_its_budget_is_spent_or_the_home_has_gone() {
        let pages = || Pages::Runs(vec![(0, 2)]);
        let mut check = Check::new(pages(), 1 << 30, None, false);
        let pieces = (0..).take_while(|_| check.look_at(4096).is_ok()).count();
        assert_eq!(pieces as u64, 2 * LOOKS + LEAST / 4096);
        let mut asked = 0;
        let goes_on = Box::new(move || {
            asked += 1;
            asked < 2
        });
        let mut check = Check::new(Pages::All, 1 << 30, Some(goes_on), false);
        let pieces = (0..).take_while(|_| check.look_at(4096).is_ok()).count();
        assert_eq!(pieces as u64, 2 * PIECE / 4096 - 1);
    }

    #[test]
    fn what_lies_on_pages_that_do_not_exist_is_corrupt() {
        let mut words = vec![0; 4 * PAGE / 8];
        let memory = Memory::private(WritableSpan::of_words(&mut words));
        let mut check = Check::new(Pages::Runs(vec![(0, 2)]), 4 * PAGE, None, false);
        let mut expect = |at: usize, bytes| check.expect(memory, at as u64, bytes, "a word");
        assert_eq!((expect(0, 8), expect(2 * PAGE - 16, 16)), (Ok(()), Ok(())));
        for at in [2 * PAGE - 8, 2 * PAGE, 3 * PAGE + 8, 4 * PAGE - 8, usize::MAX] {
            assert!(matches!(expect(at, 16), Err(DataError::Corrupt { .. })), "{at}");
        }
    }

    #[test]
    fn parts_that_exist_are_found_within_any_range() {
        let pages = Pages::Runs(vec![(1, 2), (5, 1)]);
        let parts = |range: Range<usize>| pages.parts(range).collect::<Vec<_>>();
        assert_eq!(parts(0..10 * PAGE), [PAGE..3 * PAGE, 5 * PAGE..6 * PAGE]);
        assert_eq!(parts(PAGE + 7..PAGE + 9), vec![PAGE + 7..PAGE + 9; 1]);
        assert_eq!(parts(3 * PAGE..5 * PAGE), []);
        assert_eq!(
            parts(2 * PAGE + 1..5 * PAGE + 1),
            [2 * PAGE + 1..3 * PAGE, 5 * PAGE..5 * PAGE + 1]
        );
        assert!(
            pages.has(PAGE..3 * PAGE) && !pages.has(PAGE..3 * PAGE + 1) && !pages.has(0..PAGE + 1)
        );
        assert_eq!((pages.bytes(1 << 30), pages.end()), (3 * PAGE as u64, Some(6 * PAGE)));
    }
}
