//! Random numbers that a seed repeats: xorshift, which is enough to disturb with.

/// A source of random numbers.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A seed from the clock, printed so that a failure can be looked into.
    pub fn thrown(what: &str) -> Self {
        let seed = crate::now();
        println!("{what}: seed {seed}");
        Self::new(seed)
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.any() % end.max(1)
    }

    /// So many random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.any() as u8).collect()
    }
}
