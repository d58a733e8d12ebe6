//! A kernel thread's call, on a lane that is its own for the time of the call.
//!
//! The lane has one slot, for the request and then for the reply. The caller spins a little, and
//! then sleeps on the lane's word.

mod late;
mod sleep;

use crate::calls::server::CalledServer;
use crate::costs::WaitCosts;
use crate::handoff::{HandOff, Whereabouts};
use crate::look::{self, ReplyTimer};
use crate::pacing::{GiveWay, HandOver, Pacing, Stay};
use crate::until::WaitLimit;
use crate::wait::{Closed, LateReply, NoReply, WaitMode};
use std::time::Instant;
use upcall_os::atomic::Ordering;
use upcall_os::fault::{Point, point};
use upcall_os::lock::{KernelMutex, MutexGuard};
use upcall_os::processor;
use upcall_shm::channel::{Lane, LaneControl};
use upcall_shm::region::RegionView;
use upcall_shm::single::SingleCaller;
use upcall_shm::slot::{Slot, SlotMessage};

/// Number of times that replies take which a lane learns; procedures share them.
const REPLY_TIMERS: usize = 16;

/// A lane that kernel threads take, one at a time. By itself in its cache lines: threads that call
/// at the same time have lanes beside each other.
#[repr(align(128))]
pub(crate) struct KernelLane {
    control: RegionView<LaneControl>,
    calling: KernelMutex<KernelCalling>,
}

/// The calling end of a lane, in the hands of the thread that has taken it.
pub(crate) struct KernelCalling {
    slot: SingleCaller<RegionView<Slot>>,
    calls: u16,
    /// Calls that the server's [`Attention`](crate::steer::Attention) has not been told of.
    uncounted: u32,
    /// Its call was abandoned, and this takes the reply.
    late: Option<LateReply>,
    /// The server shared our processor when we last had to look.
    shared: bool,
    give_way: GiveWay,
    hand_over: HandOver,
    stay: Stay,
    /// How long the replies take, by procedure.
    reply_timer: [ReplyTimer; REPLY_TIMERS],
}

/// The right to call on a lane.
pub(crate) type TakenLane<'a> = MutexGuard<'a, KernelCalling>;

impl KernelCalling {
    /// Gives way to the server on our processor. Whether the reply is there.
    fn hand_over(&mut self, asked: bool) -> bool {
        let Self { slot, hand_over, stay, .. } = self;
        let there = hand_over.until(|| slot.waits());
        if asked {
            stay.learn(hand_over);
        }
        there
    }

    #[inline]
    fn take_reply(
        &mut self,
        server: &CalledServer,
        message: &mut SlotMessage,
    ) -> Result<(), Closed> {
        if !self.slot.take(message) || message.call() != self.calls {
            let reason = Closed::Violation("a reply to a call that was not made");
            server.close(reason.clone());
            return Err(reason);
        }
        Ok(())
    }
}

impl KernelLane {
    pub(crate) fn new(lane: Lane) -> Self {
        let costs = WaitCosts::measured();
        let calling = KernelCalling {
            slot: SingleCaller::new(lane.single),
            calls: 0,
            uncounted: 0,
            late: None,
            shared: false,
            give_way: GiveWay::new(costs),
            hand_over: HandOver::new(costs),
            stay: Stay::default(),
            reply_timer: Default::default(),
        };
        Self { control: lane.control, calling: KernelMutex::new(calling) }
    }

    /// The lane, if no other thread has it, and no reply to an abandoned call is to come.
    #[inline]
    pub(crate) fn take(&self, server: &CalledServer) -> Option<TakenLane<'_>> {
        let mut calling = self.calling.try_lock()?;
        (calling.late.is_none() || calling.reclaim(server)).then_some(calling)
    }

    /// A caller that polls keeps its CPU: the server is not asked to come near.
    pub(crate) fn keeps_its_cpu(&self) {
        self.control.near.store(0, Ordering::Relaxed);
    }
}

