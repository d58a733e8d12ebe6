//! How a party waits for the lock.
//!
//! At first it stands aside: it looks a few times whether the lock is free, later and later, while
//! who has had it can have it again and again; for operations that are much shorter than a line
//! takes from one processor to the other, many are done so for each time that it goes over (as by
//! locks that cohorts keep: Dice, Marathe and Shavit 2012). Then it wants its turn: it looks at its
//! own line for some microseconds, then lets others have the processor, and then sleeps for longer
//! and longer, up to 4 ms: who has the lock may be stopped, and nobody would wake who waits for it.
//! So nobody who waits takes a processor for long, and no wake can be lost.
//!
//! A thread of the home stays in the set all the time, and sleeps for 1 ms at most. It gets the
//! lock next, or after the other waiting threads of the home.
//!
//! Who lets go of the lock hands it over to one that looks. One that sleeps, or may not run, would
//! keep it from the others meanwhile; so it is not among those who wait then, until it has waited
//! for long ([`FAIR`]): from then on it stays there, and has its turn; awake at first, for an
//! operation's length is not known, and then in pauses that begin anew.

use crate::body::Ours;
use std::time::{Duration, Instant};
use upcall_os::atomic::spin_loop;

/// Looks at its own line, and at the lock itself after so many of them. Between two sleeps there
/// are fewer.
const LOOKS: u32 = 512;
const BETWEEN: u32 = 32;
const AWAKE: u32 = 4;

/// So many steps it stands aside between two looks at the lock: two to three microseconds in all.
const ASIDE: [u32; 5] = [4, 8, 16, 32, 64];

/// So often others are offered the processor before it sleeps.
const OFFERS: u32 = 16;

/// Maximum sleep of a waiter at home. The lock may be handed over to a waiter that sleeps.
const LONGEST_AT_HOME: Duration = Duration::from_millis(1);

pub(crate) const SHORTEST: Duration = Duration::from_micros(50);
pub(crate) const LONGEST: Duration = Duration::from_millis(4);

/// After so long it stays among those who wait.
const FAIR: Duration = Duration::from_millis(10);

/// Asks again and again, some microseconds long; `had` is told whether it is one of the rarer
/// looks.
fn soon(looks: u32, mut had: impl FnMut(bool) -> bool) -> bool {
    (0..looks).any(|look| {
        spin_loop();
        had(look % BETWEEN == 0)
    })
}

/// The pauses between two turns of looking.
struct Pauses {
    begun: Instant,
    ends: Option<Instant>,
    offers: u32,
    next: Duration,
    longest: Duration,
}

impl Pauses {
    fn new(limit: Option<Duration>) -> Self {
        let begun = Instant::now();
        let ends = limit.and_then(|limit| begun.checked_add(limit));
        Self { begun, ends, offers: 0, next: SHORTEST, longest: LONGEST }
    }

    /// Starts the limit again.
    fn extend(&mut self, limit: Option<Duration>) {
        self.ends = limit.and_then(|limit| Instant::now().checked_add(limit.max(FAIR)));
    }

    /// So many looks now.
    fn looks(&self) -> u32 {
        if self.offers < OFFERS { LOOKS } else { AWAKE }
    }

    /// It has its turn next: that may come soon, and is not to be slept through.
    fn anew(&mut self) {
        (self.offers, self.next) = (0, SHORTEST);
    }

    fn are_over(&self) -> bool {
        self.ends.is_some_and(|ends| Instant::now() >= ends)
    }

    fn pause(&mut self) {
        if self.offers < OFFERS {
            self.offers += 1;
            // Other user-level threads first: who has the lock may be one of them. The kernel is
            // asked in any case, for it may be a thread that has lost this processor.
            if upcall_thread::on_virtual_processor().is_some() {
                upcall_thread::yield_now();
            }
            return std::thread::yield_now();
        }
        // Other user-level threads of this virtual processor run meanwhile.
        upcall_thread::sleep(self.next);
        self.next = (self.next * 2).min(self.longest);
    }
}

/// Has the lock, as one that is not at home. False when it was not to be had until the limit, or
/// `over` says that there is nothing to wait for any more.
#[inline]
pub(crate) fn lock(party: &Ours, limit: Option<Duration>, over: impl Fn() -> bool) -> bool {
    party.try_lock() || wait_for(party, limit, over)
}

