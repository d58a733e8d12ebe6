//! By which threads take turns, and by which all learn that one has failed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use upcall_bench::child::Outcome;
use upcall_bench::messages::own::child::Task;

/// The turn after the last.
pub const OVER: u64 = u64::MAX;

/// A turn, which grows; alone on its lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Gate {
    turn: AtomicU64,
    failed: AtomicBool,
}

/// Says that one has failed, unless it is forgotten.
struct Failing<'a>(&'a Gate);

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        self.0.failed.store(true, Ordering::Release);
    }
}

/// The others' reason is the one to tell.
const OTHER: &str = "another member has failed";

impl Gate {
    /// It is that turn now.
    #[inline]
    pub fn open(&self, turn: u64) {
        self.turn.store(turn, Ordering::Release);
    }

    /// The turn.
    #[inline]
    pub fn turn(&self) -> u64 {
        self.turn.load(Ordering::Acquire)
    }

    /// # Errors
    /// Another thread has failed.
    #[inline]
    pub fn check(&self) -> Outcome<()> {
        if self.failed.load(Ordering::Acquire) { Err(OTHER.into()) } else { Ok(()) }
    }

    /// Looks until it is that turn or a later one, which it returns.
    ///
    /// # Errors
    /// Another thread has failed.
    #[inline]
    pub fn wait(&self, turn: u64) -> Outcome<u64> {
        let mut looks = 0_u32;
        loop {
            let now = self.turn();
            if now >= turn {
                return Ok(now);
            }
            self.check()?;
            looks += 1;
            // The other one may need this processor.
            if looks.is_multiple_of(1 << 14) {
                thread::yield_now();
            }
        }
    }

    /// The same for one that may be late, and must not cost the others anything.
    ///
    /// # Errors
    /// Another thread has failed.
    pub fn rest(&self, turn: u64) -> Outcome<u64> {
        while self.turn() < turn {
            self.check()?;
            thread::sleep(Duration::from_millis(2));
        }
        Ok(self.turn())
    }

    /// Runs `body`; the others learn of it if it fails.
    pub fn guard<T>(&self, body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        let failing = Failing(self);
        let done = body()?;
        std::mem::forget(failing);
        Ok(done)
    }

    /// Runs `first` on the first processor and `second` on the other one, each as a thread.
    ///
    /// # Errors
    /// That of who has failed.
    pub fn both<A: Send, B: Send>(
        &self,
        task: &Task,
        first: impl FnOnce() -> Outcome<A> + Send,
        second: impl FnOnce() -> Outcome<B> + Send,
    ) -> Outcome<(A, B)> {
        thread::scope(|scope| {
            let first = scope.spawn(|| self.guard(|| task.on_first().and_then(|()| first())));
            let second = scope.spawn(|| self.guard(|| task.on_second().and_then(|()| second())));
            let panicked = |_| Err("a member panicked".into());
            let (first, second) =
                (first.join().unwrap_or_else(panicked), second.join().unwrap_or_else(|_| Err("a member panicked".into())));
            match (first, second) {
                (Ok(first), Ok(second)) => Ok((first, second)),
                (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
                (Err(one), Err(other)) => Err(if one.to_string() == OTHER { other } else { one }),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use upcall_bench::messages::own::case::Own;

    fn task() -> Task {
        Task { case: Own::Section, cpus: [0, 0], time: Duration::ZERO, count: 0 }
    }

    #[test]
    fn two_take_turns() {
        let gate = Gate::default();
        let first = || {
            gate.open(1);
            gate.wait(2)
        };
        let second = || {
            gate.wait(1)?;
            gate.open(2);
            Ok(7)
        };
        assert_eq!(gate.both(&task(), first, second).unwrap(), (2, 7));
    }

    #[test]
    fn who_waits_for_one_that_fails_ends_too() {
        let gate = Gate::default();
        let told = gate.both(&task(), || gate.wait(1), || Outcome::<()>::Err("the reason".into()));
        assert_eq!(told.unwrap_err().to_string(), "the reason");
        let gate = Gate::default();
        let told = gate.both(&task(), || -> Outcome<()> { panic!("as it is to") }, || gate.rest(1));
        assert_eq!(told.unwrap_err().to_string(), "a member panicked");
    }
}
