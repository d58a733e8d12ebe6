//! Operations of a thread on itself: its identity, yielding, sleeping, parking.

use crate::block::{Published, WaitEnd, Waited, wait, wait_numbered};
use crate::current::{Me, current_record};
use crate::deadline::{Deadline, after};
use crate::record::{Cause, Rec};
use crate::recycle;
use crate::vp::here;
use crate::waiter::Ticket;
use std::ptr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A number that is unique to a thread within this process, and never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ThreadId(u64);

/// A handle to a thread.
///
/// It keeps the thread's stack from being reused, so do not hoard handles of ended threads.
pub struct Thread {
    rec: Rec,
}

impl Thread {
    pub(crate) fn of(rec: Rec) -> Self {
        rec.acquire();
        Self { rec }
    }

    /// The thread's number.
    pub fn id(&self) -> ThreadId {
        ThreadId(self.rec.id.get())
    }

    /// The thread's name, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.rec.extra()?.name()
    }

    /// Makes the thread's current or next [`park`] return. Any kernel thread may call this.
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
        recycle::release(self.rec);
    }
}

impl std::fmt::Debug for Thread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Thread").field("id", &self.id().0).field("name", &self.name()).finish()
    }
}

/// The calling thread: user-level on a virtual processor, else the kernel thread.
pub fn current() -> Thread {
    Thread::of(current_record())
}

/// Gives every other ready thread of this processor a turn.
///
/// On an ordinary kernel thread this is the kernel's yield.
#[inline(always)]
pub fn yield_now() {
    match here() {
        Some(vp) => vp.yield_now(),
        None => std::thread::yield_now(),
    }
}

/// Lets outside work run if there is some, for code that computes for long.
///
/// If calls of other domains or messages wait, they get a turn before this returns, and so does
/// every other ready thread. Costs some 20 to 50 ns if there are none. On an ordinary kernel thread
/// it does nothing.
#[inline]
pub fn safe_point() {
    if let Some(vp) = here() {
        vp.safe_point();
    }
}

/// Blocks the calling thread for at least `duration`.
///
/// While other threads keep the processor busy, deadlines are checked on every 64th change of
/// threads.
pub fn sleep(duration: Duration) {
    sleep_while(after(duration));
}

/// Blocks the calling thread until `deadline` has passed.
pub fn sleep_until(deadline: Instant) {
    sleep_while(Some(deadline));
}

/// `None` stands for a time that never comes.
fn sleep_while(deadline: Option<Instant>) {
    let me = Me::find();
    let bound = Deadline::of(me, deadline);
    wait(me, Cause::Sleep, ptr::null(), bound.at, |_| Published::Yes);
    bound.passed();
}

/// Values of `Record::token`: neither parked nor notified, or notified. Any other value is the
/// number of the wait to end.
///
/// Since the word names the wait, a slow `unpark` cannot end some later wait of the thread.
const EMPTY: u64 = 0;
const NOTIFIED: u64 = 1;

/// Blocks the calling thread until [`Thread::unpark`], or returns at once if that came first.
///
/// May return spuriously.
pub fn park() {
    park_until(None);
}

/// As [`park`], for at most `duration`.
pub fn park_timeout(duration: Duration) -> Waited {
    park_until(after(duration))
}

fn park_until(deadline: Option<Instant>) -> Waited {
    let me = Me::find();
    let bound = Deadline::of(me, deadline);
    let ended = wait_numbered(me, Cause::Park, ptr::null(), bound.at, |mine| {
        match me.rec.token.compare_exchange(
            EMPTY,
            mine.number(),
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => Published::Yes,
            Err(_) => Published::No,
        }
    });
    // An unpark between the deadline and this point is consumed, as if it had come in time.
    let notified = me.rec.token.swap(EMPTY, Ordering::AcqRel) == NOTIFIED;
    match ended {
        WaitEnd::TimedOut if !notified => {
            bound.passed();
            Waited::TimedOut
        }
        _ => Waited::Woken,
    }
}
