//! Tallies as a peer reads them: any content is taken as numbers.

use super::{
    Arrival, BindingSlot, CallStatsHeader, FAR, HOLDINGS, Holdings, KINDS, MAGIC, OUTCOMES, POWERS,
    PROCEDURES, SLOTS, WAYS, WRITERS, bytes, place,
};
use crate::text;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use upcall_os::atomic::{AtomicU64, Ordering, fence};
use upcall_os::memory::{AdoptError, Mapping, MemoryFile};

/// The statistics of a binding, as read at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The slot and its generation: the same for the same binding, while it lasts.
    pub id: (u16, u64),
    /// The name that is bound.
    pub name: String,
    /// The interface that is bound.
    pub interface: String,
    /// The client's process; 0 if it is on another machine.
    pub client: u32,
    /// The address of a client on another machine, as the server sees it. For a tunnel it is the
    /// tunnel's end on the server's machine.
    pub address: Option<SocketAddr>,
    /// Time at which it was bound, of `upcall_os::clock`.
    pub since: u64,
    /// Calls by how they ended, in the order of [`CallOutcome`](super::CallOutcome).
    pub outcomes: [u64; OUTCOMES],
    /// The same calls by how they reached the server, in the order of [`Arrival`].
    pub came: [u64; WAYS],
    /// Bytes of arguments and of results.
    pub bytes: [u64; 2],
    /// Calls by the bytes of their arguments and results together: fewer than two to the power of
    /// the index, and at least half of that.
    pub sizes: [u64; POWERS],
    /// Sampled calls by their time in the server, in nanoseconds, likewise.
    pub times: [u64; POWERS],
    /// Calls by procedure, in the order of the interface.
    pub procedures: Vec<u64>,
}

impl Reading {
    /// The difference from an earlier reading of the same binding.
    #[must_use]
    pub fn since(mut self, before: &Self) -> Self {
        let counts = self
            .outcomes
            .iter_mut()
            .chain(&mut self.came)
            .chain(&mut self.bytes)
            .chain(&mut self.sizes)
            .chain(&mut self.times)
            .chain(&mut self.procedures);
        let earlier = before.outcomes.iter().chain(&before.came);
        let earlier = earlier
            .chain(&before.bytes)
            .chain(&before.sizes)
            .chain(&before.times)
            .chain(&before.procedures);
        counts.zip(earlier).for_each(|(now, before)| *now = now.saturating_sub(*before));
        self
    }

    /// Number of all calls.
    pub fn calls(&self) -> u64 {
        self.outcomes.iter().fold(0, |sum, &calls| sum.wrapping_add(calls))
    }

    /// Number of calls from other machines.
    pub fn remote(&self) -> u64 {
        self.came[Arrival::Network as usize]
    }
}

/// Another domain's tallies, mapped for reading.
pub struct PeerTallies {
    start: NonNull<u8>,
    writers: usize,
    _map: Mapping,
}

// SAFETY: atomics in a mapping that lives as long as the value.
unsafe impl Send for PeerTallies {}

/// Why a descriptor that a peer sent holds no tallies.
#[derive(Debug)]
pub enum NoTallies {
    /// It is not a file that only its owner can write.
    File(AdoptError),
    /// It cannot be mapped.
    Map(io::Error),
    /// It begins with another word: it is of another version of Upcall, or something else.
    Magic(u64),
    /// It reports this number of processors that count: none, or more than [`WRITERS`].
    Writers(u64),
}

impl fmt::Display for NoTallies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => write!(f, "{error}"),
            Self::Map(error) => write!(f, "it cannot be mapped: {error}"),
            Self::Magic(found) => {
                write!(
                    f,
                    "tallies begin with {MAGIC:#x}, found {found:#x}: \
                     use the same version on both sides"
                )
            }
            Self::Writers(found) => {
                write!(f, "tallies of {found} processors, not of 1 to {WRITERS}")
            }
        }
    }
}

impl std::error::Error for NoTallies {}

impl PeerTallies {
    /// Maps the tallies that a peer sent, for reading.
    ///
    /// # Errors
    /// See [`NoTallies`].
    pub fn join(fd: OwnedFd) -> Result<Self, NoTallies> {
        let first = Self::map(fd.try_clone().map_err(NoTallies::Map)?, 1)?;
        match first.head().magic.load(Ordering::Acquire) {
            MAGIC => {}
            found => return Err(NoTallies::Magic(found)),
        }
        match first.head().writers.load(Ordering::Relaxed) {
            1 => Ok(first),
            writers if (2..=WRITERS as u64).contains(&writers) => Self::map(fd, writers as usize),
            found => Err(NoTallies::Writers(found)),
        }
    }

    /// Maps the file as tallies of `writers` processors, for which it must be long enough.
    fn map(fd: OwnedFd, writers: usize) -> Result<Self, NoTallies> {
        let file = MemoryFile::adopt_read_only(fd, bytes(writers)).map_err(NoTallies::File)?;
        let map = Mapping::read_only(&file).map_err(NoTallies::Map)?;
        Ok(Self { start: map.start(), writers, _map: map })
    }

