//! The memory of a direct queue: one file, most of which is only address space.
//!
//! Source: UDM, section 3.3, virtual buffering (D11 here): the buffer lies in virtual memory, grows
//! page by page, and only what is used takes memory. The sender makes the file. Each side maps
//! home, and those segments that it writes or reads. No word has to pass between the sides for
//! another segment, so a sender can go on while its receiver is stopped.
//!
//! ```text
//!        0  header: magic, words of home
//!       64  what the receiver has disposed of (written by it alone)
//!      128  the sender's barriers and reductions (written by it alone)
//!     4096  home, 32 KiB
//!    1 MiB  two spare segments, 1 MiB each
//!    3 MiB  segment 0, 1 MiB;  segment 1;  …  to the end of the file at 1 TiB; then over again
//! ```
//! Spares stay mapped, and have their pages until the sender gives them back.
//!
//! Both sides may write all of it, and neither can resize it. A receiver that writes where it
//! should read makes its own messages wrong. Neither side can make an access of the other side
//! fault: pages that were given back are there again, as zeros, when they are touched.

use crate::account::PairStats;
use crate::direct::{HandedPayloads, QueueMemory, ReceiverProgress, SegmentLocation};
use crate::region::{Cells, Region, RegionView};
use crate::steps::Steps;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use upcall_os::atomic::{AtomicU64, Ordering};
use upcall_os::memory::{AdoptError, Mapping, MemoryFile};

/// "MAILBAG" and the version of this layout.
const MAGIC: u64 = u64::from_le_bytes(*b"MAILBAG\x04");

const TOLD_AT: usize = 64;
const STEPS_AT: usize = 128;
const HOME_AT: usize = 4096;
const HOME_WORDS: usize = 4096;
const FIRST_BYTES: usize = HOME_AT + HOME_WORDS * 8;
const SPARES_AT: usize = SEGMENT_BYTES;
const SPARES: usize = 2;
const SEGMENTS_AT: usize = SPARES_AT + SPARES * SEGMENT_BYTES;

/// Number of bytes of a segment.
pub const SEGMENT_BYTES: usize = 1 << 20;

/// Number of bytes of the file.
const BYTES: usize = 1 << 40;

#[repr(C, align(64))]
#[derive(Debug)]
struct MailbagHeader {
    magic: AtomicU64,
    home: AtomicU64,
}

// SAFETY: atomics and padding only, `repr(C)`, no drop.
unsafe impl Cells for MailbagHeader {}

const _: () = assert!(size_of::<MailbagHeader>() == TOLD_AT && FIRST_BYTES <= SEGMENTS_AT);
const _: () = assert!(
    TOLD_AT + size_of::<ReceiverProgress>() == STEPS_AT && STEPS_AT + size_of::<Steps>() <= HOME_AT
);

/// The memory of a queue, as one of its ends holds it.
#[derive(Debug)]
pub struct Mailbag {
    file: MemoryFile,
    home: RegionView<[AtomicU64]>,
    told: RegionView<ReceiverProgress>,
    steps: RegionView<Steps>,
    /// The spares that this end has mapped.
    spares: [Option<RegionView<[AtomicU64]>>; SPARES],
    /// The line in which this end counts.
    pair: Option<RegionView<PairStats>>,
    /// The list of payloads that are handed over, if both ends are in this process.
    handed: Option<Arc<HandedPayloads>>,
}

/// Why a descriptor that a peer sent is not the memory of a queue.
#[derive(Debug)]
pub enum NotAMailbag {
    /// It is not a file of the right size, or it can be resized.
    File(AdoptError),
    /// It cannot be mapped.
    Map(io::Error),
    /// It begins with other words: it is of another version of Upcall, or something else.
    Header {
        /// The first word.
        magic: u64,
        /// The words of home.
        home: u64,
    },
}

impl fmt::Display for NotAMailbag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => write!(f, "{error}"),
            Self::Map(error) => write!(f, "it cannot be mapped: {error}"),
            Self::Header { magic, home } => write!(
                f,
                "a queue begins with {MAGIC:#x} and has {HOME_WORDS} words, found {magic:#x} and \
                 {home}: use the same version on both sides"
            ),
        }
    }
}

impl std::error::Error for NotAMailbag {}

