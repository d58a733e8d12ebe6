//! A virtual processor's lane of a channel: its threads send and block, and its idle loop takes the
//! replies of all of them.
//!
//! Source: URPC, section 2 (U6 and U7 here).

use crate::caller::Far;
use crate::domain::Domain;
use crate::handoff::{HandOff, Whereabouts};
use crate::wait::{Closed, Late, NoReply, Sleeper, Wait, block_unless, run_late};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use upcall_os::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use upcall_os::doorbell::Doorbell;
use upcall_os::fault::{Point, point};
use upcall_os::lock::Mutex;
use upcall_os::processor;
use upcall_os::safe_doorbell::SafeDoorbell;
use upcall_shm::channel::{DEPTH, Lane, LaneControl};
use upcall_shm::region::Shared;
use upcall_shm::ring::{Receiver, Sender};
use upcall_shm::slot::{Image, Kept, Slot};
use upcall_thread::Waited;

/// So long at most the replies of abandoned calls are not looked for.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// With no more calls under way the next reply's line is asked for early; with more, replies come
/// together, and that of the one after the next is.
const FEW: usize = 3;

/// A virtual processor's lane of a channel, and the calls of its threads that are under way on it.
/// By itself in its lines, like a server's lane.
#[repr(align(128))]
pub(crate) struct VpLane {
    vp: usize,
    pub(crate) far: Arc<Far>,
    /// Rung by the server; in the set of our processor's wake set.
    doorbell: Doorbell,
    /// Rings the server's doorbell: all threads of our processor would wait with us if a hostile
    /// server made a write to it block.
    safe_doorbell: &'static SafeDoorbell,
    control: Shared<LaneControl>,
    under_way: AtomicUsize,
    /// Requests were sent and it was not yet looked, with a fence, whether the server sleeps.
    owes_look: AtomicBool,
    /// Our processor was given to the server with a call, and the idle loop does not know.
    gave: AtomicBool,
    calling: Mutex<Calling>,
}

struct Calling {
    requests: Sender<Shared<[Slot]>>,
    replies: Receiver<Shared<[Slot]>>,
    calls: Vec<Call>,
    /// Calls that the server's `Attention` has not been told of.
    uncounted: u32,
    /// The replies of those that are done.
    kept: Vec<Kept>,
    free: Vec<u16>,
    /// Threads that wait for a free call number.
    queue: VecDeque<Sleeper>,
    /// So many of the free numbers are for threads that were woken for them: who calls again at
    /// once does not overtake them for ever.
    promised: usize,
}

impl Calling {
    #[inline]
    fn under_way(&self) -> usize {
        DEPTH - self.free.len()
    }

    #[inline]
    fn take_number(&mut self, promised: bool) -> Option<u16> {
        if promised {
            self.promised = self.promised.saturating_sub(1);
        } else if self.free.len() <= self.promised {
            return None;
        }
        self.free.pop()
    }
}

enum Call {
    Free,
    Waiting(Sleeper),
    /// Its reply is kept.
    Done,
    Failed(Closed),
    /// Its thread has gone; this takes the reply.
    Late(Late),
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
        // The server may keep its copy and ring it, which shall wake nobody any more.
        if let Ok(wake_set) = Domain::current().and_then(|domain| domain.wake_set(self.vp)) {
            wake_set.set.remove(&self.doorbell);
        }
    }
}

