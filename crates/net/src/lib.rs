//! Control transfer to another machine: messages over a connection of TCP.
//!
//! What: messages and how they are told apart in a stream of bytes ([`frame`]); a connection, whose
//! bytes are moved by kernel threads ([`wire`]); its calling end, on which many calls
//! wait for their replies at once ([`caller`]); and the place where a server's connections come in
//! ([`door`]).
//!
//! What not: names, bindings and values, which are `rpc`'s. Nor encryption: whoever can read or
//! change the bytes on their way is believed. What carries them further than a machine has to
//! protect them (docs/network.md).
//!
//! Source: LRPC, section 5.1: a call to a truly remote server takes the branch to a more
//! conventional RPC stub; and for that Birrell and Nelson, 1984. Theirs sends a call again when no
//! answer comes, and so has to tell a repeated one from a new one; ours leaves that to TCP: a call
//! is sent once.
//!
//! # Who works
//! A server has one kernel thread for all connections whose first message is not there yet
//! ([`door`], [`lobby`]): they cost a descriptor each, for 5 s at most.
//!
//! A connection has two kernel threads on each side: one reads, one writes what the kernel does not
//! take at once. Whoever sends, a virtual processor too, hands its bytes to the kernel if that
//! takes them now, and to the writing thread otherwise; so nobody waits for the network but who
//! waits for a reply.
#![forbid(unsafe_code)]

pub mod caller;
pub mod door;
pub mod frame;
pub mod lobby;
pub mod wire;

pub use caller::{LateFrame, NetworkCaller};
pub use door::{Admit, NetworkListener};
pub use frame::{Deframer, Frame, FrameBody, FrameError, FrameHeader, FrameKind};
pub use lobby::ConnectionOwner;
pub use wire::{Attend, Lost, Wire};
