//! The shim between the standard library's atomics and loom's, and the asymmetric fences.
//!
//! An asymmetric fence moves the whole price of a store-load barrier to the side that runs seldom.
//! The *heavy* side makes the kernel (`membarrier`) run a barrier on every processor that runs this
//! process, so that the *light* side needs only to stop the compiler from reordering. Source: D.
//! Dice, H. Huang, M. Yang, "Asymmetric Dekker synchronization", 2001. Where the kernel refuses,
//! and under loom, both sides are ordinary SeqCst fences.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence,
};

#[cfg(not(loom))]
use upcall_os::futex;

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence,
};

/// How this process orders a store before a later load on its frequent side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fences {
    /// Light side: compiler fence only. Heavy side: `membarrier`.
    Asymmetric,
    /// Both sides: a SeqCst fence.
    Symmetric,
}

impl Fences {
    /// The frequent side: orders stores before it against loads after it.
    #[inline(always)]
    pub(crate) fn light(self) {
        match self {
            #[cfg(not(loom))]
            Fences::Asymmetric => std::sync::atomic::compiler_fence(Ordering::SeqCst),
            _ => fence(Ordering::SeqCst),
        }
    }

    /// The rare side: as `light`, and makes every light fence of the process count as a full one.
    pub(crate) fn heavy(self) {
        fence(Ordering::SeqCst);
        #[cfg(not(loom))]
        if self == Fences::Asymmetric
            && let Err(error) = upcall_os::membarrier::in_this_process()
        {
            panic!(
                "membarrier worked when it was registered and fails now: {error}; a filter that \
                 was installed since has to permit it"
            );
        }
    }
}

/// A lock that is held for a few instructions.
///
/// Under loom this is loom's own lock, since loom cannot follow a loop that waits for another
/// thread.
#[derive(Debug)]
pub(crate) struct Spin {
    #[cfg(not(loom))]
    busy: AtomicBool,
    #[cfg(loom)]
    busy: loom::sync::Mutex<()>,
}

/// The guard of a [`Spin`] lock.
#[derive(Debug)]
pub(crate) struct Spinning<'a> {
    #[cfg(not(loom))]
    lock: &'a Spin,
    #[cfg(loom)]
    _held: loom::sync::MutexGuard<'a, ()>,
}

#[cfg(not(loom))]
impl Spin {
    pub(crate) const fn new() -> Self {
        Self { busy: AtomicBool::new(false) }
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> Spinning<'_> {
        if self.busy.swap(true, Ordering::Acquire) {
            self.lock_slowly();
        }
        Spinning { lock: self }
    }

    /// Waits for the lock. A holder keeps it for more than a few instructions only if its kernel
    /// thread was interrupted.
    #[cold]
    fn lock_slowly(&self) {
        let mut tries = 0_u32;
        while self.busy.load(Ordering::Relaxed) || self.busy.swap(true, Ordering::Acquire) {
            tries += 1;
            if tries.is_multiple_of(64) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

#[cfg(not(loom))]
impl Drop for Spinning<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lock.busy.store(false, Ordering::Release);
    }
}

#[cfg(loom)]
impl Spin {
    pub(crate) fn new() -> Self {
        Self { busy: loom::sync::Mutex::new(()) }
    }

    pub(crate) fn lock(&self) -> Spinning<'_> {
        Spinning { _held: self.busy.lock().unwrap() }
    }
}

/// A word that a kernel thread can wait on.
///
/// Under loom a lock and a condition variable stand in for the kernel.
#[derive(Debug)]
pub(crate) struct Futex {
    pub(crate) word: AtomicU32,
    #[cfg(loom)]
    kernel: (loom::sync::Mutex<()>, loom::sync::Condvar),
}

#[cfg(not(loom))]
impl Futex {
    pub(crate) const fn new(value: u32) -> Self {
        Self { word: AtomicU32::new(value) }
    }

    /// Blocks the kernel thread while the word holds `expected`, until `deadline` at most.
    ///
    /// May return early.
    pub(crate) fn wait(&self, expected: u32, deadline: Option<std::time::Instant>) {
        let left = deadline.map(|at| at.saturating_duration_since(std::time::Instant::now()));
        futex::wait(&self.word, expected, futex::FutexScope::Private, left);
    }

    /// Wakes the kernel thread that waits on the word, if one does.
    pub(crate) fn wake(&self) {
        futex::wake(&self.word, 1, futex::FutexScope::Private);
    }
}

#[cfg(loom)]
impl Futex {
    pub(crate) fn new(value: u32) -> Self {
        Self {
            word: AtomicU32::new(value),
            kernel: (loom::sync::Mutex::new(()), loom::sync::Condvar::new()),
        }
    }

    pub(crate) fn wait(&self, expected: u32, _deadline: Option<std::time::Instant>) {
        let held = self.kernel.0.lock().unwrap();
        // As in the kernel, comparing and going to sleep are one step with respect to `wake`.
        if self.word.load(Ordering::SeqCst) == expected {
            drop(self.kernel.1.wait(held).unwrap());
        }
    }

    pub(crate) fn wake(&self) {
        drop(self.kernel.0.lock().unwrap());
        self.kernel.1.notify_one();
    }
}

/// Keeps data that different processors write on different pairs of cache lines.
///
/// The hardware prefetches pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Apart<T>(pub(crate) T);

impl<T> std::ops::Deref for Apart<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}
