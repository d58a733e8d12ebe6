//! Waiting for any of many descriptors: one epoll set.
//!
//! Each descriptor in the set has a number that the caller chooses.

use crate::crossings;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// When a descriptor reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// While there is something to read.
    WhileReadable,
    /// Once for each new ring; no read is needed.
    EachRing,
    /// Once for each new ring, to one of the descriptor's sets whose waiter sleeps. The other sets
    /// report it when they are next waited for.
    OneOfUs,
    /// Only when its other end is gone.
    HangUp,
    /// Once each time that it changes in this way.
    EachChange(Changes),
}

/// The changes that a descriptor reports. That it failed is reported in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// It has become readable, or its other end is gone.
    pub readable: bool,
    /// It has become writable.
    pub writable: bool,
}

/// A descriptor that reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The number under which it was added.
    pub key: u64,
    /// `true` if its other end is gone.
    pub hung_up: bool,
}

/// Which descriptors report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollReady {
    /// `true` if the descriptor of the requested key does.
    pub key: bool,
    /// `true` if others do.
    pub others: bool,
}

/// A set of descriptors to wait for.
#[derive(Debug)]
pub struct PollSet(OwnedFd);

impl AsFd for PollSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl PollSet {
    /// Makes an empty set.
    ///
    /// # Errors
    /// No descriptor or no memory is left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// Adds a descriptor under the number `key`. Closing its last duplicate removes it.
    ///
    /// # Errors
    /// It is in the set already (`EEXIST`), cannot be waited for (`EPERM`), or no memory is left.
    pub fn add(&self, fd: impl AsFd, key: u64, report: Report) -> io::Result<()> {
        Ok(epoll::add(&self.0, fd, EventData::new_u64(key), flags_of(report))?)
    }

    /// Changes when a descriptor of the set reports. It reports at once if it would now.
    ///
    /// # Errors
    /// It is not in the set.
    pub fn change(&self, fd: impl AsFd, key: u64, report: Report) -> io::Result<()> {
        crossings::another();
        Ok(epoll::modify(&self.0, fd, EventData::new_u64(key), flags_of(report))?)
    }

    /// Removes a descriptor.
    pub fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.0, fd);
    }

    /// Waits until a descriptor reports, a signal arrives, or `timeout` expires.
    ///
    /// Fills `ready`.
    ///
    /// # Blocks
    /// The kernel thread; without a `timeout` for ever.
    pub fn wait(&self, ready: &mut Vec<Ready>, timeout: Option<Duration>) {
        ready.clear();
        let timeout = timeout.and_then(|t| rustix::time::Timespec::try_from(t).ok());
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; 64];
        crossings::another();
        if let Ok((events, _)) = epoll::wait(&self.0, &mut events, timeout.as_ref()) {
            ready.extend(events.iter().map(|event| {
                let flags = event.flags;
                Ready {
                    key: event.data.u64(),
                    hung_up: flags
                        .intersects(EventFlags::HUP | EventFlags::ERR | EventFlags::RDHUP),
                }
            }));
        }
    }

    /// Like [`wait`](Self::wait), if only the descriptor of `key` matters.
    pub fn wait_any(&self, timeout: Option<Duration>, key: u64) -> PollReady {
        let timeout = timeout.and_then(|t| rustix::time::Timespec::try_from(t).ok());
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; 8];
        crossings::another();
        let events = epoll::wait(&self.0, &mut events, timeout.as_ref())
            .map_or(&[][..], |(events, _)| events);
        let of_key = events.iter().filter(|event| event.data.u64() == key).count();
        PollReady { key: of_key > 0, others: events.len() > of_key }
    }
}

fn flags_of(report: Report) -> EventFlags {
    match report {
        Report::WhileReadable => EventFlags::IN | EventFlags::RDHUP,
        Report::EachRing => EventFlags::IN | EventFlags::ET,
        Report::OneOfUs => EventFlags::IN | EventFlags::ET | EventFlags::EXCLUSIVE,
        Report::HangUp => EventFlags::RDHUP,
        Report::EachChange(changes) => {
            let mut flags = EventFlags::ET;
            flags.set(EventFlags::IN | EventFlags::RDHUP, changes.readable);
            flags.set(EventFlags::OUT, changes.writable);
            flags
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::doorbell::Doorbell;

    #[test]
    fn each_ring_is_reported_without_a_read() {
        let (set, doorbell, mut ready) =
            (PollSet::new().unwrap(), Doorbell::new().unwrap(), Vec::new());
        set.add(&doorbell, 7, Report::EachRing).unwrap();
        for _ in 0..3 {
            doorbell.notify();
            set.wait(&mut ready, None);
            assert_eq!(ready, [Ready { key: 7, hung_up: false }]);
            set.wait(&mut ready, Some(Duration::ZERO));
            assert!(ready.is_empty());
        }
    }
}
