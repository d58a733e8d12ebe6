//! The calls that this process makes to servers on other machines (LRPC, Table I, from the side of
//! the caller).
//!
//! A local call is counted by its server, under the number of the calling process. A server on
//! another machine knows the caller's address only, so the caller counts such calls itself, by the
//! bindings that it has now. If the process is a server as well, its tallies show the sums. The way
//! of a local call has no instruction more.

use std::fmt;
use std::sync::{Arc, Weak};
use upcall_os::lock::{KernelMutex, MutexGuard};
use upcall_shm::tally::DomainCallStats;

/// Calls to servers on other machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FarCalls {
    /// Calls that were answered.
    pub calls: u64,
    /// Bytes of their arguments.
    pub bytes_out: u64,
    /// Bytes of their results.
    pub bytes_in: u64,
}

impl FarCalls {
    const NONE: Self = Self { calls: 0, bytes_out: 0, bytes_in: 0 };

    fn add(&mut self, other: Self) {
        self.calls = self.calls.wrapping_add(other.calls);
        self.bytes_out = self.bytes_out.wrapping_add(other.bytes_out);
        self.bytes_in = self.bytes_in.wrapping_add(other.bytes_in);
    }

    fn subtract(&mut self, other: Self) {
        self.calls = self.calls.wrapping_sub(other.calls);
        self.bytes_out = self.bytes_out.wrapping_sub(other.bytes_out);
        self.bytes_in = self.bytes_in.wrapping_sub(other.bytes_in);
    }
}

/// The sums of a process, and the memory in which they are shown.
struct MadeSums {
    /// The process: a forked child has the memory of its parent's servers, too.
    pid: u32,
    sums: FarCalls,
    shown: Vec<Weak<DomainCallStats>>,
}

static SUMS: KernelMutex<MadeSums> =
    KernelMutex::new(MadeSums { pid: 0, sums: FarCalls::NONE, shown: Vec::new() });

impl MadeSums {
    fn of_process() -> MutexGuard<'static, Self> {
        let (mut sums, pid) = (SUMS.lock(), std::process::id());
        if sums.pid != pid {
            *sums = Self { pid, sums: FarCalls::NONE, shown: Vec::new() };
        }
        sums
    }

    /// Shows the sums. Returns the tallies that were alive, which are not dropped under the lock.
    fn show(&mut self) -> Vec<Arc<DomainCallStats>> {
        self.shown.retain(|tallies| tallies.strong_count() > 0);
        let all: Vec<_> = self.shown.iter().filter_map(Weak::upgrade).collect();
        let FarCalls { calls, bytes_out, bytes_in } = self.sums;
        all.iter().for_each(|tallies| tallies.show_made([calls, bytes_out, bytes_in]));
        all
    }
}

/// Calls to servers on other machines by the bindings that this process has now.
pub fn far_calls() -> FarCalls {
    MadeSums::of_process().sums
}

/// Shows the sums in the tallies of a server of this process.
pub(crate) fn show_in(tallies: &Arc<DomainCallStats>) {
    let mut sums = MadeSums::of_process();
    sums.shown.push(Arc::downgrade(tallies));
    let shown = sums.show();
    drop(sums);
    drop(shown);
}

/// The calls of one binding. They leave the sums when this is dropped.
pub(crate) struct MadeCalls {
    pid: u32,
    own: KernelMutex<FarCalls>,
}

impl fmt::Debug for MadeCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MadeCalls")
    }
}

impl Default for MadeCalls {
    fn default() -> Self {
        Self { pid: std::process::id(), own: KernelMutex::default() }
    }
}

impl MadeCalls {
    /// Counts a call that was answered.
    pub(crate) fn count(&self, bytes_out: usize, bytes_in: usize) {
        let [bytes_out, bytes_in] = [bytes_out, bytes_in].map(|bytes| bytes as u64);
        let one = FarCalls { calls: 1, bytes_out, bytes_in };
        self.own.lock().add(one);
        let mut sums = MadeSums::of_process();
        sums.sums.add(one);
        let shown = sums.show();
        drop(sums);
        drop(shown);
    }
}

impl Drop for MadeCalls {
    fn drop(&mut self) {
        let own = *self.own.lock();
        let mut sums = MadeSums::of_process();
        // A forked child drops the bindings of its parent.
        if sums.pid == self.pid {
            sums.sums.subtract(own);
        }
        let shown = sums.show();
        drop(sums);
        drop(shown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use upcall_shm::tally::PeerTallies;

    #[test]
    fn the_calls_of_bindings_that_exist_are_shown() {
        use std::os::fd::AsFd;
        let before = far_calls();
        let (first, second) = (MadeCalls::default(), MadeCalls::default());
        first.count(10, 20);
        let tallies = DomainCallStats::new(1).unwrap();
        show_in(&tallies);
        let peer = PeerTallies::join(tallies.as_fd().try_clone_to_owned().unwrap()).unwrap();
        (0..3).for_each(|_| second.count(1, 2));
        let since = |now: FarCalls| {
            let mut since = now;
            since.subtract(before);
            [since.calls, since.bytes_out, since.bytes_in]
        };
        assert_eq!(since(far_calls()), [4, 13, 26]);
        let [calls, bytes_out, bytes_in] = peer.made();
        assert_eq!(FarCalls { calls, bytes_out, bytes_in }, far_calls());
        drop(second);
        assert_eq!(since(far_calls()), [1, 10, 20]);
        drop(first);
        assert_eq!(peer.made()[0], before.calls);
    }
}
