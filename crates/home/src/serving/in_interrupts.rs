//! Operations that a serving thread runs in its signal handler: see [`interrupts`].

use super::{Serving, ServingState};
use crate::error::POISONED;
use crate::handle::NotNow;
use crate::interrupts;
use crate::lane::{LaneDirection, MessageBuffer};
use crate::operation::RunInInterrupt;
use crate::service_queue::ServedLane;
use crate::types::Shared;
use crate::wire::InvokeFailure;
use std::borrow::Cow;
use upcall_os::atomic::Ordering::Relaxed;
use upcall_os::fault::{Point, point};
use upcall_os::interrupt::Promise;
use upcall_sched::rung::InterruptError;
use upcall_shm::slot::{NO_ASTACK, SlotMessage};

/// Maximum size of the arguments of an operation that runs in an interrupt, in bytes.
const ROOM: usize = 4096;

impl<T: Shared> Serving<T> {
    /// Runs `body`, which urgent operations may interrupt.
    ///
    /// The operations that were registered for that
    /// ([`Operations::on_interrupt`](crate::Operations::on_interrupt)) run on this thread at once,
    /// in a signal (SIGURG), for all objects that this thread serves. All other operations wait for
    /// a poll.
    ///
    /// Four things keep interrupts off until they end: an operation of `body` on an object, by any
    /// handle; an invocation that `body` waits for; a poll; and a section that it
    /// [masks](Self::mask). The operations that arrived in the meantime run at that end. If another
    /// process holds the object's lock for long, `body` goes on and is interrupted again after 0.05
    /// to 4 ms. Callers that invoke again and again may take most of the thread's time, except for
    /// 0.05 ms after each 256 operations.
    ///
    /// This is for an ordinary kernel thread: on a virtual processor operations run at safe points.
    /// The promise must hold for the operations that are registered so, of all objects that the
    /// thread serves. System calls of `body` are restarted where the kernel can do so, and end with
    /// `EINTR` where not (`signal(7)`): sleeps, for example.
    ///
    /// If the process ends in the middle of such an operation, its caller gets an error, as for any
    /// invocation.
    ///
    /// # Errors
    /// See [`InterruptError`]; `body` has not run.
    ///
    /// # Panics
    /// Panics if `body` does. An operation that panics in an interrupt ends the process.
    pub fn interruptible<R>(
        &self,
        promise: Promise,
        body: impl FnOnce() -> R,
    ) -> Result<R, InterruptError> {
        interrupts::interruptible(&self.inner.desk.post, promise, body)
    }
}

/// Memory for the arguments of an operation while it runs.
pub(super) struct Rooms(MessageBuffer);

impl Default for Rooms {
    fn default() -> Self {
        Self(MessageBuffer::with(Vec::with_capacity(ROOM)))
    }
}

impl<T: Shared> ServingState<T> {
    /// The request that waits in a lane, and how to run it, if it is fit for an interrupt.
    fn fit(&self, served: &ServedLane) -> Option<(SlotMessage, RunInInterrupt)> {
        let mut image = SlotMessage::new(0, 0, NO_ASTACK);
        if !served.server.peek(&mut image) || image.len() > ROOM {
            return None;
        }
        Some((image, self.operations.get(usize::from(image.tag()))?.in_interrupt?))
    }

    /// Passes all lanes to `with`, including those that the thread has not taken yet.
    fn each_lane(&self, mut with: impl FnMut(&ServedLane)) {
        if let Ok(lanes) = self.lanes.try_borrow() {
            lanes.iter().for_each(|served| with(served));
        }
        self.desk.look_at_lanes(with);
    }

    /// Runs the operations that are fit for an interrupt. Returns their number.
    pub(super) fn serve_lanes_in_interrupt(&self) -> u32 {
        let mut ran = 0;
        self.each_lane(|served| {
            let done = self.fit(served).map(|(image, run)| self.run_at_once(served, &image, run));
            served.left.store(done == Some(false), Relaxed);
            ran += u32::from(done == Some(true));
        });
        ran
    }

    /// Returns `true` if a request is fit for an interrupt and was not left before.
    pub(super) fn has_more_for_interrupts(&self) -> bool {
        let mut more = false;
        self.each_lane(|served| more |= !served.left.load(Relaxed) && self.fit(served).is_some());
        more
    }

    /// Runs an operation if the lock is free soon. Returns `false` if the request was left.
    fn run_at_once(&self, served: &ServedLane, image: &SlotMessage, run: RunInInterrupt) -> bool {
        let Ok(mut rooms) = self.rooms.try_borrow_mut() else { return false };
        let lane = &served.end.lane;
        // A poll reports malformed arguments.
        let Some(args) = lane.bytes(image, LaneDirection::There, &mut rooms.0) else {
            return false;
        };
        let ran = self.on.handle().access_at_once(run.does(), |room| {
            served.server.take_peeked();
            point(Point::InvocationTaken);
            run.run(room, args, lane)
        });
        let outcome = match ran {
            Ok(outcome) => outcome,
            Err(NotNow::Held) => {
                interrupts::come_again();
                return false;
            }
            Err(NotNow::Poisoned) => {
                served.server.take_peeked();
                Err(InvokeFailure::NotRun(Cow::Borrowed(POISONED)))
            }
        };
        let reply = outcome.unwrap_or_else(|failure| lane.failed(&failure));
        point(Point::InvocationRan);
        served.answer_in_interrupt(&reply);
        interrupts::has_run();
        true
    }
}
