//! A lock with a deadline for each wait, for values that a peer can hold up as long as it likes.
//!
//! # Why no wake is lost
//! A thread that finds the value taken is counted as waiting, and starts to wait, under the mutex
//! under which the value is returned. So a return happens either before the thread looks, and the
//! thread finds the value, or after it is counted, and the returning thread notifies a waiter. A
//! waiter looks again after each wait, also when its time is over. A notified waiter therefore
//! takes the value, or finds that another thread has it, which in turn notifies a waiter when it
//! returns the value.

use std::ops::{Deref, DerefMut};
use std::time::Instant;
use upcall_os::lock::{KernelCondvar, KernelMutex, MutexGuard};

/// A value that one thread holds at a time; see the module.
#[derive(Debug)]
pub(crate) struct TurnCell<T> {
    state: KernelMutex<TurnState<T>>,
    back: KernelCondvar,
}

#[derive(Debug)]
struct TurnState<T> {
    /// `None` while a thread holds it.
    value: Option<T>,
    /// Number of waiters. Without waiters there is no notification, which would cost a system call.
    waiting: usize,
}

/// The value, held until this is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a, T> {
    turns: &'a TurnCell<T>,
    value: Option<T>,
}

impl<T> TurnCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            state: KernelMutex::new(TurnState { value: Some(value), waiting: 0 }),
            back: KernelCondvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, TurnState<T>> {
        self.state.lock()
    }

    /// Takes the value. Blocks the kernel thread while others hold it, until `deadline`. Returns
    /// `None` if they still hold it then.
    pub(crate) fn take_by(&self, deadline: Instant) -> Option<Turn<'_, T>> {
        let mut state = self.state();
        loop {
            if let Some(value) = state.value.take() {
                return Some(Turn { turns: self, value: Some(value) });
            }
            let left =
                deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
            state.waiting += 1;
            state = self.back.wait_timeout(state, left).0;
            state.waiting -= 1;
        }
    }

    /// Applies `look` to the value. Returns `None` if a thread holds it. Never blocks.
    pub(crate) fn peek<R>(&self, look: impl FnOnce(&T) -> R) -> Option<R> {
        self.state().value.as_ref().map(look)
    }
}

impl<T> Deref for Turn<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value
            .as_ref()
            .unwrap_or_else(|| unreachable!("the value leaves a turn when it is dropped"))
    }
}

impl<T> DerefMut for Turn<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value
            .as_mut()
            .unwrap_or_else(|| unreachable!("the value leaves a turn when it is dropped"))
    }
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        let mut state = self.turns.state();
        state.value = self.value.take();
        let awaited = state.waiting > 0;
        drop(state);
        if awaited {
            self.turns.back.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn one_at_a_time_and_not_for_ever() {
        let turns = TurnCell::new(0u32);
        let soon = || Instant::now() + Duration::from_millis(20);
        let held = turns.take_by(soon()).unwrap();
        let start = Instant::now();
        assert!(turns.take_by(soon()).is_none() && turns.peek(|_| ()).is_none());
        assert!(start.elapsed() >= Duration::from_millis(20));
        drop(held);
        assert!(turns.take_by(start).is_some(), "what is there is had after the deadline too");
        let late = Instant::now() + Duration::from_secs(10);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        *turns.take_by(late).unwrap() += 1;
                    }
                });
            }
        });
        assert_eq!(turns.peek(|count| *count), Some(4000));
    }
}
