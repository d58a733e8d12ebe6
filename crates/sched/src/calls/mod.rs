//! The calling end of a channel.
//!
//! There is one kind of caller. It finds its lane, computes the hints of its request, sends the
//! request, waits, and takes the reply; or it abandons the call. The lanes differ in how a caller
//! waits:
//!
//! | | a kernel thread | a thread of a virtual processor |
//! |---|---|---|
//! | lane | taken for one call ([`kernel`]) | the processor's own ([`vp`]) |
//! | queue | one slot, for request and reply | two rings; calls are numbered ([`table`]) |
//! | wait | spins, then sleeps ([`kernel_lane`]) | blocks ([`vp_lane`]) |
//!
//! A kernel thread sleeps on the lane's word. For threads of a virtual processor the idle loop
//! takes all replies. A caller that finds no lane or number free waits in the order of arrival.
//!
//! [`server`] holds what the lanes share: what is known of the server, all hints, and how a lane is
//! opened, stalls are reported, and the channel is closed. When the server dies the channel is
//! closed: every waiting call returns [`Closed`], and so does every later one, at once.
//!
//! # A caller that goes before the reply comes
//! LRPC, section 5.3: a caller may abandon a call that a server holds for too long. The call itself
//! goes on, and its reply will come into the lane and the memory that the call was made with. So
//! neither is used for anything else before. A kernel thread leaves its lane to a thread made for
//! this, which waits in its place. A user-level thread leaves its call number to the idle loop,
//! which takes replies anyway. Either hands the late reply to
//! [`LateReply`](crate::wait::LateReply), which knows what the call was made with.
//!
//! Source: URPC, section 2 (U6 and U7 here).

mod kernel;
mod kernel_lane;
mod server;
mod table;
mod vp;
mod vp_lane;

pub use kernel::KERNEL_LANES;
pub use server::ServerClerk;
pub(crate) use vp::{lanes_of, leave_lanes};
pub(crate) use vp_lane::VpLane;

use crate::calls::kernel::KernelLanes;
use crate::calls::server::{CalledServer, WholeChannel};
use crate::calls::vp::VpLanes;
use crate::domain::Domain;
use crate::handoff::HandOff;
use crate::idle;
use crate::pacing::Pacing;
use crate::wait::{Closed, Forever, NoReply, WaitMode, WaitPolicy};
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use upcall_os::atomic::{Ordering, fence};
use upcall_os::doorbell::Doorbell;
use upcall_shm::channel::{Channel, Lane};
use upcall_shm::slot::SlotMessage;
use upcall_shm::station::PeerStation;

/// The calling end of a channel; see the module.
pub struct CallerChannel {
    server: Arc<CalledServer>,
    channel: Channel,
    kernel: KernelLanes,
    vps: VpLanes,
    on_close: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for CallerChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallerChannel")
            .field("home", &self.server.home)
            .field("closed", &self.closed())
            .finish_non_exhaustive()
    }
}

impl CallerChannel {
    /// Creates the calling end of `channel`, to a server in process `pid`. Its virtual processor
    /// `home` is notified by `doorbell`.
    pub fn new(
        channel: Channel,
        station: PeerStation,
        pid: u32,
        home: u16,
        doorbell: Doorbell,
        clerk: Arc<dyn ServerClerk>,
    ) -> Arc<Self> {
        let server = Arc::new(CalledServer::new(station, pid, home, doorbell, clerk));
        Arc::new_cyclic(|own: &Weak<Self>| {
            server.belongs_to(own.clone());
            Self {
                channel,
                kernel: KernelLanes::new(server.clone()),
                vps: VpLanes::new(server.clone()),
                on_close: OnceLock::new(),
                server,
            }
        })
    }

    /// Sets how kernel threads that call spend the wait. Virtual processors use the pacing that
    /// they were started with.
    pub fn set_pacing(&self, pacing: Pacing) {
        self.kernel.set_pacing(pacing);
    }

    /// Returns the reason why the channel is closed; `None` while it is open.
    pub fn closed(&self) -> Option<Closed> {
        self.server.closed()
    }

    /// Runs `work` when the channel is closed. To be called once, before other threads use the
    /// channel.
    pub fn when_closed(&self, work: Box<dyn Fn() + Send + Sync>) {
        let _ = self.on_close.set(work);
    }

    /// Closes the channel. Every call that waits returns with the reason, on all threads. The first
    /// reason is kept.
    pub fn close(&self, reason: Closed) {
        self.server.closes(reason);
        // A caller that announces itself after this fence sees that the channel is closed. A caller
        // that announced itself before it is found asleep below.
        fence(Ordering::SeqCst);
        self.server.relieve();
        self.kernel.wake_closed();
        self.vps.forget_late();
        self.on_close.get().into_iter().for_each(|work| work());
        if let Ok(domain) = Domain::current() {
            domain.changed();
        }
    }

    /// Sends a request and waits for its reply, which replaces it in `message`. On a virtual
    /// processor the calling thread blocks and others run; elsewhere the kernel thread waits.
    ///
    /// # Errors
    /// The channel is closed, or is being closed while the call waits. Whether the procedure ran is
    /// then unknown.
    #[inline]
    pub fn call(&self, message: &mut SlotMessage, hand_off: HandOff) -> Result<(), NoReply> {
        self.call_and_wait(message, Forever(hand_off))
    }

    /// Like [`call`](Self::call), but abandons the call at the limit of `patience`.
    ///
    /// # Errors
    /// Also [`NoReply::OutOfTime`].
    pub fn call_within(
        &self,
        message: &mut SlotMessage,
        patience: WaitPolicy<'_>,
    ) -> Result<(), NoReply> {
        self.call_and_wait(message, patience)
    }

    #[inline]
    fn call_and_wait(&self, message: &mut SlotMessage, wait: impl WaitMode) -> Result<(), NoReply> {
        if wait.until().is_cancelled() {
            return Err(NoReply::OutOfTime { sent: false });
        }
        let lane_of = |number| lane_of(&self.channel, number);
        match idle::number() {
            None => self.kernel.call(message, wait, lane_of),
            Some(vp) => self.vps.call(vp, message, wait, (lane_of, idle::is_stay_wanted)),
        }
    }
}

impl WholeChannel for CallerChannel {
    fn close(&self, reason: Closed) {
        self.close(reason);
    }

    fn await_late(&self, number: usize) {
        self.kernel.await_late(number);
    }
}

#[cold]
fn lane_of(channel: &Channel, number: usize) -> Lane {
    channel
        .lane(number as u16)
        .unwrap_or_else(|| unreachable!("lane {number} is within a channel's lanes"))
}
