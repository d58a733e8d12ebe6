//! Memory within an object: blocks that are found by their offset.
//!
//! ```text
//! words    bytes in use
//!          first level, a bit for each power of two with free blocks
//!          second level, 16 bits for each
//!          first free block of each class
//!          where the zeros begin
//! blocks   header: length, whether the block is free, whether the one before it is
//!          content: a multiple of 16 bytes from a multiple of 16 on, less the header
//!          of a free block: next and previous of its class; its length once more at its end,
//!          except for the last block of all, whose end stays untouched
//! ```
//! Allocating and freeing take some stores each, however many blocks there are. The class of a
//! length is a power of two and a sixteenth of it, and bits tell which classes have free blocks
//! (Masmano, Ripoll, Crespo and Real: *TLSF, a new dynamic memory allocator for real-time systems*,
//! 2004). Neighbouring free blocks are joined. The memory from which on all is zeros is one block,
//! whose header is written when it is first used.
//!
//! Existing allocators keep pointers in their memory and trust them. This one trusts nothing: it
//! checks that each offset lies among the blocks, and that the length in each header fits. A party
//! that may write to an object can make two blocks overlap, but it could as well have overwritten
//! them. It cannot make another party read or write outside of the object, or walk for long.
//!
//! If an operation ends in the middle, its blocks may be on no list. The whole arena can be rebuilt
//! from what the object's types lead to ([`Arena::rebuild`]).

use super::check::Claims;
use super::{DataError, Memory, Spot};
use std::ops::Range;

/// Maximum length of an object's data, in bytes.
pub const MOST: u64 = 1 << 40;

/// Unit of block lengths, in bytes.
const GRAIN: u64 = 16;

/// Size of a header, and of a length at the end of a block, in bytes.
const WORD: u64 = 8;

/// Minimum length of a block, in bytes: a header, two links and a length.
const LEAST: u64 = 32;

const SECOND: usize = 16;
const FIRST: usize = 36;

// Offsets of the words.
const USED: usize = 0;
const LEVELS: usize = 8;
const BITS: usize = 16;
const HEADS: usize = BITS + FIRST * 8;
const TOUCHED: usize = HEADS + FIRST * SECOND * 8;
const END: usize = TOUCHED + 8;

// Flags in a header, beside the length.
const FREE: u64 = 1;
const AFTER_FREE: u64 = 2;
const FLAGS: u64 = GRAIN - 1;

const BLOCK: &str = "a block of memory";
const WORDS: &str = "the arena's words";

/// A class of lengths.
#[derive(Clone, Copy)]
struct LengthClass {
    first: usize,
    second: usize,
}

impl LengthClass {
    /// The class of a block of this length.
    fn of(length: u64) -> Self {
        if length < GRAIN * SECOND as u64 {
            return Self { first: 0, second: (length / GRAIN) as usize };
        }
        let log = length.ilog2() as usize;
        Self { first: (log - 7).min(FIRST - 1), second: (length >> (log - 4)) as usize % SECOND }
    }

    /// The first class in which all blocks have at least this length.
    fn at_least(length: u64) -> Self {
        let more = if length < GRAIN * SECOND as u64 { 0 } else { (1 << (length.ilog2() - 4)) - 1 };
        Self::of(length + more)
    }

    fn head(self) -> usize {
        HEADS + (self.first * SECOND + self.second) * 8
    }
}

/// A block, as its header describes it.
#[derive(Clone, Copy)]
struct ArenaBlock {
    at: u64,
    length: u64,
    flags: u64,
}

/// The arena of an object; see the module.
#[derive(Clone, Copy)]
pub(crate) struct Arena<'a> {
    memory: Memory<'a>,
    words: Spot<'a>,
    /// Where the first block begins, and where the last one ends.
    begin: u64,
    end: u64,
}

/// Length of a block with room for `bytes`.
const fn whole(bytes: u64) -> u64 {
    let whole = (bytes + WORD).next_multiple_of(GRAIN);
    if whole < LEAST { LEAST } else { whole }
}

/// Length of an arena that has room for blocks of `bytes`.
pub(crate) const fn overhead(bytes: u64) -> u64 {
    (END as u64).next_multiple_of(64) + whole(bytes) + 2 * GRAIN
}

impl<'a> Arena<'a> {
    #[inline]
    pub(crate) fn new(memory: Memory<'a>) -> Self {
        let words = memory.spot(memory.arena);
        // A header lies 8 bytes before a multiple of 16.
        let begin =
            memory.arena.saturating_add(END + 8).next_multiple_of(GRAIN as usize) as u64 + WORD;
        let end = (memory.len() as u64).saturating_sub(WORD) / GRAIN * GRAIN + WORD;
        Self { memory, words, begin, end }
    }

