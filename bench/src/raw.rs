//! Bare shared memory between processes that trust each other, and the bare time-stamp counter.
//!
//! The memory is the floor that calls are compared with, and has a page by which measuring
//! processes take turns. The counter is the cheapest clock.
//!
//! `unsafe` is here, and in the floors of the suites that build on this module, because a floor
//! must not depend on anything else. All sides are this program; nothing here defends against a
//! hostile peer, and nothing else may use it.
//!
//! ```text
//! 0        slot 0: turn u32 | op u32 | a i32 | b i32 | len u64 | sum u64     one line of 64 bytes
//! 64 i     slot i
//! 16 KiB   argument of slot 0, 1 MiB
//! then     result of slot 0, one page
//! ```
//! A slot belongs to the client while its `turn` is even and to the server while it is odd. Its
//! owner may read and write the rest of the slot and its data, and gives the slot up by a Release
//! store of the next turn, which the other side's Acquire load sees. Every access below checks the
//! turn first, a load of a line that the caller already has. That check, made by both sides, is the
//! invariant on which the `unsafe` blocks rest.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Size of a [`Page`], in bytes.
pub const PAGE: usize = 4096;
/// Size of a cache line, in bytes.
pub const LINE: usize = 64;

/// Creates memory of `len` bytes, all 0. The descriptor is for the processes that map it.
///
/// # Errors
/// The kernel has no memory or descriptors left.
pub fn create(len: usize) -> io::Result<OwnedFd> {
    let file = memfd_create("upcall-bench", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, len as u64)?;
    Ok(file)
}

/// A mapping of the first `LEN` bytes of such memory.
pub struct Mapping<const LEN: usize> {
    base: NonNull<u8>,
}

impl<const LEN: usize> Mapping<LEN> {
    /// Maps memory by the path of its file.
    ///
    /// # Errors
    /// The file does not exist, or is too small.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Self::map(&file, MapFlags::empty())
            .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))
    }

    fn map(file: &File, flags: MapFlags) -> io::Result<Self> {
        let found = file.metadata()?.len();
        if found < LEN as u64 {
            return Err(io::Error::other(format!(
                "shared memory of {found} bytes where {LEN} were expected"
            )));
        }
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | flags);
        // SAFETY: no address is requested, so no mapping in use is replaced; the mapping lives
        // until drop.
        let base = unsafe { mmap(std::ptr::null_mut(), LEN, access, flags, file, 0) }?;
        let base =
            NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        Ok(Self { base })
    }

    /// Returns the address at offset `at`, for an `unsafe` block that justifies its use.
    #[inline(always)]
    pub fn at(&self, at: usize) -> NonNull<u8> {
        assert!(at < LEN);
        // SAFETY: within the mapping.
        unsafe { self.base.add(at) }
    }

    /// Returns the word at offset `at`, which all sides access by atomics, or in turn.
    #[inline(always)]
    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= LEN);
        // SAFETY: within the mapping, aligned, mapped as long as `self`, and any bits are a valid
        // word.
        unsafe { self.at(at).cast::<AtomicU64>().as_ref() }
    }
}

impl<const LEN: usize> Drop for Mapping<LEN> {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; every borrow of it has ended.
        unsafe { munmap(self.base.as_ptr().cast(), LEN) }.ok();
    }
}

// SAFETY: a mapping is not bound to a thread; it gives access to its content only by atomics and
// raw addresses.
unsafe impl<const LEN: usize> Send for Mapping<LEN> {}
// SAFETY: as above.
unsafe impl<const LEN: usize> Sync for Mapping<LEN> {}

/// A page of words, each alone on its line, by which processes take turns.
pub struct Page(Mapping<PAGE>);

impl Page {
    /// Opens the page at the beginning of this memory.
    ///
    /// # Errors
    /// The memory does not exist.
    pub fn open(path: &Path) -> io::Result<Page> {
        Ok(Page(Mapping::open(path)?))
    }

    /// Returns the word of a line.
    #[inline]
    pub fn line(&self, which: usize) -> &AtomicU64 {
        self.0.word(which * LINE)
    }
}

