//! Waiting in turn for something that is handed over.
//!
//! This is what mutex, read-write lock and semaphore do around their protocols.

use crate::block::{Published, WaitEnd, Waited, wait};
use crate::current::Me;
use crate::deadline::Deadline;
use crate::list::WaitNode;
use crate::lock::{LockAttempt, RawLock};
use crate::record::Cause;
use crate::shares::Shares;
use crate::waiter::QueuedWait;
use std::ptr;
use std::time::Instant;

/// Something that is handed to its waiters in turn.
pub(crate) trait InTurn {
    const CAUSE: Cause;

    /// Takes it, or lists `node`.
    ///
    /// # Safety
    /// If `Queued` is returned, the node stays where it is until `give_up`, or until its thread has
    /// been woken. The wake brings what the node wants.
    unsafe fn enter(&self, node: &WaitNode<QueuedWait>) -> LockAttempt;

    /// Takes `node` off the list, since its thread's deadline has passed.
    fn give_up(&self, node: &WaitNode<QueuedWait>);
}

impl InTurn for RawLock<QueuedWait> {
    const CAUSE: Cause = Cause::Lock;

    unsafe fn enter(&self, node: &WaitNode<QueuedWait>) -> LockAttempt {
        // SAFETY: the caller's promise.
        unsafe { RawLock::enter(self, node) }
    }

    fn give_up(&self, node: &WaitNode<QueuedWait>) {
        RawLock::give_up(self, node);
    }
}

impl InTurn for Shares<QueuedWait> {
    const CAUSE: Cause = Cause::Shares;

    unsafe fn enter(&self, node: &WaitNode<QueuedWait>) -> LockAttempt {
        // SAFETY: the caller's promise.
        unsafe { Shares::enter(self, node) }
    }

    fn give_up(&self, node: &WaitNode<QueuedWait>) {
        Shares::give_up(self, node).wake_all(QueuedWait::wake);
    }
}

/// Blocks until `thing` is handed to the caller, or until `deadline`.
///
/// Of something that can be divided, the caller gets the amount that it `wants`. `Woken` means that
/// the caller has it.
#[cold]
pub(crate) fn wait_for<T: InTurn>(thing: &T, wants: usize, deadline: Option<Instant>) -> Waited {
    let me = Me::find();
    let bound = Deadline::of(me, deadline);
    let mut node = None;
    let ended = wait(me, T::CAUSE, ptr::from_ref(thing).cast(), bound.at, |mine| {
        // SAFETY: the node is in this frame, which stays until the wake or until `give_up`.
        match unsafe { thing.enter(node.insert(WaitNode::new(mine, wants))) } {
            LockAttempt::Acquired => Published::No,
            LockAttempt::Queued => Published::Yes,
        }
    });
    if ended != WaitEnd::TimedOut {
        return Waited::Woken;
    }
    if let Some(node) = &node {
        thing.give_up(node);
    }
    bound.passed();
    Waited::TimedOut
}

/// Takes shares, waiting for as long as it takes.
#[inline(always)]
pub(crate) fn take(shares: &Shares<QueuedWait>, wants: usize) {
    if !shares.try_take(wants) {
        wait_for(shares, wants, None);
    }
}

/// Takes shares, waiting until `deadline` at most. Returns `true` if it got them.
#[inline]
pub(crate) fn take_by(
    shares: &Shares<QueuedWait>,
    wants: usize,
    deadline: impl FnOnce() -> Option<Instant>,
) -> bool {
    shares.try_take(wants) || wait_for(shares, wants, deadline()) == Waited::Woken
}

/// Gives shares back.
#[inline(always)]
pub(crate) fn give(shares: &Shares<QueuedWait>, count: usize) {
    if let Some(served) = shares.give(count) {
        served.wake_all(QueuedWait::wake);
    }
}
