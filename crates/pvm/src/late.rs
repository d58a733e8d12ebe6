//! What the first process has for a task of another process, and the task cannot have yet.

use crate::remote::LateMessage;
use crate::tid::Tid;

/// A message or an answer that waits for messages of other processes
/// ([`LateMessage`](crate::remote::LateMessage)).
pub(crate) enum LateItem {
    Message(LateMessage),
    /// An answer, which must not overtake a message.
    Answer {
        tid: Tid,
        code: i32,
        packet: Vec<u8>,
    },
}

impl LateItem {
    /// The task.
    pub(crate) fn receiver(&self) -> Tid {
        match self {
            Self::Message(message) => message.to,
            Self::Answer { tid, .. } => *tid,
        }
    }
}
