//! Random numbers that a seed reproduces: SplitMix64, as in `upcall-tests`, which is above this
//! crate.

use std::cell::Cell;

/// A source of random numbers.
#[derive(Clone, Debug)]
pub struct Dice(Cell<u64>);

impl Dice {
    /// Creates a source. The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(Cell::new(seed))
    }

    /// Any number.
    pub fn any(&self) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        mixed(self.0.get())
    }

    /// A number below `end`.
    pub fn below(&self, end: u64) -> u64 {
        self.any() % end.max(1)
    }

    /// Returns `true` once in `times` calls on average.
    pub fn once_in(&self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of these.
    pub fn one_of<T: Copy>(&self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// A number below `end`, whose magnitudes are equally likely.
    pub fn magnitude(&self, end: u64) -> u64 {
        let bits = 64 - end.max(2).leading_zeros() as u64;
        let most = 1 << self.below(bits);
        self.below(end.min(2 * most))
    }
}

/// Hashes a number, so that the result looks random.
pub fn mixed(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
