//! The reaper: a server's first thread, which does the work beside the calls.
//!
//! When a client unbinds or dies, its objects are dropped. The drops are the server's code: they
//! may block, take long, or call other domains. So they run where the server's procedures run, on
//! threads of its scheduler, and never on the clerk, which all clients need.
//!
//! A server that is stopped ends when the calls and the drops under way have ended. It cuts off
//! nothing that it has begun (LRPC, section 5.3, says so of the work for dead clients).

use crate::session::Orphans;
use std::mem;
use std::sync::Arc;
use std::time::Duration;
use upcall_os::fault::{Point, point};
use upcall_os::lock::{KernelMutex, MutexGuard};
use upcall_thread::{Builder, Waiter, block_unless, sleep};

/// First and longest interval at which an ending server checks whether its calls have ended.
const LOOKS: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(50));

/// The list of objects to drop, and the state of the server; see the module.
#[derive(Default)]
pub(crate) struct Reaper(KernelMutex<ReaperState>);

#[derive(Default)]
struct ReaperState {
    orphans: Vec<Orphans>,
    /// Number of threads that drop objects.
    dropping: usize,
    stopped: bool,
    /// Set when the scheduler ends: no more threads are started on it.
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

    /// Drops objects on a thread of the server, or on a kernel thread if the server has ended.
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

    /// Does the work that arrives until the server is stopped. Blocks the calling thread of the
    /// server.
    pub(crate) fn keep(self: &Arc<Self>) {
        loop {
            self.drop_orphans();
            if self.state().stopped {
                return;
            }
            // No wake is lost. A change that was made before is visible here under the lock, and a
            // thread that makes a change later finds the waiter.
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

    /// Waits until all drops have ended and `calls_run` returns `false`. Blocks the calling thread
    /// of the server. After that, nothing starts on the server's scheduler.
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

    /// Does the remaining work on the calling kernel thread, for a server that never began or has
    /// ended.
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
            // Without memory for a thread, this thread drops them now.
            drop(Builder::new().name("upcall-drops").spawn(move || drop(drops)));
        }
    }
}

/// The fields are dropped in this order.
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
