//! Text and bytes of any length.
//!
//! ```text
//! place    offset of a block, or 0: nothing
//! block    length | bytes
//! ```
//! A new value gets a new block, which replaces the old one by a single store. So a value is always
//! seen as a whole, and an operation that ends in the middle leaves the old or the new one.

use super::arena::Arena;
use super::{Check, DataError, Init, Shared, Spot, Value, shape};
use std::fmt;
use upcall_shm::span::Span;

const WORD: usize = 8;
const BYTES: &str = "bytes";

/// Text. Its place is a [`TextAt`].
#[derive(Debug)]
pub struct Text(());

/// Bytes. Their place is a [`BlobAt`].
#[derive(Debug)]
pub struct Blob(());

/// The place of a [`Blob`].
#[derive(Clone, Copy)]
pub struct BlobAt<'a>(Spot<'a>);

/// The place of a [`Text`].
#[derive(Clone, Copy)]
pub struct TextAt<'a>(BlobAt<'a>);

impl fmt::Debug for BlobAt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BlobAt").field(&self.get()).finish()
    }
}

impl fmt::Debug for TextAt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TextAt").field(&self.get()).finish()
    }
}

impl<'a> BlobAt<'a> {
    /// The bytes in place. Other parties may change them at any time.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    #[inline]
    pub fn span(self) -> Result<Span<'a>, DataError> {
        match self.0.word(0, BYTES)? {
            0 => self.0.bytes(0, BYTES),
            at => {
                let block = self.0.memory().spot_at(at);
                let length = block.word(0, BYTES)?;
                block.part(WORD).bytes(usize::try_from(length).unwrap_or(usize::MAX), BYTES)
            }
        }
    }

    /// The number of bytes.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    pub fn len(self) -> Result<usize, DataError> {
        Ok(self.span()?.len())
    }

    /// Returns `true` if there are no bytes.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    pub fn is_empty(self) -> Result<bool, DataError> {
        Ok(self.len()? == 0)
    }

    /// Copies the bytes.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    pub fn get(self) -> Result<Vec<u8>, DataError> {
        let mut bytes = Vec::new();
        self.span()?.append_to(&mut bytes);
        Ok(bytes)
    }

    /// Appends a copy of the bytes to `to`.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    #[inline]
    pub fn append_to(self, to: &mut Vec<u8>) -> Result<(), DataError> {
        self.span()?.append_to(to);
        Ok(())
    }

    /// Replaces the bytes, and frees the old ones.
    ///
    /// # Errors
    /// See [`DataError`]. The old bytes stay.
    pub fn set(self, bytes: &[u8]) -> Result<(), DataError> {
        let memory = self.0.memory();
        let arena = Arena::new(memory);
        let old = self.0.word(0, BYTES)?;
        let new = if bytes.is_empty() { 0 } else { arena.allocate((WORD + bytes.len()) as u64)? };
        if new != 0 {
            let block = memory.spot_at(new);
            block.put_word(0, bytes.len() as u64, BYTES)?;
            block.part(WORD).write(bytes, BYTES)?;
        }
        self.0.put_word(0, new, BYTES)?;
        if old == 0 { Ok(()) } else { arena.free(old) }
    }
}

impl<'a> BlobAt<'a> {
    /// Claims the bytes for this place.
    ///
    /// The result is what was claimed, even if a hostile party changes the place now.
    fn checked(self, check: &mut Check) -> Result<Span<'a>, DataError> {
        let (memory, at) = (self.0.memory(), self.0.word(0, BYTES)?);
        if at == 0 {
            return self.0.bytes(0, BYTES);
        }
        check.expect(memory, at, WORD as u64, BYTES)?;
        let block = memory.spot_at(at);
        let length = block.word(0, BYTES)?;
        check.claim(memory, at, length.saturating_add(WORD as u64), BYTES)?;
        block.part(WORD).bytes(usize::try_from(length).unwrap_or(usize::MAX), BYTES)
    }
}

impl TextAt<'_> {
    /// Copies the text.
    ///
    /// # Errors
    /// [`DataError::Corrupt`], also if it is not UTF-8.
    pub fn get(self) -> Result<String, DataError> {
        self.0.span()?.to_text().ok_or_else(|| DataError::corrupt("text in UTF-8", self.0.0.at()))
    }

    /// Replaces the text.
    ///
    /// # Errors
    /// See [`DataError`]. The old text stays.
    pub fn set(self, text: &str) -> Result<(), DataError> {
        self.0.set(text.as_bytes())
    }

    /// Length in bytes.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    pub fn len(self) -> Result<usize, DataError> {
        self.0.len()
    }

    /// Returns `true` if the text is empty.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    pub fn is_empty(self) -> Result<bool, DataError> {
        self.0.is_empty()
    }
}

impl Shared for Blob {
    const SIZE: usize = WORD;
    const ALIGN: usize = WORD;
    const SHAPE: u64 = shape("blob", &[]);
    type At<'a> = BlobAt<'a>;

    #[inline]
    fn at(spot: Spot<'_>) -> BlobAt<'_> {
        BlobAt(spot)
    }

    fn clear(spot: Spot<'_>) -> Result<(), DataError> {
        BlobAt(spot).set(&[])
    }

    fn check(spot: Spot<'_>, check: &mut Check) -> Result<(), DataError> {
        BlobAt(spot).checked(check).map(drop)
    }
}

impl Shared for Text {
    const SIZE: usize = WORD;
    const ALIGN: usize = WORD;
    const SHAPE: u64 = shape("text", &[]);
    type At<'a> = TextAt<'a>;

    #[inline]
    fn at(spot: Spot<'_>) -> TextAt<'_> {
        TextAt(BlobAt(spot))
    }

    fn clear(spot: Spot<'_>) -> Result<(), DataError> {
        Blob::clear(spot)
    }

    fn check(spot: Spot<'_>, check: &mut Check) -> Result<(), DataError> {
        let text = BlobAt(spot).checked(check)?;
        check.look_at(text.len() as u64)?;
        if text.is_text() { Ok(()) } else { Err(DataError::corrupt("text in UTF-8", spot.at())) }
    }
}

impl Value for Blob {
    type Owned = Vec<u8>;

    fn copy(at: BlobAt<'_>) -> Result<Vec<u8>, DataError> {
        at.get()
    }
}

impl Value for Text {
    type Owned = String;

    fn copy(at: TextAt<'_>) -> Result<String, DataError> {
        at.get()
    }
}

impl Init<Blob> for &[u8] {
    #[inline]
    fn init(self, at: BlobAt<'_>) -> Result<(), DataError> {
        at.set(self)
    }
}

impl<const N: usize> Init<Blob> for &[u8; N] {
    fn init(self, at: BlobAt<'_>) -> Result<(), DataError> {
        at.set(self)
    }
}

impl Init<Blob> for &Vec<u8> {
    fn init(self, at: BlobAt<'_>) -> Result<(), DataError> {
        at.set(self)
    }
}

impl Init<Text> for &str {
    fn init(self, at: TextAt<'_>) -> Result<(), DataError> {
        at.set(self)
    }
}

impl Init<Text> for &String {
    fn init(self, at: TextAt<'_>) -> Result<(), DataError> {
        at.set(self)
    }
}
