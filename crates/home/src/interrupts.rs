//! Urgent invocations by a signal.
//!
//! These are operations that run in the middle of their home's computation, for code that has no
//! safe points.
//!
//! Source: Psyche, sections 2.1 and 3.1 (P1, P2 here), where an urgent invocation interrupts the
//! home's processor. Here a thread marks the computation that can be interrupted
//! ([`Serving::interruptible`](crate::Serving::interruptible)). Callers ring for the thread then,
//! though it does not sleep. The clerk gets the ring in its place, and sends a signal ([`rung`]).
//! The signal handler runs the waiting operations that are fit for it
//! ([`Operations::on_interrupt`](crate::Operations::on_interrupt)). All others wait for a poll.
//!
//! # Why the thread and its signal handler do not touch the same data
//! The thread's mask ([`Mask`]) counts all code that touches data of the handler: each turn of
//! serving, its beginning and its end, each wait for others, and each operation under an object's
//! lock by any of the thread's handles. (Psyche's rule: a lock that urgent operations also take is
//! held masked.) A section of the program ([`Serving::mask`](crate::Serving::mask)) keeps the
//! handler off in the same way. So the handler never finds a lock that its own thread holds, nor a
//! list that its own thread is changing.
//!
//! # Why no request is left behind
//! [`mask`](upcall_sched::mask) argues that each request is followed by a signal, and each signal
//! by a serving that begins after it. At the end of an operation the thread first releases the
//! lock, then lets interrupts in, and finally checks whether one has arrived.
//!
//! What remains are requests that a serving leaves although they are fit: another thread or process
//! holds the lock for longer than some microseconds, or the object has to be settled. The end of
//! that is not notified. So the handler sets a timer, which the clerk watches like a doorbell, with
//! pauses that grow up to 4 ms. The end of any operation checks, too. While the handler tries for
//! the lock, the other parties stand back and the lock's holder goes on undisturbed. So the home
//! waits for one operation at a time.
//!
//! # Callers that invoke again soon
//! Another signal would cost more than to wait for the next request (about 19 µs there and back).
//! So the handler polls for it for a microsecond or two before it ends, as long as there usually is
//! one. After [`MOST`] requests in a row the computation gets its turn: the thread is not announced
//! then, and the timer interrupts it again.
//!
//! `crates/sched/tests/models/loom_serving.rs` is the model.

use crate::here;
use crate::waiting::{LONGEST, SHORTEST};
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;
use upcall_os::interrupt::{self, Interruptible, Promise};
use upcall_os::safe_doorbell::SafeDoorbell;
use upcall_os::timer::Timer;
use upcall_sched::mask::Mask;
use upcall_sched::post::Post;
use upcall_sched::rung::{self, InterruptError, Rung};

/// Number of polls for the next request. If there was none the last time, only every [`TRIES`]th
/// end of the handler polls.
const LOOKS: u32 = 64;
const TRIES: u32 = 16;

/// Number of operations after which the computation gets its turn, of length [`TURN`].
const MOST: u32 = 256;
const TURN: Duration = SHORTEST;

thread_local! {
    /// Keeps interrupts off this kernel thread.
    static MASK: Mask = const { Mask::new(()) };
    /// What rings for this thread while it can be interrupted.
    static RINGS: RefCell<Option<ObjectRings>> = const { RefCell::new(None) };
}

struct ObjectRings {
    post: Arc<Post>,
    /// Interrupts the thread again for the requests that it has left.
    timer: Arc<Timer>,
    /// Number of times that it was set in a row without an operation run in between.
    pauses: Cell<u32>,
    /// Number of times in a row that no further request followed soon.
    alone: Cell<u32>,
}

/// Keeps interrupts off until this is dropped. Then the requests that have arrived are served.
#[must_use = "interrupts come in when this is dropped"]
pub(crate) struct KeptOff {
    counted: bool,
    /// Makes this stay on its thread.
    here: PhantomData<*const ()>,
}

/// Keeps interrupts off this thread, if there could be any.
#[inline]
pub(crate) fn keep_off() -> KeptOff {
    KeptOff { counted: MASK.with(Mask::begin_operation), here: PhantomData }
}

impl Drop for KeptOff {
    #[inline]
    fn drop(&mut self) {
        if self.counted {
            let_in();
        }
    }
}

#[cold]
fn let_in() {
    MASK.with(|mask| mask.end_operation(is_announced, serve));
}

/// Begins a section of the program that keeps interrupts off.
#[inline]
pub(crate) fn begin_section() {
    MASK.with(Mask::begin_section);
}

/// Ends a section.
#[inline]
pub(crate) fn end_section() {
    if MASK.with(Mask::end_section) {
        make_good();
    }
}

