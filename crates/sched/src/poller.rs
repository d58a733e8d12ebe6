//! The idle policy: what a virtual processor does next when a probe has found nothing, and on which
//! CPU it does that.
//!
//! Source: URPC, sections 3.1 and 3.1.2 (an idle processor polls, and is given to the domain that
//! needs it); LRPC, section 3.2 (the server runs on the caller's processor).
//!
//! [`Poller`] is pure. It makes no system call, reads no clock and touches no shared memory: it
//! gets an event, asks [`Facts`] for what it has to know, and returns the step that the virtual
//! processor takes. The result of a step is the next event. So tests explore the shipped code
//! (`poller/explore.rs`).
//!
//! # States
//! The state has three parts. [`Cpu`] says whose CPU the virtual processor runs on:
//!
//! | from | event | to | step |
//! |---|---|---|---|
//! | any | a request is served that came with its caller's CPU | `Borrowed` | |
//! | any | wakes on another CPU than it said, confined there by another | `Borrowed` | |
//! | parked (1) | wakes where it parked, and a caller says that it gave that CPU | `Borrowed` | |
//! | `Borrowed` | a probe finds nothing | | yields to the callers, or parks |
//! | `Borrowed` | the same, and calls follow each other closely | `Refuge` | migrates |
//! | `Borrowed` | the donor needs its CPU (2) | `Refuge` (3) | migrates; yields once if it cannot |
//! | any | parks, woken by a caller that asks it to come (4) | `Near` | moves there, parks |
//! | `Borrowed` | parks | as it came to that CPU (1) | parks there |
//! | `Kept`, `Near`, `Refuge` | parks once more | the same | parks there |
//! | `Kept`, `Near`, `Refuge` | parks twice more | `Own` | goes home, parks |
//! | `Near` | wakes for anything but a call of that caller | `Own`, at the next park | goes home |
//!
//! 1. `Kept`, `Near` or `Refuge`.
//! 2. The donor is on this CPU, and either the next request is not the donor's, or the donor has
//!    something to run.
//! 3. If it is not confined, the same state as for a park.
//! 4. That caller may not move it to the caller's CPU by itself.
//!
//! [`Lending`] says whether a server has the CPU of this virtual processor:
//!
//! | from | event | to | step |
//! |---|---|---|---|
//! | `None`, `Lent` | a server was woken on this CPU, or is on it | `Given` | |
//! | `Given` | a probe finds nothing | `Given` after a reply, else `Lent` | yields, else parks |
//! | `Given` | a probe finds a reply | `Lent` | |
//! | `Lent` | the server says that it is elsewhere | `None` | polls for some time |
//!
//! [`Polling`] says for how long the probes have found nothing. A virtual processor polls for at
//! most [`SpinBudget::budget`], and does not poll on its only CPU if the peer that it waits for
//! needs that CPU.
//!
//! # Rules
//! The explorer checks these over all answers of the facts:
//! - Under adaptive pacing, a number of steps that is bounded ends in [`IdleStep::Park`].
//! - Under adaptive pacing it does not poll in `Borrowed`: it yields, migrates or parks.
//! - It never stays in `Borrowed` when it parks. It goes home when it has parked as often without a
//!   donor as the table says.
//! - While it is confined by its own doing, its state is not `Own`: it finds home.
//! - It migrates to its own CPUs only, and parks near a caller only on one of them.
//! - A spare without a duty parks at once, unless a server has its CPU.

#[cfg(test)]
mod explore;
mod near;
mod terms;
#[cfg(test)]
mod traces;

use self::near::NearParks;
pub use self::terms::{
    BeforeServing, CameBy, Cpu, Facts, IdleEvent, IdleStep, Lender, Lending, NearbyCaller,
    ParkPlace, PollWish, Purpose, ServedRequest, StackSupply, StayWish, WakeReason, Wakeup,
};
use self::terms::{CpuDemand, Polling};
use crate::costs::WaitCosts;
use crate::pacing::{
    CpuShare, GiveWay, HandOver, LONGEST, Offer, Pacing, SpinBudget, Stay, Yielded,
};
use std::time::{Duration, Instant};
use upcall_os::processor::CpuSet;
use upcall_shm::channel::DEPTH;
use upcall_shm::tally::Arrival;

/// Number of rounds between two checks whether peers share the only CPU.
pub const ROUNDS_ON_A_CPU: u32 = 64;

