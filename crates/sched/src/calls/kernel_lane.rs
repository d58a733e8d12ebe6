//! A kernel thread's call, on a lane that it owns for the duration of the call.
//!
//! The lane has one slot, for the request and then for the reply. The caller spins a little, and
//! then sleeps on the lane's word.

mod late;
mod sleep;

use crate::calls::server::CalledServer;
use crate::costs::WaitCosts;
use crate::handoff::{HandOff, Whereabouts};
use crate::look::{self, ReplyTimer};
use crate::pacing::{CpuShare, GiveWay, HandOver, Pacing, Stay};
use crate::wait::{Closed, LateReply, NoReply, WaitMode};
use crate::wait_limit::WaitLimit;
use std::time::Instant;
use upcall_os::atomic::Ordering;
use upcall_os::fault::{Point, point};
use upcall_os::lock::{KernelMutex, MutexGuard};
use upcall_os::processor;
use upcall_shm::channel::{Lane, LaneControl};
use upcall_shm::region::RegionView;
use upcall_shm::single::SingleCaller;
use upcall_shm::slot::{Slot, SlotMessage};

/// Number of reply times that a lane learns; procedures share them.
const REPLY_TIMERS: usize = 16;

/// A lane that kernel threads take, one at a time. It has cache lines of its own: threads that call
/// at the same time have lanes beside each other.
#[repr(align(128))]
pub(crate) struct KernelLane {
    control: RegionView<LaneControl>,
    calling: KernelMutex<KernelCalling>,
}

/// The calling end of a lane, held by the thread that has taken the lane.
pub(crate) struct KernelCalling {
    slot: SingleCaller<RegionView<Slot>>,
    calls: u16,
    /// Number of calls not yet handed in to the server's [`Attention`](crate::steer::Attention).
    uncounted: u32,
    /// Takes the reply, if the lane's call was abandoned.
    late: Option<LateReply>,
    /// Set if the server shared this CPU at the last check.
    shared: bool,
    give_way: GiveWay,
    hand_over: HandOver,
    stay: Stay,
    /// Estimates of the time until a reply, by procedure.
    reply_timer: [ReplyTimer; REPLY_TIMERS],
}

/// The right to call on a lane.
pub(crate) type TakenLane<'a> = MutexGuard<'a, KernelCalling>;

impl KernelCalling {
    /// Yields to the server on this CPU. Returns `true` if the reply is there.
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

    /// Takes the lane, if no other thread has it and no reply to an abandoned call is outstanding.
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

/// A kernel thread's call, on the lane that it has taken.
pub(crate) struct KernelCaller<'a, F> {
    pub(crate) server: &'a CalledServer,
    /// How the thread spends the wait.
    pub(crate) pacing: Pacing,
    /// Leaves the lane to a thread that waits for the reply in the caller's place.
    pub(crate) abandon: F,
}

impl<F: Fn()> KernelCaller<'_, F> {
    /// Sends a request and waits for its reply, which replaces it in `message`.
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

    /// Spins until the reply is there. Returns `false` once spinning costs more than sleeping.
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
            // The server is awake; if it is on this CPU, the caller yields to it.
            lane.shared = server.cpu() == Some(processor::current() as u32);
            let mut share = CpuShare::Kept;
            for _ in 0..32 {
                if lane.slot.waits() {
                    server.spin_budget.fruitful();
                    return Ok(true);
                }
                if share == CpuShare::Given {
                    break;
                }
                look::again();
                if lane.shared {
                    share = lane.give_way.step();
                }
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
