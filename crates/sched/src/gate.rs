//! A gate: a pool of numbers, and a queue of threads that wait for one.
//!
//! Taking and giving is one atomic operation each while no thread waits (LRPC, section 3.2: the
//! A-stack list has a lock of its own, and nothing else is locked on the path; here it is a word).
//! While threads wait, a returned number goes straight to the thread that has waited longest. It is
//! never free in between, so a thread that comes often and fast does not overtake.
//!
//! # Why no thread waits beside a free number
//! A thread that finds no number counts itself in, fences, takes the queue's lock and tries again
//! before it enters the queue. A giver that sees a count of zero puts its number back, fences, and
//! reads the count again. Either the second try finds the number, or the second reading finds the
//! count. In the second case the giver takes the lock, and if there is an entry and still a free
//! number, it hands that number out. A giver that finds the count at once takes the lock with the
//! number in hand. Either there is an entry to hand it to, or the thread that counted itself has
//! not got the lock yet and will find the number that the giver puts back under it. Under the lock
//! there is never an entry beside a free number, except between a giver's return of it and that
//! giver's second reading. `tests/models/loom_gate.rs` is the model. Both sides fence after an
//! update, which costs nothing more on x86-64.

use std::collections::VecDeque;
use upcall_os::atomic::{AtomicUsize, KernelMutex, Ordering, fence_after_update};
use upcall_shm::astack::Numbers;

/// A gate for waiters of type `W`; see the module.
#[derive(Debug)]
pub struct Gate<W> {
    numbers: Numbers,
    waiting: AtomicUsize,
    queue: KernelMutex<VecDeque<W>>,
}

impl<W> Gate<W> {
    /// Creates a gate with the numbers 0 to `count` − 1 free; `count` is at most 64.
    pub fn new(count: u16) -> Self {
        Self {
            numbers: Numbers::new(count),
            waiting: AtomicUsize::new(0),
            queue: KernelMutex::new(VecDeque::new()),
        }
    }

    /// Takes a number if one is free.
    #[inline]
    pub fn try_take(&self) -> Option<u16> {
        self.numbers.take()
    }

    /// Takes a number, or enters the queue with the waiter that `waiter` makes. A later
    /// [`Gate::give`] returns that waiter once, with a number.
    pub fn take_or_wait(&self, waiter: impl FnOnce() -> W) -> Option<u16> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        fence_after_update();
        let mut queue = self.queue.lock();
        if let Some(number) = self.numbers.take() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Some(number);
        }
        queue.push_back(waiter());
        None
    }

    /// Gives a number back. The caller must give the returned waiter its number, and wake it.
    #[inline]
    #[must_use = "the waiter has to get its number"]
    pub fn give(&self, number: u16) -> Option<(W, u16)> {
        if self.waiting.load(Ordering::Relaxed) != 0 {
            return self.hand_over(Some(number));
        }
        self.numbers.give(number);
        fence_after_update();
        if self.waiting.load(Ordering::Relaxed) == 0 { None } else { self.hand_over(None) }
    }

    /// Removes the waiters that have gone from the queue.
    pub fn keep(&self, stays: impl FnMut(&W) -> bool) {
        let mut queue = self.queue.lock();
        let before = queue.len();
        queue.retain(stays);
        self.waiting.fetch_sub(before - queue.len(), Ordering::Relaxed);
    }

    #[cold]
    fn hand_over(&self, number: Option<u16>) -> Option<(W, u16)> {
        let mut queue = self.queue.lock();
        if queue.is_empty() {
            number.into_iter().for_each(|number| self.numbers.give(number));
            return None;
        }
        let number = number.or_else(|| self.numbers.take())?;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        queue.pop_front().map(|waiter| (waiter, number))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_not_overtaken() {
        let gate = Gate::new(1);
        assert_eq!(gate.try_take(), Some(0));
        assert_eq!(gate.take_or_wait(|| "first"), None);
        assert_eq!(gate.take_or_wait(|| "second"), None);
        assert_eq!(gate.give(0), Some(("first", 0)));
        assert_eq!(gate.try_take(), None, "it belongs to the first waiter");
        assert_eq!(gate.give(0), Some(("second", 0)));
        assert_eq!(gate.give(0), None);
        assert_eq!(gate.take_or_wait(|| unreachable!()), Some(0));
    }

    #[test]
    fn who_has_gone_is_passed_over() {
        let gate = Gate::new(1);
        assert_eq!(gate.try_take(), Some(0));
        assert_eq!(gate.take_or_wait(|| "first"), None);
        assert_eq!(gate.take_or_wait(|| "second"), None);
        gate.keep(|&waiter| waiter != "first");
        assert_eq!(gate.give(0), Some(("second", 0)));
        assert_eq!(gate.give(0), None);
        assert_eq!(gate.try_take(), Some(0), "no thread is counted as waiting any more");
    }
}
