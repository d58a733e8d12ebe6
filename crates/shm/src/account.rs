//! Accounts: what a member of a group has sent and taken, for its peers to read.
//!
//! Source: UDM, sections 3.3 and 5 (D10, D12): the number of buffered messages, their receivers and
//! the members that are stopped for them are what the paper's scheduler acts on, and what its Table
//! 6 counts. The member counts while it runs, and only the member can write its account: the memory
//! is sealed like a station ([`station`](crate::station)). Each pair of members has a line in the
//! account of either member, which writes what it knows itself. A reader of both lines knows what
//! lies between the two. Accounting costs the sender one store per message, and the receiver a few
//! stores whenever it reports its progress to the sender anyway.
//!
//! ```text
//! 0       magic | process | members | rank | group | formed | share | refused | name | stops
//! 4096    the pair with member 0: sent | diverted … | taken …
//! + 64    the pair with member 1; and so on
//! ```
//! Each word is read by itself, so no two are of one moment. `taken` is as late as the receiver's
//! report to the sender: up to a quarter of the queue behind while messages wait, and exact when
//! none waits.

use crate::region::{Cells, ReadOnlyRegion, Region, RegionView};
use crate::text;
use std::fmt;
use std::io;
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use upcall_os::atomic::{AtomicU64, Ordering};
use upcall_os::memory::{AdoptError, Mapping, MemoryFile};

/// Name of an account's memory in `/proc/PID/fd`.
pub const NAME: &str = "upcall-account";

/// Maximum number of members of a group with accounts.
pub const MOST: usize = 1024;

const MAGIC: u64 = u64::from_le_bytes(*b"ACCOUNT\x01");
const PAIRS_AT: usize = 4096;
const NAME_WORDS: usize = 8;

#[repr(C, align(64))]
struct MemberStatsHeader {
    magic: AtomicU64,
    pid: AtomicU64,
    size: AtomicU64,
    rank: AtomicU64,
    group: AtomicU64,
    /// Time at which the group formed; 0 until then.
    formed: AtomicU64,
    /// Bytes that the member may buffer.
    share: AtomicU64,
    /// Number of connections, queues and messages that the member refused.
    refused: AtomicU64,
    name: [AtomicU64; NAME_WORDS],
    /// How often the member was stopped because it had buffered all that it may; the time of the
    /// stop that lasts, or 0; and the receiver of that stop.
    stops: AtomicU64,
    stopped: AtomicU64,
    stopped_for: AtomicU64,
    /// 1 if memory is low, 0 if the member's share is used up.
    memory_is_low: AtomicU64,
    rest: [AtomicU64; 4],
}

// SAFETY: atomics only, `repr(C)`, every bit pattern valid, no drop.
unsafe impl Cells for MemberStatsHeader {}

/// One member's counts for the pair that it forms with another member.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct PairStats {
    sent: AtomicU64,
    /// How often the sender went from the direct path to the buffer.
    diversions: AtomicU64,
    /// `came_home`: messages buffered before the sender last came home. `away`: one more than the
    /// messages sent before the last diversion; 0 on the direct path.
    came_home: AtomicU64,
    away: AtomicU64,
    /// Segments used so far.
    segments: AtomicU64,
    taken: AtomicU64,
    /// Segments of the other member that this one has left.
    left: AtomicU64,
    rest: AtomicU64,
}

// SAFETY: atomics only, `repr(C)`, every bit pattern valid, no drop.
unsafe impl Cells for PairStats {}

#[cfg(not(loom))]
const _: () = assert!(size_of::<PairStats>() == 64 && size_of::<MemberStatsHeader>() <= PAIRS_AT);

