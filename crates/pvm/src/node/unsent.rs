//! Sends the machine's own messages to tasks, and reports what waits for memory.

use super::Node;
use crate::remote::MachineLink;
use crate::report::report_line;
use crate::task::TaskMessage;
use crate::unsent::MachineMessage;
use std::time::{Duration, Instant};
use upcall_ulp::Block;

/// Minimum time between two reports of a lack of memory.
const REPORTS: Duration = Duration::from_secs(10);

impl Node {
    /// Sends a message from the machine itself. Without memory, the message waits, and so do later
    /// ones.
    pub(super) fn message(&mut self, message: MachineMessage) {
        self.unsent.messages.push_back(message);
        self.send_unsent();
    }

    /// Sends those of the machine's own messages for which there is memory.
    pub(super) fn send_unsent(&mut self) {
        while let Some(message) = self.unsent.messages.front() {
            let bytes = message.data.as_bytes();
            let (length, to) = (bytes.len(), message.to);
            let Some(block) = Block::of(bytes) else {
                return self.report_lack(&format!(
                    "there is no memory for a message of {length} bytes to {to}: it waits"
                ));
            };
            let message = TaskMessage {
                source: message.source,
                destination: to.number(),
                tag: message.tag,
                context: message.context,
                encoding: 0,
                wait: 0,
                block: Some(block),
                length,
            };
            self.unsent.messages.pop_front();
            self.deliver(message);
        }
    }

    /// Returns `true` if something waits for memory.
    pub(super) fn is_short(&self) -> bool {
        !self.unsent.is_empty() || self.link.as_ref().is_some_and(MachineLink::is_short)
    }

    /// Reports that something waits for memory, unless that was reported a short time ago.
    #[cold]
    pub(super) fn report_lack(&mut self, what: &str) {
        if self.unsent.reported.is_none_or(|when| when.elapsed() >= REPORTS) {
            self.unsent.reported = Some(Instant::now());
            report_line!("upcall pvm: {what}");
        }
    }
}
