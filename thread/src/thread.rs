//! The thread seen from inside: who it is, giving way, sleeping, parking.

use crate::kernel;
use crate::record::Rec;
use crate::spawn::reuse;
use crate::vp::here;
use crate::waiter::{Ticket, Waited, block_until};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A number that no other thread of this process has or will have.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ThreadId(u64);

/// A handle of a thread. It keeps the thread's stack from being reused, so do not hoard those of ended threads.
pub struct Thread {
    rec: Rec,
}

impl Thread {
    pub(crate) fn of(rec: Rec) -> Self {
        rec.acquire();
        Self { rec }
    }

    /// Its number.
    pub fn id(&self) -> ThreadId {
        ThreadId(self.rec.id.get())
    }

    /// Its name, if it was given one.
    pub fn name(&self) -> Option<&str> {
        // SAFETY: written before the thread was known to anybody, cleared when no handle is left; this is a handle.
        unsafe { &*self.rec.name.get() }.as_deref()
    }

    /// Lets the thread's current or next [`park`] return. Any kernel thread may call this.
    pub fn unpark(&self) {
        match self.rec.token.swap(NOTIFIED, Ordering::AcqRel) {
            EMPTY | NOTIFIED => {}
            number => {
                Ticket { rec: self.rec, number }.wake();
            }
        }
    }
}

impl Clone for Thread {
    fn clone(&self) -> Self {
        Self::of(self.rec)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if self.rec.release() {
            reuse(self.rec);
        }
    }
}

impl std::fmt::Debug for Thread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Thread").field("id", &self.id().0).field("name", &self.name()).finish()
    }
}

fn current_record() -> Rec {
    here().map_or_else(kernel::mine, |vp| vp.current())
}

/// The calling thread: user-level on a virtual processor, else the kernel thread.
pub fn current() -> Thread {
    Thread::of(current_record())
}

/// Gives every other ready thread of this processor a turn. On an ordinary kernel thread, the kernel's yield.
#[inline(always)]
pub fn yield_now() {
    match here() {
        Some(vp) => vp.yield_now(),
        None => std::thread::yield_now(),
    }
}

/// Blocks the calling thread for at least `duration`.
///
/// While other threads keep the processor busy, deadlines are looked at on every 64th change of threads.
pub fn sleep(duration: Duration) {
    sleep_until(Instant::now() + duration);
}

/// Blocks the calling thread until `deadline` has passed.
pub fn sleep_until(deadline: Instant) {
    block_until(Some(deadline), |_| {});
}

/// `Record::token`: neither parked nor notified, or notified, or else the number of the wait that is to be ended. That
/// the word names the wait is what keeps a slow `unpark` from ending some later wait of the thread.
const EMPTY: u64 = 0;
const NOTIFIED: u64 = 1;

/// Blocks the calling thread until [`Thread::unpark`]; returns at once if that came first. May return without cause.
pub fn park() {
    park_until(None);
}

/// As [`park`], at most for `duration`.
pub fn park_timeout(duration: Duration) -> Waited {
    park_until(Some(Instant::now() + duration))
}

fn park_until(deadline: Option<Instant>) -> Waited {
    let me = current_record();
    let waited = if me.token.load(Ordering::Acquire) == NOTIFIED {
        Waited::Woken
    } else {
        block_until(deadline, |ticket| {
            let parked = me.token.compare_exchange(EMPTY, ticket.number, Ordering::AcqRel, Ordering::Acquire);
            if parked.is_err() {
                ticket.wake();
            }
        })
    };
    // An unpark that comes between the deadline and here is consumed, as if it had come in time.
    me.token.swap(EMPTY, Ordering::AcqRel);
    waited
}
