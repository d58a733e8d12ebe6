//! A gate: numbers that are handed out, and a queue for those who have to wait for one.
//!
//! Taking and giving is one atomic operation while nobody waits (LRPC, section 3.2: the A-stack list has a lock of its own, and nothing else is
//! locked on the path; here it is a word).
//!
//! # Why nobody waits beside a free number
//! Who finds none counts itself in, takes the queue's lock and looks again before it enters the queue. Who gives a number back puts it there first, fences, and
//! then reads the count. Either the second look finds the number, or the giver reads the count, waits for the lock, and finds the entry.
//! `tests/loom_gate.rs` is the model.

use std::collections::VecDeque;
use upcall_os::atomic::{AtomicUsize, Ordering, fence};
use upcall_shm::astack::Numbers;

#[cfg(loom)]
use loom::sync::Mutex;
#[cfg(not(loom))]
use std::sync::Mutex;

/// A gate for waiters of type `W`; see the module.
#[derive(Debug)]
pub struct Gate<W> {
    numbers: Numbers,
    waiting: AtomicUsize,
    queue: Mutex<VecDeque<W>>,
}

impl<W> Gate<W> {
    /// With the numbers 0 to `count` − 1 free; at most 64.
    pub fn new(count: u16) -> Self {
        Self { numbers: Numbers::new(count), waiting: AtomicUsize::new(0), queue: Mutex::new(VecDeque::new()) }
    }

    /// Takes a number if one is free.
    #[inline]
    pub fn try_take(&self) -> Option<u16> {
        self.numbers.take()
    }

    /// Takes a number, or enters the queue with the waiter that `waiter` makes: then it is handed out by a later [`Gate::give`], once, and has to try again.
    pub fn take_or_wait(&self, waiter: impl FnOnce() -> W) -> Option<u16> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let mut queue = self.queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(number) = self.numbers.take() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Some(number);
        }
        queue.push_back(waiter());
        None
    }

    /// Gives a number back. Whoever is returned has to be woken.
    #[inline]
    #[must_use = "the waiter has to be woken"]
    pub fn give(&self, number: u16) -> Option<W> {
        self.numbers.give(number);
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) == 0 { None } else { self.next() }
    }

    #[cold]
    fn next(&self) -> Option<W> {
        let mut queue = self.queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let next = queue.pop_front()?;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(next)
    }
}
