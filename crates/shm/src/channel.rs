//! The layout of a channel: one memory file for a client and a server domain.
//!
//! Source: URPC, sections 3.2 and 3.2.1. A channel has lanes. Each virtual processor of the client,
//! and each kernel thread while it calls, has a lane to itself, so no lock is needed between them.
//! A lane is a ring of requests, a ring of replies and a line of control words. A kernel thread has
//! one call at a time and uses only the first slot, for request and reply.
//!
//! ```text
//!      0   header: magic, version, lanes, depth                     client writes, once
//!   4096   lane 0 control, lane 1 control, … one line each          both write, when either sleeps
//!   8192   lane 0: requests (64 lines, client writes), replies (64 lines, server writes)
//!  16384   lane 1: …
//! ```
//! Pages of unused lanes are never touched and take no memory.

use crate::region::{Cells, Region, RegionView};
use crate::slot::Slot;
use std::fmt;
use std::sync::Arc;
use upcall_os::atomic::{AtomicU32, AtomicU64, Ordering};

/// Maximum number of lanes of a channel.
pub const LANES: u16 = 64;

/// Number of slots of each ring, and so of calls outstanding on a lane.
///
/// Small under a model checker.
pub const DEPTH: usize = if cfg!(loom) { 2 } else { 64 };

/// Bytes of a channel's memory file.
pub const BYTES: usize = RINGS + LANES as usize * LANE_BYTES;

const CONTROLS: usize = 4096;
/// Number of bytes before the lanes: the header and the control words.
pub const HEAD_BYTES: usize = RINGS;

const RINGS: usize = 8192;

/// Bytes of a lane.
pub const LANE_BYTES: usize = 2 * 64 * 64;

/// "UPCALL" and the version of this layout.
const MAGIC: u64 = u64::from_le_bytes(*b"UPCALL\0\x01");

#[repr(C, align(64))]
struct ChannelHeader {
    magic: AtomicU64,
    lanes: AtomicU32,
    depth: AtomicU32,
}

// SAFETY: atomics only, `repr(C)`, every bit pattern valid, no drop.
unsafe impl Cells for ChannelHeader {}

/// The control words of a lane: whether the caller sleeps, and where to park.
///
/// Both sides read this line on every call. They write it only when the caller sleeps, or wants the
/// server at another CPU.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct LaneControl {
    /// 1 while the kernel thread that calls on this lane sleeps on this word, or is about to.
    pub sleeper: AtomicU32,
    /// The CPU near which the caller wants the server to park, plus one; 0 for no preference.
    /// Written by the caller, read by the server before it parks.
    pub near: AtomicU32,
}

// SAFETY: atomics only, `repr(C)`, every bit pattern valid, no drop.
unsafe impl Cells for LaneControl {}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<ChannelHeader>() == 64 && size_of::<LaneControl>() == 64);
    assert!(CONTROLS + LANES as usize * size_of::<LaneControl>() <= RINGS);
    assert!(LANE_BYTES == 2 * DEPTH * size_of::<Slot>());
};

/// Why memory that a peer sent is not a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAChannel {
    /// It is too short.
    Short {
        /// Number of bytes found.
        found: usize,
    },
    /// Its header differs: it is of another version of Upcall, or something else.
    Header {
        /// The magic word.
        magic: u64,
        /// Lanes and depth that it claims.
        shape: (u32, u32),
    },
}

impl fmt::Display for NotAChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { found } => write!(f, "{found} bytes, but a channel has {BYTES}"),
            Self::Header { magic, shape } => write!(
                f,
                "a channel begins with {MAGIC:#x}, {LANES} lanes, depth {DEPTH}; found {magic:#x}, \
                 {} lanes, depth {}: use the same version on both sides",
                shape.0, shape.1
            ),
        }
    }
}

impl std::error::Error for NotAChannel {}

/// The memory of a channel, laid out.
#[derive(Clone, Debug)]
pub struct Channel(Arc<Region>);

/// The parts of one lane.
#[derive(Debug)]
pub struct Lane {
    /// The control words.
    pub control: RegionView<LaneControl>,
    /// The ring from client to server.
    pub requests: RegionView<[Slot]>,
    /// The ring from server to client.
    pub replies: RegionView<[Slot]>,
    /// The first slot of the requests, for a caller that has one call at a time and uses no ring.
    pub single: RegionView<Slot>,
}

