//! The protocol between calls that wait for helpers, and helpers that wait for calls.
//!
//! It also covers how a call under way is interrupted, and how its end is reported.
//!
//! **No call waits while a helper is idle.** Both are counted under one lock. A thread that adds a
//! call starts a helper if more calls wait than helpers are idle, and wakes one in any case. A
//! helper that has been idle for long enough ends only if it finds, under the lock, that the queue
//! is empty.
//!
//! **No end is lost.** A helper first notes that a call is done, then rings. The reader first
//! silences the doorbell, then takes the notes. So a note made after that is also followed by a
//! ring after that.
//!
//! **No interruption is lost.** The interrupter first sets `stop`, and only then, under the call's
//! lock, reads which helper runs the call. A helper stores its number under the same lock before it
//! checks `stop`. So either the interrupter finds the helper, and sends it a signal, or the helper
//! sees `stop`. The signal arrives while the helper runs this call, and no other: it is sent under
//! the lock, which the helper takes at the call's end.
//!
//! Models: `tests/models/loom_aside.rs`.

#[cfg(not(loom))]
use std::sync::{
    Condvar, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

#[cfg(loom)]
use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, Ordering},
};
#[cfg(loom)]
use std::sync::PoisonError;

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The calls that wait and the helpers that run them; see the module comment.
pub struct HelperPool<T> {
    work: Mutex<PoolState<T>>,
    come: Condvar,
    /// There may be notes: a hint for frequent checks.
    noted: AtomicBool,
    most: usize,
}

struct PoolState<T> {
    queue: VecDeque<T>,
    helpers: usize,
    idle: usize,
    /// The tokens of calls that are done.
    notes: Vec<u64>,
    over: bool,
}

impl<T> HelperPool<T> {
    /// Creates a pool of at most `most` helpers; further calls wait.
    pub fn new(most: usize) -> Self {
        let work = PoolState {
            queue: VecDeque::new(),
            helpers: 0,
            idle: 0,
            notes: Vec::new(),
            over: false,
        };
        Self { work: Mutex::new(work), come: Condvar::new(), noted: AtomicBool::new(false), most }
    }

    /// Adds a call, and starts a helper for it if all are busy.
    ///
    /// # Errors
    /// The error of `start`, if there is no helper and none can be started. The call is not added
    /// then.
    pub fn add<E>(&self, call: T, start: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut work = locked(&self.work);
        work.queue.push_back(call);
        // The calls that wait before this one have an idle helper each.
        if work.queue.len() > work.idle && work.helpers < self.most {
            match start() {
                Ok(()) => work.helpers += 1,
                Err(error) if work.helpers == 0 => {
                    work.queue.pop_back();
                    return Err(error);
                }
                // One of the helpers will get to it.
                Err(_) => {}
            }
        }
        drop(work);
        self.come.notify_one();
        Ok(())
    }

    /// Waits for the next call for a helper.
    ///
    /// Returns `None` if the helper is to end: no call came for `lazy`, or the pool has ended.
    pub fn next(&self, lazy: Duration) -> Option<T> {
        let mut work = locked(&self.work);
        loop {
            if let Some(call) = work.queue.pop_front() {
                return Some(call);
            }
            if work.over {
                work.helpers -= 1;
                return None;
            }
            work.idle += 1;
            let (again, waited) =
                self.come.wait_timeout(work, lazy).unwrap_or_else(PoisonError::into_inner);
            work = again;
            work.idle -= 1;
            if waited.timed_out() && work.queue.is_empty() {
                work.helpers -= 1;
                return None;
            }
        }
    }

    /// Notes that a call is done. The caller rings the doorbell afterwards.
    pub fn note(&self, token: u64) {
        let mut work = locked(&self.work);
        work.notes.push(token);
        self.noted.store(true, Ordering::Release);
    }

    /// Returns `true` if there may be notes, at the price of a load.
    pub fn is_noted(&self) -> bool {
        self.noted.load(Ordering::Acquire)
    }

    /// Takes the notes. A thread that waits on the doorbell has silenced it before.
    pub fn take_notes(&self) -> Vec<u64> {
        let mut work = locked(&self.work);
        self.noted.store(false, Ordering::Relaxed);
        mem::take(&mut work.notes)
    }

    /// Makes helpers end when nothing is left to do.
    pub fn end(&self) {
        locked(&self.work).over = true;
        self.come.notify_all();
    }
}

/// The state of one call: its helper, whether it is to stop, and its result.
///
/// On request, a `K` is kept until the call is done.
pub struct HelperRun<K> {
    stop: AtomicU32,
    progress: Mutex<RunProgress<K>>,
}

struct RunProgress<K> {
    /// The thread that runs the call.
    helper: Option<i32>,
    result: Option<i64>,
    keep: Option<K>,
}

impl<K> HelperRun<K> {
    /// The state of a call that no helper runs yet.
    pub fn new() -> Self {
        let progress = RunProgress { helper: None, result: None, keep: None };
        Self { stop: AtomicU32::new(0), progress: Mutex::new(progress) }
    }

    /// The result; `None` if the call is not done yet.
    pub fn result(&self) -> Option<i64> {
        locked(&self.progress).result
    }

    /// Ends the call as soon as possible, if it is not done.
    ///
    /// `signal` is called with the helper that runs the call, if there is one, and only while it
    /// does.
    pub fn interrupt(&self, signal: impl FnOnce(i32)) {
        self.stop.store(1, Ordering::SeqCst);
        // Under the lock, so that the helper is still running this call.
        let progress = locked(&self.progress);
        if let Some(helper) = progress.helper {
            signal(helper);
        }
    }

    /// Keeps `kept` until the call is done, and interrupts the call.
    ///
    /// If the call is done, `kept` is dropped at once, and the result is returned.
    pub fn keep(&self, kept: K, signal: impl FnOnce(i32)) -> Option<i64> {
        let mut progress = locked(&self.progress);
        if progress.result.is_none() {
            progress.keep = Some(kept);
            drop(progress);
            self.interrupt(signal);
            return None;
        }
        progress.result
    }

    /// Runs the call on this helper.
    ///
    /// `call` checks the word that it is given. If that is not 0, it must not begin, or must end,
    /// with the result `interrupted`. It is called again if it ends with that result while the word
    /// is 0. Returns the result only if the call's owner has ended ([`keep`](Self::keep)).
    pub fn carry_out(
        &self,
        helper: i32,
        interrupted: i64,
        call: impl Fn(&AtomicU32) -> i64,
    ) -> Option<i64> {
        locked(&self.progress).helper = Some(helper);
        let result = loop {
            let result = call(&self.stop);
            // A signal that was sent to stop the previous call may arrive late.
            if result != interrupted || self.stop.load(Ordering::SeqCst) != 0 {
                break result;
            }
        };
        let mut progress = locked(&self.progress);
        (progress.helper, progress.result) = (None, Some(result));
        let kept = progress.keep.take();
        drop(progress);
        kept.map(|_| result)
    }
}

impl<K> Default for HelperRun<K> {
    fn default() -> Self {
        Self::new()
    }
}
