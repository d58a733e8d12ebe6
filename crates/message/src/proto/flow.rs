//! What a sender does that finds no room: wait, or divert.
//!
//! Source: UDM, sections 3.2 and 3.3. There a receiver that keeps the network blocked for longer
//! than the atomicity timeout loses the direct path, and what arrives is buffered for it (D8, D10).
//! Here each pair has its own queue, so a slow receiver blocks only its own senders. They wait no
//! longer than the timeout, too: then their messages go to the buffer, and they go on. Correctness
//! does not depend on the timeout: at 0 every message is buffered, and without one a sender waits
//! as long as it takes. No time that passes is an error: only the kernel says that a receiver is
//! dead.
//!
//! A sender that diverts runs no longer against a full queue, so one that is quicker than its
//! receiver for long would fill the machine. At the end of each segment it waits once more, as long
//! as the receiver takes messages. And each member has its share of what its group may buffer
//! (D12): with all of it in use it is stopped until a receiver has left a segment. The paper has
//! the scheduler stop all of a job's processes then; here those who do not flood need not notice,
//! and the receivers have to run, for it is they who make room. No member needs another's word for
//! that: what it has buffered itself it knows. All are stopped so, whatever their shares, while the
//! machine or a control group has little memory left.

use std::time::{Duration, Instant};
use upcall_os::headroom::Headroom;

/// The atomicity timeout where nothing else is said: several times what a receiver takes for a full
/// queue, and less than a slice of the processor.
pub const TIMEOUT: Duration = Duration::from_micros(200);

/// A receiver that takes nothing for longer is slept for between two looks. It may be stopped, and
/// this member with it, for any time: that is no fault of either, and no error.
const LONG: Duration = Duration::from_millis(2);

/// What a member may buffer of what its group may, in bytes.
pub fn share(limit: u64, members: usize) -> u64 {
    limit / members as u64
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// Look again.
    Wait,
    /// Go on in a segment.
    Divert,
}

/// A message for which there is no room in the queue.
#[derive(Clone, Copy, Debug)]
pub struct Unsent {
    /// The time.
    pub now: Instant,
    /// How far the receiver is, by any count that grows when it takes something.
    pub progress: u64,
    /// Bytes of the message, if it does not fit into the queue at all.
    pub outsized: Option<usize>,
    /// Bytes of a segment.
    pub segment: u64,
    /// Bytes that messages to this receiver take in segments.
    pub here: u64,
}

/// What a sender has buffered besides, and may buffer.
pub trait Buffers {
    /// Bytes that messages to all other receivers take.
    fn elsewhere(&self) -> u64;
    /// Maximum number of bytes of all together.
    fn share(&self) -> u64;
    /// The memory that is left, if that is little.
    fn low(&self) -> Option<Headroom>;
}

/// What a sender does that has found no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// It diverts the message, and those that follow, to a segment.
    Divert,
    /// It waits, because the queue is full and the receiver takes messages.
    Full,
    /// It waits, because this number of bytes is buffered, and its share allows no further segment.
    Overflow {
        /// Bytes that are buffered.
        buffered: u64,
    },
    /// It waits, because little memory is left.
    LowMemory(Headroom),
}

/// How a sender waits for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// It yields to others.
    Short,
    /// It sleeps between two tries: the receiver has taken nothing for long.
    Long,
}

/// A sender's patience with one receiver.
#[derive(Debug)]
pub struct Flow {
    timeout: Option<Duration>,
    /// Since when it waits.
    since: Option<Instant>,
    /// How far the receiver was when its messages were diverted last.
    diverted_at: Option<u64>,
    /// How far it is, and since when.
    still: Option<(u64, Instant)>,
    calm: bool,
}

impl Flow {
    pub fn new(timeout: Option<Duration>) -> Self {
        Self {
            timeout,
            since: None,
            diverted_at: None,
            still: None,
            calm: timeout != Some(Duration::ZERO),
        }
    }

    /// Whether a message that has room needs nothing else: nothing is waited for, and the direct
    /// way is open.
    #[inline]
    pub fn is_calm(&self) -> bool {
        self.calm
    }

    fn settle(&mut self) {
        self.calm = !self.is_always_diverted() && self.since.is_none() && self.still.is_none();
    }

    /// Whether nothing is to go by the direct way.
    #[inline]
    pub fn is_always_diverted(&self) -> bool {
        self.timeout == Some(Duration::ZERO)
    }

    /// Decides on a message for which there is no room. [`diverted`](Self::diverted) follows if the
    /// sender has diverted.
    ///
    /// The first segment of a pair needs no share. So a message that is longer than the share goes
    /// when nothing else is buffered.
    pub fn without_room(&mut self, unsent: Unsent, buffers: &impl Buffers) -> NoRoom {
        let diverts =
            unsent.outsized.is_some() || self.full(unsent.now, unsent.progress) == Full::Divert;
        if !diverts {
            return NoRoom::Full;
        }
        let Unsent { segment, here, .. } = unsent;
        let takes = unsent.outsized.map_or(0, |bytes| bytes as u64).max(segment);
        let is_first = here == 0 && takes <= segment;
        let buffered = if is_first { 0 } else { here + buffers.elsewhere() };
        if (buffered > 0 || takes > segment)
            && let Some(low) = buffers.low()
        {
            return NoRoom::LowMemory(low);
        }
        if buffered > 0 && buffered + takes > buffers.share() {
            return NoRoom::Overflow { buffered };
        }
        NoRoom::Divert
    }