/// Number of slots of one memory.
pub const SLOTS: usize = 256;
const ARGUMENT: usize = SLOTS * LINE;
const ARGUMENT_LEN: usize = 1 << 20;
const RESULT: usize = ARGUMENT + ARGUMENT_LEN;
const RESULT_LEN: usize = 4096;
const LEN: usize = RESULT + RESULT_LEN;

/// The line of a slot.
#[repr(C, align(64))]
struct Slot {
    turn: AtomicU32,
    call: Call,
}

/// The content of a call besides its data. Each side writes only what it must: a null call is the
/// turn alone, because a line that the other side polls should be written once.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Call {
    /// The procedure.
    pub op: u32,
    /// First number; in a reply, the small result.
    pub a: i32,
    /// Second number.
    pub b: i32,
    /// Number of bytes of the argument.
    pub len: u64,
    /// In a reply, the large result.
    pub sum: u64,
}

const _: () = assert!(size_of::<Slot>() == LINE);

/// A mapping of the memory by one of the two sides.
pub struct Memory {
    mapping: Mapping<LEN>,
    /// Parity of this side's turns: 0 for the client, 1 for the server.
    own: u32,
}

impl Memory {
    /// Creates a memory and maps it for the server. The descriptor is for the other side.
    ///
    /// # Errors
    /// The kernel has no memory or descriptors left.
    pub fn create() -> io::Result<(Memory, OwnedFd)> {
        let file = File::from(create(LEN)?);
        let mapping = Mapping::map(&file, MapFlags::POPULATE)?;
        Ok((Memory { mapping, own: 1 }, file.into()))
    }

    /// Maps a memory that the server made, for its one client.
    ///
    /// # Errors
    /// The memory is too small or cannot be mapped.
    pub fn open(fd: OwnedFd) -> io::Result<Memory> {
        Ok(Memory { mapping: Mapping::map(&fd.into(), MapFlags::POPULATE)?, own: 0 })
    }

    fn slot(&self, slot: usize) -> NonNull<Slot> {
        assert!(slot < SLOTS);
        self.mapping.at(slot * LINE).cast()
    }

    /// Returns the turn word of a slot. Reading and waiting on it are safe at any time.
    #[inline]
    pub fn turn(&self, slot: usize) -> &AtomicU32 {
        // SAFETY: the slot is inside the mapping, aligned (a line of a page-aligned mapping), and
        // the memory is zero or holds a turn; it lives as long as `self`.
        let turn = unsafe { &raw const (*self.slot(slot).as_ptr()).turn };
        // SAFETY: as above; both sides access this word by atomics only.
        unsafe { &*turn }
    }

    #[inline]
    fn check_own(&self, slot: usize) {
        assert!(self.turn(slot).load(Acquire) % 2 == self.own, "slot {slot} is the other side's");
    }

    /// Returns `true` if the turn of `slot` is `turn`, one of the caller's own.
    #[inline]
    pub fn is_turn(&self, slot: usize, turn: u32) -> bool {
        self.turn(slot).load(Acquire) == turn
    }

    /// Returns the call in `slot`, in place. The slot must be the caller's.
    ///
    /// # Panics
    /// It is not the caller's turn.
    #[inline]
    pub fn call(&mut self, slot: usize) -> &mut Call {
        self.check_own(slot);
        // SAFETY: inside the mapping and aligned, as in `turn`.
        let call = unsafe { &raw mut (*self.slot(slot).as_ptr()).call };
        // SAFETY: the slot is the caller's by its turn until `pass`, before which the borrow must
        // have ended; any bits are a valid Call.
        unsafe { &mut *call }
    }

    /// Gives `slot` to the other side. Its turn must be `turn`, one of the caller's own.
    ///
    /// # Panics
    /// It is not the caller's turn.
    #[inline]
    pub fn pass(&mut self, slot: usize, turn: u32) {
        self.check_own(slot);
        self.turn(slot).store(turn.wrapping_add(1), Release);
    }

    /// Copies `data` to the argument of slot 0, which must be the caller's. This is the only copy
    /// of the floor.
    ///
    /// # Panics
    /// `data` is larger than 1 MiB, or slot 0 is not the caller's.
    #[inline]
    pub fn put_argument(&mut self, data: &[u8]) {
        assert!(data.len() <= ARGUMENT_LEN);
        self.check_own(0);
        let place = self.mapping.at(ARGUMENT);
        // SAFETY: the length was checked; `data` is private memory, so the two do not overlap; slot
        // 0 is the caller's.
        unsafe { place.copy_from_nonoverlapping(NonNull::from(data).cast(), data.len()) };
    }

