//! A virtual processor: the kernel thread that runs user-level threads, with its queues and timers.

use crate::beacon::ProcessorRecord;
use crate::link::Fifo;
use crate::number::NumberBlock;
use crate::record::{Rec, Record};
use crate::shared::{VpGroup, VpShared};
use crate::stack;
use crate::steal::Hunger;
use crate::workers::Workers;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;
use std::time::Instant;
use upcall_os::signal::SignalStack;

thread_local! {
    static HERE: Cell<Option<&'static Vp>> = const { Cell::new(None) };
}

/// The virtual processor that this code runs on, if it runs on one.
#[inline(always)]
pub(crate) fn here() -> Option<&'static Vp> {
    HERE.get()
}

/// The index of the virtual processor that the caller runs on; `None` on an ordinary kernel thread.
///
/// Costs one thread-local load. A thread's answer never changes.
#[inline]
pub fn on_virtual_processor() -> Option<usize> {
    here().map(Vp::index)
}

/// A virtual processor. Handed to an [`Idle`](crate::Idle) implementation; there is no other way to
/// get one.
#[repr(C)]
pub struct Vp {
    pub(crate) post: ProcessorRecord,
    pub(crate) shared: &'static VpShared,
    pub(crate) group: &'static VpGroup,
    pub(crate) ready: Fifo<Record>,
    pub(crate) choices: Cell<u32>,
    pub(crate) stacks: stack::Cache,
    numbers: NumberBlock,
    timers: RefCell<BTreeMap<(Instant, u64), Rec>>,
    /// When this processor looks again for stacks to give back; `None`: as soon as it is idle and
    /// there are any.
    pub(crate) trim_at: Cell<Option<Instant>>,
    pub(crate) workers: Workers,
    /// It runs the idle loop.
    pub(crate) idle: Cell<bool>,
    /// `poll` has announced work that no worker has begun.
    pub(crate) announced: Cell<bool>,
    pub(crate) hunger: Hunger,
    /// Where the handler of an overflow runs, if the kernel thread had no such stack.
    pub(crate) signal_stack: Cell<Option<SignalStack>>,
    not_send: PhantomData<*const ()>,
}

impl Vp {
    /// A virtual processor of the calling kernel thread, which is running `root`. It is not the
    /// calling thread's yet: see [`make_here`](Self::make_here).
    pub(crate) fn new(group: &'static VpGroup, index: usize, root: Rec) -> Self {
        let shared = &group.members[index];
        Self {
            post: ProcessorRecord::new(shared.address(), index, root),
            shared,
            group,
            ready: Fifo::new(),
            choices: Cell::new(0),
            stacks: stack::Cache::new(),
            numbers: NumberBlock::default(),
            timers: RefCell::default(),
            trim_at: Cell::new(None),
            workers: Workers::new(group.most_workers),
            idle: Cell::new(false),
            announced: Cell::new(false),
            hunger: Hunger::new(group, index),
            signal_stack: Cell::new(SignalStack::provide()),
            not_send: PhantomData,
        }
    }

    /// Makes this the virtual processor of the calling kernel thread, or no processor any more.
    pub(crate) fn make_here(vp: Option<&'static Self>) {
        HERE.set(vp);
    }

    /// Which processor this is, from 0.
    #[inline(always)]
    pub fn index(&self) -> usize {
        self.shared.index()
    }

    /// Returns `true` if it has no thread to run: `false` in an [`Idle::poll`](crate::Idle::poll)
    /// that is only a glance between two threads.
    pub fn is_idle(&self) -> bool {
        self.idle.get()
    }

    /// How many processors run together with this one, itself included.
    pub fn count(&self) -> usize {
        self.group.members.len()
    }

    /// The last look before the kernel thread blocks: whether a thread is ready here, or may be had
    /// from another processor. Call it after announcing that this processor is parked and a
    /// SeqCst fence; see [`Idle::rest`](crate::Idle::rest).
    ///
    /// With several processors the first call of an idle spell costs a `membarrier` (about 1 µs),
    /// so do not call it while spinning: the loop around `rest` looks at the cheap sources
    /// anyway.
    pub fn has_work(&self) -> bool {
        let here = !self.ready.is_empty()
            || !self.shared.inbox.is_empty()
            || !self.shared.fresh.is_empty();
        here || self.shared.is_dump_wanted()
            || (self.group.members.len() > 1 && self.hunger.called_or_calls())
    }