/// How a kernel thread calls: on whichever lane it has taken.
pub(crate) struct KernelCaller<'a, F> {
    pub(crate) server: &'a CalledServer,
    /// How it spends the wait.
    pub(crate) pacing: Pacing,
    /// Leaves the lane to a thread that waits for the reply in the caller's place.
    pub(crate) abandon: F,
}

impl<F: Fn()> KernelCaller<'_, F> {
    /// Sends a request and waits for its reply, which takes its place.
    #[inline]
    pub(crate) fn call(
        self,
        lane: &KernelLane,
        mut taken: TakenLane<'_>,
        message: &mut SlotMessage,
        mut wait: impl WaitMode,
    ) -> Result<(), NoReply> {
        let server = self.server;
        server.check()?;
        taken.calls = taken.calls.wrapping_add(1);
        message.set_call(taken.calls);
        let asleep = server.is_asleep();
        let forced = wait.hand_off() == HandOff::AtOnce;
        let handed = (forced || self.pacing != Pacing::Poll)
            && if asleep {
                server.bring(&lane.control) == Whereabouts::Here
            } else {
                server.has_brought()
            };
        let KernelCalling { stay, hand_over, uncounted, .. } = &mut *taken;
        let hints = server.hint(message, handed, || stay.is_wanted(hand_over), uncounted);
        let asked = hints.asks_to_stay;
        taken.slot.send(message);
        point(Point::ClientSent);
        if asleep {
            server.notify(!wait.until().is_for_ever());
        }
        let gives = forced && handed;
        let mut there = handed && (asleep || gives || asked) && taken.hand_over(asked);
        if !(there || asleep || gives) {
            there = self.spin_for_reply(&mut taken, message.tag(), wait.until())?;
        }
        if !there {
            // A panic in the sleep leaves the lane to the reply.
            taken.late = Some(Box::new(drop));
            let come = lane.sleep_for_reply(server, &taken, wait.until());
            taken.late = None;
            if !come? {
                taken.late = wait.late();
                (self.abandon)();
                return Err(NoReply::OutOfTime { sent: true });
            }
        }
        Ok(taken.take_reply(server, message)?)
    }

    /// Spins until the reply is there, or as long as that is cheaper than sleeping: then false.
    #[inline]
    fn spin_for_reply(
        &self,
        lane: &mut KernelCalling,
        tag: u16,
        until: WaitLimit<'_>,
    ) -> Result<bool, Closed> {
        // A reply of a polling server is there within one cache-line round trip; the clock is not
        // read before that.
        if !lane.shared {
            let KernelCalling { slot, reply_timer, .. } = lane;
            if reply_timer[usize::from(tag) % REPLY_TIMERS].await_answer(256, || slot.waits()) {
                return Ok(true);
            }
        }
        self.spin_long(lane, until)
    }

    #[cold]
    fn spin_long(&self, lane: &mut KernelCalling, until: WaitLimit<'_>) -> Result<bool, Closed> {
        let (server, pacing) = (self.server, self.pacing);
        let (start, budget) = (Instant::now(), server.spin_budget.budget(pacing));
        loop {
            // The server is awake, and its processor is ours: it is given way to.
            lane.shared = server.cpu() == Some(processor::current() as u32);
            for _ in 0..32 {
                if lane.slot.waits() {
                    server.spin_budget.fruitful();
                    return Ok(true);
                }
                if lane.shared {
                    lane.give_way.step();
                }
                look::again();
            }
            server.check()?;
            if until.has_come() {
                return Ok(false);
            }
            let asleep = server.is_asleep();
            if asleep && pacing == Pacing::Poll {
                server.notify(!until.is_for_ever());
            } else if asleep || start.elapsed() >= budget {
                server.spin_budget.fruitless();
                return Ok(false);
            }
        }
    }
}
