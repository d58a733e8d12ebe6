//! The state of one virtual processor, and its steps while none of its threads is ready.

use super::group::PollingIdle;
use super::own::{index, number, say_where};
use super::queue::TakenPiece;
use super::scan::{FoundWork, LastProbe, Probe, Scan};
use super::stalls::StallChecks;
use super::takeover::Prober;
use super::timer::OwnTimer;
use crate::arrivals::Arrivals;
use crate::domain::Domain;
use crate::pacing::{hand_back, timed_yield, yield_to_server};
use crate::placed::NOWHERE;
use crate::poller::{BeforeServing, Facts, IdleEvent, IdleStep, Poller, Purpose, Wakeup};
use crate::rechecks::write_and_read;
use crate::server::ServerLane;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use upcall_os::atomic::{AtomicU32, Ordering, fence};
use upcall_os::processor;
use upcall_shm::station::Awake;
use upcall_shm::tally::Arrival;
use upcall_thread::{Found, Vp};

thread_local! {
    pub(super) static VIEW: RefCell<ProcessorView> = RefCell::default();
}

/// One virtual processor's own view of the domain.
#[derive(Default)]
pub(super) struct ProcessorView {
    pub(super) scan: Scan,
    pub(super) poller: Poller,
    /// Counts the processor's probes, for callers that wait.
    pub(super) probes: Option<&'static AtomicU32>,
    pub(super) stall_checks: StallChecks,
    /// Indices of the members whose duty the processor has.
    pub(super) duties: Rc<[usize]>,
    pub(super) timer: OwnTimer,
    /// The activity that it last published.
    pub(super) said: Awake,
    /// The piece that the last probe took from the group's queue.
    pub(super) piece: Option<TakenPiece>,
    /// What the next probe takes first, if both a piece and other work wait.
    pub(super) first: First,
}

/// The group's queue and all else that a processor probes take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum First {
    #[default]
    Piece,
    Other,
}

/// What the last probe found.
pub(super) enum Due {
    /// A piece of the group's queue.
    Piece(TakenPiece),
    /// Messages.
    Messages(Rc<dyn Arrivals>),
    /// A request in a lane.
    Calls,
}

/// The result of a rest: whether a virtual processor parks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rested {
    /// It probes again.
    PollAgain,
    /// It parks.
    Park,
}

impl ProcessorView {
    #[inline]
    pub(super) fn refresh(&mut self, processors: &PollingIdle) {
        let generation = processors.group.domain.generation();
        if self.scan.generation != generation {
            self.scan.generation = generation;
            self.share_lanes(processors);
        }
    }

    /// Reads the lanes again, because they or their owners have changed.
    #[cold]
    fn share_lanes(&mut self, processors: &PollingIdle) {
        let me = number();
        self.scan.pay_looks();
        self.duties = processors.duties_of(index());
        let rests = processors.is_spare() && self.duties.is_empty();
        let probers = processors.probers();
        let owner = |lane: &Arc<ServerLane>| (Prober::of(&probers, lane), lane.clone());
        let mut lanes: Vec<_> = processors.lanes().iter().map(owner).collect();
        lanes.iter().for_each(|(owner, lane)| lane.belongs_to(*owner));
        if rests {
            lanes.clear();
        }
        let mut others: Vec<_> = probers.iter().map(|of| of.probes).collect();
        others.sort_unstable();
        others.dedup();
        others.retain(|&other| Some(other) != me);
        self.scan.set_lanes(me, lanes, others);
        let vp_lanes = me.map_or_else(Vec::new, crate::calls::lanes_of);
        self.scan.vp_lanes = Rc::new(vp_lanes);
        self.poller.lanes_changed(if rests { Purpose::Rest } else { Purpose::Work });
        self.stall_checks.begin_again();
    }

    /// Returns the work to run, of what the last probe found.
    #[inline]
    pub(super) fn due(&mut self) -> Due {
        if let Some(piece) = self.piece.take() {
            return Due::Piece(piece);
        }
        self.scan.attending.due().map_or(Due::Calls, Due::Messages)
    }

    /// Returns `true` if this processor may take a piece of the group's queue.
    #[cold]
    fn may_take_piece(&self, processors: &PollingIdle, vp: &Vp) -> bool {
        let rests = processors.is_spare() && self.duties.is_empty();
        let running = || [processors.queue().running()];
        let stacks = || processors.stacks(vp, &self.scan.lanes);
        !rests && vp.has_stack() && vp.can_begin_work() && stacks().allow(running)
    }

