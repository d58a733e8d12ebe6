//! The memory that a call brings for its values: an A-stack, or a segment. The call holds it for
//! its duration, and may have to wait for it.

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

/// A waiter for an A-stack, and the cell in which it receives the A-stack's number.
pub(crate) struct AStackWaiter {
    sleeper: Sleeper,
    told: Arc<AtomicU32>,
}

impl AStackWaiter {
    /// Gives the waiter its A-stack. Returns `false` if the waiter has left.
    fn tell(self, within: u16) -> bool {
        self.told.store(within.into(), Ordering::Release);
        self.sleeper.wake()
    }
}

/// The A-stacks of one class, and the waiters for them.
pub(crate) struct AStackPool {
    gate: Gate<AStackWaiter>,
    class: usize,
    /// The number of the first A-stack, and its offset.
    first: u16,
    at: usize,
    /// Size of each, in bytes.
    pub(crate) size: usize,
}

impl AStackPool {
    pub(crate) fn new(plan: &AStackPlan, class: usize) -> Self {
        let first = plan.first_of(class);
        let (at, size) = plan.place(first).unwrap_or_default();
        Self { gate: Gate::new(plan.classes()[class].count), class, first, at, size }
    }

    /// Gives an A-stack to this waiter, or to the next one if this waiter has left.
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

/// An A-stack that was left to a late reply: its class, and its number within the class.
pub(crate) type LeftAStack = (usize, u16);

/// An A-stack, held for the duration of a call.
pub(crate) struct AStack<'a> {
    memory: &'a Region,
    stacks: &'a AStackPool,
    within: u16,
}

impl<'a> AStack<'a> {
    /// Waits until an A-stack is returned, for at most as long as `until` allows. For a call that
    /// has found none free.
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

    /// Takes a free A-stack, if there is one.
    #[inline]
    pub(crate) fn try_take(near: &'a Near, stacks: &'a AStackPool) -> Option<Self> {
        let memory = near.astacks.as_deref()?;
        stacks.gate.try_take().map(|within| Self { memory, stacks, within })
    }

    /// The A-stack's number in the server.
    #[inline]
    pub(crate) fn number(&self) -> u16 {
        self.stacks.first + self.within
    }

    #[inline]
    pub(crate) fn room(&self) -> Option<WritableSpan<'a>> {
        self.memory
            .room(self.stacks.at + usize::from(self.within) * self.stacks.size, self.stacks.size)
    }

    /// Leaves the A-stack to a late reply. It stays taken.
    pub(crate) fn leave(self) -> LeftAStack {
        let left = (self.stacks.class, self.within);
        std::mem::forget(self);
        left
    }

    /// Takes over an A-stack that was left.
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

/// A segment, held for the duration of a call, with its place among the segments in use.
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
        // Threads of a virtual processor that does not poll channels hold up that processor while
        // they call. So they have not waited for another thread's call before.
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

    /// Exchanges the segment for another one in the same place.
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

    /// Takes over a segment that was left.
    pub(crate) fn from(link: &'a DomainLink, (segment, place): LeftSegment) -> Self {
        Self { link, place, segment: Some(segment) }
    }

    pub(crate) fn number(&self) -> u16 {
        self.segment.as_ref().map_or(0, |segment| segment.number)
    }

    /// Leaves the segment to a late reply. It stays in use.
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

/// All memory that a call brings.
pub(crate) struct CallMemory<'a> {
    pub(crate) astack: Option<AStack<'a>>,
    pub(crate) segment: Option<TakenSegment<'a>>,
}

/// The memory that a call leaves to its late reply when it is given up.
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

    /// Leaves all memory to a late reply. It stays taken.
    pub(crate) fn leave(&mut self) -> AbandonedMemory {
        AbandonedMemory {
            astack: self.astack.take().map(AStack::leave),
            segment: self.segment.take().and_then(TakenSegment::leave),
        }
    }

    /// Takes over the memory that was left.
    pub(crate) fn from(near: &'a Near, left: AbandonedMemory) -> Self {
        Self {
            astack: left.astack.and_then(|astack| AStack::from(near, astack)),
            segment: left.segment.map(|segment| TakenSegment::from(&near.link, segment)),
        }
    }
}

/// Runs `work`, which blocks its kernel thread. On a virtual processor, `work` runs on another
/// kernel thread, so that the other user-level threads go on.
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
            // If no other kernel thread can run the work, this one does, and the other user-level
            // threads wait.
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
