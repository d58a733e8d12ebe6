//! What comes of a question to the services, and of the end of a task.

use crate::tid::Tid;
use crate::wire::Packet;

/// What comes of a question or of an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// What a task has asked for, now or before, is answered: a code, below 0 an error, and what
    /// the library reads.
    Answer(Tid, i32, Packet),
    /// A message, as by `pvm_send`.
    Message {
        /// From whom, as programs see it: a task's, or [`HOST`](crate::tid::HOST).
        from: i32,
        /// To whom.
        to: Tid,
        /// Its tag.
        tag: i32,
        /// Its context.
        context: i32,
        /// What is in it.
        data: Packet,
    },
}
