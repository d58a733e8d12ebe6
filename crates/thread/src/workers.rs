//! The workers of one virtual processor: the stacks that outside work runs on.
//!
//! LRPC calls them E-stacks (section 3.2; L8 here). There they are associated with A-stacks late,
//! stay so, and are taken back when the supply runs low. Here they are associated with nothing: the
//! stack used last is used next, which keeps the same few cache lines warm, as the paper's
//! association does. A worker is created when work comes and all others are running work or are
//! blocked in it, up to a ceiling. Beyond the ceiling, work stays where it is until a worker is
//! free ([`Vp::has_stack`](crate::Vp::has_stack)). Workers that have not been needed for a second
//! go back to the stacks of the process, except for a few.
//!
//! An idle worker keeps the top of its stack warm. The memory that it used below goes back to the
//! kernel when the worker has been idle for a second. The list is last in, first out, so the
//! workers at its bottom have been idle the longest.
//!
//! A worker becomes free on this processor, which then polls for work. So nothing has to be woken
//! when the ceiling no longer applies.

use crate::link::Lifo;
use crate::record::{Rec, Record};
use crate::stack;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Number of idle workers that are kept for good.
const KEPT: usize = 64;
/// Time without need after which the other idle workers are released.
const KEEP: Duration = Duration::from_secs(1);
/// Maximum number of workers released at once.
const BATCH: usize = 256;

/// See the module comment.
pub(crate) struct Workers {
    /// Idle workers, the last used first.
    free: Lifo<Record>,
    /// Number of all workers.
    made: Cell<usize>,
    most: usize,
    /// The idle loop runs on a worker, which will run the work that it finds itself.
    at_leisure: Cell<bool>,
    /// Lowest number of free workers since the last check: this many were not needed.
    fewest: Cell<usize>,
    look_at: Cell<Option<Instant>>,
    /// Some worker has run work since `cool_at` was set.
    worked: Cell<bool>,
    /// When to cool the workers that were not needed. `None` if all are cool.
    cool_at: Cell<Option<Instant>>,
    /// Number of workers at the bottom of `free` that are cool, and lowest number of free workers
    /// since `cool_at` was set.
    cool: Cell<usize>,
    unwanted: Cell<usize>,
}

/// Number of idle-loop turns without work after which the clock is read once.
const TURNS: u32 = 16;

const _: () = assert!(TURNS.is_power_of_two());

