//! Crossings into the kernel that calls take, counted so that a test can say how many there are
//! (LRPC, section 2.3: what a call costs at the least is told in crossings and switches).
//!
//! Counted is every system call of this crate that a call may take once its channel is open: giving
//! way, waiting and waking, rings, timers, and who may run where. Not counted: what sets up and
//! takes down (memory, sockets, descriptors), and whatever a process asks of the kernel without
//! this crate. The kernel's own count (`perf stat -e raw_syscalls:sys_enter`, which takes
//! privileges) was the same for calls on one processor, but for those system calls by which the
//! test tells both sides what to do. A tracer would count all without privileges, but every stop
//! for it takes longer than a whole call, and callers learn from times which way to take.
//!
//! Only in builds with debug assertions; in others this is nothing.

#[cfg(debug_assertions)]
static MADE: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// Those that this process has made so far, in all its threads. `None` in builds without debug
/// assertions, which do not count.
pub fn made() -> Option<u64> {
    #[cfg(debug_assertions)]
    return Some(MADE.load(std::sync::atomic::Ordering::Relaxed));
    #[cfg(not(debug_assertions))]
    return None;
}

/// Another one is about to be made.
#[inline(always)]
pub(crate) fn another() {
    #[cfg(debug_assertions)]
    MADE.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
}