    /// Number of bytes in use, including headers.
    pub(crate) fn used(self) -> Result<u64, DataError> {
        self.words.word(USED, WORDS)
    }

    /// Allocates a block with room for `bytes`, of any content. Returns the offset of its content.
    pub(crate) fn allocate(self, bytes: u64) -> Result<u64, DataError> {
        let full = DataError::Full { asked: bytes };
        if bytes > MOST || self.end < self.begin.saturating_add(LEAST) {
            return Err(full);
        }
        let used = self.used()?;
        if used == 0 && self.words.word(LEVELS, WORDS)? == 0 {
            // The first allocation: the whole arena becomes one block.
            self.put(ArenaBlock { at: self.begin, length: self.end - self.begin, flags: FREE })?;
        }
        let length = whole(bytes);
        let block = self.find(length)?.ok_or(full)?;
        self.take(block)?;
        let rest = block.length - length;
        let length = if rest < LEAST {
            self.tell_next(block.at + block.length, false)?;
            block.length
        } else {
            self.put(ArenaBlock { at: block.at + length, length: rest, flags: FREE })?;
            length
        };
        self.spot(block.at).put_word(0, length | block.flags & AFTER_FREE, BLOCK)?;
        self.words.put_word(USED, used.wrapping_add(length), WORDS)?;
        // Includes the header of the rest, and its links.
        let ends = block.at + length + LEAST;
        if self.words.word(TOUCHED, WORDS)? < ends {
            self.words.put_word(TOUCHED, ends, WORDS)?;
        }
        Ok(block.at + WORD)
    }

    /// Allocates a block of zeros. Memory that was never used is not touched.
    pub(crate) fn allocate_zeros(self, bytes: u64) -> Result<u64, DataError> {
        let touched = self.words.word(TOUCHED, WORDS)?;
        let at = self.allocate(bytes)?;
        let length = touched.saturating_sub(at).min(bytes);
        self.spot(at).zero(usize::try_from(length).unwrap_or(0), BLOCK)?;
        Ok(at)
    }

    /// Offset from the beginning of the object at which the zeros begin.
    pub(crate) fn touched(self) -> Result<usize, DataError> {
        let touched = self.words.word(TOUCHED, WORDS)?.max((self.memory.arena + END) as u64);
        match usize::try_from(touched) {
            Ok(touched) if touched <= self.memory.len() => Ok(touched),
            _ => Err(DataError::corrupt("the end of what is in use", self.memory.arena + TOUCHED)),
        }
    }

    /// Frees a block that [`allocate`](Self::allocate) has returned.
    pub(crate) fn free(self, at: u64) -> Result<(), DataError> {
        let mut block = self.block(at.wrapping_sub(WORD))?;
        if block.flags & FREE != 0 {
            return Err(DataError::corrupt("a block that is in use", at as usize));
        }
        let freed = block.length;
        let next = block.at + block.length;
        if next < self.end {
            let next = self.block(next)?;
            if next.flags & FREE != 0 {
                self.take(next)?;
                block.length += next.length;
            }
        }
        if block.flags & AFTER_FREE != 0 {
            let length = self.spot(block.at.wrapping_sub(WORD)).word(0, BLOCK)?;
            let before = self.block(block.at.wrapping_sub(length))?;
            if before.flags & FREE == 0 || before.length != length {
                return Err(DataError::corrupt(BLOCK, before.at as usize));
            }
            self.take(before)?;
            block = ArenaBlock {
                at: before.at,
                length: before.length + block.length,
                flags: before.flags,
            };
        }
        self.put(ArenaBlock { flags: block.flags & AFTER_FREE | FREE, ..block })?;
        self.words.put_word(USED, self.used()?.wrapping_sub(freed), WORDS)
    }

    /// Finds a free block of at least this length.
    fn find(self, length: u64) -> Result<Option<ArenaBlock>, DataError> {
        let class = LengthClass::at_least(length);
        let bits = self.words.word(BITS + class.first * 8, WORDS)? & (!0 << class.second);
        let class = if bits != 0 {
            LengthClass { second: bits.trailing_zeros() as usize % SECOND, ..class }
        } else {
            let levels = self.words.word(LEVELS, WORDS)? & (!0 << (class.first + 1));
            if levels == 0 {
                // The first block of its own class may be long enough.
                return self
                    .first_of(LengthClass::of(length))
                    .map(|found| found.filter(|block| block.length >= length));
            }
            let first = levels.trailing_zeros() as usize % FIRST;
            let bits = self.words.word(BITS + first * 8, WORDS)?;
            LengthClass { first, second: bits.trailing_zeros() as usize % SECOND }
        };
        match self.first_of(class)? {
            Some(block) if block.length >= length => Ok(Some(block)),
            _ => {
                Err(DataError::corrupt("a class of free blocks", self.memory.arena + class.head()))
            }
        }
    }

