//! The machine's own messages for which there is no memory.

use crate::tid::Tid;
use crate::wire::Packet;
use std::collections::VecDeque;
use std::time::Instant;

/// A message from the machine itself.
pub(crate) struct MachineMessage {
    pub(crate) source: i32,
    pub(crate) to: Tid,
    pub(crate) tag: i32,
    pub(crate) context: i32,
    pub(crate) data: Packet,
}

/// What waits for memory in a process.
#[derive(Default)]
pub(crate) struct UnsentMessages {
    /// The machine's own messages, in order.
    pub(crate) messages: VecDeque<MachineMessage>,
    /// When a lack of memory was last reported.
    pub(crate) reported: Option<Instant>,
}

impl UnsentMessages {
    /// Returns `true` if no message waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}
