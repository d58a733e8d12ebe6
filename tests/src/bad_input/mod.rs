//! Bad input for everything that reads what a peer wrote: one function for each reader, which takes
//! any bytes and panics if the reader does not keep its word.
//!
//! Two run them: `tests/fuzz/` by libFuzzer, which looks for bytes that lead somewhere new, and
//! `tests/bad_input.rs`, which bends good samples by chance from a seed, and needs nothing that
//! is not always there.

mod memory;
mod network;
mod text;

use crate::dice::Dice;
use std::fmt::Debug;

/// One reader's function, its name, and some bytes that are good.
#[derive(Clone, Copy)]
pub struct Target {
    /// The name, which is that of the target in `tests/fuzz/`.
    pub name: &'static str,
    /// Reads anything.
    pub read: fn(&[u8]),
    /// What is good, to begin with.
    pub samples: fn() -> Vec<Vec<u8>>,
}

impl Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// All of them.
pub const TARGETS: [Target; 8] = [
    Target { name: "control", read: memory::control, samples: memory::control_samples },
    Target { name: "request", read: memory::request, samples: memory::request_samples },
    Target { name: "values", read: memory::values, samples: memory::values_samples },
    Target { name: "frames", read: network::frames, samples: network::frames_samples },
    Target { name: "interface", read: text::interface, samples: text::interface_samples },
    Target { name: "limits", read: text::limits, samples: text::limits_samples },
    Target { name: "wave", read: text::wave, samples: text::wave_samples },
    Target { name: "names", read: text::names, samples: text::names_samples },
];

/// Messages as clients on other machines send them: the first one binds `trial` as number 3.
pub fn frame_samples() -> Vec<Vec<u8>> {
    network::frames_samples()
}

/// Has the target with this name read some bytes.
///
/// # Panics
/// There is none, or its reader does not keep its word.
pub fn read(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.unwrap_or_else(|| panic!("no target {name}")).read)(bytes);
}

/// Bends a sample: some bytes changed, taken out, put in, doubled, or taken from another.
pub fn bend(samples: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
    let any = |dice: &mut Dice| &samples[dice.below(samples.len() as u64) as usize];
    let mut bytes = any(dice).clone();
    for _ in 0..dice.below(6) {
        let len = bytes.len() as u64;
        let at = dice.below(len) as usize;
        let end = at + dice.below(len - at as u64 + 1).min(32) as usize;
        match dice.below(8) {
            0 => drop(bytes.drain(at..end)),
            1 => {
                let piece = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, piece));
            }
            2 => {
                let other = any(dice);
                let from = dice.below(other.len() as u64) as usize;
                let piece = other[from..other.len().min(from + 24)].to_vec();
                drop(bytes.splice(at..end, piece));
            }
            3 if len >= 8 => {
                let at = (at / 8 * 8).min(bytes.len() - 8);
                let word = [0, 1, dice.below(200), u64::MAX, 1 << dice.below(64), dice.any()]
                    [dice.below(6) as usize];
                bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            4 => bytes.insert(at, dice.any() as u8),
            5 => bytes.truncate(at),
            _ if len > 0 => {
                bytes[at] = [dice.any() as u8, bytes[at] ^ 1 << dice.below(8), 0, 0xff]
                    [dice.below(4) as usize]
            }
            _ => bytes = dice.bytes(40),
        }
    }
    bytes
}
