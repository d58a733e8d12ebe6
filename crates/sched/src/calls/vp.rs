//! The lanes of a channel that belong to virtual processors: one each.

use crate::calls::kernel::KERNEL_LANES;
use crate::calls::server::{CalledServer, LaneOpening, no_lane};
use crate::calls::vp_lane::VpLane;
use crate::domain::{Domain, MOST_PROCESSORS};
use crate::wait::{Closed, NoReply, WaitMode};
use crate::wait_limit::WaitLimit;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use upcall_os::doorbell::Doorbell;
use upcall_os::lock::KernelMutex;
use upcall_os::poll::Report;
use upcall_os::safe_doorbell::SafeDoorbell;
use upcall_shm::channel::Lane;
use upcall_shm::slot::SlotMessage;

/// Time between two attempts to open a lane on the server.
const PAUSE: Duration = Duration::from_millis(2);

/// Maximum time of one attempt, during which the processor's other threads wait too: long enough to
/// take a free connection.
const NOW: Duration = Duration::from_micros(100);

/// All lanes of this process's virtual processors, in all channels.
static LANES: KernelMutex<Vec<Arc<VpLane>>> = KernelMutex::new(Vec::new());

/// The lanes of a virtual processor.
pub(crate) fn lanes_of(vp: usize) -> Vec<Arc<VpLane>> {
    LANES.lock().iter().filter(|lane| lane.vp() == vp).cloned().collect()
}

/// Leaves the lanes of a virtual processor whose scheduler's threads run no more.
pub(crate) fn leave_lanes(vp: usize) {
    for lane in lanes_of(vp).iter() {
        lane.leave();
        lane.await_late();
    }
}

/// The lanes of virtual processors; see the module.
pub(crate) struct VpLanes {
    server: Arc<CalledServer>,
    lanes: [OnceLock<Arc<VpLane>>; MOST_PROCESSORS],
}

impl VpLanes {
    pub(crate) fn new(server: Arc<CalledServer>) -> Self {
        Self { server, lanes: [const { OnceLock::new() }; MOST_PROCESSORS] }
    }

    /// Calls from a thread of the virtual processor `vp`. `lane_of` returns the memory of a lane;
    /// for `wants_it_to_stay` see [`VpLane::call`].
    #[inline]
    pub(crate) fn call(
        &self,
        vp: usize,
        message: &mut SlotMessage,
        wait: impl WaitMode,
        (lane_of, wants_it_to_stay): (impl Fn(usize) -> Lane, impl Fn() -> bool),
    ) -> Result<(), NoReply> {
        let lane = match self.lanes.get(vp).and_then(OnceLock::get) {
            Some(lane) => lane,
            None => self.open(vp, wait.until(), lane_of)?,
        };
        lane.call(message, wait, wants_it_to_stay).inspect_err(|why| {
            if let NoReply::Closed(reason @ Closed::Violation(_)) = why {
                self.server.close(reason.clone());
            }
        })
    }

    /// Opens the lane of `vp`. The processor's other threads go on while the server does not
    /// listen.
    #[cold]
    fn open(
        &self,
        vp: usize,
        until: WaitLimit<'_>,
        lane_of: impl Fn(usize) -> Lane,
    ) -> Result<&Arc<VpLane>, NoReply> {
        loop {
            if let Some(lane) = self.lanes[vp].get() {
                return Ok(lane);
            }
            if let Some(lane) = self.try_open(vp, until, &lane_of)? {
                return Ok(lane);
            }
            upcall_thread::sleep(PAUSE);
        }
    }

    fn try_open(
        &self,
        vp: usize,
        until: WaitLimit<'_>,
        lane_of: &impl Fn(usize) -> Lane,
    ) -> Result<Option<&Arc<VpLane>>, NoReply> {
        let unable = no_lane;
        let domain = Domain::current().map_err(unable)?;
        let wake_set = domain.wake_set(vp).map_err(unable)?;
        let safe_doorbell = SafeDoorbell::current().map_err(unable)?;
        let doorbell = Doorbell::new().map_err(unable)?;
        wake_set.set.add(&doorbell, 1, Report::EachRing).map_err(unable)?;
        let number = KERNEL_LANES + vp;
        let opening = self.server.open_lane(number, Some((vp as u16, &doorbell)), until, NOW);
        if opening != Ok(LaneOpening::Opened) {
            wake_set.set.remove(&doorbell);
            return opening.map(|_| None);
        }
        let bells = (doorbell, safe_doorbell);
        let lane = Arc::new(VpLane::new(vp, self.server.clone(), bells, lane_of(number)));
        LANES.lock().push(lane.clone());
        domain.changed();
        // A number belongs to one kernel thread at a time, and only that thread opens its lane.
        Ok(Some(self.lanes[vp].get_or_init(|| lane)))
    }

    /// Forgets the calls that wait for late replies, after the channel was closed.
    pub(crate) fn forget_late(&self) {
        self.lanes.iter().filter_map(OnceLock::get).for_each(|lane| lane.forget_late());
    }
}

impl Drop for VpLanes {
    fn drop(&mut self) {
        if self.lanes.iter().any(|lane| lane.get().is_some())
            && let Ok(domain) = Domain::current()
        {
            LANES.lock().retain(|lane| !lane.is_to(&self.server));
            domain.changed();
        }
    }
}
