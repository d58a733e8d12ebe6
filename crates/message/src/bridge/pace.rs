//! Whether a sender moves its messages to the link by itself.
//!
//! The bridge's thread sleeps between messages, and takes long to wake. So the sender of a message
//! moves it by itself, which takes a system call. Of many messages in a row it leaves the rest to
//! the bridge's thread, which moves them in batches, and stays awake while they come.
//!
//! The sender of long messages moves all of them: next to their bytes, the system call takes
//! little. The bytes are in its processor's cache, and no thread has to be woken.
//!
//! Short messages are in a row if their sender has done next to nothing between two of them. A
//! sender that waits for an answer to each message does not count as flooding, however fast the
//! answer is: its partner needs more time than that.
//!
//! Time is an argument.

use crate::far::LONG;
use std::time::{Duration, Instant};
use upcall_os::atomic::{AtomicU32, AtomicU64, Ordering};

/// Time from the end of one move to the next message below which they count as in a row.
const IN_A_ROW: Duration = Duration::from_micros(4);

/// Number of messages in a row that the sender moves.
const MOVED: u32 = 4;

/// What to do with a message while the bridge's thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MovedBy {
    Sender,
    Bridge,
}

/// See the module.
#[derive(Debug)]
pub(super) struct SendPace {
    began: Instant,
    /// When the last message had been moved, in nanoseconds since then.
    last: AtomicU64,
    in_a_row: AtomicU32,
}

impl SendPace {
    pub(super) fn new(now: Instant) -> Self {
        Self { began: now, last: AtomicU64::new(0), in_a_row: AtomicU32::new(0) }
    }

    /// Decides about a message. Called by one thread at a time.
    pub(super) fn decide(&self, now: Instant) -> MovedBy {
        let now = self.since(now);
        let last = self.last.swap(now, Ordering::Relaxed);
        let is_next = now.saturating_sub(last) < IN_A_ROW.as_nanos() as u64;
        let count = if is_next { self.in_a_row.load(Ordering::Relaxed) + 1 } else { 0 };
        self.in_a_row.store(count.min(MOVED), Ordering::Relaxed);
        if count < MOVED { MovedBy::Sender } else { MovedBy::Bridge }
    }

    /// The sender has moved this many bytes.
    pub(super) fn moved(&self, now: Instant, bytes: usize) {
        self.last.store(self.since(now), Ordering::Relaxed);
        if bytes >= LONG {
            self.in_a_row.store(0, Ordering::Relaxed);
        }
    }

    fn since(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_messages_are_moved_by_their_sender_and_floods_by_the_bridge() {
        let mut now = Instant::now();
        let pace = SendPace::new(now);
        let mut after = |time: Duration, bytes| {
            now += time;
            let by = pace.decide(now);
            if by == MovedBy::Sender {
                // However long that takes.
                now += 10 * IN_A_ROW;
                pace.moved(now, bytes);
            }
            by
        };
        for _ in 0..10 {
            assert_eq!(after(IN_A_ROW, 8), MovedBy::Sender);
            assert_eq!(after(Duration::ZERO, LONG), MovedBy::Sender);
        }
        for number in 1..10 {
            let expected = if number < MOVED { MovedBy::Sender } else { MovedBy::Bridge };
            assert_eq!(after(IN_A_ROW / 2, 8), expected, "{number}");
        }
        assert_eq!(after(2 * IN_A_ROW, 8), MovedBy::Sender);
    }
}
