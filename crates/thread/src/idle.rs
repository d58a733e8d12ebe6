//! What a virtual processor does when none of its threads is ready.
//!
//! URPC, section 3.1 (U7 here): channels are polled by lowest-priority work, so that only a
//! processor that would otherwise idle looks for messages. Where the ready queue is empty, the idle
//! loop runs in the blocked thread's own context, so that its own wake-up returns without a switch.

use crate::vp::Vp;
use std::time::Instant;

/// What one poll for outside work found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// Threads of this processor were made ready, by [`Waiter::wake`](crate::Waiter::wake) or
    /// [`spawn`](crate::spawn).
    Woke,
    /// Work that needs a thread: the scheduler will call [`Idle::work`] once.
    Work,
}

/// What a virtual processor does when no thread is ready.
///
/// `poll` and `rest` run on the stack of the thread that blocked last. They must not block through
/// this crate, yield, or panic: each of these aborts the process, since the thread below them is
/// half suspended.
pub trait Idle: Send + Sync + 'static {
    /// Called when the calling kernel thread has become virtual processor `vp`.
    ///
    /// No thread has run on it yet.
    fn begin(&self, vp: &Vp) {
        let _ = vp;
    }

    /// Called when `vp` is about to stop being a virtual processor.
    ///
    /// Nothing more will run on it.
    fn end(&self, vp: &Vp) {
        let _ = vp;
    }

    /// Polls once for outside work.
    ///
    /// Never blocks. May make threads ready, by waking or by spawning.
    fn poll(&self, vp: &Vp) -> Found;

    /// Returns `true` if `poll` would find work that cannot wait for long.
    ///
    /// A processor with threads to run calls this at every 64th choice of the next thread. It
    /// should take a few nanoseconds and do no more than check.
    fn is_pressed(&self, vp: &Vp) -> bool {
        let _ = vp;
        false
    }

    /// Runs one piece of work that `poll` announced.
    ///
    /// It runs on a thread of its own that may block, yield and spawn. A panic ends this piece of
    /// work only: the panic hook reports it, and then it is dropped.
    fn work(&self, vp: &Vp);

    /// Spins a little or blocks, after `round` polls in a row (1, 2, 3, …) found nothing.
    ///
    /// An implementation that blocks the kernel thread does so until [`unpark`](Self::unpark), an
    /// arrival, or `deadline` (that of the earliest sleeping thread). It may return early at any
    /// time.
    ///
    /// It does not block beyond [`Vp::cools_at`], or else calls [`Vp::cool`] at that time itself.
    ///
    /// Before it blocks, it announces that it is parked, issues a SeqCst fence, and checks
    /// [`Vp::has_work`] and its own sources once more. [`Parker`](crate::Parker) does the first two
    /// and calls back for the third.
    fn rest(&self, vp: &Vp, round: u32, deadline: Option<Instant>);

    /// Called when something was found after one or more calls of `rest`.
    ///
    /// A thread is about to run, or the work that `poll` announced.
    fn resume(&self, vp: &Vp) {
        let _ = vp;
    }

    /// Wakes processor `vp` if it is parked or about to park.
    ///
    /// The caller, any kernel thread, has put something where that processor finds it and has
    /// issued a SeqCst fence.
    fn unpark(&self, vp: usize);
}