    /// Takes a piece of the group's queue. Returns `false` if there is none for this processor.
    #[cold]
    fn take_piece(&mut self, processors: &PollingIdle, vp: &Vp) -> bool {
        if self.may_take_piece(processors, vp) {
            self.piece = processors.take_piece();
        }
        self.piece.is_some()
    }

    /// The sleeper's second probe.
    pub(super) fn waits(&self, processors: &PollingIdle, vp: &Vp) -> bool {
        let piece = processors.queue().waits() && self.may_take_piece(processors, vp);
        piece || self.scan.waits(|| processors.stacks(vp, &self.scan.lanes))
    }

    /// Probes once for work.
    #[inline]
    pub(super) fn probe(&mut self, processors: &PollingIdle, vp: &Vp) -> Found {
        let mut woke = false;
        for lane in self.scan.vp_lanes.iter() {
            woke |= lane.collect();
        }
        let stacks = processors.stacks(vp, &self.scan.lanes);
        let probe = Probe { domain: processors.group.domain, vp, stacks };
        let waits = processors.queue().waits();
        // On a caller's CPU, that caller's calls come first.
        let first = self.first == First::Piece && !self.poller.is_borrowed();
        if waits && first && self.take_piece(processors, vp) {
            self.first = First::Other;
            return self.found_piece(processors, woke);
        }
        let Self { scan, poller, .. } = self;
        let found = scan.find_work(&probe, poller, &mut woke);
        if waits {
            if found.is_none() {
                if self.take_piece(processors, vp) {
                    return self.found_piece(processors, woke);
                }
                // Another processor may have a stack for the piece.
                processors.piece_left();
            }
            self.first = First::Piece;
        }
        let Self { scan, poller, .. } = self;
        if !woke && found.is_none() {
            scan.probed(LastProbe::Nothing);
            return Found::Nothing;
        }
        poller.found();
        if woke {
            poller.found_replies();
        }
        if found == Some(FoundWork::Messages) {
            poller.found_messages();
        }
        scan.probed(LastProbe::Found);
        self.runs(processors);
        if woke {
            // A request that comes to a lane while a thread runs has waited for that thread.
            self.scan.left.1 = Arrival::Wait;
        }
        if let Some(FoundWork::Call(lane)) = found {
            let lanes = &self.scan.lanes;
            self.poller.found_request(|| lanes[lane].owner().client);
            self.give_back(lane);
            if self.scan.wants_help(lane) {
                processors.call_helper();
            }
            self.scan.next = lane;
        }
        if found.is_some() { Found::Work } else { Found::Woke }
    }

    #[cold]
    fn found_piece(&mut self, processors: &PollingIdle, woke: bool) -> Found {
        self.poller.found();
        if woke {
            self.poller.found_replies();
        }
        self.poller.found_messages();
        self.scan.probed(LastProbe::Found);
        self.scan.slept = false;
        self.scan.left.1 = Arrival::Wait;
        self.runs(processors);
        Found::Work
    }

    /// Publishes that it runs something. If a piece waits at that time, the clerk checks
    /// ([`queue`](super::queue)).
    #[inline]
    fn runs(&mut self, processors: &PollingIdle) {
        let domain = processors.group.domain;
        if !processors.queue().is_open() {
            self.say(domain, Awake::Running);
        } else if self.said != Awake::Running {
            let say = || self.say(domain, Awake::Running);
            if write_and_read(say, || processors.queue().waits()) {
                processors.piece_left();
            }
        } else if processors.queue().waits() {
            processors.piece_left();
        }
    }

    /// Takes one step of the idle policy before the next probe, or decides to park.
    #[inline]
    pub(super) fn rest(&mut self, round: u32, deadline: Option<Instant>) -> Rested {
        let event = IdleEvent::NothingFound { round, stacks: self.scan.stacks };
        match self.poller.step(event, deadline, &self.scan) {
            IdleStep::PollAgain => Rested::PollAgain,
            IdleStep::Park => Rested::Park,
            step => self.carry_out(step, deadline),
        }
    }

