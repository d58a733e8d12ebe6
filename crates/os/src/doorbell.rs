//! A doorbell: an eventfd. Ringing it wakes the threads that wait on it.
//!
//! A ring before the wait is not lost. Each ringer has a doorbell of its own: if several shared
//! one, one of them could drain it and so silence it for the others.

use crate::crossings;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::io::{Errno, ReadWriteFlags};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// A doorbell; see the module.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

/// Target of an eventfd's link in /proc.
const EVENTFD: &str = "anon_inode:[eventfd]";

/// Reads a descriptor's link in /proc.
fn link_of(fd: &OwnedFd) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Returns `true` if a descriptor is an eventfd.
pub(crate) fn is_eventfd(fd: &OwnedFd) -> bool {
    link_of(fd).is_ok_and(|link| link.as_os_str() == EVENTFD)
}

impl Doorbell {
    /// Makes a silent doorbell.
    ///
    /// # Errors
    /// No descriptor (`EMFILE`, `ENFILE`) or no memory is left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Takes a doorbell that a peer sent. Only an eventfd is accepted.
    ///
    /// # Errors
    /// It is something else, or the kernel refuses to make it non-blocking.
    pub fn adopt(fd: OwnedFd) -> io::Result<Self> {
        let link = link_of(&fd)?;
        if link.as_os_str() != EVENTFD {
            return Err(io::Error::other(format!(
                "the doorbell is not an eventfd but {}",
                link.display()
            )));
        }
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(Self(fd))
    }

    /// Rings the doorbell. Costs one system call, a write.
    ///
    /// # Blocks
    /// Never if only this process or an honest peer has the doorbell: one with a full counter
    /// (after 2^64 rings) rings already. A hostile peer can fill the counter of its doorbell and
    /// make it blocking again. That blocks the calling kernel thread until the doorbell is
    /// silenced. A thread that must not block uses [`crate::safe_doorbell::SafeDoorbell::notify`].
    pub fn notify(&self) {
        crossings::another();
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Silences the doorbell. Returns `true` if it had rung.
    ///
    /// Never blocks, even if a hostile holder changes its flags. Before Linux 5.8 it may block if a
    /// holder reads the doorbell at the same moment.
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
