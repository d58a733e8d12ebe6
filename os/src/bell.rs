//! A bell: an eventfd. Ringing it wakes whoever waits on it, and a ring before the wait is not lost.
//!
//! One bell per ringer. A bell shared by several could be drained by one of them and so silenced for the others.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A bell; see the module.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// Makes a silent bell.
    ///
    /// # Errors
    /// No descriptor left (`EMFILE`, `ENFILE`), or no memory.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Takes a bell that a peer sent. Whatever the descriptor is, ringing it cannot block or harm us: see [`Bell::ring`].
    ///
    /// # Errors
    /// The kernel refuses to make it non-blocking.
    pub fn adopt(fd: OwnedFd) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(Self(fd))
    }

    /// Rings it. Never blocks: a bell whose counter is full (after 2^64 rings) already rings, and a peer that sent something else than
    /// a bell, or made it blocking again, hurts only the waking of itself. Costs one system call.
    pub fn ring(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Silences it; returns whether it had rung. Never blocks.
    pub fn silence(&self) -> bool {
        let mut count = [0; 8];
        matches!(rustix::io::read(&self.0, &mut count), Ok(8))
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_ring_before_the_look_is_kept_and_counted_once() {
        let bell = Bell::new().unwrap();
        assert!(!bell.silence());
        bell.ring();
        bell.ring();
        assert!(bell.silence());
        assert!(!bell.silence());
    }
}
