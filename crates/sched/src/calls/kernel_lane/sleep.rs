//! The sleep of a kernel thread until its reply comes, and the wake when the channel is closed.
//!
//! The caller announces its sleep on the lane's word, so that no wake-up is lost
//! ([`crate::sleep`]). While it sleeps it checks that the server is not stalled, that the channel
//! is open, and that the call has not been abandoned.

use super::{KernelCalling, KernelLane};
use crate::calls::server::CalledServer;
use crate::sleep;
use crate::stall::{Finding, StallCheck};
use crate::wait::Closed;
use crate::wait_limit::{CancelToken, WaitLimit};
use std::time::Duration;
use upcall_os::fault::{Point, point};
use upcall_os::futex::{self, FutexScope};

/// Maximum time that a kernel thread sleeps before it checks again that its channel is open.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);

impl KernelLane {
    /// Sleeps until the reply is there. Returns `false` if it is not there by `until`.
    pub(super) fn sleep_for_reply(
        &self,
        server: &CalledServer,
        lane: &KernelCalling,
        until: WaitLimit<'_>,
    ) -> Result<bool, Closed> {
        let sleeper = &self.control.sleeper;
        let _entered = until.cancel.map(|token| token.enter_lane(&self.control));
        let mut check = StallCheck::new(server.probes());
        let mut slept = Duration::ZERO;
        loop {
            sleep::announce(sleeper);
            point(Point::Sleeps);
            if lane.slot.waits() {
                sleep::retract(sleeper);
                return Ok(true);
            }
            if let Err(reason) = server.check() {
                sleep::retract(sleeper);
                return Err(reason);
            }
            // The server can write the word, and so undo the wake of a closing channel; so the
            // sleep is bounded.
            let left = until.left(check.pause().min(LONGEST_SLEEP));
            if left.is_zero() {
                sleep::retract(sleeper);
                return Ok(false);
            }
            // The fence of `announce` makes this the exact check that a waker owes (sleep.rs). Once
            // is enough: after a stall check another caller may have moved the server elsewhere.
            if slept.is_zero() && server.is_asleep() {
                server.bring(&self.control);
                server.notify(!until.is_for_ever());
            }
            let waited = futex::wait(sleeper, 1, FutexScope::Shared, Some(left));
            if lane.slot.waits() {
                sleep::retract(sleeper);
                return Ok(true);
            }
            let timed_out = waited == futex::WaitOutcome::TimedOut;
            if timed_out {
                slept += left;
                let asleep = server.is_asleep();
                if check.check(server.probes(), asleep) == Finding::Stalled {
                    server.report_stall();
                }
            }
            // A caller calls `ask` after a signal, and after each of the longest sleeps.
            let asks = !timed_out || slept >= LONGEST_SLEEP;
            if asks {
                slept = Duration::ZERO;
            }
            if asks && until.cancel.is_some_and(CancelToken::asks) {
                sleep::retract(sleeper);
                return Ok(false);
            }
        }
    }

    /// Wakes the thread that sleeps on the lane, after the channel was closed. Drops the consumer
    /// of a late reply that no thread waits for.
    pub(crate) fn wake_closed(&self) {
        sleep::retract(&self.control.sleeper);
        futex::wake(&self.control.sleeper, u32::MAX, FutexScope::Shared);
        // A thread that waits for a late reply takes its consumer itself.
        let forgotten = self.calling.try_lock().and_then(|mut lane| lane.late.take());
        drop(forgotten);
    }
}
