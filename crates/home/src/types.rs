//! Types that live in shared memory, and are worked with where they lie.
//!
//! A value there has no address that holds in another process, and may change while one looks. So
//! there are no references into it. A type says how many bytes it takes, and what it is worked with
//! by: a *place* ([`Shared::At`]), which reads and writes by copies, and gives the places of its
//! parts. What grows takes memory from an arena in the same object, and is found by offsets from
//! its beginning (`arena.rs`).
//!
//! | type | what it is |
//! |---|---|
//! | numbers, `bool`, `char`, arrays, tuples, `Option`, `#[derive(Plain)]` | values that are read and written as a whole ([`Plain`]) |
//! | [`Text`], [`Blob`] | text and bytes of any length, replaced as a whole |
//! | [`List`] | linked both ways; a [`Link`] finds an element again, to move it or to take it out |
//! | [`Queue`] | a ring that grows; elements are found by their number, too |
//! | [`Map`] | a table by keys of any kind, that grows a little with each change |
//! | `#[derive(Shared)]` | a struct of such |
//!
//! All of them begin as zeros: that is 0, `None`, the first of an enum, or nothing.
//!
//! # What may be written there by others
//! Whoever may write to an object may write anything, at any time. Whatever is found is checked
//! before it is used: offsets for lying within, texts for being UTF-8, tags for being one of those
//! that there are; what is wrong is [`DataError::Corrupt`], and never more than that. No walk is
//! longer than the object has room for. What a value *means* nobody can check but who knows.
//!
//! # What ends in the middle
//! An operation that ends at any instruction leaves each text as it was or as it was to be, and
//! each list, queue and map with or without the element: what others see changes by one store. What
//! may be left are elements that nobody finds, counts that are off, and an arena whose own lists
//! are not whole. [`Check`] finds what can be found, and puts all of that right.
//!
//! Source: Psyche leaves its data structures to the kernel's C++; these are for its section 2.1
//! (data "mapped into the address space of each"), and for UPVM's lack of such.

pub(crate) mod arena;
pub(crate) mod check;
mod list;
mod map;
mod plain;
mod queue;
mod text;

pub use check::Check;
pub use list::{Link, List, ListAt};
pub use map::{Key, Map, MapAt};
pub use plain::{Place, Plain};
pub use queue::{Queue, QueueAt};
pub use text::{Blob, BlobAt, Text, TextAt};

#[cfg(test)]
mod tests;

use std::fmt;
use upcall_shm::span::{Span, WritableSpan};

/// Why an operation on data in an object did not come to its end. It has changed nothing then, but
/// where that is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DataError {
    /// No room is left for so many bytes: make the object with more, or take something out.
    Full {
        /// So many were asked for.
        asked: u64,
    },
    /// What was found there cannot be: a program that may write to the object has written something
    /// else, or ended in the middle.
    Corrupt {
        /// What was looked for.
        what: &'static str,
        /// Where, in bytes from the beginning of the data.
        at: u64,
    },
    /// Something was to be written where one only reads.
    ReadOnly,
    /// A check was given up before it came to its end. What was checked may be sound or not.
    Unchecked {
        /// Why it was given up.
        why: &'static str,
    },
}

impl DataError {
    #[cold]
    pub(crate) fn corrupt(what: &'static str, at: usize) -> Self {
        Self::Corrupt { what, at: at as u64 }
    }
}

impl fmt::Display for DataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { asked } => {
                write!(
                    f,
                    "no room is left in the object for {asked} bytes: make it with more, or take something out"
                )
            }
            Self::Corrupt { what, at } => write!(
                f,
                "{what} was to be at byte {at} of the object, and something else is: a program that may write to it has done so, or ended in the middle. Its home can check it, and mend or poison it"
            ),
            Self::ReadOnly => {
                f.write_str("an operation that only reads was to write: use `access` for it")
            }
            Self::Unchecked { why } => write!(f, "the object was not checked to its end: {why}"),
        }
    }
}

impl std::error::Error for DataError {}

/// The memory of an object, as the types in it see it.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    span: Span<'a>,
    /// The same, if it may be written.
    room: Option<WritableSpan<'a>>,
    /// Where the arena's words are.
    arena: usize,
}