    /// How many pieces of outside work this processor has begun and not ended, and how many that
    /// may be ([`Processors::most_work`](crate::Processors::most_work)).
    #[inline]
    pub fn work_under_way(&self) -> (usize, usize) {
        self.workers.busy()
    }

    /// Returns `true` if there is a stack for another piece of outside work. If not,
    /// [`Idle::poll`](crate::Idle::poll) leaves the work where it is. No wake is needed for it
    /// later: the processor looks again when a piece has ended.
    #[inline]
    pub fn has_stack(&self) -> bool {
        let (busy, most) = self.work_under_way();
        busy < most
    }

    /// Returns `true` if it has nothing to do but the work that its [`Idle`](crate::Idle) has
    /// found: no thread is ready here, and none waits for a time. Other processors may make a
    /// thread ready at any moment.
    #[inline]
    pub fn is_free(&self) -> bool {
        self.ready.is_empty()
            && self.shared.inbox.is_empty()
            && self.shared.fresh.is_empty()
            && self.timers.borrow().is_empty()
    }

    /// The frequent half of an asymmetric fence between the processors that run together with this
    /// one: orders stores before it against loads after it, for whoever has
    /// [`heavy_fence`](Self::heavy_fence) between its own. Free, where the kernel has `membarrier`.
    #[inline]
    pub fn light_fence(&self) {
        self.group.fences.light();
    }

    /// The rare half: about 1 µs.
    pub fn heavy_fence(&self) {
        self.group.fences.heavy();
    }

    #[inline(always)]
    pub(crate) fn current(&self) -> Rec {
        self.post.current.get()
    }

    /// A number that is never used twice in the process.
    #[inline(always)]
    pub(crate) fn number(&self) -> u64 {
        self.numbers.next()
    }

    /// Makes a thread of this processor ready.
    #[inline(always)]
    pub(crate) fn make_ready(&self, rec: Rec) {
        self.ready.push(rec);
    }

    /// Adds a thread that has not started.
    #[inline(always)]
    pub(crate) fn add_fresh(&self, rec: Rec) {
        self.shared.fresh.push(rec);
        // Orders the push before the look. The hungry side sets its bit, fences heavily, then looks
        // at our queue: so it sees the thread or we see the bit (Dekker, as in `fresh`).
        self.group.fences.light();
        if self.group.hungry.load(Ordering::Relaxed) != 0 {
            self.group.call_one();
        }
    }

    // Deadlines.

    /// Makes `rec` ready at `deadline` unless the wait called `number` is over by then.
    pub(crate) fn add_timer(&self, deadline: Instant, number: u64, rec: Rec) {
        self.timers.borrow_mut().insert((deadline, number), rec);
    }

    pub(crate) fn remove_timer(&self, deadline: Instant, number: u64) {
        self.timers.borrow_mut().remove(&(deadline, number));
    }

    #[inline(always)]
    pub(crate) fn expire(&self) {
        if !self.timers.borrow().is_empty() {
            self.expire_until(Instant::now());
        }
    }

    #[cold]
    fn expire_until(&self, now: Instant) {
        let mut timers = self.timers.borrow_mut();
        while let Some(entry) = timers.first_entry() {
            let (deadline, number) = *entry.key();
            if deadline > now {
                break;
            }
            let rec = entry.remove();
            if rec.ticket.compare_exchange(number, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                rec.timed_out.set(true);
                self.make_ready(rec);
            }
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let timer = self.timers.borrow().first_key_value().map(|(&(at, _), _)| at);
        let quiet = self.hunger.quiet_until();
        let trim = if stack::wants_trim() { self.trim_at.get() } else { None };
        timer.into_iter().chain(quiet).chain(trim).chain(self.workers.look_at()).min()
    }

    /// When [`cool`](Self::cool) has something to do; `None` if it has nothing to do. This is no
    /// deadline: an [`Idle`](crate::Idle) that does not block goes on as if there were none.
    pub fn cools_at(&self) -> Option<Instant> {
        self.workers.cool_at()
    }

    /// Gives back what idle workers used of their stacks, if it is time. For a processor that
    /// sleeps.
    pub fn cool(&self) {
        self.workers.cool_asleep(self.current());
    }
}

impl std::fmt::Debug for Vp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vp")
            .field("index", &self.index())
            .field("of", &self.count())
            .finish_non_exhaustive()
    }
}
