//! Lanes for the invocations of guests on other hosts, and their replies.
//!
//! A binding joins a guest's link and the thread that serves an object. Each invocation that is
//! under way has a lane. The lanes are the home's own memory, made as they are needed, charged to
//! the guest's account, and few of them are kept when they are free.
//!
//! # Why each invocation is answered once
//! A lane has one invocation at a time, whose number is set with the request and taken with the
//! reply, both under the lane's lock. The end of the binding takes the number as well. So the
//! serving thread, the clerk and the end of the binding find it once, all together.

use super::outcome;
use crate::lane::{ALL, InvocationLane, LaneDirection, MessageBuffer};
use crate::service_queue::{LaneCaller, LaneEnd, ServiceQueue};
use crate::wire::InvokeFailure;
use std::sync::{Arc, Weak};
use upcall_net::{BufferOwner, FrameBody, FrameHeader, FrameKind, Wire};
use upcall_os::atomic::{AtomicUsize, Ordering};
use upcall_os::doorbell::Doorbell;
use upcall_os::lock::KernelMutex;
use upcall_sched::quota::{Holding, Over, QuotaAccount, QuotaKind};
use upcall_shm::region::RegionView;
use upcall_shm::single::SingleCaller;
use upcall_shm::slot::{NO_ASTACK, Slot, SlotMessage};

/// Maximum number of free lanes that a binding keeps.
const KEPT: usize = 8;

/// Length of arguments or results beyond which a lane is not kept, in bytes.
const LONG: usize = 64 << 10;

/// The link of a guest, as its bindings use it.
pub(crate) struct GuestLink {
    /// `None` once the link has ended. Procedures that run on need no descriptor.
    wire: KernelMutex<Option<Arc<Wire>>>,
    pub(crate) account: Arc<QuotaAccount>,
    /// Number of invocations that have arrived and are not answered.
    pub(crate) under_way: AtomicUsize,
    /// Rung for replies from interrupts.
    pub(crate) bell: Doorbell,
}

impl GuestLink {
    pub(crate) fn new(wire: Arc<Wire>, account: Arc<QuotaAccount>, bell: Doorbell) -> Self {
        let (wire, under_way) = (KernelMutex::new(Some(wire)), AtomicUsize::new(0));
        Self { wire, account, under_way, bell }
    }

    /// The connection, unless the link has ended.
    pub(crate) fn wire(&self) -> Option<Arc<Wire>> {
        self.wire.lock().clone()
    }

    /// Ends the link, and lets go of its connection.
    pub(crate) fn end(&self) {
        let wire = self.wire.lock().take();
        if let Some(wire) = wire {
            wire.hang_up();
        }
    }

    /// Sends a message, unless the link has ended.
    pub(crate) fn send(&self, head: FrameHeader, body: FrameBody, owner: Option<BufferOwner>) {
        if let Some(wire) = self.wire() {
            wire.send(head.call.into(), head, body, owner);
        }
    }

    /// Replies to an invocation. Its place is free before the guest can know.
    pub(crate) fn reply(&self, call: u32, number: u16, body: FrameBody) {
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        let head = FrameHeader {
            kind: FrameKind::Reply,
            call,
            binding: 0,
            number,
            left: None,
            len: body.len,
        };
        if body.len == 0 {
            return self.send(head, body, None);
        }
        match self.account.hold(QuotaKind::Results, body.len) {
            Ok(kept) => self.send(head, body, Some(Box::new(kept))),
            Err(over) => {
                let why = format!("its result is lost: {over}");
                let failure = super::body(&InvokeFailure::Said(why.into()));
                let head = FrameHeader { number: outcome::FAILED, ..head };
                self.send(head, failure, None);
            }
        }
    }

    /// Replies that an operation was not run.
    pub(crate) fn refuse(&self, call: u32, why: String) {
        self.reply(call, outcome::FAILED, super::body(&InvokeFailure::NotRun(why.into())));
    }
}

/// A guest's binding to the thread that serves an object; see the module.
pub(crate) struct FarBinding {
    link: Arc<GuestLink>,
    desk: Arc<ServiceQueue>,
    lanes: KernelMutex<FarLanes>,
}

#[derive(Default)]
struct FarLanes {
    all: Vec<Arc<FarLane>>,
    free: Vec<Arc<FarLane>>,
    is_over: bool,
}

/// Why an invocation has no lane.
enum NoLane {
    /// The binding is over.
    Over,
    /// The home has no room for it.
    Full(String),
}

impl From<Over> for NoLane {
    fn from(over: Over) -> Self {
        Self::Full(over.to_string())
    }
}

impl FarBinding {
    /// Binds a guest to the thread that serves an object. `None`: the thread has ended that.
    pub(crate) fn new(link: &Arc<GuestLink>, desk: Arc<ServiceQueue>) -> Option<Arc<Self>> {
        let link = link.clone();
        let own = Arc::new(Self { link, desk, lanes: KernelMutex::default() });
        own.desk.is_used_by(&own).then_some(own)
    }

    /// Passes an invocation to the serving thread. It is answered in any case.
    pub(crate) fn call(self: &Arc<Self>, frame: FarCall) {
        let call = frame.call;
        match self.take_lane() {
            Ok(lane) => lane.begin(frame, &self.desk),
            Err(NoLane::Over) => self.link.reply(call, outcome::GONE, FrameBody::default()),
            Err(NoLane::Full(why)) => self.link.refuse(call, why),
        }
    }

