//! A virtual processor's lane of a channel: its threads send and block, and its idle loop takes the
//! replies of all of them.
//!
//! Source: URPC, section 2 (U6 and U7 here).

use crate::calls::server::CalledServer;
use crate::calls::table::{CallTable, ReplyEffect};
use crate::domain::Domain;
use crate::handoff::{HandOff, Whereabouts};
use crate::wait::{Closed, LateReply, NoReply, WaitMode, block_unless, run_late};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use upcall_os::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use upcall_os::doorbell::Doorbell;
use upcall_os::fault::{Point, point};
use upcall_os::lock::KernelMutex;
use upcall_os::processor;
use upcall_os::safe_doorbell::SafeDoorbell;
use upcall_shm::channel::{Lane, LaneControl};
use upcall_shm::region::RegionView;
use upcall_shm::ring::{RingReceiver, RingSender};
use upcall_shm::slot::{Slot, SlotMessage};
use upcall_thread::Waited;

/// Maximum time between two probes for the replies of abandoned calls.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Maximum number of calls under way at which the line of the next reply is prefetched. With more
/// calls, replies come together, and the line of the reply after the next is prefetched.
const FEW: usize = 3;

/// A virtual processor's lane of a channel, and the calls of its threads that are under way on it.
/// It has cache lines of its own, like a server's lane.
#[repr(align(128))]
pub(crate) struct VpLane {
    vp: usize,
    server: Arc<CalledServer>,
    /// The doorbell that the server notifies; in the processor's wake set.
    doorbell: Doorbell,
    /// Notifies the server's doorbell. If a hostile server made a plain write to it block, all
    /// threads of this processor would wait.
    safe_doorbell: &'static SafeDoorbell,
    control: RegionView<LaneControl>,
    under_way: AtomicUsize,
    /// Set if requests were sent and no check with a fence has been made since whether the server
    /// sleeps.
    owes_look: AtomicBool,
    /// Set if this CPU was given to the server with a call, and the idle loop does not know that
    /// yet.
    gave: AtomicBool,
    calling: KernelMutex<VpCalling>,
}

struct VpCalling {
    requests: RingSender<RegionView<[Slot]>>,
    replies: RingReceiver<RegionView<[Slot]>>,
    table: CallTable,
    /// Number of calls not yet handed in to the server's [`Attention`](crate::steer::Attention).
    uncounted: u32,
}

impl fmt::Debug for VpLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VpLane")
            .field("vp", &self.vp)
            .field("under_way", &self.under_way)
            .finish_non_exhaustive()
    }
}

impl Drop for VpLane {
    fn drop(&mut self) {
        // The server may keep its copy of the doorbell, and notify it. That must wake no thread.
        if let Ok(wake_set) = Domain::current().and_then(|domain| domain.wake_set(self.vp)) {
            wake_set.set.remove(&self.doorbell);
        }
    }
}

