//! Closes what a peer has sent and nobody asked for.
//!
//! Closing a descriptor may take as long as its sender likes: a socket that lingers, a file of a file
//! system that is a program. So descriptors that are neither memory files nor bells are closed by
//! threads of their own, which no other thread waits for. There is one for each closing that waits,
//! [`MOST`] at most, so a sender that holds up one does not hold up what others have sent.

use crate::bell::is_eventfd;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of threads that close. What is to be closed while all of them are held up stays open.
const MOST: usize = 16;

struct State {
    /// What one message brought.
    queue: VecDeque<Vec<OwnedFd>>,
    threads: usize,
}

static STATE: Mutex<State> = Mutex::new(State { queue: VecDeque::new(), threads: 0 });

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a descriptor is one of those that the protocol knows, and closed at once: a memory file, or an eventfd.
pub(crate) fn is_plain(fd: &OwnedFd) -> bool {
    // Only files in memory have seals.
    rustix::fs::fcntl_get_seals(fd).is_ok() || is_eventfd(fd)
}

/// Closes them, at some time.
pub(crate) fn close(all: Vec<OwnedFd>) {
    if all.is_empty() {
        return;
    }
    for fd in &all {
        // Its sender may switch this on again, but then only the closer waits.
        let _ = rustix::net::sockopt::set_socket_linger(fd, None);
    }
    let mut state = state();
    state.queue.push_back(all);
    if state.threads == MOST {
        return;
    }
    state.threads += 1;
    drop(state);
    let started = std::thread::Builder::new().name("upcall-closer".into()).stack_size(64 * 1024).spawn(empty);
    if started.is_err() && !leave_to_others() {
        empty();
    }
}

/// Counts one thread less, if there is another one. Without any the caller closes what there is.
fn leave_to_others() -> bool {
    let mut state = state();
    let others = state.threads > 1;
    state.threads -= usize::from(others);
    others
}

/// Closes what there is to close.
fn empty() {
    loop {
        let next = {
            let mut state = state();
            let next = state.queue.pop_front();
            state.threads -= usize::from(next.is_none());
            next
        };
        let Some(all) = next else { return };
        drop(all);
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
