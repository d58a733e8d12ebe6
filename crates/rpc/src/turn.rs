//! A lock that is waited for until a moment, no longer: for what a peer may hold up as long as it
//! likes.
//!
//! # Why no wake is lost
//! Whoever looks in vain is counted as waiting, and begins to wait, under the mutex under which the
//! value is put back. So who gives it back comes before the look, which then finds it, or sees the
//! waiter, and notifies one. A waiter looks again after each wait, also when its time is up: one
//! that a notification has reached either takes the value, or finds that somebody else has, who
//! notifies in turn when he gives it back.

use std::ops::{Deref, DerefMut};
use std::time::Instant;
use upcall_os::lock::{KernelCondvar, KernelMutex, MutexGuard};

/// A value that one at a time has; see the module.
#[derive(Debug)]
pub(crate) struct TurnCell<T> {
    state: KernelMutex<TurnState<T>>,
    back: KernelCondvar,
}

#[derive(Debug)]
struct TurnState<T> {
    /// `None` while somebody has it.
    value: Option<T>,
    /// How many wait for it. Notifying nobody costs a system call too.
    waiting: usize,
}

/// The value, until this is dropped.
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

    /// Takes the value. Blocks the kernel thread while others have it, until `deadline`; `None` if
    /// they still have it then.
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

    /// What `look` says of the value; `None` if somebody has it. Never blocks.
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