impl VpLane {
    pub(crate) fn new(
        vp: usize,
        server: Arc<CalledServer>,
        (doorbell, safe_doorbell): (Doorbell, &'static SafeDoorbell),
        lane: Lane,
    ) -> Self {
        let calling = VpCalling {
            requests: RingSender::new(lane.requests),
            replies: RingReceiver::new(lane.replies),
            table: CallTable::new(),
            uncounted: 0,
        };
        Self {
            vp,
            server,
            doorbell,
            safe_doorbell,
            control: lane.control,
            under_way: AtomicUsize::new(0),
            owes_look: AtomicBool::new(false),
            gave: AtomicBool::new(false),
            calling: KernelMutex::new(calling),
        }
    }

    /// Returns `true` if this is a lane to `server`.
    pub(super) fn is_to(&self, server: &Arc<CalledServer>) -> bool {
        Arc::ptr_eq(&self.server, server)
    }

    pub(crate) fn vp(&self) -> usize {
        self.vp
    }

    /// Sends a request and blocks the thread until the reply is there, which replaces it in
    /// `message`. `wants_it_to_stay` returns `true` if the processor wants the server to stay awake
    /// on its CPU.
    pub(crate) fn call(
        &self,
        message: &mut SlotMessage,
        mut wait: impl WaitMode,
        wants_it_to_stay: impl Fn() -> bool,
    ) -> Result<(), NoReply> {
        let mut promised = false;
        loop {
            self.server.check()?;
            let mut sent = None;
            let waited = block_unless(wait.until(), |sleeper| {
                let mut calling = self.calling.lock();
                if let Some(number) = calling.table.begin(sleeper, promised) {
                    sent = Some(number);
                    message.set_call(number);
                    self.send(&mut calling, message, &wants_it_to_stay);
                    drop(calling);
                    point(Point::ClientSent);
                    if wait.hand_off() == HandOff::AtOnce {
                        self.hand_off();
                    }
                }
                None
            });
            if let Some(number) = sent {
                let mut calling = self.calling.lock();
                let outcome = calling.table.finish(number, message, || wait.late());
                self.count(&calling);
                return outcome;
            }
            if waited == Waited::TimedOut {
                self.calling.lock().table.leave_queue();
                return Err(NoReply::OutOfTime { sent: false });
            }
            promised = true;
        }
    }

    #[inline]
    fn send(
        &self,
        calling: &mut VpCalling,
        message: &mut SlotMessage,
        wants_it_to_stay: impl FnOnce() -> bool,
    ) {
        // A server on this CPU gets it as soon as this processor has nothing else to do.
        let donates = self.server.has_brought();
        self.server.hint(message, donates, wants_it_to_stay, &mut calling.uncounted);
        calling.requests.send(message);
        if calling.table.under_way() <= FEW {
            // The next step is a probe for the reply, or another call's thread. The line of a reply
            // that is there travels during that time, beside the line of the request.
            calling.replies.prefetch(0);
        }
        self.count(calling);
        self.owes_look.store(true, Ordering::Relaxed);
    }

    #[inline]
    fn count(&self, calling: &VpCalling) {
        self.under_way.store(calling.table.under_way(), Ordering::Relaxed);
    }

    /// Takes the replies that are there and makes their threads ready. Returns `true` if there were
    /// any. Called by the idle loop of the lane's own virtual processor.
    pub(crate) fn collect(&self) -> bool {
        if self.under_way.load(Ordering::Relaxed) == 0 && !self.server.is_closed() {
            return false;
        }
        let (woke, late) = self.gather();
        if !late.is_empty() {
            // Not on a thread of the scheduler, which may end before that thread has run: then the
            // result would stay in the server, and what the call held would be lost.
            run_late(move || late.into_iter().for_each(|(late, reply)| late(reply)));
        }
        woke
    }

    /// Waits for the replies of abandoned calls in place of a scheduler that has ended.
    pub(crate) fn await_late(self: &Arc<Self>) {
        if !self.has_late() {
            return;
        }
        let lane = self.clone();
        // If no thread can be started, they stay until the next scheduler that gets this number, or
        // the channel's end.
        run_late(move || {
            let mut pause = Duration::from_millis(1);
            while lane.has_late() {
                std::thread::sleep(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
                for (late, reply) in lane.gather().1 {
                    late(reply);
                }
            }
        });
    }

    /// Abandons all calls, because the virtual processor's threads never run again. Their numbers
    /// are free when their replies are there, and no thread waits for a number.
    pub(crate) fn leave(&self) {
        let mut calling = self.calling.lock();
        let left = calling.table.leave();
        self.count(&calling);
        drop(calling);
        // To drop a sleeper is to wake its thread, which has no effect now.
        drop(left);
    }

    fn has_late(&self) -> bool {
        self.calling.lock().table.has_late()
    }

    /// Forgets the calls that wait for late replies, after the channel was closed.
    pub(crate) fn forget_late(&self) {
        let forgotten = self.calling.lock().table.forget_late();
        drop(forgotten);
    }

    /// Takes the replies that are there. Returns whether a thread was made ready, and the replies
    /// of abandoned calls with their consumers.
    ///
    /// It takes all of them, but does not probe for the last one under way. A probe for a reply
    /// that is just being written takes its line from the server, which needs it back to finish;
    /// the threads that have their replies would wait for both. That reply is found when they have
    /// run.
    fn gather(&self) -> (bool, Vec<(LateReply, SlotMessage)>) {
        let (mut woke, mut violated, mut late) = (false, false, Vec::new());
        // Read first: of a channel that is closed all replies are taken.
        let mut closed = self.server.closed();
        let mut calling = self.calling.lock();
        let (mut reply, mut left) = (SlotMessage::new(0, 0, 0), calling.table.under_way());
        while calling.replies.take_into(&mut reply) {
            match calling.table.arrives(&reply) {
                ReplyEffect::Woke => woke = true,
                ReplyEffect::Late { taker, woke: another } => {
                    self.count(&calling);
                    woke |= another;
                    late.push((taker, reply));
                }
                ReplyEffect::Violation => {
                    self.server.closes(Closed::Violation("a reply to a call that was not made"));
                    closed = self.server.closed();
                    violated = true;
                    break;
                }
            }
            left = left.saturating_sub(1);
            if left >= FEW {
                calling.replies.prefetch(1);
            } else if left == 1 && closed.is_none() {
                break;
            }
        }
        if let Some(reason) = closed {
            woke |= calling.table.fail(&reason);
            drop(calling);
            // This lane's callers know the reason. Callers on other lanes may sleep, and no caller
            // on this lane may be left to return the error.
            if violated {
                self.server.close(reason);
            }
            // A call may have been abandoned after the channel was closed.
            self.forget_late();
        }
        (woke, late)
    }

    /// Number of probes of the server's lanes, as the server publishes it.
    pub(crate) fn probes(&self) -> u32 {
        self.server.probes()
    }

    pub(crate) fn is_server_asleep(&self) -> bool {
        self.server.is_asleep()
    }

    pub(crate) fn report_stall(&self) {
        self.server.report_stall();
    }

    /// Returns `true` if calls are under way.
    pub(crate) fn is_calling(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) != 0
    }

    /// The CPU that the server runs on, as it reports.
    pub(crate) fn servers_place(&self) -> Option<u32> {
        self.server.cpu()
    }

    /// Returns `true` if `collect` would find something: the sleeper's second probe.
    pub(crate) fn waits(&self) -> bool {
        if self.server.is_closed() {
            return self.calling.lock().table.has_waiting();
        }
        self.under_way.load(Ordering::Relaxed) != 0 && self.calling.lock().replies.waits()
    }

    /// Gives this CPU to the server at once, if the server sleeps or is on it. Ready threads of
    /// this processor go on when the server has answered, or when the kernel schedules the
    /// processor again.
    #[cold]
    fn hand_off(&self) {
        fence(upcall_os::atomic::Ordering::SeqCst);
        if self.look(false) {
            processor::give_way();
            // The idle loop learns by its next check that this CPU was given away.
            self.gave.store(true, Ordering::Relaxed);
            self.owes_look.store(true, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn owes_look(&self) -> bool {
        self.owes_look.load(Ordering::Relaxed)
    }

    /// Makes the check of the server that is owed, after a fence: wakes the server on this CPU if
    /// it sleeps. Returns `true` if this CPU was given to the server.
    ///
    /// The processor has nothing else to do, so its CPU is free to be given, unless it polls for
    /// ever (`kept`).
    pub(crate) fn look(&self, kept: bool) -> bool {
        if !self.owes_look.swap(false, Ordering::Relaxed) {
            return false;
        }
        let gave = self.gave.load(Ordering::Relaxed) && self.gave.swap(false, Ordering::Relaxed);
        if !self.server.is_asleep() {
            // The server is awake. If it is on this CPU, it only has to be let run.
            return gave || !kept && self.server.has_brought();
        }
        let brought = !kept && self.server.bring(&self.control) == Whereabouts::Here;
        self.safe_doorbell.notify(&self.server.doorbell);
        gave || brought
    }
}
