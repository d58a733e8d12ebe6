//! A virtual processor: the kernel thread that runs user-level threads, its queues, and the choice
//! of who runs next.
//!
//! # Who runs next
//! Threads that others have made ready come over from the inbox first (one plain load when there
//! are none). Then the ready queue (threads that have started) and the queue of fresh threads take
//! turns, each first come, first served. Every 64th choice, and whenever nothing is ready,
//! deadlines are checked, and outside work that does not bear to wait. If nothing is ready, the
//! thread that blocks runs the idle loop itself (`find`), on its own stack. A thread that yields
//! while no other is ready looks once for outside work; and so does, every 4096th choice, a
//! processor that is never idle, lest busy threads shut out calls (U14).
//!
//! # Why addresses of thread-locals may be cached
//! A thread that has started runs on one kernel thread for its whole life (`switch` is called only
//! by the processor that the record's `home` names). So `here()` may be inlined, and its result
//! kept across a switch.
//!
//! # Why a wake before the block is not lost
//! A thread publishes its waiter while it still runs, and a wake may come before it has switched
//! away. A wake is nothing but one push, onto the ready queue if the waker runs on the same
//! processor, else into the inbox; and only the home processor takes threads from either, which it
//! cannot do before the thread has switched away, or has itself begun to look for the next thread
//! and finds itself. So there is no state in which a wake can be missed, and no word that both
//! sides must change. What remains is that the processor may be going to sleep: see `parker`.

use crate::arch;
use crate::beacon::Post;
use crate::fresh::Pop;
use crate::idle::{Found, Idle};
use crate::link::Fifo;
use crate::number::NumberBlock;
use crate::overflow;
use crate::record::{Cause, Rec, Record, State};
use crate::recycle::reuse;
use crate::shared::{Group, Shared};
use crate::spawn;
use crate::stack;
use crate::steal::Hunger;
use crate::workers::Workers;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::marker::PhantomData;
use std::ptr;
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

/// A virtual processor. Handed to an [`Idle`] implementation; there is no other way to get one.
#[repr(C)]
pub struct Vp {
    post: Post,
    pub(crate) shared: &'static Shared,
    pub(crate) group: &'static Group,
    pub(crate) ready: Fifo<Record>,
    choices: Cell<u32>,
    pub(crate) stacks: stack::Cache,
    numbers: NumberBlock,
    timers: RefCell<BTreeMap<(Instant, u64), Rec>>,
    /// When this processor looks again for stacks to give back; `None`: as soon as it is idle and
    /// there are any.
    trim_at: Cell<Option<Instant>>,
    workers: Workers,
    /// It runs the idle loop.
    idle: Cell<bool>,
    /// `poll` has announced work that no worker has begun.
    announced: Cell<bool>,
    pub(crate) hunger: Hunger,
    /// Where the handler of an overflow runs, if the kernel thread had no such stack.
    signal_stack: Cell<Option<SignalStack>>,
    not_send: PhantomData<*const ()>,
}

