//! Waiting for the descriptors that ULPs wait for, and closing those that they leave open.
//!
//! A program's numbers are its own: the archive translates them by a table in the slot
//! (`image/files.c`), and the host sees only the process's. A program may have overwritten that
//! table before it crashed. So the host closes what its own record shows, in which the archive
//! writes the owner of each descriptor that it opens. That record is not in the program's memory,
//! has no entry for the host's own descriptors, and costs no further system call. To keep ULPs'
//! descriptors above a number that the host never reaches would take two for each.

use crate::layout::FILES;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::Duration;

/// A descriptor, and events as in `poll(2)`.
pub type WantedEvents = (i32, u16);

/// Waits until one of the descriptors is ready, at most for `within`, and returns which are.
///
/// A descriptor with an error, or that is invalid, counts as ready. A signal ends the wait early.
/// Blocks the thread, and no ULP runs on it in the meantime.
pub fn ready(wanted: &[WantedEvents], within: Option<Duration>) -> Vec<bool> {
    let mut all: Vec<_> = wanted
        .iter()
        .map(|&(fd, events)| libc::pollfd { fd, events: events as i16, revents: 0 })
        .collect();
    // The kernel ignores descriptors below 0.
    let none = wanted.iter().any(|(fd, _)| *fd < 0);
    let within = if none { Some(Duration::ZERO) } else { within };
    let time = within.map(|time| libc::timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: passes as many entries as the kernel is given as count, a time or none, and no mask.
    let found =
        unsafe { libc::ppoll(all.as_mut_ptr(), all.len() as libc::nfds_t, time, ptr::null()) };
    all.iter().map(|one| one.fd < 0 || (found > 0 && one.revents != 0)).collect()
}

/// Which of the process's descriptors belong to which ULP. Images write it; see `image/files.c`.
#[repr(C)]
struct Owners {
    /// All entries from here on are 0.
    end: AtomicU32,
    /// The number of the ULP's slot plus 1; 0 for the host's own.
    slots: [AtomicU16; FILES as usize],
}

static OWNERS: Owners =
    Owners { end: AtomicU32::new(0), slots: [const { AtomicU16::new(0) }; FILES as usize] };

const _: () = assert!(crate::slot::SLOTS < u16::MAX as usize);

/// The address of the record of owners.
pub(crate) fn owners() -> u64 {
    (&raw const OWNERS).addr() as u64
}

/// The process's descriptors that the ULP in this slot has opened and not closed.
///
/// Each comes with the word that names its owner.
fn opened(slot: usize) -> impl Iterator<Item = (usize, &'static AtomicU16)> {
    let end = OWNERS.end.load(Ordering::Acquire) as usize;
    let all = OWNERS.slots.iter().enumerate().take(end);
    all.filter(move |(_, owner)| usize::from(owner.load(Ordering::Relaxed)) == slot + 1)
}

/// The number of descriptors that the ULP in this slot has opened and not closed.
pub(crate) fn count_of(slot: usize) -> usize {
    opened(slot).count()
}

/// Returns `true` if the ULP in this slot has opened this descriptor and not closed it.
pub(crate) fn is_of(descriptor: i32, slot: usize) -> bool {
    let owner = usize::try_from(descriptor).ok().and_then(|at| OWNERS.slots.get(at));
    owner.is_some_and(|owner| usize::from(owner.load(Ordering::Relaxed)) == slot + 1)
}

/// Gives a descriptor of the process to the ULP in this slot, as if it had opened it.
///
/// Returns `None`, and closes it, if its number is too high.
pub(crate) fn give(descriptor: OwnedFd, slot: usize) -> Option<i32> {
    let number = descriptor.as_raw_fd();
    let owner = OWNERS.slots.get(usize::try_from(number).ok()?)?;
    OWNERS.end.fetch_max(number as u32 + 1, Ordering::Release);
    owner.store(u16::try_from(slot + 1).ok()?, Ordering::Release);
    Some(descriptor.into_raw_fd())
}

/// Closes the descriptors that the ULP in this slot has opened and not closed.
///
/// An image deletes an entry before it closes the descriptor, and so does this: a number that the
/// kernel may have given to the host in the meantime is never closed.
pub(crate) fn close_all_of(slot: usize) {
    for (descriptor, owner) in opened(slot) {
        owner.store(0, Ordering::Relaxed);
        // SAFETY: the record shows that the ULP has opened the descriptor; it no longer runs.
        unsafe { libc::close(descriptor as i32) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Write, pipe};

    #[test]
    fn who_has_something_is_ready_and_so_is_what_is_nothing() {
        let (reader, mut writer) = pipe().unwrap();
        let wanted = [(reader.as_raw_fd(), libc::POLLIN as u16)];
        assert_eq!(ready(&wanted, Some(Duration::from_millis(1))), [false]);
        writer.write_all(b"x").unwrap();
        assert_eq!(ready(&wanted, None), [true]);
        assert_eq!(ready(&[wanted[0], (-1, 1), (1 << 20, 1)], None), [true, true, true]);
    }
}
