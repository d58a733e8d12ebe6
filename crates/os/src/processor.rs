//! Processors: where a kernel thread may run and where it runs now.
//!
//! Also its number, and how often it has given its processor away.

use crate::crossings;
use rustix::thread::{CpuSet as KernelSet, Pid, sched_getaffinity, sched_setaffinity};
use std::io;

/// Maximum number of processors that the kernel's set can name.
pub const MAX: usize = KernelSet::MAX_CPU;

/// A set of processors.
#[derive(Clone, PartialEq, Eq)]
pub struct CpuSet(KernelSet);

impl std::fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl CpuSet {
    /// The set with only `cpu`.
    pub fn only(cpu: usize) -> Self {
        let mut set = KernelSet::new();
        set.set(cpu.min(MAX - 1));
        Self(set)
    }

    /// The processors on which the calling kernel thread may run.
    ///
    /// # Errors
    /// There are more processors than the set can name.
    pub fn allowed() -> io::Result<Self> {
        crossings::another();
        Ok(Self(sched_getaffinity(None)?))
    }

    /// Number of processors in the set.
    pub fn count(&self) -> usize {
        self.0.count() as usize
    }

    /// Returns `true` if `cpu` is in the set.
    pub fn contains(&self, cpu: usize) -> bool {
        cpu < MAX && self.0.is_set(cpu)
    }

    /// The set without `cpu`.
    #[must_use]
    pub fn without(&self, cpu: usize) -> Self {
        let mut set = self.0;
        if cpu < MAX {
            set.unset(cpu);
        }
        Self(set)
    }

    /// The set with `cpu`.
    #[must_use]
    pub fn with(&self, cpu: usize) -> Self {
        let mut set = self.0;
        if cpu < MAX {
            set.set(cpu);
        }
        Self(set)
    }

    /// The numbers of the processors, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..MAX).filter(|&cpu| self.0.is_set(cpu))
    }

    /// Confines the calling kernel thread to the set.
    ///
    /// # Errors
    /// This process may use none of the processors (`EINVAL`).
    pub fn confine(&self) -> io::Result<()> {
        crossings::another();
        Ok(sched_setaffinity(None, &self.0)?)
    }

    /// Confines the kernel thread `tid`, of any process of the same user, to the set.
    ///
    /// # Errors
    /// There is no such thread (`ESRCH`), it is another user's (`EPERM`), or it may use none of the
    /// processors (`EINVAL`).
    pub fn confine_thread(&self, tid: u32) -> io::Result<()> {
        let tid = i32::try_from(tid).ok().and_then(Pid::from_raw);
        let tid = tid.ok_or(rustix::io::Errno::SRCH)?;
        crossings::another();
        Ok(sched_setaffinity(Some(tid), &self.0)?)
    }
}

/// The processor on which the calling kernel thread runs at this moment.
///
/// It is a hint: the thread may run on another one by the time the hint is used.
#[inline]
pub fn current() -> usize {
    rustix::thread::sched_getcpu()
}

/// The number of the calling kernel thread, in its own PID namespace.
pub fn thread_id() -> u32 {
    crossings::another();
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// Returns `true` if `tid` is a kernel thread of the process `pid`.
///
/// Both are numbers in our PID namespace. /proc is not used, since it may show another PID
/// namespace.
///
/// # Errors
/// `PermissionDenied`: this process may not signal that thread, or is not told.
pub fn thread_belongs_to(tid: u32, pid: u32) -> io::Result<bool> {
    crossings::another();
    let (Ok(tid), Ok(pid)) = (libc::pid_t::try_from(tid), libc::pid_t::try_from(pid)) else {
        return Ok(false);
    };
    // SAFETY: signal 0 is not sent; the kernel only checks the two numbers and our permission.
    if unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, 0) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::PermissionDenied { Err(error) } else { Ok(false) }
}

/// Counts of the calling kernel thread's waits in the kernel (`getrusage(2)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelWaits {
    /// How often it has released its processor because it had to wait: it slept, waited for a lock,
    /// a descriptor or a disk, or was stopped. Preemption by another thread and offers of the
    /// processor do not count.
    pub blocked: u64,
    /// How often it has touched memory that had to be read from a disk first. Each time it has
    /// waited, maybe more than once.
    pub read: u64,
    /// How often it has touched memory that was not mapped yet. It may have waited for that, if
    /// other threads were changing the process's mappings.
    pub mapped: u64,
}

