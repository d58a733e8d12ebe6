//! Waiting for any of many descriptors: one epoll set, in which each descriptor has a number of the
//! caller's choice.

use crate::crossings;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// How a descriptor reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// As long as there is something to read.
    WhileReadable,
    /// Once for each new ring; nothing has to be read.
    EachRing,
    /// The same, to one of the sets that it is in whose waiter sleeps; the others learn of it when
    /// they wait the next time.
    OneOfUs,
    /// Only when its other end is gone.
    HangUp,
}

/// A descriptor that has something to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The number that it was added under.
    pub key: u64,
    /// Its other end is gone.
    pub hung_up: bool,
}

/// Who had something to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollReady {
    /// The one that was asked for.
    pub key: bool,
    /// Others.
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
    /// No descriptor left, or no memory.
    pub fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// Adds a descriptor under the number `key`. Closing its last duplicate takes it out again.
    ///
    /// # Errors
    /// It is in the set already (`EEXIST`), cannot be waited for (`EPERM`), or no memory is left.
    pub fn add(&self, fd: impl AsFd, key: u64, report: Report) -> io::Result<()> {
        let flags = match report {
            Report::WhileReadable => EventFlags::IN | EventFlags::RDHUP,
            Report::EachRing => EventFlags::IN | EventFlags::ET,
            Report::OneOfUs => EventFlags::IN | EventFlags::ET | EventFlags::EXCLUSIVE,
            Report::HangUp => EventFlags::RDHUP,
        };
        Ok(epoll::add(&self.0, fd, EventData::new_u64(key), flags)?)
    }

    /// Takes a descriptor out.
    pub fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.0, fd);
    }

    /// Blocks the kernel thread until a descriptor has something to say, a signal, or `timeout`
    /// (none waits for ever). Fills `ready`.
    pub fn wait(&self, ready: &mut Vec<Ready>, timeout: Option<Duration>) {
        ready.clear();
        let timeout = timeout.and_then(|t| rustix::time::Timespec::try_from(t).ok());
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        crossings::another();
        if epoll::wait(&self.0, spare_capacity(&mut events), timeout.as_ref()).is_ok() {
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

    /// The same, when it does not matter who had something to say, but for `key`.
    pub fn wait_any(&self, timeout: Option<Duration>, key: u64) -> PollReady {
        let timeout = timeout.and_then(|t| rustix::time::Timespec::try_from(t).ok());
        let mut events = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; 8];
        crossings::another();
        let events = epoll::wait(&self.0, &mut events, timeout.as_ref())
            .map_or(&[][..], |(events, _)| events);
        let of_key = events.iter().filter(|event| event.data.u64() == key).count();
        PollReady { key: of_key > 0, others: events.len() > of_key }
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
