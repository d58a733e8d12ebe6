//! Spare processors: virtual processors on kernel threads of their own, which take over for
//! processors whose handlers block ([`takeover`](super::takeover)).

use super::group::PollingIdle;
use super::own::number;
use super::takeover::Takeover;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use upcall_os::atomic::Ordering;
use upcall_os::membarrier;
use upcall_thread::Waiter;

/// Minimum number of the domain's processor numbers that spares leave free.
pub(super) const KEPT_NUMBERS: usize = 8;

/// Time between two attempts to start a spare, if the first one fails.
const RETRY: Duration = Duration::from_millis(100);

/// The spares that run.
#[derive(Debug, Default)]
pub(super) struct Spares {
    threads: Vec<JoinHandle<()>>,
    /// Each ends a spare when woken.
    stops: Vec<Waiter>,
    /// Set once no further spare may be started.
    closed: bool,
    /// Time before which no spare is started.
    not_before: Option<Instant>,
}

impl PollingIdle {
    /// Ends the spares, and waits until they have ended. No call runs on them, and none will.
    pub fn end_spares(&self) {
        let Some(takeover) = self.group.takeover.get() else { return };
        let mut running = takeover.running.lock();
        running.closed = true;
        let threads = std::mem::take(&mut running.threads);
        let stops = std::mem::take(&mut running.stops);
        drop(running);
        stops.into_iter().for_each(Waiter::wake);
        for thread in threads {
            let _ = thread.join();
        }
    }

    pub(super) fn is_spare(&self) -> bool {
        self.first > 0
    }

    /// Takes a number of the domain for the caller's processor.
    pub(super) fn take_number(&self) -> Option<usize> {
        if self.is_spare() {
            self.group.domain.take_spare_number(KEPT_NUMBERS)
        } else {
            self.group.domain.take_number()
        }
    }

    /// The caller's processor has begun. If it is a spare, the clerk checks again.
    pub(super) fn has_begun(&self) {
        if let Some(takeover) = self.group.takeover.get().filter(|_| self.is_spare()) {
            takeover.starting.store(false, Ordering::Release);
            takeover.check_soon();
        }
    }

    /// Starts a spare. Returns `false` if none is being started.
    pub(super) fn start_spare(&self, takeover: &Takeover) -> bool {
        if takeover.starting.load(Ordering::Acquire) {
            return true;
        }
        let mut running = takeover.running.lock();
        let mut spares = self.members().skip(self.group.count);
        let free = spares.find(|(_, spare)| spare.number().is_none());
        let now = Instant::now();
        let too_early = running.not_before.is_some_and(|at| now < at);
        let impossible = running.closed || !self.group.domain.has_spare_number(KEPT_NUMBERS);
        let (Some((first, _)), false) = (free, impossible || too_early) else { return false };
        running.not_before = Some(now + RETRY);
        running.threads.retain(|thread| !thread.is_finished());
        takeover.starting.store(true, Ordering::Release);
        let spare = Self { group: self.group.clone(), first };
        let started = std::thread::Builder::new()
            .name(format!("upcall-spare-{}", first - self.group.count))
            .spawn(move || spare.run_spare());
        match started {
            Ok(thread) => running.threads.push(thread),
            Err(_) => takeover.starting.store(false, Ordering::Release),
        }
        takeover.starting.load(Ordering::Acquire)
    }

    /// The body of a spare's kernel thread.
    fn run_spare(self) {
        let Some(takeover) = self.group.takeover.get() else { return };
        if self.share_lanes(takeover) {
            let scheduler = takeover.scheduler.clone().count(1).idle(Arc::new(self.clone()));
            let stay = || {
                if number().is_some() {
                    // The next spare may follow at once.
                    takeover.running.lock().not_before = None;
                    upcall_thread::block(|stop| self.stay(takeover, stop));
                }
            };
            // If there is no stack for the scheduler, the next attempt comes later.
            let _ = scheduler.run(stay);
        } else {
            takeover.running.lock().closed = true;
        }
        takeover.starting.store(false, Ordering::Release);
    }

    /// Keeps `stop` until the spares are ended. If they already are, `stop` is woken.
    fn stay(&self, takeover: &Takeover, stop: Waiter) {
        let mut running = takeover.running.lock();
        if !running.closed {
            running.stops.push(stop);
        }
    }

    /// Ends the state in which a processor is alone with its lanes ([`duty`](crate::duty)). Returns
    /// `false` if the kernel refuses the fence that this needs.
    fn share_lanes(&self, takeover: &Takeover) -> bool {
        if takeover.shared.load(Ordering::Acquire) {
            return true;
        }
        if !membarrier::register() {
            return false;
        }
        let lanes = self.lanes();
        takeover.shared.store(true, Ordering::Release);
        lanes.iter().for_each(|lane| lane.is_alone(false));
        drop(lanes);
        membarrier::everywhere()
    }
}
