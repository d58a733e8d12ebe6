//! What one virtual processor sees of its domain: the lanes and seats that it looks at, whose
//! processor it is on, and how long it waits.

use super::posts::{Attending, LOOKS};
use super::stacks::Stacks;
use super::stalls::StallChecks;
use super::takeover::Prober;
use super::{
    BUSY_BETWEEN, FIRST_TIME, FOUND_BETWEEN, MOST_OF_DONOR, MOVE, OWN_TIMER, Processors,
    QUIET_BETWEEN, SOON, SOON_ENOUGH, SPINS_AT_A_PLACE, TIME_BETWEEN, Work, index, is_asleep,
    number, say_where,
};
use crate::domain::Domain;
use crate::look;
use crate::pacing::{GiveWay, HandOver, LONGEST, Pacing, SpinBudget, Stay, hand_back};
use crate::placed::NOWHERE;
use crate::seat::VpLane;
use crate::server::{Owner, ServerLane};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_os::atomic::{AtomicU32, Ordering, fence};
use upcall_os::poll::{PollSet, Report};
use upcall_os::processor;
use upcall_os::timer::Timer;
use upcall_shm::station::{Awake, State};
use upcall_shm::tally::Came;
use upcall_thread::{Found, Vp};

/// One virtual processor's own view of the domain.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "its states are yet to become enums")]
pub(super) struct View {
    pub(super) generation: u64,
    /// Our own come first, then those of each other processor.
    pub(super) lanes: Rc<Vec<Arc<ServerLane>>>,
    pub(super) own: usize,
    pub(super) others: Vec<(usize, Range<usize>)>,
    /// Counts the processor's probes, for callers that wait.
    pub(super) probes: Option<&'static AtomicU32>,
    pub(super) stall_checks: StallChecks,
    /// The processor is a spare without a duty: it sleeps whenever it has nothing to run.
    pub(super) rests_as_spare: bool,
    /// Indices of the members whose duty this processor has.
    pub(super) duties: Rc<[usize]>,
    /// The processor's own timer, whether it is in the wake set, and when it was last set to give
    /// back stacks of idle workers.
    pub(super) timer: Option<Timer>,
    pub(super) has_timer: bool,
    pub(super) cools_at: Option<Instant>,
    /// Looks for requests, in all and in vain since the last that was found.
    pub(super) looks: u32,
    pub(super) in_vain: u32,
    /// Number of requests that were found.
    pub(super) found: u32,
    /// What we last said that we do.
    pub(super) said: Awake,
    pub(super) seats: Rc<Vec<Arc<VpLane>>>,
    pub(super) attending: Attending,
    /// Where the next look begins, and where the last one found a request.
    pub(super) next: usize,
    /// How we came to that request.
    pub(super) came: Came,
    /// The lane that was served last, and how we come to a request there that the next look finds.
    pub(super) left: (usize, Came),
    /// It slept since the last look.
    pub(super) slept: bool,
    pub(super) spin_budget: SpinBudget,
    pub(super) give_way: GiveWay,
    /// The last look found nothing.
    pub(super) quiet: bool,
    /// This look is a thread's, in between what it does.
    pub(super) in_between: bool,
    /// It spun since something was found.
    pub(super) spun: bool,
    /// Since when nothing was found, but for the first rounds.
    pub(super) idle_since: Option<Instant>,
    /// The processor that we run on is a caller's.
    pub(super) donated: bool,
    /// By whom, if we know: its lane, which is served first, and how often that may still be so.
    pub(super) donor: Option<(usize, usize)>,
    /// We gave our processor to a server, and have not had it back since.
    pub(super) gave: bool,
    /// We gave it to a server, which has not said since that it is elsewhere.
    pub(super) lent: bool,
    pub(super) hand_over: HandOver,
    /// Whether servers on our processor are asked to stay, and whether the last call did so.
    pub(super) stay: Stay,
    pub(super) asked: bool,
    /// Requests wait, and there is no stack for any of them; when there is, one of our own calls
    /// has ended, or one of another processor that looks at our lanes while we sleep.
    pub(super) starved: bool,
    /// Who gave us its processor asks us to stay.
    pub(super) stays: bool,
    /// Who was answered last asks us not to poll ([`steer`](crate::steer)).
    pub(super) rests: bool,
    /// How often in a row we were woken soon after we had gone to sleep.
    pub(super) soon: u32,
    /// We were confined by a donor, or confined ourselves away from one.
    pub(super) confined: bool,
    /// It slept once without a donor since one had a use for it.
    pub(super) homesick: bool,
    /// Where we confined ourselves, away from a donor.
    pub(super) refuge: Option<processor::Processors>,
    /// Where we may run when nobody confines us.
    pub(super) home: Option<processor::Processors>,
    /// We may run on one processor only.
    pub(super) single: bool,
    /// And somebody that we wait for runs there too, for all we know: to spin would keep it from
    /// running.
    pub(super) shares: bool,
}

