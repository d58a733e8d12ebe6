//! Segments as a hostile client brings them, made by hand.

use crate::speech::{Answer, Came, Hold, Refusal, Request, tag};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use std::os::fd::{AsFd, OwnedFd};
use upcall_shm::slot::{NO_ASTACK, SlotMessage, ValueLocation};

/// Makes a memory file with the seals that a segment is sent with, after `fill` has written to it.
///
/// # Panics
/// If the machine has no memory for it.
pub fn file(len: u64, fill: impl FnOnce(&OwnedFd)) -> OwnedFd {
    let fd =
        rustix::fs::memfd_create("upcall-hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .expect("memory");
    rustix::fs::ftruncate(&fd, len).expect("a length");
    fill(&fd);
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).expect("seals");
    fd
}

/// Allocates pages of a memory file.
///
/// # Panics
/// If the machine has no memory for them.
pub fn allocate(fd: &OwnedFd, flags: FallocateFlags, at: u64, len: u64) {
    rustix::fs::fallocate(fd, flags, at, len).expect("memory");
}

/// Fills a file of `len` bytes with zeros behind the descriptor of a list of `count` elements.
///
/// # Panics
/// If the machine has no memory for it.
pub fn list(fd: &OwnedFd, len: u64, count: u64) {
    allocate(fd, FallocateFlags::empty(), 0, len);
    for (at, word) in [(0, 16), (8, count)] {
        rustix::io::pwrite(fd, &u64::to_ne_bytes(word), at).expect("a word");
    }
}

/// Writes the block of a list of `count` texts of eight bytes to a file. Returns the bytes of the
/// block.
///
/// # Panics
/// If the machine has no memory for it.
pub fn texts(fd: &OwnedFd, count: u64) {
    let descriptors = (0..count).flat_map(|at| [16 + 16 * count + 8 * at, 8]);
    let words = [16, count].into_iter().chain(descriptors);
    let text = u64::from_ne_bytes(*b"a text b");
    let block: Vec<u8> = words.chain((0..count).map(|_| text)).flat_map(u64::to_ne_bytes).collect();
    let mut done = 0;
    while done < block.len() {
        done += rustix::io::pwrite(fd, &block[done..], done as u64).expect("memory");
    }
}

/// The bytes of the block of `count` texts of eight bytes.
pub fn bytes_of_texts(count: u64) -> u64 {
    16 + 24 * count
}

/// Brings a segment with this number.
///
/// # Errors
/// The server's refusal.
///
/// # Panics
/// If the server does not answer.
pub fn bring(hold: &Hold, number: u16, fd: &OwnedFd, len: u64) -> Result<(), Refusal> {
    match hold.speaker.ask(Request::Segment { number, len }, &[fd.as_fd()]) {
        Came::Answer(Answer::Mapped, _) => Ok(()),
        Came::Answer(Answer::Refused(refusal), _) => Err(refusal),
        other => panic!("segment {number}: {other:?}"),
    }
}

/// A call of a procedure whose arguments are the first `len` bytes of segment `number`.
pub fn in_segment(procedure: u16, number: u16, len: u64) -> SlotMessage {
    let mut request = SlotMessage::new(0, tag(0, procedure), NO_ASTACK);
    request.values[0] = len;
    request.place(ValueLocation::Segment, number, 8);
    request
}
