//! The lanes of a channel that kernel threads take: one for each that calls at the same time.
//!
//! A thread takes the lowest lane that is free, which keeps the memory that they use small. Threads
//! that find all lanes taken wait in a queue, in the order in which they came.

use crate::calls::kernel_lane::{KernelCaller, KernelLane, TakenLane};
use crate::calls::server::{CalledServer, LaneOpening};
use crate::pacing::Pacing;
use crate::wait::{NoReply, WaitMode, run_late};
use crate::wait_limit::WaitLimit;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use upcall_os::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use upcall_os::lock::{KernelCondvar, KernelMutex};
use upcall_shm::channel::Lane;
use upcall_shm::slot::SlotMessage;

/// Number of lanes for kernel threads; they come before those of virtual processors. Further
/// threads wait for each other.
pub const KERNEL_LANES: usize = 32;

/// Maximum time of one attempt to open a lane, before other threads get a turn.
const SOON: Duration = Duration::from_millis(2);

/// Time between two checks by a thread in the queue.
const QUEUE_LOOKS: Duration = Duration::from_millis(1);

/// The lanes for kernel threads; see the module.
pub(crate) struct KernelLanes {
    server: Arc<CalledServer>,
    pacing: AtomicU8,
    lanes: [OnceLock<Box<KernelLane>>; KERNEL_LANES],
    /// Held by the thread that opens a lane.
    opening: KernelMutex<()>,
    queue: LaneQueue,
}

/// Kernel threads that found all lanes taken, in the order in which they came.
///
/// A thread that gives a lane back reads the count without a fence, so it may miss a thread that is
/// just entering the queue. A thread in the queue therefore checks by itself every [`QUEUE_LOOKS`].
/// A fence would cost all calls together more than the few that have to wait lose by that.
#[derive(Default)]
struct LaneQueue {
    waiting: AtomicUsize,
    tickets: KernelMutex<VecDeque<u64>>,
    freed: KernelCondvar,
}

/// A lane, and the right to call on it.
type FreeLane<'a> = Result<(usize, &'a KernelLane, TakenLane<'a>), NoReply>;

impl KernelLanes {
    pub(crate) fn new(server: Arc<CalledServer>) -> Self {
        Self {
            server,
            pacing: AtomicU8::new(0),
            lanes: [const { OnceLock::new() }; KERNEL_LANES],
            opening: KernelMutex::default(),
            queue: LaneQueue::default(),
        }
    }

    /// Sets how threads that call spend the wait.
    pub(crate) fn set_pacing(&self, pacing: Pacing) {
        self.pacing.store(pacing as u8, Ordering::Relaxed);
        self.opened().for_each(|lane| lane.keeps_its_cpu());
    }

    fn pacing(&self) -> Pacing {
        match self.pacing.load(Ordering::Relaxed) {
            0 => Pacing::Adaptive,
            1 => Pacing::Poll,
            _ => Pacing::Sleep,
        }
    }

    fn opened(&self) -> impl Iterator<Item = &KernelLane> {
        self.lanes.iter().filter_map(|lane| Some(&**lane.get()?))
    }

    /// Wakes the threads that sleep, after the channel was closed.
    pub(crate) fn wake_closed(&self) {
        self.opened().for_each(|lane| lane.wake_closed());
    }

    /// Calls on a lane of the thread's own. `lane_of` returns the memory of a lane.
    #[inline]
    pub(crate) fn call(
        &self,
        message: &mut SlotMessage,
        wait: impl WaitMode,
        lane_of: impl Fn(usize) -> Lane,
    ) -> Result<(), NoReply> {
        // A thread that goes to the queue holds no lane: the threads before it may need that one.
        let free = if self.queue.waiting.load(Ordering::Relaxed) == 0 {
            self.free_lane(wait.until(), &lane_of)
        } else {
            None
        };
        let (number, lane, taken) = match free {
            Some(free) => free?,
            None => self.lane_in_turn(wait.until(), &lane_of)?,
        };
        let caller = KernelCaller {
            server: &self.server,
            pacing: self.pacing(),
            abandon: || self.leave(number),
        };
        let outcome = caller.call(lane, taken, message, wait);
        if self.queue.waiting.load(Ordering::Relaxed) != 0 {
            self.queue.freed.notify_all();
        }
        outcome
    }

