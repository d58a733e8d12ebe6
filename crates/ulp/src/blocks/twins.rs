//! Blocks with copies in several processes, which have one address in all of them.
//!
//! A ULP that moves to another process takes its blocks along, and knows their addresses. The
//! address of a block is in an arena of one process, its **owner**. A copy elsewhere is a **twin**.
//!
//! | where | what is known of a block |
//! |---|---|
//! | owner | which processes have twins; its address stays taken while there is one |
//! | other process | who the owner is; the last holder's end is [reported](take_returned) to it |
//!
//! While a block has copies, none of them is written to ([`Block::share_afar`]). So a message need
//! not bring contents that are here already ([`Adopted::Here`]). A block that has twins, but no
//! holder at its owner, is **hollow** there: its address is taken, and its contents are dropped.
//!
//! Messages between the processes are the caller's. The names in them are checked here, since they
//! may be wrong. All state belongs to the calling thread, as blocks do. A thread that ends leaves
//! the addresses of its hollow blocks taken. No function here blocks.

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use super::{Block, BlockHeader, LEAST, LENT, UlpPause, free, thread};
use crate::arena::{self, NotPlaced};
use crate::layout::{ARENA, ARENA_COUNT, ARENAS};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::{fmt, mem, slice};

/// The name of a block, which is the same for all of its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlockName {
    /// The block's address, which is 16 bytes before its data.
    pub address: u64,
    /// Logarithm of the block's size in bytes.
    pub size: u32,
}

impl BlockName {
    /// What a [`Block`] of this name consists of. Returns `None` if no block has such a name.
    fn word(self) -> Option<NonZeroU64> {
        let is_name = (LEAST.trailing_zeros()..=arena::MOST).contains(&self.size)
            && (ARENAS..ARENAS + ARENA_COUNT * ARENA).contains(&self.address)
            && self.address.is_multiple_of(1 << self.size);
        NonZeroU64::new(self.address | u64::from(self.size)).filter(|_| is_name)
    }

    /// The number of the arena that the block is in. Returns `None` if no block has such a name.
    pub fn arena(self) -> Option<u32> {
        self.word().map(|_| ((self.address - ARENAS) / ARENA) as u32)
    }

    /// Returns `true` if this thread holds this block, which is in an own arena.
    fn is_held_here(self) -> bool {
        let words = self.word().and_then(|_| arena::first_words(self.address, self.size));
        words.is_some_and(|[holders, of]| holders as u32 > 0 && of == thread())
    }

    fn head(self) -> *mut BlockHeader {
        self.address as *mut BlockHeader
    }
}

/// A block whose name came from another process.
#[derive(Debug)]
pub enum Adopted {
    /// A copy was here already, and has the same contents. No ULP may write to it.
    Here(Block),
    /// The contents are to be [filled](Block::fill) in, followed by [`Block::filled`].
    ///
    /// They are unspecified. If there are several holders, each of them fills them in, since none
    /// can rely on the others.
    Empty(Block),
}

/// The reason why a block cannot be adopted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAdopted {
    /// No block has such a name.
    Name,
    /// The block is of an arena of this process's own, and no other process has a copy.
    NotLent,
    /// A copy is here already, and is of another owner.
    Owner,
    /// Another block or mapping is at the address.
    InUse,
    /// There is no memory, or no addresses.
    NoMemory,
}

impl fmt::Display for NotAdopted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Name => "no block has such an address and size",
            Self::NotLent => "the block is this process's, and no other process has a copy",
            Self::Owner => "the block is here already, and belongs to another process",
            Self::InUse => "another block or mapping is at the block's address",
            Self::NoMemory => "there is no memory for the block",
        })
    }
}

impl std::error::Error for NotAdopted {}

/// The reason why a block cannot be lent to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotLent {
    /// This thread has no such block in an arena of the process's own.
    UnknownBlock,
    /// There is no memory to keep account of it.
    NoMemory,
}

impl fmt::Display for NotLent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownBlock => "this process has no such block",
            Self::NoMemory => "there is no memory to keep account of the block's copies",
        })
    }
}

impl std::error::Error for NotLent {}

/// The reason why a block cannot be filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotFilled {
    /// The block has other holders and is no twin, or bytes of some block are [lent](Block::lent).
    Held,
    /// The block is smaller.
    Bounds,
    /// Another holder has [filled](Block::filled) the block.
    Filled,
}

