//! Bad input for every reader of a peer's bytes: one function for each reader, which takes
//! arbitrary bytes and panics if the reader breaks its contract.
//!
//! Two drivers run them. `tests/fuzz/` uses libFuzzer, which searches for bytes that reach new
//! code. `tests/bad_input.rs` mutates good samples at random from a seed, and needs no tool that
//! may be missing.

mod hosts;
mod memory;
mod network;
mod text;

use crate::dice::Dice;
use std::fmt::Debug;
use upcall_net::identity::{HostName, Stranger};

/// The function for one reader, with its name and some valid input.
#[derive(Clone, Copy)]
pub struct Target {
    /// The name of the target, the same as in `tests/fuzz/`.
    pub name: &'static str,
    /// Feeds arbitrary bytes to the reader.
    pub read: fn(&[u8]),
    /// Valid input to start from.
    pub samples: fn() -> Vec<Vec<u8>>,
}

impl Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// All targets.
pub const TARGETS: [Target; 9] = [
    Target { name: "control", read: memory::control, samples: memory::control_samples },
    Target { name: "request", read: memory::request, samples: memory::request_samples },
    Target { name: "values", read: memory::values, samples: memory::values_samples },
    Target { name: "frames", read: network::frames, samples: network::frames_samples },
    Target { name: "hosts", read: hosts::hosts, samples: hosts::hosts_samples },
    Target { name: "interface", read: text::interface, samples: text::interface_samples },
    Target { name: "limits", read: text::limits, samples: text::limits_samples },
    Target { name: "wave", read: text::wave, samples: text::wave_samples },
    Target { name: "names", read: text::names, samples: text::names_samples },
];

/// Messages as sent by clients on other machines. The first one binds `trial` as number 3.
pub fn frame_samples() -> Vec<Vec<u8>> {
    network::frames_samples()
}

/// Returns the verdict on the first sample of the target `hosts` while its certificates are valid.
pub fn first_verdict() -> Result<HostName, Stranger> {
    hosts::first_verdict()
}

/// Feeds `bytes` to the target with this name.
///
/// # Panics
/// If there is no such target, or if its reader breaks its contract.
pub fn read(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.unwrap_or_else(|| panic!("no target {name}")).read)(bytes);
}

/// Mutates a sample: changes, removes, inserts or doubles some bytes, or copies some from another
/// sample.
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
