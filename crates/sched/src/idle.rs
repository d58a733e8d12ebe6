//! What a virtual processor does when none of its threads is ready.
//!
//! Source: URPC, sections 2 and 3.2: idle processors poll, at the lowest priority; a processor with
//! nothing to do anywhere sleeps, and costs nothing. A probe first takes replies for this domain's
//! own threads, each of which ends a thread's wait, and then requests of clients.
//!
//! A processor that is not idle probes too: when a thread yields while no other is ready, and at
//! every 4096th choice of the next thread. Otherwise threads that are always ready would shut out
//! calls (`upcall_thread`, dispatch.rs).
//!
//! # Which lanes a processor probes
//! A request in a lane is a thread that has not started, and whichever processor takes it runs it.
//! But two processors that probe one lane take its cache line from each other, and from the caller.
//! So each lane belongs to one processor, and lanes of one client to different ones. A processor
//! probes its own lanes, those of processors that sleep, and now and then the rest: a request that
//! waits there is stolen from a processor that runs something long. A processor probes all lanes
//! before it sleeps and after it wakes, so the argument in `sleep` holds for all of them. The lanes
//! of a processor that a handler blocks belong to its substitute ([`takeover`]).
//!
//! A pure state machine ([`poller`](crate::poller)) decides what the processor does after a probe
//! that found nothing; tests explore that machine.
//!
//! # Borrowed CPUs
//! A processor that was moved to a caller's CPU serves that caller's calls first. It gives the CPU
//! back when they are answered, or when the caller has something to run there itself (URPC, section
//! 3.1.2; U10, U11): it goes on elsewhere, or sleeps.
//!
//! If the caller asks it to stay ([`Stay`](crate::pacing::Stay)), and all its callers are on this
//! CPU, it yields before it sleeps: twice at most, and not after others have kept the CPU for
//! longer. A call that arrives during such a yield finds it awake, and takes a yield on each side
//! in place of a wake and a sleep. No wake can be lost by that: a processor that yields is awake,
//! and probes again.
//!
//! A server that has one caller, a kernel thread, and one processor of its own, on the CPU of that
//! caller, yields right after the answer, without the detour through this loop (`work`). It does so
//! while it has no thread that is ready or waits for a time and no lane was opened or closed, at
//! most `TURNS` times in a row.

pub(crate) mod attended;
mod facts;
pub(crate) mod group;
mod own;
mod park;
mod posts;
mod queue;
mod scan;
mod serve;
mod spares;
mod stacks;
mod stalls;
mod takeover;
mod timer;
mod view;

use self::group::GroupProcessor;
pub use self::group::PollingIdle;
pub(crate) use self::own::number;
use self::own::{Hindrance, NO_MEMORY, say_where};
pub use self::own::{Processor, index};
pub use self::queue::Piece;
use self::timer::OwnTimer;
use self::view::{Due, ProcessorView, Rested, VIEW};
use crate::costs::WaitCosts;
use crate::pacing::Pacing;
use crate::poller::{Poller, ROUNDS_ON_A_CPU};
use crate::sleep;
use std::time::Instant;
use upcall_os::atomic::{Ordering, Ordering::Relaxed};
use upcall_os::processor;
use upcall_shm::station::Awake;
use upcall_thread::{Found, Idle, Vp};

/// Returns `true` if a call by this processor asks the server, which is on the same CPU, to stay
/// there.
pub(crate) fn is_stay_wanted() -> bool {
    VIEW.with_borrow_mut(|view| view.poller.asks_to_stay())
}