    /// Leaves a lane to a thread that waits for the reply in the caller's place. If none can be
    /// started, the next thread that looks for a lane finds the reply.
    #[cold]
    fn leave(&self, number: usize) {
        if let Some(channel) = self.server.channel() {
            run_late(move || channel.await_late(number));
        }
    }

    /// Waits for the reply of an abandoned call on the lane `number`, and hands it on.
    pub(crate) fn await_late(&self, number: usize) {
        let Some(lane) = self.lanes[number].get() else { return };
        let taken = lane.await_late(&self.server);
        self.queue.freed.notify_all();
        if let Some((late, Some(reply))) = taken {
            late(reply);
        }
    }

    /// Takes the lowest free lane, and opens it if needed. `None` if all are taken, or another
    /// thread is opening one.
    #[inline(always)]
    fn free_lane(
        &self,
        until: WaitLimit<'_>,
        lane_of: &impl Fn(usize) -> Lane,
    ) -> Option<FreeLane<'_>> {
        for (number, cell) in self.lanes.iter().enumerate() {
            let lane = match cell.get() {
                Some(lane) => lane,
                None => match self.open(number, until, lane_of)? {
                    Ok(lane) => lane,
                    Err(reason) => return Some(Err(reason)),
                },
            };
            if let Some(taken) = lane.take(&self.server) {
                return Some(Ok((number, lane, taken)));
            }
        }
        None
    }

    /// Opens a lane. `None` if another thread is opening one, or the server does not listen at the
    /// moment. Waits for neither, because the caller may hold the queue.
    #[cold]
    fn open(
        &self,
        number: usize,
        until: WaitLimit<'_>,
        lane_of: &impl Fn(usize) -> Lane,
    ) -> Option<Result<&KernelLane, NoReply>> {
        let _opening = self.opening.try_lock()?;
        let cell = &self.lanes[number];
        if let Some(lane) = cell.get() {
            return Some(Ok(lane));
        }
        match self.server.open_lane(number, None, until, SOON) {
            Ok(LaneOpening::Opened) => {}
            Ok(LaneOpening::NotNow) => return None,
            Err(reason) => {
                if let NoReply::Closed(reason) = &reason {
                    self.server.close(reason.clone());
                }
                return Some(Err(reason));
            }
        }
        Some(Ok(cell.get_or_init(|| Box::new(KernelLane::new(lane_of(number))))))
    }

    /// Waits for a lane behind the threads that wait already.
    #[cold]
    fn lane_in_turn(&self, until: WaitLimit<'_>, lane_of: &impl Fn(usize) -> Lane) -> FreeLane<'_> {
        static TICKET: AtomicU64 = AtomicU64::new(0);
        let queue = &self.queue;
        let mut tickets = queue.tickets.lock();
        let own = TICKET.fetch_add(1, Ordering::Relaxed);
        tickets.push_back(own);
        queue.waiting.fetch_add(1, Ordering::SeqCst);
        let taken = loop {
            if let Err(reason) = self.server.check() {
                break Err(reason.into());
            }
            if tickets.front() == Some(&own)
                && let Some(taken) = self.free_lane(until, lane_of)
            {
                break taken;
            }
            if until.has_come() {
                break Err(NoReply::OutOfTime { sent: false });
            }
            tickets = queue.freed.wait_timeout(tickets, QUEUE_LOOKS).0;
        };
        tickets.retain(|&ticket| ticket != own);
        queue.waiting.fetch_sub(1, Ordering::SeqCst);
        drop(tickets);
        queue.freed.notify_all();
        taken
    }
}
