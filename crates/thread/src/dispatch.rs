//! The choice of the thread to run next, the idle loop, and the workers for outside work.
//!
//! # Which thread runs next
//! Threads that other kernel threads have made ready come over from the inbox first (one plain load
//! when there are none). Then the ready queue (threads that have started) and the queue of fresh
//! threads take turns, each first come, first served. Every 64th choice, and whenever nothing is
//! ready, the processor checks deadlines, and polls for outside work that cannot wait. If nothing
//! is ready, the thread that blocks runs the idle loop itself (`find`), on its own stack. A thread
//! that yields while no other is ready polls once for outside work. A processor that is never idle
//! does the same at every 4096th choice, so that busy threads do not shut out calls (URPC; U14
//! here).
//!
//! # Why a wake before the block is not lost
//! A thread publishes its waiter while it still runs, and a wake may come before it has switched
//! away. A wake is nothing but one push: onto the ready queue if the waker runs on the same
//! processor, else into the inbox. Only the home processor takes threads from either. It cannot do
//! so before the thread has switched away, or has itself begun to choose the next thread and finds
//! itself. So there is no state in which a wake can be missed, and no word that both sides must
//! change. What remains is that the processor may be going to sleep: see `parker`.

use crate::abort::{NESTED, without_panic};
use crate::fresh::Pop;
use crate::idle::{Found, Idle};
use crate::record::{Cause, REF, Rec, WaitState};
use crate::recycle;
use crate::slot;
use crate::stack;
use crate::start::begin;
use crate::vp::{Vp, here};
use std::io;
use std::ptr;
use std::time::Instant;

/// Number of choices without an idle moment after which a processor polls once for outside work.
///
/// This takes some 50 µs at least.
const BUSY_CHOICES: u32 = 4096;
/// The state of a worker that does not wait.
const AT_WORK: WaitState = WaitState { blocking: false, cause: Cause::Work };
impl Vp {
    /// Returns `true` if a piece of outside work that is found now can begin.
    ///
    /// That takes a stack, or memory for one. An [`Idle::poll`] that otherwise leaves the work
    /// where it is keeps this processor from an attempt without a stack, which would end the
    /// process.
    #[inline]
    pub fn can_begin_work(&self) -> bool {
        self.workers.is_ready() || self.has_made_worker()
    }

    #[cold]
    fn has_made_worker(&self) -> bool {
        self.make_worker().map(|worker| self.workers.give(worker)).is_ok()
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

    /// Does what a busy processor must do from time to time.
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
        // Trims as in a late turn of the idle loop, since this happens rarely.
        self.trim(u32::MAX);
        self.glance()
    }