impl Workers {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            free: Lifo::new(),
            made: Cell::new(0),
            most: most.max(1),
            at_leisure: Cell::new(false),
            fewest: Cell::new(0),
            look_at: Cell::new(None),
            worked: Cell::new(false),
            cool_at: Cell::new(None),
            cool: Cell::new(0),
            unwanted: Cell::new(0),
        }
    }

    /// Takes an idle worker to run next, if there is one.
    #[inline(always)]
    pub(crate) fn take(&self) -> Option<Rec> {
        let taken = self.free.pop();
        self.fewest.set(self.fewest.get().min(self.free.len()));
        self.unwanted.set(self.unwanted.get().min(self.free.len()));
        taken
    }

    /// Returns `true` if a worker is ready for a piece of work that is found now.
    #[inline(always)]
    pub(crate) fn is_ready(&self) -> bool {
        self.at_leisure.get() || self.free.len() > 0
    }

    #[inline(always)]
    pub(crate) fn give(&self, worker: Rec) {
        self.free.push(worker);
    }

    /// Counts a worker that was created.
    pub(crate) fn add(&self) {
        self.made.set(self.made.get() + 1);
    }

    /// Runs `find`, which runs the idle loop, on a worker.
    #[inline(always)]
    pub(crate) fn at_leisure<R>(&self, find: impl FnOnce() -> R) -> R {
        self.at_leisure.set(true);
        let found = find();
        self.at_leisure.set(false);
        found
    }

    /// Number of workers that run work or are blocked in it, and the maximum number.
    #[inline(always)]
    pub(crate) fn busy(&self) -> (usize, usize) {
        (self.made.get() - self.free.len() - usize::from(self.at_leisure.get()), self.most)
    }

    /// Takes out some of the workers that have not been needed for a while, if it is time.
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
        // What exceeds a batch is released at the next check, which follows at once.
        let (fewest, pause) =
            if surplus > count { (surplus - count, Duration::ZERO) } else { (free - count, KEEP) };
        self.fewest.set(fewest);
        self.look_at.set(Some(now + pause));
        count
    }

    /// When to check again for surplus workers; `None` if there are none.
    pub(crate) fn look_at(&self) -> Option<Instant> {
        if self.free.len() > KEPT { self.look_at.get() } else { None }
    }

    /// When to give back stack memory of idle workers; `None` if all are cool.
    pub(crate) fn cool_at(&self) -> Option<Instant> {
        self.cool_at.get()
    }

    /// Records that a worker begins a piece of work, for which it may use all of its stack.
    #[inline(always)]
    pub(crate) fn works(&self) {
        self.worked.set(true);
    }

    /// Gives back stack memory of idle workers, if it is time.
    ///
    /// This concerns the workers in the list and, if no work was done at all, `me`, on whose stack
    /// the idle loop runs. `round` counts the turns of the idle loop: the clock is not read while
    /// work comes fast.
    #[inline(always)]
    pub(crate) fn cool(&self, round: u32, me: Rec) {
        match self.cool_at.get() {
            None if self.worked.get() => self.cool_later(Instant::now()),
            Some(at) if round % TURNS == TURNS - 1 => {
                let now = Instant::now();
                if now >= at {
                    self.cool_unwanted(now, me);
                }
            }
            _ => {}
        }
    }

    /// As [`cool`](Self::cool), on a processor that sleeps, which takes no worker.
    ///
    /// All workers are cooled at once, so that the processor is woken once for that. A wake costs
    /// more than reusing a cold stack.
    pub(crate) fn cool_asleep(&self, me: Rec) {
        let now = Instant::now();
        match self.cool_at.get() {
            Some(at) if now < at => {}
            Some(_) => {
                self.worked.set(false);
                // Workers that were taken since they were cooled are no longer cool.
                self.cool.set(self.cool.get().min(self.unwanted.get()));
                self.unwanted.set(self.free.len());
                self.cool_unwanted(now, me);
            }
            None if self.worked.get() => self.cool_later(now),
            None => {}
        }
    }

    #[cold]
    fn cool_later(&self, now: Instant) {
        self.worked.set(false);
        // Workers that were taken since they were cooled are no longer cool.
        self.cool.set(self.cool.get().min(self.unwanted.get()));
        self.unwanted.set(self.free.len());
        self.cool_at.set(Some(now + KEEP));
    }

    #[cold]
    fn cool_unwanted(&self, now: Instant, me: Rec) {
        let unwanted = self.unwanted.get().min(self.free.len());
        let cool = self.cool.get().min(unwanted);
        // The list begins with the workers that were used last.
        for worker in self.free.iter().skip(self.free.len() - unwanted).take(unwanted - cool) {
            // SAFETY: a worker in the list is suspended, and its stack ends at its saved pointer.
            unsafe { stack::cool_below(worker, worker.sp.get()) };
        }
        self.cool.set(unwanted);
        if self.worked.get() {
            return self.cool_later(now);
        }
        self.cool_at.set(None);
        if me.is_worker() {
            let mut here = 0_u8;
            // SAFETY: this runs on the stack of `me`, and all frames except those of functions
            // called from here lie above.
            unsafe { stack::cool_below(me, &raw mut here) };
        }
    }

    /// Takes out all idle workers.
    pub(crate) fn take_all(&self) -> impl Iterator<Item = Rec> {
        std::iter::from_fn(|| self.free.pop())
    }
}
