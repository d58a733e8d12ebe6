//! What a call brings for its values: an A-stack, or a segment of memory; taken for its time, and
//! waited for.

use crate::binding::Near;
use crate::error::CallError;
use crate::link::{DomainLink, Segment};
use crate::places::{CallPermit, NoPlace};
use std::io;
use std::sync::Arc;
use upcall_os::atomic::{AtomicU32, Ordering};
use upcall_os::lock::KernelMutex;
use upcall_sched::gate::Gate;
use upcall_sched::{Closed, Processor, Sleeper, WaitLimit, block_unless};
use upcall_shm::astack::AStackPlan;
use upcall_shm::region::Region;
use upcall_shm::span::WritableSpan;
use upcall_thread::Waited;

/// Who waits for an A-stack, and where it is told which.
pub(crate) struct AStackWaiter {
    sleeper: Sleeper,
    told: Arc<AtomicU32>,
}

impl AStackWaiter {
    /// Tells it which A-stack it has; false if it has gone.
    fn tell(self, within: u16) -> bool {
        self.told.store(within.into(), Ordering::Release);
        self.sleeper.wake()
    }
}

/// The A-stacks of one class, and who waits for one.
pub(crate) struct AStackPool {
    gate: Gate<AStackWaiter>,
    class: usize,
    /// The number of the first, and where that lies.
    first: u16,
    at: usize,
    /// Bytes of each.
    pub(crate) size: usize,
}

impl AStackPool {
    pub(crate) fn new(plan: &AStackPlan, class: usize) -> Self {
        let first = plan.first_of(class);
        let (at, size) = plan.place(first).unwrap_or_default();
        Self { gate: Gate::new(plan.classes()[class].count), class, first, at, size }
    }

    /// Tells one who waits of its A-stack, or the next one if it has gone meanwhile.
    #[cold]
    fn hand_on(&self, mut next: AStackWaiter, mut number: u16) {
        while !next.tell(number) {
            match self.gate.give(number) {
                Some(given) => (next, number) = given,
                None => return,
            }
        }
    }
}

/// An A-stack that was left to a late reply: its class, and its number within that.
pub(crate) type LeftAStack = (usize, u16);

/// An A-stack, taken for the time of a call.
pub(crate) struct AStack<'a> {
    memory: &'a Region,
    stacks: &'a AStackPool,
    within: u16,
}

impl<'a> AStack<'a> {
    /// Waits until one comes back, at most as long as `until` says; for who has found none.
    #[cold]
    pub(crate) fn wait_for(
        near: &'a Near,
        stacks: &'a AStackPool,
        until: WaitLimit<'_>,
    ) -> Result<Option<Self>, CallError> {
        let Some(memory) = near.astacks.as_deref() else { return Ok(None) };
        let within = wait_for(&stacks.gate, until).ok_or(CallError::Aborted { sent: false })?;
        Ok(Some(Self { memory, stacks, within }))
    }

    /// Takes one if there is one.
    #[inline]
    pub(crate) fn try_take(near: &'a Near, stacks: &'a AStackPool) -> Option<Self> {
        let memory = near.astacks.as_deref()?;
        stacks.gate.try_take().map(|within| Self { memory, stacks, within })
    }

    /// As the server knows it.
    #[inline]
    pub(crate) fn number(&self) -> u16 {
        self.stacks.first + self.within
    }

    #[inline]
    pub(crate) fn room(&self) -> Option<WritableSpan<'a>> {
        self.memory
            .room(self.stacks.at + usize::from(self.within) * self.stacks.size, self.stacks.size)
    }

    /// It stays taken.
    pub(crate) fn leave(self) -> LeftAStack {
        let left = (self.stacks.class, self.within);
        std::mem::forget(self);
        left
    }

    /// One that was left.
    pub(crate) fn from(near: &'a Near, (class, within): LeftAStack) -> Option<Self> {
        Some(Self { memory: near.astacks.as_deref()?, stacks: near.stacks.get(class)?, within })
    }
}

#[cold]
fn wait_for(gate: &Gate<AStackWaiter>, until: WaitLimit<'_>) -> Option<u16> {
    let told = Arc::new(AtomicU32::new(0));
    let mut taken = None;
    let waited = block_unless(until, |sleeper| {
        let mut sleeper = Some(sleeper);
        taken = gate.take_or_wait(|| {
            let sleeper =
                sleeper.take().unwrap_or_else(|| unreachable!("the gate makes at most one entry"));
            AStackWaiter { sleeper, told: told.clone() }
        });
        sleeper
    });
    if taken.is_none() && waited == Waited::TimedOut {
        gate.keep(|waiting| !waiting.sleeper.has_gone());
        return None;
    }
    Some(taken.unwrap_or_else(|| told.load(Ordering::Acquire) as u16))
}

impl Drop for AStack<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some((next, number)) = self.stacks.gate.give(self.within) {
            self.stacks.hand_on(next, number);
        }
    }
}

/// A segment, taken for the time of a call, with its place among those in use.
pub(crate) struct TakenSegment<'a> {
    link: &'a DomainLink,
    place: Option<CallPermit>,
    segment: Option<Segment>,
}

/// A segment that stays in use, and its place.
pub(crate) type LeftSegment = (Segment, Option<CallPermit>);

