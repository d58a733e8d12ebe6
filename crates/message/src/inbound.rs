//! The receiving end of one pair, for a member that is a process.

use crate::Rank;
use crate::proto::receive_queue::ReceiveQueue;
use std::cell::Cell;
use upcall_os::doorbell::Doorbell;
use upcall_shm::mailbag::Mailbag;
use upcall_shm::region::RegionView;
use upcall_shm::steps::Steps;

/// The receiving end of one pair; see the module.
pub(crate) type Inbound = ReceiveQueue<Mailbag, Attached>;

/// What a member keeps of a sender beside its queue.
#[derive(Debug)]
pub(crate) struct Attached {
    /// The sender's reports.
    pub(crate) steps: RegionView<Steps>,
    /// The doorbell that the sender notifies.
    pub(crate) doorbell: Doorbell,
    /// Set if an interrupt's handler has refused the next message, although its kind has one.
    pub(crate) refused: Cell<bool>,
}

/// The receiving end of a queue that another member has brought.
pub(crate) fn inbound(from: Rank, queue: Mailbag, doorbell: Doorbell) -> Inbound {
    let attached = Attached { steps: queue.steps(), doorbell, refused: Cell::new(false) };
    ReceiveQueue::new(from, queue, attached)
}

/// Keeps segments at hand for interrupts. Without memory for that, interrupts take only messages at
/// home.
pub(crate) fn bring_spares(inbound: &Inbound) {
    inbound.with_memory(|memory| _ = memory.bring_spares());
}