impl Mailbag {
    /// Makes the memory of a queue, for its sender.
    ///
    /// # Errors
    /// No descriptor, memory or mapping is left, or files may not be so long (`EFBIG`:
    /// `ulimit -f`).
    pub fn create() -> io::Result<Self> {
        let file = MemoryFile::create("upcall-messages", BYTES)?;
        let (bag, header) = Self::map(file)?;
        header.home.store(HOME_WORDS as u64, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(bag)
    }

    /// Takes the memory that a sender made.
    ///
    /// The header is trusted only if it equals ours.
    ///
    /// # Errors
    /// See [`NotAMailbag`].
    pub fn join(fd: OwnedFd) -> Result<Self, NotAMailbag> {
        let file = MemoryFile::adopt(fd, BYTES).map_err(NotAMailbag::File)?;
        let (bag, header) = Self::map(file).map_err(NotAMailbag::Map)?;
        let (magic, words) =
            (header.magic.load(Ordering::Acquire), header.home.load(Ordering::Relaxed));
        if (magic, words) != (MAGIC, HOME_WORDS as u64) {
            return Err(NotAMailbag::Header { magic, home: words });
        }
        Ok(bag)
    }

    fn map(file: MemoryFile) -> io::Result<(Self, RegionView<MailbagHeader>)> {
        let short = || io::Error::other("the mapping is too short");
        let region = Region::new(Mapping::part(&file, 0, FIRST_BYTES)?).ok_or_else(short)?;
        let home = region.view_slice(HOME_AT, HOME_WORDS).ok_or_else(short)?;
        let told = region.view(TOLD_AT).ok_or_else(short)?;
        let steps = region.view(STEPS_AT).ok_or_else(short)?;
        Ok((
            Self {
                file,
                home,
                told,
                steps,
                spares: [const { None }; SPARES],
                pair: None,
                handed: None,
            },
            region.view(0).ok_or_else(short)?,
        ))
    }

    /// The words in which the sender reports barriers and reductions.
    pub fn steps(&self) -> RegionView<Steps> {
        self.steps.clone()
    }

    /// Gives a receiver the list of payloads that the sender, of the same process, hands over.
    #[must_use]
    pub fn with_handed(self, list: Arc<HandedPayloads>) -> Self {
        Self { handed: Some(list), ..self }
    }

    /// Maps the spares, so that they are at hand for the receiver.
    ///
    /// # Errors
    /// No memory or mapping is left.
    pub fn bring_spares(&mut self) -> io::Result<()> {
        (0..SPARES as u8)
            .try_for_each(|spare| self.segment(SegmentLocation::Spare(spare)).map(drop))
    }

    /// Makes this end count in `pair` from now on.
    pub fn count_in(&mut self, pair: RegionView<PairStats>) {
        self.pair = Some(pair);
    }

    /// Offset and length of a segment, in bytes.
    fn place(place: SegmentLocation) -> (usize, usize) {
        match place {
            SegmentLocation::Spare(spare) => {
                (SPARES_AT + usize::from(spare) * SEGMENT_BYTES, SEGMENT_BYTES)
            }
            SegmentLocation::Row { number, many } => (
                SEGMENTS_AT + (number % Self::SEGMENTS) as usize * SEGMENT_BYTES,
                SEGMENT_BYTES * many as usize,
            ),
        }
    }
}

impl AsFd for Mailbag {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl QueueMemory for Mailbag {
    type Words = RegionView<[AtomicU64]>;
    type Told = RegionView<ReceiverProgress>;
    const SEGMENTS: u64 = ((BYTES - SEGMENTS_AT) / SEGMENT_BYTES) as u64;
    const SPARES: usize = SPARES;

    fn home(&self) -> Self::Words {
        self.home.clone()
    }

    fn told(&self) -> Self::Told {
        self.told.clone()
    }

    fn handed(&self) -> Option<Arc<HandedPayloads>> {
        self.handed.clone()
    }

    fn segment_words(&self) -> u64 {
        (SEGMENT_BYTES / 8) as u64
    }

    fn segment(&mut self, place: SegmentLocation) -> io::Result<Self::Words> {
        if let SegmentLocation::Spare(spare) = place
            && let Some(words) = &self.spares[usize::from(spare)]
        {
            return Ok(words.clone());
        }
        let (at, bytes) = Self::place(place);
        let region = Region::new(Mapping::part(&self.file, at, bytes)?);
        let words = region.and_then(|region| region.view_slice(0, bytes / 8));
        let words = words.ok_or_else(|| io::Error::other("the mapping is too short"))?;
        if let SegmentLocation::Spare(spare) = place {
            self.spares[usize::from(spare)] = Some(words.clone());
        }
        Ok(words)
    }

    fn leave(&mut self, place: SegmentLocation) {
        if let SegmentLocation::Row { .. } = place {
            let (at, bytes) = Self::place(place);
            // If the kernel refuses, the memory is freed with the queue.
            let _ = self.file.give_back(at, bytes);
        }
    }

    fn is_at_hand(&self, place: SegmentLocation) -> bool {
        matches!(place, SegmentLocation::Spare(spare) if self.spares[usize::from(spare)].is_some())
    }

    fn sender_moved(&self, sent: u64, is_away: bool, segments: u64) {
        if let Some(pair) = &self.pair {
            pair.moved(sent, is_away, segments);
        }
    }