    fn first_of(self, class: LengthClass) -> Result<Option<ArenaBlock>, DataError> {
        let at = self.words.word(class.head(), WORDS)?;
        if at == 0 {
            return Ok(None);
        }
        let block = self.block(at)?;
        if block.flags & FREE == 0 {
            return Err(DataError::corrupt("a free block", at as usize));
        }
        Ok(Some(block))
    }

    /// Takes a free block off its list.
    fn take(self, block: ArenaBlock) -> Result<(), DataError> {
        let class = LengthClass::of(block.length);
        let (next, previous) =
            (self.spot(block.at).word(8, BLOCK)?, self.spot(block.at).word(16, BLOCK)?);
        if next != 0 {
            self.free_one(next)?.put_word(16, previous, BLOCK)?;
        }
        if previous != 0 {
            return self.free_one(previous)?.put_word(8, next, BLOCK);
        }
        self.words.put_word(class.head(), next, WORDS)?;
        if next == 0 {
            let bits = self.words.word(BITS + class.first * 8, WORDS)? & !(1 << class.second);
            self.words.put_word(BITS + class.first * 8, bits, WORDS)?;
            if bits == 0 {
                let levels = self.words.word(LEVELS, WORDS)? & !(1 << class.first);
                self.words.put_word(LEVELS, levels, WORDS)?;
            }
        }
        Ok(())
    }

    /// Puts a free block on its list, and marks the block behind it.
    fn put(self, block: ArenaBlock) -> Result<(), DataError> {
        let class = LengthClass::of(block.length);
        let head = self.words.word(class.head(), WORDS)?;
        let spot = self.spot(block.at);
        spot.put_word(8, head, BLOCK)?;
        spot.put_word(16, 0, BLOCK)?;
        spot.put_word(0, block.length | block.flags, BLOCK)?;
        let next = block.at + block.length;
        if next < self.end {
            self.spot(next - WORD).put_word(0, block.length, BLOCK)?;
        }
        self.tell_next(next, true)?;
        if head != 0 {
            self.free_one(head)?.put_word(16, block.at, BLOCK)?;
        }
        self.words.put_word(class.head(), block.at, WORDS)?;
        let bits = self.words.word(BITS + class.first * 8, WORDS)?;
        self.words.put_word(BITS + class.first * 8, bits | 1 << class.second, WORDS)?;
        let levels = self.words.word(LEVELS, WORDS)?;
        self.words.put_word(LEVELS, levels | 1 << class.first, WORDS)
    }

    /// Marks the block at `at`, if there is one, with whether the block before it is free.
    fn tell_next(self, at: u64, free: bool) -> Result<(), DataError> {
        if at >= self.end {
            return Ok(());
        }
        let header = self.spot(at).word(0, BLOCK)? & !AFTER_FREE;
        self.spot(at).put_word(0, header | if free { AFTER_FREE } else { 0 }, BLOCK)
    }

