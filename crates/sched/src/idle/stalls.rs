//! The stall checks of a virtual processor whose calls wait ([`stall`](crate::stall)).
//!
//! A timer wakes the virtual processor for a check while it sleeps with calls under way. Setting
//! the timer costs a system call, so it is set at most once in each [`FIRST_PAUSE`]: most sleeps
//! find it set. A check says nothing about a request that was sent after the pause began; another
//! first pause follows then.

use crate::calls::VpLane;
use crate::stall::{FIRST_PAUSE, Finding, StallCheck};
use std::sync::Arc;
use std::time::Duration;

/// The checks of one virtual processor.
#[derive(Default)]
pub(super) struct StallChecks {
    state: TimerState,
    /// Set if a request was sent since the pause began.
    sent: bool,
    /// In the order of the processor's lanes; `None` for a lane without calls under way.
    lanes: Vec<Option<StallCheck>>,
}

/// State of the timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum TimerState {
    #[default]
    Off,
    /// Set, to [`FIRST_PAUSE`].
    First,
    /// Set, to a longer pause.
    Later,
}

impl StallChecks {
    /// Begins the checks again, because a request was sent.
    #[inline]
    pub(super) fn request_sent(&mut self) {
        self.sent = true;
        if self.state == TimerState::Later {
            self.begin_again();
        }
    }

    /// Begins the checks again, because the processor's lanes have changed or there is no timer.
    pub(super) fn begin_again(&mut self) {
        self.lanes.clear();
        self.state = TimerState::Off;
    }

    /// Time until the next check, if the timer is to be set for it now. Called before the processor
    /// sleeps.
    #[inline]
    pub(super) fn next(&mut self, lanes: &[Arc<VpLane>]) -> Option<Duration> {
        if self.state == TimerState::Off && lanes.iter().any(|lane| lane.is_calling()) {
            self.begin_pause(lanes)
        } else {
            None
        }
    }

    /// Returns `true` if the timer is set for a check.
    pub(super) fn is_next(&self) -> bool {
        matches!(self.state, TimerState::First | TimerState::Later)
    }

    #[cold]
    fn begin_pause(&mut self, lanes: &[Arc<VpLane>]) -> Option<Duration> {
        let begin = |lane: &Arc<VpLane>| StallCheck::new(lane.probes());
        self.lanes.resize(lanes.len(), None);
        for (check, lane) in self.lanes.iter_mut().zip(lanes) {
            *check = lane.is_calling().then(|| check.unwrap_or_else(|| begin(lane)));
        }
        let pause = self.lanes.iter().flatten().map(StallCheck::pause).min()?;
        self.sent = false;
        self.state = if pause > FIRST_PAUSE { TimerState::Later } else { TimerState::First };
        Some(pause)
    }

    /// Checks all lanes, and reports those that are stalled. Called when a timer of the processor
    /// has expired.
    pub(super) fn check(&mut self, lanes: &[Arc<VpLane>]) {
        for (check, lane) in self.lanes.iter_mut().zip(lanes) {
            if let Some(check) = check.as_mut().filter(|_| lane.is_calling())
                && check.check(lane.probes(), lane.is_server_asleep()) == Finding::Stalled
            {
                lane.report_stall();
            }
        }
        self.state = TimerState::Off;
        if self.sent {
            self.lanes.clear();
        }
    }
}
