//! Addresses of ULPs: slots of 1 GiB each, aligned to their size.
//!
//! Each process of a machine has the same slots, so a ULP can be in any process without a pointer
//! of its own changing (UPVM; V2 here).
//!
//! ```text
//! 1 TiB + n GiB  nothing
//!   +  4 MiB     stack                                       grows downwards, 8 MiB if no other
//!                                                            size is chosen
//!                table: the gate to the host, letters to it  29 lines, n % 55 lines below what
//!                                                            follows
//!   + 12 MiB     the image: code, constants, data, zeros     of its file, private; all of these
//!                                                            n % 128 pages higher
//!                heap, n % 55 lines after the image's end    grows upwards; takes no memory until
//!                                                            it is touched
//!                maps of the program                         from here downwards
//!                list of the maps                            1 MiB; no memory before the first
//!                entries of descriptors from number 28   4 MiB; no memory until it is touched
//!   +  1 GiB     (the last MiB is unused)
//! ```
//! With a stack of another size, all that follows is at a higher or lower multiple of 2 MiB.

use crate::layout::{
    BELOW, FILES, FIRST, LAST, LIBRARY_LINES, LINE, LINES, MIDDLE, NEAR_FILES, PAGE, PAGES, SLOT,
    TABLE_FILES, TABLE_FILES_RANGE, TABLE_LIBRARY, TABLE_LINES,
};
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Number of slots.
pub const SLOTS: usize = ((LAST - FIRST) / SLOT) as usize;

const _: () = assert!(TABLE_LIBRARY * 8 + LIBRARY_LINES * LINE == TABLE_LINES * LINE);

const _: () =
    assert!(TABLE_FILES + NEAR_FILES / 2 == TABLE_FILES_RANGE && FILES_BYTES.is_multiple_of(PAGE));

/// Size of a slot, in bytes.
pub const SLOT_BYTES: u64 = SLOT;
/// Size of a stack for which no other is chosen, in bytes.
pub const STACK: u64 = 8 << 20;
/// Minimum size of a stack, in bytes.
pub const LEAST_STACK: u64 = 64 << 10;
/// Maximum size of a stack, in bytes.
pub const MOST_STACK: u64 = SLOT / 2;
/// Size of the entries of all descriptors, in bytes.
pub(crate) const FILES_BYTES: u64 = FILES * 4;
/// Size of the unused end of a slot, in bytes.
pub(crate) const GAP: u64 = 1 << 20;

/// Offset of the image in a slot, apart from its pages, above a stack of this size.
pub(crate) fn middle(stack: u64) -> u64 {
    (BELOW + stack).next_multiple_of(MIDDLE)
}

/// A slot that is taken in this process, or several adjacent ones for a ULP that needs more memory.
///
/// Dropping it frees them. The owner must unmap what it has mapped there.
#[derive(Debug)]
pub struct UlpSlot {
    /// The first slot.
    number: usize,
    count: usize,
    /// Size of the stack, in bytes.
    stack: u64,
}

/// A bit for each slot: taken or free.
static TAKEN: Mutex<Vec<u64>> = Mutex::new(Vec::new());
/// The slots that belong to the ULP of the slot before.
static JOINED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

fn taken() -> MutexGuard<'static, Vec<u64>> {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    taken.resize(SLOTS.div_ceil(64), 0);
    taken
}

fn joined() -> MutexGuard<'static, BTreeSet<usize>> {
    JOINED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_free(taken: &[u64], number: usize) -> bool {
    taken[number / 64] >> (number % 64) & 1 == 0
}

impl UlpSlot {
    /// Takes the lowest free slot. Returns `None` if all are taken.
    pub fn take() -> Option<Self> {
        let mut taken = taken();
        let (at, word) = taken.iter_mut().enumerate().find(|(_, word)| **word != u64::MAX)?;
        let bit = word.trailing_ones() as usize;
        let number = at * 64 + bit;
        if number >= SLOTS {
            return None;
        }
        *word |= 1 << bit;
        Some(Self { number, count: 1, stack: STACK })
    }

    /// Takes the lowest adjacent free slots, for one ULP. Returns `None` if so many are not free.
    pub fn take_several(count: usize) -> Option<Self> {
        let free = {
            let taken = taken();
            let mut found = 0;
            (0..SLOTS).find(|number| {
                found = if is_free(&taken, *number) { found + 1 } else { 0 };
                found >= count.max(1)
            })?
        };
        // Another thread may take one of them first.
        Self::take_these(free + 1 - count.max(1), count).or_else(|| Self::take_several(count))
    }

    /// Takes the slot with this number.
    ///
    /// For callers that agree with other processes on which ULP has which. Returns `None` if the
    /// slot is taken here, or does not exist.
    pub fn take_this(number: usize) -> Option<Self> {
        Self::take_these(number, 1)
    }

    /// As [`take_this`](Self::take_this), for `count` adjacent slots from `number` on.
    pub fn take_these(number: usize, count: usize) -> Option<Self> {
        let end = number.checked_add(count).filter(|end| count > 0 && *end <= SLOTS)?;
        let mut taken = taken();
        if !(number..end).all(|one| is_free(&taken, one)) {
            return None;
        }
        (number..end).for_each(|one| taken[one / 64] |= 1 << (one % 64));
        joined().extend(number + 1..end);
        Some(Self { number, count, stack: STACK })
    }