    /// Returns the argument of slot 0, in place. The slot must be the caller's.
    ///
    /// # Panics
    /// `len` is more than 1 MiB, or slot 0 is not the caller's.
    #[inline]
    pub fn argument(&mut self, len: u64) -> &[u8] {
        assert!(len <= ARGUMENT_LEN as u64);
        self.check_own(0);
        let place = self.mapping.at(ARGUMENT);
        // SAFETY: the length was checked, and the other side does not write while slot 0 is the
        // caller's, which it is until `pass`, before which the borrow must have ended.
        unsafe { NonNull::slice_from_raw_parts(place, len as usize).as_ref() }
    }

    /// Returns the result of slot 0, in place. The slot must be the caller's.
    ///
    /// # Panics
    /// `len` is more than a page, or slot 0 is not the caller's.
    #[inline]
    pub fn result(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= RESULT_LEN);
        self.check_own(0);
        let place = self.mapping.at(RESULT);
        // SAFETY: as in `argument`.
        unsafe { NonNull::slice_from_raw_parts(place, len).as_mut() }
    }
}

/// `true` if [`ticks`] is available.
pub const TICKS: bool = cfg!(target_arch = "x86_64");

/// Not available on this architecture.
#[cfg(not(target_arch = "x86_64"))]
pub fn ticks() -> u64 {
    0
}

/// Reads the time-stamp counter: 10 ns a reading where `clock_gettime` takes 30, and it delays
/// other code on the processor less.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and it touches no memory.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Not available on this architecture.
#[cfg(not(target_arch = "x86_64"))]
pub fn ticks_in_order() -> u64 {
    0
}

/// Like [`ticks`], but after all preceding loads and before all following ones.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn ticks_in_order() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and it has no effect that a program can
    // see.
    unsafe { std::arch::x86_64::_mm_lfence() };
    let ticks = ticks();
    // SAFETY: as above.
    unsafe { std::arch::x86_64::_mm_lfence() };
    ticks
}

/// Returns the CPU time of all threads that a process has had, in nanoseconds.
///
/// # Errors
/// The process has ended.
pub fn process_cpu_ns(process: u32) -> io::Result<u64> {
    let mut clock = 0;
    // SAFETY: the pointer is to a clock's number.
    let failed = unsafe { libc::clock_getcpuclockid(process as libc::pid_t, &raw mut clock) };
    if failed != 0 {
        return Err(io::Error::from_raw_os_error(failed));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a time.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_goes_over_and_comes_back() {
        let (mut server, fd) = Memory::create().unwrap();
        let mut client = Memory::open(fd).unwrap();
        assert!(!server.is_turn(0, 1));
        client.put_argument(&[7; 200]);
        client.call(0).a = 2;
        client.pass(0, 0);
        assert!(server.is_turn(0, 1));
        assert_eq!(server.argument(200), [7; 200]);
        server.result(200).fill(8);
        server.call(0).a += 3;
        server.pass(0, 1);
        assert!(client.is_turn(0, 2));
        assert_eq!(client.call(0).a, 5);
        assert_eq!(client.result(200), [8; 200]);
    }

    #[test]
    fn slots_do_not_meet() {
        let (server, fd) = Memory::create().unwrap();
        Memory::open(fd).unwrap().pass(SLOTS - 1, 0);
        assert!(!server.is_turn(SLOTS - 2, 1));
        assert!(server.is_turn(SLOTS - 1, 1));
    }

    #[test]
    fn the_counter_counts() {
        let before = ticks();
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(ticks() > before);
    }

    #[test]
    #[should_panic(expected = "the other side's")]
    fn memory_is_touched_in_turn() {
        let (mut server, _fd) = Memory::create().unwrap();
        server.argument(8);
    }

    #[test]
    fn another_size_is_refused() {
        let fd = memfd_create("small", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 4096).unwrap();
        assert!(Memory::open(fd).is_err_and(|e| e.to_string().contains("4096 bytes")));
    }
}
