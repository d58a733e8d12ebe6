//! Hosts that leave a machine whose tasks are balanced: their tasks move to other hosts first.
//!
//! A state machine without input and output. After each round it gets what keeps the tasks that are
//! left on a host ([`LeavingHosts::step`]). The processes of the host end when no task is left,
//! when those that are left have refused to move for [`TRIES`] rounds in a row, or after
//! [`WITHIN`].

use super::HostIndex;
use super::rounds::LeftTasks;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time within which the tasks of a host leave.
pub(crate) const WITHIN: Duration = Duration::from_secs(60);
/// Number of rounds in a row in which tasks are tried that refuse to move.
pub(super) const TRIES: u32 = 10;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct LeavingHosts(BTreeMap<HostIndex, LeavingHost>);

#[derive(Clone, Copy, Debug)]
struct LeavingHost {
    until: Instant,
    tries: u32,
}

/// What becomes of a host that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaveStep {
    /// Its tasks are tried again.
    Again,
    /// Its processes end, with the tasks that are left.
    Ends,
}

impl LeavingHosts {
    /// A host begins to leave. Returns the time at which its processes end in any case.
    pub(crate) fn begin(&mut self, host: HostIndex, now: Instant) -> Instant {
        let begun = LeavingHost { until: now + WITHIN, tries: 0 };
        self.0.entry(host).or_insert(begun).until
    }

    /// The hosts that leave.
    pub(crate) fn all(&self) -> Vec<HostIndex> {
        self.0.keys().copied().collect()
    }

    /// Returns `true` if no host leaves.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Decides about a host after a round, at whose end these of its tasks were left. A host that
    /// ends is forgotten.
    pub(crate) fn step(&mut self, host: HostIndex, left: LeftTasks, now: Instant) -> LeaveStep {
        let Some(leaving) = self.0.get_mut(&host) else { return LeaveStep::Ends };
        leaving.tries = if left == LeftTasks::Some { leaving.tries.saturating_add(1) } else { 0 };
        let is_over = match left {
            LeftTasks::None => true,
            LeftTasks::Some => leaving.tries >= TRIES,
            LeftTasks::Soon => false,
        };
        match is_over || self.is_late(host, now) {
            true => {
                self.0.remove(&host);
                LeaveStep::Ends
            }
            false => LeaveStep::Again,
        }
    }

    /// Returns `true` if the time is over within which the tasks of a host should have left.
    pub(crate) fn is_late(&self, host: HostIndex, now: Instant) -> bool {
        self.0.get(&host).is_some_and(|leaving| leaving.until <= now)
    }

    /// Forgets a host whose processes have ended. Returns `true` if it was leaving.
    pub(crate) fn forget(&mut self, host: HostIndex) -> bool {
        self.0.remove(&host).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_ends_when_its_tasks_have_left_or_cannot() {
        let now = Instant::now();
        let steps = |left: LeftTasks| {
            let mut hosts = LeavingHosts::default();
            hosts.begin(1, now);
            (0..100).take_while(|_| hosts.step(1, left, now) == LeaveStep::Again).count()
        };
        assert_eq!(steps(LeftTasks::None), 0);
        assert_eq!(steps(LeftTasks::Some), TRIES as usize - 1);
        // Tasks that may move very soon are waited for, until time is over.
        assert_eq!(steps(LeftTasks::Soon), 100);
        // Rounds in which a task may move very soon are no refusals.
        let mut hosts = LeavingHosts::default();
        hosts.begin(1, now);
        for left in [LeftTasks::Soon, LeftTasks::Some].repeat(TRIES as usize) {
            assert_eq!(hosts.step(1, left, now), LeaveStep::Again);
        }
        let mut hosts = LeavingHosts::default();
        let until = hosts.begin(1, now);
        assert_eq!(hosts.begin(1, now + WITHIN / 2), until);
        assert_eq!((hosts.all(), hosts.is_late(1, now)), (vec![1], false));
        assert_eq!(hosts.step(1, LeftTasks::Soon, until), LeaveStep::Ends);
        assert!(hosts.is_empty() && !hosts.forget(1) && !hosts.is_late(1, until));
    }
}
