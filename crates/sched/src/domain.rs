//! This process as a domain: its station, and its virtual processors by number.
//!
//! A program may have several schedulers, one after the other or at once; each virtual processor of
//! each takes a number here while it lives, which is its line on the station page, its lane in
//! every channel, and its bed.

use crate::seat::VpSeat;
use std::io;
use std::sync::{Arc, OnceLock};
use upcall_os::atomic::{AtomicU64, Ordering};
use upcall_os::bell::Bell;
use upcall_os::lock::Mutex;
use upcall_os::once::Once;
use upcall_os::poll::{PollSet, Report};
use upcall_shm::astack::Numbers;
use upcall_shm::station::{self, Station};

/// The most virtual processors of a domain that make or serve calls at the same time: each has a
/// lane of its own in every channel.
pub const MOST_PROCESSORS: usize = 32;

/// The most posts of a domain.
pub const MOST_POSTS: u16 = station::MOST - MOST_PROCESSORS as u16;

/// The one domain of this process.
#[derive(Debug)]
pub struct Domain {
    station: Station,
    beds: [OnceLock<Bed>; MOST_PROCESSORS],
    seats: Mutex<Vec<Arc<VpSeat>>>,
    numbers: Numbers,
    /// Of posts: their lines come after those of virtual processors.
    posts: Numbers,
    /// Goes up whenever what some processor polls changes.
    generation: AtomicU64,
}

/// Where a virtual processor sleeps: everything that may wake it rings a bell in this set.
#[derive(Debug)]
pub(crate) struct Bed {
    pub(crate) set: PollSet,
    pub(crate) own_bell: Bell,
}

/// The error of a virtual processor that finds all numbers taken.
pub(crate) fn too_many() -> io::Error {
    io::Error::other(format!(
        "at most {MOST_PROCESSORS} virtual processors of one process can call or serve at once"
    ))
}

impl Domain {
    /// This process's domain, made at the first use.
    ///
    /// # Errors
    /// No descriptor or no memory left.
    pub fn current() -> io::Result<&'static Self> {
        static DOMAIN: Once<Domain> = Once::new();
        DOMAIN.get(|| {
            Ok(Self {
                station: Station::new()?,
                beds: [const { OnceLock::new() }; MOST_PROCESSORS],
                seats: Mutex::default(),
                numbers: Numbers::new(MOST_PROCESSORS as u16),
                posts: Numbers::new(MOST_POSTS),
                generation: AtomicU64::new(1),
            })
        })
    }

    /// The page that tells peers what our virtual processors do.
    pub fn station(&self) -> &Station {
        &self.station
    }

    pub(crate) fn bed(&self, vp: usize) -> io::Result<&Bed> {
        let cell = self.beds.get(vp).ok_or_else(too_many)?;
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

    /// A number for a virtual processor that begins; `None` if all are taken.
    pub(crate) fn take_number(&self) -> Option<usize> {
        self.numbers.take().map(usize::from)
    }

    /// It has ended. Peers see it awake, so that nobody rings for it.
    pub(crate) fn give_number(&self, number: usize) {
        let line = self.station.line(number);
        line.tid.store(0, Ordering::Relaxed);
        line.asleep.store(0, Ordering::Release);
        self.numbers.give(number as u16);
    }

    /// The number of a line for a post; `None` if all are taken.
    pub(crate) fn take_post(&self) -> Option<u16> {
        self.posts.take().map(|number| number + MOST_PROCESSORS as u16)
    }

    /// It is left. Peers see it awake.
    pub(crate) fn give_post(&self, number: u16) {
        self.station.line(usize::from(number)).asleep.store(0, Ordering::Release);
        self.posts.give(number - MOST_PROCESSORS as u16);
    }

    /// The threads of this virtual processor's scheduler run no more.
    pub(crate) fn leave_seats(&self, vp: usize) {
        for seat in self.seats(vp).iter() {
            seat.leave();
            seat.await_late();
        }
    }

    pub(crate) fn add_seat(&self, seat: Arc<VpSeat>) {
        self.seats.lock().push(seat);
        self.changed();
    }

    pub(crate) fn remove_seats(&self, gone: impl Fn(&VpSeat) -> bool) {
        self.seats.lock().retain(|seat| !gone(seat));
        self.changed();
    }

    /// A processor that falls asleep announces it, fences, and compares the generation; so it sees
    /// either the change or the ring.
    pub(crate) fn changed(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.rouse_all();
    }

    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(crate) fn seats(&self, vp: usize) -> Vec<Arc<VpSeat>> {
        self.seats.lock().iter().filter(|seat| seat.vp() == vp).cloned().collect()
    }
}
