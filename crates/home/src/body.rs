//! The memory of an object: its lock, its state, and its data.
//!
//! ```text
//!        0  header: magic, shape, bytes of data           the home writes, once
//!     4096  the lock, with a sequence number; the state   all write
//!     8192  stands, one line for each party               the party, and the lock's holder
//!    24576  accounts, one line for each party             the party; the home adds up in place 0
//!                                                         what parties that have left had done
//!    40960  data
//! ```
//! One file of a fixed size, of which only what is touched takes memory.

use crate::account::Counts;
use crate::error::NotAnObject;
use crate::types::DataError;
use crate::types::arena::MOST;
use crate::types::check::Pages;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::{fmt, io};
use upcall_os::atomic::{AtomicU64, Ordering};
use upcall_os::memory::{Mapping, MemoryFile};
use upcall_shm::hybrid::{Lock, PLACES, Party, Stand};
use upcall_shm::region::{ReadOnlyRegion, Region, RegionView};
use upcall_shm::span::{Span, WritableSpan};

/// Prefix of the name of an object's memory file, before the object's name.
pub(crate) const NAMED: &str = "upcall-object-";

const MAGIC: u64 = u64::from_le_bytes(*b"upcallH3");
const SHAPE: usize = 8;
const LENGTH: usize = 16;
const LOCK: usize = 4096;
const STATE: usize = LOCK + size_of::<Lock>();
const STANDS: usize = 8192;
const ACCOUNTS: usize = STANDS + PLACES as usize * 64;
const DATA: usize = ACCOUNTS + PLACES as usize * 64;

/// A party to the object's lock, in this process.
pub(crate) type Ours = Party<RegionView<Lock>, RegionView<[Stand]>>;

/// The state of an object, as a word of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyState {
    /// Every operation that began has ended.
    Whole,
    /// An operation ended in the middle, and the home has not decided yet.
    Torn,
    /// The home has decided that the object cannot be used any more.
    Poisoned,
}

impl BodyState {
    fn of(word: u64) -> Self {
        match word {
            0 => Self::Whole,
            1 => Self::Torn,
            _ => Self::Poisoned,
        }
    }
}

/// What a reader needs of an object's memory.
pub(crate) trait Readable {
    /// The word of the sequence ([`upcall_shm::sequence`]).
    fn word(&self) -> u64;
    fn state(&self) -> BodyState;
    fn span(&self) -> Span<'_>;
}

/// The memory of an object, for a party that may write it; see the module.
pub(crate) struct Body {
    file: MemoryFile,
    region: Arc<Region>,
    lock: RegionView<Lock>,
    state: RegionView<AtomicU64>,
    length: usize,
    /// No other process can write the memory.
    sealed: bool,
}

/// The memory of an object, for a process that may only read it.
pub(crate) struct ReadOnlyBody {
    file: MemoryFile,
    seen: ReadOnlyRegion,
    length: usize,
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body")
            .field("length", &self.length)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

impl Body {
    /// Makes memory for `length` bytes of data, all zero.
    ///
    /// If it is `sealed`, no other process will ever be able to write it.
    pub(crate) fn create(name: &str, shape: u64, length: u64, sealed: bool) -> io::Result<Self> {
        let too_long = || {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{length} bytes: an object has 1 to {MOST}"),
            )
        };
        if length == 0 || length > MOST {
            return Err(too_long());
        }
        let (name, all) = (format!("{NAMED}{name}"), DATA + length as usize);
        let (file, mapping) = if sealed {
            MemoryFile::create_for_one_writer(&name, all)?
        } else {
            let file = MemoryFile::create(&name, all)?;
            let mapping = Mapping::shared(&file)?;
            (file, mapping)
        };
        let body = Self::map(file, mapping, length as usize, sealed)?;
        let header = body.region.room(0, LOCK).ok_or_else(too_long)?;
        for (at, word) in [(SHAPE, shape), (LENGTH, length), (0, MAGIC)] {
            header.put_u64(at, word);
        }
        Ok(body)
    }

    /// Maps memory that came from a home, which must have this shape.
    pub(crate) fn join(file: OwnedFd, shape: u64, length: u64) -> Result<Self, NotAnObject> {
        let file = MemoryFile::adopt(file, whole(length)?).map_err(NotAnObject::Memory)?;
        let mapping = Mapping::shared(&file).map_err(NotAnObject::Kernel)?;
        let body = Self::map(file, mapping, length as usize, false).map_err(NotAnObject::Kernel)?;
        check_header(|at| body.region.room(at, 8)?.u64(0), shape, length)?;
        Ok(body)
    }

