//! What a sender does when it finds no room: wait, or divert.
//!
//! Source: UDM, sections 3.2 and 3.3. There a receiver that keeps the network blocked for longer
//! than the atomicity timeout loses the direct path, and arrivals are buffered for it (D8, D10).
//! Here each pair has its own queue, so a slow receiver blocks only its own senders. They too wait
//! no longer than the timeout: then their messages go to the buffer, and they go on. Correctness
//! does not depend on the timeout: at 0 every message is buffered, and without one a sender waits
//! without limit. Passing time is never an error: only the kernel reports that a receiver is dead.
//!
//! A sender that diverts is no longer slowed by a full queue, so a sender that stays quicker than
//! its receiver would fill the machine's memory. At the end of each segment it waits once more,
//! while the receiver takes messages. And each member has its share of what its group may buffer
//! (D12): with all of it in use, the member is stopped until a receiver has left a segment. In the
//! paper the scheduler stops all of a job's processes then. Here members that do not flood need not
//! notice, and the receivers must run, because they make room. No member needs a report for that:
//! it knows what it has buffered itself. All members are stopped in this way, with any share,
//! while the machine or a control group has little memory left.
//!
//! The queue to a member on another host is emptied by a thread of the sender's process, which gets
//! room from the network a quarter of a MiB at a time. That thread is not stopped alone, and may
//! share the sender's processor. So such a sender waits longer for a spare before it takes new
//! memory ([`NewMemory::Later`]): the kernel has to clear each page, which takes longer than the
//! messages.

use std::time::{Duration, Instant};
use upcall_os::headroom::Headroom;
use upcall_shm::direct::NextSegment;

/// Default atomicity timeout.
///
/// It is several times what a receiver takes for a full queue, and less than a time slice.
pub const TIMEOUT: Duration = Duration::from_micros(200);

/// Time without progress of the receiver after which its sender sleeps between two tries. The
/// receiver may be stopped, and this member with it, for any time: that is no fault of either, and
/// no error.
const LONG: Duration = Duration::from_millis(2);

/// Maximum time for which a sender waits for a spare. A receiver that needs longer for one is so
/// slow that new memory takes little beside it.
const SLOW: Duration = Duration::from_millis(8);

/// A member's share of what its group may buffer, in bytes.
pub fn share(limit: u64, members: usize) -> u64 {
    limit / members as u64
}

/// What to do about a full queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// Try again.
    Wait,
    /// Go on in a segment.
    Divert,
}

/// A message for which there is no room in the queue.
#[derive(Clone, Copy, Debug)]
pub struct Unsent {
    /// The current time.
    pub now: Instant,
    /// The receiver's progress, as any count that grows when it takes something.
    pub progress: u64,
    /// Bytes of the message, if it does not fit into the queue at all.
    pub outsized: Option<usize>,
    /// Size of a segment, in bytes.
    pub segment: u64,
    /// Bytes that messages to this receiver take in segments.
    pub here: u64,
    /// What the sender would go on in.
    pub next: NextSegment,
}

/// What else a sender has buffered, and how much it may buffer.
pub trait Buffers {
    /// Bytes that messages to all other receivers take.
    fn elsewhere(&self) -> u64;
    /// Maximum number of bytes for all receivers together.
    fn share(&self) -> u64;
    /// The memory that is left, if that is little.
    fn low(&self) -> Option<Headroom>;
}

/// The decision about a message without room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// It diverts the message, and those that follow, to a segment.
    Divert,
    /// It waits, because the queue is full and the receiver takes messages.
    Full,
    /// It waits for the receiver to leave a spare.
    Spare,
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
    /// It yields to others, or sleeps: the receiver has much to take.
    Backlog,
    /// It sleeps between two tries: the receiver has taken nothing for long.
    Long,
}

/// When a sender without a spare takes new memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewMemory {
    /// After the timeout, and for a message that does not fit into the queue at once.
    AtOnce,
    /// After [`SLOW`], or [`LONG`] if nothing is taken.
    Later,
}

