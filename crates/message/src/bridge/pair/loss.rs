//! Reports of lost members between the two of a pair.

use super::super::losses::{decode, encode};
use super::super::way::PairLane;
use super::{FarPair, OutwardWay, PairLeaving};
use std::time::Instant;
use upcall_net::{FrameBody, FrameKind};

impl FarPair {
    /// Reports the losses that the other member does not know yet.
    ///
    /// Called before messages are moved from the queue, or go past it. So the report precedes what
    /// a member sends when it knows of the loss. If it sends nothing, the bridge's thread reports:
    /// every loss wakes it, and so does a way that opens. So a pair that opens late reports all
    /// losses so far.
    pub(super) fn report_losses(&self, outward: &mut OutwardWay) {
        // A member that leaves says nothing more.
        while outward.leaving == PairLeaving::No
            && let Some(lost) = self.home.losses.after(outward.losses)
        {
            outward.losses += 1;
            self.way.send(PairLane::Messages, FrameKind::Loss, encode(lost));
        }
    }

    /// The other member has lost a third one. `None`: it is no such report.
    pub(super) fn hears_of_loss(&self, body: &FrameBody) -> Option<()> {
        let lost = decode(body).filter(|lost| *lost != self.rank)?;
        self.inward.lock().add_loss(lost).ok()?;
        if self.pass_on(Instant::now()).is_some() {
            self.home.rouse();
        }
        Some(())
    }
}
