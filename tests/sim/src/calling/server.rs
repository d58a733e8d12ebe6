//! The server: it probes its lanes, serves, and follows the shipped idle policy.

use super::world::{CallLane, FENCE, MESSAGE, PROBE, Request, SERVER, Said, Serving, World};
use crate::cpus::{Act, Cpus};
use crate::recorded::Parked;
use std::time::Duration;
use upcall_os::processor::CpuSet;
use upcall_sched::pacing::Yielded;
use upcall_sched::poller::{
    BeforeServing, IdleEvent, IdleStep, PollWish, ServedRequest, StackSupply, StayWish, WakeReason,
    Wakeup,
};
use upcall_shm::tally::Arrival;

impl World {
    /// A step of the server.
    pub(super) fn serve(&mut self, cpus: &mut Cpus) -> Act {
        let (cpu, now) = cpus.place(SERVER);
        match std::mem::replace(&mut self.server.phase, Serving::Probes) {
            Serving::Probes => self.probe(cpus),
            Serving::Serves { lane } => {
                let Some(request) = self.lanes[lane].request.take() else { return Act::Run(PROBE) };
                self.server.phase = Serving::Replies { lane, request };
                Act::Run(MESSAGE + self.handler)
            }
            Serving::Replies { lane, request } => {
                self.reply(cpus, lane, request);
                Act::Run(MESSAGE)
            }
            Serving::Steps(event) => self.rest(cpus, event),
            Serving::Yielded { since } => {
                let took = Duration::from_nanos(now - since);
                self.rest(cpus, IdleEvent::Yielded(took))
            }
            Serving::YieldedToCallers { offers } => {
                if self.lanes.iter().any(|lane| lane.request.is_some()) {
                    return self.rest(cpus, IdleEvent::CallersYielded(Yielded::Arrived));
                }
                if offers == 2 {
                    return self.rest(cpus, IdleEvent::CallersYielded(Yielded::Nothing));
                }
                self.server.phase = Serving::YieldedToCallers { offers: offers + 1 };
                Act::Yield
            }
            Serving::Migrates(to) => {
                self.said.cpu = Some(cpu as u32);
                self.rest(cpus, IdleEvent::Migrated(to))
            }
            Serving::Parks => self.park(cpus),
            Serving::Announces => {
                self.said.asleep = true;
                self.server.phase = Serving::LooksAgain;
                Act::Run(FENCE)
            }
            Serving::LooksAgain => {
                if self.lanes.iter().any(|lane| lane.request.is_some()) {
                    self.said = Said { asleep: false, cpu: Some(cpu as u32) };
                    return Act::Run(PROBE);
                }
                self.seen.parks += 1;
                let said = self.said.cpu.unwrap_or(u32::MAX);
                self.server.phase = Serving::Sleeps { said, since: now };
                Act::Sleep(None)
            }
            Serving::Sleeps { said, since } => {
                // The caller that moved the server has published the CPU for it.
                let cpu = cpu as u32;
                self.said = Said { asleep: false, cpu: Some(cpu) };
                let slept = Duration::from_nanos(now - since);
                let woken = Wakeup { said, cpu, slept, reason: WakeReason::Notified };
                self.policy(cpus, |poller, trace, facts| trace.woke(poller, woken, facts));
                (self.server.slept, self.server.round) = (true, 0);
                Act::Run(PROBE)
            }
        }
    }