/// Adds to a count that only one thread writes, so a load and a store are enough.
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl PairStats {
    /// Records the number of messages sent.
    #[inline(always)]
    pub fn sent(&self, messages: u64) {
        self.sent.store(messages, Ordering::Relaxed);
    }

    /// Records that messages began to go to segments, or to go home again.
    ///
    /// `sent` messages were sent before, and `segments` segments are used by now.
    pub(crate) fn moved(&self, sent: u64, is_away: bool, segments: u64) {
        let away = self.away.load(Ordering::Relaxed);
        if is_away && away == 0 {
            add(&self.diversions, 1);
            self.away.store(sent.wrapping_add(1), Ordering::Relaxed);
        } else if !is_away && away != 0 {
            add(&self.came_home, sent.wrapping_sub(away - 1));
            self.away.store(0, Ordering::Relaxed);
        }
        self.segments.store(segments, Ordering::Relaxed);
    }

    /// Records how many of the other member's messages were taken.
    ///
    /// `left` is the number of its segments that this member has left.
    pub(crate) fn took(&self, taken: u64, left: u64) {
        self.taken.store(taken, Ordering::Relaxed);
        self.left.store(left, Ordering::Relaxed);
    }
}

/// A member's own account.
pub struct MemberStats {
    file: MemoryFile,
    region: Arc<Region>,
    head: RegionView<MemberStatsHeader>,
}

impl fmt::Debug for MemberStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MemberStats").field(&self.file.len()).finish()
    }
}

/// Bytes of the account of a member of a group of `size`.
fn bytes(size: usize) -> usize {
    PAIRS_AT + (size * size_of::<PairStats>()).next_multiple_of(4096)
}

impl MemberStats {
    /// Opens the account of a member that waits for a group to form.
    ///
    /// The group has the name `name` and `size` members, and the member may buffer `share` bytes.
    ///
    /// # Errors
    /// No descriptor or no memory is left.
    ///
    /// # Panics
    /// The group has more members than [`MOST`].
    pub fn open(name: &str, size: usize, share: u64) -> io::Result<Self> {
        assert!(size <= MOST, "a group of {size} members, more than {MOST}");
        let (file, map) = MemoryFile::create_for_one_writer(NAME, bytes(size))?;
        let unable = || io::Error::other("the memory of an account cannot be viewed");
        let region = Region::new(map).ok_or_else(unable)?;
        let head = region.view::<MemberStatsHeader>(0).ok_or_else(unable)?;
        text::write(&head.name, name);
        head.pid.store(std::process::id().into(), Ordering::Relaxed);
        head.size.store(size as u64, Ordering::Relaxed);
        head.share.store(share, Ordering::Relaxed);
        head.magic.store(MAGIC, Ordering::Release);
        Ok(Self { file, region, head })
    }

    /// Records that the group formed at the time `at` of `upcall_os::clock`.
    ///
    /// All its members know the group by the number `group`; this member has the rank `rank`.
    pub fn formed(&self, rank: usize, group: u64, at: u64) {
        self.head.rank.store(rank as u64, Ordering::Relaxed);
        self.head.group.store(group, Ordering::Relaxed);
        self.head.formed.store(at.max(1), Ordering::Release);
    }

    /// The line of the pair with another member.
    ///
    /// # Panics
    /// No member has this rank.
    pub fn pair(&self, rank: usize) -> RegionView<PairStats> {
        self.region.view(PAIRS_AT + rank * size_of::<PairStats>()).expect("a rank of the group")
    }

    /// Counts a refused connection, queue or message. Any thread may call it.
    pub fn refuses(&self) {
        self.head.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the member is stopped until member `rank` takes messages.
    ///
    /// `at` is the time of the stop. The member has buffered all that its share, or with
    /// `memory_is_low` the remaining memory, permits.
    pub fn stops(&self, rank: usize, at: u64, memory_is_low: bool) {
        self.head.memory_is_low.store(memory_is_low.into(), Ordering::Relaxed);
        if self.head.stopped.load(Ordering::Relaxed) == 0 {
            add(&self.head.stops, 1);
            self.head.stopped_for.store(rank as u64, Ordering::Relaxed);
            self.head.stopped.store(at.max(1), Ordering::Release);
        }
    }

    /// Records that the member is no longer stopped.
    pub fn goes_on(&self) {
        self.head.stopped.store(0, Ordering::Relaxed);
    }
}

/// What a member reports of the pair that it forms with another member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairReading {
    /// Messages that it has sent to the other member.
    pub sent: u64,
    /// Those of them that went through the buffer.
    pub buffered: u64,
    /// How often messages went from the direct path to the buffer.
    pub diversions: u64,
    /// `true` if messages go to the buffer now.
    pub is_diverted: bool,
    /// Segments used for buffering so far.
    pub segments: u64,
    /// Messages of the other member that it has taken.
    pub taken: u64,
    /// Segments of the other member that it has left.
    pub left: u64,
}