    fn map(file: MemoryFile, mapping: Mapping, length: usize, sealed: bool) -> io::Result<Self> {
        let unmapped = || io::Error::other("an object's memory was not mapped as a whole");
        let region = Region::new(mapping).ok_or_else(unmapped)?;
        let state = region.view(STATE).ok_or_else(unmapped)?;
        let lock = region.view(LOCK).ok_or_else(unmapped)?;
        Ok(Self { file, region, lock, state, length, sealed })
    }

    /// A descriptor to hand over to a guest that may write, or only read.
    pub(crate) fn descriptor(&self, writes: bool) -> io::Result<OwnedFd> {
        if writes || self.sealed {
            self.file.as_fd().try_clone_to_owned()
        } else {
            self.file.for_readers()
        }
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed
    }

    /// Length of the data, in bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The party in a place. `None` if there is no such place.
    pub(crate) fn party(&self, place: u16) -> Option<Ours> {
        Party::new(self.lock.clone(), self.region.view_slice(STANDS, usize::from(PLACES))?, place)
    }

    /// The line that holds a party's account.
    pub(crate) fn account(&self, place: u16) -> Option<WritableSpan<'_>> {
        (place < PLACES).then(|| self.region.room(ACCOUNTS + usize::from(place) * 64, 64))?
    }

    /// The data.
    #[inline]
    pub(crate) fn data(&self) -> WritableSpan<'_> {
        self.region.room(DATA, self.length).expect("a region of that length, as it was mapped")
    }

    #[inline]
    pub(crate) fn state(&self) -> BodyState {
        BodyState::of(self.state.load(Ordering::Relaxed))
    }

    /// Sets the state. Called by the holder of the lock.
    pub(crate) fn set_state(&self, state: BodyState) {
        self.state.store(state as u64, Ordering::Relaxed);
    }

    /// The pages of the data that exist now.
    pub(crate) fn pages(&self) -> Result<Pages, DataError> {
        pages_of(&self.file, self.length)
    }

    /// Number of bytes of memory that it takes.
    #[cfg(test)]
    pub(crate) fn allocated(&self) -> u64 {
        self.file.allocated()
    }

    /// The whole memory, as a hostile party sees it.
    #[cfg(test)]
    pub(crate) fn everything(&self) -> WritableSpan<'_> {
        self.region.room(0, DATA + self.length).expect("a region of that length")
    }
}

impl Readable for Body {
    #[inline]
    fn word(&self) -> u64 {
        self.lock.sequence().word()
    }

    #[inline]
    fn state(&self) -> BodyState {
        Self::state(self)
    }

    #[inline]
    fn span(&self) -> Span<'_> {
        *self.data()
    }
}

impl ReadOnlyBody {
    /// Maps memory that came from a home, which must have this shape.
    pub(crate) fn join(
        file: OwnedFd,
        sealed: bool,
        shape: u64,
        length: u64,
    ) -> Result<Self, NotAnObject> {
        let all = whole(length)?;
        let file = if sealed {
            MemoryFile::adopt_read_only(file, all)
        } else {
            MemoryFile::adopt(file, all)
        };
        let file = file.map_err(NotAnObject::Memory)?;
        let mapping = Mapping::read_only(&file).map_err(NotAnObject::Kernel)?;
        let view = Self { file, seen: ReadOnlyRegion::new(mapping), length: length as usize };
        check_header(|at| view.seen.span(at, 8)?.u64(0), shape, length)?;
        Ok(view)
    }

    /// Length of the data, in bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The pages of the data that exist now.
    pub(crate) fn pages(&self) -> Result<Pages, DataError> {
        pages_of(&self.file, self.length)
    }
}

impl Readable for ReadOnlyBody {
    #[inline]
    fn word(&self) -> u64 {
        self.seen.word(LOCK + Lock::SEQUENCE)
    }

    #[inline]
    fn state(&self) -> BodyState {
        BodyState::of(self.seen.word(STATE))
    }

    #[inline]
    fn span(&self) -> Span<'_> {
        self.seen.span(DATA, self.length).expect("a mapping of that length")
    }
}

fn pages_of(file: &MemoryFile, length: usize) -> Result<Pages, DataError> {
    Pages::of(file, DATA..DATA + length)
        .map_err(|_| DataError::Unchecked { why: "the kernel does not say what is in use" })
}

