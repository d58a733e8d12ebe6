//! Holes that a hostile client punches into memory that it shares with the server.
//!
//! A hole takes pages away while both sides have them mapped. The contents are lost, and the next
//! access by either side finds zeros. The kernel permits holes in a channel and in A-stacks. It
//! refuses them in files with `F_SEAL_FUTURE_WRITE`: stations, and segments that the server has
//! accepted.

use crate::dice::Dice;
use crate::speech::{Files, Hold};
use rustix::fs::FallocateFlags;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

/// Size of a page, in bytes.
pub(super) const PAGE: usize = 4096;

/// The files with a seal against holes, and what each of them is.
pub(super) fn sealed<'a>(hold: &'a Hold, files: &'a Files) -> [(&'static str, BorrowedFd<'a>); 3] {
    [
        ("a segment that the server has accepted", files.segment.as_fd()),
        ("the server's station", files.station.as_fd()),
        ("the client's station", hold.station.as_fd()),
    ]
}

/// Punches a hole of one page, or of all pages from some page on. Returns `true` if the kernel made
/// the hole.
pub(super) fn punch(file: BorrowedFd<'_>, within: Range<usize>, dice: &mut Dice) -> bool {
    let pages = within.len().div_ceil(PAGE) as u64;
    let first = dice.below(pages);
    let count = if dice.below(4) == 0 { pages - first } else { 1 };
    let (at, len) = (within.start as u64 + first * PAGE as u64, count * PAGE as u64);
    rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len)
        .is_ok()
}