    /// The same slot for a ULP with a stack of this size, in whole pages.
    pub(crate) fn with_stack(mut self, bytes: u64) -> Self {
        self.stack = bytes.div_ceil(PAGE) * PAGE;
        self
    }

    /// The slot's number, or that of the first of several.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Address of the slot.
    pub fn start(&self) -> u64 {
        FIRST + self.number as u64 * SLOT
    }

    /// Address of the image; the stack, with the table at its top, ends here.
    pub(crate) fn middle(&self) -> u64 {
        self.start() + middle(self.stack) + self.number as u64 % PAGES * PAGE
    }

    /// Offset of this slot's lines from those of slot 0, in bytes.
    pub(crate) fn lines(&self) -> u64 {
        self.number as u64 % LINES * LINE
    }

    /// Address of the table.
    pub(crate) fn table(&self) -> u64 {
        self.middle() - self.lines() - TABLE_LINES * LINE
    }

    /// The lowest address of the stack.
    pub(crate) fn stack(&self) -> u64 {
        self.middle() - self.stack
    }

    /// Size of the stack, in bytes.
    pub(crate) fn stack_size(&self) -> u64 {
        self.stack
    }

    /// Size of its addresses, in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.count as u64 * SLOT
    }

    /// Maximum end of the heap; the entries of descriptors begin here.
    pub(crate) fn heap_end(&self) -> u64 {
        self.end() - FILES_BYTES
    }

    /// End of what is mapped.
    pub(crate) fn end(&self) -> u64 {
        self.start() + self.size() - GAP
    }

    /// The number of the slot that contains an address.
    pub fn of(address: u64) -> Option<usize> {
        (FIRST..LAST).contains(&address).then(|| ((address - FIRST) / SLOT) as usize)
    }

    /// The number of the first slot of the ULP in this process whose memory contains an address.
    ///
    /// A slot that is not taken counts as one of its own.
    pub fn owner(address: u64) -> Option<usize> {
        let (mut number, joined) = (Self::of(address)?, joined());
        while joined.contains(&number) {
            number -= 1;
        }
        Some(number)
    }
}

impl Drop for UlpSlot {
    fn drop(&mut self) {
        let mut taken = taken();
        for one in self.number..self.number + self.count {
            taken[one / 64] &= !(1 << (one % 64));
            joined().remove(&one);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_uses_most_lies_within_2_mib_with_each_stack() {
        assert_eq!(middle(STACK), 12 << 20);
        for stack in [LEAST_STACK, 100_000, 1 << 20, STACK, STACK + 1, 64 << 20, MOST_STACK] {
            let slot = UlpSlot::take().unwrap().with_stack(stack);
            assert!(slot.stack().is_multiple_of(PAGE) && slot.stack() >= slot.start() + BELOW);
            assert!((stack..stack + PAGE).contains(&slot.stack_size()));
            assert_eq!(slot.stack() + slot.stack_size(), slot.middle());
            assert!((slot.middle() - slot.start()) % MIDDLE < PAGES * PAGE);
        }
    }

    #[test]
    fn several_slots_belong_to_one_ulp_and_none_of_them_to_another() {
        let first = UlpSlot::take_these(9000, 3).unwrap();
        assert!(UlpSlot::take_this(9002).is_none() && UlpSlot::take_these(8999, 2).is_none());
        assert_eq!((first.number(), first.end()), (9000, first.start() + 3 * SLOT - GAP));
        let inside = [0, SLOT, 3 * SLOT - 1, 3 * SLOT].map(|at| first.start() + at);
        assert_eq!(inside.map(UlpSlot::owner), [Some(9000), Some(9000), Some(9000), Some(9003)]);
        assert_eq!(inside.map(UlpSlot::of), [9000, 9001, 9002, 9003].map(Some));
        drop(first);
        let last = UlpSlot::take_this(9002).unwrap();
        assert_eq!(UlpSlot::owner(inside[2]), Some(9002));
        let [many, others] = [(); 2].map(|()| UlpSlot::take_several(100).unwrap());
        assert!(many.number().abs_diff(others.number()) >= 100 && last.number() == 9002);
        assert!(UlpSlot::take_several(SLOTS).is_none());
        assert!(UlpSlot::take_these(9010, 0).is_none() && UlpSlot::take_these(SLOTS, 1).is_none());
        assert!(UlpSlot::take_these(SLOTS - 1, 2).is_none());
        assert!(UlpSlot::take_these(usize::MAX, 2).is_none());
    }

    #[test]
    fn slots_are_taken_once_and_found_by_their_addresses() {
        let (first, second) = (UlpSlot::take().unwrap(), UlpSlot::take().unwrap());
        assert_ne!(first.start(), second.start());
        assert_eq!(first.start() % SLOT, 0);
        assert_eq!(UlpSlot::of(first.start()), Some(first.number()));
        assert_eq!(UlpSlot::of(first.table() + LINE - 1), Some(first.number()));
        assert_eq!((UlpSlot::of(FIRST - 1), UlpSlot::of(LAST)), (None, None));
        assert_eq!(SLOTS, 14_336);
        let last = UlpSlot::take_this(SLOTS - 1).unwrap();
        assert!(
            UlpSlot::take_this(first.number()).is_none()
                && UlpSlot::take_this(SLOTS).is_none()
                && UlpSlot::take_this(SLOTS - 1).is_none()
        );
        drop(last);
        assert_eq!(UlpSlot::take_this(SLOTS - 1).unwrap().number(), SLOTS - 1);
    }
}
