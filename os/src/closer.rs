//! Closes what a peer has sent and nobody asked for.
//!
//! To close a descriptor may take as long as its sender likes: a socket that lingers, a file of a file system that is a program. So descriptors that are neither memory files
//! nor bells are closed by a thread that nobody waits for.

use crate::bell::is_eventfd;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

/// Whether a descriptor is one of those that the protocol knows, and closed at once: a memory file, or an eventfd.
pub(crate) fn is_plain(fd: &OwnedFd) -> bool {
    // Only files in memory have seals.
    rustix::fs::fcntl_get_seals(fd).is_ok() || is_eventfd(fd)
}

/// Closes them, at some time.
pub(crate) fn close(all: Vec<OwnedFd>) {
    static QUEUE: OnceLock<Option<Sender<OwnedFd>>> = OnceLock::new();
    let queue = QUEUE.get_or_init(|| {
        let (queue, queued) = channel::<OwnedFd>();
        let close = move || queued.into_iter().for_each(drop);
        let started = std::thread::Builder::new().name("upcall-closer".into()).stack_size(64 * 1024).spawn(close);
        started.ok().map(|_| queue)
    });
    for fd in all {
        // Its sender may switch this on again, but then only the closer waits.
        let _ = rustix::net::sockopt::set_socket_linger(&fd, None);
        // Without a thread they are closed here.
        let _ = queue.as_ref().map(|queue| queue.send(fd));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bell::Bell;
    use crate::memory::MemoryFile;
    use std::os::fd::AsFd;

    #[test]
    fn memory_and_bells_are_told_from_other_things() {
        let copy = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().unwrap();
        assert!(is_plain(&copy(MemoryFile::create("x", 4096).unwrap().as_fd())));
        assert!(is_plain(&copy(Bell::new().unwrap().as_fd())));
        for path in ["/dev/null", "/proc/self/status", "/proc/self"] {
            assert!(!is_plain(&std::fs::File::open(path).unwrap().into()), "{path}");
        }
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!is_plain(&socket.into()));
    }
}