    /// How a sender waits for room at `now`.
    pub fn pause(&mut self, now: Instant, progress: u64) -> Pause {
        if self.still(now, progress) >= LONG { Pause::Long } else { Pause::Short }
    }

    /// There is no room at `now`; so far the receiver is, by any count that grows when it takes
    /// something.
    pub fn full(&mut self, now: Instant, progress: u64) -> Full {
        let Some(timeout) = self.timeout else { return Full::Wait };
        let since = *self.since.get_or_insert(now);
        self.settle();
        let over = now.saturating_duration_since(since) >= timeout;
        // It has taken nothing since the last time, so waiting brings nothing.
        if over || self.diverted_at == Some(progress) { Full::Divert } else { Full::Wait }
    }

    /// For how long the receiver has taken nothing while it was waited for.
    fn still(&mut self, now: Instant, progress: u64) -> Duration {
        match self.still {
            Some((before, since)) if before == progress => now.saturating_duration_since(since),
            _ => {
                self.still = Some((progress, now));
                self.settle();
                Duration::ZERO
            }
        }
    }

    /// How far the receiver was when its messages were diverted last.
    pub fn diverted_at(&self) -> Option<u64> {
        self.diverted_at
    }

    /// There was room; or it is waited for no longer.
    pub fn fits(&mut self) {
        (self.since, self.still) = (None, None);
        self.settle();
    }

    /// It has diverted.
    pub fn diverted(&mut self, progress: u64) {
        (self.since, self.still, self.diverted_at) = (None, None, Some(progress));
        self.settle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_waits_for_who_takes_something_and_not_for_who_does_not() {
        let mut flow = Flow::new(Some(TIMEOUT));
        let start = Instant::now();
        assert_eq!(flow.full(start, 5), Full::Wait);
        assert_eq!(flow.full(start + TIMEOUT / 2, 5), Full::Wait);
        // What has room meanwhile, it knows of.
        assert!(!flow.is_calm());
        assert_eq!(flow.full(start + TIMEOUT, 5), Full::Divert);
        flow.diverted(5);
        // At the end of the segment: still stuck.
        assert_eq!(flow.full(start + TIMEOUT, 5), Full::Divert);
        // Not stuck any more.
        assert_eq!(flow.full(start + TIMEOUT, 6), Full::Wait);
        flow.fits();
        assert!(flow.is_calm());
        assert_eq!(flow.full(start + 3 * TIMEOUT, 7), Full::Wait);
        assert_eq!(flow.full(start + 4 * TIMEOUT, 7), Full::Divert);
    }

    #[test]
    fn it_knows_for_how_long_nothing_was_taken() {
        let mut flow = Flow::new(None);
        let start = Instant::now();
        assert_eq!(flow.still(start, 3), Duration::ZERO);
        assert_eq!(flow.still(start + LONG, 3), LONG);
        assert_eq!(flow.still(start + 2 * LONG, 4), Duration::ZERO);
        flow.fits();
        assert_eq!(flow.still(start + 4 * LONG, 4), Duration::ZERO);
    }

    /// Bytes elsewhere, share, memory.
    struct Bytes(u64, u64, Option<Headroom>);

    impl Buffers for Bytes {
        fn elsewhere(&self) -> u64 {
            self.0
        }
        fn share(&self) -> u64 {
            self.1
        }
        fn low(&self) -> Option<Headroom> {
            self.2
        }
    }

    #[test]
    fn a_sender_without_room_diverts_within_its_share() {
        let now = Instant::now();
        let unsent = |outsized, here| Unsent { now, progress: 0, outsized, segment: 100, here };
        let decide = |outsized, here, bytes| {
            let mut flow = Flow::new(Some(Duration::ZERO));
            flow.without_room(unsent(outsized, here), &bytes)
        };
        let headroom = Headroom { left: 1, of: 100 };
        let low = Some(headroom);
        // A first segment is always allowed.
        assert_eq!(decide(None, 0, Bytes(900, 100, low)), NoRoom::Divert);
        assert_eq!(decide(None, 100, Bytes(0, 200, None)), NoRoom::Divert);
        assert_eq!(decide(None, 100, Bytes(1, 200, None)), NoRoom::Overflow { buffered: 101 });
        assert_eq!(decide(None, 100, Bytes(0, 900, low)), NoRoom::LowMemory(headroom));
        // A message that is longer than the share goes alone.
        assert_eq!(decide(Some(5000), 0, Bytes(0, 900, None)), NoRoom::Divert);
        assert_eq!(decide(Some(5000), 0, Bytes(1, 900, None)), NoRoom::Overflow { buffered: 1 });
        assert_eq!(decide(Some(5000), 0, Bytes(0, 900, low)), NoRoom::LowMemory(headroom));
        let mut patient = Flow::new(Some(TIMEOUT));
        assert_eq!(patient.without_room(unsent(None, 0), &Bytes(0, 900, None)), NoRoom::Full);
        assert_eq!(
            (patient.pause(now, 0), patient.pause(now + LONG, 0)),
            (Pause::Short, Pause::Long)
        );
    }

    #[test]
    fn no_timeout_and_none_at_all() {
        let mut patient = Flow::new(None);
        let start = Instant::now();
        assert_eq!(patient.full(start, 0), Full::Wait);
        assert_eq!(patient.full(start + Duration::from_secs(3600), 0), Full::Wait);
        let mut impatient = Flow::new(Some(Duration::ZERO));
        assert!(impatient.is_always_diverted() && !patient.is_always_diverted());
        assert_eq!(impatient.full(start, 0), Full::Divert);
    }
}
