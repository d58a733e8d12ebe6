//! Takeover of stalled processors, and the spare processors that take over.
//!
//! The clerk checks the processors of a server when a caller reports a stall
//! ([`stall`](crate::stall)), and again after [`STALL`]. A processor is taken over if it runs
//! something, has made no progress for that time, and calls wait in its lanes. The substitute then
//! has its duty ([`duty`](crate::duty)).
//!
//! # Choice of the substitute
//! In this order: a processor of the server that sleeps; a spare without a duty; a new spare; any
//! other processor that is not stalled. Spares take over only if the handler blocks in the kernel.
//!
//! A spare is a virtual processor on a kernel thread of its own. It is started when the first
//! handler blocks, and stays until the server ends. A spare without a duty has no lanes and sleeps.
//! If a substitute is stalled itself, its duties move to the next substitute.
//!
//! # Bounds
//! A client can make a server hold as many spares as the program permits, each with a kernel
//! thread. A client with as many calls under way as processors are left gets no more of them
//! ([`stacks`](super::stacks)): one client blocks at most half of the processors, and *n* clients
//! leave one part in *n* + 1. Spares leave [`KEPT_NUMBERS`](super::spares::KEPT_NUMBERS) numbers of
//! the domain free.

use super::group::{GroupProcessor, PollingIdle};
use super::own::{count_probe, say_where};
use super::spares::Spares;
use super::stacks::StackHeadroom;
use crate::domain::MOST_PROCESSORS;
use crate::duty::Duty;
use crate::placed::NOWHERE;
use crate::server::ServerLane;
use crate::sleep;
use crate::stall::{ProcessorProgress, STALL};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_os::atomic::{AtomicBool, Ordering};
use upcall_os::lock::KernelMutex;
use upcall_os::poll::Report;
use upcall_os::processor;
use upcall_os::timer::Timer;
use upcall_shm::station::{Awake, ProcessorState, StationLine};
use upcall_thread::Vp;

/// Key of another processor's doorbells in the wake set of its substitute.
const DUTY: u64 = 5;

/// State of a group whose stalled processors are taken over.
#[derive(Debug)]
pub(super) struct Takeover {
    /// Makes the clerk check again.
    timer: Timer,
    /// Set while the timer runs for the check that follows a report.
    pending: AtomicBool,
    /// Set if the timer was set to expire at once, for another reason.
    soon: AtomicBool,
    /// Maximum number of spares.
    pub(super) spares: usize,
    /// Maximum number of calls under way on all processors.
    calls: usize,
    /// The scheduler of a spare.
    pub(super) scheduler: upcall_thread::Processors,
    progress: KernelMutex<[ProcessorProgress; MOST_PROCESSORS]>,
    /// Set once no processor is alone with its lanes any more.
    pub(super) shared: AtomicBool,
    /// Set while a spare was started and has not begun.
    pub(super) starting: AtomicBool,
    pub(super) running: KernelMutex<Spares>,
}

/// The processor that probes the lanes of a home processor. Both are numbers in the domain.
pub(super) struct Prober {
    home: usize,
    pub(super) probes: usize,
}

impl Takeover {
    /// Makes the clerk check after `pause`, unless a check that follows a report comes before.
    pub(super) fn check_after(&self, pause: Duration) {
        if !self.pending.load(Ordering::SeqCst) {
            self.timer.set(pause);
            // Another thread may have set the timer to expire at once.
            if self.soon.load(Ordering::Relaxed) {
                self.timer.set(Duration::ZERO);
            }
        }
    }

    /// Makes the clerk check now. A check that follows a report still comes later.
    pub(super) fn check_soon(&self) {
        self.soon.store(true, Ordering::Relaxed);
        self.timer.set(Duration::ZERO);
    }
}

impl Prober {
    /// The number of the processor that probes `lane`.
    ///
    /// The first lane of a channel belongs to the channel's home processor, and each further lane
    /// to the next processor.
    pub(super) fn of(all: &[Self], lane: &ServerLane) -> Option<usize> {
        let home = all.iter().position(|prober| prober.home == lane.home()).unwrap_or(0);
        all.get((home + lane.place()) % all.len().max(1)).map(|prober| prober.probes)
    }
}

