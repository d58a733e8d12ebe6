//! What a sender to another host does while it waits for room.
//!
//! The bridge's thread makes the room, and may share the sender's processor. So the sender moves
//! messages by itself while that thread sleeps. If there is much to move, the sender sleeps, and
//! leaves the processor to the bridge.

use crate::far::FarMember;
use crate::link::Outward;
use crate::proto::flow::Pause;
use crate::{Group, Rank};
use std::sync::Arc;
use std::time::Duration;

/// Time for which a sender sleeps while the bridge has two segments to move. That takes much
/// longer, also with what the kernel adds to a sleep.
const NAP: Duration = Duration::from_micros(20);

impl Group {
    /// To be called after each attempt to send to a member without room.
    pub(crate) fn make_room_far_away(&self, to: Rank, pause: Pause) {
        if self.blocks_a_thread() {
            return;
        }
        let Some(far) = self.far_way(to) else { return };
        match pause {
            Pause::Short => far.make_room(),
            Pause::Backlog => std::thread::sleep(NAP),
            Pause::Long => {}
        }
    }

    /// The way to a member on another host, if this member sends to it.
    fn far_way(&self, to: Rank) -> Option<Arc<dyn FarMember>> {
        let _busy = self.busy();
        match &*self.0.links.get(to)?.borrow() {
            Outward::Open(link) => link.far(),
            _ => None,
        }
    }
}