/// A stop of a member that has buffered all it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberStop {
    /// Time of the stop, of `upcall_os::clock`.
    pub since: u64,
    /// Rank of the member that does not take its messages.
    pub rank: u64,
    /// `true` if the machine or a control group has little memory left; `false` if the share is
    /// used up.
    pub memory_is_low: bool,
}

/// What a member has done, as it reports itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatsReading {
    /// Name of the group.
    pub name: String,
    /// Process of the member, as it reports itself.
    pub pid: u64,
    /// Rank of the member, and the number that all members know the group by; `None` while it waits
    /// for the others.
    pub place: Option<(u64, u64)>,
    /// Time at which the group formed, of `upcall_os::clock`; 0 until then.
    pub formed: u64,
    /// Bytes that the member may buffer.
    pub share: u64,
    /// Number of connections, queues and messages that it has refused.
    pub refused: u64,
    /// How often it was stopped at its limit.
    pub stops: u64,
    /// The stop that lasts at present, if any.
    pub stopped: Option<MemberStop>,
    /// Its pairs with the members, by rank.
    pub pairs: Vec<PairReading>,
}

/// Another member's account, mapped for reading.
#[derive(Debug)]
pub struct PeerMemberStats {
    seen: ReadOnlyRegion,
    size: usize,
}

/// Why a descriptor is not that of an account.
#[derive(Debug)]
pub enum NoMemberStats {
    /// It is not a file that only its owner can write.
    File(AdoptError),
    /// It cannot be mapped.
    Map(io::Error),
    /// It begins with another word: it is of another version of Upcall, or something else.
    Magic(u64),
    /// It reports this number of members: none, or more than [`MOST`].
    Size(u64),
}

impl fmt::Display for NoMemberStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => write!(f, "{error}"),
            Self::Map(error) => write!(f, "it cannot be mapped: {error}"),
            Self::Magic(found) => {
                write!(
                    f,
                    "an account begins with {MAGIC:#x}, found {found:#x}: \
                     use the same version on both sides"
                )
            }
            Self::Size(found) => write!(f, "an account of {found} members, not of 1 to {MOST}"),
        }
    }
}

impl std::error::Error for NoMemberStats {}

impl PeerMemberStats {
    /// Maps the account that another member writes.
    ///
    /// # Errors
    /// See [`NoMemberStats`].
    pub fn join(fd: OwnedFd) -> Result<Self, NoMemberStats> {
        let head = Self::map(fd.try_clone().map_err(NoMemberStats::Map)?, 1)?;
        match head.word(offset_of!(MemberStatsHeader, magic)) {
            MAGIC => {}
            found => return Err(NoMemberStats::Magic(found)),
        }
        let size = head.word(offset_of!(MemberStatsHeader, size));
        if !(1..=MOST as u64).contains(&size) {
            return Err(NoMemberStats::Size(size));
        }
        let size = size as usize;
        Ok(Self { seen: Self::map(fd, size)?, size })
    }

    fn map(fd: OwnedFd, size: usize) -> Result<ReadOnlyRegion, NoMemberStats> {
        let file = MemoryFile::adopt_read_only(fd, bytes(size)).map_err(NoMemberStats::File)?;
        Mapping::read_only(&file).map(ReadOnlyRegion::new).map_err(NoMemberStats::Map)
    }

