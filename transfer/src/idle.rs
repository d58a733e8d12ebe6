//! What a virtual processor does when none of its threads is ready.
//!
//! Source: URPC, sections 2 and 3.2: idle processors poll, at the lowest priority; a processor with nothing to do anywhere sleeps, and costs
//! nothing. The order of a look: replies for our own threads first (they end somebody's wait), then requests of clients.

use crate::caller::VpSeat;
use crate::domain::Domain;
use crate::pacer::{LONGEST, Pacer, Pacing};
use crate::server::ServerLane;
use crate::sleep;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use upcall_os::atomic::{Ordering, fence};
use upcall_os::processor;
use upcall_thread::{Found, Idle, Vp};

/// How many requests of one lane are run before the others are looked at again.
const BATCH: usize = 32;

/// The idle behaviour of all virtual processors of this domain: give it to the scheduler.
#[derive(Debug)]
pub struct Processors {
    domain: &'static Domain,
    pacing: Pacing,
}

impl Processors {
    /// With this pacing.
    ///
    /// # Errors
    /// No descriptor or no memory left.
    pub fn new(pacing: Pacing) -> io::Result<Self> {
        Ok(Self { domain: Domain::current()?, pacing })
    }
}

thread_local! {
    static VIEW: RefCell<View> = RefCell::default();
}

/// One virtual processor's own view of the domain.
#[derive(Default)]
struct View {
    generation: u64,
    lanes: Rc<Vec<Arc<ServerLane>>>,
    seats: Rc<Vec<Arc<VpSeat>>>,
    /// Where the next look begins, and where the last one found a request.
    next: usize,
    pacer: Pacer,
    /// Since when nothing was found.
    idle_since: Option<Instant>,
    /// The processor that we run on is a caller's.
    donated: bool,
    /// We were confined by a donor, or confined ourselves away from one.
    confined: bool,
    /// Where we may run when nobody confines us.
    home: Option<processor::Processors>,
    single: bool,
}

impl View {
    fn refresh(&mut self, domain: &Domain, vp: usize) {
        let generation = domain.generation();
        if self.generation == generation {
            return;
        }
        if self.generation == 0 {
            self.start(domain, vp);
        }
        self.generation = generation;
        self.lanes = Rc::new(domain.lanes());
        self.seats = Rc::new(domain.seats(vp));
    }

    fn start(&mut self, domain: &Domain, vp: usize) {
        domain.processor_started(vp);
        self.home = processor::Processors::allowed().ok();
        self.single = self.home.as_ref().is_none_or(|home| home.count() < 2);
        let line = domain.station().line(vp);
        line.cpu.store(processor::current() as u32, std::sync::atomic::Ordering::Relaxed);
        line.tid.store(processor::thread_id(), std::sync::atomic::Ordering::Relaxed);
    }

    fn settle(&self) {
        if self.lanes.iter().any(|lane| lane.owes_look()) || !self.seats.is_empty() {
            fence(Ordering::SeqCst);
            self.lanes.iter().for_each(|lane| lane.look());
            self.seats.iter().for_each(|seat| seat.look());
        }
    }

    /// The sleeper's second look.
    fn waits(&self) -> bool {
        self.seats.iter().any(|seat| seat.waits()) || self.lanes.iter().any(|lane| lane.waits())
    }
}

impl Idle for Processors {
    fn poll(&self, vp: &Vp) -> Found {
        VIEW.with_borrow_mut(|view| {
            view.refresh(self.domain, vp.index());
            let mut woke = false;
            for seat in view.seats.iter() {
                woke |= seat.collect();
            }
            let (before, from) = view.lanes.split_at(view.next.min(view.lanes.len()));
            let found = match from.iter().position(|lane| lane.waits()) {
                Some(at) => Some(before.len() + at),
                None => before.iter().position(|lane| lane.waits()),
            };
            if woke || found.is_some() {
                if view.idle_since.take().is_some() {
                    view.pacer.fruitful();
                }
                if let Some(found) = found {
                    view.next = found;
                    return Found::Work;
                }
                return Found::Woke;
            }
            Found::Nothing
        })
    }

    fn work(&self, _vp: &Vp) {
        let lane = VIEW.with_borrow_mut(|view| {
            let lane = view.lanes.get(view.next).cloned();
            view.next += 1;
            lane
        });
        let Some(lane) = lane else { return };
        for _ in 0..BATCH {
            let Some(served) = lane.serve_one() else { break };
            if served.donated {
                VIEW.with_borrow_mut(|view| (view.donated, view.confined) = (true, true));
            }
        }
    }

    fn rest(&self, vp: &Vp, round: u32, deadline: Option<Instant>) {
        let spun = VIEW.with_borrow_mut(|view| {
            if round == 1 {
                view.settle();
            }
            view.spin(self.pacing, round, deadline)
        });
        if !spun {
            self.sleep(vp, deadline);
        }
    }

    fn unpark(&self, vp: usize) {
        if sleep::must_wake(&self.domain.station().line(vp).asleep) {
            self.domain.rouse(vp);
        }
    }
}

impl View {
    /// One step of spinning; false when it is time to sleep.
    fn spin(&mut self, pacing: Pacing, round: u32, deadline: Option<Instant>) -> bool {
        if pacing == Pacing::Poll {
            if self.single {
                processor::give_way();
            }
            upcall_os::atomic::spin_loop();
            return round % 64 != 0 || deadline.is_none_or(|at| Instant::now() < at);
        }
        if pacing == Pacing::Sleep || self.single {
            return false;
        }
        if self.donated {
            // Calls follow each other closely: a processor of our own serves them better than the caller's.
            if self.pacer.budget(pacing) < LONGEST / 2 || !self.leave_donor() {
                return false;
            }
        }
        upcall_os::atomic::spin_loop();
        if round % 32 != 1 {
            return true;
        }
        let now = Instant::now();
        let since = *self.idle_since.get_or_insert(now);
        now - since < self.pacer.budget(pacing) && deadline.is_none_or(|at| now < at)
    }

    /// Moves to another processor than the donor's. False if there is none.
    fn leave_donor(&mut self) -> bool {
        self.donated = false;
        let elsewhere = self.home.as_ref().map(|home| home.without(processor::current()));
        elsewhere.is_some_and(|elsewhere| elsewhere.count() > 0 && elsewhere.confine().is_ok())
    }
}

impl Processors {
    fn sleep(&self, vp: &Vp, deadline: Option<Instant>) {
        let line = self.domain.station().line(vp.index());
        let Ok(bed) = self.domain.bed(vp.index()) else { return };
        let generation = VIEW.with_borrow_mut(|view| {
            // Confined, but by nobody who needs it now: back to where we belong.
            if view.confined && !view.donated {
                view.confined = false;
                let _ = view.home.as_ref().map(processor::Processors::confine);
            }
            view.donated = false;
            view.idle_since = None;
            view.generation
        });
        sleep::announce(&line.asleep);
        let busy = vp.has_work()
            || self.domain.generation() != generation
            || VIEW.with_borrow(View::waits);
        if busy {
            sleep::retract(&line.asleep);
            return;
        }
        let start = Instant::now();
        bed.set.wait_any(deadline.map(|at| at.saturating_duration_since(start)));
        sleep::retract(&line.asleep);
        line.cpu.store(processor::current() as u32, std::sync::atomic::Ordering::Relaxed);
        VIEW.with_borrow_mut(|view| {
            // Woken soon: it would have been better to spin. Late: spinning was, or would have been, for nothing.
            if start.elapsed() < LONGEST {
                view.pacer.fruitful();
            } else {
                view.pacer.fruitless();
            }
        });
    }
}
