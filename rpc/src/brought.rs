//! What a call brings for its values: an A-stack, or a segment of memory; taken for its time, and waited for.

use crate::binding::Near;
use crate::error::CallError;
use crate::link::{Link, Segment};
use crate::places::{NoPlace, Place};
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use upcall_shm::span::Room;
use upcall_thread::Waited;
use upcall_transfer::gate::Gate;
use upcall_transfer::{Closed, Processor, Sleeper, Until, block_unless};

/// Who waits for an A-stack, and where it is told which.
pub(crate) struct Waiting {
    sleeper: Sleeper,
    told: Arc<AtomicU32>,
}

impl Waiting {
    /// Tells it which A-stack it has; false if it has gone.
    fn tell(self, within: u16) -> bool {
        self.told.store(within.into(), Ordering::Release);
        self.sleeper.wake()
    }
}

/// An A-stack, taken for the time of a call.
pub(crate) struct AStack<'a> {
    pub(crate) near: &'a Near,
    pub(crate) class: usize,
    pub(crate) number: u16,
}

impl<'a> AStack<'a> {
    /// Takes one; waits while all of its class are in use, at most as long as `until` says.
    #[inline]
    pub(crate) fn take(near: &'a Near, class: usize, until: Until<'_>) -> Result<Self, CallError> {
        if let Some(taken) = Self::try_take(near, class) {
            return Ok(taken);
        }
        let within = wait_for(&near.gates[class], until).ok_or(CallError::Aborted { sent: false })?;
        Ok(Self::within(near, class, within))
    }

    /// Takes one if there is one.
    #[inline]
    pub(crate) fn try_take(near: &'a Near, class: usize) -> Option<Self> {
        near.gates[class].try_take().map(|within| Self::within(near, class, within))
    }

    #[inline]
    fn within(near: &'a Near, class: usize, within: u16) -> Self {
        Self { near, class, number: near.plan.first_of(class) + within }
    }

    pub(crate) fn room(&self) -> Option<Room<'a>> {
        let (at, len) = self.near.plan.place(self.number)?;
        self.near.astacks.as_ref()?.room(at, len)
    }

    /// Its class and number; it stays taken.
    pub(crate) fn leave(self) -> (usize, u16) {
        let left = (self.class, self.number);
        std::mem::forget(self);
        left
    }
}

#[cold]
fn wait_for(gate: &Gate<Waiting>, until: Until<'_>) -> Option<u16> {
    let told = Arc::new(AtomicU32::new(0));
    let mut taken = None;
    let waited = block_unless(until, |sleeper| {
        let mut sleeper = Some(sleeper);
        taken = gate.take_or_wait(|| {
            let sleeper = sleeper.take().unwrap_or_else(|| unreachable!("the gate makes at most one entry"));
            Waiting { sleeper, told: told.clone() }
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
        let mut within = self.number - self.near.plan.first_of(self.class);
        while let Some((next, number)) = self.near.gates[self.class].give(within) {
            if next.tell(number) {
                break;
            }
            // It has gone meanwhile; the number is ours again.
            within = number;
        }
    }
}

/// A segment, taken for the time of a call, with its place among those in use.
pub(crate) struct TakenSegment<'a> {
    link: &'a Link,
    place: Option<Place>,
    segment: Option<Segment>,
}

/// A segment that stays in use, and its place.
pub(crate) type LeftSegment = (Segment, Option<Place>);

impl<'a> TakenSegment<'a> {
    pub(crate) fn take(link: &'a Link, len: usize, until: Until<'_>) -> Result<Self, CallError> {
        // Threads of a virtual processor that polls no channels hold up that processor while they call, and wait for nobody before.
        let calls_alone = upcall_thread::on_virtual_processor().is_some() && Processor::current().is_none();
        let place = (!calls_alone).then(|| link.places.take(until)).transpose().map_err(|none| match none {
            NoPlace::OutOfTime => CallError::Aborted { sent: false },
            NoPlace::Closed => CallError::Failed(link.channel.closed().unwrap_or(Closed::Here)),
        })?;
        let mut taken = Self { link, place, segment: None };
        taken.fill(len, until)?;
        Ok(taken)
    }

    /// Another one in the same place.
    pub(crate) fn exchange(mut self, len: usize, until: Until<'_>) -> Result<Self, CallError> {
        self.segment.take().into_iter().for_each(|segment| self.link.give_segment(segment));
        self.fill(len, until)?;
        Ok(self)
    }

    fn fill(&mut self, len: usize, until: Until<'_>) -> Result<(), CallError> {
        let link = self.link;
        let segment = match link.kept_segment(len) {
            Some(segment) => Ok(segment),
            None if self.place.is_some() => aside(|| link.new_segment(len, until)),
            None => link.new_segment(len, until),
        };
        let segment = segment.map_err(|error| match link.channel.closed() {
            Some(closed) => CallError::Failed(closed),
            None if !until.is_for_ever() && error.kind() == io::ErrorKind::TimedOut => CallError::Aborted { sent: false },
            None => CallError::NoMemory { bytes: len as u64, error: error.to_string() },
        })?;
        self.segment = Some(segment);
        Ok(())
    }

    /// One that was left before.
    pub(crate) fn from(link: &'a Link, (segment, place): LeftSegment) -> Self {
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

    pub(crate) fn room(&self) -> Option<Room<'_>> {
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

/// Runs what blocks its kernel thread: beside the virtual processor if there is one, so that other threads go on.
pub(crate) fn aside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    if upcall_thread::on_virtual_processor().is_none() {
        return work();
    }
    let (work, result) = (Mutex::new(Some(work)), Mutex::new(None));
    let run = || {
        let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
        let done = work.map(|work| work());
        *result.lock().unwrap_or_else(PoisonError::into_inner) = done;
    };
    std::thread::scope(|scope| {
        upcall_thread::block_unless(|waiter| {
            // What cannot be run beside is run here, at the price of the other threads' time.
            let waiter = Mutex::new(Some(waiter));
            let wake = Arc::new(waiter);
            let woken = wake.clone();
            let started = std::thread::Builder::new().spawn_scoped(scope, move || {
                run();
                if let Some(waiter) = woken.lock().unwrap_or_else(PoisonError::into_inner).take() {
                    waiter.wake();
                }
            });
            match started {
                Ok(_) => None,
                Err(_) => wake.lock().unwrap_or_else(PoisonError::into_inner).take(),
            }
        });
    });
    let done = result.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.unwrap_or_else(|| {
        let work = work.into_inner().unwrap_or_else(PoisonError::into_inner);
        work.unwrap_or_else(|| unreachable!("work that did not run is still there"))()
    })
}
