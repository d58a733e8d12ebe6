//! Types that live in shared memory, and are used in place there.
//!
//! A value there has no address that is valid in another process, and may change while it is read.
//! So there are no references into it. A type says how many bytes it takes, and which *place* gives
//! access to it ([`Shared::At`]). A place reads and writes by copies, and returns the places of its
//! parts. A type that grows takes memory from an arena in the same object, and uses offsets from
//! the object's beginning (`arena.rs`).
//!
//! | type | what it is |
//! |---|---|
//! | [`Plain`] | numbers, `bool`, `char`, arrays, tuples, `Option`: read and written as a whole |
//! | [`Text`], [`Blob`] | text and bytes of any length, replaced as a whole |
//! | [`List`] | linked in both directions; a [`Link`] finds an element to move or remove it |
//! | [`Queue`] | a ring that grows; elements are also found by their number |
//! | [`Map`] | a table with keys of any kind, which grows a little with each change |
//! | `#[derive(Shared)]` | a struct of such types |
//!
//! All of them begin as zeros: that is 0, `None`, the first variant of an enum, or empty.
//!
//! # What other processes may write
//! A process that may write to an object may write anything, at any time. So everything that is
//! read is checked before it is used: that offsets lie within the object, that texts are UTF-8,
//! that tags are valid. A violation is [`DataError::Corrupt`], and never more than that. No walk is
//! longer than the object has room for. What a value *means* only the program can check.
//!
//! # Operations that end in the middle
//! An operation that ends at any instruction leaves each text in its old or its new state, and each
//! list, queue and map with or without the element, because a single store makes a change visible.
//! What may be left are elements that no link leads to, wrong counts, and an arena whose own lists
//! are not whole. [`Check`] finds what can be found, and repairs all of that.
//!
//! Source: Psyche leaves its data structures to the kernel's C++. These types are for its section
//! 2.1 (data "mapped into the address space of each"), and for UPVM, which has none.

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

/// Why an operation on an object's data failed.
///
/// It has changed nothing then, except where the documentation says otherwise.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DataError {
    /// No room is left for this many bytes: make the object with more, or remove something.
    Full {
        /// Number of bytes that were requested.
        asked: u64,
    },
    /// The data is not valid: a program that may write to the object has overwritten it, or has
    /// ended in the middle of an operation.
    Corrupt {
        /// What was expected.
        what: &'static str,
        /// Its offset from the beginning of the data, in bytes.
        at: u64,
    },
    /// A read-only operation tried to write.
    ReadOnly,
    /// A check was abandoned before its end. The data may be sound or not.
    Unchecked {
        /// Why it was abandoned.
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
                    "no room is left in the object for {asked} bytes: remove something, or have \
                     its home make it with more (`.room(bytes)`)"
                )
            }
            Self::Corrupt { what, at } => write!(
                f,
                "{what} was expected at byte {at} of the object, but is not there: a program that \
                 may write to the object has overwritten it, or has ended in the middle of an \
                 operation. The home can check the object, and mend or poison it"
            ),
            Self::ReadOnly => {
                f.write_str("a read-only operation tried to write: use `access` for it")
            }
            Self::Unchecked { why } => write!(f, "the object was not checked to its end: {why}"),
        }
    }
}

upcall_os::error_debug!(DataError {
    Full { asked }, Corrupt { what, at }, ReadOnly, Unchecked { why },
});

impl std::error::Error for DataError {}

/// The memory of an object, as the types in it see it.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    span: Span<'a>,
    /// The same span, if it may be written.
    room: Option<WritableSpan<'a>>,
    /// Offset of the arena's words.
    arena: usize,
}

impl<'a> Memory<'a> {
    /// The memory of an object whose root is a `T`, at the beginning.
    #[inline]
    pub(crate) fn of<T: Shared>(room: WritableSpan<'a>) -> Self {
        Self { span: *room, room: Some(room), arena: room_for::<T>() }
    }

    /// Like [`of`](Self::of), for memory that may only be read.
    #[inline]
    pub(crate) fn to_read<T: Shared>(span: Span<'a>) -> Self {
        Self { span, room: None, arena: room_for::<T>() }
    }

    /// Memory without an arena.
    pub(crate) fn private(room: WritableSpan<'a>) -> Self {
        Self { span: *room, room: Some(room), arena: usize::MAX }
    }

    /// The spot at this offset.
    #[inline]
    pub(crate) fn spot(self, at: usize) -> Spot<'a> {
        Spot { memory: self, at }
    }

    /// The spot to which an offset leads that was found in the object.
    #[inline]
    pub(crate) fn spot_at(self, at: u64) -> Spot<'a> {
        // An offset that does not fit lies outside of the memory, too.
        self.spot(usize::try_from(at).unwrap_or(usize::MAX))
    }

    #[inline]
    pub(crate) fn len(self) -> usize {
        self.span.len()
    }
}

/// Number of bytes in use in an object's arena.
pub(crate) fn used(memory: Memory<'_>) -> Result<u64, DataError> {
    arena::Arena::new(memory).used()
}

/// Number of bytes from the beginning of an object to the end of what was ever in use.
pub(crate) fn touched(memory: Memory<'_>) -> Result<usize, DataError> {
    arena::Arena::new(memory).touched()
}

/// Number of bytes from the beginning of an object to its arena.
pub(crate) const fn room_for<T: Shared>() -> usize {
    after(0, T::SIZE, 64)
}

/// A position in an object's memory, where a value of some type lies.
///
/// It may be outside of the memory; then nothing can be read or written there.
#[derive(Clone, Copy, Debug)]
pub struct Spot<'a> {
    memory: Memory<'a>,
    at: usize,
}

