//! Random changes, each checked against a model of what is known.

use super::*;
use std::collections::{BTreeMap, BTreeSet};

const ROUNDS: usize = 2000;

/// Numbers below a limit that look random, the same ones for each seed.
fn dice(mut state: u64) -> impl FnMut(usize) -> usize {
    move |end| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % end
    }
}

/// A block as the model has it.
#[derive(Default)]
struct Expected {
    holders: Vec<Block>,
    /// For an own block: the processes with twins.
    processes: BTreeSet<u32>,
    owner: u32,
    is_shared: bool,
    /// Whether all contents are there.
    is_filled: bool,
}

impl Expected {
    /// Whether the block's address is in use.
    fn is_taken(&self) -> bool {
        !self.holders.is_empty() || !self.processes.is_empty()
    }

    fn drop_one(&mut self) {
        self.holders.pop();
        self.is_shared &= !self.holders.is_empty();
    }

    fn clone_one(&mut self) {
        let more = self.holders.first().cloned();
        self.holders.extend(more);
    }

    fn returned(&mut self, process: u32) {
        if self.processes.remove(&process) && self.processes.is_empty() {
            self.is_shared = false;
            // The block is like any other of this process.
            self.is_filled = true;
        }
    }

    fn adopt(&mut self, name: BlockName, owner: u32) {
        let is_held = !self.holders.is_empty();
        self.is_filled &= is_held;
        self.is_shared = is_held;
        self.holders.push(match Block::adopt(name, owner) {
            Ok(Adopted::Here(block)) if self.is_filled => block,
            Ok(Adopted::Empty(block)) if !self.is_filled => {
                // What is written here is all that is in this block.
                block.fill(0, &name.address.to_le_bytes()).unwrap();
                block
            }
            other => panic!("{name:x?}: {other:?}"),
        });
    }

    fn filled(&mut self) {
        self.holders.iter().for_each(Block::filled);
        self.is_filled |= !self.holders.is_empty();
    }

    fn check(&self, name: BlockName) {
        for block in &self.holders {
            assert_eq!((block.name(), block.holders() as usize), (name, self.holders.len()));
            assert_eq!(block.is_shared_afar(), self.is_shared, "{name:x?}");
            assert_eq!(block.read(8), Some(name.address.to_le_bytes().to_vec()));
        }
    }
}

#[test]
fn own_blocks_are_as_a_model_of_them_says() {
    for seed in 0..10 {
        let mut dice = dice(seed);
        let mut all = BTreeMap::<BlockName, Expected>::new();
        for _ in 0..ROUNDS {
            if all.len() < 6 {
                let block = Block::new([8, 100, 70_000][dice(3)]).unwrap();
                block.fill(0, &block.name().address.to_le_bytes()).unwrap();
                let name = block.name();
                let before = all.insert(
                    name,
                    Expected { holders: vec![block], is_filled: true, ..Expected::default() },
                );
                assert!(before.is_none(), "{name:x?} is in use");
            }
            let name = *all.keys().nth(dice(all.len())).unwrap();
            let one = all.get_mut(&name).unwrap();
            let process = dice(4) as u32;
            match dice(9) {
                0..2 => one.drop_one(),
                2 => one.clone_one(),
                3 => {
                    let shared = dice(2) == 0;
                    held_afar(name, process, shared).unwrap();
                    one.processes.insert(process);
                    one.is_shared |= shared && !one.holders.is_empty();
                }
                4 => {
                    returned_from(name, process);
                    one.returned(process);
                }
                5 if dice(4) == 0 => {
                    process_ended(process);
                    all.values_mut().for_each(|one| one.returned(process));
                }
                6 if one.processes.is_empty() => {
                    assert_eq!(Block::adopt(name, 9).unwrap_err(), NotAdopted::NotLent);
                }
                6 => one.adopt(name, 9),
                7 => one.filled(),
                _ => {
                    one.is_shared |= !one.holders.is_empty();
                    one.holders.iter().for_each(Block::share_afar);
                }
            }
            all.retain(|_, one| one.is_taken());
            all.iter().for_each(|(name, one)| one.check(*name));
            let lent = all.values().filter(|one| !one.processes.is_empty()).count();
            assert_eq!((KNOWN.get(), has_returned()), (lent, false));
        }
        drop(all);
        (0..4).for_each(process_ended);
        assert_eq!(KNOWN.get(), 0);
    }
}

/// The addresses of a block.
fn range(name: BlockName) -> std::ops::Range<u64> {
    name.address..name.address + (1 << name.size)
}

#[test]
fn twins_are_as_a_model_of_them_says() {
    for seed in 0..10 {
        let mut dice = dice(seed);
        let mut all = BTreeMap::<BlockName, Expected>::new();
        let mut returned = BTreeSet::new();
        for _ in 0..ROUNDS {
            let size = [6, 7, 9, 15, 16, 17, 21][dice(7)];
            let start = ARENAS + (243 + dice(2) as u64 * 3) * ARENA;
            let name = BlockName { address: start + ((dice(3) as u64) << size), size };
            let owner = dice(2) as u32;
            let other = range(name);
            let is_in_use = all.keys().any(|one| {
                let one = range(*one);
                one.start < other.end && other.start < one.end
            });
            match dice(8) {
                0 => {
                    let taken = take_returned();
                    assert!(taken.iter().eq(&mem::take(&mut returned)));
                }
                1..4 => {
                    let Some(name) = all.keys().nth(dice(all.len().max(1))).copied() else {
                        continue;
                    };
                    let one = all.get_mut(&name).unwrap();
                    match dice(4) {
                        0 => one.clone_one(),
                        1 => one.filled(),
                        _ => one.drop_one(),
                    }
                    if one.holders.is_empty() {
                        returned.insert((one.owner, name));
                        all.remove(&name);
                    }
                }
                _ if all.get(&name).is_some_and(|one| one.owner != owner) => {
                    assert_eq!(Block::adopt(name, owner).unwrap_err(), NotAdopted::Owner);
                }
                _ if all.contains_key(&name) || !is_in_use => {
                    let one = all.entry(name).or_insert(Expected { owner, ..Expected::default() });
                    one.adopt(name, owner);
                    returned.remove(&(owner, name));
                }
                _ => assert_eq!(Block::adopt(name, owner).unwrap_err(), NotAdopted::InUse),
            }
            all.iter().for_each(|(name, one)| one.check(*name));
            assert_eq!((KNOWN.get(), has_returned()), (all.len(), !returned.is_empty()));
        }
        drop(all);
        take_returned();
        assert_eq!(KNOWN.get(), 0);
    }
}
