//! When to look for the other side's next message.
//!
//! A look brings the line that it looks at to the processor that looks. If the other side is just
//! about to write that line, it has to fetch it back first, so a look that comes too early delays
//! what it looks for by a transfer each way. Measured on two cores (a round trip of one line, 24 ns
//! of work on each side, the work subtracted): 165 ns when both sides look all the time, 68 with
//! one pause between looks, 45 when the first look comes just after the answer. So whoever waits
//! learns how long the answer takes, lets that time pass without a look, and then looks with pauses
//! between.

use std::hint::black_box;
use upcall_os::atomic::spin_loop;

/// How long the answers to something took lately, in steps of some nanoseconds.
///
/// A first look that finds the answer may have come late: the next comes a little earlier. One that
/// just misses it has cost more than that, so the next comes later by much more. Where answers
/// differ widely, the quick ones count: looking too late for them costs more than looking too early
/// for the slow ones, so an answer that comes long after the first look moves the next one less
/// than a quick one does.
#[derive(Clone, Copy, Debug)]
pub struct ReplyTimer(u16);

/// The parts of a step that are counted.
const STEP: u16 = 16;
const EARLIER: u16 = 2;
const LATER: u16 = 16;
const LONG_AFTER: u16 = 1;
const LONGEST: u16 = 511 * STEP;

/// An answer that is there after so many looks was just missed; one that is not after so many more
/// takes so long that no look matters.
const MISSED: u32 = 3;
const MATTERS: u32 = 32;

impl Default for ReplyTimer {
    fn default() -> Self {
        Self(24 * STEP)
    }
}

impl ReplyTimer {
    /// As it was kept by [`ReplyTimer::parts`].
    pub(crate) fn kept(parts: u16) -> Self {
        Self(parts)
    }

    pub(crate) fn parts(self) -> u16 {
        self.0
    }

    /// Lets the time pass in which no answer is expected, then looks, at most `most` times. Whether
    /// it is there.
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

/// Lets a time pass. Finer than by pauses, each of which may be 40 ns.
#[inline]
fn pass(steps: u16) {
    let mut chain = 0u32;
    for _ in 0..steps {
        // Through memory and back, which takes some cycles on every machine.
        chain = black_box(black_box(chain));
    }
}

/// Between two looks.
#[inline]
pub(crate) fn again() {
    spin_loop();
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Answers that need so many steps, looks that need ten each.
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
