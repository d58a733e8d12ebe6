//! The clerk: the one kernel thread of a domain that watches its control connections.
//!
//! Source: LRPC, section 3.1, where a clerk in the server's runtime answers binders. Here it also learns of the end of peers, from the kernel (the closing
//! of their sockets, and their pidfds), never from a heartbeat. It sleeps unless something happens.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use upcall_os::once::Once;
use upcall_os::poll::{PollSet, Report};
use upcall_os::processor;

/// The stack of the clerk, and of other threads that ask a server's policy, in bytes.
pub const STACK: usize = 256 << 10;

/// Something that the clerk watches.
pub trait Watched: Send + Sync {
    /// What is watched.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Something happened. Returns whether to go on watching; if not, it is forgotten.
    fn happened(&self, hung_up: bool) -> bool;

    /// Handling that ended in a panic. Returns whether to go on watching. What it concerns is not to be waited for by anybody.
    fn failed(&self) -> bool;
}

/// This domain's clerk.
pub struct Clerk {
    set: PollSet,
    watched: Mutex<All>,
}

/// What is watched, by number, and the last number given.
#[derive(Default)]
struct All {
    last: u64,
    watched: HashMap<u64, Arc<dyn Watched>>,
}

impl Clerk {
    /// The clerk, whose thread is started at the first use.
    ///
    /// # Errors
    /// No descriptor, no memory or no kernel thread left.
    pub fn current() -> io::Result<&'static Self> {
        static CLERK: Once<Arc<Clerk>> = Once::new();
        let clerk = CLERK.get(|| {
            let clerk = Arc::new(Self { set: PollSet::new()?, watched: Mutex::default() });
            let worker = clerk.clone();
            std::thread::Builder::new().name("upcall-clerk".into()).stack_size(STACK).spawn(move || worker.work())?;
            Ok(clerk)
        });
        clerk.map(|clerk| &**clerk)
    }

    fn watched(&self) -> MutexGuard<'_, All> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a descriptor. Returns its number.
    ///
    /// # Errors
    /// It cannot be waited for, or no memory is left.
    pub fn watch(&self, watched: Arc<dyn Watched>, report: Report) -> io::Result<u64> {
        let mut all = self.watched();
        all.last += 1;
        let key = all.last;
        self.set.add(watched.descriptor(), key, report)?;
        all.watched.insert(key, watched);
        Ok(key)
    }

    /// Watches it no longer.
    pub fn forget(&self, key: u64) {
        let gone = self.watched().watched.remove(&key);
        if let Some(gone) = gone {
            self.set.remove(gone.descriptor());
            // Dropped after the lock was released: its drop may come back here.
            drop(gone);
        }
    }

    fn work(&self) {
        // What it does is short, and peers wait for it: not behind a thread of this domain that polls.
        processor::ask_for_short_slices();
        let mut ready = Vec::new();
        loop {
            self.set.wait(&mut ready, None);
            for event in &ready {
                let Some(watched) = self.watched().watched.get(&event.key).cloned() else { continue };
                // A fault in the handling of one peer ends that peer's connection, not the clerk.
                let handled = catch_unwind(AssertUnwindSafe(|| watched.happened(event.hung_up)));
                let keep = handled.unwrap_or_else(|_| catch_unwind(AssertUnwindSafe(|| watched.failed())).unwrap_or(false));
                if !keep {
                    self.forget(event.key);
                }
            }
        }
    }
}
