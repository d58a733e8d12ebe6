//! The payloads of calls and their checks: the same few functions for every system, so that their
//! cost is the same too.
//!
//! The client rewrites every byte of the argument for each call, the server reads every byte into a
//! checksum, and the client compares. Words in arithmetic progression have a sum in closed form, so
//! the client knows the right answer without reading the argument again.
//!
//! [`fill`] and [`checksum`] are never inlined. Copies of their loops would lie at different
//! addresses of the program, and at 1 MiB the address of a loop alone has changed a call's time by
//! a third: so one copy serves all systems.

use crate::case::BIG;

/// Difference between two words of a payload (odd, so that every byte position changes).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Writes every byte of `buffer`: the words `seed`, `seed` + step, `seed` + 2 steps, ….
#[inline(never)]
pub fn fill(buffer: &mut [u8], seed: u64) {
    let (words, rest) = buffer.as_chunks_mut::<8>();
    let mut value = seed;
    for word in words {
        *word = value.to_le_bytes();
        value = value.wrapping_add(STEP);
    }
    rest.copy_from_slice(&value.to_le_bytes()[..rest.len()]);
}

/// Reads every byte of `bytes`. Returns the wrapping sum of its little-endian words, the last one
/// padded with zeros.
#[inline(never)]
pub fn checksum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut sum = Checksum::default();
    for word in words {
        sum.word(u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    sum.word(u64::from_le_bytes(last));
    sum.value()
}

/// An incremental checksum, for systems that see the argument as words or in pieces of whole words.
#[derive(Debug, Default, Clone, Copy)]
pub struct Checksum(u64);

impl Checksum {
    /// Adds one word.
    #[inline]
    pub fn word(&mut self, word: u64) {
        self.0 = self.0.wrapping_add(word);
    }

    /// Adds a piece. Every piece but the last must be a whole number of words.
    #[inline]
    pub fn piece(&mut self, bytes: &[u8]) {
        self.word(checksum(bytes));
    }

    /// Returns the sum so far.
    #[inline]
    pub fn value(self) -> u64 {
        self.0
    }
}

/// Returns the checksum of `len` bytes written by [`fill`] with `seed`, without reading them.
pub fn expected(len: usize, seed: u64) -> u64 {
    let words = (len / 8) as u64;
    let pairs = words * words.saturating_sub(1) / 2;
    let last = seed.wrapping_add(STEP.wrapping_mul(words));
    let mask = (1u64 << (8 * (len % 8))) - 1;
    seed.wrapping_mul(words).wrapping_add(STEP.wrapping_mul(pairs)).wrapping_add(last & mask)
}

/// The server's answers, the same in every system.
pub mod answer {
    use super::{BIG, checksum, fill};

    /// `add`.
    #[inline]
    pub fn add(a: i32, b: i32) -> i32 {
        a.wrapping_add(b)
    }

    /// `bigin` and `in-*`: the checksum of the argument.
    #[inline]
    pub fn bytes_in(data: &[u8]) -> u64 {
        checksum(data)
    }

    /// `biginout`: a payload whose seed is the checksum of the argument.
    #[inline]
    pub fn big_in_out(data: &[u8]) -> [u8; BIG] {
        let mut out = [0; BIG];
        fill(&mut out, checksum(data));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closed_form_agrees_with_reading() {
        for len in [0, 1, 7, 8, 9, 200, 4096, 65_536, 65_543] {
            for seed in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef] {
                let mut buffer = vec![0; len];
                fill(&mut buffer, seed);
                assert_eq!(checksum(&buffer), expected(len, seed), "{len} bytes, seed {seed}");
            }
        }
    }

    #[test]
    fn a_changed_byte_changes_the_sum() {
        let mut buffer = vec![0; 203];
        fill(&mut buffer, 5);
        let before = checksum(&buffer);
        for at in [0, 100, 199, 202] {
            buffer[at] ^= 1;
            assert_ne!(checksum(&buffer), before);
            buffer[at] ^= 1;
        }
    }

    #[test]
    fn pieces_sum_to_the_whole() {
        let mut buffer = vec![0; 203];
        fill(&mut buffer, 5);
        let mut sum = Checksum::default();
        sum.piece(&buffer[..64]);
        sum.piece(&buffer[64..]);
        assert_eq!(sum.value(), checksum(&buffer));
    }
}
