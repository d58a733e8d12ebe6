//! The keeper: a server's first thread, which does what is to be done beside the calls.
//!
//! When a client unbinds or dies its objects are dropped. That is the server's code: it may block,
//! take its time, or call other domains. So it runs where the server's procedures run, on threads
//! of its scheduler, and never on the clerk, whom all clients need.
//!
//! A server that is stopped ends when the calls and the drops that are under way have ended:
//! nothing of what it has begun is cut off half-way (LRPC, section 5.3, says so of the work for
//! dead clients).

use crate::session::Orphans;
use std::mem;
use std::sync::Arc;
use std::time::Duration;
use upcall_os::fault::{Point, point};
use upcall_os::lock::{KernelMutex, MutexGuard};
use upcall_thread::{Builder, Waiter, block_unless, sleep};

/// So often a server that ends looks whether its calls have ended, at first and at last.
const LOOKS: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(50));

/// See the module.
#[derive(Default)]
pub(crate) struct Reaper(KernelMutex<ReaperState>);

#[derive(Default)]
struct ReaperState {
    orphans: Vec<Orphans>,
    /// Threads that drop some.
    dropping: usize,
    stopped: bool,
    /// The scheduler ends: no more threads are started on it.
    over: bool,
    asleep: Option<Waiter>,
}

impl Reaper {
    fn state(&self) -> MutexGuard<'_, ReaperState> {
        self.0.lock()
    }

    fn change(&self, change: impl FnOnce(&mut ReaperState)) {
        let mut state = self.state();
        change(&mut state);
        let asleep = state.asleep.take();
        drop(state);
        asleep.into_iter().for_each(Waiter::wake);
    }

    /// Has objects dropped on a thread of the server; if that has ended, on a kernel thread.
    pub(crate) fn take(&self, orphans: Orphans) {
        if orphans.is_empty() {
            return;
        }
        let mut late = Some(orphans);
        self.change(|state| {
            if !state.over {
                state.orphans.extend(late.take());
            }
        });
        if let Some(late) = late {
            upcall_sched::run_late(move || drop(late));
        }
    }

    /// Ends [`Reaper::keep`].
    pub(crate) fn stop(&self) {
        self.change(|state| state.stopped = true);
    }

    /// Does what there is to do until the server is stopped. Blocks the calling thread of the
    /// server.
    pub(crate) fn keep(self: &Arc<Self>) {
        loop {
            self.drop_orphans();
            if self.state().stopped {
                return;
            }
            // No wake is lost: what was changed before is seen here under the lock, and who changes
            // something later finds the waiter.
            block_unless(|waiter| {
                let mut state = self.state();
                if state.stopped || !state.orphans.is_empty() {
                    return Some(waiter);
                }
                state.asleep = Some(waiter);
                None
            });
        }
    }

    /// Waits until all drops have ended, and `calls_run` says that no call is left. Blocks the
    /// calling thread of the server. Afterwards nothing is begun on its scheduler any more.
    pub(crate) fn finish(self: &Arc<Self>, calls_run: impl Fn() -> bool) {
        let (mut pause, longest) = LOOKS;
        loop {
            self.drop_orphans();
            if !calls_run() && self.has_finished() {
                return;
            }
            sleep(pause);
            pause = (2 * pause).min(longest);
        }
    }

    /// Does what is left on the calling kernel thread: a server that never began, or has ended.
    pub(crate) fn leave(&self) {
        let mut state = self.state();
        state.over = true;
        let rest = mem::take(&mut state.orphans);
        drop(state);
        drop(rest);
    }

    fn has_finished(&self) -> bool {
        let mut state = self.state();
        state.over = state.orphans.is_empty() && state.dropping == 0;
        state.over
    }

    fn drop_orphans(self: &Arc<Self>) {
        let all = {
            let mut state = self.state();
            let all = mem::take(&mut state.orphans);
            state.dropping += all.len();
            all
        };
        for orphans in all {
            point(Point::ServerDrops);
            let drops = Drops { _orphans: orphans, _done: ReaperGuard(self.clone()) };
            // Without memory for a thread they are dropped here and now.
            drop(Builder::new().name("upcall-drops").spawn(move || drop(drops)));
        }
    }
}

/// Fields are dropped in this order.
struct Drops {
    _orphans: Orphans,
    _done: ReaperGuard,
}

struct ReaperGuard(Arc<Reaper>);

impl Drop for ReaperGuard {
    fn drop(&mut self) {
        self.0.state().dropping -= 1;
    }
}
