//! The memory of an object: its lock, its state, and its data.
//!
//! ```text
//!        0  header: magic, shape, bytes of data          the home writes, once
//!     4096  the lock; the state                          all write
//!     8192  stands, one line for each party              the party, and who hands over to it
//!    24576  data
//! ```
//! One file of a fixed size, of which only what is touched takes memory.

use crate::error::NotAnObject;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::{fmt, io};
use upcall_os::atomic::{AtomicU64, Ordering};
use upcall_os::memory::{Mapping, MemoryFile};
use upcall_shm::hybrid::{Lock, PLACES, Party, Stand};
use upcall_shm::region::{Region, Shared};
use upcall_shm::span::Room;

const MAGIC: u64 = u64::from_le_bytes(*b"upcallH1");
const SHAPE: usize = 8;
const LENGTH: usize = 16;
const LOCK: usize = 4096;
const STATE: usize = LOCK + 64;
const STANDS: usize = 8192;
const DATA: usize = STANDS + PLACES as usize * 64;

/// The most bytes of data.
pub const MOST: u64 = 1 << 40;

/// A party to the object's lock.
pub(crate) type Ours = Party<Shared<Lock>, Shared<[Stand]>>;

/// What stands in the word of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Each operation began and ended.
    Whole,
    /// One has ended in the middle, and the home has not decided yet.
    Torn,
    /// The home has decided that it is of no use any more.
    Poisoned,
}

/// See the module.
pub(crate) struct Body {
    file: MemoryFile,
    region: Arc<Region>,
    state: Shared<AtomicU64>,
    length: usize,
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").field("length", &self.length).field("state", &self.state()).finish_non_exhaustive()
    }
}

impl Body {
    /// Memory for so many bytes, all zero, in which nothing is yet.
    pub(crate) fn create(name: &str, shape: u64, length: u64) -> io::Result<Self> {
        let too_long = || io::Error::new(io::ErrorKind::InvalidInput, format!("{length} bytes: an object has 1 to {MOST}"));
        if length == 0 || length > MOST {
            return Err(too_long());
        }
        let file = MemoryFile::create(&format!("upcall-object-{name}"), DATA + length as usize)?;
        let body = Self::map(file, length as usize)?;
        let header = body.region.room(0, LOCK).ok_or_else(too_long)?;
        for (at, word) in [(SHAPE, shape), (LENGTH, length), (0, MAGIC)] {
            header.put_u64(at, word);
        }
        Ok(body)
    }

    /// The memory that came from a home, which is to have this shape.
    pub(crate) fn join(file: OwnedFd, shape: u64, length: u64) -> Result<Self, NotAnObject> {
        if length == 0 || length > MOST {
            return Err(NotAnObject::Length { found: length });
        }
        let file = MemoryFile::adopt(file, DATA + length as usize).map_err(NotAnObject::Memory)?;
        let body = Self::map(file, length as usize).map_err(NotAnObject::Kernel)?;
        let word = |at| body.region.room(at, 8).and_then(|room| room.u64(0)).unwrap_or(0);
        if word(0) != MAGIC || word(LENGTH) != length {
            return Err(NotAnObject::Header);
        }
        match word(SHAPE) {
            found if found == shape => Ok(body),
            found => Err(NotAnObject::Shape { found, expected: shape }),
        }
    }

    fn map(file: MemoryFile, length: usize) -> io::Result<Self> {
        let unmapped = || io::Error::other("an object's memory was not mapped as a whole");
        let region = Region::new(Mapping::shared(&file)?).ok_or_else(unmapped)?;
        let state = region.view(STATE).ok_or_else(unmapped)?;
        Ok(Self { file, region, state, length })
    }

    /// To hand over.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Bytes of data.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The party in a place. `None` if there is no such place.
    pub(crate) fn party(&self, place: u16) -> Option<Ours> {
        let lock = self.region.view(LOCK)?;
        Party::new(lock, self.region.view_slice(STANDS, usize::from(PLACES))?, place)
    }

    /// The data.
    #[inline]
    pub(crate) fn data(&self) -> Room<'_> {
        self.region.room(DATA, self.length).expect("a region of that length, as it was mapped")
    }

    #[inline]
    pub(crate) fn state(&self) -> State {
        match self.state.load(Ordering::Relaxed) {
            0 => State::Whole,
            1 => State::Torn,
            _ => State::Poisoned,
        }
    }

    /// To be said by who has the lock.
    pub(crate) fn set_state(&self, state: State) {
        self.state.store(state as u64, Ordering::Relaxed);
    }

    /// All of it, as a hostile party sees it.
    #[cfg(test)]
    pub(crate) fn everything(&self) -> Room<'_> {
        self.region.room(0, DATA + self.length).expect("a region of that length")
    }
}