impl<'a> Memory<'a> {
    /// For the root of an object of this type, at the beginning.
    #[inline]
    pub(crate) fn of<T: Shared>(room: WritableSpan<'a>) -> Self {
        Self { span: *room, room: Some(room), arena: room_for::<T>() }
    }

    /// The same, where nothing may be written.
    #[inline]
    pub(crate) fn to_read<T: Shared>(span: Span<'a>) -> Self {
        Self { span, room: None, arena: room_for::<T>() }
    }

    /// Without an arena.
    pub(crate) fn private(room: WritableSpan<'a>) -> Self {
        Self { span: *room, room: Some(room), arena: usize::MAX }
    }

    /// A place in it.
    #[inline]
    pub(crate) fn spot(self, at: usize) -> Spot<'a> {
        Spot { memory: self, at }
    }

    /// The place that an offset found in the object leads to.
    #[inline]
    pub(crate) fn spot_at(self, at: u64) -> Spot<'a> {
        // What does not fit lies outside of the memory, too.
        self.spot(usize::try_from(at).unwrap_or(usize::MAX))
    }

    #[inline]
    pub(crate) fn len(self) -> usize {
        self.span.len()
    }
}

/// Bytes in use in an object's arena.
pub(crate) fn used(memory: Memory<'_>) -> Result<u64, DataError> {
    arena::Arena::new(memory).used()
}

/// Bytes from the beginning of an object to the end of what was ever in use.
pub(crate) fn touched(memory: Memory<'_>) -> Result<usize, DataError> {
    arena::Arena::new(memory).touched()
}

/// Bytes from the beginning of an object to its arena.
pub(crate) const fn room_for<T: Shared>() -> usize {
    after(0, T::SIZE, 64)
}

/// A place in an object's memory, where something of some type is. It may lie outside; then nothing
/// can be read or written there.
#[derive(Clone, Copy, Debug)]
pub struct Spot<'a> {
    memory: Memory<'a>,
    at: usize,
}

impl<'a> Spot<'a> {
    /// How far it is from the beginning, in bytes.
    #[inline]
    pub fn at(self) -> usize {
        self.at
    }

    /// The object's memory.
    #[inline]
    pub(crate) fn memory(self) -> Memory<'a> {
        self.memory
    }

    /// So much farther on.
    #[inline]
    #[must_use]
    pub fn part(self, offset: usize) -> Self {
        Self { at: self.at.saturating_add(offset), ..self }
    }

    /// The part of a type that lies so much farther on.
    #[inline]
    pub fn field<T: Shared>(self, offset: usize) -> T::At<'a> {
        T::at(self.part(offset))
    }

    /// All of the memory.
    #[inline]
    pub(crate) fn all(self) -> Span<'a> {
        self.memory.span
    }

    /// The same, to be written.
    #[inline]
    pub(crate) fn to_write(self) -> Result<WritableSpan<'a>, DataError> {
        stores();
        self.memory.room.ok_or(DataError::ReadOnly)
    }

    #[inline]
    pub(crate) fn word(self, offset: usize, what: &'static str) -> Result<u64, DataError> {
        let at = self.at.wrapping_add(offset);
        self.memory.span.u64(at).ok_or_else(|| DataError::corrupt(what, at))
    }

    #[inline]
    pub(crate) fn put_word(
        self,
        offset: usize,
        word: u64,
        what: &'static str,
    ) -> Result<(), DataError> {
        let at = self.at.wrapping_add(offset);
        self.to_write()?.put_u64(at, word).ok_or_else(|| DataError::corrupt(what, at))
    }

    /// Asks for so many bytes from here on, which are to be read soon, and changes nothing. What
    /// lies outside is left out.
    #[inline]
    pub(crate) fn prefetch(self, length: usize) {
        let within = self.memory.len().saturating_sub(self.at).min(length);
        if let Some(part) = self.memory.span.part(self.at, within) {
            part.prefetch();
        }
    }

    /// So many bytes from here on.
    #[inline]
    pub(crate) fn bytes(self, length: usize, what: &'static str) -> Result<Span<'a>, DataError> {
        self.memory.span.part(self.at, length).ok_or_else(|| DataError::corrupt(what, self.at))
    }

    #[inline]
    pub(crate) fn write(self, bytes: &[u8], what: &'static str) -> Result<(), DataError> {
        self.to_write()?.copy_in(self.at, bytes).ok_or_else(|| DataError::corrupt(what, self.at))
    }

    /// Makes zeros of so many bytes from here on.
    pub(crate) fn zero(self, length: usize, what: &'static str) -> Result<(), DataError> {
        const ZEROS: [u8; 4096] = [0; 4096];
        self.bytes(length, what)?;
        (0..length)
            .step_by(ZEROS.len())
            .try_for_each(|at| self.part(at).write(&ZEROS[..ZEROS.len().min(length - at)], what))
    }
}

