//! How a party waits for the lock.
//!
//! A party first stands aside. It checks a few times, at growing intervals, whether the lock is
//! free, and the previous holder can take it again and again in between. If operations are much
//! shorter than the time that a cache line takes to move from one processor to another, many of
//! them are run for each such move (as with the cohort locks of Dice, Marathe and Shavit, 2012).
//!
//! Then the party joins the set of waiting parties. It polls its own line for some microseconds,
//! then offers the processor to others, and then sleeps for longer and longer times, up to 4 ms. It
//! sleeps with a limit because the holder of the lock may be stopped, and no party would wake it.
//! So no waiting party takes a processor for long, and no wake can be lost.
//!
//! A thread of the home stays in the set all the time, and sleeps for 1 ms at most. It gets the
//! lock next, or after the other waiting threads of the home.
//!
//! A holder that releases the lock hands it over to a polling party. A party that sleeps, or is not
//! running, would keep the lock from the others while it does so. A sleeping party is therefore not
//! in the set until it has waited for long ([`FAIR`]). From then on it stays in the set and gets
//! its turn: it stays awake at first, because the length of an operation is not known, and then
//! sleeps in pauses that start from the shortest again.

use crate::body::Ours;
use std::time::{Duration, Instant};
use upcall_os::atomic::spin_loop;

/// Number of polls of a party's own line in a row; the lock itself is checked at every
/// [`BETWEEN`]th. Between two sleeps there are only [`AWAKE`].
const LOOKS: u32 = 512;
const BETWEEN: u32 = 32;
const AWAKE: u32 = 4;

/// Numbers of spin steps between two checks of the lock while a party stands aside: two to three
/// microseconds in all.
const ASIDE: [u32; 5] = [4, 8, 16, 32, 64];

/// Number of times that other threads are offered the processor before the party sleeps.
const OFFERS: u32 = 16;

/// Maximum sleep of a waiter at home. The lock may be handed over to a waiter that sleeps.
const LONGEST_AT_HOME: Duration = Duration::from_millis(1);

pub(crate) const SHORTEST: Duration = Duration::from_micros(50);
pub(crate) const LONGEST: Duration = Duration::from_millis(4);

/// Time of waiting after which a party stays in the set of waiting parties.
const FAIR: Duration = Duration::from_millis(10);

/// Calls `had` at most `looks` times, until it returns `true`. Its argument is `true` at every
/// [`BETWEEN`]th call.
fn soon(looks: u32, mut had: impl FnMut(bool) -> bool) -> bool {
    (0..looks).any(|look| {
        spin_loop();
        had(look % BETWEEN == 0)
    })
}

/// The pauses between two rounds of polls.
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

    /// Restarts the time limit, which is at least [`FAIR`] now.
    fn extend(&mut self, limit: Option<Duration>) {
        self.ends = limit.and_then(|limit| Instant::now().checked_add(limit.max(FAIR)));
    }

    /// Number of polls in the next round.
    fn looks(&self) -> u32 {
        if self.offers < OFFERS { LOOKS } else { AWAKE }
    }

    /// Restarts the pauses: the party's turn may come soon, and must not be slept through.
    fn anew(&mut self) {
        (self.offers, self.next) = (0, SHORTEST);
    }

    fn are_over(&self) -> bool {
        self.ends.is_some_and(|ends| Instant::now() >= ends)
    }

    fn pause(&mut self) {
        if self.offers < OFFERS {
            self.offers += 1;
            // Other user-level threads come first, because the holder of the lock may be one of
            // them. The kernel is asked in any case, because the holder may be a thread that has
            // lost this processor.
            if upcall_thread::on_virtual_processor().is_some() {
                upcall_thread::yield_now();
            }
            return std::thread::yield_now();
        }
        // Other user-level threads of this virtual processor run during the sleep.
        upcall_thread::sleep(self.next);
        self.next = (self.next * 2).min(self.longest);
    }
}

/// Acquires the lock elsewhere than at home.
///
/// Returns `false` if that failed within the limit, or if `over` returned `true` because there is
/// nothing to wait for any more.
#[inline]
pub(crate) fn lock(party: &Ours, limit: Option<Duration>, over: impl Fn() -> bool) -> bool {
    party.try_lock() || wait_for(party, limit, over)
}

/// Stands aside for a while. Returns `true` if the lock was acquired.
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
            // The lock was granted: this party has it, or is just about to.
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

/// Acquires the lock at home. Returns `false` if that failed within the limit.
///
/// `is_known` returns `true` if there is a party in a place. From a holder that is not a party the
/// lock is seized.
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
            // The lock was granted, and the grantor is about to name this party. But the grantor
            // may be stopped, or hostile.
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

/// Acquires the lock at home if that is possible within some microseconds.
///
/// The holder may be about to release it, and no other party takes it in between. Neither blocks
/// nor allocates.
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

/// Waits until a condition holds whose change is not notified. Returns `false` if it did not hold
/// within the limit.
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
