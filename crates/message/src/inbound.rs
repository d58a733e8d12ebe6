//! The receiving end of one pair, as a member that is a process has it.

use crate::Rank;
use crate::proto::receive_queue::ReceiveQueue;
use std::cell::Cell;
use upcall_os::doorbell::Doorbell;
use upcall_shm::mailbag::Mailbag;
use upcall_shm::region::RegionView;
use upcall_shm::steps::Steps;

/// See the module.
pub(crate) type Inbound = ReceiveQueue<Mailbag, Attached>;

/// What a member has of a sender beside its queue.
#[derive(Debug)]
pub(crate) struct Attached {
    /// What the sender reports beside its messages.
    pub(crate) steps: RegionView<Steps>,
    /// Rung by the sender.
    pub(crate) doorbell: Doorbell,
    /// Its next message is nothing that an interrupt takes, though of a kind that is.
    pub(crate) refused: Cell<bool>,
}

/// The receiving end of a queue that another member has brought.
pub(crate) fn inbound(from: Rank, queue: Mailbag, doorbell: Doorbell) -> Inbound {
    let attached = Attached { steps: queue.steps(), doorbell, refused: Cell::new(false) };
    ReceiveQueue::new(from, queue, attached)
}

/// Has segments at hand for interrupts. Without memory for that they take only what is at home.
pub(crate) fn bring_spares(inbound: &Inbound) {
    inbound.with_memory(|memory| _ = memory.bring_spares());
}
