//! The reply of an abandoned call, which comes into the lane after its caller has gone.
//!
//! The lane serves no other call before that reply has been taken: by a thread that waits in the
//! caller's place, or by the next thread that looks for a lane.

use super::{KernelCalling, KernelLane};
use crate::calls::server::CalledServer;
use crate::wait::{LateReply, run_late};
use crate::wait_limit::WaitLimit;
use upcall_shm::slot::{NO_ASTACK, SlotMessage};

impl KernelCalling {
    /// Takes the reply of an abandoned call, and the function that consumes it.
    fn take_late(&mut self, server: &CalledServer) -> Option<(LateReply, Option<SlotMessage>)> {
        let late = self.late.take()?;
        let mut reply = SlotMessage::new(0, 0, NO_ASTACK);
        let good = self.take_reply(server, &mut reply).is_ok();
        Some((late, good.then_some(reply)))
    }

    /// Takes the reply of an abandoned call for which no thread waits. Returns `true` if it was
    /// there. If no thread can be started for it, its result is lost, and what the call held is
    /// free again.
    #[cold]
    pub(super) fn reclaim(&mut self, server: &CalledServer) -> bool {
        if !self.slot.waits() {
            return false;
        }
        if let Some((late, Some(reply))) = self.take_late(server) {
            run_late(move || late(reply));
        }
        true
    }
}

impl KernelLane {
    /// Waits for the reply of an abandoned call in the caller's place. Returns it with the function
    /// that consumes it; only the function, if no reply comes.
    pub(crate) fn await_late(
        &self,
        server: &CalledServer,
    ) -> Option<(LateReply, Option<SlotMessage>)> {
        let mut lane = self.calling.lock();
        lane.late.as_ref()?;
        // If the channel is closed, no reply will come.
        let come = self.sleep_for_reply(server, &lane, WaitLimit::FOR_EVER).is_ok();
        if come { lane.take_late(server) } else { lane.late.take().map(|late| (late, None)) }
    }
}
