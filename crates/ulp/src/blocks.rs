//! Memory that ULPs and the host hold together.
//!
//! The only holder of a block may write to it. While there are several holders, none of them writes
//! (UPVM; V6 here: a message that is sent is not copied).
//!
//! ```text
//! ┌─────────┬──────┬──────────┬───────────────────┐
//! │ holders │ afar │  thread  │ data …            │   64 bytes, 128, 256, … in all
//! └─────────┴──────┴──────────┴───────────────────┘
//! ```
//! A ULP reads `holders` and `afar` by itself, as one word 16 bytes before the data: 1 means that
//! it is the only holder, and that no other process has a [copy](twins). All else about a block is
//! in the host's own memory: a ULP could overwrite what lies here.
//! Blocks belong to one worker's thread, as do the ULPs that run there, so no count is atomic.
//! They lie in [arenas](crate::arena). Blocks without a holder are kept for reuse, up to [`KEPT`]
//! bytes, since the pages of a fresh one come from the kernel one by one.

pub mod twins;

use crate::arena;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::{mem, ptr, slice};
use twins::Unheld;

/// Bytes before the data.
const HEAD: usize = 16;
const LEAST: usize = 64;
/// Maximum number of bytes kept in blocks without a holder.
const KEPT: usize = 64 << 20;

/// One holder's share of a block; see the module comment.
#[derive(Debug)]
pub struct Block {
    /// The block's address and, in the bits that are 0 there, the logarithm of its size.
    word: NonZeroU64,
    /// A block stays on its thread.
    _thread: PhantomData<*mut BlockHeader>,
}

#[repr(C)]
struct BlockHeader {
    /// Number of holders in this process.
    holders: u32,
    /// 1 if another process may have a copy, so that no ULP writes.
    afar: u32,
    /// [`thread`] of the holders.
    thread: u64,
}

const _: () = assert!(size_of::<BlockHeader>() == HEAD && size_of::<Option<Block>>() == 8);
// A logarithm of a size fits into the low bits of an address.
const _: () = assert!((arena::MOST as usize) < LEAST);

/// Addresses of blocks without a holder, by the logarithm of their size.
struct BlockPool {
    free: [Vec<u64>; arena::MOST as usize + 1],
    bytes: usize,
}

impl BlockPool {
    const fn new() -> Self {
        Self { free: [const { Vec::new() }; arena::MOST as usize + 1], bytes: 0 }
    }
}

thread_local! {
    static LENT: Cell<u32> = const { Cell::new(0) };
    static POOL: RefCell<BlockPool> = const { RefCell::new(BlockPool::new()) };
}

/// A number that no other thread has at this time.
fn thread() -> u64 {
    LENT.with(|lent| ptr::from_ref(lent) as u64)
}

impl Block {
    /// Maximum number of bytes that a block has room for.
    pub const MOST: usize = (1 << arena::MOST) - HEAD;

    /// Allocates a block for at least `bytes` bytes, whose contents are unspecified.
    ///
    /// Returns `None` if there is no memory.
    pub fn new(bytes: usize) -> Option<Self> {
        let size = bytes.checked_add(HEAD)?.max(LEAST).checked_next_power_of_two()?;
        let power = size.trailing_zeros();
        let kept = POOL.with_borrow_mut(|pool| {
            let kept = pool.free.get_mut(power as usize)?.pop();
            pool.bytes -= if kept.is_some() { size } else { 0 };
            Some(kept)
        })?;
        let address = kept.or_else(|| arena::take(power)).or_else(|| {
            // What is kept in other sizes may be what is missing.
            drop(POOL.replace(BlockPool::new()));
            arena::take(power)
        })?;
        let word = NonZeroU64::new(address | u64::from(power))?;
        // SAFETY: the memory is long enough, aligned, and not otherwise in use.
        Some(unsafe { Self::begin(word) })
    }

    /// Makes a block with one holder of memory that is taken.
    ///
    /// # Safety
    /// The memory at the word's address has the word's size, and belongs to this block alone.
    unsafe fn begin(word: NonZeroU64) -> Self {
        let block = Self { word, _thread: PhantomData };
        // SAFETY: the memory is this block's.
        unsafe { block.head().write(BlockHeader { holders: 1, afar: 0, thread: thread() }) };
        block
    }

