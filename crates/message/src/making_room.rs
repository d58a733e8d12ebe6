//! What a sender to another host does while it waits for room.
//!
//! The driver's thread and the bridge's thread make the room, and may share the sender's processor.
//! So the sender does their work for a short time. If there is much of it, the sender sleeps, and
//! leaves the processor to them.

use crate::far::FarMember;
use crate::link::Outward;
use crate::proto::flow::Pause;
use crate::{Group, Rank};
use std::sync::Arc;
use std::time::Duration;
use upcall_net::driver::LinkPolling;

/// Time for which a sender sleeps while the bridge has two segments to move. That takes much
/// longer, also with what the kernel adds to a sleep.
const NAP: Duration = Duration::from_micros(20);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct MakingRoom {
    /// Reads the links while the sender waits.
    links: Option<LinkPolling>,
}

impl MakingRoom {
    /// To be called after each attempt to send without room.
    pub(crate) fn step(&mut self, group: &Group, to: Rank, pause: Pause) {
        if group.blocks_a_thread() {
            return;
        }
        let Some(far) = group.far_way(to) else { return };
        if pause == Pause::Backlog {
            self.links = None;
            std::thread::sleep(NAP);
            return;
        }
        if self.links.is_none() {
            self.links = LinkPolling::begin();
        }
        if let Some(links) = &self.links {
            links.round();
        }
        far.make_room();
    }
}

impl Group {
    /// The way to a member on another host, if this member sends to it.
    fn far_way(&self, to: Rank) -> Option<Arc<dyn FarMember>> {
        let _busy = self.busy();
        match &*self.0.links.get(to)?.borrow() {
            Outward::Open(link) => link.far(),
            _ => None,
        }
    }
}
