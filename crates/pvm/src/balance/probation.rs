//! Tasks that have moved between hosts: for how long each stays, what its move has cost, and
//! whether its new host gives it work.
//!
//! # What a host that lies about its loads can reach
//! A host may claim that it is idle. Then it gets tasks, which it does not serve. So a task that
//! moves counts as *unproved* until its new host claims at least half of the load that it had
//! before, and again whenever the host claims less than that. With `n` unproved tasks from another
//! host, on `p` processes, the next one from there comes no sooner than [`WAIT`] × 2^(n / p) after
//! the last one. A task counts for [`PROBATION`]. So in ten minutes such a host gets about six
//! tasks for each of its processes and each host that gives some. A host that claims half of each
//! load gets twice its share at most.
//!
//! A host may as well claim loads that its tasks do not have. Then its tasks move to other hosts,
//! each as rarely as any task, and keep that host only from sending more of them there: unproved
//! tasks are counted by the host that they come from.

use super::{HostIndex, LoadView};
use crate::tid::Tid;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time for which a task stays on a host to which it has moved; twice as long after each move that
/// follows soon.
pub(super) const STAYS: Duration = Duration::from_secs(10);
/// The longest time for which a task stays.
const LONGEST: Duration = Duration::from_secs(600);
/// A task that has stayed for this number of times its stay begins with the shortest one again.
const FORGIVEN: u32 = 8;
/// Time to the next task for a host all of whose processes have one unproved task: half of it.
pub(super) const WAIT: Duration = Duration::from_secs(10);
/// Time for which a task counts that has moved to a host.
pub(super) const PROBATION: Duration = Duration::from_secs(600);
/// Number of rounds after which a host's claims about a new task count. Before that they are
/// averages with what another host has claimed.
const CLAIMED: u32 = 4;
/// Maximum number of tasks that one host gets from another one in a round.
pub(super) const AT_ONCE: u64 = 4;
/// The pause that is expected before any task has moved to a host.
pub(super) const PAUSE: Duration = Duration::from_millis(100);
/// The longest pause that is believed: no move takes longer.
const MOST_PAUSE: Duration = Duration::from_secs(600);
/// Time in which half of what was unusual in a pause is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct FarTasks {
    /// Each task that has moved between hosts and has not ended.
    tasks: BTreeMap<Tid, FarTask>,
    /// The mean pause of moves to each host.
    pauses: BTreeMap<HostIndex, SeenPause>,
}

/// A task that has moved between hosts.
#[derive(Clone, Copy, Debug)]
struct FarTask {
    /// The host that it has left, and the one on which it is.
    between: (HostIndex, HostIndex),
    /// When it came.
    since: Instant,
    stays: Duration,
    pause: Duration,
    /// Its load on the host that it has left.
    promised: u64,
    /// Number of rounds since it came.
    rounds: u32,
    claim: HostClaim,
}

/// What a host says of the load of a task that has moved there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostClaim {
    /// Less than half of what the task had before, or nothing yet.
    Unproved,
    Proved,
}

/// A pause, and when it was measured.
#[derive(Clone, Copy, Debug)]
struct SeenPause {
    pause: Duration,
    at: Instant,
}

impl SeenPause {
    /// The pause that is to be expected now.
    fn expected(self, now: Instant) -> Duration {
        let age = now.saturating_duration_since(self.at).as_secs_f64();
        let part = (-age / FORGOTTEN.as_secs_f64()).exp2();
        let (pause, usual) = (self.pause.as_secs_f64(), PAUSE.as_secs_f64());
        // Between the two, and so no time that cannot be.
        Duration::from_secs_f64(usual + (pause - usual) * part)
    }
}

impl FarTasks {
    /// Notes that a task, with the load that it had, has moved from one host to another.
    pub(crate) fn moved(
        &mut self,
        (tid, promised): (Tid, u64),
        between: (HostIndex, HostIndex),
        pause: Duration,
        now: Instant,
    ) {
        let pause = pause.min(MOST_PAUSE);
        let stays = match self.tasks.get(&tid) {
            Some(before)
                if now.saturating_duration_since(before.since) < before.stays * FORGIVEN =>
            {
                (before.stays * 2).min(LONGEST)
            }
            _ => STAYS,
        };
        let (rounds, claim) = (0, HostClaim::Unproved);
        let moved = FarTask { between, since: now, stays, pause, promised, rounds, claim };
        self.tasks.insert(tid, moved);
        let mean = match self.pauses.get(&between.1) {
            Some(before) => (before.expected(now) + pause) / 2,
            None => pause,
        };
        self.pauses.insert(between.1, SeenPause { pause: mean, at: now });
    }

    /// Forgets a task that has ended.
    pub(crate) fn forget(&mut self, tid: Tid) {
        self.tasks.remove(&tid);
    }

    /// Takes in what hosts have reported of their tasks in a round.
    pub(super) fn note_claims(&mut self, view: &LoadView) {
        for task in &view.tasks {
            let Some(moved) = self.tasks.get_mut(&task.tid) else { continue };
            moved.rounds = moved.rounds.saturating_add(1);
            let is_proved = moved.rounds >= CLAIMED && task.load >= moved.promised / 2;
            moved.claim = if is_proved { HostClaim::Proved } else { HostClaim::Unproved };
        }
    }

    /// Returns `true` if a task has stayed on its host for long enough.
    pub(super) fn may_move(&self, tid: Tid, now: Instant) -> bool {
        let stays = |moved: &FarTask| now.saturating_duration_since(moved.since) < moved.stays;
        !self.tasks.get(&tid).is_some_and(stays)
    }

    /// The number of tasks that may move from one host to another in this round. The other one has
    /// so many processes in use.
    pub(super) fn quota(
        &self,
        between: (HostIndex, HostIndex),
        processes: u64,
        now: Instant,
    ) -> u64 {
        let counts = |moved: &&FarTask| {
            moved.between == between && now.saturating_duration_since(moved.since) < PROBATION
        };
        let unproved = |moved: &&FarTask| moved.claim == HostClaim::Unproved;
        let all = self.tasks.values().filter(counts).filter(unproved);
        let (count, last) =
            all.fold((0, None), |(count, last), moved| (count + 1, last.max(Some(moved.since))));
        // The first process measures its own host.
        let Some(last) = last.filter(|_| between.1 != 0) else { return processes.min(AT_ONCE) };
        let doublings = u32::try_from(count / processes.max(1)).unwrap_or(u32::MAX).min(16);
        let wait = WAIT.saturating_mul(1 << doublings);
        u64::from(now.saturating_duration_since(last) >= wait)
    }

    /// The pause that is expected of a task's move to a host.
    pub(super) fn pause(&self, tid: Tid, to: HostIndex, now: Instant) -> Duration {
        let own = |moved: &FarTask| SeenPause { pause: moved.pause, at: moved.since };
        let own = self.tasks.get(&tid).map(own);
        let seen = own.or_else(|| self.pauses.get(&to).copied());
        seen.map_or(PAUSE, |seen| seen.expected(now))
    }
}
