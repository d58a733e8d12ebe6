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

/// Maximum time between two looks for the replies of abandoned calls.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// With no more calls under way the next reply's line is asked for early; with more, replies come
/// together, and that of the one after the next is.
const FEW: usize = 3;

/// A virtual processor's lane of a channel, and the calls of its threads that are under way on it.
/// By itself in its lines, like a server's lane.
#[repr(align(128))]
pub(crate) struct VpLane {
    vp: usize,
    server: Arc<CalledServer>,
    /// Rung by the server; in the set of our processor's wake set.
    doorbell: Doorbell,
    /// Rings the server's doorbell: all threads of our processor would wait with us if a hostile
    /// server made a write to it block.
    safe_doorbell: &'static SafeDoorbell,
    control: RegionView<LaneControl>,
    under_way: AtomicUsize,
    /// Requests were sent and it was not yet looked, with a fence, whether the server sleeps.
    owes_look: AtomicBool,
    /// Our processor was given to the server with a call, and the idle loop does not know.
    gave: AtomicBool,
    calling: KernelMutex<VpCalling>,
}

struct VpCalling {
    requests: RingSender<RegionView<[Slot]>>,
    replies: RingReceiver<RegionView<[Slot]>>,
    table: CallTable,
    /// Calls that the server's [`Attention`](crate::steer::Attention) has not been told of.
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
        // The server may keep its copy of the doorbell, and ring it. That must wake no thread.
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

    /// Whether it is a lane to this server.
    pub(super) fn is_to(&self, server: &Arc<CalledServer>) -> bool {
        Arc::ptr_eq(&self.server, server)
    }

    pub(crate) fn vp(&self) -> usize {
        self.vp
    }

    /// Sends a request and blocks the thread until its reply is there, which takes its place.
    /// `wants_it_to_stay`: the processor would have the server stay awake on its CPU.
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
        // A server on our processor has it as soon as we have nothing else to do.
        let donates = self.server.has_brought();
        self.server.hint(message, donates, wants_it_to_stay, &mut calling.uncounted);
        calling.requests.send(message);
        if calling.table.under_way() <= FEW {
            // What comes next is a look for it, or another call's thread. The line of a reply that
            // is there travels during that time, beside the line of the request.
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
    /// any. The idle loop of the lane's own virtual processor calls it.
    pub(crate) fn collect(&self) -> bool {
        if self.under_way.load(Ordering::Relaxed) == 0 && !self.server.is_closed() {
            return false;
        }
        let (woke, late) = self.gather();
        if !late.is_empty() {
            // Not on a thread of the scheduler, which may end before that has run: then the result
            // would stay in the server, and what the call brought be lost.
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
        // Without a thread they stay until the next scheduler that gets this number, or the
        // channel's end.
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

    /// The threads of its virtual processor never run again: their numbers are free when their
    /// replies are there, and no thread waits for a number.
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

    /// The channel is closed: no late reply comes.
    pub(crate) fn forget_late(&self) {
        let forgotten = self.calling.lock().table.forget_late();
        drop(forgotten);
    }

    /// Takes the replies that are there. Returns whether a thread was made ready, and the replies of
    /// abandoned calls, with what takes them.
    ///
    /// All of them, but that the last one under way is not looked for: a look for a reply that is
    /// just being written takes its line from the server, which then has to have it back
    /// to finish, and makes the threads that have their replies wait for both. It is found when
    /// they have run.
    fn gather(&self) -> (bool, Vec<(LateReply, SlotMessage)>) {
        let (mut woke, mut violated, mut late) = (false, false, Vec::new());
        // Read before: of a channel that is closed all replies are taken.
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
            // Our own callers know; those on other lanes may sleep, and it may be that none of ours
            // is left to return the error.
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

    /// Whether calls are under way.
    pub(crate) fn is_calling(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) != 0
    }

    /// The processor that the server runs on, by its own word.
    pub(crate) fn servers_place(&self) -> Option<u32> {
        self.server.cpu()
    }

    /// Whether `collect` would find something: the sleeper's second look.
    pub(crate) fn waits(&self) -> bool {
        if self.server.is_closed() {
            return self.calling.lock().table.has_waiting();
        }
        self.under_way.load(Ordering::Relaxed) != 0 && self.calling.lock().replies.waits()
    }

    /// Gives our processor to the server at once, if it has none, or has ours; our ready threads go
    /// on when it has answered, or as the kernel has them take turns.
    #[cold]
    fn hand_off(&self) {
        fence(upcall_os::atomic::Ordering::SeqCst);
        if self.look(false) {
            processor::give_way();
            // The idle loop learns by its next look that our processor was given.
            self.gave.store(true, Ordering::Relaxed);
            self.owes_look.store(true, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn owes_look(&self) -> bool {
        self.owes_look.load(Ordering::Relaxed)
    }

    /// The look at the server that was put off, to be made after a fence: wakes it on this
    /// processor if it sleeps. The caller has nothing else to do, so its processor is free to
    /// be given, unless it polls for ever and `kept` says so. Returns whether it was given.
    pub(crate) fn look(&self, kept: bool) -> bool {
        if !self.owes_look.swap(false, Ordering::Relaxed) {
            return false;
        }
        let gave = self.gave.load(Ordering::Relaxed) && self.gave.swap(false, Ordering::Relaxed);
        if !self.server.is_asleep() {
            // It is awake, and on our processor: it has to be let run, no more.
            return gave || !kept && self.server.has_brought();
        }
        let brought = !kept && self.server.bring(&self.control) == Whereabouts::Here;
        self.safe_doorbell.notify(&self.server.doorbell);
        gave || brought
    }
}
