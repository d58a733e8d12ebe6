//! Processors: which ones a kernel thread may run on, where it runs now, and who it is.

use crate::crossings;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use std::io;

/// The most processors that the kernel's set can name.
pub const MAX: usize = CpuSet::MAX_CPU;

/// A set of processors.
#[derive(Clone, PartialEq, Eq)]
pub struct Processors(CpuSet);

impl std::fmt::Debug for Processors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Processors {
    /// The set with just this one.
    pub fn only(cpu: usize) -> Self {
        let mut set = CpuSet::new();
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

/// The processor that the calling kernel thread runs on at this moment. A hint: it may be another one by the time of its use.
#[inline]
pub fn current() -> usize {
    rustix::thread::sched_getcpu()
}

/// The calling kernel thread's number, as its own process and its processes' namespace see it.
pub fn thread_id() -> u32 {
    crossings::another();
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// Whether `tid` is a kernel thread of the process `pid`, as this process sees both.
pub fn thread_belongs_to(tid: u32, pid: u32) -> bool {
    crossings::another();
    std::path::Path::new(&format!("/proc/{pid}/task/{tid}")).exists()
}

/// Offers the processor to any other runnable kernel thread.
#[inline]
pub fn give_way() {
    crossings::another();
    rustix::thread::sched_yield();
}

/// Asks the kernel to let the calling thread run in short slices (0.1 ms, from Linux 6.12): then one that wakes need not wait until another thread of its processor, which spins, has used up its own slice of some
/// milliseconds. Its share of the processor stays the same. Where the kernel does not know it, nothing happens.
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
        assert!(thread_belongs_to(thread_id(), std::process::id()));
        assert!(!thread_belongs_to(1, std::process::id()));
    }

    #[test]
    fn sets() {
        let set = Processors::only(3);
        assert!(set.contains(3) && set.count() == 1 && set.without(3).count() == 0);
        assert!(Processors::allowed().unwrap().count() >= 1);
    }
}
