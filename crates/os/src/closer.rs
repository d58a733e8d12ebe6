//! Closes descriptors that a peer sent unasked.
//!
//! Closing a descriptor may take as long as its sender likes: a socket may linger, and a file may
//! lie in a file system that is a program. So descriptors that are neither memory files nor
//! doorbells are closed by threads of their own, which no other thread waits for. There is one
//! thread for each close that waits, [`MOST`] at most. So a sender that holds up one thread does
//! not hold up what others have sent.
//!
//! Until then the descriptors take places in the descriptor table. So there is a bound for each
//! user ([`is_crowded`]). From a user with so many descriptors waiting, nothing more is received,
//! and its connections are [hung up](hang_up) with all that they carry. The process's own user and
//! root have no bound: they can end the process anyway.

use crate::doorbell::is_eventfd;
use crate::interrupt::{Interruptible, Promise, interruptible};
use crate::lock::{KernelMutex, MutexGuard};
use crate::process::{is_known_user, own_user};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// Maximum number of threads that close.
///
/// While all of them are held up, further descriptors stay open.
pub(crate) const MOST: usize = 16;

/// Number of a user's descriptors that wait to be closed at which receiving from that user stops.
const CROWDED: usize = 64;

/// Time after which a close by [`hang_up`] that waits in the kernel is interrupted.
const PATIENCE: Duration = Duration::from_millis(1);

struct CloserState {
    /// The descriptors of each message, with the message's user.
    queue: VecDeque<(u32, Vec<OwnedFd>)>,
    threads: usize,
    /// Number of each user's descriptors that are not closed yet. Users without any are not listed.
    users: Vec<(u32, usize)>,
}

static STATE: KernelMutex<CloserState> =
    KernelMutex::new(CloserState { queue: VecDeque::new(), threads: 0, users: Vec::new() });

/// Number of descriptors that are not closed yet, of all users.
static OPEN: AtomicUsize = AtomicUsize::new(0);

fn state() -> MutexGuard<'static, CloserState> {
    STATE.lock()
}

impl CloserState {
    fn has_more(&mut self, user: u32, count: usize) {
        OPEN.fetch_add(count, Ordering::Relaxed);
        match self.users.iter_mut().find(|(of, _)| *of == user) {
            Some((_, open)) => *open += count,
            None => self.users.push((user, count)),
        }
    }

    fn has_one_less(&mut self, user: u32) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
        self.users.retain_mut(|(of, open)| {
            *open -= usize::from(*of == user);
            *open > 0
        });
    }
}

/// Returns `true` if a descriptor is of the protocol's kinds, which close at once.
///
/// These are memory files and eventfds.
pub(crate) fn is_plain(fd: &OwnedFd) -> bool {
    // Only files in memory have seals.
    rustix::fs::fcntl_get_seals(fd).is_ok() || is_eventfd(fd)
}

/// Returns `true` if a user has too many descriptors that wait to be closed.
///
/// Nothing more is received from that user then. `user` is not called if no descriptors wait.
pub(crate) fn is_crowded(user: impl FnOnce() -> u32) -> bool {
    if OPEN.load(Ordering::Relaxed) < CROWDED {
        return false;
    }
    let user = user();
    let is_exempt = user == 0 || user == own_user() && is_known_user(user);
    !is_exempt && state().users.iter().any(|&(of, open)| of == user && open >= CROWDED)
}

/// Closes descriptors from `user` at some later time.
pub(crate) fn close(all: Vec<OwnedFd>, user: u32) {
    if all.is_empty() {
        return;
    }
    for fd in &all {
        // The sender may switch this on again, but then only the closer waits.
        let _ = rustix::net::sockopt::set_socket_linger(fd, None);
    }
    let mut state = state();
    state.has_more(user, all.len());
    state.queue.push_back((user, all));
    if state.threads == MOST {
        return;
    }
    state.threads += 1;
    drop(state);
    if thread("upcall-closer").spawn(empty).is_err() && !leave_to_others() {
        empty();
    }
}

fn thread(name: &str) -> std::thread::Builder {
    std::thread::Builder::new().name(name.into()).stack_size(64 * 1024)
}

/// Gives up one thread if another remains. Returns `false` if not: then the caller has to close.
fn leave_to_others() -> bool {
    let mut state = state();
    let others = state.threads > 1;
    state.threads -= usize::from(others);
    others
}

/// Closes all descriptors in the queue.
fn empty() {
    loop {
        let next = {
            let mut state = state();
            let next = state.queue.pop_front();
            state.threads -= usize::from(next.is_none());
            next
        };
        let Some((user, all)) = next else { return };
        for fd in all {
            drop(fd);
            state().has_one_less(user);
        }
    }
}

