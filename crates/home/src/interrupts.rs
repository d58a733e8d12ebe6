//! Urgent invocations by signal: operations that run in the middle of what their home computes, for
//! code that has no safe points.
//!
//! Source: Psyche, sections 2.1 and 3.1 (P1, P2 here), where an urgent invocation interrupts the
//! home's processor. Here a thread says for how long it can be interrupted
//! ([`Serving::interruptible`](crate::Serving::interruptible)). Callers ring for it then, though it
//! does not sleep. The clerk gets the ring in its place, and sends a signal ([`rung`]). The handler
//! of the signal runs what waits, of the operations that are fit for it
//! ([`Operations::on_interrupt`](crate::Operations::on_interrupt)). All else waits for a poll.
//!
//! # Why the thread and the handler of its signal do not touch the same things
//! A mask of the thread's ([`Mask`]) counts whatever touches what the handler would touch: each
//! turn of serving, the end and the beginning of that, each waiting for others, and each operation
//! under an object's lock, whichever hold of the thread's that is by (Psyche's rule: a lock that
//! urgent operations take, too, is held masked). A section of the program's
//! ([`Serving::mask`](crate::Serving::mask)) keeps the handler off in the same way. So the handler
//! never finds a lock that its own thread has, nor a list that its own thread is changing.
//!
//! # Why no request is left
//! That each request is followed by a signal, and each signal by a serving that begins after it, is
//! argued in [`mask`](upcall_sched::mask): who ends an operation lets go of the lock first, lets
//! interrupts in then, and looks last whether one has come. It remains what a serving leaves though
//! it is fit: where another thread or process has the lock for longer than some microseconds, or
//! the object's state has to be settled. Nobody rings when that is over. So a timer is set, which
//! the clerk hears as it hears doorbells, in pauses that grow up to 4 ms; the end of any operation
//! looks again, too. While the handler tries for the lock the others stand back, and who has it is
//! not interrupted by this, so the home waits for one operation at a time (P5).
//!
//! # Who asks again soon
//! Another signal would cost more than to wait for that (some 19 µs there and back). So the handler
//! looks for the next request for a microsecond or two before it ends, as long as there is one as a
//! rule. After so many in a row what the thread computes has its turn: then it is not announced,
//! and the timer has it come again.
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

/// So often it looks for the next one; and if there was none the last time, only every so often.
const LOOKS: u32 = 64;
const TRIES: u32 = 16;

/// After so many the thread has its turn, for so long.
const MOST: u32 = 256;
const TURN: Duration = SHORTEST;

thread_local! {
    /// What keeps interrupts off this kernel thread.
    static MASK: Mask = const { Mask::new(()) };
    /// How it is rung for, while it is.
    static RINGS: RefCell<Option<ObjectRings>> = const { RefCell::new(None) };
}

struct ObjectRings {
    post: Arc<Post>,
    /// Has the thread come again for what it has left.
    timer: Arc<Timer>,
    /// So often it has been set in vain.
    pauses: Cell<u32>,
    /// So often nobody has asked again soon.
    alone: Cell<u32>,
}

/// No interrupt comes in until this is dropped; then what has come is served.
#[must_use = "interrupts come in when this is dropped"]
pub(crate) struct KeptOff {
    counted: bool,
    /// Of this thread.
    here: PhantomData<*const ()>,
}

/// Keeps interrupts off this thread, if any could come.
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

/// Begins a section of the program's in which no interrupt comes in.
#[inline]
pub(crate) fn begin_section() {
    MASK.with(Mask::begin_section);
}

/// Ends one.
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

/// In the handler of the signal.
fn is_signalled() {
    MASK.with(|mask| mask.interrupt(serve));
}

/// Runs what is fit for it, of all that this thread serves, and has others ring anew, or the timer.
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
                // The kernel has been asked before whether it makes the fence.
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

/// Whether there is another one within a microsecond or two, if that is to be expected.
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

/// Something was left though it is fit: the thread is interrupted again, soon at first.
pub(crate) fn come_again() {
    with_rings(|rings| {
        let pauses = rings.pauses.get();
        rings.pauses.set(pauses + 1);
        rings.timer.set((SHORTEST * (1 << pauses.min(8))).min(LONGEST));
    });
}

/// Makes the next pause of this thread the shortest: an operation was run.
pub(crate) fn has_run() {
    with_rings(|rings| rings.pauses.set(0));
}

/// While a thread is rung for.
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
        // Announces, and runs what is there.
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

/// Runs `body`, and has the operations that are fit for it interrupt it: see
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
    // Made at the first use.
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