    /// Reads the account as it is now. Never blocks, and needs nothing of the member.
    pub fn read(&self) -> MemberStatsReading {
        let word = |at| self.seen.word(at);
        let name: [u64; NAME_WORDS] =
            std::array::from_fn(|at| word(offset_of!(MemberStatsHeader, name) + at * 8));
        // Read first: if this is set, the words written before it are there.
        let formed = word(offset_of!(MemberStatsHeader, formed));
        let since = word(offset_of!(MemberStatsHeader, stopped));
        MemberStatsReading {
            name: text::read(name),
            pid: word(offset_of!(MemberStatsHeader, pid)),
            place: (formed != 0).then(|| {
                (
                    word(offset_of!(MemberStatsHeader, rank)),
                    word(offset_of!(MemberStatsHeader, group)),
                )
            }),
            formed,
            share: word(offset_of!(MemberStatsHeader, share)),
            refused: word(offset_of!(MemberStatsHeader, refused)),
            stops: word(offset_of!(MemberStatsHeader, stops)),
            stopped: (since != 0).then(|| MemberStop {
                since,
                rank: word(offset_of!(MemberStatsHeader, stopped_for)),
                memory_is_low: word(offset_of!(MemberStatsHeader, memory_is_low)) != 0,
            }),
            pairs: (0..self.size).map(|rank| self.pair(rank)).collect(),
        }
    }

    fn pair(&self, rank: usize) -> PairReading {
        let word = |at| self.seen.word(PAIRS_AT + rank * size_of::<PairStats>() + at);
        let (away, came_home) =
            (word(offset_of!(PairStats, away)), word(offset_of!(PairStats, came_home)));
        let sent = word(offset_of!(PairStats, sent));
        let still = if away == 0 { 0 } else { sent.saturating_sub(away - 1) };
        PairReading {
            sent,
            buffered: came_home.saturating_add(still),
            diversions: word(offset_of!(PairStats, diversions)),
            is_diverted: away != 0,
            segments: word(offset_of!(PairStats, segments)),
            taken: word(offset_of!(PairStats, taken)),
            left: word(offset_of!(PairStats, left)),
        }
    }
}

#[cfg(all(test, not(miri), not(loom)))]
mod tests {
    use super::*;
    use crate::direct::{Incoming, Outgoing, SendRefusal};
    use crate::mailbag::Mailbag;
    use std::os::fd::AsFd;

    fn seen(account: &MemberStats) -> PeerMemberStats {
        PeerMemberStats::join(account.file.as_fd().try_clone_to_owned().unwrap()).unwrap()
    }

    #[test]
    fn who_waits_for_a_group_is_seen_and_then_who_it_is() {
        let account = MemberStats::open("night.1", 3, 5 << 20).unwrap();
        let peer = seen(&account);
        let read = peer.read();
        assert_eq!(
            (read.name.as_str(), read.pid, read.place),
            ("night.1", std::process::id().into(), None)
        );
        assert_eq!((read.share, read.pairs.len(), read.stopped), (5 << 20, 3, None));
        account.formed(2, 77, 5);
        account.refuses();
        (0..3).for_each(|_| account.stops(1, 9, false));
        let read = peer.read();
        assert_eq!((read.place, read.formed, read.refused), (Some((2, 77)), 5, 1));
        assert_eq!(
            (read.stops, read.stopped),
            (1, Some(MemberStop { since: 9, rank: 1, memory_is_low: false }))
        );
        account.goes_on();
        account.stops(0, 0, true);
        assert_eq!(
            (peer.read().stops, peer.read().stopped),
            (2, Some(MemberStop { since: 1, rank: 0, memory_is_low: true }))
        );
    }

