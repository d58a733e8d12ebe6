//! The end of a thread: what it leaves, and how its joiner gets that.
//!
//! The result lies on the thread's stack. So the stack is free again when the thread has ended, has
//! been joined or detached, and no [`Thread`] names it any more.
//!
//! A thread that is joined from its own processor takes one locked operation in its life: the
//! joiner says that it waits. That the thread is done is then a plain store, unless a [`Thread`]
//! names it. For a joiner on another processor it is a second locked operation.

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

/// What a thread leaves behind is complete, but for its values.
#[inline(always)]
pub(crate) fn leave_result(me: Rec) {
    me.has_result.set(true);
    if let Some(extra) = me.extra() {
        extra.locals.end();
    }
}

/// The thread is done: wakes its joiner, or drops the result of a detached thread.
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
        // The drop of the result may have made values, which are dropped on their own thread.
        if let Some(extra) = me.extra() {
            extra.locals.end();
        }
    }
}

/// The wait for the end of `me`, where `JOINING` was seen.
#[inline(always)]
pub(crate) fn joiner(me: Rec) -> QueuedWait {
    // SAFETY: the joiner stored itself, by `to_raw`, before it set `JOINING`.
    let rec = unsafe { from_raw(me.joiner.load(Ordering::Relaxed)) };
    QueuedWait::of(
        rec.expect("the joiner names itself before it sets JOINING"),
        me.joiner_number.load(Ordering::Relaxed),
    )
}

fn discard_result(rec: Rec) {
    if rec.has_result.replace(false) {
        let table = rec.table.get().expect("the spawner sets how to drop the result");
        // SAFETY: the flag said that the result is there, and says so no more.
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
    /// The thread of `rec` leaves a `T`, and this handle has one of its references.
    #[inline(always)]
    pub(crate) unsafe fn of(rec: Rec) -> Self {
        Self { rec, returns: PhantomData }
    }

    /// Waits for the thread to end and returns what it returned, or what it panicked with.
    ///
    /// Blocks the calling thread only; on an ordinary kernel thread, that.
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

    /// Waits for the end; whether it came.
    #[inline(always)]
    fn wait(&self, deadline: Option<Instant>) -> bool {
        let rec = self.rec;
        let me = Me::find();
        let bound = Deadline::of(me, deadline);
        let ended = wait(me, Cause::Join, rec.as_raw(), bound.at, |mine| {
            rec.joiner.store(to_raw(mine.rec()), Ordering::Relaxed);
            rec.joiner_number.store(mine.number(), Ordering::Relaxed);
            // An addition, for the flag is not set: a processor that is asked for what was there
            // before loops for anything else.
            if rec.word.fetch_add(JOINING, Ordering::AcqRel) & DONE == 0 {
                Published::Yes
            } else {
                Published::No
            }
        });
        ended != WaitEnd::TimedOut || self.withdraw(bound)
    }

    /// The joiner's deadline has passed. If the thread has not ended, it will not wake a joiner by
    /// what the fields hold now, whenever it read them: their number has been drawn. Whether it
    /// has.
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
        // SAFETY: `DONE` was seen, or the wake that follows it; the result is the packet's first
        // field, of this type by the type of the handle, and there is one handle, used up
        // here.
        let result = unsafe { rec.packet.get().cast::<std::thread::Result<T>>().read() };
        recycle::release(rec);
        result
    }

    /// Whether the thread has ended, so that `join` would not wait.
    pub fn is_finished(&self) -> bool {
        self.rec.word.load(Ordering::Acquire) & DONE != 0
    }

    /// The thread.
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
