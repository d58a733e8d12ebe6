//! Threads of a home that run procedures, which may block.
//!
//! Source: Psyche, section 3.2, where an ordinary invocation becomes a process at the home. A
//! kernel thread that serves objects takes the requests and hands procedures to its crew, so no
//! urgent operation waits for a procedure. A virtual processor needs no crew: a procedure that
//! blocks there is a user-level thread.
//!
//! The serving thread starts a member when a procedure arrives and no member is free. A member ends
//! after some idle seconds, or with the service.
//!
//! # Why no request is lost
//! The serving thread skips a lane while one of its procedures is under way. The member clears that
//! mark before it replies. The caller sends its next request after the reply, and then rings. So at
//! each ring the lane is not skipped.

use crate::homed::Homed;
use crate::lane::{LaneDirection, MessageBuffer};
use crate::operation::RunProcedure;
use crate::service_queue::ServedLane;
use crate::types::Shared;
use crate::wire::InvokeFailure;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use upcall_os::atomic::Ordering;
use upcall_os::fault::{Point, point};
use upcall_os::lock::{KernelCondvar, KernelMutex};
use upcall_shm::slot::SlotMessage;

/// Maximum number of procedures that run at a time. Others wait for one of them to end.
const MOST: usize = 64;

/// Time after which an idle member ends.
const KEPT: Duration = Duration::from_secs(5);

/// A procedure to run.
pub(super) struct ProcedureOrder<T> {
    pub(super) served: Arc<ServedLane>,
    pub(super) image: SlotMessage,
    pub(super) run: RunProcedure<T>,
}

struct Board<T> {
    state: KernelMutex<CrewState<T>>,
    changed: KernelCondvar,
}

struct CrewState<T> {
    orders: VecDeque<ProcedureOrder<T>>,
    /// Number of members, and of those that wait for an order.
    members: usize,
    free: usize,
    over: bool,
}

/// The members and their orders; see the module. Used by the serving thread.
pub(super) struct Crew<T> {
    board: Arc<Board<T>>,
    threads: RefCell<Vec<JoinHandle<()>>>,
}

impl<T: Shared> Default for Crew<T> {
    fn default() -> Self {
        let state = CrewState { orders: VecDeque::new(), members: 0, free: 0, over: false };
        Self {
            board: Arc::new(Board {
                state: KernelMutex::new(state),
                changed: KernelCondvar::new(),
            }),
            threads: RefCell::default(),
        }
    }
}

impl<T: Shared> Crew<T> {
    /// Passes a procedure to a member, which has a handle of its own, and does not wait for it. If
    /// there is no member and none can be started, the caller gets an error.
    pub(super) fn run(&self, on: &Homed<T>, order: ProcedureOrder<T>) {
        order.served.is_ordered.store(true, Ordering::Relaxed);
        let grows = {
            let mut state = self.board.state.lock();
            state.orders.push_back(order);
            let grows = state.free < state.orders.len() && state.members < MOST;
            state.members += usize::from(grows);
            grows
        };
        self.board.changed.notify_one();
        if !grows || self.grow(on) {
            return;
        }
        let mut state = self.board.state.lock();
        state.members -= 1;
        if state.members == 0 {
            let why =
                InvokeFailure::NotRun("no thread or no place is left at home to run it".into());
            std::mem::take(&mut state.orders)
                .into_iter()
                .for_each(|order| order.ends(Err(why.clone())));
        }
    }

    /// Starts a member. Returns `false` if no thread or no place is left.
    fn grow(&self, on: &Homed<T>) -> bool {
        let Ok(on) = on.try_clone() else { return false };
        let board = self.board.clone();
        let begun = std::thread::Builder::new()
            .name("upcall-ordinary".into())
            .spawn(move || board.work(&on));
        let mut threads = self.threads.borrow_mut();
        threads.retain(|thread| !thread.is_finished());
        begun.map(|thread| threads.push(thread)).is_ok()
    }

    /// Starts no more procedures, and waits for those that are under way.
    pub(super) fn end(&self) {
        self.board.state.lock().over = true;
        self.board.changed.notify_all();
        let threads = std::mem::take(&mut *self.threads.borrow_mut());
        // A panic does not wait for procedures.
        if !std::thread::panicking() {
            threads.into_iter().for_each(|thread| drop(thread.join()));
        }
    }
}

impl<T: Shared> Board<T> {
    fn work(&self, on: &Homed<T>) {
        let mut long = Vec::new();
        while let Some(order) = self.next() {
            let done = catch_unwind(AssertUnwindSafe(|| {
                let mut copy = MessageBuffer::with(std::mem::take(&mut long));
                let args =
                    order.served.end.lane.bytes(&order.image, LaneDirection::There, &mut copy);
                let args = args
                    .ok_or_else(|| InvokeFailure::NotRun("its arguments are not valid".into()))?;
                let reply = (order.run)(on, args, &order.served.end.lane);
                long = copy.long();
                point(Point::InvocationRan);
                reply
            }));
            order.ends(done.unwrap_or(Err(InvokeFailure::Panicked)));
        }
    }

    /// Waits for the next order. Returns `None` if this member is not needed any more.
    fn next(&self) -> Option<ProcedureOrder<T>> {
        let mut state = self.state.lock();
        loop {
            if state.over {
                return None;
            }
            if let Some(order) = state.orders.pop_front() {
                return Some(order);
            }
            state.free += 1;
            let (back, waited) = self.changed.wait_timeout(state, KEPT);
            state = back;
            state.free -= 1;
            if waited.timed_out() && state.orders.is_empty() {
                state.members -= 1;
                return None;
            }
        }
    }
}

impl<T> ProcedureOrder<T> {
    fn ends(&self, done: Result<SlotMessage, InvokeFailure>) {
        let reply = done.unwrap_or_else(|failure| self.served.end.lane.failed(&failure));
        // Cleared before the reply is sent: see the module.
        self.served.is_ordered.store(false, Ordering::Release);
        self.served.answer(&reply);
    }
}
