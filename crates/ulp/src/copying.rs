//! Copies of memory of ULPs that may not be there.
//!
//! A ULP names memory of its own by an address and a length, and the host copies from or to it. The
//! memory may be unmapped or read-only, or lie behind the end of a mapped file. A copy by the ULP's
//! own code would end the ULP there. The host must not end, so its copy is a single instruction
//! (`rep movsb`) whose fault is an outcome: the handler of crashes ([`switch`](crate::switch))
//! skips the instruction, which has left the number of missing bytes in its counter.
//!
//! [`UlpRange`] contains only addresses of slots, where nothing of the host's is. So a copy changes
//! no object of the host's, even if the ULP has ended since.

use std::arch::{asm, naked_asm};
#[cfg(debug_assertions)]
use std::cell::Cell;
use std::ops::Range;
#[cfg(debug_assertions)]
use upcall_shm::span;
use upcall_shm::span::{Span, WritableSpan};

/// A range of a ULP's own addresses, which need not be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UlpRange {
    start: u64,
    length: usize,
}

/// A part of the memory cannot be read or written. Some bytes may have been copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotCopied;

#[cfg(debug_assertions)]
thread_local! {
    static COPIED: Cell<u64> = const { Cell::new(0) };
}

/// Number of bytes that this thread has copied from or to ranges, and this process from or to
/// shared memory, for tests.
///
/// `None` in builds without debug assertions, which do not count.
pub fn copied() -> Option<u64> {
    #[cfg(debug_assertions)]
    return Some(COPIED.get() + span::copied()?);
    #[cfg(not(debug_assertions))]
    return None;
}

impl UlpRange {
    /// The range of `length` bytes from `start` on, if all of it is within the slot.
    #[inline]
    pub(crate) fn within(slot: Range<u64>, start: u64, length: usize) -> Option<Self> {
        let end = start.checked_add(length as u64)?;
        let is_within = start >= slot.start && end <= slot.end;
        is_within.then_some(Self { start, length })
    }

    /// Length in bytes.
    #[inline]
    pub fn len(self) -> usize {
        self.length
    }

    /// Returns `true` if it has no bytes.
    pub fn is_empty(self) -> bool {
        self.length == 0
    }

    /// The first `bytes` bytes of the range, or all if there are fewer.
    #[inline]
    #[must_use]
    pub fn first(self, bytes: usize) -> Self {
        Self { length: self.length.min(bytes), ..self }
    }

    /// Copies as many bytes as this range has from the start of `from`, or all if those are fewer.
    ///
    /// # Errors
    /// [`NotCopied`].
    #[inline]
    pub fn copy_from(self, from: Self) -> Result<(), NotCopied> {
        // SAFETY: the target is within a slot.
        unsafe { copy(from.start, self.start, self.length.min(from.length)) }
    }

    /// The same from shared memory.
    ///
    /// # Errors
    /// [`NotCopied`].
    #[inline]
    pub fn copy_from_span(self, from: Span<'_>) -> Result<(), NotCopied> {
        from.prefetch();
        let bytes = self.length.min(from.len());
        // SAFETY: the target is within a slot.
        unsafe { copy(from.as_ptr().expose_provenance() as u64, self.start, bytes) }
    }

    /// Copies the range to the start of shared memory, or as many bytes as that has.
    ///
    /// # Errors
    /// [`NotCopied`].
    #[inline]
    pub fn copy_to_span(self, to: WritableSpan<'_>) -> Result<(), NotCopied> {
        let bytes = self.length.min(to.len());
        // SAFETY: a span has only atomic and opaque accesses, and this is one.
        unsafe { copy(self.start, to.as_ptr().expose_provenance() as u64, bytes) }
    }
}

/// Copies bytes between addresses that may not be mapped.
///
/// # Safety
/// No object that Rust code may read or write by ordinary accesses is in the target. The handler of
/// crashes is installed, or all of the memory is there.
unsafe fn copy(from: u64, to: u64, bytes: usize) -> Result<(), NotCopied> {
    let left: u64;
    // SAFETY: the caller's promise. Reads of any memory are harmless, as those of another process
    // are. The function changes only these registers, and the direction flag is clear by the
    // calling convention.
    unsafe {
        asm!(
            "call {copying}",
            copying = sym copying,
            inout("rcx") bytes as u64 => left,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(preserves_flags),
        );
    }
    #[cfg(debug_assertions)]
    COPIED.set(COPIED.get() + bytes as u64 - left);
    if left == 0 { Ok(()) } else { Err(NotCopied) }
}

/// Length of the first instruction of [`copying`], in bytes.
pub(crate) const COPYING: u32 = 2;

/// Copies rcx bytes from rsi to rdi. After a fault, rcx is the number of bytes that are missing.
///
/// Only its first instruction can fault, and no other code of the host may.
#[unsafe(naked)]
pub(crate) extern "sysv64" fn copying() {
    naked_asm!("rep movsb", "ret")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::PAGE;
    use crate::slot::UlpSlot;
    use crate::ulp::anonymous;
    use rustix::mm::{MprotectFlags, mprotect, munmap};

    /// A range in a slot, of which the first page is there, and the second one as `second` says.
    fn pages(slot: &UlpSlot, second: Option<MprotectFlags>) -> UlpRange {
        let start = slot.start();
        anonymous(start, 2 * PAGE).unwrap();
        let at = (start + PAGE) as *mut _;
        match second {
            // SAFETY: mapped just now for this test.
            Some(protection) => unsafe { mprotect(at, PAGE as usize, protection) },
            // SAFETY: as above.
            None => unsafe { munmap(at, PAGE as usize) },
        }
        .unwrap();
        UlpRange { start, length: 2 * PAGE as usize }
    }

    #[test]
    fn a_copy_of_memory_that_is_missing_ends_and_the_process_goes_on() {
        crate::crash::handle().unwrap();
        let slots = [(); 4].map(|()| UlpSlot::take().unwrap());
        let all = MprotectFlags::READ | MprotectFlags::WRITE;
        let [whole, missing, read_only, none] = [
            pages(&slots[0], Some(all)),
            pages(&slots[1], None),
            pages(&slots[2], Some(MprotectFlags::READ)),
            pages(&slots[3], Some(MprotectFlags::empty())),
        ];
        let bytes = (0..2 * PAGE).map(|at| (at % 251) as u8).collect::<Vec<_>>();
        assert_eq!(whole.copy_from_span(Span::of_bytes(&bytes)), Ok(()));
        let page = PAGE as usize;
        for (to, from, outcome) in [
            (missing, whole, Err(NotCopied)),
            (read_only, whole, Err(NotCopied)),
            (none, whole, Err(NotCopied)),
            (whole, missing, Err(NotCopied)),
            (whole, none, Err(NotCopied)),
            (whole, read_only, Ok(())),
            (missing.first(page), whole, Ok(())),
            (missing, whole.first(page), Ok(())),
            (missing, whole.first(page + 1), Err(NotCopied)),
            (UlpRange { start: missing.start + PAGE, length: 0 }, whole, Ok(())),
        ] {
            assert_eq!(to.copy_from(from), outcome, "{to:x?} {from:x?}");
        }
        let mut words = vec![0; 2 * page / 8];
        let to = WritableSpan::of_words(&mut words);
        assert_eq!(missing.copy_to_span(to), Err(NotCopied));
        assert_eq!(missing.first(page).copy_to_span(to), Ok(()));
        let copy = words.iter().flat_map(|word| word.to_ne_bytes());
        assert!(copy.take(page).eq(bytes[..page].iter().copied()));
    }
}