    #[test]
    fn both_sides_of_a_pair_together_tell_what_lies_between_them() {
        let (from, to) =
            (MemberStats::open("g", 2, 0).unwrap(), MemberStats::open("g", 2, 0).unwrap());
        let (mut ours, pair) = (Mailbag::create().unwrap(), from.pair(1));
        let mut theirs = Mailbag::join(ours.as_fd().try_clone_to_owned().unwrap()).unwrap();
        ours.count_in(pair.clone());
        theirs.count_in(to.pair(0));
        let (mut outgoing, mut incoming) = (Outgoing::new(ours), Incoming::new(theirs));
        let mut send = |all: u64| {
            for _ in 0..all {
                while let Err(refused) = outgoing.try_send(0, &[0; 1000]) {
                    assert_eq!(refused, SendRefusal::Full);
                    outgoing.divert().unwrap();
                }
                pair.sent(outgoing.sent());
            }
            outgoing.buffered()
        };
        let (sender, receiver) = (seen(&from), seen(&to));
        let read = || (sender.read().pairs[1], receiver.read().pairs[0]);
        let take = |incoming: &mut Incoming<Mailbag>, all: u64| {
            (0..all).for_each(|_| incoming.peek().unwrap().unwrap().dispose());
        };
        // Four fit at home.
        assert_eq!(send(4), 0);
        assert_eq!((read().0.sent, read().0.buffered, read().1.taken), (4, 0, 0));
        let segments = send(400);
        let (theirs, ours) = read();
        assert_eq!(
            (theirs.sent, theirs.buffered, theirs.diversions, theirs.is_diverted),
            (404, 400, 1, true)
        );
        assert!(
            segments > 2 && theirs.segments - ours.left == segments,
            "{theirs:?} {ours:?} {segments}"
        );
        take(&mut incoming, 200);
        incoming.tell();
        let (theirs, ours) = read();
        assert!(
            ours.taken == 200 && theirs.segments > ours.left && ours.left > 0,
            "{theirs:?} {ours:?}"
        );
        take(&mut incoming, 204);
        let (theirs, ours) = read();
        // The receiver leaves the last segment when the sender goes home.
        assert_eq!((ours.taken, theirs.segments - ours.left), (404, 1));
        assert_eq!(send(1), 0);
        take(&mut incoming, 1);
        incoming.tell();
        let (theirs, ours) = read();
        assert_eq!(
            (theirs.sent, theirs.buffered, theirs.is_diverted, ours.taken),
            (405, 400, false, 405)
        );
        assert_eq!(theirs.segments, ours.left);
    }

    #[test]
    fn only_what_an_account_can_be_is_read() {
        let account = MemberStats::open("g", 2, 0).unwrap();
        let fd = || account.file.as_fd().try_clone_to_owned().unwrap();
        for (size, accepted) in
            [(1, true), (2, true), (64, true), (65, false), (0, false), (u64::MAX, false)]
        {
            account.head.size.store(size, Ordering::Relaxed);
            assert_eq!(PeerMemberStats::join(fd()).is_ok(), accepted, "{size}");
        }
        account.head.magic.store(7, Ordering::Relaxed);
        assert!(matches!(PeerMemberStats::join(fd()), Err(NoMemberStats::Magic(7))));
        let other = MemoryFile::create("t", 1 << 20).unwrap();
        let fd = other.as_fd().try_clone_to_owned().unwrap();
        assert!(matches!(
            PeerMemberStats::join(fd),
            Err(NoMemberStats::File(AdoptError::Seals { .. }))
        ));
    }

    /// A hostile member may have written any of these words.
    #[test]
    fn nonsense_is_read_as_some_numbers() {
        let account = MemberStats::open("g", 1, 0).unwrap();
        let pair = account.pair(0);
        let peer = seen(&account);
        for word in [1, 2, u64::MAX, 1 << 63] {
            for field in [
                &pair.sent,
                &pair.came_home,
                &pair.away,
                &pair.segments,
                &pair.left,
                &account.head.formed,
            ] {
                field.store(word, Ordering::Relaxed);
                peer.read();
            }
            account.head.name.iter().for_each(|letters| letters.store(word, Ordering::Relaxed));
            assert!(peer.read().name.len() <= 3 * 8 * NAME_WORDS);
        }
    }
}