    pub(super) fn probe(&mut self, cpus: &mut Cpus) -> Act {
        let waits = |lanes: &[CallLane], lane: usize| lanes[lane].request.is_some();
        let donors = self.policy(cpus, |poller, trace, facts| {
            trace.take_donors(poller, facts, |lane| waits(facts.lanes, lane))
        });
        let (next, count) = (self.server.next, self.lanes.len());
        let mut others = (next..next + count).map(|at| at % count);
        let Some(lane) = donors.or_else(|| others.find(|lane| waits(&self.lanes, *lane))) else {
            self.server.round += 1;
            let round = self.server.round;
            let stacks = StackSupply::Enough;
            self.server.phase = Serving::Steps(IdleEvent::NothingFound { round, stacks });
            return Act::Run(PROBE);
        };
        (self.server.round, self.server.next) = (0, lane + 1);
        self.server.phase = Serving::Serves { lane };
        let found = (lane, lane as u64);
        match self.policy(cpus, |poller, trace, facts| trace.found(poller, found, facts)) {
            BeforeServing::Serve => Act::Run(PROBE),
            BeforeServing::GiveBack(None) => Act::Yield,
            BeforeServing::GiveBack(Some(to)) => {
                self.migrates(cpus, &to);
                self.policy(cpus, |poller, trace, facts| trace.migrated(poller, to, facts));
                Act::Run(PROBE)
            }
        }
    }

    pub(super) fn migrates(&mut self, cpus: &mut Cpus, to: &CpuSet) {
        self.seen.migrations += 1;
        self.said.cpu = None;
        self.confine(cpus, to.clone());
    }

    /// The server confines itself.
    pub(super) fn confine(&mut self, cpus: &mut Cpus, to: CpuSet) {
        if !to.iter().all(|cpu| self.home.contains(cpu)) {
            self.strange = Some(to.clone());
        }
        cpus.confine(SERVER, to);
    }

    pub(super) fn reply(&mut self, cpus: &mut Cpus, lane: usize, request: Request) {
        self.used_at_last_call = cpus.used(SERVER);
        let at = &mut self.lanes[lane];
        (at.reply, at.donated) = (true, request.donates);
        if std::mem::take(&mut at.asleep) {
            cpus.wake(1 + lane, cpus.place(SERVER).1);
        }
        self.seen.donated += u64::from(request.donates);
        let came = match (std::mem::take(&mut self.server.slept), request.donates) {
            (true, true) => Arrival::HandOff,
            (true, false) => Arrival::Wake,
            (false, true) => Arrival::Donation,
            (false, false) => Arrival::Spin,
        };
        let stay = if request.asks_to_stay { StayWish::Stay } else { StayWish::Sleep };
        let donated = request.donates.then_some(stay);
        let served = ServedRequest {
            lane: Some(lane),
            client: lane as u64,
            came,
            donated,
            wish: PollWish::Poll,
        };
        self.policy(cpus, |poller, trace, facts| trace.served(poller, served, facts));
    }

    /// What the policy makes the server do after this event.
    pub(super) fn rest(&mut self, cpus: &mut Cpus, event: IdleEvent) -> Act {
        let now = cpus.place(SERVER).1;
        let step = self.policy(cpus, |poller, trace, facts| trace.step(poller, event, facts));
        self.server.phase = match step {
            IdleStep::PollAgain => return Act::Run(PROBE),
            IdleStep::Park => Serving::Parks,
            IdleStep::Yield | IdleStep::YieldToServer(_) => {
                self.server.phase = Serving::Yielded { since: now };
                return Act::Yield;
            }
            IdleStep::YieldToCallers => {
                self.seen.yields += 1;
                self.server.phase = Serving::YieldedToCallers { offers: 1 };
                return Act::Yield;
            }
            IdleStep::Migrate(to) => {
                self.migrates(cpus, &to);
                Serving::Migrates(to)
            }
        };
        Act::Run(PROBE)
    }

    pub(super) fn park(&mut self, cpus: &mut Cpus) -> Act {
        let place = self.policy(cpus, |poller, trace, facts| trace.parks(poller, facts));
        self.server.phase = Serving::Announces;
        match place {
            Parked::Here => self.said.cpu = Some(cpus.place(SERVER).0 as u32),
            Parked::Near(cpu) => {
                self.seen.near += 1;
                self.confine(cpus, CpuSet::only(cpu as usize));
                self.said.cpu = Some(cpu);
            }
            Parked::Home(home) => {
                self.confine(cpus, home);
                self.said.cpu = None;
            }
        }
        Act::Run(FENCE)
    }
}
