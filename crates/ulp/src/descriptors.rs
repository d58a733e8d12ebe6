//! Waiting for the descriptors that ULPs wait for.
//!
//! They are numbers that a program gave, and may be invalid.

use std::ptr;
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

/// Closes descriptors that a ULP has opened.
pub(crate) fn close(all: &[i32]) {
    for one in all {
        // SAFETY: the number is that of a descriptor of a ULP that no longer runs, or of none.
        unsafe { libc::close(*one) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Write, pipe};
    use std::os::fd::AsRawFd;

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
