//! Arenas of other processes, in which this process has copies of blocks.
//!
//! Such an arena exists from its first copy to its last one. Nothing else of it is mapped here.

use super::NotPlaced;
use super::mapped::{Kernel, MappedArena};
use crate::layout::{ARENA, ARENAS};

pub(super) struct ForeignArena {
    number: u32,
    arena: MappedArena<Kernel>,
}

impl ForeignArena {
    pub(super) fn number(&self) -> u32 {
        self.number
    }
}

/// Takes exactly this memory, in an arena that is made if there is none yet.
pub(super) fn take(all: &mut Vec<ForeignArena>, address: u64, size: u32) -> Result<(), NotPlaced> {
    let at = match all.iter().position(|one| one.arena.contains(address)) {
        Some(at) => at,
        None => {
            all.try_reserve(1).map_err(|_| NotPlaced::NoMemory)?;
            let number = ((address - ARENAS) / ARENA) as u32;
            let arena = MappedArena::new(number, Kernel).map_err(|_| NotPlaced::NoMemory)?;
            all.push(ForeignArena { number, arena });
            all.len() - 1
        }
    };
    all[at].arena.take_this(address, size).inspect_err(|_| end(all, at))
}

/// Gives back what [`take`] has taken.
pub(super) fn give(all: &mut Vec<ForeignArena>, address: u64, size: u32) {
    if let Some(at) = all.iter().position(|one| one.arena.contains(address)) {
        all[at].arena.give(address, size);
        end(all, at);
    }
}

/// Drops an arena that has no block. One with memory that the kernel does not unmap stays.
fn end(all: &mut Vec<ForeignArena>, at: usize) {
    if all[at].arena.end() {
        all.swap_remove(at);
    }
}
