//! Addresses of message blocks: arenas of 16 GiB each, numbered for a whole machine.
//!
//! No two processes of a machine have an arena of one number. So a block has an address that no
//! block of another process has, and a ULP can be in any process without a pointer into a message
//! changing. The machine's first process gives out the numbers (`crates/pvm`).
//!
//! ```text
//!  1 TiB   slots, 1 GiB each                  15 TiB   arenas, 16 GiB each              19 TiB
//! ```
//! An arena is private memory of its process, mapped as blocks need it (`mapped.rs`). What is in
//! use is written down in the host's own memory (`tree.rs`). In the arena a task could overwrite
//! that.
//!
//! # Why these addresses
//! The kernel puts mappings of its own choice far above, below the highest stack that the limit of
//! the stack allows. With an unlimited stack that is at 20.3 to 21.3 TiB, and goes down from there.
//! A machine with `vm.mmap_rnd_bits` of 32 may have it anywhere above 5.3 TiB. So [`begin`] refuses
//! where such mappings could come into slots and arenas.

mod foreign;
mod mapped;
#[cfg(test)]
mod tests;
mod tree;

use crate::layout::{ARENA, ARENA_COUNT, ARENAS, FIRST};
use foreign::ForeignArena;
use mapped::{Kernel, MappedArena};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fmt, io, ptr};

/// Logarithm of the largest block's size, in bytes: half of an arena.
pub(crate) const MOST: u32 = tree::WHOLE - 1;

/// Bytes of addresses above the arenas into which the kernel's own mappings may grow down.
const ROOM: u64 = 1 << 40;

/// The number of an arena, taken in this process until it is dropped.
///
/// A machine's first process takes a number for each other process. Arena 0 is for processes that
/// have been given none.
#[derive(Debug)]
pub struct ArenaNumber(u32);

/// A bit for each number: taken or free.
static TAKEN: Mutex<[u64; ARENA_COUNT as usize / 64]> = Mutex::new([0; ARENA_COUNT as usize / 64]);

impl ArenaNumber {
    /// Number of arenas of a machine.
    pub const COUNT: u32 = ARENA_COUNT as u32;

    /// Takes the lowest free number except 0. Returns `None` if all are taken.
    pub fn take() -> Option<Self> {
        (1..ARENA_COUNT as u32).find_map(Self::take_this)
    }

    /// Takes this number. Returns `None` if it is taken in this process, or does not exist.
    pub fn take_this(number: u32) -> Option<Self> {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let (word, bit) = (taken.get_mut(number as usize / 64)?, 1 << (number % 64));
        (*word & bit == 0).then(|| {
            *word |= bit;
            Self(number)
        })
    }

    /// The number itself.
    pub fn number(&self) -> u32 {
        self.0
    }
}

impl Drop for ArenaNumber {
    fn drop(&mut self) {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        taken[self.0 as usize / 64] &= !(1 << (self.0 % 64));
    }
}

/// The reason why this process cannot have an arena.
#[derive(Debug)]
pub enum NoArena {
    /// The kernel refuses its addresses, or memory to keep account of them.
    Kernel {
        /// The arena's number.
        number: u32,
        /// The kernel's error. `EEXIST`: another mapping is there.
        error: io::Error,
    },
    /// The kernel puts mappings of its own choice among slots and arenas, as this one.
    Low {
        /// Address of a mapping.
        address: u64,
    },
    /// The process's blocks have addresses of another arena already.
    Another {
        /// The number of that arena.
        own: u32,
    },
}

impl fmt::Display for NoArena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel { number, error } => {
                let start = ARENAS + u64::from(*number) * ARENA;
                write!(f, "no memory for messages at {start:#x} to {:#x}: {error}", start + ARENA)?;
                if error.raw_os_error() == Some(libc::EEXIST) {
                    f.write_str(". Free these addresses, or run `ulimit -s 8192` first")?;
                }
                Ok(())
            }
            Self::Low { address } => write!(
                f,
                "the kernel maps memory at {address:#x}, among the addresses of tasks and \
                 messages: run `ulimit -s 8192` first"
            ),
            Self::Another { own } => write!(
                f,
                "the messages of this process have addresses of arena {own} already: use another \
                 process"
            ),
        }
    }
}

impl std::error::Error for NoArena {}

/// The reason why a block cannot have a certain address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotPlaced {
    /// Another block or mapping is there, or in a part of it.
    InUse,
    /// There is no memory, or none to keep account of it.
    NoMemory,
}

/// The arenas of this process. Blocks come from the first arena with room.
struct Arenas {
    all: Vec<(ArenaNumber, MappedArena<Kernel>)>,
    /// Arenas of other processes, in which this process has copies of blocks.
    foreign: Vec<ForeignArena>,
    /// Whether [`wants_more`] has returned `true` since the last arena was added.
    asked: bool,
}

static ARENAS_HERE: Mutex<Arenas> =
    Mutex::new(Arenas { all: Vec::new(), foreign: Vec::new(), asked: false });