/// Length of the whole memory of an object with `length` bytes of data, if there can be one.
fn whole(length: u64) -> Result<usize, NotAnObject> {
    if (1..=MOST).contains(&length) {
        Ok(DATA + length as usize)
    } else {
        Err(NotAnObject::Length { found: length })
    }
}

/// The memory before an object's data, as an observer sees it. The object may be any, of any
/// length.
pub(crate) struct Front(ReadOnlyRegion);

impl Front {
    /// Maps memory that was not handed over by a home. Returns `None` if it is not an object of
    /// this version.
    pub(crate) fn join(file: OwnedFd) -> io::Result<Option<Self>> {
        let again = file.try_clone()?;
        let Ok(file) =
            MemoryFile::adopt(file, DATA).or_else(|_| MemoryFile::adopt_read_only(again, DATA))
        else {
            return Ok(None);
        };
        let front = Self(ReadOnlyRegion::new(Mapping::read_only(&file)?));
        Ok((front.0.word(0) == MAGIC).then_some(front))
    }

    /// Length of the data, in bytes.
    pub(crate) fn length(&self) -> u64 {
        self.0.word(LENGTH)
    }

    pub(crate) fn state(&self) -> BodyState {
        BodyState::of(self.0.word(STATE))
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.0.word(LOCK + Lock::SEQUENCE)
    }

    /// The place of the party that holds the lock.
    pub(crate) fn holder(&self) -> Option<u16> {
        let place = u16::try_from(self.0.word(LOCK + Lock::HELD).checked_sub(1)?).ok()?;
        (place < PLACES).then_some(place)
    }

    /// The process of the party in a place, as the party has written it, and what it has done.
    pub(crate) fn party(&self, place: u16) -> (Option<u32>, Counts) {
        let (stand, line) = (STANDS + usize::from(place) * 64, ACCOUNTS + usize::from(place) * 64);
        let process =
            u32::try_from(self.0.word(stand + Stand::PROCESS)).ok().filter(|&process| process != 0);
        (process, Counts::read(|at| Some(self.0.word(line + at))))
    }
}

/// Checks that the memory begins with the header of an object of this shape and length.
fn check_header(
    word: impl Fn(usize) -> Option<u64>,
    shape: u64,
    length: u64,
) -> Result<(), NotAnObject> {
    if word(0) != Some(MAGIC) || word(LENGTH) != Some(length) {
        return Err(NotAnObject::Header);
    }
    match word(SHAPE).unwrap_or(0) {
        found if found == shape => Ok(()),
        found => Err(NotAnObject::Shape { found, expected: shape }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory that a home can hand over in place of the object, to writers and to readers.
    #[test]
    fn memory_of_something_else_is_refused() {
        const SHAPE_HERE: u64 = 7;
        const LENGTH_HERE: u64 = 4096;
        let body = Body::create("header", SHAPE_HERE, LENGTH_HERE, false).unwrap();
        let memory = || body.descriptor(true).unwrap();
        let join = |shape, length| {
            [
                Body::join(memory(), shape, length).err(),
                ReadOnlyBody::join(memory(), false, shape, length).err(),
            ]
        };
        let all = |errors: [Option<NotAnObject>; 2], is: fn(&NotAnObject) -> bool| {
            assert!(errors.iter().flatten().filter(|error| is(error)).count() == 2, "{errors:?}");
        };
        assert!(join(SHAPE_HERE, LENGTH_HERE).iter().all(Option::is_none));
        all(join(SHAPE_HERE + 1, LENGTH_HERE), |error| {
            matches!(error, NotAnObject::Shape { found: 7, expected: 8 })
        });
        for length in [0, MOST + 1, u64::MAX] {
            all(join(SHAPE_HERE, length), |error| matches!(error, NotAnObject::Length { .. }));
        }
        all(join(SHAPE_HERE, LENGTH_HERE + 8), |error| matches!(error, NotAnObject::Memory(_)));
        let header = body.region.room(0, LOCK).unwrap();
        for (at, right) in [(LENGTH, LENGTH_HERE), (0, MAGIC)] {
            header.put_u64(at, right + 1);
            all(join(SHAPE_HERE, LENGTH_HERE), |error| matches!(error, NotAnObject::Header));
            header.put_u64(at, right);
        }
        assert!(join(SHAPE_HERE, LENGTH_HERE).iter().all(Option::is_none));
    }
}