/// Something is about to be written: a test may end it here.
#[inline(always)]
pub(crate) fn stores() {
    #[cfg(test)]
    tests::count();
}

/// What can live in shared memory: `#[derive(Shared)]` for structs, whose place has a method for
/// each field.
///
/// All zeros are a value of it, its first one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot live in memory that processes share",
    label = "not for shared memory",
    note = "pointers, references, handles and what holds them mean nothing in another process, and the size of `usize` is a matter of the machine",
    note = "write `Text` for `String`, `Blob` for `Vec<u8>`, `List` or `Queue` for `Vec` and `VecDeque`, `Map` for `HashMap`, `u64` for `usize`",
    note = "for a type of your own: `#[derive(Shared)]` if it has parts that grow, `#[derive(Plain)]` if it is copied as a whole"
)]
pub trait Shared: 'static {
    /// Bytes that it takes.
    const SIZE: usize;
    /// It begins at a multiple of this, 8 at most.
    const ALIGN: usize;
    /// Tells types of different layouts apart: see [`shape`].
    const SHAPE: u64;
    /// Whether values of it hold memory of their own in the arena.
    #[doc(hidden)]
    const GROWS: bool = true;
    /// Its place.
    type At<'a>: Copy;

    /// What is at this place.
    fn at(spot: Spot<'_>) -> Self::At<'_>;

    /// Gives back what it holds in the arena, and makes it what it was at first.
    ///
    /// # Errors
    /// [`DataError::Corrupt`]; then some of it may be given back.
    fn clear(spot: Spot<'_>) -> Result<(), DataError>;

    /// Looks whether all that it leads to is as it should be, and claims what it holds in the
    /// arena.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    fn check(spot: Spot<'_>, check: &mut Check) -> Result<(), DataError>;
}

/// A type whose values can be had as a whole.
pub trait Value: Shared {
    /// A value of it, in private memory.
    type Owned;

    /// A copy.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    fn copy(at: Self::At<'_>) -> Result<Self::Owned, DataError>;
}

/// What a place of type `T` can be given: its values, `&str` for a [`Text`], `&[u8]` for a
/// [`Blob`]; or [`With`] a function.
pub trait Init<T: Shared> {
    /// Gives it to what is at a place.
    ///
    /// # Errors
    /// See [`DataError`].
    fn init(self, at: T::At<'_>) -> Result<(), DataError>;
}

/// Has a function fill a place, which begins as zeros.
#[derive(Clone, Copy, Debug)]
pub struct With<F>(pub F);

impl<T: Shared, F: FnOnce(T::At<'_>) -> Result<(), DataError>> Init<T> for With<F> {
    #[inline]
    fn init(self, at: T::At<'_>) -> Result<(), DataError> {
        self.0(at)
    }
}

/// Where something begins that follows `size` bytes at `offset`.
#[doc(hidden)]
pub const fn after(offset: usize, size: usize, align: usize) -> usize {
    (offset + size).next_multiple_of(align)
}

/// The larger one.
#[doc(hidden)]
pub const fn larger(one: usize, other: usize) -> usize {
    if one > other { one } else { other }
}

/// A number for a type of this name that is made of others: equal for equal definitions, whatever
/// compiler and crate they come from, and most likely different for different ones.
pub const fn shape(name: &str, parts: &[u64]) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let (name, mut at) = (name.as_bytes(), 0);
    while at < name.len() {
        hash = (hash ^ name[at] as u64).wrapping_mul(PRIME);
        at += 1;
    }
    at = 0;
    while at < parts.len() * 8 {
        hash = (hash ^ (parts[at / 8] >> (at % 8 * 8) & 0xff)).wrapping_mul(PRIME);
        at += 1;
    }
    // Nothing more than a name is as nothing behind it.
    (hash ^ parts.len() as u64).wrapping_mul(PRIME)
}
