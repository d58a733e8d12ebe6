//! What a virtual processor does when none of its threads is ready.
//!
//! URPC, section 3.1 (U7 here): channels are polled by lowest-priority work, so that only a
//! processor which would otherwise idle looks for messages; and where the ready queue is empty the
//! idle loop runs in the blocked thread's own context, so that its own wake-up returns without a
//! switch.

use crate::vp::Vp;
use std::time::Instant;

/// What one look for outside work found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// Threads of this processor were made ready, by [`Waiter::wake`](crate::Waiter::wake) or
    /// [`spawn`](crate::spawn).
    Woke,
    /// Work that wants a thread: [`Idle::work`] will be called once.
    Work,
}

/// What a virtual processor does when no thread is ready.
///
/// `poll` and `rest` run on the stack of whichever thread blocked last. They must not block through
/// this crate, nor yield, nor panic: any of these aborts the process, since the thread under them
/// is half suspended.
pub trait Idle: Send + Sync + 'static {
    /// The calling kernel thread has become virtual processor `vp`; no thread has run on it yet.
    fn begin(&self, vp: &Vp) {
        let _ = vp;
    }

    /// It is about to stop being one; nothing more will run on it.
    fn end(&self, vp: &Vp) {
        let _ = vp;
    }

    /// One look for outside work. Never blocks. May make threads ready, by waking or by spawning.
    fn poll(&self, vp: &Vp) -> Found;

    /// Whether `poll` would find what a processor with threads to run should not leave for long.
    /// Asked at every 64th choice of the next thread; a few nanoseconds, and no more than a look.
    fn is_pressed(&self, vp: &Vp) -> bool {
        let _ = vp;
        false
    }

    /// Runs one piece of work that `poll` announced, on a thread of its own that may block, yield
    /// and spawn.
    ///
    /// A panic ends this piece of work only: it is reported by the panic hook and then dropped.
    fn work(&self, vp: &Vp);

    /// Nothing was found `round` times in a row (1, 2, 3, …): spin a little, or block the kernel
    /// thread until [`unpark`](Self::unpark), an arrival, or `deadline` (the earliest sleeping
    /// thread). May return early at any time.
    ///
    /// It does not block beyond [`Vp::cools_at`], or calls [`Vp::cool`] by itself then.
    ///
    /// Before it blocks it announces that it is parked, issues a SeqCst fence, and looks once more
    /// at [`Vp::has_work`] and at its own sources; [`Parker`](crate::Parker) does the first two and
    /// calls back for the third.
    fn rest(&self, vp: &Vp, round: u32, deadline: Option<Instant>);

    /// Something was found after one or more `rest`s: a thread is about to run, or the work that
    /// `poll` announced.
    fn resume(&self, vp: &Vp) {
        let _ = vp;
    }

    /// Something was put where processor `vp` finds it, and a SeqCst fence issued: if it is parked
    /// or about to be, wake it. Called by any kernel thread.
    fn unpark(&self, vp: usize);
}
