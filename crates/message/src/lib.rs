//! Messages between the members of a group, with handlers.
//!
//! A process joins a group and is one of its members, by rank. A member sends a message to
//! another by a few stores into memory that the two share; there is no acknowledgement, and the
//! sender does not wait. The receiver runs the handler that the message names, when it polls, or
//! takes the message itself. A message that was sent arrives, exactly once and in order per sender
//! and receiver, even if the receiver is stopped, slow, or in a debugger, and even if the sender
//! has ended since. Messages without room go to a buffer in virtual memory, and neither side sees
//! the difference.
//!
//! ```no_run
//! use upcall_message::{Handlers, GroupBuilder};
//!
//! let mut handlers = Handlers::new();
//! let token = handlers.kind::<u64>("token");
//! let stop = handlers.kind::<()>("stop");
//! let done = std::rc::Rc::new(std::cell::Cell::new(false));
//! handlers.on(token, move |group, _, hops| {
//!     let next = (group.rank() + 1) % group.size();
//!     // A member that has died ends `run_until`.
//!     let _ = if hops == 1_000_000 {
//!         group.send(0, stop, &())
//!     } else {
//!         group.send(next, token, &(hops + 1))
//!     };
//! });
//! handlers.on(stop, { let done = done.clone(); move |_, _, ()| done.set(true) });
//!
//! // Four processes run this; each gets a rank from 0 to 3.
//! let group = GroupBuilder::new("ring", 4).join(handlers)?;
//! if group.rank() == 0 {
//!     group.send(1, token, &1)?;
//! }
//! group.run_until(|| done.get())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Not in this crate: calls with results (`upcall-rpc`), scheduling and waking (`upcall-sched`),
//! the queue itself (`upcall_shm::direct`).
//!
//! Source: UDM. Its words correspond to those here: the network interface's queue is the direct
//! queue of two members; the group identifier is the group, checked when a queue is opened and
//! carried by its memory from then on; the second network is the control connection of the two, and
//! words that are never full.
#![forbid(unsafe_code)]

pub mod accounts;
mod announced;
mod barrier;
mod bridge;
mod bringing;
mod buffering;
mod builder;
mod collectives;
mod deadline;
mod door;
mod error;
mod event;
mod far;
mod foreign;
mod forming;
mod group;
mod held;
mod inbound;
mod interrupts;
mod invitation;
mod kinds;
mod link;
mod looks;
mod making_room;
mod member;
mod message;
mod news;
mod offers;
mod parting;
mod payload;
mod petition;
mod petitions;
mod place;
/// For the simulator, which drives it too. Not a public interface.
#[doc(hidden)]
pub mod proto;
mod receiving;
mod reduction;
mod reports;
mod sending;
mod signature;
mod supply;
mod upcalls;
mod waiters;
mod waiting;
mod wire;

pub use announced::Announced;
pub use bridge::{petition, petition_interruptible};
pub use builder::GroupBuilder;
pub use collectives::element::Element;
pub use error::{ExpectError, JoinError, Lack, NothingThere, RunError, SendError};
pub use event::Event;
pub use foreign::{BadKind, ForeignKind};
pub use forming::MOST_MEMBERS;
pub use group::Group;
pub use held::{Held, Lying};
pub use interrupts::Interrupt;
pub use invitation::Invitation;
pub use kinds::Handlers;
pub use message::{Kind, Message};
pub use payload::{Payload, Reader, Writer};
pub use petition::Petition;
pub use reduction::Reducible;
pub use signature::{BadSignature, Carried, Number, Shape, Unfit};
pub use upcall_os::interrupt::Promise;
pub use upcall_sched::Pacing;
pub use upcall_sched::rung::InterruptError;
/// Bytes in shared memory, which another process can write.
pub use upcall_shm::span::Span as Uninterpreted;
pub use upcalls::Atomic;

/// A member's number in its group, from 0.
pub type Rank = usize;
