//! A doorbell: an eventfd. Ringing it wakes the threads that wait on it, and a ring before the wait
//! is not lost.
//!
//! One doorbell per ringer. A doorbell shared by several could be drained by one of them and so
//! silenced for the others.

use crate::crossings;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::io::{Errno, ReadWriteFlags};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// A doorbell; see the module.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

/// The link of an eventfd.
const EVENTFD: &str = "anon_inode:[eventfd]";

/// What the kernel calls the thing behind a descriptor.
fn link_of(fd: &OwnedFd) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Whether a descriptor is an eventfd.
pub(crate) fn is_eventfd(fd: &OwnedFd) -> bool {
    link_of(fd).is_ok_and(|link| link.as_os_str() == EVENTFD)
}

impl Doorbell {
    /// Makes a silent doorbell.
    ///
    /// # Errors
    /// No descriptor left (`EMFILE`, `ENFILE`), or no memory.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Takes a doorbell that a peer sent; only an eventfd is accepted.
    ///
    /// # Errors
    /// It is something else, or the kernel refuses to make it non-blocking.
    pub fn adopt(fd: OwnedFd) -> io::Result<Self> {
        let link = link_of(&fd)?;
        if link.as_os_str() != EVENTFD {
            return Err(io::Error::other(format!(
                "the doorbell is no eventfd but {}",
                link.display()
            )));
        }
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(Self(fd))
    }

    /// Rings it. Costs one system call, a write. Does not block if only this process has the
    /// doorbell, or an honest peer: a doorbell whose counter is full (after 2^64 rings) already
    /// rings. A hostile peer can fill the counter of its doorbell and make it blocking again, which
    /// blocks the calling kernel thread until the doorbell is silenced. A thread that must not
    /// block rings by [`crate::safe_doorbell::SafeDoorbell::notify`].
    pub fn notify(&self) {
        crossings::another();
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Silences it; returns whether it had rung. Never blocks, whoever holds it and whatever they
    /// make of its flags (before Linux 5.8: unless they read it at the same moment).
    pub fn silence(&self) -> bool {
        let mut count = [0; 8];
        crossings::another();
        match rustix::io::preadv2(
            &self.0,
            &mut [IoSliceMut::new(&mut count)],
            u64::MAX,
            ReadWriteFlags::NOWAIT,
        ) {
            Err(Errno::OPNOTSUPP) => self.silence_by_looking(),
            read => matches!(read, Ok(8)),
        }
    }

    fn silence_by_looking(&self) -> bool {
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        if !matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(1)) {
            return false;
        }
        let mut count = [0; 8];
        matches!(rustix::io::read(&self.0, &mut count), Ok(8))
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_ring_before_the_look_is_kept_and_counted_once() {
        let doorbell = Doorbell::new().unwrap();
        assert!(!doorbell.silence());
        doorbell.notify();
        doorbell.notify();
        assert!(doorbell.silence());
        assert!(!doorbell.silence());
    }
}
