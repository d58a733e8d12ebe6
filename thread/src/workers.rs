//! The workers of one virtual processor: the stacks that outside work runs on.
//!
//! LRPC calls them E-stacks (section 3.2; L8 here). There they are joined to A-stacks late, stay so, and are taken back when the supply runs low. Here they are joined to
//! nothing: the one used last is used next, which keeps the same few lines warm, as the paper's association does. A worker is made when work comes and all others are at work or
//! wait inside of it, up to a ceiling; beyond that, work stays where it is until one comes back ([`Vp::has_stack`](crate::Vp::has_stack)). Workers that nobody
//! has wanted for a second go back to the stacks of the process, but for a few.
//!
//! Whoever comes back does so on this processor, which then looks for work: so nothing has to be woken when the ceiling no longer holds.

use crate::link::Lifo;
use crate::record::{Rec, Record};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// So many with nothing to do are kept for good.
const KEPT: usize = 64;
/// The others go when nobody has wanted them for this long.
const KEEP: Duration = Duration::from_secs(1);
/// So many at once.
const BATCH: usize = 256;

/// See the module.
pub(crate) struct Workers {
    /// With nothing to do, the last used first.
    free: Lifo<Record>,
    /// All of them.
    made: Cell<usize>,
    most: usize,
    /// The idle loop runs on one of them, which then does what is found itself.
    at_leisure: Cell<bool>,
    /// The fewest that were free since the last look: so many nobody wanted.
    fewest: Cell<usize>,
    look_at: Cell<Option<Instant>>,
}

impl Workers {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            free: Lifo::new(),
            made: Cell::new(0),
            most: most.max(1),
            at_leisure: Cell::new(false),
            fewest: Cell::new(0),
            look_at: Cell::new(None),
        }
    }

    /// One to run next, if there is one.
    #[inline(always)]
    pub(crate) fn take(&self) -> Option<Rec> {
        let taken = self.free.pop();
        self.fewest.set(self.fewest.get().min(self.free.len()));
        taken
    }

    #[inline(always)]
    pub(crate) fn give(&self, worker: Rec) {
        self.free.push(worker);
    }

    /// Another one was made.
    pub(crate) fn add(&self) {
        self.made.set(self.made.get() + 1);
    }

    /// What `find` returns; it runs on one of them.
    #[inline(always)]
    pub(crate) fn at_leisure<R>(&self, find: impl FnOnce() -> R) -> R {
        self.at_leisure.set(true);
        let found = find();
        self.at_leisure.set(false);
        found
    }

    /// How many are at work, or wait inside of it; and how many that may be.
    #[inline(always)]
    pub(crate) fn busy(&self) -> (usize, usize) {
        (self.made.get() - self.free.len() - usize::from(self.at_leisure.get()), self.most)
    }

    /// Takes out some of those that nobody has wanted for a while, if it is time.
    #[inline(always)]
    pub(crate) fn retire(&self) -> impl Iterator<Item = Rec> {
        let count = if self.free.len() > KEPT { self.unwanted(Instant::now()) } else { 0 };
        self.made.set(self.made.get() - count);
        (0..count).map_while(|_| self.free.pop())
    }

    #[cold]
    fn unwanted(&self, now: Instant) -> usize {
        let free = self.free.len();
        let Some(at) = self.look_at.get() else {
            self.fewest.set(free);
            self.look_at.set(Some(now + KEEP));
            return 0;
        };
        if now < at {
            return 0;
        }
        let surplus = self.fewest.get().min(free - KEPT);
        let count = surplus.min(BATCH);
        // What is beyond a batch goes at the next look, which comes at once.
        let (fewest, pause) = if surplus > count { (surplus - count, Duration::ZERO) } else { (free - count, KEEP) };
        self.fewest.set(fewest);
        self.look_at.set(Some(now + pause));
        count
    }

    /// When to look again whether there are too many; `None` if there are not.
    pub(crate) fn look_at(&self) -> Option<Instant> {
        if self.free.len() > KEPT { self.look_at.get() } else { None }
    }

    /// Takes all out that have nothing to do.
    pub(crate) fn take_all(&self) -> impl Iterator<Item = Rec> {
        std::iter::from_fn(|| self.free.pop())
    }
}
