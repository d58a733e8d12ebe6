//! Binding, calls and dispatch.
//!
//! A server exports interfaces under names ([`server`]). A client imports an interface
//! ([`binding`]) and calls its procedures through generated stubs. The stubs write values to where
//! they travel and read them back ([`value`], [`encode`], [`decode`]): in the call's slot if they
//! have at most 48 bytes, in an A-stack if they fit there, and otherwise in a segment that the
//! client brings. Names are files in a folder of sockets ([`names`]). The clerk
//! ([`upcall_directory::clerk`]) is the one kernel thread of a domain that answers binders and
//! notices the end of peers; no call passes through it.
//!
//! This crate does not contain threads, rings and waking (see `upcall-sched`), nor the compiler of
//! interfaces (see `upcall-idl`).
//!
//! Source: LRPC, sections 3.1 to 3.5, for binding, A-stacks, stubs and termination; URPC, sections
//! 2 and 3, for the layers beneath.
#![forbid(unsafe_code)]

mod absent;
pub mod binding;
mod bound;
mod brought;
mod call;
pub mod decode;
pub mod encode;
pub mod endpoint;
pub mod error;
mod exports;
#[doc(hidden)]
pub mod fuzzing;
pub mod interface;
mod learn;
pub mod link;
mod network;
mod pace;
mod peer;
mod places;
mod reaper;
pub mod server;
pub mod session;
mod shared;
mod terms;
mod turn;
pub mod untyped;
pub mod value;
mod wire;

pub use absent::wait_while_absent;
pub use binding::{Binder, Binding, WhenFull};
pub use decode::{Bytes, Decoder, Malformed, QuotaScope};
pub use encode::Encoder;
pub use error::{BindError, CallError, Failure, ServeError};
pub use interface::{Extent, Footprint, Interface, Limits, Part, Procedure};
pub use learn::{exported, exported_expecting, list_far, ping, try_exported};
pub use network::made::{FarCalls, far_calls};
pub use network::questions::{FarCounts, FarServer, Pinged};
pub use pace::Pace;
pub use server::{Call, ClientBinding, Dispatch, Export, Replied, Running, Server};
pub use terms::BindTerms;
pub use upcall_directory::names::Group;
pub use upcall_directory::{names, policy};
pub use upcall_sched::quota::{HELD, Quota, Quotas};
pub use upcall_sched::{CancelToken, HandOff, Pacing};
pub use upcall_shm::tally::{Arrival, PeerTallies, Reading};
pub use value::{Get, Handle, Layout, Lent, Put};
pub use wire::Exported;