/// Connections to hang up.
struct Hanging {
    queue: VecDeque<OwnedFd>,
    running: bool,
}

static HANGING: KernelMutex<Hanging> =
    KernelMutex::new(Hanging { queue: VecDeque::new(), running: false });

fn hanging() -> MutexGuard<'static, Hanging> {
    HANGING.lock()
}

/// Closes a connection with unread messages, without holding up the caller.
///
/// The kernel closes the descriptors that the messages carry. It does not ask a FUSE file system
/// then, as it does when a process closes a descriptor. It waits for a lingering socket until a
/// signal arrives: one is sent every [`PATIENCE`]. If the program has a handler of its own for that
/// signal, [`MOST`] such sockets hold up all connections that are to be hung up.
pub(crate) fn hang_up(connection: OwnedFd) {
    let mut all = hanging();
    all.queue.push_back(connection);
    if std::mem::replace(&mut all.running, true) {
        return;
    }
    drop(all);
    if thread("upcall-hang-up").spawn(hang_up_all).is_err() {
        // The connections wait for the next call.
        hanging().running = false;
    }
}

/// A thread that closes one connection.
struct Closing {
    thread: JoinHandle<()>,
    /// Empty before the thread begins.
    waits: Arc<OnceLock<Arc<Interruptible>>>,
}

impl Closing {
    /// Begins to close a connection. Gives it back if no thread can be started.
    fn begin(connection: OwnedFd) -> Result<Self, OwnedFd> {
        let (waits, given) =
            (Arc::new(OnceLock::new()), Arc::new(KernelMutex::new(Some(connection))));
        let (told, taken) = (waits.clone(), given.clone());
        let take = |from: &KernelMutex<Option<OwnedFd>>| from.lock().take();
        let close = move || {
            // SAFETY: the function does nothing.
            let promise = unsafe { Promise::given() };
            let _ = interruptible(promise, &|| {}, |me| {
                let _ = told.set(me);
                drop(take(&taken));
            });
            // If the signal is the program's own, this close cannot be interrupted.
            drop(take(&taken));
        };
        match thread("upcall-hang-up").spawn(close) {
            Ok(thread) => Ok(Self { thread, waits }),
            Err(_) => Err(take(&given).unwrap_or_else(|| unreachable!("no thread has taken it"))),
        }
    }
}

fn hang_up_all() {
    let mut closings: Vec<Closing> = Vec::new();
    loop {
        closings.retain(|closing| !closing.thread.is_finished());
        while closings.len() < MOST {
            let Some(connection) = hanging().queue.pop_front() else { break };
            match Closing::begin(connection) {
                Ok(closing) => closings.push(closing),
                // It is tried again, when a thread may have ended.
                Err(connection) => {
                    hanging().queue.push_front(connection);
                    break;
                }
            }
        }
        if closings.is_empty() {
            let mut all = hanging();
            if all.queue.is_empty() {
                all.running = false;
                return;
            }
        }
        std::thread::sleep(PATIENCE);
        closings
            .iter()
            .filter_map(|closing| closing.waits.get())
            .for_each(|waits| waits.interrupt());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doorbell::Doorbell;
    use crate::memory::MemoryFile;
    use std::os::fd::AsFd;

    #[test]
    fn a_user_with_many_descriptors_that_wait_is_crowded_unless_it_may_end_the_process() {
        let stranger = own_user() + 1_000_000;
        let count = |user: u32, by: usize| state().has_more(user, by);
        for (user, is_bounded) in [(stranger, true), (0, false), (own_user(), false)] {
            count(user, CROWDED - 1);
            assert!(!is_crowded(|| user));
            count(user, 1);
            assert_eq!(is_crowded(|| user), is_bounded, "{user}");
            assert!(!is_crowded(|| stranger + 1));
            (0..CROWDED).for_each(|_| state().has_one_less(user));
            assert!(!is_crowded(|| user));
        }
    }

    #[test]
    fn memory_and_bells_are_told_from_other_things() {
        let copy = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().unwrap();
        assert!(is_plain(&copy(MemoryFile::create("x", 4096).unwrap().as_fd())));
        assert!(is_plain(&copy(Doorbell::new().unwrap().as_fd())));
        for path in ["/dev/null", "/proc/self/status", "/proc/self"] {
            assert!(!is_plain(&std::fs::File::open(path).unwrap().into()), "{path}");
        }
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!is_plain(&socket.into()));
    }
}