impl VpLane {
    pub(crate) fn new(
        vp: usize,
        far: Arc<Far>,
        (doorbell, safe_doorbell): (Doorbell, &'static SafeDoorbell),
        lane: Lane,
    ) -> Self {
        let calling = Calling {
            requests: Sender::new(lane.requests),
            replies: Receiver::new(lane.replies),
            calls: (0..DEPTH).map(|_| Call::Free).collect(),
            uncounted: 0,
            kept: (0..DEPTH).map(|_| Kept::default()).collect(),
            free: (0..DEPTH as u16).rev().collect(),
            queue: VecDeque::new(),
            promised: 0,
        };
        Self {
            vp,
            far,
            doorbell,
            safe_doorbell,
            control: lane.control,
            under_way: AtomicUsize::new(0),
            owes_look: AtomicBool::new(false),
            gave: AtomicBool::new(false),
            calling: Mutex::new(calling),
        }
    }

    pub(crate) fn vp(&self) -> usize {
        self.vp
    }

    pub(crate) fn call(&self, message: &mut Image, wait: impl Wait) -> Result<(), NoReply> {
        let mut promised = false;
        loop {
            self.far.check()?;
            let mut sent = None;
            let waited = block_unless(wait.until(), |sleeper| {
                let mut calling = self.calling.lock();
                let Some(number) = calling.take_number(promised) else {
                    calling.queue.push_back(sleeper);
                    return None;
                };
                sent = Some(number);
                message.set_call(number);
                // Not by an assignment: for the drop of what was there, the new one would lie
                // elsewhere first, and be copied (see `Kept`).
                match std::mem::replace(
                    &mut calling.calls[usize::from(number)],
                    Call::Waiting(sleeper),
                ) {
                    Call::Free => {}
                    other => drop(other),
                }
                if self.far.donor.has_brought(&self.far.station, self.far.home) {
                    // It runs on our processor, which is free for it as soon as we have nothing
                    // else to do.
                    message.donate();
                    if self.far.is_handed_again() && crate::idle::is_stay_wanted() {
                        message.ask_to_stay();
                    }
                }
                self.far.count(message, &mut calling.uncounted);
                calling.requests.send(message);
                if calling.under_way() <= FEW {
                    // What comes next is a look for it, or another call's thread. The line of a
                    // reply that is there travels meanwhile, and beside that of the request.
                    calling.replies.prefetch(0);
                }
                self.under_way.store(calling.under_way(), Ordering::Relaxed);
                self.owes_look.store(true, Ordering::Relaxed);
                drop(calling);
                point(Point::ClientSent);
                if wait.hand_off() == HandOff::AtOnce {
                    self.hand_off();
                }
                None
            });
            if let Some(number) = sent {
                return self.finish(number, message, wait);
            }
            if waited == Waited::TimedOut {
                self.calling.lock().queue.retain(|sleeper| !sleeper.has_gone());
                return Err(NoReply::OutOfTime { sent: false });
            }
            promised = true;
        }
    }

    fn finish(&self, number: u16, message: &mut Image, mut wait: impl Wait) -> Result<(), NoReply> {
        let mut calling = self.calling.lock();
        let Calling { calls, kept, .. } = &mut *calling;
        let call = &mut calls[usize::from(number)];
        if let Call::Done = call {
            kept[usize::from(number)].read(message);
            *call = Call::Free;
            self.free(&mut calling, number);
            return Ok(());
        }
        let outcome = match std::mem::replace(call, Call::Free) {
            Call::Failed(reason) => Err(reason.into()),
            Call::Waiting(_) if let Some(late) = wait.late() => {
                // The number stays taken until the reply is there.
                *call = Call::Late(late);
                return Err(NoReply::OutOfTime { sent: true });
            }
            _ => Err(Closed::Violation("a thread was woken before its reply").into()),
        };
        self.free(&mut calling, number);
        outcome
    }

    /// A call is over: its number goes to whoever has waited longest for one. Whether there was
    /// one.
    fn free(&self, calling: &mut Calling, number: u16) -> bool {
        calling.free.push(number);
        self.under_way.store(calling.under_way(), Ordering::Relaxed);
        while let Some(next) = calling.queue.pop_front() {
            if next.wake() {
                calling.promised += 1;
                return true;
            }
        }
        false
    }

    /// Takes the replies that have come and makes their threads ready; whether there were any.
    /// Called by the idle loop of its own virtual processor.
    pub(crate) fn collect(&self) -> bool {
        if self.under_way.load(Ordering::Relaxed) == 0 && !self.far.closed.load(Ordering::Acquire) {
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
        let seat = self.clone();
        // Without a thread they stay until the next scheduler that gets this number, or the
        // channel's end.
        run_late(move || {
            let mut pause = Duration::from_millis(1);
            while seat.has_late() {
                std::thread::sleep(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
                for (late, reply) in seat.gather().1 {
                    late(reply);
                }
            }
        });
    }

    /// The threads of its virtual processor never run again: their numbers are free when their
    /// replies have come, and nobody waits for one.
    pub(crate) fn leave(&self) {
        let mut calling = self.calling.lock();
        let mut left: Vec<Sleeper> = std::mem::take(&mut calling.queue).into();
        calling.promised = 0;
        for number in 0..DEPTH {
            let call = &mut calling.calls[number];
            match std::mem::replace(call, Call::Free) {
                Call::Free => {}
                Call::Waiting(sleeper) => {
                    *call = Call::Late(Box::new(drop));
                    left.push(sleeper);
                }
                Call::Done | Call::Failed(_) => calling.free.push(number as u16),
                late @ Call::Late(_) => *call = late,
            }
        }
        self.under_way.store(calling.under_way(), Ordering::Relaxed);
        drop(calling);
        // To drop one is to wake it, which nobody notices any more.
        drop(left);
    }

    fn has_late(&self) -> bool {
        self.calling.lock().calls.iter().any(|call| matches!(call, Call::Late(_)))
    }

    /// The channel is closed: nobody will take a late reply.
    pub(crate) fn forget_late(&self) {
        let mut calling = self.calling.lock();
        let late = calling.calls.iter_mut().filter(|call| matches!(call, Call::Late(_)));
        let forgotten: Vec<_> = late.map(|call| std::mem::replace(call, Call::Free)).collect();
        drop(calling);
        drop(forgotten);
    }

    /// Takes replies that have come: whether a thread was made ready, and those of abandoned calls,
    /// with what takes them.
    ///
    /// All of them, but that the last one under way is not looked for: a look for a reply that is
    /// just being written takes its line from the server, which then has to have it back
    /// to finish, and makes the threads that have their replies wait for both. It is found when
    /// they have run.
    fn gather(&self) -> (bool, Vec<(Late, Image)>) {
        let (mut woke, mut violated, mut late) = (false, false, Vec::new());
        // Read before: of a channel that is closed all replies are taken.
        let mut closed = self.far.closed();
        let mut calling = self.calling.lock();
        let (mut reply, mut left) = (Image::new(0, 0, 0), calling.under_way());
        while calling.replies.take_into(&mut reply) {
            let number = reply.call();
            let Calling { calls, kept, .. } = &mut *calling;
            let call = calls.get_mut(usize::from(number));
            match call {
                Some(call @ Call::Waiting(_)) => {
                    kept[usize::from(number)].write(&reply);
                    if let Call::Waiting(sleeper) = std::mem::replace(call, Call::Done) {
                        sleeper.wake();
                        woke = true;
                    }
                }
                Some(call @ Call::Late(_)) => {
                    if let Call::Late(taker) = std::mem::replace(call, Call::Free) {
                        woke |= self.free(&mut calling, number);
                        late.push((taker, reply));
                    }
                }
                _ => {
                    let _ = self
                        .far
                        .reason
                        .set(Closed::Violation("a reply to a call that was not made"));
                    self.far.closed.store(true, Ordering::SeqCst);
                    closed = self.far.closed();
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
            for call in &mut calling.calls {
                if matches!(call, Call::Waiting(_))
                    && let Call::Waiting(sleeper) =
                        std::mem::replace(call, Call::Failed(reason.clone()))
                {
                    sleeper.wake();
                    woke = true;
                }
            }
            for sleeper in calling.queue.drain(..) {
                sleeper.wake();
                woke = true;
            }
            drop(calling);
            // Our own callers know; those on other lanes may sleep, and it may be that none of ours
            // is left to return the error.
            if violated {
                self.far.close(reason);
            }
            // A call may have been abandoned after the channel was closed.
            self.forget_late();
        }
        (woke, late)
    }

    /// Number of probes of the server's lanes, as the server publishes it.
    pub(crate) fn probes(&self) -> u32 {
        self.far.probes()
    }

    pub(crate) fn is_server_asleep(&self) -> bool {
        self.far.station.asleep(self.far.home)
    }

    pub(crate) fn report_stall(&self) {
        self.far.clerk.report_stall();
    }

    /// Whether calls are under way.
    pub(crate) fn is_calling(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) != 0
    }

    /// The processor that the server runs on, by its own word.
    pub(crate) fn servers_place(&self) -> Option<u32> {
        self.far.station.cpu(self.far.home)
    }

    /// Whether `collect` would find something: the sleeper's second look.
    pub(crate) fn waits(&self) -> bool {
        let calling = || self.calling.lock();
        if self.far.closed.load(Ordering::Acquire) {
            let calling = calling();
            return !calling.queue.is_empty()
                || calling.calls.iter().any(|call| matches!(call, Call::Waiting(_)));
        }
        self.under_way.load(Ordering::Relaxed) != 0 && calling().replies.waits()
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
        if !self.far.station.asleep(self.far.home) {
            // It is awake, and on our processor: it has to be let run, no more.
            return gave || !kept && self.far.donor.has_brought(&self.far.station, self.far.home);
        }
        let bring = || self.far.donor.bring(&self.far.station, self.far.home, &self.control);
        let brought = !kept && bring() == Whereabouts::Here;
        self.safe_doorbell.notify(&self.far.doorbell);
        gave || brought
    }
}
