//! The station page: the states of a domain's processors, for its peers to read.
//!
//! Source: URPC, sections 3.1 and 3.1.2: a domain that decides on a processor reallocation has to
//! know whether the other domain has a processor, and must not ask the kernel each time. There is
//! one line for each virtual processor. The page is sealed so that only its domain can ever write
//! it. A peer that could write it could make others believe that a sleeping processor is awake, and
//! so silence every doorbell.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use upcall_os::atomic::{AtomicU32, AtomicU64, Ordering};
use upcall_os::memory::{AdoptError, Mapping, MemoryFile};

/// Maximum number of virtual processors of a domain.
pub const MOST: u16 = 63;

/// Number of bytes of a station's memory file.
pub const BYTES: usize = 8192;

/// "STATION" and the version of this layout.
const MAGIC: u64 = u64::from_le_bytes(*b"STATION\x04");

/// What a virtual processor does while it is awake; see [`ProcessorState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum Awake {
    /// It runs threads or calls.
    #[default]
    Running = 0,
    /// It has nothing to run, and polls for calls and replies.
    Polling = 1,
    /// It has nothing to run, and has given its processor to a server until a reply is there.
    Gave = 2,
}

/// What a virtual processor does, as its domain publishes it (URPC, section 3.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessorState {
    /// It is awake. The kernel may still not let it run.
    Awake(Awake),
    /// It sleeps or is about to, until a peer rings its doorbell.
    Parked,
}

/// The part of a virtual processor's state that its peers read with every call.
///
/// The virtual processor writes it; all peers read it.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct StationLine {
    /// 0 awake, 1 asleep or about to sleep.
    pub asleep: AtomicU32,
    /// The processor it last ran on.
    pub cpu: AtomicU32,
    /// The number of its kernel thread; 0 if others may not move it.
    pub tid: AtomicU32,
    /// How often it has fallen asleep. It is incremented before `asleep` is set, so that a peer
    /// that finds it asleep knows which sleep that is.
    pub sleeps: AtomicU64,
}

impl StationLine {
    /// The number of the present sleep, which may be about to begin.
    ///
    /// `None` while awake.
    #[inline]
    pub fn sleep(&self) -> Option<u64> {
        (self.asleep.load(Ordering::Acquire) != 0).then(|| self.sleeps.load(Ordering::Relaxed))
    }
}

/// What a virtual processor does while it is awake. It changes with every call, so it is in a line
/// that peers do not read with every call.
#[repr(C, align(64))]
#[derive(Debug)]
struct AwakeState {
    awake: AtomicU32,
    /// Number of probes of its lanes.
    probes: AtomicU32,
}

#[repr(C, align(64))]
struct Page {
    magic: AtomicU64,
    /// Number of processors on which its virtual processors may run.
    places: AtomicU32,
    lines: [StationLine; MOST as usize],
    doing: [AwakeState; MOST as usize + 1],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Page>() == BYTES && size_of::<StationLine>() == 64);

/// A domain's own station.
pub struct Station {
    file: MemoryFile,
    page: NonNull<Page>,
    _map: Mapping,
}

/// A peer's station.
pub struct PeerStation {
    page: NonNull<Page>,
    _map: Mapping,
}

// SAFETY: atomics in a mapping that lives as long as the value.
unsafe impl Send for Station {}
// SAFETY: as above.
unsafe impl Sync for Station {}
// SAFETY: as above.
unsafe impl Send for PeerStation {}
// SAFETY: as above.
unsafe impl Sync for PeerStation {}

impl Station {
    /// Makes a station whose processors are all awake.
    ///
    /// # Errors
    /// No descriptor or no memory is left.
    pub fn new() -> io::Result<Self> {
        let (file, map) = MemoryFile::create_for_one_writer("upcall-station", BYTES)?;
        let station = Self { file, page: map.start().cast(), _map: map };
        station.page().magic.store(MAGIC, Ordering::Release);
        Ok(station)
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping is a `Page` long, page-aligned, zeroed, writable, and lives as long
        // as `self`; `Page` is atomics only.
        unsafe { self.page.as_ref() }
    }

