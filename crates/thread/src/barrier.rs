//! A barrier that blocks threads and never their processors.

use crate::block::Waited;
use crate::condvar::Condvar;
use crate::deadline::{after, shielded};
use crate::mutex::{Mutex, MutexGuard};
use std::fmt;
use std::time::{Duration, Instant};

/// A place where a number of threads wait for each other, again and again.
///
/// As `std::sync::Barrier`, for both kinds of threads.
pub struct Barrier {
    state: Mutex<BarrierRound>,
    complete: Condvar,
    parties: usize,
}

struct BarrierRound {
    arrived: usize,
    /// Number of rounds that are complete.
    round: u64,
}

/// What [`Barrier::wait`] returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BarrierWaitResult {
    is_leader: bool,
}

impl BarrierWaitResult {
    /// Returns `true` if the calling thread was the last to arrive. Each round has one such thread.
    pub fn is_leader(&self) -> bool {
        self.is_leader
    }
}

impl Barrier {
    /// Creates a barrier for `parties` threads. With 0 or 1 no thread waits.
    pub const fn new(parties: usize) -> Self {
        Self {
            state: Mutex::new(BarrierRound { arrived: 0, round: 0 }),
            complete: Condvar::new(),
            parties,
        }
    }

    /// Blocks the calling thread until all have arrived.
    ///
    /// If its own deadline ([`with_deadline`](crate::with_deadline)) cuts the wait short, the
    /// thread does not count as arrived.
    pub fn wait(&self) -> BarrierWaitResult {
        match self.meet(None) {
            Some(result) => result,
            None => unreachable!("a wait without a deadline has timed out"),
        }
    }

    /// As [`wait`](Self::wait), for at most `timeout`.
    ///
    /// Returns `None` if not all had arrived by then; the calling thread then does not count as
    /// arrived.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<BarrierWaitResult> {
        self.meet(after(timeout))
    }

    fn meet(&self, deadline: Option<Instant>) -> Option<BarrierWaitResult> {
        let mut state = self.state.lock();
        state.arrived += 1;
        if state.arrived >= self.parties {
            state.arrived = 0;
            state.round += 1;
            drop(state);
            self.complete.notify_all();
            return Some(BarrierWaitResult { is_leader: true });
        }
        let absence = ArrivalGuard { barrier: self, round: state.round };
        let mut state = self.wait_for_round(state, deadline);
        let met = state.round != absence.round;
        if !met {
            state.arrived -= 1;
        }
        std::mem::forget(absence);
        met.then_some(BarrierWaitResult { is_leader: false })
    }

    fn wait_for_round<'a>(
        &'a self,
        mut state: MutexGuard<'a, BarrierRound>,
        deadline: Option<Instant>,
    ) -> MutexGuard<'a, BarrierRound> {
        let round = state.round;
        let mut waited = Waited::Woken;
        while state.round == round && waited == Waited::Woken {
            (state, waited) = self.complete.wait_by(state, deadline);
        }
        state
    }
}

/// Takes an arrival back when the thread leaves by unwinding, unless its round is complete.
struct ArrivalGuard<'a> {
    barrier: &'a Barrier,
    round: u64,
}

impl Drop for ArrivalGuard<'_> {
    fn drop(&mut self) {
        let mut state = shielded(|| self.barrier.state.lock());
        if state.round == self.round {
            state.arrived -= 1;
        }
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Barrier").field("parties", &self.parties).finish_non_exhaustive()
    }
}
