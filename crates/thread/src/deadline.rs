//! Deadlines of threads: a wait that would outlast the deadline is cut short.
//!
//! The thread then leaves what it was doing. It is not stopped from outside, at some arbitrary
//! point; it stops itself, where it waits. So a thread that computes for long under a deadline
//! should check [`deadline`] now and then. It leaves by unwinding, as in a panic, but without the
//! panic hook: guards are dropped, and locks are free again. While a thread unwinds, its waits are
//! not cut short, or a destructor that waits would end the process. The standard library tracks
//! panics by kernel thread. So waits that begin while another thread of the same processor, in the
//! middle of a panic, waits in a destructor, are not cut short either.

use crate::current::{Me, current_record};
use crate::extra::Extra;
use crate::record::Rec;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

/// The error of [`with_deadline`] when its deadline has cut a wait short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeadlinePassed;

impl fmt::Display for DeadlinePassed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the thread was still waiting at its deadline")
    }
}

impl std::error::Error for DeadlinePassed {}

/// The payload that unwinds a thread whose deadline has passed.
struct Cut;

/// Runs `body`, in which no wait of the calling thread lasts beyond `at`.
///
/// A wait that would last longer is cut short at `at`, and `body` is left by unwinding, with
/// everything in it dropped. On a processor that is kept busy, deadlines are checked on every 64th
/// change of threads.
///
/// This applies to waits of this crate that have no deadline of their own, or a later one: locks,
/// conditions, joins, channels, [`sleep`](crate::sleep), [`park`](crate::park) and so on. It does
/// not apply to [`block`](crate::block), the end of a [`scope`](crate::scope), or
/// [`blocking`](crate::blocking). Of nested deadlines the earliest counts. A `body` that does not
/// wait is not cut short; a thread that computes for long should check [`deadline`]. On an ordinary
/// kernel thread all this is the same.
///
/// The crate must be compiled with unwinding (the default); with `panic = "abort"` a deadline that
/// passes ends the process. Data under a lock whose guard is dropped this way may be half changed,
/// as after a panic.
///
/// ```
/// use std::time::{Duration, Instant};
/// use upcall_thread as thread;
///
/// thread::run(|| {
///     let held = thread::Mutex::new(0);
///     let _guard = held.lock();
///     let soon = Instant::now() + Duration::from_millis(5);
///     assert!(thread::with_deadline(soon, || *held.lock()).is_err());
/// });
/// ```
///
/// # Errors
/// [`DeadlinePassed`] when this deadline has cut a wait short.
///
/// # Panics
/// If `body` panics.
pub fn with_deadline<T>(at: Instant, body: impl FnOnce() -> T) -> Result<T, DeadlinePassed> {
    let extra = current_record().extra_or_new(Extra::default);
    let outer = extra.deadline.get();
    extra.deadline.set(Some(outer.map_or(at, |outer| outer.min(at))));
    let outcome = catch_unwind(AssertUnwindSafe(body));
    extra.deadline.set(outer);
    match outcome {
        Ok(result) => Ok(result),
        // If this deadline has not passed, an outer one cut the wait short.
        Err(payload) if payload.is::<Cut>() && Instant::now() >= at => Err(DeadlinePassed),
        Err(payload) => resume_unwind(payload),
    }
}

/// The calling thread's deadline, if it runs inside [`with_deadline`].
///
/// The deadline of a call from another domain is not one of the thread that serves it: see
/// [`calls_end`], which is `upcall::deadline` for programs.
#[inline]
pub fn deadline() -> Option<Instant> {
    deadline_of(current_record())
}

/// Runs `body`, in which calls of the calling thread to other domains end at `at` at the latest.
///
/// Nothing else ends then, and `body` continues. So a thread that works for a caller with a
/// deadline is not cut off, but no longer waits for other domains on that caller's behalf. Of
/// nested deadlines the earliest counts.
pub fn with_calls_that_end<T>(at: Instant, body: impl FnOnce() -> T) -> T {
    struct Back<'a>(&'a Extra, Option<Instant>);
    impl Drop for Back<'_> {
        fn drop(&mut self) {
            self.0.calls_end.set(self.1);
        }
    }
    let extra = current_record().extra_or_new(Extra::default);
    let outer = extra.calls_end.get();
    extra.calls_end.set(Some(outer.map_or(at, |outer| outer.min(at))));
    let _back = Back(extra, outer);
    body()
}

/// The latest end of calls of the calling thread to other domains.
///
/// This is the thread's own deadline ([`with_deadline`]), or that of the call from another domain
/// that it runs. A thread that serves a call can find out how long its caller waits.
#[inline]
pub fn calls_end() -> Option<Instant> {
    current_record().extra().and_then(earliest)
}

#[inline(never)]
fn earliest(extra: &Extra) -> Option<Instant> {
    extra.deadline.get().into_iter().chain(extra.calls_end.get()).min()
}

/// The deadline of a thread, for itself.
#[inline(always)]
pub(crate) fn deadline_of(rec: Rec) -> Option<Instant> {
    rec.extra().and_then(|extra| extra.deadline.get())
}

/// Runs `wait` without the thread's deadline, for waits that must not be cut short.
pub(crate) fn shielded<T>(wait: impl FnOnce() -> T) -> T {
    let Some(extra) = current_record().extra() else { return wait() };
    let before = extra.deadline.take();
    let result = wait();
    extra.deadline.set(before);
    result
}

/// The end of a wait of at most `timeout` that begins now.
///
/// Returns `None` if that is beyond the range of the clock, so that the wait has no end.
pub(crate) fn after(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

/// The latest end of a wait.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    pub(crate) at: Option<Instant>,
    /// `at` is the thread's deadline.
    cuts: bool,
}

impl Deadline {
    /// The wait's own deadline or the thread's, whichever is earlier.
    #[inline(always)]
    pub(crate) fn of(me: Me, own: Option<Instant>) -> Self {
        match me.rec.extra() {
            None => Self { at: own, cuts: false },
            Some(extra) => Self::with(own, extra),
        }
    }

    #[cold]
    fn with(own: Option<Instant>, extra: &Extra) -> Self {
        match extra.deadline.get() {
            Some(at) if own.is_none_or(|own| at < own) && !std::thread::panicking() => {
                Self { at: Some(at), cuts: true }
            }
            _ => Self { at: own, cuts: false },
        }
    }

    /// Handles a wait that has timed out, of a thread that is no longer in any queue.
    ///
    /// Returns if the wait's own deadline has passed; unwinds if the thread's has.
    pub(crate) fn passed(self) {
        if self.cuts {
            // Until `with_deadline` is left, destructors wait for as long as they must.
            if let Some(extra) = current_record().extra() {
                extra.deadline.set(None);
            }
            resume_unwind(Box::new(Cut));
        }
    }
}