/// Counts a probe. If a processor and its substitute count at once, one count may be lost.
#[inline]
pub(super) fn count_probe(probes: &AtomicU32) {
    probes.store(probes.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

/// How a donor's processor was left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Left {
    /// We went back to our own set of processors.
    ForHome,
    /// We stay: nothing confined us, or the donor may still need us there.
    InPlace,
}

impl View {
    pub(super) fn refresh(&mut self, processors: &Processors) {
        let generation = processors.group.domain.generation();
        if self.generation != generation {
            self.generation = generation;
            self.share_lanes(processors);
            self.seats = Rc::new(
                number().map_or_else(Vec::new, |number| processors.group.domain.seats(number)),
            );
            self.stall_checks.begin_again();
        }
    }

    /// Our lanes may be another's from now on, who knows of no look that is owed.
    pub(super) fn pay_looks(&self) {
        self.lanes[..self.own].iter().for_each(|lane| lane.look());
    }

    /// Which lanes are whose.
    fn share_lanes(&mut self, processors: &Processors) {
        self.pay_looks();
        let probers = processors.probers();
        let owner = |lane: &Arc<ServerLane>| (Prober::of(&probers, lane), lane.clone());
        let mut lanes: Vec<_> = processors.lanes().iter().map(owner).collect();
        let me = number();
        lanes.iter().for_each(|(owner, lane)| lane.belongs_to(*owner));
        self.duties = processors.duties_of(index());
        self.rests_as_spare = processors.is_spare() && self.duties.is_empty();
        if self.rests_as_spare {
            lanes.clear();
        }
        lanes.sort_by_key(|(owner, _)| (*owner != me, *owner));
        let of = |whose| lanes.iter().filter(|(owner, _)| *owner == whose).count();
        self.own = of(me);
        let mut from = self.own;
        self.others.clear();
        let mut others: Vec<_> = probers.iter().map(|of| of.probes).collect();
        others.sort_unstable();
        others.dedup();
        for other in others.into_iter().filter(|&number| Some(number) != me) {
            let count = of(Some(other));
            self.others.push((other, from..from + count));
            from += count;
        }
        self.lanes = Rc::new(lanes.into_iter().map(|(_, lane)| lane).collect());
        self.donor = None;
    }

    /// One look for what wants a thread. Calls and messages take turns. Who has `woke` threads and
    /// only calls is done: they come first (U7).
    #[inline]
    pub(super) fn find_work(
        &mut self,
        processors: &Processors,
        vp: &Vp,
        woke: &mut bool,
    ) -> Option<Work> {
        if !self.attending.posts.is_empty() {
            return self.find_any(processors, vp, woke);
        }
        if *woke && self.lanes.is_empty() {
            None
        } else {
            self.look(processors, vp).map(Work::Call)
        }
    }

    /// Whether several looks are taken in a row: not by a thread in between what it does.
    fn looks_on(&self) -> bool {
        self.quiet && !self.in_between
    }

    fn find_any(&mut self, processors: &Processors, vp: &Vp, woke: &mut bool) -> Option<Work> {
        let messages_first = std::mem::take(&mut self.attending.first);
        let mut messages = |view: &mut Self| {
            let found = view.attending.look(
                || vp.has_stack() && vp.can_begin_work(),
                view.looks_on() && view.lanes.is_empty(),
            );
            *woke |= found == Found::Woke;
            (found == Found::Work).then_some(Work::Messages)
        };
        if messages_first && let Some(found) = messages(self) {
            return Some(found);
        }
        if let Some(lane) = self.look(processors, vp) {
            self.attending.first = true;
            return Some(Work::Call(lane));
        }
        if messages_first { None } else { messages(self) }
    }

    /// One look for a lane with a request; how we came to that is kept.
    #[inline]
    fn look(&mut self, processors: &Processors, vp: &Vp) -> Option<usize> {
        let domain = processors.group.domain;
        let (slept, starved) = (std::mem::take(&mut self.slept), self.starved);
        let stacks = processors.stacks(vp, &self.lanes);
        let found = self.find(domain, stacks, slept);
        if let Some(at) = found {
            self.came = self.came(domain, at, slept, starved);
        }
        found
    }

    /// How we came to the request in lane `at`, by the first look after we `slept`, or after there
    /// was no stack.
    #[inline]
    fn came(&self, domain: &Domain, at: usize, slept: bool, starved: bool) -> Came {
        if slept && !starved {
            // A virtual processor that gives its processor decides that after it has sent the
            // request (see `sleep`). A kernel thread says so with it.
            let donated = self.donated && self.donor.is_some_and(|(lane, _)| lane == at);
            return if donated { Came::HandOff } else { Came::Wake };
        }
        if starved {
            return Came::Wait;
        }
        // Found by the first look after something else was done.
        if !self.quiet {
            return if self.left.0 == at { self.left.1 } else { Came::Wait };
        }
        // Whoever it belongs to has not looked for a while.
        let busy = |(other, lanes): &(usize, Range<usize>)| {
            lanes.contains(&at) && !is_asleep(domain, *other)
        };
        if at >= self.own && self.others.iter().any(busy) { Came::Wait } else { Came::Spin }
    }

    /// A lane with a request; the look begins behind the last one served. Where the last look found
    /// nothing, several looks are taken in a row: the way round through the scheduler takes
    /// longer than a look.
    ///
    /// With `stacks` for few, what it passes over makes it `starved`. A processor that has just
    /// `slept` probes the lanes of all.
    fn find(&mut self, domain: &Domain, stacks: Stacks, slept: bool) -> Option<usize> {
        self.starved = false;
        if stacks != Stacks::Many {
            return self.find_among(stacks);
        }
        if let Some(donors) = self.next_of_donor() {
            return Some(donors);
        }
        let (before, from) = self.lanes[..self.own].split_at(self.next.min(self.own));
        let looks = if self.looks_on() && self.own > 0 { LOOKS } else { 1 };
        for _ in 0..looks {
            if let Some(at) = from.iter().position(|lane| lane.waits()) {
                return Some(before.len() + at);
            }
            if let Some(at) = before.iter().position(|lane| lane.waits()) {
                return Some(at);
            }
            if looks > 1 {
                look::again();
            }
        }
        if self.others.is_empty() { None } else { self.find_of_others(domain, slept) }
    }

    /// The same when stacks run low: there is more to look at than whether a request waits, and who
    /// looks has not much else to do.
    #[cold]
    fn find_among(&mut self, stacks: Stacks) -> Option<usize> {
        let first = self.next.min(self.lanes.len());
        let mut waiting = (first..self.lanes.len())
            .chain(0..first)
            .filter(|&at| self.lanes[at].waits())
            .peekable();
        let any = waiting.peek().is_some();
        let found = waiting.find(|&at| stacks.allow(|| self.calls_beside(at)));
        self.starved = any && found.is_none();
        found
    }

    /// Number of calls under way of the client that lane `at` belongs to, and of the client's user
    /// if the user is bounded.
    #[cold]
    fn calls_beside(&self, at: usize) -> [usize; 2] {
        let Owner { client, user } = self.lanes[at].owner();
        let calls = |is_meant: &dyn Fn(Owner) -> bool| {
            let meant = self.lanes.iter().filter(|lane| is_meant(lane.owner()));
            meant.map(|lane| lane.calls()).sum()
        };
        let of_user = if user.is_none() { 0 } else { calls(&|owner| owner.user == user) };
        [calls(&|owner| owner.client == client), of_user]
    }

    /// Wakes another processor to help if more calls wait in this processor's lanes. Checked every
    /// [`FOUND_BETWEEN`] requests.
    #[inline]
    pub(super) fn calls_helper(&mut self, processors: &Processors, found: usize) {
        if self.others.is_empty() {
            return;
        }
        self.found = self.found.wrapping_add(1);
        if self.found.is_multiple_of(FOUND_BETWEEN) {
            let mut own = (0..self.own).filter(|&at| at != found);
            if own.any(|at| self.lanes[at].waits()) {
                processors.call_helper();
            }
        }
    }

    fn find_of_others(&mut self, domain: &Domain, slept: bool) -> Option<usize> {
        (self.looks, self.in_vain) = (self.looks.wrapping_add(1), self.in_vain.wrapping_add(1));
        let all = slept
            || self.in_vain.is_multiple_of(QUIET_BETWEEN)
            || self.looks.is_multiple_of(BUSY_BETWEEN);
        let mut looked_at = self
            .others
            .iter()
            .filter(|&&(other, _)| all || is_asleep(domain, other))
            .flat_map(|(_, lanes)| lanes.clone());
        looked_at.find(|&at| self.lanes[at].waits())
    }

    /// Who gave us its processor comes first, as long as it has calls that wait.
    fn next_of_donor(&mut self) -> Option<usize> {
        let (lane, left) = self.donor?;
        let next = (self.donated && left > 0 && self.lanes[lane].waits()).then_some(lane);
        if next.is_some() {
            self.donor = Some((lane, left - 1));
        }
        next
    }

    /// Gives the processor back before the request in lane `next` is served, if it is time: all
    /// calls of who gave it to us are answered, or it has something to run there itself. No
    /// matter if it runs somewhere else meanwhile.
    pub(super) fn give_back(&mut self, next: usize) {
        let Some((lane, _)) = self.donor.filter(|_| self.donated) else { return };
        let (donor, here) = (&self.lanes[lane], Some(processor::current() as u32));
        if donor.callers_place() != here {
            return;
        }
        let wanted = if next == lane {
            donor.callers_state() == Some(State::Awake(Awake::Running))
        } else {
            self.lanes[next].callers_place() != here
        };
        if wanted {
            self.donor = None;
            // Its word alone does not move us.
            if !self.single && !self.is_confined() {
                self.donated = false;
            } else if !self.leave_donor() {
                processor::give_way();
            }
        }
    }

    /// Says what we do, if that has changed.
    #[inline]
    pub(super) fn say(&mut self, domain: &Domain, awake: Awake) {
        if let (true, Some(number)) = (self.said != awake, number()) {
            self.said = awake;
            domain.station().say(number, awake);
        }
    }

    /// The looks that were put off. With nothing else to do, our processor goes to a server that
    /// needs one, unless it is to be `kept`.
    pub(super) fn settle(&mut self, domain: &Domain, kept: bool) {
        let own = &self.lanes[..self.own];
        let seats = self.seats.iter().any(|seat| seat.owes_look());
        if own.iter().any(|lane| lane.owes_look()) || seats {
            if seats {
                self.stall_checks.request_sent();
            }
            // To be said before: who gets our processor asks at once.
            if seats && !kept {
                self.say(domain, Awake::Gave);
            }
            self.pay_looks();
            // For the exact look at the servers.
            if seats {
                fence(Ordering::SeqCst);
            }
            for seat in self.seats.iter() {
                // One server at a time: others run where they are, side by side with it.
                self.gave |= seat.look(kept || self.gave);
                self.lent |= self.gave;
            }
        }
    }

    /// Our processor was given to a server: lets that run until a reply is there. False if it takes
    /// so long that it is better to sleep.
    pub(super) fn hand_over(&mut self) -> bool {
        let Self { hand_over, seats, .. } = self;
        let there = hand_over.until(|| seats.iter().any(|seat| seat.waits()));
        self.gave &= there;
        if std::mem::take(&mut self.asked) {
            self.stay.learn(&self.hand_over);
        }
        there
    }

    /// Our processor is a caller's: lets that run until it calls again. False if it is better to
    /// sleep.
    fn hand_back(&mut self) -> bool {
        let here = processor::current() as u32;
        // Somebody elsewhere would take us for awake, and wait until the kernel lets us run here.
        let only_theirs = || {
            self.lanes.iter().all(|lane| lane.shares(here))
                && !self.seats.iter().any(|seat| seat.is_calling())
        };
        let there =
            self.stays && only_theirs() && hand_back(|| self.lanes.iter().any(|lane| lane.waits()));
        // As good as woken soon.
        self.soon += u32::from(there);
        there
    }

    /// Whether one caller is all that we serve, on the only processor that is ours, and we call
    /// nobody.
    pub(super) fn is_bare(&self) -> bool {
        let alone = self.lanes.len() == 1
            && self.seats.is_empty()
            && self.others.is_empty()
            && self.attending.posts.is_empty();
        // One that was brought here from another processor goes back there when calls follow each
        // other closely.
        self.single
            && alone
            && self.home.as_ref().is_some_and(|home| home.contains(processor::current()))
    }

    /// Whether somebody that we wait for is on this processor, or may be.
    fn shares(&self, cpu: u32) -> bool {
        let elsewhere = |at: Option<u32>| at.is_some_and(|at| at != cpu);
        let nobody =
            self.seats.is_empty() && self.lanes.is_empty() && self.attending.posts.is_empty();
        nobody
            || !self.seats.iter().all(|seat| !seat.is_calling() || elsewhere(seat.servers_place()))
            || !self.lanes.iter().all(|lane| elsewhere(lane.callers_place()))
    }

    /// The sleeper's second look.
    pub(super) fn waits(&self) -> bool {
        let calls = self.seats.iter().any(|seat| seat.waits())
            || !self.starved && self.lanes.iter().any(|lane| lane.waits());
        calls || self.attending.waits()
    }

    /// One step of spinning; false when it is time to sleep.
    pub(super) fn spin(&mut self, pacing: Pacing, round: u32, deadline: Option<Instant>) -> bool {
        if self.rests_as_spare {
            return false;
        }
        let sleeps = pacing == Pacing::Sleep || self.starved;
        let donated = self.donated && pacing == Pacing::Adaptive && !sleeps;
        // Calls follow each other closely: a processor of our own serves them better than the
        // caller's.
        if donated && (self.rests || self.soon < SOON_ENOUGH || !self.leave_donor()) {
            return deadline.is_none() && self.hand_back();
        }
        if self.single && (donated || round % SPINS_AT_A_PLACE == 1) {
            self.shares = self.shares(processor::current() as u32);
        }
        if pacing == Pacing::Poll {
            if self.shares {
                self.give_way.step();
            }
            return !round.is_multiple_of(64) || deadline.is_none_or(|at| Instant::now() < at);
        }
        if sleeps || self.rests && !self.seats.iter().any(|seat| seat.is_calling()) {
            return false;
        }
        if self.shares {
            return false;
        }
        self.spun = true;
        if self.single && !self.attending.posts.is_empty() {
            // Nobody says where its senders run: here, perhaps.
            self.give_way.step();
        }
        if round % TIME_BETWEEN != FIRST_TIME {
            return true;
        }
        let now = Instant::now();
        let since = *self.idle_since.get_or_insert(now);
        if self.lent
            && self
                .seats
                .iter()
                .any(|seat| seat.servers_place() != Some(processor::current() as u32))
        {
            // The server that had our processor moves to one of its own. It comes soon, and will be
            // quick there.
            self.lent = false;
            self.spin_budget.renew();
            self.idle_since = Some(now + MOVE);
        }
        // Who has moved away from a caller to poll would have to move back.
        let patience = if self.refuge.is_some() { MOVE } else { Duration::ZERO };
        now.saturating_duration_since(since) < self.spin_budget.budget(pacing).max(patience)
            && deadline.is_none_or(|at| now < at)
    }

    /// No donor's processor is ours while we sleep.
    pub(super) fn leaves_donor(&mut self) -> Left {
        // No donor needs us here, and none did at the sleep before this one. A single such sleep
        // can follow a wake for a call that was already answered.
        let goes_home =
            self.confined && !self.donated && std::mem::replace(&mut self.homesick, true);
        if goes_home {
            self.confined = false;
            self.refuge = None;
            let _ = self.home.as_ref().map(processor::Processors::confine);
        }
        self.donated = false;
        self.donor = None;
        if goes_home { Left::ForHome } else { Left::InPlace }
    }

    /// Woken on processor `cpu`, having said `before` that we are on that one.
    pub(super) fn has_slept(&mut self, before: u32, cpu: u32, slept: Duration) {
        self.slept = true;
        // Brought here by a donor that cannot have said so with a call, for its calls were sent
        // before; or still where the last one brought us, and others may have called before it.
        let stayed = self.confined && before == cpu;
        let donor =
            || self.lanes.iter().position(|lane| lane.gave(cpu)).map(|at| (at, MOST_OF_DONOR));
        if stayed {
            self.donor = donor();
            self.donated = self.donor.is_some();
        } else if !self.lanes.is_empty() && self.is_confined() {
            (self.donor, self.donated, self.confined) = (donor(), true, true);
        }
        // Woken soon: it would have been better to spin. Late: spinning was, or would have been,
        // for nothing.
        self.soon = if slept < SOON { self.soon + 1 } else { 0 };
        if slept < LONGEST {
            self.spin_budget.fruitful();
        } else {
            self.spin_budget.fruitless();
        }
    }

    /// Whether we may run in one place only, and that by another's doing.
    pub(super) fn is_confined(&self) -> bool {
        let by_another = |allowed: processor::Processors| {
            allowed.count() == 1
                && ![&self.home, &self.refuge].into_iter().flatten().any(|own| *own == allowed)
        };
        processor::Processors::allowed().is_ok_and(by_another)
    }

    /// Sets the timer for the next stall check, or else for `cools_at`, when stacks of idle workers
    /// are given back. It is set once for each such time, since a system call costs each sleep half
    /// a microsecond.
    ///
    /// Stacks may wait for a stall check: it comes within half a second.
    pub(super) fn set_timer(&mut self, cools_at: Option<Instant>, set: &PollSet) {
        if let Some(pause) = self.stall_checks.next(&self.seats) {
            self.cools_at = None;
            if !self.set_timer_after(pause, set) {
                self.stall_checks.begin_again();
            }
            return;
        }
        if self.stall_checks.is_next() {
            return;
        }
        if let Some(at) = cools_at.filter(|at| self.cools_at != Some(*at))
            && self.set_timer_after(at.saturating_duration_since(Instant::now()), set)
        {
            self.cools_at = Some(at);
        }
    }

    /// Returns `false` if there is no descriptor for the timer: then the processor wakes up for
    /// other reasons only.
    fn set_timer_after(&mut self, pause: Duration, set: &PollSet) -> bool {
        let Some(timer) = &self.timer else { return false };
        self.has_timer = self.has_timer || set.add(timer, OWN_TIMER, Report::EachRing).is_ok();
        if self.has_timer {
            timer.set(pause);
        }
        self.has_timer
    }

    /// Moves to another processor than the donor's. False if there is none.
    fn leave_donor(&mut self) -> bool {
        self.soon = 0;
        let elsewhere = self.home.as_ref().map(|home| home.without(processor::current()));
        let Some(elsewhere) = elsewhere.filter(|elsewhere| elsewhere.count() > 0) else {
            return false;
        };
        let (Some(number), Ok(domain)) = (number(), Domain::current()) else { return false };
        // Before we go: callers have patience with one who moves, and do not believe any more that
        // we are where they brought us.
        domain.station().line(number).cpu.store(NOWHERE, Ordering::Relaxed);
        let left = elsewhere.confine().is_ok();
        if left {
            self.donated = false;
            self.refuge = Some(elsewhere);
            // What was learned of callers with whom we shared a processor does not hold here; and
            // to have come here for nothing would be dear.
            self.spin_budget.renew();
        }
        say_where(domain, number);
        left
    }
}