impl fmt::Display for NotFilled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Held => "the block has several holders, or is being read",
            Self::Bounds => "the block is too small for these bytes",
            Self::Filled => "the block has its contents",
        })
    }
}

impl std::error::Error for NotFilled {}

impl Block {
    /// The name under which other processes know this block.
    pub fn name(&self) -> BlockName {
        BlockName { address: self.head() as u64, size: self.power() as u32 }
    }

    /// Notes that another process may have a copy, so that no ULP writes to this one.
    pub fn share_afar(&self) {
        // SAFETY: the block lives as long as it is held, and no ULP runs while the host does.
        unsafe { (*self.head()).afar = 1 };
    }

    /// Returns `true` if another process may have a copy, so that no ULP writes to this one.
    pub fn is_shared_afar(&self) -> bool {
        // SAFETY: as in `share_afar`.
        unsafe { (*self.head()).afar != 0 }
    }

    /// Adds a holder to the block with this name, which a message from another process brings.
    ///
    /// The block belongs to process `owner`, unless its address is in an arena of this process's
    /// own.
    ///
    /// # Errors
    /// See [`NotAdopted`]. Nothing has changed then.
    pub fn adopt(name: BlockName, owner: u32) -> Result<Adopted, NotAdopted> {
        let word = name.word().ok_or(NotAdopted::Name)?;
        with_twins(|twins| {
            if arena::is_own(name.address) {
                twins.adopt_own(name, word)
            } else {
                twins.adopt_foreign(name, word, owner)
            }
        })
    }

    /// One more holder of a block that this thread holds, and that no ULP may write to.
    ///
    /// # Safety
    /// This thread holds the block.
    unsafe fn another(word: NonZeroU64) -> Self {
        let block = Self { word, _thread: PhantomData };
        block.hold(1);
        block.share_afar();
        block
    }

    /// Copies `bytes` into the data, `offset` bytes after its beginning.
    ///
    /// Copies nothing if another holder has [filled](Self::filled) the block before, since then
    /// these bytes are the same.
    ///
    /// # Errors
    /// See [`NotFilled`]. Nothing has changed then.
    pub fn fill(&self, offset: usize, bytes: &[u8]) -> Result<(), NotFilled> {
        self.fill_with(offset, bytes.len(), |to| to.copy_from_slice(bytes))
    }

    /// Lets `copy` overwrite `length` bytes from an offset on, as [`fill`](Self::fill) does.
    ///
    /// # Errors
    /// See [`NotFilled`]. Nothing has changed then.
    pub fn fill_with(
        &self,
        offset: usize,
        length: usize,
        copy: impl FnOnce(&mut [u8]),
    ) -> Result<(), NotFilled> {
        match self.check_fill(offset, length) {
            Ok(()) => {}
            Err(NotFilled::Filled) => return Ok(()),
            Err(error) => return Err(error),
        }
        let to = (self.address() + offset as u64) as *mut u8;
        let _lent = UlpPause::begin();
        // SAFETY: the block has these bytes, all of which were written once, if only by the kernel.
        // No other reference to them is there, since no block's bytes were lent until now; and no
        // ULP runs while `UlpPause` lives.
        copy(unsafe { slice::from_raw_parts_mut(to, length) });
        Ok(())
    }

    /// Returns an error if these bytes must not be written.
    pub(crate) fn check_fill(&self, offset: usize, length: usize) -> Result<(), NotFilled> {
        let end = offset.checked_add(length).filter(|end| *end <= self.capacity());
        end.ok_or(NotFilled::Bounds)?;
        if LENT.get() > 0 {
            return Err(NotFilled::Held);
        }
        if self.holders() == 1 {
            return Ok(());
        }
        match with_twins(|twins| twins.state(self.name()).copied()) {
            Some(TwinState::Filled) => Err(NotFilled::Filled),
            Some(TwinState::Filling) => Ok(()),
            Some(TwinState::Hollow) | None => Err(NotFilled::Held),
        }
    }

    /// Notes that all contents are filled in, so that [`Adopted::Here`] is true of this block.
    pub fn filled(&self) {
        with_twins(|twins| twins.state(self.name()).map(|state| *state = TwinState::Filled));
    }
}