    /// Allocates a block that holds these bytes. Returns `None` if there is no memory.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let block = Self::new(bytes.len())?;
        // SAFETY: the block has room for the bytes, and is not in use yet.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), block.address() as *mut u8, bytes.len())
        };
        Some(block)
    }

    /// Allocates a block for `bytes` bytes, which `copy` overwrites.
    ///
    /// Returns `None` if there is no memory, or if `copy` returns `None`.
    pub fn written(bytes: usize, copy: impl FnOnce(&mut [u8]) -> Option<()>) -> Option<Self> {
        let block = Self::new(bytes)?;
        // SAFETY: the block has that many bytes, all of which were written once, if only by the
        // kernel; and it is not in use yet.
        copy(unsafe { slice::from_raw_parts_mut(block.address() as *mut u8, bytes) })?;
        Some(block)
    }

    /// Lends the first `bytes` bytes to `look`, which must not run a ULP.
    ///
    /// Returns `None` if the block is smaller.
    pub fn lent<R>(&self, bytes: usize, look: impl FnOnce(&[u8]) -> R) -> Option<R> {
        if bytes > self.capacity() {
            return None;
        }
        let _lent = UlpPause::begin();
        // SAFETY: the block has that many bytes. No thread writes to it while no ULP runs, which
        // `UlpPause` ensures.
        Some(look(unsafe { slice::from_raw_parts(self.address() as *const u8, bytes) }))
    }

    /// Copies the first `bytes` bytes. Returns `None` if the block is smaller.
    pub fn read(&self, bytes: usize) -> Option<Vec<u8>> {
        if bytes > self.capacity() {
            return None;
        }
        let mut copy = Vec::with_capacity(bytes);
        // SAFETY: both have that many bytes, and no ULP runs while the host does.
        unsafe { ptr::copy_nonoverlapping(self.address() as *const u8, copy.as_mut_ptr(), bytes) };
        // SAFETY: the bytes were written just now.
        unsafe { copy.set_len(bytes) };
        Some(copy)
    }

    /// Address of the data.
    pub fn address(&self) -> u64 {
        self.head() as u64 + HEAD as u64
    }

    /// Number of bytes that the block has room for.
    pub fn capacity(&self) -> usize {
        (1 << self.power()) - HEAD
    }

    /// Number of holders in this process.
    pub fn holders(&self) -> u32 {
        // SAFETY: the block lives as long as it is held, and no ULP runs while the host does.
        unsafe { (*self.head()).holders }
    }

    /// Adds to the number of holders. A number at its maximum stays, and so the block does.
    fn hold(&self, more: i32) -> u32 {
        let before = self.holders();
        let holders = if before == u32::MAX { before } else { before.wrapping_add_signed(more) };
        // SAFETY: as in `holders`.
        unsafe { (*self.head()).holders = holders };
        holders
    }

    fn head(&self) -> *mut BlockHeader {
        (self.word.get() & !(LEAST as u64 - 1)) as *mut BlockHeader
    }

    /// Logarithm of the block's size in bytes.
    fn power(&self) -> usize {
        self.word.get() as usize % LEAST
    }
}

/// Adds a holder: nothing is copied.
impl Clone for Block {
    fn clone(&self) -> Self {
        self.hold(1);
        Self { word: self.word, _thread: PhantomData }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.hold(-1) == 0 && twins::unheld(self.name()) == Unheld::Free {
            free(self.head() as u64, self.power());
        }
    }
}

/// Keeps a block without a holder for reuse, or gives it back to its arena.
fn free(address: u64, power: usize) {
    let kept = POOL.try_with(|pool| {
        let Ok(mut pool) = pool.try_borrow_mut() else { return false };
        let bytes = pool.bytes + (1 << power);
        let keep = bytes <= KEPT && pool.free[power].try_reserve(1).is_ok();
        if keep {
            pool.bytes = bytes;
            pool.free[power].push(address);
        }
        keep
    });
    if !kept.unwrap_or(false) {
        arena::give(address, power as u32);
    }
}

impl Drop for BlockPool {
    fn drop(&mut self) {
        for (power, free) in self.free.iter_mut().enumerate() {
            mem::take(free).into_iter().for_each(|address| arena::give(address, power as u32));
        }
    }
}

/// No ULP runs while a value of this type lives.
struct UlpPause;

impl UlpPause {
    fn begin() -> Self {
        LENT.set(LENT.get() + 1);
        Self
    }
}

impl Drop for UlpPause {
    fn drop(&mut self) {
        LENT.set(LENT.get() - 1);
    }
}

/// Asserts that no block's bytes are lent, so that a ULP may run.
#[inline]
pub(crate) fn assert_none_is_lent() {
    assert!(LENT.get() == 0, "a ULP is run while the bytes of a block are lent");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_one_memory_for_all_that_hold_it_and_is_used_again() {
        let block = Block::of(b"many bytes").unwrap();
        assert_eq!((block.capacity(), block.holders()), (48, 1));
        let other = block.clone();
        assert_eq!((other.address(), other.holders()), (block.address(), 2));
        drop(block);
        assert_eq!((other.holders(), other.read(10).as_deref()), (1, Some(&b"many bytes"[..])));
        // The block is not free yet.
        assert_ne!(Block::new(10).unwrap().address(), other.address());
        assert_eq!(
            (other.read(49), other.lent(4, |bytes| bytes.to_vec())),
            (None, Some(b"many".to_vec()))
        );
        assert!(Block::written(3, |_| None).is_none());
        let address = other.address();
        drop(other);
        assert_eq!(Block::new(1).unwrap().address(), address);
        assert_eq!(Block::new(49).unwrap().capacity(), 112);
    }

    #[test]
    fn what_nobody_holds_is_kept_up_to_a_limit() {
        let blocks = (0..3).map(|_| Block::new(KEPT / 2 - HEAD).unwrap()).collect::<Vec<_>>();
        drop(blocks);
        assert_eq!(POOL.with_borrow(|pool| (pool.bytes, pool.free[25].len())), (KEPT, 2));
        assert!(Block::new(usize::MAX).is_none());
    }
}
