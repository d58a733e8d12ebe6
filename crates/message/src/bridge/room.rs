//! How much one side of a pair may send before the other side has passed it on.
//!
//! The receiving side writes messages to the queue of its member, which may take them slowly or not
//! at all. It holds at most [`WINDOW`] bytes that it could not write, and one message that is
//! longer than that. Long messages stay in its memory, and count until the member has taken them.
//! It gives room back after each three quarters of the window. So a sender on another host is
//! slowed, and finally stopped, as one on the same host is ([`crate::proto::flow`]).
//!
//! There is no input or output here.

use upcall_os::atomic::{AtomicU64, Ordering};

/// Maximum number of bytes that are under way, unless one message is longer.
pub(crate) const WINDOW: u64 = 1 << 20;

/// Number of bytes after which room is given back. To give it costs the receiver a system call, and
/// the sender a wake.
const GIVEN: u64 = WINDOW * 3 / 4;

/// The sending side's knowledge of the receiving side's room.
#[derive(Debug, Default)]
pub(crate) struct SendRoom {
    under_way: AtomicU64,
    /// Set while the sending side waits for room.
    waits: AtomicU64,
}

impl SendRoom {
    /// Returns `true` if a message of this many bytes may be sent now.
    ///
    /// A long message may be sent when less than three quarters of the window are under way. The
    /// receiving side gives back no less.
    pub(crate) fn allows(&self, bytes: usize) -> bool {
        let under_way = self.under_way.load(Ordering::SeqCst);
        under_way + bytes as u64 <= WINDOW || under_way < GIVEN
    }

    /// Like [`allows`](Self::allows). If it returns `false`, [`freed`](Self::freed) reports that
    /// the sending side waits.
    ///
    /// The wait is noted before the second look, and room is freed before the wait is read. So
    /// either the second look finds the room, or the one who frees it finds the wait.
    pub(crate) fn allows_or_waits(&self, bytes: usize) -> bool {
        if self.allows(bytes) {
            return true;
        }
        self.waits.store(1, Ordering::SeqCst);
        let allows = self.allows(bytes);
        if allows {
            self.waits.store(0, Ordering::SeqCst);
        }
        allows
    }

    /// Returns `true` while the sending side waits for room.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waits.load(Ordering::SeqCst) != 0
    }

    /// Bytes were sent.
    pub(crate) fn sent(&self, bytes: usize) {
        self.under_way.fetch_add(bytes as u64, Ordering::SeqCst);
    }

    /// The receiving side gave room back. Returns whether the sending side waits for it.
    ///
    /// # Errors
    /// It never had that much.
    pub(crate) fn freed(&self, bytes: u64) -> Result<SenderWaits, NoSuchRoom> {
        let less = |under_way: u64| under_way.checked_sub(bytes);
        self.under_way
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
            .map_err(|_| NoSuchRoom)?;
        Ok(match self.waits.swap(0, Ordering::SeqCst) {
            0 => SenderWaits::No,
            _ => SenderWaits::Yes,
        })
    }
}

/// Whether the sending side waits for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SenderWaits {
    Yes,
    No,
}

/// The other side broke the rules about room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoSuchRoom;

/// The receiving side's account of what it holds.
#[derive(Debug)]
pub(crate) struct ReceiveRoom {
    held: AtomicU64,
    /// Bytes that were passed on, and for which no room was given back.
    passed: AtomicU64,
    most: u64,
}

impl ReceiveRoom {
    /// The account of a pair whose messages have at most `most` bytes.
    pub(crate) fn new(most: usize) -> Self {
        Self { held: AtomicU64::new(0), passed: AtomicU64::new(0), most: size_most(most) }
    }

    /// Messages of this many bytes begin to arrive.
    ///
    /// # Errors
    /// The sending side had no room for them.
    pub(crate) fn begins(&self, bytes: usize) -> Result<(), NoSuchRoom> {
        // Whole words, so that as many bytes are passed on.
        if bytes == 0 || !bytes.is_multiple_of(8) {
            return Err(NoSuchRoom);
        }
        let held = self.held.fetch_add(bytes as u64, Ordering::SeqCst);
        let allowed = held + bytes as u64 <= WINDOW || held < GIVEN && bytes as u64 <= self.most;
        if allowed { Ok(()) } else { Err(NoSuchRoom) }
    }

    /// Bytes were passed on to the member, or taken by it. Returns the room to give back, if it is
    /// enough by now.
    pub(crate) fn passed(&self, bytes: usize) -> Option<u64> {
        let passed = self.passed.fetch_add(bytes as u64, Ordering::SeqCst) + bytes as u64;
        if passed < GIVEN {
            return None;
        }
        // Of two threads that come here at the same time, one gives all of it back.
        let passed = self.passed.swap(0, Ordering::SeqCst);
        self.held.fetch_sub(passed, Ordering::SeqCst);
        (passed > 0).then_some(passed)
    }
}

fn size_most(most: usize) -> u64 {
    super::batch::size_of(most) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_sent_may_be_received() {
        let (send, receive) = (SendRoom::default(), ReceiveRoom::new(5 << 20));
        let mut under_way = std::collections::VecDeque::new();
        let mut dice = 7_u64;
        for _ in 0..100_000 {
            dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let bytes = match dice >> 60 {
                0 => 5 << 20,
                1..8 => 8 + (dice >> 40) as usize % 100_000 / 8 * 8,
                _ => 16,
            };
            if dice >> 33 & 1 == 1 && send.allows_or_waits(bytes) {
                send.sent(bytes);
                receive.begins(bytes).expect("room for what is allowed");
                under_way.push_back(bytes);
            } else if let Some(bytes) = under_way.pop_front()
                && let Some(room) = receive.passed(bytes)
            {
                send.freed(room).expect("room that was taken");
            }
            let all: usize = under_way.iter().sum();
            assert!(all as u64 <= WINDOW + GIVEN + (5 << 20));
        }
        // All of it is passed on, and then everything may be sent.
        for bytes in under_way {
            if let Some(room) = receive.passed(bytes) {
                send.freed(room).expect("room that was taken");
            }
        }
        assert!(send.allows(5 << 20));
    }

    #[test]
    fn who_breaks_the_rules_is_noticed() {
        let (send, receive) = (SendRoom::default(), ReceiveRoom::new(2 << 20));
        assert_eq!(send.freed(1), Err(NoSuchRoom));
        assert_eq!(receive.begins((2 << 20) + 16), Err(NoSuchRoom));
        let receive = ReceiveRoom::new(2 << 20);
        receive.begins(WINDOW as usize).unwrap();
        assert_eq!(receive.begins(8), Err(NoSuchRoom));
    }

    #[test]
    fn a_sender_that_waits_is_told() {
        let send = SendRoom::default();
        send.sent(WINDOW as usize);
        assert!(!send.allows_or_waits(8));
        assert_eq!(send.freed(GIVEN), Ok(SenderWaits::Yes));
        assert_eq!(send.freed(WINDOW - GIVEN), Ok(SenderWaits::No));
        assert!(send.allows_or_waits(8));
    }
}