fn arenas() -> MutexGuard<'static, Arenas> {
    ARENAS_HERE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Arenas {
    /// The arena of this process's own that an address is in.
    fn own(&mut self, address: u64) -> Option<&mut MappedArena<Kernel>> {
        self.all.iter_mut().map(|(_, arena)| arena).find(|arena| arena.contains(address))
    }

    fn add(&mut self, number: ArenaNumber) -> Result<(), NoArena> {
        let refused = |error| NoArena::Kernel { number: number.0, error };
        if !foreign::leave(&mut self.foreign, number.0) {
            return Err(refused(Errno::EXIST.into()));
        }
        self.all.try_reserve(1).map_err(|_| refused(Errno::NOMEM.into()))?;
        let mut arena = MappedArena::new(number.0, Kernel).map_err(refused)?;
        arena.begin().map_err(|error| refused(error.into()))?;
        self.all.push((number, arena));
        self.asked = false;
        Ok(())
    }

    /// Makes sure that there is an arena: this one, or any.
    fn begin(&mut self, number: Option<ArenaNumber>) -> Result<(), NoArena> {
        match (self.all.first(), number) {
            (Some(_), None) => Ok(()),
            (Some((own, _)), Some(_)) => Err(NoArena::Another { own: own.0 }),
            (None, number) => {
                if let Some(address) = place_of_mappings().filter(|address| is_low(*address)) {
                    return Err(NoArena::Low { address });
                }
                let first = || ArenaNumber::take_this(0).ok_or(NoArena::Another { own: 0 });
                self.add(number.map_or_else(first, Ok)?)
            }
        }
    }
}

/// Returns `true` if mappings of the kernel's choice may come among slots and arenas.
fn is_low(address: u64) -> bool {
    (FIRST..ARENAS + ARENA_COUNT * ARENA + ROOM).contains(&address)
}

/// Where the kernel puts a mapping now. Returns `None` if it refuses one.
fn place_of_mappings() -> Option<u64> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: maps fresh memory, at an address of the kernel's choice.
    let at = unsafe { mmap_anonymous(ptr::null_mut(), 1, ProtFlags::empty(), flags) }.ok()?;
    // SAFETY: mapped just now, and not used.
    unsafe { munmap(at, 1) }.ok()?;
    Some(at as u64)
}

/// Begins the process's first arena, if it has none: the one with this number, or else arena 0.
pub(crate) fn begin(number: Option<ArenaNumber>) -> Result<(), NoArena> {
    arenas().begin(number)
}

/// Adds an arena with this number.
///
/// # Errors
/// See [`NoArena`].
pub fn add(number: ArenaNumber) -> Result<(), NoArena> {
    arenas().add(number)
}

/// Returns `true`, once for each arena, if no half of one is left in one piece.
///
/// The caller is to [add] another arena.
pub fn wants_more() -> bool {
    let mut arenas = arenas();
    let wants =
        !arenas.asked && !arenas.all.is_empty() && !arenas.all.iter().any(|one| one.1.has_half());
    arenas.asked |= wants;
    wants
}

/// Takes memory of 2^`size` bytes, at a multiple of its size. Returns `None` if there is none.
///
/// Its contents are unspecified, but were written, if only by the kernel.
pub(crate) fn take(size: u32) -> Option<u64> {
    let mut arenas = arenas();
    arenas.begin(None).ok()?;
    arenas.all.iter_mut().find_map(|(_, arena)| arena.take(size))
}

/// Gives back what [`take`] has returned for this size.
pub(crate) fn give(address: u64, size: u32) {
    if let Some(arena) = arenas().own(address) {
        arena.give(address, size);
    }
}

/// Returns `true` if the address is in an arena of this process's own.
pub(crate) fn is_own(address: u64) -> bool {
    arenas().own(address).is_some()
}

/// The first words of the block of 2^`size` bytes that is taken at exactly this address.
///
/// Returns `None` if there is no such block in an arena of this process's own. The caller may name
/// any address. The block may be one of another thread.
pub(crate) fn first_words(address: u64, size: u32) -> Option<[u64; 2]> {
    let mut arenas = arenas();
    let is_block = arenas.own(address)?.has(address, size);
    // SAFETY: a block is mapped as long as it is taken, and no other thread gives it back while
    // this one has the lock. If another thread writes the words, any value of them will do.
    is_block.then(|| unsafe { (address as *const [u64; 2]).read_volatile() })
}

/// Drops the contents of a block that stays taken, if the block has pages of its own.
pub(crate) fn empty(address: u64, size: u32) {
    if let Some(arena) = arenas().own(address) {
        arena.empty(address, size);
    }
}

/// Takes exactly this memory in an arena of another process.
///
/// The address is a multiple of 2^`size`. No block is in an arena of this process's own.
pub(crate) fn take_foreign(address: u64, size: u32) -> Result<(), NotPlaced> {
    let mut arenas = arenas();
    if arenas.own(address).is_some() {
        return Err(NotPlaced::InUse);
    }
    foreign::take(&mut arenas.foreign, address, size)
}

/// Gives back what [`take_foreign`] has taken. With its last block, all of the arena is unmapped.
pub(crate) fn give_foreign(address: u64, size: u32) {
    foreign::give(&mut arenas().foreign, address, size);
}