/// The round in which a poller reads the clock, of each [`ROUNDS_PER_CLOCK`]. Reading the clock
/// takes as long as a round, and delays the probe that would find the next message. The first
/// reading comes after half a microsecond.
const FIRST_CLOCK: u32 = 8;
const ROUNDS_PER_CLOCK: u32 = 32;

/// Number of rounds between two checks of the deadline by a poller that never parks.
const ROUNDS_PER_DEADLINE: u32 = 64;

/// Number of requests of one lane that are served before the others are probed again.
pub const BATCH: usize = 8;

/// Number of batches of a donor that are served before other lanes: as many requests as the donor
/// can have had outstanding when it gave its CPU.
const BATCHES_OF_DONOR: usize = DEPTH.div_ceil(BATCH);

/// Maximum time between a park and a quick wake. On a slow machine a hand-off alone can take half
/// of this time.
const QUICK: Duration = LONGEST;

/// Number of quick wakes in a row that show that calls follow each other closely. A CPU of its own
/// is then better for the virtual processor, where it would have polled for as long. Moving there
/// costs about as much as this number of hand-offs.
const QUICK_WAKES: u32 = 8;

/// Number of parks in a row away from home without a donor. A single such park can follow a wake
/// for a call that was already answered.
const PARKS_WITHOUT_DONOR: u32 = 1;

/// The idle policy of one virtual processor; see the module.
#[derive(Debug)]
pub struct Poller {
    pacing: Pacing,
    /// The CPUs on which it may run when it is not confined; `None` if the kernel did not report
    /// them.
    home: Option<CpuSet>,
    purpose: Purpose,
    cpu: Cpu,
    lending: Lending,
    polling: Polling,
    room: CpuDemand,
    wish: PollWish,
    /// The last call that was sent asks the server to stay.
    asks_to_stay: bool,
    /// Number of wakes in a row that were quick ones.
    quick_wakes: u32,
    spin_budget: SpinBudget,
    costs: WaitCosts,
    give_way: GiveWay,
    hand_over: HandOver,
    stay: Stay,
    near_parks: NearParks,
    /// The lane and the client of the request for which it was woken.
    woken_by: Option<(usize, u64)>,
}

impl Default for Poller {
    fn default() -> Self {
        Self::new(Pacing::default(), None, WaitCosts::default())
    }
}

impl Lender {
    fn new(lane: usize) -> Self {
        Self { lane, batches_left: BATCHES_OF_DONOR }
    }
}

impl Poller {
    /// Creates the policy of a virtual processor with this pacing that may run on the CPUs `home`.
    pub fn new(pacing: Pacing, home: Option<CpuSet>, costs: WaitCosts) -> Self {
        let several = home.as_ref().is_some_and(|home| home.count() > 1);
        Self {
            pacing,
            home,
            purpose: Purpose::default(),
            cpu: Cpu::default(),
            lending: Lending::default(),
            polling: Polling::default(),
            room: if several { CpuDemand::Several } else { CpuDemand::Shared },
            wish: PollWish::default(),
            asks_to_stay: false,
            quick_wakes: 0,
            spin_budget: SpinBudget::default(),
            costs,
            give_way: GiveWay::new(costs),
            hand_over: HandOver::new(costs),
            stay: Stay::default(),
            near_parks: NearParks::default(),
            woken_by: None,
        }
    }

    /// The times that the policy assumes.
    pub fn costs(&self) -> WaitCosts {
        self.costs
    }

    /// The virtual processor's own CPUs.
    pub fn home(&self) -> Option<&CpuSet> {
        self.home.as_ref()
    }

    /// The virtual processor's own CPUs, if it may be confined to others.
    pub fn way_home(&self) -> Option<&CpuSet> {
        self.home.as_ref().filter(|_| self.cpu != Cpu::Own)
    }

    /// Returns `true` if the virtual processor has only one CPU of its own.
    #[inline]
    pub fn has_one_cpu(&self) -> bool {
        self.room != CpuDemand::Several
    }

    /// Returns `true` if the virtual processor has the CPU of a caller.
    #[inline]
    pub fn is_borrowed(&self) -> bool {
        matches!(self.cpu, Cpu::Borrowed { .. })
    }

    /// The lane of the caller whose CPU the virtual processor has.
    #[inline]
    pub fn donor(&self) -> Option<usize> {
        match &self.cpu {
            Cpu::Borrowed { from, .. } => from.map(|donor| donor.lane),
            _ => None,
        }
    }

