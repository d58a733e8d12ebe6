//! Turns of the processor for other kernel threads, while one works for long.
//!
//! A kernel thread that wakes beside a busy one may wait until the next tick of the kernel's clock,
//! 4 ms at 250 Hz, although it has had less than its share. That was measured with two threads that
//! do nothing else, also with short slices. So a thread that copies megabytes yields the processor
//! between pieces of [`PIECE`](crate::PIECE) bytes. Without another thread that costs a system
//! call.
//!
//! A thread that has woken for a moment is done in some 10 µs. A thread that computes keeps the
//! processor for a slice. Beside such a one, the yields would take most of a worker's share. So
//! after a turn that was long, the worker rests from yielding for [`RESTS`] times as long. A turn
//! in which the whole process was stopped counts as one of [`LONGEST`].
//!
//! Time is an argument.

use crate::pacing::timed_yield;
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// Time from which a turn was a slice.
const LONG: Duration = Duration::from_micros(250);

/// Maximum time that counts as a turn: that of several slices.
const LONGEST: Duration = Duration::from_millis(20);

/// Rest after a turn that was long, in times of the turn. So a thread that computes takes at most a
/// seventeenth of the time in this way.
const RESTS: u32 = 16;

/// See the module.
#[derive(Debug, Default)]
pub struct WorkTurns {
    rests_until: Option<Instant>,
}

/// Whether a turn is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnDue {
    /// The thread yields, and [`WorkTurns::learn`] follows.
    Now,
    /// The last turn was long, and not long ago.
    Later,
}

impl WorkTurns {
    /// No turn was given yet.
    pub const fn new() -> Self {
        Self { rests_until: None }
    }

    /// Between two pieces of work.
    pub fn due(&self, now: Instant) -> TurnDue {
        if self.rests_until.is_some_and(|until| now < until) {
            TurnDue::Later
        } else {
            TurnDue::Now
        }
    }

    /// A turn has lasted this long, until now.
    pub fn learn(&mut self, took: Duration, now: Instant) {
        self.rests_until = (took >= LONG).then(|| now + took.min(LONGEST) * RESTS);
    }
}

/// Yields this kernel thread's processor, if a turn of others is due.
///
/// # Blocking
/// Others have the processor for one slice at most.
#[cold]
pub fn give_turn() {
    thread_local! {
        static TURNS: RefCell<WorkTurns> = const { RefCell::new(WorkTurns::new()) };
    }
    // A thread that ends may still free memory, without turns.
    let _ = TURNS.try_with(|turns| {
        let mut turns = turns.borrow_mut();
        if turns.due(Instant::now()) == TurnDue::Now {
            let took = timed_yield();
            turns.learn(took, Instant::now());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_turns_are_given_after_each_piece_and_long_ones_seldom() {
        let (mut turns, mut now) = (WorkTurns::new(), Instant::now());
        for _ in 0..100 {
            assert_eq!(turns.due(now), TurnDue::Now);
            now += LONG / 2;
            turns.learn(LONG / 2, now);
        }
        let (mut worked, mut given) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..10_000 {
            let piece = Duration::from_micros(50);
            (now, worked) = (now + piece, worked + piece);
            if turns.due(now) == TurnDue::Now {
                let slice = Duration::from_millis(3);
                (now, given) = (now + slice, given + slice);
                turns.learn(slice, now);
            }
        }
        assert!(given > Duration::ZERO && given * (RESTS - 1) < worked, "{given:?} of {worked:?}");
        // The process was stopped for a day.
        turns.learn(Duration::from_secs(86400), now);
        now += LONGEST * RESTS;
        assert_eq!(turns.due(now), TurnDue::Now);
        // The next turn that is short ends the rest.
        now += Duration::from_secs(1);
        turns.learn(Duration::ZERO, now);
        assert_eq!(turns.due(now), TurnDue::Now);
    }
}