    fn head(&self) -> &CallStatsHeader {
        let head = self.start.cast::<CallStatsHeader>();
        // SAFETY: the mapping is page-aligned, longer than the head, and lives as long as `self`;
        // `CallStatsHeader` is atomics only, which another process may change.
        unsafe { head.as_ref() }
    }

    /// What all clients of the domain hold, by kind.
    ///
    /// For each kind: the number held, the maximum, and how often more was refused.
    pub fn holdings(&self) -> [[u64; 3]; KINDS] {
        // SAFETY: the head's page, which is mapped as a whole, has room for the holdings there.
        let holdings = unsafe { self.start.add(HOLDINGS) }.cast::<Holdings>();
        // SAFETY: as for `head`; `HOLDINGS` is a multiple of their alignment.
        unsafe { holdings.as_ref() }.read()
    }

    fn slot(&self, number: u16, writer: usize) -> &BindingSlot {
        let at = place(number.min(SLOTS as u16 - 1), writer.min(self.writers - 1), self.writers);
        // SAFETY: with a number below `SLOTS` and a writer below `writers` the slot lies within
        // `bytes(writers)`, the mapping's length.
        let slot = unsafe { self.start.add(at) }.cast::<BindingSlot>();
        // SAFETY: as for `head`; `at` is a multiple of the slot's alignment.
        unsafe { slot.as_ref() }
    }

    /// Number of bindings that found no slot so far.
    pub fn uncounted(&self) -> u64 {
        self.head().uncounted.load(Ordering::Relaxed)
    }

    /// The calls that the domain has made to other machines by the bindings that it has now, and
    /// their bytes of arguments and of results.
    pub fn made(&self) -> [u64; 3] {
        self.head().made.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    /// Reads the statistics of all present bindings.
    ///
    /// Never blocks, and needs nothing of the domain.
    pub fn read(&self) -> Vec<Reading> {
        (0..SLOTS as u16).filter_map(|number| self.read_slot(number)).collect()
    }

    fn read_slot(&self, number: u16) -> Option<Reading> {
        read_slot(number, self.writers, &|writer| self.slot(number, writer))
    }
}

/// Reads a slot, of which `part` gives the part of each of the processors that count.
pub(super) fn read_slot<'a>(
    number: u16,
    writers: usize,
    part: &dyn Fn(usize) -> &'a BindingSlot,
) -> Option<Reading> {
    let slot = part(0);
    // A slot that changes owners at each try is left out.
    for _ in 0..4 {
        let generation = slot.generation.load(Ordering::Acquire);
        if generation.is_multiple_of(2) {
            return None;
        }
        let sum = |counts: &[u64]| counts.iter().fold(0_u64, |sum, &calls| sum.wrapping_add(calls));
        // The sum over all processors that count.
        let all = |count: &dyn Fn(&BindingSlot) -> u64| {
            (0..writers).fold(0_u64, |sum, writer| sum.wrapping_add(count(part(writer))))
        };
        let one = |count: &AtomicU64| count.load(Ordering::Relaxed);
        // Read before the procedures, to which a call is added first, so that the remainder is
        // not too small for long.
        let mut came = [0; WAYS];
        came[1..]
            .iter_mut()
            .enumerate()
            .for_each(|(at, came)| *came = all(&|slot| one(&slot.came[at])));
        let mut outcomes = std::array::from_fn(|at| all(&|slot| one(&slot.outcomes[at])));
        let procedures: Vec<_> =
            (0..PROCEDURES).map(|at| all(&|slot| one(&slot.procedures[at]))).collect();
        let calls = sum(&procedures);
        came[0] = calls.saturating_sub(sum(&came[1..]));
        outcomes[0] = calls.saturating_sub(sum(&outcomes[1..]));
        let read = Reading {
            id: (number, generation),
            name: read_text(&slot.name),
            interface: read_text(&slot.interface),
            client: slot.client.load(Ordering::Relaxed) as u32,
            address: read_address(&slot.address),
            since: slot.since.load(Ordering::Relaxed),
            outcomes,
            came,
            bytes: [all(&|slot| one(&slot.bytes_in)), all(&|slot| one(&slot.bytes_out))],
            sizes: std::array::from_fn(|at| all(&|slot| one(&slot.sizes[at]))),
            times: std::array::from_fn(|at| all(&|slot| one(&slot.times[at]))),
            procedures,
        };
        fence(Ordering::Acquire);
        if slot.generation.load(Ordering::Relaxed) == generation {
            return Some(read);
        }
    }
    None
}

fn read_text(words: &[AtomicU64]) -> String {
    text::read(words.iter().map(|word| word.load(Ordering::Relaxed)))
}

/// Any content reads as an address, or as none.
fn read_address(words: &[AtomicU64; 3]) -> Option<SocketAddr> {
    let [first, high, low] = words.each_ref().map(|word| word.load(Ordering::Relaxed));
    let ip = Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
    (first & FAR != 0).then(|| SocketAddr::new(IpAddr::V6(ip).to_canonical(), first as u16))
}
