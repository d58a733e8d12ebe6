//! Memory shared by two domains.
//!
//! This crate has typed views of words that both sides change ([`region`]), bytes that are not
//! interpreted ([`span`]), the queues of a lane ([`slot`], [`ring`], [`single`]), the queue of
//! messages without an answer ([`direct`]) and its memory ([`mailbag`]), and the words beside it
//! for barriers and reductions ([`steps`]). It also has the layout of a channel ([`channel`]) and
//! of A-stacks ([`astack`]), the page on which a domain reports to its peers what its processors do
//! ([`station`]), the statistics of each binding of a server ([`tally`]) and of each member of a
//! group ([`account`]), a lock ([`hybrid`]), and a number by which a reader detects a change
//! ([`sequence`]).
//!
//! It has no waiting, waking, threads or calls. Nothing here blocks or makes a system call after
//! the mapping is made.
//!
//! The rule of this crate, and the reason why it exists: **memory that a peer can write is never
//! seen through a plain reference.** Control words are atomics. Values are copied out with relaxed
//! loads, and only the copy is checked and used. Uninterpreted bytes are copied by instructions
//! that the compiler cannot see into. A peer that scribbles over everything it can reach makes
//! values wrong, never the program.
//!
//! ```
//! use upcall_shm::ring::{RingReceiver, RingSender};
//! use upcall_shm::slot::{SlotMessage, Slot};
//!
//! let ring: std::sync::Arc<[Slot]> = (0..4).map(|_| Slot::default()).collect();
//! let (sender, receiver) = (RingSender::new(ring.clone()), RingReceiver::new(ring));
//! assert!(receiver.take().is_none());
//! sender.send(&SlotMessage::new(7, 0, 0));
//! assert_eq!(receiver.take().unwrap().call(), 7);
//! ```

#[cfg(not(loom))]
pub mod account;
pub mod astack;
pub mod channel;
pub mod direct;
pub mod hybrid;
#[cfg(not(loom))]
pub mod mailbag;
#[doc(hidden)]
pub mod one_slot;
pub mod region;
pub mod ring;
pub mod sequence;
pub mod single;
pub mod slot;
pub mod span;
pub mod station;
pub mod steps;
#[cfg(not(loom))]
pub mod tally;
#[cfg(not(loom))]
mod text;