    /// Returns `true` if a server has the CPU, without a reply since.
    #[inline]
    pub fn has_given_cpu(&self) -> bool {
        self.lending == Lending::Given
    }

    /// Returns the donor's lane if its requests come before all others and one `waits` there.
    #[inline]
    pub fn take_donors(&mut self, waits: impl FnOnce(usize) -> bool) -> Option<usize> {
        match &mut self.cpu {
            Cpu::Borrowed { from: Some(donor), .. } if donor.batches_left > 0 => {
                let waits = waits(donor.lane);
                donor.batches_left -= usize::from(waits);
                waits.then_some(donor.lane)
            }
            _ => None,
        }
    }

    /// Returns `true` if the next call asks its server, which is on this CPU, to stay there.
    pub fn asks_to_stay(&mut self) -> bool {
        self.asks_to_stay = self.stay.is_wanted(&self.hand_over);
        self.asks_to_stay
    }

    /// Notes that the CPU was given to a server.
    pub fn gave_cpu(&mut self) {
        self.lending = Lending::Given;
    }

    /// Notes that the set of lanes has changed, and with it the `purpose`.
    pub fn lanes_changed(&mut self, purpose: Purpose) {
        self.purpose = purpose;
        self.woken_by = None;
        if let Cpu::Borrowed { from, .. } = &mut self.cpu {
            *from = None;
        }
    }

    /// Notes that a probe has found work.
    #[inline]
    pub fn found(&mut self) {
        if self.polling != Polling::NotBegun {
            self.polling = Polling::NotBegun;
            self.spin_budget.fruitful();
        }
    }

    /// Notes that a probe has found replies.
    #[inline]
    pub fn found_replies(&mut self) {
        if self.lending == Lending::Given {
            self.lending = Lending::Lent;
        }
        self.near_parks.other_came();
    }

    /// Notes that a probe has found messages.
    #[inline]
    pub fn found_messages(&mut self) {
        self.near_parks.other_came();
    }

    /// Notes that a probe has found a request of `client`.
    #[inline]
    pub fn found_request(&mut self, client: impl FnOnce() -> u64) {
        if self.near().is_some_and(|near| near.client != client()) {
            self.near_parks.other_came();
        }
    }

    /// Notes that a thread of this virtual processor goes on without a probe having found
    /// something.
    #[inline]
    pub fn thread_goes_on(&mut self) {
        self.near_parks.other_came();
    }

    /// Adapts to requests that were served.
    #[inline]
    pub fn served(&mut self, served: ServedRequest) {
        let ServedRequest { lane, client, came, donated, wish } = served;
        self.wish = wish;
        let was_woken = matches!(came, Arrival::Wake | Arrival::HandOff);
        if was_woken {
            self.woken_by = lane.map(|lane| (lane, client));
        }
        match self.near() {
            Some(near) if near.client == client && donated.is_some() => self.near_parks.called(),
            // The caller has called while this processor was on its way.
            Some(near) if near.client == client && !was_woken => {}
            _ => self.near_parks.other_came(),
        }
        if let Some(stay) = donated {
            self.borrows(lane, stay);
        }
    }

    fn borrows(&mut self, lane: Option<usize>, wish: StayWish) {
        if let Cpu::Borrowed { from, stay, .. } = &mut self.cpu {
            *stay = wish;
            if let Some(lane) = lane
                && from.is_none_or(|donor| donor.lane != lane)
            {
                *from = Some(Lender::new(lane));
            }
            return;
        }
        let by = match &self.cpu {
            Cpu::Near { near, .. } => CameBy::Parked(*near),
            Cpu::Refuge { cpus, .. } => CameBy::InRefuge(cpus.clone()),
            Cpu::Own | Cpu::Kept { .. } | Cpu::Borrowed { .. } => CameBy::Brought,
        };
        self.cpu = Cpu::Borrowed { from: lane.map(Lender::new), stay: wish, by };
    }

    /// Ends the borrowing of a caller's CPU; the virtual processor stays there.
    fn end_borrowing(&mut self) {
        let parks_left = PARKS_WITHOUT_DONOR;
        if let Cpu::Borrowed { by, .. } = &self.cpu {
            self.cpu = match by {
                CameBy::Brought => Cpu::Kept { parks_left },
                CameBy::Parked(near) => Cpu::Near { near: *near, parks_left },
                CameBy::InRefuge(cpus) => Cpu::Refuge { cpus: cpus.clone(), parks_left },
            };
        }
    }