    /// The free block to which a link leads.
    fn free_one(self, at: u64) -> Result<Spot<'a>, DataError> {
        Ok(self.spot(self.block(at)?.at))
    }

    /// Reads the block whose header is at `at`, and checks that there can be such a block.
    fn block(self, at: u64) -> Result<ArenaBlock, DataError> {
        let wrong = || DataError::corrupt(BLOCK, at as usize);
        if at < self.begin || at >= self.end || at % GRAIN != WORD {
            return Err(wrong());
        }
        let header = self.spot(at).word(0, BLOCK)?;
        let (length, flags) = (header & !FLAGS, header & FLAGS);
        if length < LEAST || length > self.end - at {
            Err(wrong())
        } else {
            Ok(ArenaBlock { at, length, flags })
        }
    }

    fn spot(self, at: u64) -> Spot<'a> {
        self.memory.spot_at(at)
    }

    /// The block of `bytes` at this offset, in [`GRAIN`]s from the first block on. `None` if there
    /// can be no such block.
    pub(crate) fn units(self, at: u64, bytes: u64) -> Option<Range<u64>> {
        let can_be = at.is_multiple_of(GRAIN)
            && at >= self.begin + WORD
            && bytes <= MOST
            && whole(bytes) <= self.end.saturating_sub(at - WORD);
        let first = at.checked_sub(self.begin + WORD)? / GRAIN;
        can_be.then(|| first..first + whole(bytes) / GRAIN)
    }

    /// Rebuilds the arena from the claimed blocks and the gaps between them. From `zeros` on no
    /// page exists, if that is known.
    ///
    /// # Errors
    /// [`DataError::Corrupt`]: the claims leave a gap before the first block in which no block
    /// fits.
    pub(crate) fn rebuild(self, claims: &Claims, zeros: Option<usize>) -> Result<(), DataError> {
        if self.end < self.begin.saturating_add(LEAST) {
            return Ok(());
        }
        self.words.zero(TOUCHED, WORDS)?;
        if let Some(zeros) = zeros {
            self.words.put_word(TOUCHED, zeros as u64, WORDS)?;
        }
        // The previous block, whose header is not written yet, and the bytes in use before it.
        let (mut last, mut used) = (None::<ArenaBlock>, 0);
        let (begin, end) = (self.begin, self.end);
        let write = |block: ArenaBlock, used: &mut u64| {
            *used += block.length;
            self.spot(block.at).put_word(0, block.length | block.flags, BLOCK)
        };
        let mut step = |at: u64, length: Option<u64>| {
            let ends = last.map_or(begin, |last| last.at + last.length);
            let gap = at
                .checked_sub(ends)
                .ok_or(DataError::corrupt("a block of its own", at as usize))?;
            // Too little for a block: the previous one gets it. The arena never leaves so little
            // before its first block.
            if gap > 0 && gap < LEAST {
                match &mut last {
                    Some(last) => last.length += gap,
                    None => return Err(DataError::corrupt("the first block", at as usize)),
                }
            }
            if let Some(last) = last {
                write(last, &mut used)?;
            }
            let flags = if gap >= LEAST {
                self.put(ArenaBlock { at: ends, length: gap, flags: FREE })?;
                AFTER_FREE
            } else {
                0
            };
            last = length.map(|length| ArenaBlock { at, length, flags });
            Ok(())
        };
        claims.each(|units| {
            step(begin + units.start * GRAIN, Some((units.end - units.start) * GRAIN))
        })?;
        step(end, None)?;
        self.words.put_word(USED, used, WORDS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::tests::Random;
    use upcall_shm::span::WritableSpan;

    fn memory(room: WritableSpan<'_>, arena: usize) -> Memory<'_> {
        Memory { arena, ..Memory::private(room) }
    }

    fn arena(words: &mut [u64]) -> Arena<'_> {
        Arena::new(memory(WritableSpan::of_words(words), 64))
    }

    /// Rebuilds the arena from these blocks.
    fn rebuild(arena: Arena<'_>, own: &[(u64, u64)]) {
        let mut claims = Claims::default();
        for &(at, bytes) in own {
            assert_eq!(claims.claim(arena.units(at, bytes).unwrap()), Ok(true));
        }
        arena.rebuild(&claims, None).unwrap();
    }

    /// Walks over all blocks. Returns the number of free bytes and of free blocks.
    fn walk(arena: Arena<'_>) -> (u64, u64) {
        let (mut at, mut free, mut blocks, mut used, mut was_free) = (arena.begin, 0, 0, 0, false);
        while at < arena.end {
            let block = arena.block(at).unwrap();
            let is_free = block.flags & FREE != 0;
            assert_eq!(block.flags & AFTER_FREE != 0, was_free, "at {at}");
            assert!(!(is_free && was_free), "two free ones beside each other at {at}");
            if is_free {
                free += block.length;
                blocks += 1;
            } else {
                used += block.length;
            }
            was_free = is_free;
            at += block.length;
        }
        assert_eq!((at, arena.used().unwrap()), (arena.end, used));
        (free, blocks)
    }

    #[test]
    fn blocks_are_apart_and_come_together_again() {
        for (seed, size) in [(1, 1 << 10), (2, 1 << 12), (3, 1 << 16)] {
            let mut words = vec![0; size];
            let arena = arena(&mut words);
            let (mut random, mut own, mut full) = (Random(seed), Vec::<(u64, u64)>::new(), 0);
            for step in 0..40_000 {
                let grows = random.below(if step / 4000 % 2 == 0 { 3 } else { 5 }) < 2;
                if grows {
                    let bytes = if random.below(20) == 0 {
                        random.below(size as u64)
                    } else {
                        random.below(200)
                    };
                    match arena.allocate(bytes) {
                        Ok(at) => {
                            assert!(at % 16 == 0 && arena.units(at, bytes).is_some());
                            assert!(
                                own.iter()
                                    .all(|&(other, long)| at + bytes <= other || other + long <= at)
                            );
                            own.push((at, bytes));
                        }
                        Err(error) => {
                            assert_eq!(error, DataError::Full { asked: bytes });
                            full += 1;
                        }
                    }
                } else if !own.is_empty() {
                    let (at, _) = own.swap_remove(random.below(own.len() as u64) as usize);
                    arena.free(at).unwrap();
                }
                if step % 100 == 0 && step > 0 {
                    walk(arena);
                }
            }
            assert!(full > 0 || size > 1 << 12);
            own.sort_unstable();
            let before = walk(arena);
            // An arena that is rebuilt from the same blocks has as much free memory, or more where
            // a length had been rounded up to that of the smallest block.
            rebuild(arena, &own);
            assert!(walk(arena).0 >= before.0);
            own.iter().for_each(|&(at, _)| arena.free(at).unwrap());
            assert_eq!(walk(arena), (arena.end - arena.begin, 1));
            assert_eq!(arena.used(), Ok(0));
        }
    }

    #[test]
    fn zeros_are_zeros() {
        let mut words = vec![0; 1 << 13];
        let room = WritableSpan::of_words(&mut words);
        let arena = Arena::new(memory(room, 64));
        let (mut random, mut own) = (Random(9), Vec::new());
        for _ in 0..4000 {
            let bytes = random.below(900);
            match arena.allocate_zeros(bytes) {
                Ok(at) if random.below(3) > 0 => {
                    assert!((at..at + bytes).all(|at| room.u8(at as usize) == Some(0)));
                    arena.spot(at).write(&vec![255; bytes as usize], "bytes").unwrap();
                    own.push((at, bytes));
                }
                Ok(at) => arena.free(at).unwrap(),
                Err(_) => own.drain(..).step_by(2).for_each(|(at, _)| arena.free(at).unwrap()),
            }
            if random.below(200) == 0 {
                own.sort_unstable();
                rebuild(arena, &own);
            }
        }
    }

    #[test]
    fn what_is_no_block_cannot_be_given_back() {
        let mut words = vec![0; 1 << 11];
        let arena = arena(&mut words);
        let (one, other) = (arena.allocate(100).unwrap(), arena.allocate(100).unwrap());
        for at in [0, 8, 64, one + 1, one + 16, other + 8, 1 << 14, u64::MAX, u64::MAX - 7] {
            assert!(matches!(arena.free(at), Err(DataError::Corrupt { .. })), "{at}");
        }
        arena.free(one).unwrap();
        assert!(matches!(arena.free(one), Err(DataError::Corrupt { .. })));
        arena.free(other).unwrap();
        assert!(matches!(arena.allocate(u64::MAX), Err(DataError::Full { .. })));
        assert!(matches!(arena.allocate(1 << 14), Err(DataError::Full { .. })));
        // There may be no room for any block at all.
        for size in [0, 1, 9, 600, 620] {
            let mut words = vec![0; size];
            let arena = Arena::new(memory(WritableSpan::of_words(&mut words), 0));
            assert!(arena.allocate(1).is_err(), "{size}");
        }
    }

    /// Each step ends and stays within the memory, for any content of it.
    #[test]
    fn nothing_in_it_is_believed() {
        for seed in 0..200 {
            let mut words = vec![0; 900];
            let room = WritableSpan::of_words(&mut words);
            let arena = Arena::new(memory(room, 64));
            let (mut random, mut own) = (Random(seed), Vec::new());
            for _ in 0..500 {
                match random.below(3) {
                    0 => {
                        let bytes = random.below(300);
                        if let Ok(at) = arena.allocate(bytes) {
                            assert!(arena.units(at, bytes).is_some(), "{bytes} bytes at {at}");
                            own.push(at);
                        }
                    }
                    1 if !own.is_empty() => {
                        _ = arena.free(own.swap_remove(random.below(own.len() as u64) as usize))
                    }
                    _ => {
                        let word = [
                            0,
                            random.below(7200),
                            random.below(450) * 16 + 8,
                            u64::MAX - random.below(9),
                            1 << random.below(64),
                        ];
                        let at = [64 + random.below(20) * 8, random.below(900) * 8]
                            [random.below(2) as usize];
                        room.put_u64(at as usize, word[random.below(5) as usize]).unwrap();
                    }
                }
            }
        }
    }
}
