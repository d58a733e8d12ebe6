//! What becomes of an object when a process that used it has died.
//!
//! The clerk takes over the dead process's lock and places, and the *heir* does the rest.
//!
//! The heir is a thread of one object that exists only while there is work for it. It repairs an
//! object whose operation ended in the middle. It also frees the places of the dead if a live party
//! holds the lock for long. Each death wakes the heir, so its pauses delay only the freeing of
//! places.

use super::register::{Dead, Register};
use super::{Damaged, HomeObject, Settling, Stir, Torn, Verdict};
use crate::body::{BodyState, Ours};
use crate::waiting;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use upcall_os::atomic::Ordering;
use upcall_os::fault::{Point, point};
use upcall_shm::hybrid::Inherited;

/// Shortest pause of the heir between two attempts to get a lock that a live party holds.
const SHORTEST: Duration = Duration::from_micros(50);

const LONGEST: Duration = Duration::from_millis(100);

/// Longest pause of the heir after a repair.
const MOST: Duration = Duration::from_secs(1);

/// What is left to do after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttemptOutcome {
    Nothing,
    /// A live party holds the lock, and places of the dead are still to be freed.
    Lock,
    /// The object has to be repaired, which may take long.
    Repair,
}

impl HomeObject {
    /// Takes over from dead processes, and starts or wakes the heir if work is left. Takes some
    /// microseconds.
    pub(crate) fn settle(self: &Arc<Self>) {
        if self.take_from_the_dead() == AttemptOutcome::Nothing {
            return;
        }
        let is_there = std::mem::replace(&mut self.inner().heir, true);
        self.stir.call();
        if is_there {
            return;
        }
        let (weak, stir) = (Arc::downgrade(self), self.stir.clone());
        let heir = move || Self::inherits(&weak, &stir);
        let begun = std::thread::Builder::new()
            .name("upcall-heir".into())
            .stack_size(256 << 10)
            .spawn(heir);
        if begun.is_err() {
            // No thread is left. The next death tries again, but a repair might never come: no
            // operation waits for it.
            self.inner().heir = false;
            if self.body.state() == BodyState::Torn {
                self.body.set_state(BodyState::Poisoned);
            }
        }
    }

    /// The heir's work. It ends when nothing is left to do.
    fn inherits(weak: &Weak<Self>, stir: &Stir) {
        let mut pause = SHORTEST;
        while let Some(object) = weak.upgrade() {
            let left = match object.take_from_the_dead() {
                AttemptOutcome::Repair => {
                    let begun = Instant::now();
                    let left = object.repair();
                    // A live party can tear the object again and again. This caps the cost at half
                    // of a processor.
                    std::thread::sleep(begun.elapsed().min(MOST));
                    left
                }
                left => left,
            };
            match left {
                AttemptOutcome::Nothing if object.has_no_heir() => return,
                AttemptOutcome::Lock => {
                    // The object may be dropped during the pause.
                    drop(object);
                    stir.wait(pause);
                    pause = (pause * 2).min(LONGEST);
                }
                _ => pause = SHORTEST,
            }
        }
    }

    /// Returns `true` if the heir may end: no work has arrived since its last attempt.
    fn has_no_heir(&self) -> bool {
        let mut inner = self.inner();
        let goes = self.left(&inner) == AttemptOutcome::Nothing;
        inner.heir = !goes;
        goes
    }

    fn left(&self, inner: &Register) -> AttemptOutcome {
        if self.is_left.load(Ordering::Relaxed) {
            AttemptOutcome::Nothing
        } else if self.body.state() == BodyState::Torn {
            AttemptOutcome::Repair
        } else if inner.dead.is_empty() {
            AttemptOutcome::Nothing
        } else {
            AttemptOutcome::Lock
        }
    }

    /// Takes the lock from a dead holder and frees the places of the dead. An object that was left
    /// in the middle is marked as torn, so no operation starts on it until it is repaired.
    fn take_from_the_dead(&self) -> AttemptOutcome {
        // The heir is repairing. It checks for more work before it ends.
        let Some(settling) = self.settling.try_lock() else { return AttemptOutcome::Repair };
        let party = &settling.party;
        let dead = {
            let inner = self.inner();
            if inner.dead.is_empty() {
                return self.left(&inner);
            }
            inner.dead.clone()
        };
        party.need();
        let had = self.inherit(party, &dead);
        party.need_no_more();
        let Some(died) = had else { return AttemptOutcome::Lock };
        if died.is_some() && self.body.state() == BodyState::Whole {
            self.body.set_state(BodyState::Torn);
        }
        party.unlock();
        let mut inner = self.inner();
        inner.torn_by = died.or(inner.torn_by);
        // No holder of the lock, now or since, relies on the dead parties.
        inner.dead.retain(|other| !dead.iter().any(|seen| seen.place == other.place));
        dead.iter().for_each(|dead| self.leaves(&mut inner, dead.place));
        self.left(&inner)
    }

    /// Repairs or poisons an object that is torn.
    ///
    /// # Blocking
    /// Blocks for as long as that takes.
    fn repair(&self) -> AttemptOutcome {
        let mut settling = self.settling.lock();
        let Settling { party, repair } = &mut *settling;
        if !waiting::lock_at_home(party, Some(LONGEST), |place| self.is_known(place)) {
            return AttemptOutcome::Lock;
        }
        if self.body.state() == BodyState::Torn {
            let changing = party.sequence().begin();
            let torn = self.inner().torn_by.map_or(Torn::Panicked, |pid| Torn::Died { pid });
            let judged = catch_unwind(AssertUnwindSafe(|| {
                point(Point::ObjectRepairs);
                let is_left = self.is_left.clone();
                let goes_on = Box::new(move || {
                    std::thread::yield_now();
                    !is_left.load(Ordering::Relaxed)
                });
                repair(Damaged { room: self.body.data(), pages: self.body.pages(), goes_on }, torn)
            }));
            let verdict = judged.unwrap_or(Verdict::Poison);
            self.inner().torn_by = None;
            self.body.set_state(if verdict == Verdict::Keep {
                BodyState::Whole
            } else {
                BodyState::Poisoned
            });
            party.sequence().end(changing);
        }
        party.unlock();
        self.left(&self.inner())
    }

    /// Takes the lock, from a dead holder or otherwise.
    ///
    /// Returns the process that has ended in the middle of an operation, if there is one, or `None`
    /// if another party holds the lock.
    fn inherit(&self, party: &Ours, dead: &[Dead]) -> Option<Option<u32>> {
        for one in dead {
            match party.inherit(one.place, one.waited) {
                Some(Inherited::Torn) => return Some(Some(one.pid)),
                Some(Inherited::Nothing | Inherited::Whole) => return Some(None),
                None => {}
            }
        }
        self.has_lock(party).then_some(None)
    }

    /// Takes the lock if it is free, or if it names a place that no party is in.
    fn has_lock(&self, party: &Ours) -> bool {
        party.try_lock_at_home()
            || party.holder().is_some_and(|holder| !self.is_known(holder) && party.seize(holder))
    }
}