impl<'a> TakenSegment<'a> {
    pub(crate) fn take(
        link: &'a DomainLink,
        len: usize,
        until: WaitLimit<'_>,
    ) -> Result<Self, CallError> {
        // Threads of a virtual processor that polls no channels hold up that processor while they
        // call, and wait for nobody before.
        let calls_alone =
            upcall_thread::on_virtual_processor().is_some() && Processor::current().is_none();
        let place = (!calls_alone).then(|| link.places.take(until)).transpose().map_err(
            |none| match none {
                NoPlace::OutOfTime => CallError::Aborted { sent: false },
                NoPlace::Closed => CallError::Failed(link.channel.closed().unwrap_or(Closed::Here)),
            },
        )?;
        let mut taken = Self { link, place, segment: None };
        taken.fill(len, until)?;
        Ok(taken)
    }

    /// Another one in the same place.
    pub(crate) fn exchange(mut self, len: usize, until: WaitLimit<'_>) -> Result<Self, CallError> {
        self.segment.take().into_iter().for_each(|segment| self.link.give_segment(segment));
        self.fill(len, until)?;
        Ok(self)
    }

    fn fill(&mut self, len: usize, until: WaitLimit<'_>) -> Result<(), CallError> {
        let link = self.link;
        let segment = match link.kept_segment(len) {
            Some(segment) => Ok(segment),
            None if self.place.is_some() => aside(|| link.new_segment(len, until)),
            None => link.new_segment(len, until),
        };
        let segment = segment.map_err(|error| match link.channel.closed() {
            Some(closed) => CallError::Failed(closed),
            None if !until.is_for_ever() && error.kind() == io::ErrorKind::TimedOut => {
                CallError::Aborted { sent: false }
            }
            None => CallError::NoMemory { bytes: len as u64, error: error.to_string() },
        })?;
        self.segment = Some(segment);
        Ok(())
    }

    /// One that was left before.
    pub(crate) fn from(link: &'a DomainLink, (segment, place): LeftSegment) -> Self {
        Self { link, place, segment: Some(segment) }
    }

    pub(crate) fn number(&self) -> u16 {
        self.segment.as_ref().map_or(0, |segment| segment.number)
    }

    /// The segment; it stays in use.
    pub(crate) fn leave(mut self) -> Option<LeftSegment> {
        let segment = self.segment.take()?;
        Some((segment, self.place.take()))
    }

    pub(crate) fn room(&self) -> Option<WritableSpan<'_>> {
        let segment = self.segment.as_ref()?;
        segment.region.room(0, segment.region.len())
    }
}

impl Drop for TakenSegment<'_> {
    fn drop(&mut self) {
        self.segment.take().into_iter().for_each(|segment| self.link.give_segment(segment));
        self.place.take().into_iter().for_each(|place| self.link.places.give(place));
    }
}

/// All that a call brings.
pub(crate) struct CallMemory<'a> {
    pub(crate) astack: Option<AStack<'a>>,
    pub(crate) segment: Option<TakenSegment<'a>>,
}

/// What a call that was given up leaves to its late reply.
#[derive(Default)]
pub(crate) struct AbandonedMemory {
    pub(crate) astack: Option<LeftAStack>,
    pub(crate) segment: Option<LeftSegment>,
}

impl<'a> CallMemory<'a> {
    #[inline]
    pub(crate) fn nothing() -> Self {
        Self { astack: None, segment: None }
    }

    /// All of it stays taken.
    pub(crate) fn leave(&mut self) -> AbandonedMemory {
        AbandonedMemory {
            astack: self.astack.take().map(AStack::leave),
            segment: self.segment.take().and_then(TakenSegment::leave),
        }
    }

    /// What was left before.
    pub(crate) fn from(near: &'a Near, left: AbandonedMemory) -> Self {
        Self {
            astack: left.astack.and_then(|astack| AStack::from(near, astack)),
            segment: left.segment.map(|segment| TakenSegment::from(&near.link, segment)),
        }
    }
}

/// Runs what blocks its kernel thread: beside the virtual processor if there is one, so that other
/// threads go on.
pub(crate) fn aside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    if upcall_thread::on_virtual_processor().is_none() {
        return work();
    }
    let (work, result) = (KernelMutex::new(Some(work)), KernelMutex::new(None));
    let run = || {
        let work = work.lock().take();
        let done = work.map(|work| work());
        *result.lock() = done;
    };
    std::thread::scope(|scope| {
        upcall_thread::block_unless(|waiter| {
            // What cannot be run beside is run here, at the price of the other threads' time.
            let waiter = KernelMutex::new(Some(waiter));
            let wake = Arc::new(waiter);
            let woken = wake.clone();
            let started = std::thread::Builder::new().spawn_scoped(scope, move || {
                run();
                if let Some(waiter) = woken.lock().take() {
                    waiter.wake();
                }
            });
            match started {
                Ok(_) => None,
                Err(_) => wake.lock().take(),
            }
        });
    });
    let done = result.into_inner();
    done.unwrap_or_else(|| {
        let work = work.into_inner();
        work.unwrap_or_else(|| unreachable!("work that did not run is still there"))()
    })
}
