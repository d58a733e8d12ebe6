//! Control transfer to another machine: messages over a TCP connection.
//!
//! What: messages and their boundaries in a stream of bytes ([`frame`]); a connection, whose bytes
//! are moved by kernel threads ([`wire`]); its calling end, on which many calls wait for their
//! replies at once ([`caller`]); and the listener that admits a server's connections ([`door`]).
//!
//! What not: names, bindings and values, which belong to `rpc`. Nor is there encryption: a party
//! that can read or change the bytes in transit is trusted. A transport that takes them beyond one
//! machine has to protect them (docs/reference/network.md).
//!
//! Source: LRPC, section 5.1: a call to a truly remote server takes the branch to a more
//! conventional RPC stub; and for that stub Birrell and Nelson, 1984. Their protocol repeats a call
//! when no answer arrives, and so has to distinguish a repeated call from a new one. Upcall leaves
//! that to TCP: a call is sent once.
//!
//! # Threads
//! A server has one kernel thread for all connections whose first message has not arrived yet
//! ([`door`], [`lobby`]): each of them costs a descriptor, for 5 s at most.
//!
//! A connection has two kernel threads on each side: one reads, and one writes what the kernel does
//! not take at once. A sender, even on a virtual processor, hands its bytes to the kernel if the
//! kernel takes them now, and to the writing thread otherwise. So only a caller that waits for a
//! reply waits for the network.
#![forbid(unsafe_code)]

pub mod caller;
pub mod door;
pub mod frame;
pub mod identity;
pub mod lobby;
pub mod tls;
pub mod wire;

pub use caller::{LateFrame, NetworkCaller};
pub use door::{Admit, NetworkListener};
pub use frame::{Deframer, Frame, FrameBody, FrameError, FrameHeader, FrameKind};
pub use lobby::ConnectionOwner;
pub use wire::{Attend, Lost, Wire};
