//! The few kernel calls that threads need: memory, guards, futex, membarrier, affinity.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32;
use std::time::Instant;

/// Linux 6.13; not yet named by the C library's header.
const MADV_GUARD_INSTALL: i32 = 102;
const MEMBARRIER_CMD_PRIVATE_EXPEDITED: i32 = 1 << 3;
const MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

/// The size of a page on x86-64.
pub(crate) const PAGE: usize = 4096;

fn done(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Maps `bytes` of zeroed private memory, for stacks: reserved, not committed, small pages only.
pub(crate) fn map(bytes: usize) -> io::Result<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no existing memory.
    let at = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // A huge page behind 30 stacks would commit all of them at the first touch. Failing to say so costs memory only.
    // SAFETY: the range was mapped just above; the advice changes no contents.
    let _ = unsafe { libc::madvise(at, bytes, libc::MADV_NOHUGEPAGE) };
    NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mmap returned address 0: raise vm.mmap_min_addr above 0"))
}

/// Makes a page fault on every access, without splitting the mapping.
///
/// # Safety
/// `at` begins one page of a mapping made by `map` that nothing uses.
pub(crate) unsafe fn install_guard(at: *mut u8) -> io::Result<()> {
    // SAFETY: the page is unused by the caller's promise, so losing its contents and access loses nothing.
    done(unsafe { libc::madvise(at.cast(), PAGE, MADV_GUARD_INSTALL) })
}

/// Makes a page fault on every access, at the price of one more entry in the process's memory map.
///
/// # Safety
/// `at` begins one page of a mapping made by `map` that nothing uses.
pub(crate) unsafe fn protect(at: *mut u8) -> io::Result<()> {
    // SAFETY: the page is unused by the caller's promise.
    done(unsafe { libc::mprotect(at.cast(), PAGE, libc::PROT_NONE) })
}

/// Gives the memory of a range back to the kernel; it reads as zero afterwards.
///
/// # Safety
/// The range lies in a mapping made by `map`, and nothing relies on its contents.
pub(crate) unsafe fn discard(at: *mut u8, bytes: usize) {
    // SAFETY: by the caller's promise nothing relies on the contents. Failure leaves the memory in use, which is harmless.
    let _ = unsafe { libc::madvise(at.cast(), bytes, libc::MADV_DONTNEED) };
}

/// Blocks the kernel thread while `word` holds `expected`, until a wake or `deadline`. May return early.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32, deadline: Option<Instant>) {
    let timeout = deadline.map(|at| {
        let left = at.saturating_duration_since(Instant::now());
        libc::timespec {
            tv_sec: left.as_secs().min(i64::MAX as u64) as libc::time_t,
            tv_nsec: libc::c_long::from(left.subsec_nanos()),
        }
    });
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word is a live aligned u32 and the timeout is null or a live timespec; the call writes neither.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, expected, timeout) };
}

/// Wakes one kernel thread that waits on `word`.
pub(crate) fn futex_wake(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel uses the address as a key only.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, 1) };
}

/// Registers the process for `membarrier`. `false`: the kernel does not offer it.
pub(crate) fn register_membarrier() -> bool {
    // SAFETY: the call has no memory operands.
    unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 }
}

/// Runs a full memory barrier on every processor that runs a thread of this process.
pub(crate) fn membarrier() {
    // SAFETY: the call has no memory operands.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) };
    assert!(result == 0, "membarrier worked when it was registered and fails now: {}", io::Error::last_os_error());
}

/// The processors that the calling kernel thread may run on.
pub(crate) fn affinity() -> io::Result<libc::cpu_set_t> {
    // SAFETY: a set of processors is plain bits, for which zero is a valid value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is a live local of the size given.
    done(unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) })?;
    Ok(set)
}

/// Restricts the calling kernel thread to the processors in `set`.
pub(crate) fn set_affinity(set: &libc::cpu_set_t) -> io::Result<()> {
    // SAFETY: the set is live and of the size given.
    done(unsafe { libc::sched_setaffinity(0, size_of_val(set), set) })
}

/// The set that holds one processor.
pub(crate) fn only(cpu: usize) -> io::Result<libc::cpu_set_t> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("processor {cpu} is beyond the kernel's limit")));
    }
    // SAFETY: a set of processors is plain bits, for which zero is a valid value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the index is below the size of the set, checked above.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    Ok(set)
}

/// The kernel's number of the calling kernel thread.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: the call has no operands.
    unsafe { libc::gettid() }.unsigned_abs()
}
