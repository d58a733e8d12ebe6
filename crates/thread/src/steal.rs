//! How threads that have not started get to an idle processor.
//!
//! A processor whose idle loop finds nothing checks the other processors' queues of fresh threads
//! (a load each) and takes half of what waits there. Before it sleeps it asks to be called: it sets
//! its bit in the group's word `hungry`. A thread that spawns another reads that word, clears one
//! bit, and wakes the processor of that bit.
//!
//! # Why no thread waits while a processor sleeps
//! ```text
//! spawner                                  processor going to sleep
//!                                          (last look, after it announced itself parked)
//! a  put the thread in its queue           1  set the bit in `hungry`
//! b  light fence                           2  heavy fence
//! c  a bit is set: clear it, unpark        3  look at all queues: something there: do not sleep
//! ```
//! The fences order a before c against 1 before 3 (Dekker, as in `fresh`): if 3 does not see the
//! thread, c sees the bit. If the unpark at c comes too early, before the processor has announced
//! itself parked, then its last look finds its own bit cleared and it does not sleep.
//! `tests/models/loom_fresh.rs` runs this.
//!
//! # Avoiding useless calls
//! A thread that is spawned and joined at once is started by its owner within nanoseconds; calling
//! another processor would be a waste. A thief therefore passes over a lone fresh thread for a few
//! looks. A processor that was called in vain does not ask again for a while, doubled each time.
//! Until then it may sleep while a thread waits, but no longer than that while.

use crate::shared::{VpGroup, VpShared};
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Maximum number of threads stolen at once.
const STEAL_MOST: usize = 64;
/// Number of looks for which a lone fresh thread is left to its owner.
///
/// Most likely the owner is about to run it.
const PATIENCE: u32 = 4;
/// Time for which a processor that was called in vain does not ask again.
///
/// It is doubled each time, up to 64 times its first value.
const QUIET: Duration = Duration::from_micros(100);

/// The search of one processor for fresh threads of others.
pub(crate) struct Hunger {
    group: &'static VpGroup,
    /// Index of the processor that searches.
    index: usize,
    /// This processor has set its bit in the group's `hungry` and not cleared it itself.
    announced: Cell<bool>,
    /// Number of times in a row that this processor was called and found nothing.
    fruitless: Cell<u32>,
    /// Until then, this processor does not ask to be called.
    quiet_until: Cell<Option<Instant>>,
    /// Number of looks for which a lone fresh thread of another processor has waited.
    patience: Cell<u32>,
}

impl Hunger {
    pub(crate) fn new(group: &'static VpGroup, index: usize) -> Self {
        Self {
            group,
            index,
            announced: Cell::new(false),
            fruitless: Cell::new(0),
            quiet_until: Cell::new(None),
            patience: Cell::new(0),
        }
    }

    /// When the processor must look again by itself.
    pub(crate) fn quiet_until(&self) -> Option<Instant> {
        self.quiet_until.get()
    }

    fn others(&self) -> impl Iterator<Item = &'static VpShared> {
        let me = self.index;
        let members = &self.group.members;
        (1..members.len()).map(move |step| &members[(me + step) % members.len()])
    }

    /// Takes fresh threads from another processor that has more than it is about to start.
    pub(crate) fn steal(&self) {
        if self.group.members.len() == 1 {
            return;
        }
        let own = &self.group.members[self.index];
        let patience = self.patience.get();
        let mut waiting = false;
        for other in self.others() {
            let there = other.fresh.len();
            waiting |= there > 0;
            if there > 1 || (there == 1 && patience >= PATIENCE) {
                let stolen = other.fresh.steal(STEAL_MOST, |rec| own.fresh.push(rec));
                if stolen > 1 {
                    // These are more than this processor can start at once; others may take some of
                    // them.
                    self.group.fences.light();
                    self.group.call_one();
                }
                if stolen > 0 {
                    self.fruitless.set(0);
                    self.patience.set(0);
                    return;
                }
            }
        }
        self.patience.set(if waiting { patience.saturating_add(1) } else { 0 });
    }

    /// Asks to be called when a thread is spawned.
    ///
    /// Returns `true` if a thread is there to steal, or this processor was called since it asked.
    #[cold]
    pub(crate) fn called_or_calls(&self) -> bool {
        if let Some(until) = self.quiet_until.get() {
            if Instant::now() < until {
                return false;
            }
            self.quiet_until.set(None);
        }
        let bit = 1_u64 << self.index;
        if self.announced.get() {
            let nothing_there = self.others().all(|other| other.fresh.is_empty());
            if self.group.hungry.load(Ordering::SeqCst) & bit != 0 {
                return !nothing_there;
            }
            // This processor was called. If nothing is left to steal by now, the spawner starts its
            // threads faster than a call takes.
            self.announced.set(false);
            if nothing_there {
                let times = self.fruitless.get();
                self.fruitless.set(times.saturating_add(1));
                self.quiet_until.set(Some(Instant::now() + QUIET * (1 << times.min(6))));
            }
            return true;
        }
        self.group.hungry.fetch_or(bit, Ordering::SeqCst);
        self.announced.set(true);
        self.group.fences.heavy();
        self.others().any(|other| !other.fresh.is_empty())
    }

    /// Ends the idle spell. If this processor was called but leaves with other work, it passes the
    /// call on.
    pub(crate) fn stop(&self) {
        if !self.announced.replace(false) {
            return;
        }
        let bit = 1 << self.index;
        let called = self.group.hungry.fetch_and(!bit, Ordering::SeqCst) & bit == 0;
        if called && self.others().any(|other| !other.fresh.is_empty()) {
            self.group.call_one();
        }
    }
}
