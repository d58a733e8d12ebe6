//! A word that is given once, and those who wait for it beside something else.
//!
//! # Why no word is missed
//! A waiter enters itself under the lock under which the word is given, unless it has been given:
//! so it is in the list that the giver takes, or finds the word and does not begin to wait. A
//! waiter that sleeps on a word of memory announces that after it has entered, and then looks
//! whether the word was given: the giver fences between giving it and clearing the announcement, so
//! either the announcement is there to be cleared, and the sleeper's futex does not wait on it, or
//! the look finds the word (as in `sleep.rs`). `tests/models/loom_word.rs` is the model.

use upcall_os::atomic::{AtomicU32, KernelMutex, MutexGuard, Ordering, fence};

/// The word, and who waits for it; see the module.
#[derive(Debug)]
pub struct CancelFlag<W> {
    given: AtomicU32,
    waiting: KernelMutex<Vec<W>>,
}

impl<W> Default for CancelFlag<W> {
    fn default() -> Self {
        Self { given: AtomicU32::new(0), waiting: KernelMutex::new(Vec::new()) }
    }
}

/// More entries than this are looked through for such as have gone.
const MANY: usize = 64;

impl<W> CancelFlag<W> {
    fn waiting(&self) -> MutexGuard<'_, Vec<W>> {
        self.waiting.lock()
    }

    /// Gives the word. Returns whom to tell.
    #[must_use = "those who wait have to be told"]
    pub fn give(&self) -> Vec<W> {
        let mut waiting = self.waiting();
        self.given.store(1, Ordering::Release);
        let told = std::mem::take(&mut *waiting);
        drop(waiting);
        fence(Ordering::SeqCst);
        told
    }

    /// Whether it has been given. After a fence this is exact.
    #[inline]
    pub fn is_given(&self) -> bool {
        self.given.load(Ordering::Acquire) != 0
    }

    /// Enters one who waits; it comes back if the word has been given. Now and then those are taken
    /// out that have `gone`.
    pub fn enter(&self, one: W, gone: impl Fn(&W) -> bool) -> Option<W> {
        let mut waiting = self.waiting();
        if self.is_given() {
            return Some(one);
        }
        if waiting.len() >= MANY && waiting.len().is_power_of_two() {
            waiting.retain(|one| !gone(one));
        }
        waiting.push(one);
        None
    }

    /// Takes those out that have `gone`.
    pub fn leave(&self, gone: impl Fn(&W) -> bool) {
        self.waiting().retain(|one| !gone(one));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn whoever_comes_before_is_told_and_whoever_comes_after_knows() {
        let word = CancelFlag::default();
        assert_eq!((word.enter(1, |_| false), word.enter(2, |_| false)), (None, None));
        word.leave(|&one| one == 1);
        assert!(!word.is_given());
        assert_eq!(word.give(), [2]);
        assert_eq!((word.enter(3, |_| false), word.is_given()), (Some(3), true));
        assert!(word.give().is_empty());
    }

    #[test]
    fn those_who_have_gone_do_not_pile_up() {
        let word = CancelFlag::default();
        for one in 0..10_000 {
            assert_eq!(word.enter(one, |&other| other < one - 3), None);
        }
        assert!(word.give().len() <= 2 * MANY);
    }
}