    /// Decides what comes before a request in `lane` is served.
    ///
    /// The donor gets its CPU back when all its calls are answered, or when it has something to run
    /// there itself.
    pub fn serves(&mut self, lane: usize, facts: &impl Facts) -> BeforeServing {
        let Some(donor) = self.donor() else { return BeforeServing::Serve };
        let cpu = facts.cpu();
        // If the donor runs on another CPU by now, it does not need this one.
        if !facts.is_caller_on(donor, cpu) {
            return BeforeServing::Serve;
        }
        let wanted = if lane == donor {
            facts.is_caller_running(donor)
        } else {
            !facts.is_caller_on(lane, cpu)
        };
        if !wanted {
            return BeforeServing::Serve;
        }
        // The donor's word alone does not move a virtual processor that is not confined.
        if self.room == CpuDemand::Several && self.near().is_none() && !self.is_confined(facts) {
            self.end_borrowing();
            return BeforeServing::Serve;
        }
        if let Cpu::Borrowed { from, .. } = &mut self.cpu {
            *from = None;
        }
        BeforeServing::GiveBack(self.refuge(cpu))
    }

    /// Returns the next step after `event`. `deadline` is the time at which a thread of this
    /// virtual processor goes on.
    #[inline]
    pub fn step(
        &mut self,
        event: IdleEvent,
        deadline: Option<Instant>,
        facts: &impl Facts,
    ) -> IdleStep {
        match event {
            IdleEvent::NothingFound { round, stacks } => {
                self.nothing_found((round, stacks), deadline, facts)
            }
            IdleEvent::Yielded(took) => {
                // Another thread may have had the CPU for a time slice.
                let given = self.give_way.learn(took) == CpuShare::Given;
                let reads_clock = given && self.pacing == Pacing::Adaptive;
                if reads_clock && !self.is_in_time(deadline, facts) {
                    IdleStep::Park
                } else {
                    IdleStep::PollAgain
                }
            }
            IdleEvent::ServerYielded(yielded, took) => {
                self.hand_over.learn(yielded, took, || facts.tick());
                self.server_ran(yielded)
            }
            IdleEvent::CallersYielded(Yielded::Arrived) => {
                // As good as a quick wake.
                self.quick_wakes = self.quick_wakes.saturating_add(1);
                IdleStep::PollAgain
            }
            IdleEvent::CallersYielded(Yielded::Nothing) => IdleStep::Park,
            IdleEvent::Migrated(cpus) => {
                self.migrated(cpus);
                IdleStep::PollAgain
            }
            IdleEvent::NotMigrated => self.yield_to_callers(deadline, facts),
        }
    }

    #[inline]
    fn nothing_found(
        &mut self,
        (round, stacks): (u32, StackSupply),
        deadline: Option<Instant>,
        facts: &impl Facts,
    ) -> IdleStep {
        if self.lending == Lending::Given {
            return self.yield_to_server(facts);
        }
        if self.purpose == Purpose::Rest {
            return IdleStep::Park;
        }
        let sleeps = self.pacing == Pacing::Sleep || stacks == StackSupply::Short;
        if self.pacing == Pacing::Adaptive && !sleeps && self.is_borrowed() {
            return self.leave_or_yield(deadline, facts);
        }
        if self.room != CpuDemand::Several && (self.is_borrowed() || round % ROUNDS_ON_A_CPU == 1) {
            let shared = facts.shares(facts.cpu());
            self.room = if shared { CpuDemand::Shared } else { CpuDemand::Alone };
        }
        if self.pacing == Pacing::Poll {
            let has_come = || deadline.is_some_and(|at| facts.now() >= at);
            let checked = round.is_multiple_of(ROUNDS_PER_DEADLINE);
            return if checked && has_come() { IdleStep::Park } else { self.poll_again(facts) };
        }
        let rests = self.wish == PollWish::Rest && !facts.is_calling();
        if sleeps || rests || self.room == CpuDemand::Shared {
            return IdleStep::Park;
        }
        if self.polling == Polling::NotBegun {
            self.polling = Polling::Begun;
        }
        if round % ROUNDS_PER_CLOCK == FIRST_CLOCK && !self.is_in_time(deadline, facts) {
            return IdleStep::Park;
        }
        self.poll_again(facts)
    }