impl<'a> Spot<'a> {
    /// Offset from the beginning of the object, in bytes.
    #[inline]
    pub fn at(self) -> usize {
        self.at
    }

    /// The object's memory.
    #[inline]
    pub(crate) fn memory(self) -> Memory<'a> {
        self.memory
    }

    /// The spot that lies `offset` bytes farther on.
    #[inline]
    #[must_use]
    pub fn part(self, offset: usize) -> Self {
        Self { at: self.at.saturating_add(offset), ..self }
    }

    /// The part of a type that lies `offset` bytes farther on.
    #[inline]
    pub fn field<T: Shared>(self, offset: usize) -> T::At<'a> {
        T::at(self.part(offset))
    }

    /// The whole memory.
    #[inline]
    pub(crate) fn all(self) -> Span<'a> {
        self.memory.span
    }

    /// The whole memory, to write.
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

    /// Prefetches `length` bytes from here on, which will be read soon. Leaves out bytes that lie
    /// outside, and changes nothing.
    #[inline]
    pub(crate) fn prefetch(self, length: usize) {
        let within = self.memory.len().saturating_sub(self.at).min(length);
        if let Some(part) = self.memory.span.part(self.at, within) {
            part.prefetch();
        }
    }

    /// The next `length` bytes from here on.
    #[inline]
    pub(crate) fn bytes(self, length: usize, what: &'static str) -> Result<Span<'a>, DataError> {
        self.memory.span.part(self.at, length).ok_or_else(|| DataError::corrupt(what, self.at))
    }

    #[inline]
    pub(crate) fn write(self, bytes: &[u8], what: &'static str) -> Result<(), DataError> {
        self.to_write()?.copy_in(self.at, bytes).ok_or_else(|| DataError::corrupt(what, self.at))
    }

    /// Sets the next `length` bytes from here on to zero.
    pub(crate) fn zero(self, length: usize, what: &'static str) -> Result<(), DataError> {
        const ZEROS: [u8; 4096] = [0; 4096];
        self.bytes(length, what)?;
        (0..length)
            .step_by(ZEROS.len())
            .try_for_each(|at| self.part(at).write(&ZEROS[..ZEROS.len().min(length - at)], what))
    }
}

/// Called before each store, so that a test can end the operation there.
#[inline(always)]
pub(crate) fn stores() {
    #[cfg(test)]
    tests::count();
}

/// A type that can live in shared memory: `#[derive(Shared)]` for structs, whose place has a method
/// for each field.
///
/// All zeros are a valid value, and the initial one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot live in memory that processes share",
    label = "not for shared memory",
    note = "pointers, references, handles and types that hold them mean nothing in another \
            process, and the size of `usize` depends on the machine",
    note = "write `Text` for `String`, `Blob` for `Vec<u8>`, `List` or `Queue` for `Vec` and \
            `VecDeque`, `Map` for `HashMap`, `u64` for `usize`",
    note = "for a type of your own: `#[derive(Shared)]` if it has parts that grow, \
            `#[derive(Plain)]` if it is copied as a whole"
)]
pub trait Shared: 'static {
    /// Size in bytes.
    const SIZE: usize;
    /// Alignment in bytes, at most 8.
    const ALIGN: usize;
    /// Distinguishes types of different layouts: see [`shape`].
    const SHAPE: u64;
    /// `true` if values of the type hold memory of their own in the arena.
    #[doc(hidden)]
    const GROWS: bool = true;
    /// The place of a value of this type.
    type At<'a>: Copy;

    /// The place at this spot.
    fn at(spot: Spot<'_>) -> Self::At<'_>;

    /// Frees what the value holds in the arena, and resets the value to zeros.
    ///
    /// # Errors
    /// [`DataError::Corrupt`]; then some of it may be freed.
    fn clear(spot: Spot<'_>) -> Result<(), DataError>;

    /// Checks all that the value leads to, and claims what it holds in the arena.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    fn check(spot: Spot<'_>, check: &mut Check) -> Result<(), DataError>;
}

/// A type whose values can be copied as a whole.
pub trait Value: Shared {
    /// A value of this type, in private memory.
    type Owned;

    /// Copies the value.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    fn copy(at: Self::At<'_>) -> Result<Self::Owned, DataError>;
}

/// What a place of type `T` can be set to.
///
/// This can be a value of the type, `&str` for a [`Text`], `&[u8]` for a [`Blob`]; or [`With`] a
/// function.
pub trait Init<T: Shared> {
    /// Sets the value at a place.
    ///
    /// # Errors
    /// See [`DataError`].
    fn init(self, at: T::At<'_>) -> Result<(), DataError>;
}

/// Fills a place by a function. The place begins as zeros.
#[derive(Clone, Copy, Debug)]
pub struct With<F>(pub F);

impl<T: Shared, F: FnOnce(T::At<'_>) -> Result<(), DataError>> Init<T> for With<F> {
    #[inline]
    fn init(self, at: T::At<'_>) -> Result<(), DataError> {
        self.0(at)
    }
}

/// Offset of a part with this alignment that follows `size` bytes at `offset`.
#[doc(hidden)]
pub const fn after(offset: usize, size: usize, align: usize) -> usize {
    (offset + size).next_multiple_of(align)
}

/// The larger one.
#[doc(hidden)]
pub const fn larger(one: usize, other: usize) -> usize {
    if one > other { one } else { other }
}

/// A number for a type with this name and these parts.
///
/// It is equal for equal definitions, independent of compiler and crate, and most likely different
/// for different ones.
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
    // The number of parts distinguishes a long name from a short one with parts.
    (hash ^ parts.len() as u64).wrapping_mul(PRIME)
}