    fn take_lane(self: &Arc<Self>) -> Result<Arc<FarLane>, NoLane> {
        let mut lanes = self.lanes.lock();
        if lanes.is_over {
            return Err(NoLane::Over);
        }
        if let Some(lane) = lanes.free.pop() {
            return Ok(lane);
        }
        let lane = FarLane::new(self)?;
        let end = LaneEnd {
            guest: lane.number(),
            lane: lane.lane.clone(),
            caller: LaneCaller::Far(lane.clone()),
        };
        self.desk.take_in(end).map_err(|error| NoLane::Full(error.to_string()))?;
        lanes.all.push(lane.clone());
        Ok(lane)
    }

    /// Takes back a lane whose invocation is answered.
    fn give_back(&self, lane: &Arc<FarLane>, has_been_long: bool) {
        let mut lanes = self.lanes.lock();
        if lanes.is_over {
            return;
        }
        if lanes.free.len() < KEPT && !has_been_long {
            return lanes.free.push(lane.clone());
        }
        lanes.all.retain(|other| !Arc::ptr_eq(other, lane));
        drop(lanes);
        self.desk.lost(lane.number());
    }

    /// Sends the replies that were written in interrupts.
    pub(crate) fn relay_all(&self) {
        let all = self.lanes.lock().all.clone();
        all.iter().for_each(FarLane::relay);
    }

    /// Ends the binding: invocations that have no reply yet get none from the object.
    pub(crate) fn over(&self) {
        let all = {
            let mut lanes = self.lanes.lock();
            lanes.is_over = true;
            lanes.free.clear();
            std::mem::take(&mut lanes.all)
        };
        for lane in all {
            lane.over();
            self.desk.lost(lane.number());
        }
    }
}

/// An invocation that has arrived.
pub(crate) struct FarCall {
    /// Its number on the link.
    pub(crate) call: u32,
    /// The number of the operation.
    pub(crate) operation: u16,
    pub(crate) args: FrameBody,
    /// The charge for the arguments.
    pub(crate) room: BufferOwner,
}

/// The caller's end of a lane within the home; see the module.
pub(crate) struct FarLane {
    link: Arc<GuestLink>,
    binding: Weak<FarBinding>,
    lane: Arc<InvocationLane>,
    state: KernelMutex<FarLaneState>,
    _held: [Holding; 4],
}

struct FarLaneState {
    caller: SingleCaller<RegionView<Slot>>,
    /// The number of the invocation that has no reply yet, and the charge for its arguments.
    call: Option<(u32, BufferOwner)>,
    /// The memory of the lane holds long arguments.
    is_long: bool,
    is_over: bool,
}

impl FarLane {
    fn new(binding: &Arc<FarBinding>) -> Result<Arc<Self>, NoLane> {
        let link = binding.link.clone();
        let held = [
            link.account.hold(QuotaKind::Descriptors, 1)?,
            link.account.hold(QuotaKind::Mappings, 1)?,
            link.account.hold(QuotaKind::Bytes, ALL)?,
            link.account.hold(QuotaKind::Unfilled, ALL)?,
        ];
        let lane = InvocationLane::create().map_err(|error| NoLane::Full(error.to_string()))?;
        let lane = Arc::new(lane);
        let state = FarLaneState {
            caller: SingleCaller::new(lane.slot()),
            call: None,
            is_long: false,
            is_over: false,
        };
        let (binding, state) = (Arc::downgrade(binding), KernelMutex::new(state));
        Ok(Arc::new(Self { link, binding, lane, state, _held: held }))
    }

    /// The lane's number for the serving thread: its address, which no other lane has while it
    /// lives.
    fn number(self: &Arc<Self>) -> u64 {
        Arc::as_ptr(self).addr() as u64
    }

    /// Sends a request to the serving thread.
    fn begin(&self, frame: FarCall, desk: &ServiceQueue) {
        let mut state = self.state.lock();
        if state.is_over {
            drop(state);
            return self.link.reply(frame.call, outcome::GONE, FrameBody::default());
        }
        let args = frame.args.to_vec();
        state.is_long = args.len() > LONG;
        let Some(message) = self.lane.raw(frame.operation, &args, LaneDirection::There) else {
            drop(state);
            return self.link.refuse(frame.call, "its arguments are not valid".into());
        };
        state.call = Some((frame.call, frame.room));
        state.caller.send(&message);
        drop(state);
        desk.post.rouse();
    }

    /// Sends the reply, if there is one.
    pub(crate) fn relay(self: &Arc<Self>) {
        let (mut image, mut copy) =
            (SlotMessage::new(0, 0, NO_ASTACK), MessageBuffer::with(Vec::new()));
        let mut state = self.state.lock();
        if state.call.is_none() || !state.caller.take(&mut image) {
            return;
        }
        let Some((call, room)) = state.call.take() else { return };
        let bytes = self.lane.bytes(&image, LaneDirection::Back, &mut copy);
        let body = bytes.map(FrameBody::from);
        let has_been_long = state.is_long || body.as_ref().is_none_or(|body| body.len > LONG);
        drop((state, room));
        if let Some(binding) = self.binding.upgrade() {
            binding.give_back(self, has_been_long);
        }
        match body {
            Some(body) => self.link.reply(call, image.tag(), body),
            None => self.link.reply(call, outcome::ENDED, FrameBody::default()),
        }
    }

    /// Makes the clerk send the reply. For interrupts.
    pub(crate) fn ring(&self) {
        self.link.bell.notify();
    }

    fn over(&self) {
        let mut state = self.state.lock();
        state.is_over = true;
        let call = state.call.take();
        drop(state);
        if let Some((call, _)) = call {
            self.link.reply(call, outcome::ENDED, FrameBody::default());
        }
    }
}