/// Reads the [`KernelWaits`] of the calling kernel thread.
///
/// Does not block, takes some 0.1 µs, and can be used in a signal handler. `None` if the kernel
/// does not report them (not Linux, or a filter of system calls).
pub fn waits() -> Option<KernelWaits> {
    crossings::another();
    // SAFETY: `rusage` is integers only, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is valid for writes, and of the type that the kernel writes.
    let found = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    let libc::rusage { ru_nvcsw, ru_majflt, ru_minflt, .. } = usage;
    let [blocked, read, mapped] = [ru_nvcsw, ru_majflt, ru_minflt].map(i64::cast_unsigned);
    (found == 0).then_some(KernelWaits { blocked, read, mapped })
}

/// Returns `true` if kernel thread `tid` of this process sleeps or waits.
///
/// Returns `false` if it runs or could run. `None` if the kernel does not report it: the thread has
/// ended, or there is no `/proc`.
pub fn is_blocked(tid: u32) -> Option<bool> {
    let status = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).ok()?;
    // The name, in parentheses, may contain anything.
    let state = status.rsplit_once(')')?.1.trim_start().chars().next()?;
    Some(state != 'R')
}

/// Offers the processor to any other runnable kernel thread.
///
/// Does nothing if the kernel refuses.
#[inline]
pub fn give_way() {
    crossings::another();
    // rustix is not used, since it asserts that the call does not fail, and a filter may refuse it.
    // SAFETY: no pointers.
    unsafe { libc::sched_yield() };
}

/// Asks the kernel to run the calling thread in short slices.
///
/// The slices are 0.1 ms long, from Linux 6.12 on. Then a thread that wakes need not wait until a
/// spinning thread of its processor has used up its own slice of some milliseconds. Its share of
/// the processor stays the same. If the kernel does not support it, nothing happens.
pub fn ask_for_short_slices() {
    let size = size_of::<libc::sched_attr>();
    // SAFETY: `sched_attr` is integers only, for which zero is a value.
    let mut wish: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: `wish` is valid for writes of the size passed, and 0 means the calling thread.
    let found = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut wish, size, 0) };
    if found != 0 || wish.sched_policy != libc::SCHED_OTHER.cast_unsigned() {
        return;
    }
    // All other attributes, above all the nice value, are kept.
    (wish.size, wish.sched_flags, wish.sched_runtime) = (size as u32, 0, SHORT_SLICE);
    // SAFETY: `wish` is valid for reads of the size in its `size` field.
    let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const wish, 0) };
}

/// Length of a slice, in nanoseconds: the shortest that the kernel permits.
const SHORT_SLICE: u64 = 100_000;

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_belongs_to_its_process_only() {
        assert!(thread_belongs_to(thread_id(), std::process::id()).unwrap());
        assert!(!thread_belongs_to(1, std::process::id()).unwrap_or(false));
    }

    #[test]
    fn who_sleeps_has_waited_and_who_computes_has_not() {
        use std::time::{Duration, Instant};
        // The first run is not measured: it maps what the second one needs.
        let of = |work: &dyn Fn()| {
            work();
            let before = waits().unwrap();
            work();
            let after = waits().unwrap();
            assert!(after.read >= before.read && after.mapped >= before.mapped);
            after.blocked - before.blocked
        };
        let slept = of(&|| (0..20).for_each(|_| std::thread::sleep(Duration::from_micros(100))));
        assert!(slept >= 20, "{slept}");
        let computed = of(&|| {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(50) {
                std::hint::black_box((0..1000_u64).sum::<u64>());
            }
        });
        assert_eq!(computed, 0);
        assert_eq!(of(&|| (0..100).for_each(|_| give_way())), 0);
    }

    #[test]
    fn sets() {
        let set = CpuSet::only(3);
        assert!(set.contains(3) && set.count() == 1 && set.without(3).count() == 0);
        assert!(CpuSet::allowed().unwrap().count() >= 1);
    }
}