/// An own block with twins.
struct LentBlock {
    /// The processes that have twins. There is at least one.
    processes: Vec<u32>,
    state: TwinState,
}

/// A block of another process, which this thread holds.
struct ForeignBlock {
    owner: u32,
    state: TwinState,
}

/// What this thread has of a block with copies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TwinState {
    /// The thread holds the block.
    Filled,
    /// The thread holds the block, but not all of its contents.
    Filling,
    /// The thread holds nothing. The block is its own.
    Hollow,
}

/// What this thread knows of copies in other processes.
#[derive(Default)]
struct BlockTwins {
    lent: HashMap<BlockName, LentBlock>,
    foreign: HashMap<BlockName, ForeignBlock>,
    /// Such blocks that are no longer here, and have not been reported to their owners.
    returned: HashSet<(u32, BlockName)>,
}

thread_local! {
    static TWINS: RefCell<BlockTwins> = RefCell::default();
    /// Number of blocks in `lent` and `foreign`.
    static KNOWN: Cell<usize> = const { Cell::new(0) };
    /// Number of blocks in `returned`.
    static RETURNED: Cell<usize> = const { Cell::new(0) };
}

fn with_twins<R>(change: impl FnOnce(&mut BlockTwins) -> R) -> R {
    TWINS.with_borrow_mut(|twins| {
        let result = change(twins);
        twins.count();
        result
    })
}

impl BlockTwins {
    fn count(&self) {
        KNOWN.set(self.lent.len() + self.foreign.len());
        RETURNED.set(self.returned.len());
    }

    fn adopt_own(&mut self, name: BlockName, word: NonZeroU64) -> Result<Adopted, NotAdopted> {
        let lent = self.lent.get_mut(&name).ok_or(NotAdopted::NotLent)?;
        if lent.state == TwinState::Hollow {
            lent.state = TwinState::Filling;
            // SAFETY: the memory of a hollow block is taken, and not in use.
            return Ok(Adopted::Empty(unsafe { Block::begin(word) }));
        }
        if !name.is_held_here() {
            return Err(NotAdopted::NotLent);
        }
        // SAFETY: this thread holds the block.
        Ok(lent.state.adopted(unsafe { Block::another(word) }))
    }

    fn adopt_foreign(
        &mut self,
        name: BlockName,
        word: NonZeroU64,
        owner: u32,
    ) -> Result<Adopted, NotAdopted> {
        if let Some(known) = self.foreign.get(&name) {
            if known.owner != owner {
                return Err(NotAdopted::Owner);
            }
            // SAFETY: a block is in `foreign` as long as this thread holds it.
            return Ok(known.state.adopted(unsafe { Block::another(word) }));
        }
        self.foreign.try_reserve(1).map_err(|_| NotAdopted::NoMemory)?;
        arena::take_foreign(name.address, name.size).map_err(|error| match error {
            NotPlaced::InUse => NotAdopted::InUse,
            NotPlaced::NoMemory => NotAdopted::NoMemory,
        })?;
        self.foreign.insert(name, ForeignBlock { owner, state: TwinState::Filling });
        // What the owner has not been told did not happen.
        self.returned.remove(&(owner, name));
        // SAFETY: the memory was taken just now.
        Ok(Adopted::Empty(unsafe { Block::begin(word) }))
    }

    fn state(&mut self, name: BlockName) -> Option<&mut TwinState> {
        let foreign = self.foreign.get_mut(&name).map(|twin| &mut twin.state);
        foreign.or_else(|| self.lent.get_mut(&name).map(|lent| &mut lent.state))
    }

    fn held_afar(&mut self, name: BlockName, process: u32) -> Result<(), NotLent> {
        if let Some(lent) = self.lent.get_mut(&name) {
            if !lent.processes.contains(&process) {
                lent.processes.try_reserve(1).map_err(|_| NotLent::NoMemory)?;
                lent.processes.push(process);
            }
            return Ok(());
        }
        if !name.is_held_here() {
            return Err(NotLent::UnknownBlock);
        }
        let mut processes = Vec::new();
        processes.try_reserve(1).map_err(|_| NotLent::NoMemory)?;
        processes.push(process);
        self.lent.try_reserve(1).map_err(|_| NotLent::NoMemory)?;
        self.lent.insert(name, LentBlock { processes, state: TwinState::Filled });
        Ok(())
    }

