//! Calls that wait for helpers, and helpers that wait for calls; how a call that is under way is
//! interrupted; and how its end is told.
//!
//! **No call waits beside an idle helper.** Both are counted under one lock: who adds a call starts
//! a helper if more wait than helpers are idle, and wakes one in any case. One that has waited for
//! long enough ends only if it finds, under the lock, that nothing is there.
//!
//! **No end is lost.** A helper first notes that a call is done, then rings; who looks first
//! silences the doorbell, then takes the notes. So what is noted after that has its ring after
//! that, too.
//!
//! **No interruption is lost.** `stop` is set first, and only then, under the call's lock, it is
//! looked which helper runs it; a helper writes that down under the same lock before it looks at
//! `stop`. So either who interrupts finds the helper, and sends it a signal, or the helper sees
//! `stop`. The signal finds it while it runs this call, and no other: it is sent under the lock,
//! which the helper takes at the call's end.
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

/// See the module.
pub struct HelperPool<T> {
    work: Mutex<PoolState<T>>,
    come: Condvar,
    /// Whether notes may be there: for those who look often.
    noted: AtomicBool,
    most: usize,
}

struct PoolState<T> {
    queue: VecDeque<T>,
    helpers: usize,
    idle: usize,
    /// The tokens of those that are done.
    notes: Vec<u64>,
    over: bool,
}

impl<T> HelperPool<T> {
    /// Of so many helpers at most: what is added beyond them waits.
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

    /// Adds a call, and starts a helper for it if all are busy. It is not added if there is none,
    /// and none can be started.
    pub fn add<E>(&self, call: T, start: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut work = locked(&self.work);
        work.queue.push_back(call);
        // Those that wait before it have an idle one each.
        if work.queue.len() > work.idle && work.helpers < self.most {
            match start() {
                Ok(()) => work.helpers += 1,
                Err(error) if work.helpers == 0 => {
                    work.queue.pop_back();
                    return Err(error);
                }
                // One of those that are there will have time.
                Err(_) => {}
            }
        }
        drop(work);
        self.come.notify_one();
        Ok(())
    }

    /// The next call for a helper. `None`: it is to end, for there was none for so long, or all is
    /// over.
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

    /// A call is done. The caller of this rings the doorbell after it.
    pub fn note(&self, token: u64) {
        let mut work = locked(&self.work);
        work.notes.push(token);
        self.noted.store(true, Ordering::Release);
    }

    /// Whether notes may be there, at the price of a load.
    pub fn is_noted(&self) -> bool {
        self.noted.load(Ordering::Acquire)
    }

    /// Takes the notes. A thread that waits by the doorbell has silenced it before.
    pub fn take_notes(&self) -> Vec<u64> {
        let mut work = locked(&self.work);
        self.noted.store(false, Ordering::Relaxed);
        mem::take(&mut work.notes)
    }

    /// Helpers end when nothing is left to be done.
    pub fn end(&self) {
        locked(&self.work).over = true;
        self.come.notify_all();
    }
}

/// Of one call: who runs it, whether it is to stop, and what came of it. `K` is kept until it is
/// done, if that is asked for.
pub struct HelperRun<K> {
    stop: AtomicU32,
    progress: Mutex<RunProgress<K>>,
}

struct RunProgress<K> {
    /// The thread that runs it.
    helper: Option<i32>,
    result: Option<i64>,
    keep: Option<K>,
}

impl<K> HelperRun<K> {
    /// Of a call that nobody runs yet.
    pub fn new() -> Self {
        let progress = RunProgress { helper: None, result: None, keep: None };
        Self { stop: AtomicU32::new(0), progress: Mutex::new(progress) }
    }

    /// What came of it. `None`: nothing yet.
    pub fn result(&self) -> Option<i64> {
        locked(&self.progress).result
    }

    /// It ends as soon as it can, if it is not done: `signal` is called with the helper that runs
    /// it, if one does, and only while it does.
    pub fn interrupt(&self, signal: impl FnOnce(i32)) {
        self.stop.store(1, Ordering::SeqCst);
        // Under the lock, so that the helper is with this call still.
        let progress = locked(&self.progress);
        if let Some(helper) = progress.helper {
            signal(helper);
        }
    }

    /// Keeps this until it is done, and interrupts it; if it is done, drops it at once.
    pub fn keep(&self, kept: K, signal: impl FnOnce(i32)) {
        let mut progress = locked(&self.progress);
        if progress.result.is_none() {
            progress.keep = Some(kept);
            drop(progress);
            self.interrupt(signal);
        }
    }

    /// Runs it on this helper: `call` is to look at what it is given, and not to begin, or to end,
    /// with `interrupted` if that is not 0; it is called again if it ends so by itself.
    pub fn carry_out(&self, helper: i32, interrupted: i64, call: impl Fn(&AtomicU32) -> i64) {
        locked(&self.progress).helper = Some(helper);
        let result = loop {
            let result = call(&self.stop);
            // What was sent to stop the call before may come late.
            if result != interrupted || self.stop.load(Ordering::SeqCst) != 0 {
                break result;
            }
        };
        let mut progress = locked(&self.progress);
        (progress.helper, progress.result) = (None, Some(result));
        let kept = progress.keep.take();
        drop(progress);
        drop(kept);
    }
}

impl<K> Default for HelperRun<K> {
    fn default() -> Self {
        Self::new()
    }
}