impl Channel {
    /// Lays out fresh, zeroed memory.
    ///
    /// # Errors
    /// It is too short.
    pub fn create(region: Arc<Region>) -> Result<Self, NotAChannel> {
        let header = Self::header(&region)?;
        header.lanes.store(u32::from(LANES), Ordering::Relaxed);
        header.depth.store(DEPTH as u32, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(Self(region))
    }

    /// Joins the channel that a peer laid out.
    ///
    /// The header is trusted only if it equals ours.
    ///
    /// # Errors
    /// See [`NotAChannel`].
    pub fn join(region: Arc<Region>) -> Result<Self, NotAChannel> {
        let header = Self::header(&region)?;
        let magic = header.magic.load(Ordering::Acquire);
        let shape = (header.lanes.load(Ordering::Relaxed), header.depth.load(Ordering::Relaxed));
        if magic != MAGIC || shape != (u32::from(LANES), DEPTH as u32) {
            return Err(NotAChannel::Header { magic, shape });
        }
        Ok(Self(region))
    }

    fn header(region: &Arc<Region>) -> Result<RegionView<ChannelHeader>, NotAChannel> {
        let short = NotAChannel::Short { found: region.len() };
        if region.len() < BYTES {
            return Err(short);
        }
        region.view(0).ok_or(short)
    }

    /// The lane with this number; `None` if there is none.
    pub fn lane(&self, number: u16) -> Option<Lane> {
        if number >= LANES {
            return None;
        }
        let rings = RINGS + usize::from(number) * LANE_BYTES;
        Some(Lane {
            control: self.0.view(CONTROLS + usize::from(number) * 64)?,
            requests: self.0.view_slice(rings, DEPTH)?,
            replies: self.0.view_slice(rings + LANE_BYTES / 2, DEPTH)?,
            single: self.0.view(rings)?,
        })
    }
}

#[cfg(all(test, not(miri), not(loom)))]
mod tests {
    use super::*;
    use crate::ring::{RingReceiver, RingSender};
    use crate::slot::SlotMessage;
    use upcall_os::memory::{Mapping, MemoryFile};

    fn pair(bytes: usize) -> (Arc<Region>, Arc<Region>) {
        let file = MemoryFile::create("t", bytes).unwrap();
        let map = || Region::new(Mapping::shared(&file).unwrap()).unwrap();
        (map(), map())
    }

    #[test]
    fn two_mappings_of_one_channel() {
        let (ours, theirs) = pair(BYTES);
        let client = Channel::create(ours).unwrap();
        let server = Channel::join(theirs).unwrap();
        // All lanes are written before one is read, so that the test finds lanes that overlap.
        let both = |number| (number, client.lane(number).unwrap(), server.lane(number).unwrap());
        let lanes = || (0..LANES).map(both);
        for (number, near, far) in lanes() {
            let (requests, replies) =
                (RingSender::new(near.requests), RingSender::new(far.replies));
            (0..DEPTH as u16).for_each(|at| requests.send(&SlotMessage::new(number, 1, at)));
            (0..DEPTH as u16).for_each(|at| replies.send(&SlotMessage::new(number, 3, at)));
        }
        for (number, near, far) in lanes() {
            let (requests, replies) =
                (RingReceiver::new(far.requests), RingReceiver::new(near.replies));
            for at in 0..DEPTH as u16 {
                let (request, reply) = (requests.take().unwrap(), replies.take().unwrap());
                assert_eq!((request.call(), request.tag(), request.astack()), (number, 1, at));
                assert_eq!((reply.call(), reply.tag(), reply.astack()), (number, 3, at));
            }
        }
        assert!(client.lane(LANES).is_none());
    }

    #[test]
    fn what_is_no_channel_is_refused() {
        let (ours, theirs) = pair(BYTES);
        assert!(matches!(Channel::join(theirs), Err(NotAChannel::Header { magic: 0, .. })));
        drop(ours);
        let (short, _) = pair(BYTES - 4096);
        assert!(matches!(Channel::create(short), Err(NotAChannel::Short { .. })));
    }
}