impl PollingIdle {
    /// Enables takeover of stalled processors, by up to `spares` further processors.
    ///
    /// A spare gets a scheduler like `scheduler`. At most `calls` calls are under way on all
    /// processors together. From now on the group's owner calls [`stall_reported`] and
    /// [`check_stalls`].
    ///
    /// # Errors
    /// No descriptor or no memory left.
    ///
    /// [`stall_reported`]: Self::stall_reported
    /// [`check_stalls`]: Self::check_stalls
    pub fn enable_takeover(
        &self,
        spares: usize,
        calls: usize,
        scheduler: upcall_thread::Processors,
    ) -> io::Result<()> {
        let takeover = Takeover {
            timer: Timer::new()?,
            pending: AtomicBool::new(false),
            soon: AtomicBool::new(false),
            spares: spares.min(MOST_PROCESSORS.saturating_sub(self.group.count)),
            calls,
            scheduler,
            progress: KernelMutex::new([ProcessorProgress::none(Instant::now()); MOST_PROCESSORS]),
            shared: AtomicBool::new(self.group.count > 1),
            starting: AtomicBool::new(false),
            running: KernelMutex::default(),
        };
        let _ = self.group.takeover.set(takeover);
        Ok(())
    }

    /// The timer after which [`check_stalls`](Self::check_stalls) is called. `None` before
    /// [`enable_takeover`](Self::enable_takeover).
    pub fn stall_timer(&self) -> Option<BorrowedFd<'_>> {
        self.group.takeover.get().map(|takeover| takeover.timer.as_fd())
    }

    /// Checks the processors because a caller has reported a stall, and again after [`STALL`].
    /// Reports in between have no effect, so callers cannot cause more checks than that.
    pub fn stall_reported(&self) {
        let Some(takeover) = self.group.takeover.get() else { return };
        if !takeover.pending.swap(true, Ordering::Relaxed) {
            self.take_over_stalled(takeover);
            takeover.timer.set(STALL);
        }
    }

    /// Checks the processors because the [timer](Self::stall_timer) has expired.
    pub fn check_stalls(&self) {
        if let Some(takeover) = self.group.takeover.get() {
            let early = takeover.soon.swap(false, Ordering::Relaxed);
            let pending = takeover.pending.swap(early, Ordering::Relaxed) && early;
            self.take_over_stalled(takeover);
            takeover.pending.store(pending, Ordering::SeqCst);
            if pending {
                takeover.timer.set(STALL);
            }
            self.check_queue_later(takeover);
        }
    }

    /// Takes over for the processors that are stalled while calls wait for them. The start of a
    /// spare takes some 100 µs.
    fn take_over_stalled(&self, takeover: &Takeover) {
        let stalled = self.stalled(takeover);
        if stalled.is_empty() {
            return;
        }
        // The processors that are to probe a lane with a request, or are notified for it.
        let awaited: Vec<_> = {
            let (probers, lanes) = (self.probers(), self.lanes());
            let waiting = lanes.iter().filter(|lane| lane.waits());
            let both = |lane: &Arc<ServerLane>| [Prober::of(&probers, lane), Some(lane.home())];
            waiting.flat_map(both).flatten().collect()
        };
        // Any of them could take a piece of the queue, if the rule allows one.
        let running = || [self.queue().running()];
        let pieces = self.queue().waits() && self.rule(takeover, &self.lanes()).allow(running);
        let takes_pieces =
            |index: usize| index < self.group.count || !self.duties_of(index).is_empty();
        let is_awaited = |index: usize| {
            pieces && takes_pieces(index)
                || self.number_of(index).is_some_and(|number| awaited.contains(&number))
        };
        for &index in stalled.iter().filter(|&&index| is_awaited(index)) {
            if let Some(by) = self.substitute(takeover, index, &stalled) {
                self.take_over(index, by);
            }
        }
    }

    /// Indices of the members that are stalled and have their duty.
    fn stalled(&self, takeover: &Takeover) -> Vec<usize> {
        let (station, now) = (self.group.domain.station(), Instant::now());
        let mut progress = takeover.progress.lock();
        let mut stalled = Vec::new();
        for ((index, member), progress) in self.members().zip(progress.iter_mut()) {
            let Some(number) = member.number().filter(|_| !member.duty.is_taken()) else {
                continue;
            };
            let probes = station.probes(number).load(Ordering::Relaxed);
            let stands = progress.is_stalled(probes.wrapping_add(member.duty.steps()), now);
            if stands && station.state(number) == ProcessorState::Awake(Awake::Running) {
                stalled.push(index);
            }
        }
        stalled
    }

    pub(super) fn members(&self) -> impl Iterator<Item = (usize, &GroupProcessor)> {
        let spares = self.group.takeover.get().map_or(0, |takeover| takeover.spares);
        self.group.members.iter().take(self.group.count + spares).enumerate()
    }

    /// Number in the domain of the member with this index.
    pub(super) fn number_of(&self, index: usize) -> Option<usize> {
        self.group.members.get(index).and_then(GroupProcessor::number)
    }

    /// Index of the member that takes over for member `of`. `None` if there is none, or if a spare
    /// is being started: the spare sets the timer when it begins.
    fn substitute(&self, takeover: &Takeover, of: usize, stalled: &[usize]) -> Option<usize> {
        let has_no_duty = |index: usize| self.duties_of(index).is_empty();
        let sleeps = |number| self.group.domain.station().state(number) == ProcessorState::Parked;
        // Rank in the order of choice, lowest first.
        let rank = |index: usize, number: usize| match index < self.group.count {
            true if has_no_duty(index) && sleeps(number) => 0,
            false if has_no_duty(index) => 1,
            _ => 2,
        };
        // A spare would share the processors with a handler that computes. So spares are for
        // handlers that block.
        let tid = self.group.members[of].tid.load(Ordering::Relaxed);
        let blocks = processor::is_blocked(tid) != Some(false);
        let candidates = self.members().filter_map(|(index, member)| {
            let number = member.number()?;
            let free = !member.duty.is_taken() && !stalled.contains(&index);
            let fit = free && (blocks || index < self.group.count);
            fit.then(|| (rank(index, number), index))
        });
        let best = candidates.min();
        if best.is_none_or(|(rank, _)| rank > 1) && blocks && self.start_spare(takeover) {
            return None;
        }
        best.map(|(_, index)| index)
    }

    /// Gives the duties of member `stalled`, and its own duty, to member `by`.
    fn take_over(&self, stalled: usize, by: usize) {
        for &duty in &*self.duties_of(stalled) {
            self.give_duty(duty, by, Some(stalled));
        }
        // Those that could not be moved stay; the next report tries again.
        if self.duties_of(stalled).is_empty() {
            self.give_duty(stalled, by, None);
        }
        self.group.domain.changed();
    }

    /// Gives the duty of member `of` to member `by`, if member `from` has it, or `of` itself.
    fn give_duty(&self, of: usize, by: usize, from: Option<usize>) {
        let domain = self.group.domain;
        let member = &self.group.members[of];
        let Some(number) = member.number() else { return };
        let connect = || {
            // A spare is no channel's home, so no caller notifies it.
            if of >= self.group.count {
                return true;
            }
            let set = |index| domain.wake_set(self.number_of(index)?).ok();
            let (Some(own), Some(other)) = (set(of), set(by)) else { return false };
            if other.set.add(&own.set, DUTY, Report::EachRing).is_err() {
                return false;
            }
            from.and_then(set).into_iter().for_each(|before| before.set.remove(&own.set));
            // Callers are neither to move its kernel thread, nor to yield to it. The substitute's
            // thread and CPU follow when it sleeps.
            let line = domain.station().line(number);
            line.tid.store(0, Ordering::Relaxed);
            line.cpu.store(NOWHERE, Ordering::Relaxed);
            true
        };
        let give = || {
            let connected = connect();
            if connected && from.is_none() {
                self.group.taken.fetch_add(1, Ordering::Relaxed);
            }
            connected
        };
        member.duty.take_over(by, from, &domain.station().line(number).asleep, give);
    }

    /// Called at each probe while substitutes have duties. The caller's processor takes its own
    /// duty back, and counts the probe for the processors whose duty it has.
    #[cold]
    pub(super) fn keep_duties(&self, vp: &Vp, duties: &[usize]) {
        if self.member(vp).duty.is_taken() {
            self.take_back(vp);
        }
        let station = self.group.domain.station();
        for number in duties.iter().filter_map(|&duty| self.number_of(duty)) {
            count_probe(station.probes(number));
        }
        if self.is_spare() && duties.is_empty() {
            self.wake_substitutes();
        }
    }

    /// Wakes the substitutes, because a call may have ended on a spare that probes no lanes: a
    /// request may go on that has waited for that.
    fn wake_substitutes(&self) {
        let domain = self.group.domain;
        let own = self.group.members.iter().take(self.group.count);
        let substitutes = own.filter_map(|member| self.number_of(member.duty.substitute()?));
        for number in substitutes {
            if sleep::must_wake(&domain.station().line(number).asleep) {
                domain.rouse(number);
            }
        }
    }

    /// Takes back the duty of the caller's processor.
    fn take_back(&self, vp: &Vp) {
        let (domain, index) = (self.group.domain, self.first + vp.index());
        let Some(number) = self.number_of(index) else { return };
        if self.take_back_for(index) {
            let line = domain.station().line(number);
            line.tid.store(processor::thread_id(), Ordering::Relaxed);
            say_where(domain, number);
            domain.changed();
            // One more processor is free, which calls may wait for.
            if let Some(takeover) = self.group.takeover.get() {
                takeover.check_soon();
            }
        }
    }

    /// Takes back the duty of member `index`. Returns `false` if the member had it.
    fn take_back_for(&self, index: usize) -> bool {
        let Some(number) = self.number_of(index) else { return false };
        let domain = self.group.domain;
        let disconnect = |substitute: usize| {
            self.group.taken.fetch_sub(1, Ordering::Relaxed);
            let set = |number: Option<usize>| domain.wake_set(number?).ok();
            let sets = (set(Some(number)), set(self.number_of(substitute)));
            if let (Some(own), Some(other)) = sets {
                other.set.remove(&own.set);
            }
        };
        let word = &domain.station().line(number).asleep;
        self.group.members[index].duty.take_back(word, disconnect)
    }

    /// Gives back all duties, because the caller's processor ends.
    pub(super) fn leave_duties(&self, vp: &Vp) {
        let index = self.first + vp.index();
        self.take_back_for(index);
        self.duties_of(index).iter().for_each(|&duty| _ = self.take_back_for(duty));
    }

    /// Announces for `duties` that the caller's processor, whose line is `own`, is about to sleep.
    /// A fence and a second probe follow.
    ///
    /// Callers may move the substitute's kernel thread to their CPUs, as they move the home
    /// processor's otherwise.
    pub(super) fn announce_duties(&self, vp: &Vp, own: &StationLine, duties: &[usize]) {
        let by = self.first + vp.index();
        for (duty, line) in self.lines_of(duties) {
            duty.announce(by, &line.asleep, &line.sleeps, || {
                let cpu = own.cpu.load(Ordering::Relaxed);
                line.cpu.store(cpu, Ordering::Relaxed);
                line.tid.store(own.tid.load(Ordering::Relaxed), Ordering::Relaxed);
            });
        }
    }

    /// Marks for `duties` that the caller's processor is awake, and where it runs.
    pub(super) fn retract_duties(&self, vp: &Vp, duties: &[usize]) {
        let by = self.first + vp.index();
        for (duty, line) in self.lines_of(duties) {
            duty.retract(by, &line.asleep, || {
                line.cpu.store(processor::current() as u32, Ordering::Relaxed);
            });
        }
    }

    /// The duties of these members, and their lines.
    fn lines_of(&self, duties: &[usize]) -> impl Iterator<Item = (&Duty, &'static StationLine)> {
        duties.iter().filter_map(|&duty| {
            let line = self.group.domain.station().line(self.number_of(duty)?);
            Some((&*self.group.members[duty].duty, line))
        })
    }

    /// Indices of the members whose duty the member with this index has.
    pub(super) fn duties_of(&self, index: usize) -> Rc<[usize]> {
        self.members()
            .take(self.group.count)
            .filter(|(_, member)| member.duty.substitute() == Some(index))
            .map(|(of, _)| of)
            .collect()
    }

    /// The scheduler's own processors, each with the processor that probes its lanes.
    pub(super) fn probers(&self) -> Vec<Prober> {
        let own = self.group.members.iter().take(self.group.count);
        own.filter_map(|member| {
            let home = member.number()?;
            let substitute = member.duty.substitute().and_then(|index| self.number_of(index));
            Some(Prober { home, probes: substitute.unwrap_or(home) })
        })
        .collect()
    }

    /// Wakes a processor of the server that sleeps.
    #[cold]
    pub(super) fn call_helper(&self) {
        let domain = self.group.domain;
        let own = self.group.members.iter().take(self.group.count);
        let mut own =
            own.filter(|member| !member.duty.is_taken()).filter_map(GroupProcessor::number);
        if let Some(helper) =
            own.find(|&number| domain.station().state(number) == ProcessorState::Parked)
        {
            domain.rouse(helper);
        }
    }

    /// The rule by which the caller's processor takes requests from `lanes`.
    #[inline]
    pub(super) fn stacks(&self, vp: &Vp, lanes: &[Arc<ServerLane>]) -> StackHeadroom {
        let own = StackHeadroom::of(vp);
        if self.group.taken.load(Ordering::Relaxed) == 0 {
            return own;
        }
        self.group.takeover.get().map_or(own, |takeover| self.rule(takeover, lanes).and(own))
    }

    /// The rule for all processors together.
    #[cold]
    fn rule(&self, takeover: &Takeover, lanes: &[Arc<ServerLane>]) -> StackHeadroom {
        let taken = self.group.taken.load(Ordering::Relaxed);
        let calls = lanes.iter().map(|lane| lane.calls()).sum::<usize>() + self.queue().running();
        StackHeadroom::left(taken, self.group.count + takeover.spares, 1).and(StackHeadroom::left(
            calls,
            takeover.calls,
            1,
        ))
    }

    /// Returns `true` if no processor is alone with its lanes.
    pub(super) fn has_shared_lanes(&self) -> bool {
        let takeover = self.group.takeover.get();
        takeover.is_some_and(|takeover| takeover.shared.load(Ordering::Relaxed))
    }
}