/// A sender's patience with one receiver.
#[derive(Debug)]
pub struct Flow {
    timeout: Option<Duration>,
    new_memory: NewMemory,
    /// Time at which it began to wait.
    since: Option<Instant>,
    /// The receiver's progress when its messages were last diverted.
    diverted_at: Option<u64>,
    /// The receiver's progress, and since when it is the same.
    still: Option<(u64, Instant)>,
    /// The receiver's progress when the sender last waited for a spare in vain.
    in_vain_at: Option<u64>,
    calm: bool,
}

impl Flow {
    pub fn new(timeout: Option<Duration>) -> Self {
        Self {
            timeout,
            new_memory: NewMemory::AtOnce,
            since: None,
            diverted_at: None,
            in_vain_at: None,
            still: None,
            calm: timeout != Some(Duration::ZERO),
        }
    }

    /// Changes when the sender takes new memory.
    pub fn takes_new_memory(&mut self, when: NewMemory) {
        self.new_memory = when;
    }

    /// Returns `true` if a message that has room needs nothing else.
    ///
    /// The sender waits for nothing, and the direct way is open.
    #[inline]
    pub fn is_calm(&self) -> bool {
        self.calm
    }

    fn settle(&mut self) {
        self.calm = !self.is_always_diverted() && self.since.is_none() && self.still.is_none();
    }

    /// Returns `true` if no message goes the direct way.
    #[inline]
    pub fn is_always_diverted(&self) -> bool {
        self.timeout == Some(Duration::ZERO)
    }

