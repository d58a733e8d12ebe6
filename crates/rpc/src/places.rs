//! Places for segments in use: a fixed number for each lane of a channel. A thread that finds no
//! place free waits, in the order of asking.
//!
//! Thousands of threads may bring large values at once, but a lane carries a fixed number of calls.
//! Without a limit the waiting threads would hold memory, more of it than a server accepts from a
//! client. Each virtual processor has places of its own, as many as it has call numbers, and kernel
//! threads have as many as they have lanes. So no thread waits for a place whose holder waits for a
//! call on another lane.
//!
//! One lock guards everything; a thread that takes a segment needs that lock anyway. No thread
//! waits beside a free place: a thread that finds none enters the queue under the lock, and a
//! thread that returns one checks the queue under it. Threads of a scheduler that has ended never
//! run again and return nothing. So a place also records the life of the virtual processor that
//! took it.

use std::collections::{BTreeMap, VecDeque};
use upcall_os::lock::{KernelMutex, MutexGuard};
use upcall_sched::calls::KERNEL_LANES;
use upcall_sched::{Processor, Sleeper, WaitLimit, block_unless};
use upcall_shm::channel::DEPTH;
use upcall_thread::Waited;

/// The places of a link; see the module.
#[derive(Default)]
pub(crate) struct Places(KernelMutex<PlaceTable>);

#[derive(Default)]
struct PlaceTable {
    closed: bool,
    /// By the number of the virtual processor; `None` for kernel threads.
    groups: BTreeMap<Option<usize>, PlaceGroup>,
}

#[derive(Default)]
struct PlaceGroup {
    life: u64,
    in_use: usize,
    queue: VecDeque<Sleeper>,
}

/// A place, to be returned once.
#[derive(Debug)]
#[must_use]
pub(crate) struct CallPermit {
    group: Option<usize>,
    life: u64,
}

/// Why there is no place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// The channel is closed.
    Closed,
    /// The wait limit was reached.
    OutOfTime,
}

impl Places {
    fn all(&self) -> MutexGuard<'_, PlaceTable> {
        self.0.lock()
    }

    /// Takes a place for the calling thread. Waits for at most as long as `until` allows, or until
    /// the channel is closed. Blocks that thread only.
    pub(crate) fn take(&self, until: WaitLimit<'_>) -> Result<CallPermit, NoPlace> {
        let caller = Processor::current();
        let place = CallPermit {
            group: caller.map(|caller| caller.number),
            life: caller.map_or(0, |caller| caller.life),
        };
        let (gone, mut taken) = {
            let mut all = self.all();
            (all.enter(&place), !all.closed && all.take(&place))
        };
        // These threads never run again. Dropping a sleeper wakes it, which must not happen under
        // the lock.
        drop(gone);
        if taken {
            return Ok(place);
        }
        let mut closed = false;
        let waited = block_unless(until, |sleeper| {
            let mut all = self.all();
            closed = all.closed;
            taken = !closed && all.take(&place);
            if closed || taken {
                return Some(sleeper);
            }
            all.group(&place).queue.push_back(sleeper);
            None
        });
        if taken {
            return Ok(place);
        }
        let mut all = self.all();
        if closed || all.closed {
            return Err(NoPlace::Closed);
        }
        match waited {
            Waited::Woken => Ok(place),
            Waited::TimedOut => {
                all.group(&place).queue.retain(|sleeper| !sleeper.has_gone());
                Err(NoPlace::OutOfTime)
            }
        }
    }

    /// Gives a place to the thread that has waited longest, or returns it.
    pub(crate) fn give(&self, place: CallPermit) {
        loop {
            let mut all = self.all();
            let group = all.group(&place);
            if group.life != place.life {
                return;
            }
            let Some(next) = group.queue.pop_front() else {
                group.in_use -= 1;
                return;
            };
            drop(all);
            if next.wake() {
                return;
            }
        }
    }

    /// Ends the wait of all threads, and lets no other thread wait.
    pub(crate) fn close(&self) {
        let waiting: Vec<Sleeper> = {
            let mut all = self.all();
            all.closed = true;
            all.groups.values_mut().flat_map(|group| group.queue.drain(..)).collect()
        };
        for sleeper in waiting {
            sleeper.wake();
        }
    }
}

impl PlaceTable {
    fn group(&mut self, place: &CallPermit) -> &mut PlaceGroup {
        self.groups.entry(place.group).or_default()
    }

    /// Starts a new group if another virtual processor now has this number. Returns the old group
    /// with its waiters.
    fn enter(&mut self, place: &CallPermit) -> Option<PlaceGroup> {
        let group = self.group(place);
        (group.life != place.life).then(|| {
            std::mem::replace(group, PlaceGroup { life: place.life, ..PlaceGroup::default() })
        })
    }

    fn take(&mut self, place: &CallPermit) -> bool {
        let most = if place.group.is_some() { DEPTH } else { KERNEL_LANES };
        let group = self.group(place);
        let free = group.in_use < most;
        group.in_use += usize::from(free);
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn every_one(places: &Places) -> Vec<CallPermit> {
        (0..KERNEL_LANES).map(|_| places.take(WaitLimit::FOR_EVER).unwrap()).collect()
    }

    #[test]
    fn who_waits_gets_the_next_one_in_turn() {
        let places = Places::default();
        let mut taken = every_one(&places);
        std::thread::scope(|scope| {
            let waits = || {
                let before = places.all().groups[&None].queue.len();
                let waiting = scope.spawn(|| places.take(WaitLimit::FOR_EVER).unwrap());
                while places.all().groups[&None].queue.len() == before {
                    std::thread::yield_now();
                }
                waiting
            };
            let (first, second) = (waits(), waits());
            places.give(taken.pop().unwrap());
            taken.push(first.join().unwrap());
            assert!(!second.is_finished());
            places.give(taken.pop().unwrap());
            taken.push(second.join().unwrap());
        });
        taken.into_iter().for_each(|place| places.give(place));
        assert_eq!(places.all().groups[&None].in_use, 0);
    }

    #[test]
    fn nobody_waits_for_longer_than_wished() {
        let places = Places::default();
        let _taken = every_one(&places);
        let ends = Instant::now() + Duration::from_millis(20);
        assert_eq!(places.take(Some(ends).into()).unwrap_err(), NoPlace::OutOfTime);
        assert!(Instant::now() >= ends && places.all().groups[&None].queue.is_empty());
    }

    #[test]
    fn closing_frees_who_waits() {
        let places = Places::default();
        let taken = every_one(&places);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| places.take(WaitLimit::FOR_EVER));
            std::thread::sleep(Duration::from_millis(5));
            places.close();
            assert_eq!(waiting.join().unwrap().unwrap_err(), NoPlace::Closed);
        });
        assert_eq!(places.take(WaitLimit::FOR_EVER).unwrap_err(), NoPlace::Closed);
        taken.into_iter().for_each(|place| places.give(place));
    }

    #[test]
    fn places_of_a_past_life_are_forgotten() {
        let places = Places::default();
        let of = |life| CallPermit { group: Some(3), life };
        assert!((0..DEPTH).all(|_| places.all().take(&of(0))) && !places.all().take(&of(0)));
        assert!(places.all().enter(&of(1)).is_some() && places.all().enter(&of(1)).is_none());
        assert!(places.all().take(&of(1)));
        places.give(of(0));
        assert_eq!(places.all().groups[&Some(3)].in_use, 1);
    }
}
