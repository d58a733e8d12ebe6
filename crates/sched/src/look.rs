//! When to probe for the other side's next message.
//!
//! A probe brings the cache line to the probing processor. If the other side is just about to write
//! that line, it has to fetch it back first, so a probe that comes too early delays the message by
//! a transfer each way. Measured on two cores (a round trip of one line, 24 ns of work on each
//! side, the work subtracted): 165 ns when both sides probe all the time, 68 with one pause between
//! probes, 45 when the first probe comes just after the answer. So the waiting side learns how long
//! the answer takes, lets that time pass without a probe, and then probes with pauses in between.

use std::hint::black_box;
use upcall_os::atomic::spin_loop;

/// Estimate of how long an answer takes, in steps of some nanoseconds.
///
/// A first probe that finds the answer may be late: the next comes a little earlier. A first
/// probe that just misses the answer has cost more than that, so the next comes later by much more.
/// Where answers differ widely, the quick ones count: probing too late for them costs more than
/// probing too early for the slow ones. So an answer that comes long after the first probe moves
/// the next one less than a quick one does.
#[derive(Clone, Copy, Debug)]
pub struct ReplyTimer(u16);

/// Parts per step; the estimate is kept in parts.
const STEP: u16 = 16;
const EARLIER: u16 = 2;
const LATER: u16 = 16;
const LONG_AFTER: u16 = 1;
const LONGEST: u16 = 511 * STEP;

/// An answer found within this number of further probes was just missed.
const MISSED: u32 = 3;
/// Number of further probes after which an answer takes so long that no probe matters.
const MATTERS: u32 = 32;

impl Default for ReplyTimer {
    fn default() -> Self {
        Self(24 * STEP)
    }
}

impl ReplyTimer {
    /// Restores the estimate that [`ReplyTimer::parts`] returned.
    pub(crate) fn kept(parts: u16) -> Self {
        Self(parts)
    }

    pub(crate) fn parts(self) -> u16 {
        self.0
    }

    /// Waits for the expected time without a probe, then probes at most `most` times. Returns
    /// `true` if the answer was found.
    #[inline]
    pub fn await_answer(&mut self, most: u32, mut there: impl FnMut() -> bool) -> bool {
        pass(self.0 / STEP);
        if there() {
            self.0 = self.0.saturating_sub(EARLIER);
            return true;
        }
        for look in 1..most {
            again();
            if there() {
                let later = match look {
                    _ if look <= MISSED => LATER,
                    _ if look <= MATTERS => LONG_AFTER,
                    _ => 0,
                };
                self.0 = (self.0 + later).min(LONGEST);
                return true;
            }
        }
        false
    }
}

/// Lets a short time pass, in finer steps than spin hints, which may take 40 ns each.
#[inline]
fn pass(steps: u16) {
    let mut chain = 0u32;
    for _ in 0..steps {
        // A store and a load, which take some cycles on every machine.
        chain = black_box(black_box(chain));
    }
}

/// Waits between two probes.
#[inline]
pub(crate) fn again() {
    spin_loop();
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Simulates an answer after `answer` steps and probes of ten steps each. Returns the number of
    /// probes.
    fn learn(reply_timer: &mut ReplyTimer, answer: u32) -> u32 {
        let mut looks = 0;
        let (before, mut now) = (u32::from(reply_timer.0 / STEP), 0);
        assert!(reply_timer.await_answer(1000, || {
            now = before + 10 * looks;
            looks += 1;
            now >= answer
        }));
        looks
    }

    #[test]
    fn the_first_look_comes_just_after_the_answer() {
        let mut reply_timer = ReplyTimer::default();
        for answer in [80, 10, 300, 0] {
            (0..5000).for_each(|_| _ = learn(&mut reply_timer, answer));
            let looks: u32 = (0..100).map(|_| learn(&mut reply_timer, answer)).sum();
            assert!(looks < 120, "{looks} looks for 100 answers after {answer} steps");
            assert!(u32::from(reply_timer.0 / STEP) < answer + 10, "{reply_timer:?} for {answer}");
        }
    }

    #[test]
    fn quick_answers_count_more_than_slow_ones() {
        let mut reply_timer = ReplyTimer::default();
        (0..5000).for_each(|i| _ = learn(&mut reply_timer, [40, 200][i % 2]));
        assert!(reply_timer.0 / STEP < 60, "{reply_timer:?}");
    }

    #[test]
    fn long_answers_teach_nothing() {
        let mut reply_timer = ReplyTimer::default();
        learn(&mut reply_timer, 2000);
        assert_eq!(reply_timer.0, ReplyTimer::default().0);
    }
}