    /// The line of a virtual processor.
    ///
    /// # Panics
    /// `vp` is [`MOST`] or more.
    #[inline]
    pub fn line(&self, vp: usize) -> &StationLine {
        &self.page().lines[vp]
    }

    /// Publishes the number of processors on which this domain may run.
    pub fn say_places(&self, places: u32) {
        self.page().places.store(places, Ordering::Relaxed);
    }

    /// Publishes what a virtual processor does.
    ///
    /// Only that virtual processor may call it.
    ///
    /// # Panics
    /// `vp` is more than [`MOST`].
    #[inline]
    pub fn say(&self, vp: usize, awake: Awake) {
        self.page().doing[vp].awake.store(awake as u32, Ordering::Release);
    }

    /// Number of probes of a virtual processor's lanes. It wraps around.
    ///
    /// # Panics
    /// `vp` is more than [`MOST`].
    #[inline]
    pub fn probes(&self, vp: usize) -> &AtomicU32 {
        &self.page().doing[vp].probes
    }

    /// What a virtual processor of this domain does.
    ///
    /// A nonexistent one counts as running.
    #[inline]
    pub fn state(&self, vp: usize) -> ProcessorState {
        self.page().state(vp)
    }
}

impl Page {
    #[inline]
    fn state(&self, vp: usize) -> ProcessorState {
        match (self.lines.get(vp), self.doing.get(vp)) {
            (Some(line), _) if line.asleep.load(Ordering::Acquire) != 0 => ProcessorState::Parked,
            (Some(_), Some(doing)) => match doing.awake.load(Ordering::Acquire) {
                1 => ProcessorState::Awake(Awake::Polling),
                2 => ProcessorState::Awake(Awake::Gave),
                _ => ProcessorState::Awake(Awake::Running),
            },
            _ => ProcessorState::Awake(Awake::Running),
        }
    }
}

impl AsFd for Station {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl fmt::Debug for Station {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Station({:p})", self.page)
    }
}

/// Why a descriptor that a peer sent is not a station.
#[derive(Debug)]
pub enum NotAStation {
    /// It is not a file that only its owner can write.
    File(AdoptError),
    /// It cannot be mapped.
    Map(io::Error),
    /// It begins with another word: it is of another version of Upcall, or something else.
    Magic(u64),
}

impl fmt::Display for NotAStation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => write!(f, "{error}"),
            Self::Map(error) => write!(f, "it cannot be mapped: {error}"),
            Self::Magic(found) => {
                write!(
                    f,
                    "a station begins with {MAGIC:#x}, found {found:#x}: \
                     use the same version on both sides"
                )
            }
        }
    }
}

impl std::error::Error for NotAStation {}

impl PeerStation {
    /// Maps a station that a peer sent, for reading.
    ///
    /// # Errors
    /// See [`NotAStation`].
    pub fn join(fd: OwnedFd) -> Result<Self, NotAStation> {
        let file = MemoryFile::adopt_read_only(fd, BYTES).map_err(NotAStation::File)?;
        let map = Mapping::read_only(&file).map_err(NotAStation::Map)?;
        let station = Self { page: map.start().cast(), _map: map };
        match station.page().magic.load(Ordering::Acquire) {
            MAGIC => Ok(station),
            found => Err(NotAStation::Magic(found)),
        }
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping is a `Page` long, page-aligned and lives as long as `self`; `Page` is
        // atomics only, and this type only ever loads from them (a store would fault).
        unsafe { self.page.as_ref() }
    }

    /// Returns `true` if the processor sleeps or is about to.
    ///
    /// A processor that does not exist counts as awake, so that no caller rings for it.
    #[inline]
    pub fn asleep(&self, vp: u16) -> bool {
        self.page()
            .lines
            .get(usize::from(vp))
            .is_some_and(|line| line.asleep.load(Ordering::Acquire) != 0)
    }