    /// Polls once for outside work. If there is some, returns a worker to run it.
    #[cold]
    fn glance(&self) -> Option<Rec> {
        let me = self.current();
        let before = me.state.get();
        me.state.set(WaitState { blocking: true, ..before });
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

    /// Suspends the running thread, which has published its waiter, until it is made ready.
    #[inline(always)]
    pub(crate) fn deschedule(&self, me: Rec) {
        let next = match self.pick() {
            Some(next) => next,
            None => match self.find() {
                DispatchStep::Run(next) => next,
                DispatchStep::Work => {
                    self.announced.set(true);
                    self.worker()
                }
            },
        };
        if !ptr::eq(next, me) {
            self.switch(me, next, None);
        }
    }

    /// Gives every other ready thread a turn.
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

    /// Gives outside work a turn, if there is some, and with it every other ready thread.
    pub(crate) fn safe_point(&self) {
        let me = self.current();
        assert!(!me.state.get().blocking, "{NESTED}");
        if let Some(worker) = self.glance() {
            self.ready.push(me);
            self.switch(me, worker, None);
        }
    }

    /// Ends the running thread, whose own reference is released by the switch to the next thread.
    #[inline(always)]
    pub(crate) fn end(&self, me: Rec) -> ! {
        let next = self.pick().unwrap_or_else(|| self.worker());
        self.switch(me, next, Some(me));
        unreachable!("a thread that had ended was resumed")
    }

    /// The idle loop: runs until there is a thread or work to run, on the stack of the idle thread.
    #[cold]
    #[inline(never)]
    fn find(&self) -> DispatchStep {
        self.idle.set(true);
        // The thread below has published its wait, so nothing may unwind through it.
        let step = without_panic("the scheduler failed", || self.look_for_work());
        self.idle.set(false);
        step
    }

    fn look_for_work(&self) -> DispatchStep {
        let idle: &dyn Idle = &*self.shared.idle;
        let (mut round, mut rested) = (0_u32, false);
        let step = loop {
            match without_panic("an Idle implementation panicked in poll", || idle.poll(self)) {
                Found::Work => {
                    // Endless outside work must not keep sleeping threads asleep.
                    self.expire();
                    break DispatchStep::Work;
                }
                Found::Woke => round = 0,
                Found::Nothing => {
                    self.expire();
                    self.dump_if_wanted();
                    if self.dump_wants_a_stack() {
                        break DispatchStep::Run(self.worker());
                    }
                    self.trim(round);
                    self.hunger.steal();
                    round = round.saturating_add(1);
                }
            }
            if let Some(next) = self.pick() {
                break DispatchStep::Run(next);
            }
            if round > 0 {
                let deadline = self.deadline();
                rested = true;
                without_panic("an Idle implementation panicked in rest", || {
                    idle.rest(self, round, deadline)
                });
                if let Some(next) = self.pick() {
                    break DispatchStep::Run(next);
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
        let worker = new_worker(self)?;
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
                // The hook has reported the panic, which interrupted only this one piece of work.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| idle.work(self)));
            }
            // Ready threads come before outside work (URPC, section 3.1; U7 here).
            let next = match self.pick() {
                Some(next) => next,
                None => {
                    // Like a blocked thread, an idle worker must not block or yield within `poll`
                    // or `rest`.
                    me.state.set(WaitState::waits(Cause::Work));
                    let step = self.workers.at_leisure(|| self.find());
                    me.state.set(AT_WORK);
                    match step {
                        DispatchStep::Run(next) => next,
                        DispatchStep::Work => {
                            self.announced.set(true);
                            continue;
                        }
                    }
                }
            };
            self.workers.give(me);
            me.state.set(AT_WORK);
            self.switch(me, next, None);
            me.state.set(WaitState::RUNS);
        }
    }

    /// Gives back stacks that are not needed, if it is time.
    #[inline(always)]
    fn trim(&self, round: u32) {
        self.workers.retire().for_each(recycle::release);
        self.workers.cool(round, self.current());
        if stack::wants_trim() {
            let now = Instant::now();
            if self.trim_at.get().is_none_or(|at| now >= at) {
                self.trim_at.set(stack::trim(now, false));
            }
        }
    }
}

/// What the idle loop found.
enum DispatchStep {
    /// A thread that is ready.
    Run(Rec),
    /// Work for a worker.
    Work,
}

/// Creates a worker that has not begun: its body is the idle loop.
///
/// # Errors
/// There is no memory for its stack.
#[cold]
fn new_worker(vp: &Vp) -> io::Result<Rec> {
    let rec = vp.stacks.take(vp.group.work_class)?;
    rec.packet.set(std::ptr::null_mut());
    rec.table.set(None);
    rec.owns_control.set(false);
    begin(vp, rec, slot::top(rec), REF, enter_worker);
    Ok(rec)
}

/// The first frame of every worker. A worker does not end.
unsafe extern "C" fn enter_worker(argument: *const (), gift: *const ()) -> ! {
    let vp = here().expect("workers run on virtual processors only");
    vp.bury(gift);
    // SAFETY: the argument is what `begin` passed: `Record::as_raw`.
    let me: Rec = unsafe { &*argument.cast() };
    me.set_home(Some(vp.shared.address()));
    vp.serve()
}
