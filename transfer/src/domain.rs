//! This process as a domain: its station, and the lanes that its virtual processors poll.

use crate::caller::VpSeat;
use crate::server::ServerLane;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use upcall_os::atomic::{AtomicU64, Ordering};
use upcall_os::bell::Bell;
use upcall_os::poll::{PollSet, Report};
use upcall_shm::station::Station;

/// The most virtual processors of a domain that makes or serves calls: each has lanes of its own in every channel.
pub const MOST_PROCESSORS: usize = 32;

/// The one domain of this process.
#[derive(Debug)]
pub struct Domain {
    station: Station,
    beds: [OnceLock<Bed>; MOST_PROCESSORS],
    lanes: Mutex<Vec<Arc<ServerLane>>>,
    seats: Mutex<Vec<Arc<VpSeat>>>,
    /// Goes up whenever one of the two lists changes.
    generation: AtomicU64,
    /// How many virtual processors have started to poll; channels are spread over them.
    started: AtomicU64,
    homes: AtomicU64,
}

/// Where a virtual processor sleeps: everything that may wake it rings a bell in this set.
#[derive(Debug)]
pub(crate) struct Bed {
    pub(crate) set: PollSet,
    pub(crate) own_bell: Bell,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Domain {
    /// This process's domain, made at the first use.
    ///
    /// # Errors
    /// No descriptor or no memory left.
    pub fn current() -> io::Result<&'static Self> {
        static DOMAIN: OnceLock<Domain> = OnceLock::new();
        if let Some(domain) = DOMAIN.get() {
            return Ok(domain);
        }
        let domain = Self {
            station: Station::new()?,
            beds: [const { OnceLock::new() }; MOST_PROCESSORS],
            lanes: Mutex::default(),
            seats: Mutex::default(),
            generation: AtomicU64::new(1),
            started: AtomicU64::new(0),
            homes: AtomicU64::new(0),
        };
        Ok(DOMAIN.get_or_init(|| domain))
    }

    /// The page that tells peers what our virtual processors do.
    pub fn station(&self) -> &Station {
        &self.station
    }

    pub(crate) fn bed(&self, vp: usize) -> io::Result<&Bed> {
        let cell = self.beds.get(vp).ok_or_else(|| {
            io::Error::other(format!("virtual processor {vp}: a domain that calls or serves has at most {MOST_PROCESSORS}"))
        })?;
        if let Some(bed) = cell.get() {
            return Ok(bed);
        }
        let bed = Bed { set: PollSet::new()?, own_bell: Bell::new()? };
        bed.set.add(&bed.own_bell, 0, Report::EachRing)?;
        Ok(cell.get_or_init(|| bed))
    }

    /// Wakes a virtual processor, or keeps it from falling asleep.
    pub(crate) fn rouse(&self, vp: usize) {
        if let Some(bed) = self.beds.get(vp).and_then(OnceLock::get) {
            bed.own_bell.ring();
        }
    }

    /// Wakes all of them.
    pub(crate) fn rouse_all(&self) {
        for bed in self.beds.iter().filter_map(OnceLock::get) {
            bed.own_bell.ring();
        }
    }

    /// The virtual processor that the next channel is to be served from first.
    pub fn next_home(&self) -> u16 {
        let started = self.started.load(Ordering::Relaxed).clamp(1, MOST_PROCESSORS as u64);
        (self.homes.fetch_add(1, Ordering::Relaxed) % started) as u16
    }

    pub(crate) fn processor_started(&self, vp: usize) {
        self.started.fetch_max(vp as u64 + 1, Ordering::Relaxed);
    }

    pub(crate) fn add_lane(&self, lane: Arc<ServerLane>) {
        locked(&self.lanes).push(lane);
        self.changed();
    }

    pub(crate) fn remove_lanes(&self, gone: impl Fn(&ServerLane) -> bool) {
        locked(&self.lanes).retain(|lane| !gone(lane));
        self.changed();
    }

    pub(crate) fn add_seat(&self, seat: Arc<VpSeat>) {
        locked(&self.seats).push(seat);
        self.changed();
    }

    pub(crate) fn remove_seats(&self, gone: impl Fn(&VpSeat) -> bool) {
        locked(&self.seats).retain(|seat| !gone(seat));
        self.changed();
    }

    /// A processor that falls asleep announces it, fences, and compares the generation; so it sees either the change or the ring.
    pub(crate) fn changed(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.rouse_all();
    }

    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(crate) fn lanes(&self) -> Vec<Arc<ServerLane>> {
        locked(&self.lanes).clone()
    }

    pub(crate) fn seats(&self, vp: usize) -> Vec<Arc<VpSeat>> {
        locked(&self.seats).iter().filter(|seat| seat.vp() == vp).cloned().collect()
    }
}