/// Leaves the lock to those who have it already.
fn had_aside(party: &Ours) -> bool {
    ASIDE.into_iter().any(|steps| {
        (0..steps).for_each(|_| spin_loop());
        party.holder().is_none() && party.try_lock()
    })
}

#[cold]
fn wait_for(party: &Ours, limit: Option<Duration>, over: impl Fn() -> bool) -> bool {
    if had_aside(party) {
        return true;
    }
    let mut pauses = Pauses::new(limit);
    let mut waits = false;
    loop {
        if !waits {
            party.wait();
        }
        if soon(pauses.looks(), |rarer| party.is_granted() || rarer && party.look()) {
            return true;
        }
        let last = over() || pauses.are_over();
        let waited = std::mem::replace(&mut waits, !last && pauses.begun.elapsed() > FAIR);
        if waits && !waited {
            pauses.anew();
        }
        if !waits && !party.give_up() {
            // It was granted: it has it, or is just about to.
            waits = true;
            if over() {
                return false;
            }
        } else if last {
            return false;
        }
        pauses.pause();
    }
}

/// Has the lock, as the home. `is_known` tells whether there is a party in a place: from one that
/// is none it is taken. False when it was not to be had until the limit.
#[inline]
pub(crate) fn lock_at_home(
    party: &Ours,
    limit: Option<Duration>,
    is_known: impl Fn(u64) -> bool,
) -> bool {
    party.try_lock_at_home() || need(party, limit, is_known)
}

#[cold]
fn need(party: &Ours, limit: Option<Duration>, is_known: impl Fn(u64) -> bool) -> bool {
    let seize = || party.holder().is_some_and(|holder| !is_known(holder) && party.seize(holder));
    let mut pauses = Pauses { longest: LONGEST_AT_HOME, ..Pauses::new(limit) };
    let mut is_last = false;
    party.wait_at_home();
    let had = loop {
        if soon(pauses.looks(), |rarer| party.is_granted() || rarer && (party.look() || seize())) {
            break true;
        }
        if pauses.are_over() {
            if party.give_up() {
                break false;
            }
            // The lock was granted, and the grantor is about to name this party. But it may be
            // stopped, or hostile.
            if std::mem::replace(&mut is_last, true) {
                break party.look() || !party.give_up() && party.look();
            }
            pauses.extend(limit);
        }
        pauses.pause();
    };
    party.need_no_more();
    had
}

/// Has the lock, as the home, if that can be had within some microseconds: who has it may be about
/// to let go of it, and nobody else takes it meanwhile. Neither blocks nor allocates.
pub(crate) fn lock_at_once(party: &Ours, is_known: impl Fn(u64) -> bool) -> bool {
    party.try_lock_at_home() || {
        let seize =
            || party.holder().is_some_and(|holder| !is_known(holder) && party.seize(holder));
        party.need();
        let had = soon(LOOKS, |rarer| party.try_lock_at_home() || rarer && seize());
        party.need_no_more();
        had
    }
}

/// Waits until something is so that nobody tells. False when it was not until the limit.
pub(crate) fn until(limit: Option<Duration>, mut so: impl FnMut() -> bool) -> bool {
    let mut pauses = Pauses::new(limit);
    while !so() {
        if pauses.are_over() {
            return false;
        }
        pauses.pause();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use upcall_os::atomic::{AtomicU32, Ordering};

    #[test]
    fn other_user_level_threads_are_offered_the_processor_each_time() {
        let (turns, is_over) = (AtomicU32::new(0), AtomicU32::new(0));
        let one = upcall_thread::Processors::new().count(1);
        let found = one.run(|| {
            upcall_thread::scope(|scope| {
                scope.spawn(|| {
                    while is_over.load(Ordering::Relaxed) == 0 {
                        turns.fetch_add(1, Ordering::Relaxed);
                        upcall_thread::yield_now();
                    }
                });
                let mut pauses = Pauses::new(None);
                let turns_after = |_| {
                    pauses.pause();
                    turns.load(Ordering::Relaxed)
                };
                let found: Vec<u32> = (0..OFFERS).map(turns_after).collect();
                is_over.store(1, Ordering::Relaxed);
                found
            })
        });
        assert_eq!(found.unwrap(), (1..=OFFERS).collect::<Vec<_>>());
    }

    #[test]
    fn a_kernel_thread_pauses_and_has_an_end() {
        let begun = Instant::now();
        assert!(!until(Some(Duration::from_millis(1)), || false));
        assert!(begun.elapsed() >= Duration::from_millis(1));
    }
}
