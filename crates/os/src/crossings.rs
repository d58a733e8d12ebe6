//! A count of the crossings into the kernel that calls make, for tests.
//!
//! LRPC, section 2.3, states the least cost of a call in crossings and switches. The count has
//! every system call of this crate that a call may make once its channel is open: yielding, waiting
//! and waking, doorbells, timers, and affinity. It has neither set-up and tear-down (memory,
//! sockets, descriptors), nor system calls that a process makes without this crate.
//!
//! The kernel's own count (`perf stat -e raw_syscalls:sys_enter`, which takes privileges) was the
//! same for calls on one processor, except for the system calls by which the test controls both
//! sides. A tracer would count all without privileges, but each of its stops takes longer than a
//! whole call, and callers choose the kind of transfer by measured times.
//!
//! Only builds with debug assertions count.

#[cfg(debug_assertions)]
static MADE: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// Number of crossings that this process has made so far, in all its threads.
///
/// `None` in builds without debug assertions, which do not count.
pub fn made() -> Option<u64> {
    #[cfg(debug_assertions)]
    return Some(MADE.load(std::sync::atomic::Ordering::Relaxed));
    #[cfg(not(debug_assertions))]
    return None;
}

/// Counts a crossing that is about to be made.
#[inline(always)]
pub(crate) fn another() {
    #[cfg(debug_assertions)]
    MADE.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
}
