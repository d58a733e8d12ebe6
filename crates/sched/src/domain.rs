//! This process as a domain: its station, and its virtual processors by number.
//!
//! A program may have several schedulers, one after the other or at the same time. Each virtual
//! processor takes a number here while it lives. The number selects its line on the station page,
//! its lane in every channel, and its wake set.

use std::io;
use std::sync::OnceLock;
use upcall_os::atomic::{AtomicU64, Ordering};
use upcall_os::doorbell::Doorbell;
use upcall_os::once::OnceValue;
use upcall_os::poll::{PollSet, Report};
use upcall_shm::astack::Numbers;
use upcall_shm::station::{self, Station};

/// Maximum number of virtual processors of a domain that call or serve at the same time.
///
/// Each has a lane of its own in every channel.
pub const MOST_PROCESSORS: usize = 32;

/// Maximum number of posts of a domain.
pub const MOST_POSTS: u16 = station::MOST - MOST_PROCESSORS as u16;

/// The one domain of this process.
#[derive(Debug)]
pub struct Domain {
    station: Station,
    wake_sets: [OnceLock<WakeSet>; MOST_PROCESSORS],
    numbers: Numbers,
    /// Numbers of posts. Their lines come after those of the virtual processors.
    posts: Numbers,
    /// Incremented whenever the lanes or doorbells that a processor polls change.
    generation: AtomicU64,
}

/// Where a virtual processor sleeps: every event that may wake it notifies a doorbell in this set.
#[derive(Debug)]
pub(crate) struct WakeSet {
    pub(crate) set: PollSet,
    pub(crate) own_doorbell: Doorbell,
}

/// The error of a virtual processor that finds all numbers taken.
pub(crate) fn too_many() -> io::Error {
    io::Error::other(format!(
        "at most {MOST_PROCESSORS} virtual processors of one process can call or serve at once"
    ))
}

impl Domain {
    /// Returns this process's domain, created at the first use.
    pub fn current() -> io::Result<&'static Self> {
        static DOMAIN: OnceValue<Domain> = OnceValue::new();
        DOMAIN.get(|| {
            Ok(Self {
                station: Station::new()?,
                wake_sets: [const { OnceLock::new() }; MOST_PROCESSORS],
                numbers: Numbers::new(MOST_PROCESSORS as u16),
                posts: Numbers::new(MOST_POSTS),
                generation: AtomicU64::new(1),
            })
        })
    }

    /// The page that shows peers what this domain's virtual processors do.
    pub fn station(&self) -> &Station {
        &self.station
    }

    pub(crate) fn wake_set(&self, vp: usize) -> io::Result<&WakeSet> {
        let cell = self.wake_sets.get(vp).ok_or_else(too_many)?;
        if let Some(wake_set) = cell.get() {
            return Ok(wake_set);
        }
        let wake_set = WakeSet { set: PollSet::new()?, own_doorbell: Doorbell::new()? };
        wake_set.set.add(&wake_set.own_doorbell, 0, Report::EachRing)?;
        Ok(cell.get_or_init(|| wake_set))
    }

    /// Wakes a virtual processor, or keeps it from falling asleep.
    pub(crate) fn rouse(&self, vp: usize) {
        if let Some(wake_set) = self.wake_sets.get(vp).and_then(OnceLock::get) {
            wake_set.own_doorbell.notify();
        }
    }

    /// Wakes all virtual processors.
    pub(crate) fn rouse_all(&self) {
        for wake_set in self.wake_sets.iter().filter_map(OnceLock::get) {
            wake_set.own_doorbell.notify();
        }
    }

    /// Takes a number for a virtual processor that begins; `None` if all are taken.
    pub(crate) fn take_number(&self) -> Option<usize> {
        self.numbers.take().map(usize::from)
    }

    /// Returns `true` if more than `left` numbers are free.
    pub(crate) fn has_spare_number(&self, left: usize) -> bool {
        self.numbers.free() > left
    }

    /// Takes a number for a spare processor. `None` if fewer than `left` numbers would stay free.
    pub(crate) fn take_spare_number(&self, left: usize) -> Option<usize> {
        let number = self.take_number()?;
        if self.numbers.free() < left {
            self.give_number(number);
            return None;
        }
        Some(number)
    }

    /// Frees the number of a virtual processor that has ended. Peers see it awake, so none notifies
    /// it.
    pub(crate) fn give_number(&self, number: usize) {
        let line = self.station.line(number);
        line.tid.store(0, Ordering::Relaxed);
        line.asleep.store(0, Ordering::Release);
        self.numbers.give(number as u16);
    }

    /// Takes the number of a line for a post; `None` if all are taken.
    pub(crate) fn take_post(&self) -> Option<u16> {
        self.posts.take().map(|number| number + MOST_PROCESSORS as u16)
    }

    /// Frees the number of a post. Peers see it awake.
    pub(crate) fn give_post(&self, number: u16) {
        self.station.line(usize::from(number)).asleep.store(0, Ordering::Release);
        self.posts.give(number - MOST_PROCESSORS as u16);
    }

    /// Records a change of what the processors poll, and wakes them all.
    ///
    /// A processor that is about to sleep announces it, fences, and compares the generation; so it
    /// sees either the change or the notification.
    pub(crate) fn changed(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.rouse_all();
    }

    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}
