//! A table of words that the library above keeps for names, and that each image reads.
//!
//! An image finds the table by GS, so it needs no address of the host's, and asks nothing. Only the
//! host writes to the table, and no ULP runs on the host's thread while it does.
//!
//! The kernel provides a page when a word in it is first set. So the names may be spread over a
//! wide range.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::io;
use std::ptr::{self, NonNull};
use std::rc::Rc;

/// A table of words, zeros at first; see the module comment. A copy is the same table.
#[derive(Clone, Debug)]
pub struct NameWords {
    words: NonNull<u32>,
    count: u32,
    _mapping: Rc<NameMapping>,
}

/// The table's memory, which is unmapped with the last copy.
#[derive(Debug)]
struct NameMapping {
    start: NonNull<u32>,
    length: usize,
}

impl NameWords {
    /// A table for the names below `count`.
    ///
    /// # Errors
    /// The kernel gives no addresses for it.
    pub fn new(count: u32) -> io::Result<Self> {
        let length = (count as usize * size_of::<u32>()).max(1);
        let (access, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: maps where nothing is mapped.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), length, access, flags) }?;
        let words = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { words, count, _mapping: Rc::new(NameMapping { start: words, length }) })
    }

    /// The word of a name. 0 for numbers that are none.
    #[inline]
    pub fn get(&self, name: u32) -> u32 {
        if name >= self.count {
            return 0;
        }
        // SAFETY: the name is below the count, so its word is in the mapping, which lives as long
        // as this value. The host's thread alone uses it, and runs no ULP now.
        unsafe { self.words.as_ptr().wrapping_add(name as usize).read() }
    }

    /// Changes the word of a name. Does nothing for numbers that are none.
    pub fn set(&self, name: u32, word: u32) {
        if name < self.count {
            // SAFETY: as in `get`.
            unsafe { self.words.as_ptr().wrapping_add(name as usize).write(word) };
        }
    }

    pub(crate) fn address(&self) -> u64 {
        self.words.as_ptr() as u64
    }
}

impl Drop for NameMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and no copy of the table is left.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_zeros_until_they_are_set_and_there_are_none_beyond_the_last() {
        const COUNT: u32 = 257 << 18;
        let table = NameWords::new(COUNT).unwrap();
        assert_eq!([0, 1, COUNT - 1, COUNT, u32::MAX].map(|name| table.get(name)), [0; 5]);
        let copy = table.clone();
        for name in [0, COUNT - 1, COUNT, u32::MAX] {
            copy.set(name, name | 1);
        }
        drop(copy);
        let words = [0, 1, COUNT - 1, COUNT, u32::MAX].map(|name| table.get(name));
        assert_eq!(words, [1, 0, COUNT - 1, 0, 0]);
        assert_eq!(NameWords::new(0).unwrap().get(0), 0);
    }
}
