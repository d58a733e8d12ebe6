//! A flag that is set once, and the waiters that it releases.
//!
//! # Why no waiter misses the flag
//! A waiter enters itself under the lock under which the flag is set, unless it is set already. So
//! the waiter is in the list that the setter takes, or finds the flag set and does not begin to
//! wait. A waiter that sleeps on a flag of memory announces that after it has entered, and then
//! checks the flag. The setter fences between setting the flag and clearing the announcement. So
//! either the announcement is there to be cleared, and the sleeper's futex does not wait on it, or
//! the check finds the flag (as in `sleep.rs`). `tests/models/loom_cancel_flag.rs` is the model.

use upcall_os::atomic::{AtomicU32, KernelMutex, MutexGuard, Ordering, fence};

/// The flag, and its waiters; see the module.
#[derive(Debug)]
pub struct CancelFlag<W> {
    flag: AtomicU32,
    waiting: KernelMutex<Vec<W>>,
}

impl<W> Default for CancelFlag<W> {
    fn default() -> Self {
        Self { flag: AtomicU32::new(0), waiting: KernelMutex::new(Vec::new()) }
    }
}

/// Number of entries from which on entries that have gone are removed.
const MANY: usize = 64;

impl<W> CancelFlag<W> {
    fn waiting(&self) -> MutexGuard<'_, Vec<W>> {
        self.waiting.lock()
    }

    /// Sets the flag. Returns the waiters to release.
    #[must_use = "those who wait have to be told"]
    pub fn set(&self) -> Vec<W> {
        let mut waiting = self.waiting();
        self.flag.store(1, Ordering::Release);
        let told = std::mem::take(&mut *waiting);
        drop(waiting);
        fence(Ordering::SeqCst);
        told
    }

    /// Returns `true` if the flag is set. After a fence this is exact.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::Acquire) != 0
    }

    /// Enters a waiter. Returns it if the flag is set. Now and then removes the entries that have
    /// `gone`.
    pub fn enter(&self, one: W, gone: impl Fn(&W) -> bool) -> Option<W> {
        let mut waiting = self.waiting();
        if self.is_set() {
            return Some(one);
        }
        if waiting.len() >= MANY && waiting.len().is_power_of_two() {
            waiting.retain(|one| !gone(one));
        }
        waiting.push(one);
        None
    }

    /// Removes the entries that have `gone`.
    pub fn leave(&self, gone: impl Fn(&W) -> bool) {
        self.waiting().retain(|one| !gone(one));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn whoever_comes_before_is_told_and_whoever_comes_after_knows() {
        let flag = CancelFlag::default();
        assert_eq!((flag.enter(1, |_| false), flag.enter(2, |_| false)), (None, None));
        flag.leave(|&one| one == 1);
        assert!(!flag.is_set());
        assert_eq!(flag.set(), [2]);
        assert_eq!((flag.enter(3, |_| false), flag.is_set()), (Some(3), true));
        assert!(flag.set().is_empty());
    }

    #[test]
    fn those_who_have_gone_do_not_pile_up() {
        let flag = CancelFlag::default();
        for one in 0..10_000 {
            assert_eq!(flag.enter(one, |&other| other < one - 3), None);
        }
        assert!(flag.set().len() <= 2 * MANY);
    }
}