impl Idle for PollingIdle {
    fn begin(&self, vp: &Vp) {
        let domain = self.group.domain;
        let hindered = |hindrance| {
            own::set_hindrance(Some(hindrance));
            let _ = self.group.hindrance.set(hindrance);
        };
        let index = self.first + vp.index();
        let Some(number) = self.group.members.get(index).and_then(|_| self.take_number()) else {
            return hindered(Hindrance::Full);
        };
        // A processor without a wake set could not be woken. So it neither serves nor calls through
        // a lane of its own.
        if let Err(error) = domain.wake_set(number) {
            domain.give_number(number);
            return hindered(Hindrance::Kernel(error.raw_os_error().unwrap_or(NO_MEMORY)));
        }
        own::begin(number, index);
        let home = processor::CpuSet::allowed().ok();
        let cpus = home.as_ref().map_or(1, processor::CpuSet::count);
        VIEW.set(ProcessorView {
            poller: Poller::new(self.group.pacing, home, WaitCosts::measured()),
            timer: OwnTimer::new(),
            probes: Some(domain.station().probes(number)),
            ..ProcessorView::default()
        });
        say_where(domain, number);
        domain.station().say(number, Awake::Running);
        domain.station().say_places(cpus as u32);
        let line = domain.station().line(number);
        line.tid.store(processor::thread_id(), Ordering::Relaxed);
        let member = &self.group.members[index];
        member.tid.store(processor::thread_id(), Relaxed);
        member.number.store(number + 1, Ordering::Release);
        self.have_others_share();
        self.has_begun();
    }

    fn end(&self, vp: &Vp) {
        own::set_hindrance(None);
        if let Some(number) = number() {
            // The kernel thread is its owner's again, and so are its CPUs.
            VIEW.with_borrow(|view| {
                view.scan.pay_looks();
                view.poller.way_home().map(processor::CpuSet::confine);
            });
            self.leave_duties(vp);
            self.member(vp).number.store(0, Relaxed);
            self.have_others_share();
            own::end();
            VIEW.set(ProcessorView::default());
            crate::calls::leave_lanes(number);
            self.group.domain.give_number(number);
        }
    }

    fn poll(&self, vp: &Vp) -> Found {
        if self.group.taken.load(Relaxed) != 0 {
            let duties = VIEW.with_borrow(|view| view.duties.clone());
            self.keep_duties(vp, &duties);
        }
        VIEW.with_borrow_mut(|view| {
            view.refresh(self);
            view.probes.into_iter().for_each(own::count_probe);
            // A probe between two threads wakes servers, but this processor has work.
            view.settle(self.group.domain, self.group.pacing == Pacing::Poll || !vp.is_idle());
            view.probe(self, vp)
        })
    }

    fn is_pressed(&self, _vp: &Vp) -> bool {
        VIEW.with_borrow(|view| view.scan.attending.is_pressed())
    }

    fn work(&self, vp: &Vp) {
        match VIEW.with_borrow_mut(ProcessorView::due) {
            Due::Piece(piece) => piece.run(),
            Due::Messages(messages) => messages.serve(),
            Due::Calls => self.serve_calls(vp),
        }
    }

    fn resume(&self, _vp: &Vp) {
        VIEW.with_borrow_mut(|view| view.resumes(self));
    }

    fn rest(&self, vp: &Vp, round: u32, deadline: Option<Instant>) {
        // The kernel may move a processor that spins. Callers read its CPU to decide whether to
        // yield to it.
        let (domain, number) = (self.group.domain, number());
        if round.is_multiple_of(ROUNDS_ON_A_CPU)
            && let Some(number) = number
        {
            say_where(domain, number);
        }
        let rested = VIEW.with_borrow_mut(|view| {
            let gave = view.poller.has_given_cpu();
            view.say(domain, if gave { Awake::Gave } else { Awake::Polling });
            view.rest(round, deadline)
        });
        if rested == Rested::Park {
            self.park(vp, deadline);
        }
    }

    fn unpark(&self, vp: usize) {
        let Some(number) = self.group.members.get(self.first + vp).and_then(GroupProcessor::number)
        else {
            return;
        };
        if sleep::must_wake(&self.group.domain.station().line(number).asleep) {
            self.group.domain.rouse(number);
        }
    }
}
