//! Processors: which ones a kernel thread may run on, where it runs now, who it is, and how often
//! it has given its processor away.

use crate::crossings;
use rustix::thread::{CpuSet as KernelSet, Pid, sched_getaffinity, sched_setaffinity};
use std::io;

/// The most processors that the kernel's set can name.
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
    /// The set with just this one.
    pub fn only(cpu: usize) -> Self {
        let mut set = KernelSet::new();
        set.set(cpu.min(MAX - 1));
        Self(set)
    }

    /// Those that the calling kernel thread may run on.
    ///
    /// # Errors
    /// More processors than the set can name.
    pub fn allowed() -> io::Result<Self> {
        crossings::another();
        Ok(Self(sched_getaffinity(None)?))
    }

    /// How many they are.
    pub fn count(&self) -> usize {
        self.0.count() as usize
    }

    /// Whether `cpu` is one of them.
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

    /// Their numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..MAX).filter(|&cpu| self.0.is_set(cpu))
    }

    /// Confines the calling kernel thread to them.
    ///
    /// # Errors
    /// None of them is permitted to this process (`EINVAL`).
    pub fn confine(&self) -> io::Result<()> {
        crossings::another();
        Ok(sched_setaffinity(None, &self.0)?)
    }

    /// Confines the kernel thread `tid` of any process of the same user to them.
    ///
    /// # Errors
    /// No such thread (`ESRCH`), another user's (`EPERM`), none of them permitted to it (`EINVAL`).
    pub fn confine_thread(&self, tid: u32) -> io::Result<()> {
        let tid = i32::try_from(tid).ok().and_then(Pid::from_raw);
        let tid = tid.ok_or(rustix::io::Errno::SRCH)?;
        crossings::another();
        Ok(sched_setaffinity(Some(tid), &self.0)?)
    }
}

/// The processor that the calling kernel thread runs on at this moment. A hint: it may be another
/// one by the time of its use.
#[inline]
pub fn current() -> usize {
    rustix::thread::sched_getcpu()
}

/// The calling kernel thread's number, as its own process and its processes' namespace see it.
pub fn thread_id() -> u32 {
    crossings::another();
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// Returns `true` if `tid` is a kernel thread of the process `pid`, both as numbered in our PID
/// namespace.
///
/// Not by /proc, which may show another PID namespace than ours.
///
/// # Errors
/// `PermissionDenied`: this process may not signal that thread, or is not told.
pub fn thread_belongs_to(tid: u32, pid: u32) -> io::Result<bool> {
    crossings::another();
    let (Ok(tid), Ok(pid)) = (libc::pid_t::try_from(tid), libc::pid_t::try_from(pid)) else {
        return Ok(false);
    };
    // SAFETY: signal 0 is not sent; the kernel only checks the two numbers and our right to them.
    if unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, 0) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::PermissionDenied { Err(error) } else { Ok(false) }
}

/// What the calling kernel thread has waited for in the kernel so far, as that counts
/// (`getrusage(2)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelWaits {
    /// So often it has let go of its processor because it had to wait: slept, waited for a lock, a
    /// descriptor or a disk, or was stopped. Not when another thread took the processor, nor when
    /// it offered that itself.
    pub blocked: u64,
    /// So often it has touched memory that had to be brought from a disk first, for which it has
    /// waited, maybe more than once.
    pub read: u64,
    /// So often it has touched memory that was not mapped yet. For that it may have waited, where
    /// other threads were changing the process's mappings.
    pub mapped: u64,
}

/// See [`KernelWaits`]. Does not block; takes some 0.1 µs, and can be used in a handler of a
/// signal. `None`: the kernel does not say (another one than Linux, or a filter of system calls).
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

/// Returns `true` if the kernel thread `tid` of this process sleeps or waits in the kernel, and
/// `false` if it runs or could run. `None` if the kernel does not tell: the thread has ended, or
/// there is no `/proc`.
pub fn is_blocked(tid: u32) -> Option<bool> {
    let status = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).ok()?;
    // The name, in parentheses, may contain anything.
    let state = status.rsplit_once(')')?.1.trim_start().chars().next()?;
    Some(state != 'R')
}

/// Offers the processor to any other runnable kernel thread. Does nothing if the kernel refuses.
#[inline]
pub fn give_way() {
    crossings::another();
    // Not by rustix, which asserts that the call does not fail: a filter may refuse it.
    // SAFETY: no pointers.
    unsafe { libc::sched_yield() };
}

/// Asks the kernel to let the calling thread run in short slices (0.1 ms, from Linux 6.12): then
/// one that wakes need not wait until another thread of its processor, which spins, has used up its
/// own slice of some milliseconds. Its share of the processor stays the same. Where the kernel does
/// not know it, nothing happens.
pub fn ask_for_short_slices() {
    let size = size_of::<libc::sched_attr>();
    // SAFETY: `sched_attr` is integers only, for which zero is a value.
    let mut wish: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: `wish` is valid for writes of the size that is told, and 0 means the calling thread.
    let found = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut wish, size, 0) };
    if found != 0 || wish.sched_policy != libc::SCHED_OTHER.cast_unsigned() {
        return;
    }
    // All else, the nice value above all, as it was found.
    (wish.size, wish.sched_flags, wish.sched_runtime) = (size as u32, 0, SHORT_SLICE);
    // SAFETY: `wish` is valid for reads of the size that it tells.
    let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const wish, 0) };
}

/// 0.1 ms, the shortest there is.
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
        // Once more than is measured: what is mapped at the first time is there then.
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