    #[inline]
    fn receiver_told(&self, taken: u64, left: u64) {
        if let Some(pair) = &self.pair {
            pair.took(taken, left);
        }
    }

    fn shrink(&mut self, spare: u8) {
        let (at, bytes) = Self::place(SegmentLocation::Spare(spare));
        let _ = self.file.give_back(at, bytes);
    }
}

#[cfg(all(test, not(miri), not(loom)))]
mod tests {
    use super::*;
    use crate::direct::{Incoming, Outgoing, SendRefusal};

    fn ends() -> (Outgoing<Mailbag>, Incoming<Mailbag>, OwnedFd) {
        let ours = Mailbag::create().unwrap();
        let fd = || ours.as_fd().try_clone_to_owned().unwrap();
        let (theirs, kept) = (Mailbag::join(fd()).unwrap(), fd());
        (Outgoing::new(ours), Incoming::new(theirs), kept)
    }

    #[test]
    fn many_mebibytes_wait_and_leave_nothing_behind() {
        let (mut outgoing, mut incoming, fd) = ends();
        let file = MemoryFile::adopt(fd, BYTES).unwrap();
        let payload = [5_u64; 100];
        for number in 0..40_000_u64 {
            while let Err(refused) = outgoing.try_send(number as u16, &payload) {
                assert_eq!(refused, SendRefusal::Full);
                outgoing.divert().unwrap();
            }
        }
        assert!(file.allocated() > 32_000_000 && outgoing.buffered() > 30, "{}", file.allocated());
        for number in 0..40_000_u64 {
            let arrived = incoming.peek().unwrap().unwrap();
            assert_eq!((arrived.handler(), arrived.word(99)), (number as u16, Some(5)));
            arrived.dispose();
        }
        assert!(incoming.peek().unwrap().is_none());
        incoming.tell();
        outgoing.try_send(1, &[]).unwrap();
        assert!(!outgoing.is_diverted() && incoming.peek().unwrap().is_some());
        // Only the spares are left.
        assert!(file.allocated() < 3 << 20, "{}", file.allocated());
        assert!(outgoing.shrink() && file.allocated() < 100_000, "{}", file.allocated());
    }

    #[test]
    fn what_is_at_hand_is_read_without_allocating() {
        let (mut outgoing, mut incoming, _) = ends();
        let mut sent = 0;
        let mut fill = |outgoing: &mut Outgoing<Mailbag>| {
            while outgoing.try_send(sent, &[0; 1000]).is_ok() {
                sent += 1;
            }
            outgoing.divert().unwrap();
        };
        (0..3).for_each(|_| fill(&mut outgoing));
        outgoing.try_send(u16::MAX, &[]).unwrap();
        let mut taken = 0;
        let mut take = |incoming: &mut Incoming<Mailbag>, lightly: bool| {
            let before = taken;
            while let Some(arrived) =
                if lightly { incoming.peek_lightly() } else { incoming.peek() }.unwrap()
            {
                assert!(arrived.handler() == taken || arrived.handler() == u16::MAX);
                taken += 1;
                arrived.dispose();
            }
            taken - before
        };
        // At first no segment is at hand. Then both spares are, but not the segment after them,
        // neither to enter nor to leave.
        assert_eq!(take(&mut incoming, true), 4);
        incoming.memory_mut().bring_spares().unwrap();
        assert_eq!(take(&mut incoming, true), sent - 4);
        assert_eq!((take(&mut incoming, false), take(&mut incoming, true)), (1, 0));
        incoming.tell();
        outgoing.try_send(u16::MAX, &[]).unwrap();
        assert!(!outgoing.is_diverted());
        assert_eq!((take(&mut incoming, true), take(&mut incoming, false)), (0, 1));
    }

    #[test]
    fn what_a_sender_left_can_be_read_without_it() {
        let (mut outgoing, mut incoming, fd) = ends();
        drop(fd);
        (0..3).for_each(|_| outgoing.divert().unwrap());
        outgoing.try_send(7, &[8]).unwrap();
        drop(outgoing);
        assert_eq!(incoming.peek().unwrap().unwrap().word(0), Some(8));
    }

    #[test]
    fn something_else_is_refused() {
        let file = MemoryFile::create("t", BYTES).unwrap();
        let fd = file.as_fd().try_clone_to_owned().unwrap();
        assert!(matches!(Mailbag::join(fd), Err(NotAMailbag::Header { magic: 0, .. })));
        let short = MemoryFile::create("t", 1 << 20).unwrap();
        let fd = short.as_fd().try_clone_to_owned().unwrap();
        assert!(matches!(Mailbag::join(fd), Err(NotAMailbag::File(AdoptError::Short { .. }))));
    }
}