    #[inline(never)]
    fn carry_out(&mut self, mut step: IdleStep, deadline: Option<Instant>) -> Rested {
        loop {
            let event = match step {
                IdleStep::PollAgain => return Rested::PollAgain,
                IdleStep::Park => return Rested::Park,
                IdleStep::Yield => IdleEvent::Yielded(timed_yield()),
                IdleStep::YieldToServer(offer) => {
                    let (yielded, took) =
                        yield_to_server(offer, self.poller.costs(), || self.scan.has_reply());
                    IdleEvent::ServerYielded(yielded, took)
                }
                IdleStep::YieldToCallers => {
                    IdleEvent::CallersYielded(hand_back(|| self.scan.has_request()))
                }
                IdleStep::Migrate(cpus) => match migrate(&cpus) {
                    Ok(()) => IdleEvent::Migrated(cpus),
                    Err(NotMigrated) => IdleEvent::NotMigrated,
                },
            };
            step = self.poller.step(event, deadline, &self.scan);
        }
    }

    /// Gives the CPU back before the request in lane `next` is served, if it is time.
    fn give_back(&mut self, next: usize) {
        let BeforeServing::GiveBack(cpus) = self.poller.serves(next, &self.scan) else { return };
        match cpus {
            Some(cpus) if migrate(&cpus).is_ok() => self.poller.migrated(cpus),
            _ => processor::give_way(),
        }
    }

    /// Notes that the rest is over: a thread or the work that was found is about to run.
    pub(super) fn resumes(&mut self, processors: &PollingIdle) {
        if self.scan.last() == LastProbe::Nothing {
            self.poller.thread_goes_on();
        }
        self.runs(processors);
    }

    /// Publishes the processor's activity, if that has changed.
    #[inline]
    pub(super) fn say(&mut self, domain: &Domain, awake: Awake) {
        if let (true, Some(number)) = (self.said != awake, number()) {
            self.said = awake;
            domain.station().say(number, awake);
        }
    }

    /// Makes the checks of peers that are owed. With nothing else to do, the CPU goes to a server
    /// that needs one, unless it is to be `kept`.
    #[inline]
    pub(super) fn settle(&mut self, domain: &Domain, kept: bool) {
        let own = &self.scan.lanes[..self.scan.own];
        let vp_lanes = self.scan.vp_lanes.iter().any(|lane| lane.owes_look());
        if own.iter().any(|lane| lane.owes_look()) || vp_lanes {
            self.pay(domain, vp_lanes, kept);
        }
    }

    fn pay(&mut self, domain: &Domain, vp_lanes: bool, kept: bool) {
        if vp_lanes {
            self.stall_checks.request_sent();
        }
        // Published first: the server that gets the CPU reads it at once.
        if vp_lanes && !kept {
            self.say(domain, Awake::Gave);
        }
        self.scan.pay_looks();
        // The fence for the exact check of the servers.
        if vp_lanes {
            fence(Ordering::SeqCst);
        }
        for lane in self.scan.vp_lanes.iter() {
            // One server at a time: others run where they are, side by side with it.
            if lane.look(kept || self.poller.has_given_cpu()) {
                self.poller.gave_cpu();
            }
        }
    }

    /// Returns `true` if it serves one caller on its only CPU, and does nothing else.
    pub(super) fn is_bare(&self) -> bool {
        // A processor that was moved here from another CPU goes back when calls follow each other
        // closely.
        self.poller.has_one_cpu()
            && self.scan.has_one_caller()
            && self.poller.home().is_some_and(|home| home.contains(processor::current()))
    }

    /// Adapts to a wake.
    pub(super) fn woke(&mut self, woken: Wakeup) {
        self.scan.slept = true;
        self.poller.woke(woken, &self.scan);
    }
}

/// The virtual processor cannot move to the CPUs that it has chosen.
struct NotMigrated;

/// Moves the calling virtual processor to these CPUs of its own.
fn migrate(cpus: &processor::CpuSet) -> Result<(), NotMigrated> {
    let (Some(number), Ok(domain)) = (number(), Domain::current()) else {
        return Err(NotMigrated);
    };
    // Before it moves: callers poll for longer for a server that moves, and no longer believe that
    // it is where they put it.
    domain.station().line(number).cpu.store(NOWHERE, Ordering::Relaxed);
    let moved = cpus.confine();
    say_where(domain, number);
    moved.map_err(|_| NotMigrated)
}