    /// The number of the processor's present sleep, which may be about to begin.
    ///
    /// `None` while awake.
    #[inline]
    pub fn sleep(&self, vp: u16) -> Option<u64> {
        self.page().lines.get(usize::from(vp))?.sleep()
    }

    /// What the processor does, as the peer publishes it.
    ///
    /// A value that makes no sense counts as `Running`, of which a reader expects nothing.
    #[inline]
    pub fn state(&self, vp: u16) -> ProcessorState {
        self.page().state(usize::from(vp))
    }

    /// Number of probes of the processor's lanes, as the peer publishes it.
    ///
    /// 0 for a processor that does not exist.
    #[inline]
    pub fn probes(&self, vp: u16) -> u32 {
        let doing = self.page().doing.get(usize::from(vp));
        doing.map_or(0, |doing| doing.probes.load(Ordering::Relaxed))
    }

    /// The CPU that the processor last ran on, as the peer publishes it.
    #[inline]
    pub fn cpu(&self, vp: u16) -> Option<u32> {
        Some(self.page().lines.get(usize::from(vp))?.cpu.load(Ordering::Relaxed))
    }

    /// Number of CPUs on which the peer may run, as the peer publishes it.
    ///
    /// 0 before any processor has begun.
    pub fn places(&self) -> u32 {
        self.page().places.load(Ordering::Relaxed)
    }

    /// The kernel thread of the processor, as the peer publishes it.
    ///
    /// `None` if it may not be moved.
    ///
    /// Check it against the peer's process before use.
    pub fn tid(&self, vp: u16) -> Option<u32> {
        Some(self.page().lines.get(usize::from(vp))?.tid.load(Ordering::Relaxed))
            .filter(|&tid| tid != 0)
    }
}

impl fmt::Debug for PeerStation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerStation({:p})", self.page)
    }
}

#[cfg(all(test, not(miri), not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_peer_reads_what_the_owner_writes() {
        let station = Station::new().unwrap();
        let peer = PeerStation::join(station.as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert!(
            !peer.asleep(0)
                && !peer.asleep(u16::MAX)
                && peer.tid(0).is_none()
                && peer.cpu(MOST).is_none()
        );
        assert_eq!((peer.sleep(62), peer.sleep(u16::MAX)), (None, None));
        station.line(62).sleeps.store(7, Ordering::Relaxed);
        station.line(62).asleep.store(1, Ordering::Release);
        station.line(62).tid.store(9, Ordering::Relaxed);
        assert!(peer.asleep(62) && peer.sleep(62) == Some(7) && peer.tid(62) == Some(9));
        station.say(1, Awake::Polling);
        station.say(62, Awake::Gave);
        station.probes(62).store(3, Ordering::Relaxed);
        assert_eq!([0, 62, u16::MAX].map(|vp| peer.probes(vp)), [0, 3, 0]);
        let states = [0, 1, 62, 63, u16::MAX].map(|vp| peer.state(vp));
        let running = ProcessorState::Awake(Awake::Running);
        assert_eq!(
            states,
            [
                running,
                ProcessorState::Awake(Awake::Polling),
                ProcessorState::Parked,
                running,
                running
            ]
        );
        station.line(62).asleep.store(0, Ordering::Release);
        assert_eq!(
            (peer.state(62), station.state(1)),
            (ProcessorState::Awake(Awake::Gave), ProcessorState::Awake(Awake::Polling))
        );
    }

    #[test]
    fn memory_that_others_can_write_is_no_station() {
        let file = MemoryFile::create("t", BYTES).unwrap();
        let fd = file.as_fd().try_clone_to_owned().unwrap();
        assert!(matches!(PeerStation::join(fd), Err(NotAStation::File(AdoptError::Seals { .. }))));
    }
}
