//! The message core: what a member decides, without input and output.
//!
//! The core knows queues, times and counts. It makes no system call, reads no clock, and knows no
//! process, thread or descriptor. Memory and time are arguments: a queue lies in any
//! [`QueueMemory`](upcall_shm::direct::QueueMemory), and its driver supplies the time. There are
//! two drivers. [`Group`](crate::Group) has queues in memory that processes share. A member of the
//! simulator (`upcall-simulator`) has queues in which each access is a step of a virtual clock. So
//! the simulator runs the code that ships.
//!
//! | module | decides |
//! |---|---|
//! | [`flow`] | how long a sender waits for room, and when it diverts |
//! | [`offers`] | when a queue that was refused is offered again |
//! | [`send_queue`] | the result of one attempt to send |
//! | [`sending`] | what follows an attempt: another one, a pause, or an error |
//! | [`receive_queue`] | whether a message of one sender may be read |
//! | [`receiving`] | whose message is next, and when a sender is forgotten |
//!
//! The core calls its driver through three traits. [`Buffers`](flow::Buffers) reports what else is
//! buffered. [`Sending`](sending::Sending) attempts, runs handlers and pauses.
//! [`Receiving`](receiving::Receiving) runs one handler, and learns from whom the core takes no
//! more messages.

pub mod flow;
pub mod offers;
pub mod receive_queue;
pub mod receiving;
pub mod send_queue;
pub mod sending;