    fn unheld(&mut self, name: BlockName) -> Unheld {
        if let Some(lent) = self.lent.get_mut(&name) {
            lent.state = TwinState::Hollow;
            arena::empty(name.address, name.size);
            return Unheld::Stays;
        }
        let Some(twin) = self.foreign.remove(&name) else { return Unheld::Free };
        arena::give_foreign(name.address, name.size);
        // Without memory for the report, the owner keeps the address, which does no harm.
        if self.returned.try_reserve(1).is_ok() {
            self.returned.insert((twin.owner, name));
        }
        self.count();
        Unheld::Stays
    }
}

impl TwinState {
    /// What one more holder of a block in this state has adopted.
    fn adopted(self, block: Block) -> Adopted {
        match self {
            Self::Filled => Adopted::Here(block),
            Self::Filling | Self::Hollow => Adopted::Empty(block),
        }
    }
}

impl LentBlock {
    /// Takes note that a process has no twin. Returns `true` if another one has.
    fn remove(&mut self, name: BlockName, process: u32) -> bool {
        self.processes.retain(|one| *one != process);
        if !self.processes.is_empty() {
            return true;
        }
        match self.state {
            TwinState::Hollow => free(name.address, name.size as usize),
            TwinState::Filled | TwinState::Filling => set_afar(name, 0),
        }
        false
    }
}

fn set_afar(name: BlockName, afar: u32) {
    if name.is_held_here() {
        // SAFETY: this thread holds the block, and no ULP runs while the host does.
        unsafe { (*name.head()).afar = afar };
    }
}

/// What becomes of a block without a holder.
#[derive(PartialEq, Eq)]
pub(super) enum Unheld {
    /// The memory is free.
    Free,
    /// The address stays taken, or is free already.
    Stays,
}

/// Notes that this block has no holder here any more.
#[inline]
pub(super) fn unheld(name: BlockName) -> Unheld {
    if KNOWN.get() == 0 { Unheld::Free } else { unheld_where_twins_are(name) }
}

#[cold]
fn unheld_where_twins_are(name: BlockName) -> Unheld {
    // At the thread's end it is not known any more which addresses have to stay taken.
    let unheld = TWINS.try_with(|twins| twins.try_borrow_mut().map(|mut twins| twins.unheld(name)));
    unheld.ok().and_then(Result::ok).unwrap_or(Unheld::Stays)
}

/// Notes that `process` has a copy of a block whose address is in an arena of this process's own.
///
/// With `shared`, no ULP may write to the block if it has holders here.
///
/// # Errors
/// See [`NotLent`]. Nothing has changed then.
pub fn held_afar(name: BlockName, process: u32, shared: bool) -> Result<(), NotLent> {
    with_twins(|twins| twins.held_afar(name, process))?;
    if shared {
        set_afar(name, 1);
    }
    Ok(())
}

/// Notes that `process` has no copy of this block any more. An unknown block is ignored.
///
/// If no other process has one, the address of a hollow block becomes free, and holders here may
/// write to the block again.
pub fn returned_from(name: BlockName, process: u32) {
    with_twins(|twins| {
        if twins.lent.get_mut(&name).is_some_and(|lent| !lent.remove(name, process)) {
            twins.lent.remove(&name);
        }
    });
}

/// Notes that `process` has ended: it has no copies any more, as with [`returned_from`].
pub fn process_ended(process: u32) {
    with_twins(|twins| twins.lent.retain(|name, lent| lent.remove(*name, process)));
}

/// The owner of a block that this thread holds. Returns `None` if its arena is this process's own.
pub fn owner(name: BlockName) -> Option<u32> {
    with_twins(|twins| twins.foreign.get(&name).map(|twin| twin.owner))
}

/// Takes the blocks of other processes without a holder here, each with its owner.
///
/// The caller reports each to its owner, which calls [`returned_from`]. A block that is adopted
/// again before this call is not among them. They are in order.
pub fn take_returned() -> Vec<(u32, BlockName)> {
    let returned = with_twins(|twins| mem::take(&mut twins.returned));
    let mut returned = returned.into_iter().collect::<Vec<_>>();
    returned.sort_unstable();
    returned
}

/// Returns `true` if [`take_returned`] returns blocks.
#[inline]
pub fn has_returned() -> bool {
    RETURNED.get() > 0
}
