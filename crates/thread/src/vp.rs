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

/// The virtual processor that this code runs on, if there is one.
#[inline(always)]
pub(crate) fn here() -> Option<&'static Vp> {
    HERE.get()
}

/// The index of the virtual processor that the caller runs on.
///
/// Returns `None` on an ordinary kernel thread. Costs one thread-local load. For one thread the
/// result never changes.
#[inline]
pub fn on_virtual_processor() -> Option<usize> {
    here().map(Vp::index)
}

/// A virtual processor.
///
/// An [`Idle`](crate::Idle) implementation gets it as an argument; there is no other way to get
/// one.
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
    /// When this processor checks again for stacks to give back. `None`: as soon as it is idle and
    /// there are any.
    pub(crate) trim_at: Cell<Option<Instant>>,
    pub(crate) workers: Workers,
    /// The processor runs the idle loop.
    pub(crate) idle: Cell<bool>,
    /// `poll` has announced work that no worker has begun.
    pub(crate) announced: Cell<bool>,
    pub(crate) hunger: Hunger,
    /// The stack for the overflow handler, if the kernel thread had none.
    pub(crate) signal_stack: Cell<Option<SignalStack>>,
    not_send: PhantomData<*const ()>,
}

impl Vp {
    /// Creates a virtual processor for the calling kernel thread, which is running `root`.
    ///
    /// [`make_here`](Self::make_here) then makes it the calling thread's own.
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

    /// Sets or clears the virtual processor of the calling kernel thread.
    pub(crate) fn make_here(vp: Option<&'static Self>) {
        HERE.set(vp);
    }

    /// The processor's index, from 0.
    #[inline(always)]
    pub fn index(&self) -> usize {
        self.shared.index()
    }

    /// Returns `true` if the processor has no thread to run.
    ///
    /// Returns `false` in an [`Idle::poll`](crate::Idle::poll) that is only a quick poll between
    /// two threads.
    pub fn is_idle(&self) -> bool {
        self.idle.get()
    }

    /// Number of processors that run together with this one, itself included.
    pub fn count(&self) -> usize {
        self.group.members.len()
    }

    /// Returns `true` if a thread is ready here, or may be had from another processor.
    ///
    /// This is the last check before the kernel thread blocks. Call it after announcing that this
    /// processor is parked and a SeqCst fence; see [`Idle::rest`](crate::Idle::rest).
    ///
    /// With several processors the first call of an idle spell costs a `membarrier` (about 1 µs),
    /// so do not call it while spinning: the loop around `rest` checks the cheap sources anyway.
    pub fn has_work(&self) -> bool {
        let here = !self.ready.is_empty()
            || !self.shared.inbox.is_empty()
            || !self.shared.fresh.is_empty();
        here || self.shared.is_dump_wanted()
            || (self.group.members.len() > 1 && self.hunger.called_or_calls())
    }

    /// Number of pieces of outside work that this processor has begun and not ended, and the
    /// maximum.
    ///
    /// [`Processors::most_work`](crate::Processors::most_work) sets the maximum.
    #[inline]
    pub fn work_under_way(&self) -> (usize, usize) {
        self.workers.busy()
    }

    /// Returns `true` if there is a stack for another piece of outside work.
    ///
    /// If not, [`Idle::poll`](crate::Idle::poll) leaves the work where it is. That work needs no
    /// wake later: the processor polls again when a piece has ended.
    #[inline]
    pub fn has_stack(&self) -> bool {
        let (busy, most) = self.work_under_way();
        busy < most
    }

    /// Returns `true` if the only work is what the [`Idle`](crate::Idle) has found.
    ///
    /// No thread is ready here, and none waits for a time. Other processors may make a thread ready
    /// at any moment.
    #[inline]
    pub fn is_free(&self) -> bool {
        self.ready.is_empty()
            && self.shared.inbox.is_empty()
            && self.shared.fresh.is_empty()
            && self.timers.borrow().is_empty()
    }

    /// The frequent half of an asymmetric fence between this processor and those that run with it.
    ///
    /// Orders stores before it against loads after it, with respect to a thread that has
    /// [`heavy_fence`](Self::heavy_fence) between its own. Free where the kernel has `membarrier`.
    #[inline]
    pub fn light_fence(&self) {
        self.group.fences.light();
    }

    /// The rare half. Costs about 1 µs.
    pub fn heavy_fence(&self) {
        self.group.fences.heavy();
    }

    #[inline(always)]
    pub(crate) fn current(&self) -> Rec {
        self.post.current.get()
    }

    /// Draws a number that is never used twice in the process.
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
        // Orders the push before the check. The hungry side sets its bit, fences heavily, then
        // looks at this queue: so it sees the thread, or this side sees the bit (Dekker, as in
        // `fresh`).
        self.group.fences.light();
        if self.group.hungry.load(Ordering::Relaxed) != 0 {
            self.group.call_one();
        }
    }

    // Deadlines.

    /// Makes `rec` ready at `deadline` unless the wait numbered `number` is over by then.
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

    /// When [`cool`](Self::cool) has something to do; `None` if it has nothing to do.
    ///
    /// This is not a deadline: an [`Idle`](crate::Idle) that does not block ignores it.
    pub fn cools_at(&self) -> Option<Instant> {
        self.workers.cool_at()
    }

    /// Gives back stack memory of idle workers, if it is time. For a processor that sleeps.
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
