//! Arenas of other processes, in which this process has copies of blocks.
//!
//! Nothing else of such an arena is mapped here. To begin and to end the account of an arena takes
//! as long as half of a task's move, and tasks often move to and fro. So the account of the last
//! arena whose copies have all gone is kept.

use super::NotPlaced;
use super::mapped::{Kernel, MappedArena};
use crate::layout::{ARENA, ARENAS};

pub(super) struct ForeignArena {
    number: u32,
    arena: MappedArena<Kernel>,
    /// Nothing of it is mapped.
    is_unused: bool,
}

/// The arena becomes one of this process's own. Returns `false` if there are copies in it.
pub(super) fn leave(all: &mut Vec<ForeignArena>, number: u32) -> bool {
    all.retain(|one| one.number != number || !one.is_unused);
    all.iter().all(|one| one.number != number)
}

/// Takes exactly this memory, in an arena that is made if there is none yet.
pub(super) fn take(all: &mut Vec<ForeignArena>, address: u64, size: u32) -> Result<(), NotPlaced> {
    let at = match all.iter().position(|one| one.arena.contains(address)) {
        Some(at) => at,
        None => {
            all.try_reserve(1).map_err(|_| NotPlaced::NoMemory)?;
            let number = ((address - ARENAS) / ARENA) as u32;
            let arena = MappedArena::new(number, Kernel).map_err(|_| NotPlaced::NoMemory)?;
            all.push(ForeignArena { number, arena, is_unused: true });
            all.len() - 1
        }
    };
    all[at].arena.take_this(address, size).inspect_err(|_| end(all, at))?;
    all[at].is_unused = false;
    Ok(())
}

/// Gives back what [`take`] has taken.
pub(super) fn give(all: &mut Vec<ForeignArena>, address: u64, size: u32) {
    if let Some(at) = all.iter().position(|one| one.arena.contains(address)) {
        all[at].arena.give(address, size);
        end(all, at);
    }
}

/// Unmaps an arena without blocks, and drops the account of another one. An arena with memory that
/// the kernel does not unmap stays.
fn end(all: &mut Vec<ForeignArena>, at: usize) {
    if all[at].arena.end() {
        all[at].is_unused = true;
        let number = all[at].number;
        all.retain(|one| one.number == number || !one.is_unused);
    }
}
