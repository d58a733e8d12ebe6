//! Random numbers that a seed reproduces: SplitMix64, whose low bits are as random as the high ones
//! from the first number on.

/// A source of random numbers.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Creates a source. The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Takes the seed from the variable `UPCALL_SEED`, or from the clock, and prints it so that a
    /// failure can be reproduced.
    pub fn thrown(what: &str) -> Self {
        let given = std::env::var("UPCALL_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(crate::now);
        println!("{what}: seed {seed}");
        Self::new(seed)
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.any() % end.max(1)
    }

    /// Returns `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.any() as u8).collect()
    }
}