    /// Decides what to do with a message for which there is no room. [`diverted`](Self::diverted)
    /// follows if the sender has diverted.
    ///
    /// The first segment of a pair needs no share. So a message that is longer than the share goes
    /// when nothing else is buffered.
    pub fn without_room(&mut self, unsent: Unsent, buffers: &impl Buffers) -> NoRoom {
        let Unsent { now, progress, .. } = unsent;
        let waits_for_spare = self.new_memory == NewMemory::Later
            && unsent.next == NextSegment::New
            && (unsent.outsized.is_none() || unsent.here > 0 && self.timeout.is_some());
        let (full, wait) = match unsent.outsized {
            _ if waits_for_spare => (self.without_spare(now, progress), NoRoom::Spare),
            Some(_) => (Full::Divert, NoRoom::Full),
            None => (self.full(now, progress), NoRoom::Full),
        };
        if full == Full::Wait {
            return wait;
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

    /// Decides how the sender waits for room at `now`.
    pub fn pause(&mut self, now: Instant, progress: u64) -> Pause {
        if self.still(now, progress) >= LONG { Pause::Long } else { Pause::Short }
    }

    /// Decides what to do about a full queue at `now`. `progress` is any count that grows when the
    /// receiver takes something.
    pub fn full(&mut self, now: Instant, progress: u64) -> Full {
        let Some(timeout) = self.timeout else { return Full::Wait };
        let since = *self.since.get_or_insert(now);
        self.settle();
        let over = now.saturating_duration_since(since) >= timeout;
        // It has taken nothing since the last time, so waiting would not help.
        if over || self.diverted_at == Some(progress) { Full::Divert } else { Full::Wait }
    }

    /// Decides what to do at `now` if the sender would have to take new memory.
    fn without_spare(&mut self, now: Instant, progress: u64) -> Full {
        let Some(timeout) = self.timeout else { return Full::Wait };
        let since = *self.since.get_or_insert(now);
        // The receiver may share a processor with the sender, or take many messages at once. So
        // that it takes nothing is known only after a wait.
        if self.still(now, progress) >= LONG.max(timeout) {
            self.in_vain_at = Some(progress);
        }
        let over = timeout.is_zero() || now.saturating_duration_since(since) >= SLOW.max(timeout);
        if over || self.in_vain_at == Some(progress) { Full::Divert } else { Full::Wait }
    }

    /// Time for which the receiver has taken nothing while the sender waited.
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

    /// The receiver's progress when its messages were last diverted.
    pub fn diverted_at(&self) -> Option<u64> {
        self.diverted_at
    }

    /// Notes that there was room, or that the sender no longer waits.
    pub fn fits(&mut self) {
        (self.since, self.still) = (None, None);
        self.settle();
    }

    /// Notes that the sender has diverted.
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
        // The flow also sees messages that have room in the meantime.
        assert!(!flow.is_calm());
        assert_eq!(flow.full(start + TIMEOUT, 5), Full::Divert);
        flow.diverted(5);
        // At the end of the segment: still stuck.
        assert_eq!(flow.full(start + TIMEOUT, 5), Full::Divert);
        // No longer stuck.
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
        let next = NextSegment::Spare;
        let unsent =
            |outsized, here| Unsent { now, progress: 0, outsized, segment: 100, here, next };
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
    fn a_sender_to_another_host_without_a_spare_waits_while_messages_are_taken() {
        let start = Instant::now();
        let flow = |timeout| {
            let mut flow = Flow::new(timeout);
            flow.takes_new_memory(NewMemory::Later);
            flow
        };
        let decide = |flow: &mut Flow, after: Duration, progress, outsized, here| {
            let (segment, next, now) = (100, NextSegment::New, start + after);
            let unsent = Unsent { now, progress, outsized, segment, here, next };
            flow.without_room(unsent, &Bytes(0, u64::MAX, None))
        };
        for outsized in [None, Some(50)] {
            let mut sender = flow(Some(TIMEOUT));
            // What was taken when the sender diverted last does not matter here.
            sender.diverted(0);
            let mut after = Duration::ZERO;
            for progress in 0.. {
                if after >= SLOW {
                    assert_eq!(decide(&mut sender, after, progress, outsized, 200), NoRoom::Divert);
                    break;
                }
                assert_eq!(decide(&mut sender, after, progress, outsized, 200), NoRoom::Spare);
                after += LONG / 4;
            }
            sender.diverted(100);
            // It takes nothing for as long, and the next time the sender knows.
            assert_eq!(decide(&mut sender, SLOW, 200, outsized, 200), NoRoom::Spare);
            assert_eq!(decide(&mut sender, SLOW + LONG, 200, outsized, 200), NoRoom::Divert);
            sender.diverted(200);
            assert_eq!(decide(&mut sender, SLOW + LONG, 200, outsized, 200), NoRoom::Divert);
            sender.diverted(200);
            assert_eq!(decide(&mut sender, SLOW + LONG, 201, outsized, 200), NoRoom::Spare);
        }
        // A first segment is taken at once, and without a timeout each that a long message needs.
        let mut sender = flow(Some(TIMEOUT));
        assert_eq!(decide(&mut sender, LONG, 300, Some(50), 0), NoRoom::Divert);
        let mut patient = flow(None);
        assert_eq!(decide(&mut patient, LONG, 300, Some(50), 200), NoRoom::Divert);
        assert_eq!(decide(&mut patient, LONG, 300, None, 200), NoRoom::Spare);
        let mut always = flow(Some(Duration::ZERO));
        assert_eq!(decide(&mut always, LONG, 0, Some(50), 200), NoRoom::Divert);
        assert_eq!(decide(&mut always, LONG, 0, None, 200), NoRoom::Divert);
        // On one host the receiver may be stopped, and the sender is soon free for others.
        let mut near = Flow::new(Some(TIMEOUT));
        assert_eq!(decide(&mut near, LONG, 0, Some(50), 200), NoRoom::Divert);
        assert_eq!(decide(&mut near, LONG, 0, None, 200), NoRoom::Full);
        assert_eq!(decide(&mut near, LONG + TIMEOUT, 1, None, 200), NoRoom::Divert);
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
