//! Control transfer to another machine: links over TCP.
//!
//! What: messages in both directions over one connection, as a state machine without input or
//! output ([`link`], and what it consists of: [`frame`], [`record`], [`reader`], [`incoming`],
//! [`outgoing`], [`kept`], [`bodies`]); what protects a connection ([`secure`], [`tls`], by the
//! identities of hosts in [`identity`]); its socket ([`wire`]), which one thread of the process
//! drives ([`driver`]); the calling end, on which many calls wait for their replies at once
//! ([`caller`], [`dial`], [`reach`]); the listener that admits a server's connections ([`door`],
//! [`lobby`], [`listen`], [`admitted`]); and the names of servers on other hosts ([`address`]).
//!
//! What not: names, bindings and values, which belong to `rpc`.
//!
//! Source: LRPC, section 5.1: a call to a truly remote server takes the branch to a more
//! conventional RPC stub; and for that stub Birrell and Nelson, 1984. Their protocol repeats a call
//! when no answer arrives, and so has to distinguish a repeated call from a new one. A link sends a
//! call once.
//!
//! # Threads
//! A server has one kernel thread for all connections whose first message has not arrived yet
//! ([`door`]): each of them costs a descriptor, for 5 s at most. All other connections of a process
//! are driven by one thread.
#![forbid(unsafe_code)]

pub mod address;
pub mod admitted;
pub mod attend;
pub mod bodies;
pub mod caller;
pub mod dial;
pub mod door;
pub mod driver;
pub mod frame;
pub mod identity;
pub mod incoming;
pub mod kept;
pub mod link;
pub mod listen;
pub mod lobby;
pub mod lost;
pub mod outgoing;
pub mod reach;
pub mod reader;
pub mod record;
pub mod secure;
pub mod tls;
pub mod wire;

pub use address::FarName;
pub use admitted::{Admissions, Admitted};
pub use attend::Attend;
pub use caller::{CallerTerms, LateFrame, NetworkCaller};
pub use dial::{NoConnection, Protection, dial, new_link, own_store};
pub use door::{Admit, NetworkListener, ProvedClient, Resumed, TakeOver};
pub use frame::{Frame, FrameBody, FrameError, FrameHeader, FrameKind};
pub use incoming::Wanted;
pub use link::{HostLink, LinkTerms};
pub use listen::{NotListening, usable_identity};
pub use lobby::ConnectionOwner;
pub use lost::Lost;
pub use outgoing::{BufferOwner, MessageLane, OutMessage};
pub use reach::{LEAST_LOST_AFTER, Unreached, reach};
pub use wire::{LATEST_LOST, LOST_AFTER, Wire, WireTerms};