/// After this many choices without an idle moment, a processor looks for outside work once: some 50
/// µs at least.
const BUSY_CHOICES: u32 = 4096;
/// A worker that does not wait.
const AT_WORK: State = State { blocking: false, cause: Cause::Work };
/// Ends the process if dropped by a panic.
pub(crate) struct Abort(pub(crate) &'static str);

impl Drop for Abort {
    // Inline, and by value from there: the text need not lie in memory while all goes well.
    #[inline(always)]
    fn drop(&mut self) {
        abort(self.0);
    }
}

#[cold]
fn abort(what: &str) -> ! {
    eprintln!(
        "upcall-thread: {what}; the process ends, because the thread below is half suspended"
    );
    std::process::abort();
}

pub(crate) fn without_panic<R>(what: &'static str, run: impl FnOnce() -> R) -> R {
    let guard = Abort(what);
    let result = run();
    std::mem::forget(guard);
    result
}

impl Vp {
    /// Makes the calling kernel thread a virtual processor, with `root` as the thread that it is
    /// running.
    pub(crate) fn enter(group: &'static Group, index: usize, root: Rec) -> &'static Vp {
        let shared = &group.members[index];
        let vp: &'static Vp = Box::leak(Box::new(Vp {
            post: Post::new(shared.address(), index, root),
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
        }));
        root.set_home(Some(shared.address()));
        vp.post.put_up();
        overflow::watch();
        HERE.set(Some(vp));
        vp.shared.idle.begin(vp);
        vp
    }

    /// The calling kernel thread is an ordinary one again. Its threads that have not ended never
    /// run again.
    pub(crate) fn leave(&self) {
        self.hunger.stop();
        self.workers.take_all().for_each(dismiss);
        self.stacks.empty();
        stack::trim(Instant::now(), true);
        self.shared.idle.end(self);
        self.current().set_home(None);
        self.post.take_down();
        drop(self.signal_stack.take());
        HERE.set(None);
    }

    /// Which processor this is, from 0.
    #[inline(always)]
    pub fn index(&self) -> usize {
        self.shared.index()
    }

    /// Whether it has no thread to run: `false` in an [`Idle::poll`] that is only a glance between
    /// two threads.
    pub fn is_idle(&self) -> bool {
        self.idle.get()
    }

    /// How many processors run together with this one, itself included.
    pub fn count(&self) -> usize {
        self.group.members.len()
    }

    /// The last look before the kernel thread blocks: whether a thread is ready here, or may be had
    /// from another processor. Call it after announcing that this processor is parked and a
    /// SeqCst fence; see [`Idle::rest`].
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

    /// Whether there is a stack for another piece of outside work; if not, [`Idle::poll`] leaves it
    /// where it is. Nobody has to be woken for it later: the processor looks again when a piece
    /// has ended.
    #[inline]
    pub fn has_stack(&self) -> bool {
        let (busy, most) = self.work_under_way();
        busy < most
    }

    /// Returns `true` if a piece of outside work that is found now can begin: there is a stack, or
    /// memory for one. An [`Idle::poll`] that leaves work where it is otherwise keeps this
    /// processor from an attempt without a stack, which would end the process.
    #[inline]
    pub fn can_begin_work(&self) -> bool {
        self.workers.is_ready() || self.has_made_worker()
    }

    #[cold]
    fn has_made_worker(&self) -> bool {
        self.make_worker().map(|worker| self.workers.give(worker)).is_ok()
    }

    /// Whether it has nothing to do but the work that its [`Idle`] has found: no thread is ready
    /// here, and none waits for a time. Others may make one ready at any moment.
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

    /// The next thread to run, if one is ready.
    #[inline(always)]
    fn pick(&self) -> Option<Rec> {
        if !self.shared.inbox.is_empty() {
            self.ready.append_reversed(self.shared.inbox.take());
        }
        let choice = self.choices.get().wrapping_add(1);
        self.choices.set(choice);
        if choice.is_multiple_of(64)
            && let Some(worker) = self.now_and_then(choice)
        {
            return Some(worker);
        }
        if choice.is_multiple_of(2) {
            self.pick_fresh().or_else(|| self.ready.pop())
        } else {
            self.ready.pop().or_else(|| self.pick_fresh())
        }
    }

    /// What a busy processor must not forget altogether.
    #[cold]
    fn now_and_then(&self, choice: u32) -> Option<Rec> {
        self.expire();
        self.dump_if_wanted();
        if !choice.is_multiple_of(BUSY_CHOICES) {
            let pressed = without_panic("an Idle implementation panicked in is_pressed", || {
                self.shared.idle.is_pressed(self)
            });
            return if pressed { self.glance() } else { None };
        }
        // As in a late turn of the idle loop: this comes seldom.
        self.trim(u32::MAX);
        self.glance()
    }

    /// One look for outside work. If there is some, a worker to run it.
    #[cold]
    fn glance(&self) -> Option<Rec> {
        let me = self.current();
        let before = me.state.get();
        me.state.set(State { blocking: true, ..before });
        let found = without_panic("an Idle implementation panicked in poll", || {
            self.shared.idle.poll(self)
        });
        me.state.set(before);
        (found == Found::Work).then(|| {
            self.announced.set(true);
            self.worker()
        })
    }

    #[inline(always)]
    fn pick_fresh(&self) -> Option<Rec> {
        match self.shared.fresh.pop() {
            Pop::Got(rec) => Some(rec),
            Pop::Empty | Pop::Busy => None,
        }
    }

    /// Runs `to` instead of `from`, which is the running thread; returns when `from` runs again.
    ///
    /// `dead` is a thread whose stack may be reused once it is no longer running, that is `from` or
    /// nothing.
    #[inline(always)]
    fn switch(&self, from: Rec, to: Rec, dead: Option<Rec>) {
        self.post.current.set(to);
        if cfg!(debug_assertions) || from.owns_control.get() || to.owns_control.get() {
            without_panic("the floating-point control words are not as they should be", || {
                exchange_control(from, to)
            });
        }
        let gift = dead.map_or(ptr::null(), |rec| rec.as_raw());
        // SAFETY: `to` came from this processor's queues, so it is suspended (or fresh), by its own
        // last switch (or by `prepare`), and, having been taken from its queue, it is
        // resumed once. If it has started, it did so here.
        let buried = unsafe { arch::switch(from.sp.as_ptr(), to.sp.get(), gift) };
        self.bury(buried);
    }

    /// The thread that has just been switched away from for the last time gives up its own
    /// reference.
    #[inline(always)]
    pub(crate) fn bury(&self, gift: *const ()) {
        // SAFETY: a gift is null or comes from `Record::as_raw`.
        if let Some(dead) = unsafe { gift.cast::<Record>().as_ref() }
            && dead.release()
        {
            reuse(dead);
        }
    }

    /// Suspends the running thread until it is made ready. Its waiter has been published.
    #[inline(always)]
    pub(crate) fn deschedule(&self, me: Rec) {
        let next = match self.pick() {
            Some(next) => next,
            None => match self.find() {
                Step::Run(next) => next,
                Step::Work => {
                    self.announced.set(true);
                    self.worker()
                }
            },
        };
        if !ptr::eq(next, me) {
            self.switch(me, next, None);
        }
    }

    /// Lets every other ready thread have a turn.
    #[inline(always)]
    pub(crate) fn yield_now(&self) {
        let me = self.current();
        assert!(!me.state.get().blocking, "{NESTED}");
        // Choose before queueing, so that a lone fresh thread is not passed over for the caller
        // itself.
        if let Some(next) = self.pick().or_else(|| self.glance().or_else(|| self.pick())) {
            self.ready.push(me);
            self.switch(me, next, None);
        }
    }

    /// Lets outside work have a turn, if there is some, and with it every other ready thread.
    pub(crate) fn safe_point(&self) {
        let me = self.current();
        assert!(!me.state.get().blocking, "{NESTED}");
        if let Some(worker) = self.glance() {
            self.ready.push(me);
            self.switch(me, worker, None);
        }
    }

    /// The running thread has ended; `next` was ready already or `None`. Its reference goes with
    /// the switch.
    #[inline(always)]
    pub(crate) fn end(&self, me: Rec) -> ! {
        let next = self.pick().unwrap_or_else(|| self.worker());
        self.switch(me, next, Some(me));
        unreachable!("a thread that had ended was resumed")
    }

    /// As `end`, for a thread whose reference is settled already: its joiner runs next.
    #[inline(always)]
    pub(crate) fn end_with(&self, me: Rec, joiner: Rec) -> ! {
        self.switch(me, joiner, None);
        unreachable!("a thread that had ended was resumed")
    }

    /// The idle loop: looks until there is something to run. Runs on the stack of whoever has
    /// nothing to do.
    #[cold]
    #[inline(never)]
    fn find(&self) -> Step {
        self.idle.set(true);
        // The thread below has published its wait: nothing may unwind through it.
        let step = without_panic("the scheduler failed", || self.look_for_work());
        self.idle.set(false);
        step
    }

    fn look_for_work(&self) -> Step {
        let idle: &dyn Idle = &*self.shared.idle;
        let (mut round, mut rested) = (0_u32, false);
        let step = loop {
            match without_panic("an Idle implementation panicked in poll", || idle.poll(self)) {
                Found::Work => {
                    // Outside work without end must not keep sleepers asleep.
                    self.expire();
                    break Step::Work;
                }
                Found::Woke => round = 0,
                Found::Nothing => {
                    self.expire();
                    self.dump_if_wanted();
                    if self.dump_wants_a_stack() {
                        break Step::Run(self.worker());
                    }
                    self.trim(round);
                    self.hunger.steal();
                    round = round.saturating_add(1);
                }
            }
            if let Some(next) = self.pick() {
                break Step::Run(next);
            }
            if round > 0 {
                let deadline = self.deadline();
                rested = true;
                without_panic("an Idle implementation panicked in rest", || {
                    idle.rest(self, round, deadline)
                });
                if let Some(next) = self.pick() {
                    break Step::Run(next);
                }
            }
        };
        if rested {
            without_panic("an Idle implementation panicked in resume", || idle.resume(self));
        }
        self.hunger.stop();
        step
    }

    /// A worker to run next.
    fn worker(&self) -> Rec {
        self.workers.take().unwrap_or_else(|| {
            without_panic("no stack for a worker", || {
                self.make_worker().expect("no memory for the stack of a worker")
            })
        })
    }

    fn make_worker(&self) -> io::Result<Rec> {
        let worker = spawn::new_worker(self)?;
        self.workers.add();
        Ok(worker)
    }

    /// The body of a worker.
    pub(crate) fn serve(&self) -> ! {
        let me = self.current();
        loop {
            if self.announced.replace(false) {
                self.workers.works();
                let idle: &dyn Idle = &*self.shared.idle;
                // The hook has reported the panic; what it interrupted was one piece of work.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| idle.work(self)));
            }
            // Ready threads come before outside work (U7).
            let next = match self.pick() {
                Some(next) => next,
                None => {
                    // Like a blocked thread, an idle worker must not block or yield from inside of
                    // `poll` or `rest`.
                    me.state.set(State::waits(Cause::Work));
                    let step = self.workers.at_leisure(|| self.find());
                    me.state.set(AT_WORK);
                    match step {
                        Step::Run(next) => next,
                        Step::Work => {
                            self.announced.set(true);
                            continue;
                        }
                    }
                }
            };
            self.workers.give(me);
            me.state.set(AT_WORK);
            self.switch(me, next, None);
            me.state.set(State::RUNS);
        }
    }

    /// Runs `entry` on the stack of a thread that is suspended here; returns when `entry` calls
    /// `end_interlude`.
    ///
    /// # Safety
    /// `suspended` has started, does not run, and has room on its stack for `entry`, which calls
    /// `end_interlude`, and neither blocks nor yields.
    pub(crate) unsafe fn interlude(&self, suspended: Rec, entry: extern "C" fn() -> !) {
        let me = self.current();
        // SAFETY: the caller's promise.
        let begin = unsafe { arch::interlude(suspended.sp.get(), entry) };
        // SAFETY: `me` runs, and `end_interlude` resumes it, once.
        let gift = unsafe { arch::switch(me.sp.as_ptr(), begin, ptr::null()) };
        debug_assert!(gift.is_null());
    }

    /// Leaves an interlude for good.
    pub(crate) fn end_interlude(&self) -> ! {
        let mut nowhere = ptr::null_mut();
        // SAFETY: the current thread's pointer was stored when the interlude began; the interlude's
        // own is thrown away.
        unsafe { arch::switch(&raw mut nowhere, self.current().sp.get(), ptr::null()) };
        unreachable!("an interlude was resumed")
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
    fn expire(&self) {
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

    fn deadline(&self) -> Option<Instant> {
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

    /// Gives stacks back that nobody wants, if it is time.
    #[inline(always)]
    fn trim(&self, round: u32) {
        self.workers.retire().for_each(dismiss);
        self.workers.cool(round, self.current());
        if stack::wants_trim() {
            let now = Instant::now();
            if self.trim_at.get().is_none_or(|at| now >= at) {
                self.trim_at.set(stack::trim(now, false));
            }
        }
    }
}

/// A worker with nothing to do holds nothing but frames of this module, which have nothing to drop.
fn dismiss(worker: Rec) {
    if worker.release() {
        reuse(worker);
    }
}

/// Floating-point control words, where one of two threads has its own: see `arch`.
#[cold]
fn exchange_control(from: Rec, to: Rec) {
    let running = arch::control();
    match from.extra() {
        Some(extra) if from.owns_control.get() => extra.control.set(running),
        _ => debug_assert!(
            running == arch::CONTROL,
            "a thread that blocks has changed the floating-point control words (to {running:#x}); Rust code must not, and for code in other \
             languages the thread is to be spawned with Builder::own_floating_point_control"
        ),
    }
    let wanted = match to.extra() {
        Some(extra) if to.owns_control.get() => extra.control.get(),
        _ => arch::CONTROL,
    };
    if wanted != running {
        // SAFETY: `to` runs next, and these are its own, or the default ones.
        unsafe { arch::set_control(wanted) };
    }
}

/// What the idle loop found.
enum Step {
    /// A thread that is ready.
    Run(Rec),
    /// Work for a worker.
    Work,
}

pub(crate) const NESTED: &str = "upcall-thread: a thread that has published its waiter must not block or yield before \
    the wake; neither may Idle::poll or Idle::rest";

impl std::fmt::Debug for Vp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vp")
            .field("index", &self.index())
            .field("of", &self.count())
            .finish_non_exhaustive()
    }
}