    /// Returns `true` if it may poll on, by the clock.
    fn is_in_time(&mut self, deadline: Option<Instant>, facts: &impl Facts) -> bool {
        let now = facts.now();
        let mut since = if let Polling::Since(since) = self.polling { since } else { now };
        if self.lending == Lending::Lent && facts.has_server_elsewhere(facts.cpu()) {
            // The server that had this CPU moves to one of its own. Its reply comes soon, and its
            // next ones quickly.
            self.lending = Lending::None;
            self.spin_budget.renew();
            since = now + self.costs.server_moves;
        }
        self.polling = Polling::Since(since);
        // A poller that has moved away from a caller would have to move back.
        let moved = matches!(self.cpu, Cpu::Refuge { .. });
        let patience = if moved { self.costs.server_moves } else { Duration::ZERO };
        let polled = now.saturating_duration_since(since);
        polled < self.spin_budget.budget(self.pacing).max(patience)
            && deadline.is_none_or(|at| now < at)
    }

    /// Polls, or yields if that is due: a peer that it waits for may be on its only CPU. Senders of
    /// messages do not publish where they run.
    #[inline]
    fn poll_again(&mut self, facts: &impl Facts) -> IdleStep {
        let may_share = match self.room {
            CpuDemand::Several => false,
            CpuDemand::Alone => facts.has_posts(),
            CpuDemand::Shared => true,
        };
        if may_share && self.give_way.is_due() { IdleStep::Yield } else { IdleStep::PollAgain }
    }

    /// Migrates, yields or parks on a caller's CPU, where it never polls.
    fn leave_or_yield(&mut self, deadline: Option<Instant>, facts: &impl Facts) -> IdleStep {
        if self.wish == PollWish::Poll && self.quick_wakes >= QUICK_WAKES {
            // Calls follow each other closely: a CPU of its own serves them better.
            if let Some(cpus) = self.refuge(facts.cpu()) {
                return IdleStep::Migrate(cpus);
            }
        }
        self.yield_to_callers(deadline, facts)
    }

    fn yield_to_callers(&self, deadline: Option<Instant>, facts: &impl Facts) -> IdleStep {
        // A caller elsewhere would take this virtual processor for awake, and wait until the kernel
        // lets it run here.
        let stays = matches!(self.cpu, Cpu::Borrowed { stay: StayWish::Stay, .. });
        if deadline.is_none() && stays && facts.has_only_callers_on(facts.cpu()) {
            IdleStep::YieldToCallers
        } else {
            IdleStep::Park
        }
    }

    fn yield_to_server(&mut self, facts: &impl Facts) -> IdleStep {
        let offer = if facts.has_reply() { None } else { Some(self.hand_over.offer()) };
        match offer {
            None => {
                self.hand_over.came_at_once();
                self.server_ran(Yielded::Arrived)
            }
            Some(Offer::LeftOut) => self.server_ran(Yielded::Nothing),
            Some(offer) => IdleStep::YieldToServer(offer),
        }
    }

    /// Adapts to what `yielded` brought after a server had this CPU.
    fn server_ran(&mut self, yielded: Yielded) -> IdleStep {
        if std::mem::take(&mut self.asks_to_stay) {
            self.stay.learn(&self.hand_over);
        }
        match yielded {
            Yielded::Arrived => IdleStep::PollAgain,
            Yielded::Nothing => {
                self.lending = Lending::Lent;
                IdleStep::Park
            }
        }
    }

    /// Returns the virtual processor's own CPUs without `cpu`, if any are left.
    fn refuge(&mut self, cpu: u32) -> Option<CpuSet> {
        self.quick_wakes = 0;
        let cpus = self.home.as_ref()?.without(cpu as usize);
        (cpus.count() > 0).then_some(cpus)
    }

    /// Notes that the virtual processor has moved to `cpus`, away from a caller.
    pub fn migrated(&mut self, cpus: CpuSet) {
        self.near_parks.leaves();
        self.cpu = Cpu::Refuge { cpus, parks_left: PARKS_WITHOUT_DONOR };
        // What was learned of callers on the same CPU does not hold here, and a needless migration
        // is expensive.
        self.spin_budget.renew();
    }

    /// The caller near which the virtual processor has confined itself.
    #[inline]
    fn near(&self) -> Option<NearbyCaller> {
        match &self.cpu {
            Cpu::Borrowed { by: CameBy::Parked(near), .. } | Cpu::Near { near, .. } => Some(*near),
            _ => None,
        }
    }

