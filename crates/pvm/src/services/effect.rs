//! Effects of questions to the services, and of the ends of tasks.

use crate::tid::Tid;
use crate::wire::Packet;

/// An effect of a question or of an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Answers a task's question, asked now or earlier: a code, which is an error below 0, and a
    /// packet for the library.
    Answer(Tid, i32, Packet),
    /// Sends a message, as `pvm_send` does.
    Message {
        /// The sender, as programs see it: a task's tid, or [`HOST`](crate::tid::HOST).
        from: i32,
        /// The receiver.
        to: Tid,
        /// Its tag.
        tag: i32,
        /// Its context.
        context: i32,
        /// Its contents.
        data: Packet,
    },
}
