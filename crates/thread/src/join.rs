//! The end of a thread: its result, and how its joiner gets it.
//!
//! The result lies on the thread's stack. So the stack is free again only when the thread has
//! ended, has been joined or detached, and no [`Thread`] names it any more.
//!
//! A thread that is joined from its own processor takes one locked operation in its life: the
//! joiner announces that it waits. The store that marks the thread as done is then a plain one,
//! unless a [`Thread`] names it. For a joiner on another processor it is a second locked operation.

use crate::block::{Published, WaitEnd, wait};
use crate::current::Me;
use crate::deadline::{Deadline, after};
use crate::link::{from_raw, to_raw};
use crate::list::ListedWait;
use crate::record::{Cause, DETACHED, DONE, JOINING, Rec};
use crate::recycle;
use crate::thread::Thread;
use crate::waiter::QueuedWait;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Marks the result as present and drops the thread's own values.
#[inline(always)]
pub(crate) fn leave_result(me: Rec) {
    me.has_result.set(true);
    if let Some(extra) = me.extra() {
        extra.locals.end();
    }
}

/// Marks the thread as done, and wakes its joiner or drops the result of a detached thread.
#[inline(always)]
pub(crate) fn say_done(me: Rec) {
    let before = me.word.fetch_or(DONE, Ordering::AcqRel);
    if before & JOINING != 0 {
        let joiner = joiner(me);
        if joiner.draw() {
            joiner.wake();
        }
    } else if before & DETACHED != 0 {
        discard_result(me);
        // Dropping the result may have created thread-local values, which are dropped on their own
        // thread.
        if let Some(extra) = me.extra() {
            extra.locals.end();
        }
    }
}

/// The joiner's wait for the end of `me`, once `JOINING` was seen.
#[inline(always)]
pub(crate) fn joiner(me: Rec) -> QueuedWait {
    // SAFETY: the joiner stored its record, by `to_raw`, before it set `JOINING`.
    let rec = unsafe { from_raw(me.joiner.load(Ordering::Relaxed)) };
    QueuedWait::of(
        rec.expect("the joiner names itself before it sets JOINING"),
        me.joiner_number.load(Ordering::Relaxed),
    )
}

fn discard_result(rec: Rec) {
    if rec.has_result.replace(false) {
        let table = rec.table.get().expect("the spawner sets how to drop the result");
        // SAFETY: the flag said that the result is there, and has now been cleared.
        unsafe { (table.drop_result)(rec.packet.get()) };
    }
}

/// The right to join a thread. Dropping it detaches the thread, which runs on.
pub struct JoinHandle<T> {
    rec: Rec,
    returns: PhantomData<T>,
}

// SAFETY: the handle gives access to the result, a `T`, and to the record, which is shared between
// kernel threads anyway.
unsafe impl<T: Send> Send for JoinHandle<T> {}
// SAFETY: as above; a shared handle gives no access to the result.
unsafe impl<T: Send> Sync for JoinHandle<T> {}

impl<T> JoinHandle<T> {
    /// # Safety
    /// The result of the thread of `rec` is a `T`, and the handle takes over one reference to the
    /// record.
    #[inline(always)]
    pub(crate) unsafe fn of(rec: Rec) -> Self {
        Self { rec, returns: PhantomData }
    }

    /// Waits for the thread to end and returns its result, or the payload of its panic.
    ///
    /// Blocks the calling thread only; an ordinary kernel thread blocks as such.
    #[inline]
    pub fn join(self) -> std::thread::Result<T> {
        if !self.is_finished() {
            self.wait(None);
        }
        self.result()
    }

    /// As [`join`](Self::join), for at most `timeout`.
    ///
    /// # Errors
    /// The handle itself, if the thread has not ended by then.
    pub fn join_timeout(self, timeout: Duration) -> Result<std::thread::Result<T>, Self> {
        self.join_bound(after(timeout))
    }

    /// As [`join`](Self::join), until `deadline` at most.
    ///
    /// # Errors
    /// The handle itself, if the thread has not ended by then.
    pub fn join_until(self, deadline: Instant) -> Result<std::thread::Result<T>, Self> {
        self.join_bound(Some(deadline))
    }

    fn join_bound(self, deadline: Option<Instant>) -> Result<std::thread::Result<T>, Self> {
        if self.is_finished() || self.wait(deadline) { Ok(self.result()) } else { Err(self) }
    }

    /// Waits for the end. Returns `true` if the thread has ended.
    #[inline(always)]
    fn wait(&self, deadline: Option<Instant>) -> bool {
        let rec = self.rec;
        let me = Me::find();
        let bound = Deadline::of(me, deadline);
        let ended = wait(me, Cause::Join, rec.as_raw(), bound.at, |mine| {
            rec.joiner.store(to_raw(mine.rec()), Ordering::Relaxed);
            rec.joiner_number.store(mine.number(), Ordering::Relaxed);
            // An addition will do, since the flag is not set. An operation that returns the
            // previous value becomes a loop on x86-64 for anything but an addition or an exchange.
            if rec.word.fetch_add(JOINING, Ordering::AcqRel) & DONE == 0 {
                Published::Yes
            } else {
                Published::No
            }
        });
        ended != WaitEnd::TimedOut || self.withdraw(bound)
    }

    /// Takes `JOINING` back after the joiner's deadline. Returns `true` if the thread has ended.
    ///
    /// If it has not ended, it will not wake a joiner by what the fields hold now, whenever it read
    /// them: the number in them has been claimed.
    #[cold]
    fn withdraw(&self, bound: Deadline) -> bool {
        if self.rec.word.fetch_and(!JOINING, Ordering::AcqRel) & DONE != 0 {
            return true;
        }
        bound.passed();
        false
    }

    /// The result of a thread that has ended.
    #[inline(always)]
    fn result(self) -> std::thread::Result<T> {
        let rec = self.rec;
        std::mem::forget(self);
        rec.has_result.set(false);
        // SAFETY: `DONE` was seen, or the wake that follows it. The result is the packet's first
        // field, and its type is that of the handle. There is one handle, which is consumed here.
        let result = unsafe { rec.packet.get().cast::<std::thread::Result<T>>().read() };
        recycle::release(rec);
        result
    }

    /// Returns `true` if the thread has ended, so that `join` would not wait.
    pub fn is_finished(&self) -> bool {
        self.rec.word.load(Ordering::Acquire) & DONE != 0
    }

    /// A handle to the thread.
    pub fn thread(&self) -> Thread {
        Thread::of(self.rec)
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if self.rec.word.fetch_or(DETACHED, Ordering::AcqRel) & DONE != 0 {
            discard_result(self.rec);
        }
        recycle::release(self.rec);
    }
}

impl<T> std::fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinHandle").field("thread", &self.thread()).finish()
    }
}