    /// Decides where to park. No donor's CPU is the virtual processor's own while it sleeps.
    pub fn parks(&mut self, facts: &impl Facts) -> ParkPlace<'_> {
        self.polling = Polling::NotBegun;
        let before = self.near();
        if let Some(near) = self.caller_to_park_near(facts) {
            self.near_parks.parks();
            self.cpu = Cpu::Near { near, parks_left: PARKS_WITHOUT_DONOR };
            let was_there = before.is_some_and(|before| before.cpu == near.cpu);
            let is_there = was_there && facts.cpu() == near.cpu;
            return if is_there { ParkPlace::Here } else { ParkPlace::Near(near.cpu) };
        }
        if before.is_some() && !self.near_parks.may_stay() {
            return self.goes_home();
        }
        if before.is_some() {
            self.near_parks.parks();
        }
        match &mut self.cpu {
            Cpu::Own => ParkPlace::Here,
            Cpu::Borrowed { .. } => {
                self.end_borrowing();
                ParkPlace::Here
            }
            Cpu::Kept { parks_left }
            | Cpu::Near { parks_left, .. }
            | Cpu::Refuge { parks_left, .. }
                if *parks_left > 0 =>
            {
                *parks_left -= 1;
                ParkPlace::Here
            }
            Cpu::Kept { .. } | Cpu::Near { .. } | Cpu::Refuge { .. } => self.goes_home(),
        }
    }

    fn goes_home(&mut self) -> ParkPlace<'_> {
        self.cpu = Cpu::Own;
        self.near_parks.leaves();
        self.home.as_ref().map_or(ParkPlace::Here, ParkPlace::Home)
    }

    /// Returns the caller near which to park: the waker, if that caller asks for it.
    fn caller_to_park_near(&mut self, facts: &impl Facts) -> Option<NearbyCaller> {
        let (lane, client) = self.woken_by.take().filter(|_| self.room == CpuDemand::Several)?;
        let cpu = facts.wished_cpu(lane)?;
        let is_own = self.home.as_ref().is_some_and(|home| home.contains(cpu as usize));
        let may = self.pacing != Pacing::Poll && is_own;
        (may && self.near_parks.may_park(cpu)).then_some(NearbyCaller { client, cpu })
    }

    /// Notes that the virtual processor could not confine itself to the CPU near which it was to
    /// park. It goes home with the next park.
    pub fn not_near(&mut self) {
        self.near_parks.failed();
        self.cpu = Cpu::Kept { parks_left: 0 };
    }

    /// Adapts to a wake, by a notification or by the deadline.
    pub fn woke(&mut self, woken: Wakeup, facts: &impl Facts) {
        let Wakeup { said, cpu, slept, reason } = woken;
        if reason == WakeReason::Deadline {
            self.near_parks.other_came();
        }
        // Either a donor brought it here, and could not send that with a call, because its calls
        // were sent before. Or it still is where the last donor brought it, and others may have
        // called before that donor.
        let stayed = self.cpu != Cpu::Own && said == cpu;
        if stayed {
            if let Some(lane) = facts.donor(cpu) {
                self.borrows(Some(lane), StayWish::default());
            }
        } else if facts.has_lanes() && self.is_confined(facts) {
            let (from, stay) = (facts.donor(cpu).map(Lender::new), StayWish::default());
            self.near_parks.leaves();
            self.cpu = Cpu::Borrowed { from, stay, by: CameBy::Brought };
        }
        // After a short sleep it would have been better to poll. Before a long one, polling was
        // useless or would have been.
        self.quick_wakes = if slept < QUICK { self.quick_wakes.saturating_add(1) } else { 0 };
        if slept < LONGEST {
            self.spin_budget.fruitful();
        } else {
            self.spin_budget.fruitless();
        }
    }

    /// Returns `true` if another process has confined the virtual processor to one CPU.
    fn is_confined(&self, facts: &impl Facts) -> bool {
        facts.allowed().is_some_and(|allowed| {
            let is_refuge = match &self.cpu {
                Cpu::Refuge { cpus, .. } | Cpu::Borrowed { by: CameBy::InRefuge(cpus), .. } => {
                    *cpus == allowed
                }
                _ => false,
            };
            let is_near = self.near().is_some_and(|near| allowed.contains(near.cpu as usize));
            let own = self.home.as_ref() == Some(&allowed) || is_refuge || is_near;
            allowed.count() == 1 && !own
        })
    }
}
