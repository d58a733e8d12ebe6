//! The clerk: a domain's one kernel thread that watches its control connections.
//!
//! Source: LRPC, section 3.1, where a clerk in the server's runtime answers binders. Here it also
//! learns of the end of peers, from the kernel (the closing of their sockets, and their pidfds),
//! never from a heartbeat. It sleeps unless something happens.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use upcall_os::lock::{KernelMutex, MutexGuard};
use upcall_os::once::OnceValue;
use upcall_os::poll::{PollSet, Report};
use upcall_os::processor;
use upcall_os::socket::{Connection, Listener, Received, SocketMessage};

/// Stack size in bytes of the clerk, and of other threads that ask a policy.
pub const STACK: usize = 256 << 10;

/// Maximum number of connections or messages that the clerk handles in one turn.
pub const TURN: usize = 16;

/// Accepts at most `most` waiting connections and passes each to `admit`.
///
/// When no descriptor is left, `full` returns `true` if it has accepted the next connection itself
/// and can accept another one. Otherwise that connection stays in the queue, and this function
/// sleeps for 10 ms so that the clerk does not spin on it.
pub fn let_in(
    listener: &Listener,
    most: usize,
    mut full: impl FnMut(&io::Error) -> bool,
    mut admit: impl FnMut(Connection),
) {
    for _ in 0..most {
        match listener.accept() {
            Ok(Some(connection)) => admit(connection),
            Ok(None) => return,
            Err(error) if full(&error) => {}
            Err(_) => return std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Reads the messages that have arrived on a connection, at most [`TURN`] of them.
///
/// Never blocks. Returns `false` if the other side has closed the connection or ended, or if `said`
/// returned `false` for a message.
pub fn hear(connection: &Connection, said: impl FnMut(SocketMessage) -> bool) -> bool {
    hear_or(connection, said, |_| {})
}

/// Like [`hear`], but calls `failed` with the error if receiving fails.
pub fn hear_or(
    connection: &Connection,
    mut said: impl FnMut(SocketMessage) -> bool,
    failed: impl FnOnce(&io::Error),
) -> bool {
    for _ in 0..TURN {
        match connection.receive() {
            Ok(Received::Message(message)) => {
                if !said(message) {
                    return false;
                }
            }
            Ok(Received::Nothing) => return true,
            Ok(Received::Closed) => return false,
            Err(error) => {
                failed(&error);
                return false;
            }
        }
    }
    true
}

/// Something that the clerk watches.
pub trait Watched: Send + Sync {
    /// Its descriptor.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Handles an event. Returns `true` to go on watching, `false` to be forgotten.
    fn happened(&self, hung_up: bool) -> bool;

    /// Cleans up after [`happened`](Self::happened) panicked, so that no thread waits for this
    /// object any longer. Returns `true` to go on watching.
    fn failed(&self) -> bool;
}

/// This domain's clerk.
pub struct Clerk {
    set: PollSet,
    watched: KernelMutex<WatchTable>,
}

/// What is watched, by number, and the last number given.
#[derive(Default)]
struct WatchTable {
    last: u64,
    watched: HashMap<u64, Arc<dyn Watched>>,
}

impl Clerk {
    /// The clerk, whose thread is started at the first use.
    ///
    /// # Errors
    /// No descriptor, no memory or no kernel thread left.
    pub fn current() -> io::Result<&'static Self> {
        static CLERK: OnceValue<Arc<Clerk>> = OnceValue::new();
        let clerk = CLERK.get(|| {
            let clerk = Arc::new(Self { set: PollSet::new()?, watched: KernelMutex::default() });
            let worker = clerk.clone();
            std::thread::Builder::new()
                .name("upcall-clerk".into())
                .stack_size(STACK)
                .spawn(move || worker.work())?;
            Ok(clerk)
        });
        clerk.map(|clerk| &**clerk)
    }

    fn watched(&self) -> MutexGuard<'_, WatchTable> {
        self.watched.lock()
    }

    /// Watches a descriptor. Returns the key for [`forget`](Self::forget).
    ///
    /// # Errors
    /// The descriptor cannot be polled, or no memory is left.
    pub fn watch(&self, watched: Arc<dyn Watched>, report: Report) -> io::Result<u64> {
        let mut all = self.watched();
        all.watched.try_reserve(1).map_err(|_| io::ErrorKind::OutOfMemory)?;
        all.last += 1;
        let key = all.last;
        self.set.add(watched.descriptor(), key, report)?;
        all.watched.insert(key, watched);
        Ok(key)
    }

    /// Stops watching what was added under this key.
    pub fn forget(&self, key: u64) {
        let gone = self.watched().watched.remove(&key);
        if let Some(gone) = gone {
            self.set.remove(gone.descriptor());
            // Dropped after the lock is released, because its destructor may call this clerk.
            drop(gone);
        }
    }

    fn work(&self) {
        // The clerk's work is short and peers wait for it, so it must not queue behind a polling
        // thread of this domain.
        processor::ask_for_short_slices();
        let mut ready = Vec::new();
        loop {
            self.set.wait(&mut ready, None);
            for event in &ready {
                let Some(watched) = self.watched().watched.get(&event.key).cloned() else {
                    continue;
                };
                // A fault in the handling of one peer ends that peer's connection, not the clerk.
                let handled = catch_unwind(AssertUnwindSafe(|| watched.happened(event.hung_up)));
                let keep = handled.unwrap_or_else(|_| {
                    catch_unwind(AssertUnwindSafe(|| watched.failed())).unwrap_or(false)
                });
                if !keep {
                    self.forget(event.key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_at_a_door_is_let_in_by_turns() {
        let path = std::env::temp_dir().join(format!("upcall-door-{}", std::process::id()));
        let door = Listener::bind(&path).unwrap();
        let waiting = [(); 3].map(|()| Connection::connect(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        let mut inside = Vec::new();
        for all in [2, 3, 3] {
            let_in(&door, 2, |error| panic!("{error}"), |connection| inside.push(connection));
            assert_eq!(inside.len(), all);
        }
        drop(waiting);
    }

    #[test]
    fn who_says_much_is_heard_by_turns_and_who_is_gone_or_says_nonsense_no_more() {
        let (other, own) = Connection::pair().unwrap();
        let heard = |well: bool| {
            let mut messages = 0;
            let goes_on = hear(&own, |_| {
                messages += 1;
                well
            });
            (goes_on, messages)
        };
        (0..=TURN).for_each(|_| other.send(b"one", &[]).unwrap());
        assert_eq!((heard(true), heard(true), heard(true)), ((true, TURN), (true, 1), (true, 0)));
        (0..2).for_each(|_| other.send(b"two", &[]).unwrap());
        assert_eq!(heard(false), (false, 1));
        drop(other);
        assert_eq!((heard(true), heard(true)), ((false, 1), (false, 0)));
    }
}
