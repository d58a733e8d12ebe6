//! The one source of atomics, and of mutexes for modelled protocols.
//!
//! They are `std`'s, or loom's when a model is checked. Every layer above takes its atomics, its
//! fences and its spin hint from here, so that `--cfg loom` reaches all of them. The exception is
//! `thread`, which has a shim of its own.

#[cfg(not(loom))]
pub use crate::lock::{KernelMutex, MutexGuard};
#[cfg(not(loom))]
pub use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

#[cfg(loom)]
pub use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(loom)]
pub use loom::sync::MutexGuard;

#[cfg(loom)]
pub use self::ModelMutex as KernelMutex;

/// A mutex, as [`lock::KernelMutex`](crate::lock::KernelMutex), for models.
#[cfg(loom)]
#[derive(Debug, Default)]
pub struct ModelMutex<T>(loom::sync::Mutex<T>);

#[cfg(loom)]
impl<T> ModelMutex<T> {
    /// An unlocked mutex.
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    /// Waits until no other thread holds the lock, and holds it.
    ///
    /// The guard releases it when dropped.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A fence, as [`std::sync::atomic::fence`].
///
/// On x86-64 a SeqCst fence is a locked instruction that changes nothing, on a word of the stack.
/// For ordinary memory it orders as `mfence` does, which compilers emit, and takes a quarter of its
/// time (5 and 21 ns on the machine of docs/performance/lrpc.md).
#[cfg(not(loom))]
#[inline(always)]
pub fn fence(order: Ordering) {
    #[cfg(all(target_arch = "x86_64", not(miri), not(upcall_kernel_threads)))]
    if order == Ordering::SeqCst {
        let mut word = 0u32;
        // SAFETY: the word is ours, and aligned. As far as the compiler knows, this may read and
        // write any memory, so it moves no access across it.
        return unsafe {
            std::arch::asm!("lock or dword ptr [{}], 0", in(reg) &raw mut word, options(nostack))
        };
    }
    std::sync::atomic::fence(order);
}

/// A SeqCst fence directly after a read-modify-write of this thread.
///
/// On x86-64 the read-modify-write is such a fence already.
#[inline(always)]
pub fn fence_after_update() {
    if cfg!(all(not(loom), target_arch = "x86_64", not(miri), not(upcall_kernel_threads))) {
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// Two threads each write one word and read the other's, round after round, from the same
    /// start. Returns how often both missed the other's write.
    ///
    /// If other programs want the processors, a round can take several of their slices. Then there
    /// are as many rounds as 5 s have room for.
    fn both_missed(write: impl Fn(&AtomicU32) + Sync, fence: impl Fn() + Sync) -> u32 {
        const ROUNDS: u32 = 100_000;
        const MOST: Duration = Duration::from_secs(5);
        let (begun, last) = (Instant::now(), AtomicU32::new(ROUNDS));
        let (words, turns, reads) =
            ([const { AtomicU32::new(0) }; 2], [const { AtomicU32::new(0) }; 2], AtomicU32::new(0));
        let missed = AtomicU32::new(0);
        let side = |own: usize| {
            for round in 1..=ROUNDS {
                // The other side sees this when it has seen the turn.
                if own == 0 && begun.elapsed() > MOST {
                    last.store(round, Ordering::SeqCst);
                }
                turns[own].store(round, Ordering::SeqCst);
                while turns[1 - own].load(Ordering::SeqCst) < round {
                    // On one processor the other side has to get a turn.
                    std::thread::yield_now();
                }
                write(&words[own]);
                fence();
                let read = words[1 - own].load(Ordering::Relaxed);
                // The second of the two evaluates the round, and prepares the next one.
                let sum =
                    reads.fetch_add(1 + 2 * read.min(1), Ordering::SeqCst) + 1 + 2 * read.min(1);
                if sum % 2 == 0 {
                    missed.fetch_add(u32::from(sum == 2), Ordering::Relaxed);
                    words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
                    reads.store(0, Ordering::SeqCst);
                }
                while reads.load(Ordering::SeqCst) != 0 {
                    std::thread::yield_now();
                }
                if round >= last.load(Ordering::SeqCst) {
                    break;
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| side(0));
            side(1);
        });
        missed.into_inner()
    }

    #[test]
    fn no_load_passes_a_store_before_the_fence() {
        assert_eq!(
            both_missed(|word| word.store(1, Ordering::Relaxed), || fence(Ordering::SeqCst)),
            0
        );
    }

    #[test]
    fn no_load_passes_an_update_before_the_fence() {
        assert_eq!(
            both_missed(|word| _ = word.fetch_add(1, Ordering::Relaxed), fence_after_update),
            0
        );
    }
}
