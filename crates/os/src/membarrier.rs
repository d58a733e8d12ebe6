//! A fence that one thread makes for all: `membarrier(2)`.
//!
//! A thread that seldom polls for messages and a thread that often sends need a fence each to agree
//! on what each has seen (see `sleep` in `upcall-sched`). With `membarrier` the thread that is
//! about to sleep pays for both. The kernel makes every processor that runs a thread of a
//! registered process execute a full fence before the call returns. A thread that does not run made
//! one when it was switched out. The call takes some µs for each such processor, and next to
//! nothing if there is none.

use rustix::thread::{MembarrierCommand, membarrier};
use std::io;
use std::sync::OnceLock;

/// Registers this process, so that [`everywhere`] fences its threads too.
///
/// That holds for calls of [`everywhere`] by any process. Returns `false` if the kernel has no such
/// call, or a sandbox refuses it: then this process's threads have to make fences themselves.
///
/// # Blocks
/// Not in a process with one thread. In any other the first call waits until the kernel has seen
/// all processors switch (`synchronize_rcu`): for 10 to 30 ms as a rule, and for 200 ms on a
/// machine that starts and kills processes without a pause.
pub fn register() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| {
        membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok() && everywhere()
    })
}

/// Makes a full fence in all threads of registered processes, and in this one.
///
/// Returns `false` if the kernel refuses: then there was none.
pub fn everywhere() -> bool {
    membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}

/// Registers this process for [`in_this_process`].
///
/// Returns `false` if the kernel has no such call, or a sandbox refuses it.
pub fn register_for_this_process() -> bool {
    membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
}

/// Makes a full fence in all threads of this process, which is registered.
///
/// # Errors
/// The kernel refuses: then there was none.
pub fn in_this_process() -> io::Result<()> {
    Ok(membarrier(MembarrierCommand::PrivateExpedited)?)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::atomic::{AtomicU32, Ordering};
    use crate::processor::CpuSet;
    use std::sync::atomic::compiler_fence;

    /// One thread writes a word and reads the other's without a fence; the other thread does so
    /// with the fence for both. They never both miss the other's write.
    #[test]
    fn one_fence_serves_both() {
        assert!(register() && register(), "the kernel of this machine has the call");
        const ROUNDS: u32 = 3000;
        let (words, turns, reads) =
            ([const { AtomicU32::new(0) }; 2], [const { AtomicU32::new(0) }; 2], AtomicU32::new(0));
        let missed = AtomicU32::new(0);
        let side = |own: usize, fence: &(dyn Fn() + Sync)| {
            for round in 1..=ROUNDS {
                turns[own].store(round, Ordering::SeqCst);
                while turns[1 - own].load(Ordering::SeqCst) < round {
                    std::thread::yield_now();
                }
                words[own].store(1, Ordering::Relaxed);
                fence();
                let read = words[1 - own].load(Ordering::Relaxed);
                let sum = reads.fetch_add(1 + 2 * read, Ordering::SeqCst) + 1 + 2 * read;
                if sum % 2 == 0 {
                    missed.fetch_add(u32::from(sum == 2), Ordering::Relaxed);
                    words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
                    reads.store(0, Ordering::SeqCst);
                }
                while reads.load(Ordering::SeqCst) != 0 {
                    std::thread::yield_now();
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ = CpuSet::only(0).confine();
                side(0, &|| compiler_fence(Ordering::SeqCst));
            });
            side(1, &|| assert!(everywhere()));
        });
        assert_eq!(missed.into_inner(), 0);
    }
}
