//! Private memory by the page: reserved, not committed, guarded, given back.
//!
//! Stacks lie in such memory. The kernel commits a page when it is first touched, and never merges
//! pages into a huge one.

use std::io;
use std::ptr::{self, NonNull};

/// The size of a page on x86-64, in bytes.
pub const PAGE: usize = 4096;

/// Linux 6.13; the C library's header does not name it yet.
const MADV_GUARD_INSTALL: i32 = 102;

/// Maps `bytes` of zeroed private memory: reserved, not committed.
///
/// It has small pages only.
///
/// # Errors
/// No address space is left, or the process has too many mappings.
pub fn reserve(bytes: usize) -> io::Result<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no existing
    // memory.
    let at = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // A huge page under 30 stacks would commit all of them at the first touch. A refusal only costs
    // memory. SAFETY: the range was mapped just above; the advice changes no contents.
    let _ = unsafe { libc::madvise(at, bytes, libc::MADV_NOHUGEPAGE) };
    NonNull::new(at.cast())
        .ok_or_else(|| io::Error::other("mmap returned address 0: raise vm.mmap_min_addr above 0"))
}

/// Makes a page fault on every access, without splitting the mapping.
///
/// # Safety
/// `at` begins a page of a mapping made by [`reserve`] that nothing uses.
///
/// # Errors
/// The kernel is older than Linux 6.13, a filter refuses the advice, or memory is short (`ENOMEM`,
/// `EAGAIN`).
pub unsafe fn install_guard(at: *mut u8) -> io::Result<()> {
    // SAFETY: the page is unused by the caller's promise, so losing its contents and access loses
    // nothing.
    done(unsafe { libc::madvise(at.cast(), PAGE, MADV_GUARD_INSTALL) })
}

/// Makes a page fault on every access, and splits the mapping.
///
/// This costs one more entry in the process's memory map.
///
/// # Safety
/// `at` begins a page of a mapping made by [`reserve`] that nothing uses.
///
/// # Errors
/// The process has too many mappings (`vm.max_map_count`).
pub unsafe fn protect(at: *mut u8) -> io::Result<()> {
    // SAFETY: the page is unused by the caller's promise.
    done(unsafe { libc::mprotect(at.cast(), PAGE, libc::PROT_NONE) })
}

/// Gives the memory of a range back to the kernel.
///
/// The range reads as zero afterwards.
///
/// # Safety
/// The range lies in a mapping made by [`reserve`], and nothing relies on its contents.
pub unsafe fn discard(at: *mut u8, bytes: usize) {
    // SAFETY: by the caller's promise nothing relies on the contents. Failure leaves the memory in
    // use, which is harmless.
    let _ = unsafe { libc::madvise(at.cast(), bytes, libc::MADV_DONTNEED) };
}

/// Unmaps a range.
///
/// # Safety
/// The range is a mapping made by [`reserve`], and nothing uses it any more.
pub unsafe fn release(at: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(at.as_ptr().cast(), bytes) };
}

fn done(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_guard_can_be_set() {
        let page = reserve(4 * PAGE).unwrap();
        // SAFETY: the first page of a fresh mapping.
        unsafe { protect(page.as_ptr()) }.unwrap();
        let mut reachable = 0_u8;
        let me = std::process::id() as libc::pid_t;
        let read = |from: *mut u8, into: *mut u8| {
            let local = libc::iovec { iov_base: into.cast(), iov_len: 1 };
            let remote = libc::iovec { iov_base: from.cast(), iov_len: 1 };
            // SAFETY: two live vectors of one byte each; for a bad address the kernel returns an
            // error.
            unsafe { libc::process_vm_readv(me, &raw const local, 1, &raw const remote, 1, 0) }
        };
        assert_eq!(read(page.as_ptr(), &raw mut reachable), -1);
        let second = page.as_ptr().wrapping_add(PAGE);
        assert_eq!(read(second, &raw mut reachable), 1);
        // SAFETY: the second page of a fresh mapping.
        if unsafe { install_guard(second) }.is_ok() {
            assert_eq!(read(second, &raw mut reachable), -1);
        }
        // SAFETY: the mapping is this test's own.
        unsafe { release(page, 4 * PAGE) };
    }
}
