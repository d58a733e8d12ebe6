//! Which tests of this program run at the same time.
//!
//! Most tests wait for other processes most of the time, so more of them run at a time than there
//! are processors. A test that measures time runs alone, when no other test is left. If it ran
//! earlier, it would hold up the tests behind it until the longest of those before it has ended.
//!
//! A test that waits for a time-out of the product takes no place from those that compute.
//!
//! `tests/runner/stages.py` gives this program one thread for each test that runs alone, and some
//! more.

use std::thread::available_parallelism;
use upcall_os::lock::{KernelCondvar, KernelMutex, MutexGuard};

static MACHINE: Machine = Machine {
    state: KernelMutex::new(State { running: 0, idle: 0, waiting: 0, is_taken: false }),
    changed: KernelCondvar::new(),
};

struct Machine {
    state: KernelMutex<State>,
    changed: KernelCondvar,
}

/// Numbers of tests that do not run alone.
struct State {
    running: usize,
    /// Those of `running` that wait for a time-out.
    idle: usize,
    waiting: usize,
    /// Whether a test runs alone.
    is_taken: bool,
}

impl Machine {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn wait_while(&self, condition: impl FnMut(&mut State) -> bool) -> MutexGuard<'_, State> {
        self.changed.wait_while(self.state(), condition)
    }
}

/// Reserves the machine for one test until it is dropped.
pub(crate) struct Alone(());

/// For a test that measures time: no other test of this program runs until it has ended.
pub(crate) fn alone() -> Alone {
    MACHINE.wait_while(|state| state.is_taken || state.running + state.waiting > 0).is_taken = true;
    Alone(())
}

impl Drop for Alone {
    fn drop(&mut self) {
        MACHINE.state().is_taken = false;
        MACHINE.changed.notify_all();
    }
}

/// Counts a test as one of several until it is dropped.
pub(crate) struct InCompany {
    is_idle: bool,
}

/// For any other test.
pub(crate) fn in_company() -> InCompany {
    let most = 2 * available_parallelism().map_or(1, usize::from);
    join(false, |state| state.running - state.idle >= most)
}

/// For a test that waits for a time-out of several seconds, and computes little.
pub(crate) fn in_idle_company() -> InCompany {
    join(true, |state| state.idle >= MOST_IDLE)
}

/// Maximum number of tests that wait for a time-out at the same time.
const MOST_IDLE: usize = 4;

fn join(is_idle: bool, is_full: impl Fn(&State) -> bool) -> InCompany {
    MACHINE.state().waiting += 1;
    let mut state = MACHINE.wait_while(|state| state.is_taken || is_full(state));
    state.waiting -= 1;
    state.running += 1;
    state.idle += usize::from(is_idle);
    InCompany { is_idle }
}

impl Drop for InCompany {
    fn drop(&mut self) {
        let mut state = MACHINE.state();
        state.running -= 1;
        state.idle -= usize::from(self.is_idle);
        drop(state);
        MACHINE.changed.notify_all();
    }
}
