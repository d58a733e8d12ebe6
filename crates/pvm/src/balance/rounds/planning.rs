//! What a round decides, and what becomes of its moves: without input and output, so that tests
//! drive the shipped code through hours of a machine.

use super::{BalancingRounds, RefusedMove, RoundPhase, Spread};
use crate::balance::{HostIndex, LoadView, PlannedMove};
use crate::moves::NotMoved;
use crate::shown::MoveCost;
use crate::tid::Tid;
use std::time::Instant;
use upcall_message::Rank;

impl BalancingRounds {
    /// Plans the moves of a round: evacuations, moves within hosts, and moves between hosts if the
    /// loads were measured just now.
    pub(crate) fn plan_round(
        &mut self,
        view: &LoadView,
        spread: Option<Spread>,
        now: Instant,
    ) -> Vec<PlannedMove> {
        let balancer = self.plan.balancer;
        let is_blind = balancer.is_none() || self.loads.is_empty();
        let mut plan = match spread {
            Some(Spread::ByNumber) if is_blind => view.spread(),
            _ => view.plan(balancer),
        };
        self.note_overload(view.overloaded().filter(|_| plan.is_empty()), now);
        let is_measured = self.phase == RoundPhase::Measures && view.spans_hosts();
        if let Some(kind) = balancer.filter(|_| is_measured) {
            plan.extend(self.between.plan(&view.after(&plan), kind, now));
        }
        plan
    }

    /// Notes a move of a task of this program, which may lead from one host to another.
    pub(crate) fn has_moved_between(
        &mut self,
        (tid, program): (Tid, &str),
        between: (HostIndex, HostIndex),
        cost: MoveCost,
        now: Instant,
    ) {
        self.refused.remove(&tid);
        if between.0 == between.1 {
            return;
        }
        let load = self.loads.get(&tid).map_or(0, |known| known.load);
        // The pause is what other hosts claim. The first process has measured the whole time.
        let pause = cost.pause.min(cost.total);
        self.bars.moved(tid, program, between.1);
        self.between.far.moved((tid, load), between, pause, now);
    }

    /// Notes why a task of this program was not moved to a process. `far` is the host of that
    /// process, if it is another one than that of the task.
    pub(crate) fn was_refused(
        &mut self,
        (tid, program): (Tid, &str),
        to: Rank,
        far: Option<HostIndex>,
        why: &NotMoved,
        now: Instant,
    ) {
        if matches!(why, NotMoved::NoTask | NotMoved::Ended | NotMoved::Killed | NotMoved::Here) {
            return;
        }
        self.refused.insert(tid, RefusedMove { to, why: why.clone() });
        if let Some(host) = far {
            self.bars.note((tid, program), host, why, now);
        }
    }
}