#[cold]
fn make_good() {
    MASK.with(Mask::make_good);
    drop(keep_off());
}

fn with_rings<R>(with: impl FnOnce(&ObjectRings) -> R) -> Option<R> {
    RINGS.with(|rings| rings.try_borrow().ok()?.as_ref().map(with))
}

fn is_announced() -> bool {
    with_rings(|rings| rings.post.is_announced()).unwrap_or(true)
}

/// The signal handler.
fn is_signalled() {
    MASK.with(|mask| mask.interrupt(serve));
}

/// Runs the operations that are fit for an interrupt, of all objects that this thread serves.
///
/// Then announces the thread, so that callers ring again, or sets the timer.
fn serve() {
    let ran = Cell::new(0);
    let is_tired = || ran.get() >= MOST;
    let take = || {
        loop {
            let mut now = 0;
            here::each(|one| now += one.serve_in_interrupt());
            ran.set(ran.get() + now);
            if now == 0 || is_tired() || !asks_again_soon() {
                return;
            }
        }
    };
    let announce = || {
        with_rings(|rings| {
            if is_tired() {
                rings.timer.set(TURN);
            } else {
                // The kernel was asked before whether it makes the fence.
                let _ = rings.post.announce_to_be_rung_for();
            }
        });
    };
    MASK.with(|mask| mask.serve(take, announce, || !is_tired() && has_more()));
}

fn has_more() -> bool {
    let mut more = false;
    here::each(|one| more |= one.has_more());
    more
}

/// Returns `true` if there is another request within a microsecond or two. Polls only if one is to
/// be expected.
fn asks_again_soon() -> bool {
    let soon = with_rings(|rings| {
        let alone = rings.alone.get();
        let expected = alone % TRIES == 0;
        let found = expected
            && (0..LOOKS).any(|_| {
                std::hint::spin_loop();
                has_more()
            });
        rings.alone.set(if found { 0 } else { alone.wrapping_add(1) });
        found
    });
    soon.unwrap_or(false)
}

/// A request was left although it is fit: interrupts the thread again, soon at first.
pub(crate) fn come_again() {
    with_rings(|rings| {
        let pauses = rings.pauses.get();
        rings.pauses.set(pauses + 1);
        rings.timer.set((SHORTEST * (1 << pauses.min(8))).min(LONGEST));
    });
}

/// An operation was run: makes the next pause of this thread the shortest.
pub(crate) fn has_run() {
    with_rings(|rings| rings.pauses.set(0));
}

/// Exists while callers ring for this thread.
struct ObjectInterrupts {
    #[expect(dead_code, reason = "held for their end")]
    rung: [Rung; 2],
}

impl ObjectInterrupts {
    fn begin(post: Arc<Post>, thread: &Arc<Interruptible>) -> Result<Self, InterruptError> {
        let timer = Timer::new()
            .map_err(|error| InterruptError::Resource { what: "a timer".into(), error })?;
        let (timer, own, other) = (Arc::new(timer), thread.clone(), thread.clone());
        let rung = [
            Rung::tells(post.clone(), move || own.interrupt())?,
            Rung::tells(timer.clone(), move || other.interrupt())?,
        ];
        RINGS.set(Some(ObjectRings { post, timer, pauses: Cell::new(0), alone: Cell::new(0) }));
        let on = Self { rung };
        MASK.with(Mask::begin);
        // Announces the thread, and runs the requests that are there.
        let_in();
        Ok(on)
    }
}

impl Drop for ObjectInterrupts {
    fn drop(&mut self) {
        MASK.with(Mask::end);
        if let Some(rings) = RINGS.take() {
            rings.post.retract();
        }
    }
}

/// Runs `body`, which the operations that are fit for it interrupt: see
/// [`Serving::interruptible`](crate::Serving::interruptible). The thread sleeps at `post`.
pub(crate) fn interruptible<R>(
    post: &Arc<Post>,
    promise: Promise,
    body: impl FnOnce() -> R,
) -> Result<R, InterruptError> {
    if MASK.with(Mask::is_on) {
        return Ok(body());
    }
    if upcall_thread::on_virtual_processor().is_some() {
        return Err(InterruptError::SafePoints);
    }
    rung::can_be()?;
    // The safe doorbell is made at the first use.
    SafeDoorbell::current().map_err(|error| InterruptError::Resource {
        what: "the kernel's help in waking others".into(),
        error,
    })?;
    let result = interrupt::interruptible(promise, &is_signalled, |thread| {
        let _on = ObjectInterrupts::begin(post.clone(), &thread)?;
        Ok(body())
    });
    result.map_err(InterruptError::Signal)?
}
