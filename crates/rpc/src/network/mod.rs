//! Bindings to other machines: the client's side ([`far`]), its questions without a binding
//! ([`questions`]) and its count of calls ([`made`]), the server's side ([`doors`], [`client`]),
//! and their names ([`address`]).
//!
//! The blocks and the readers are those of shared memory. Here each block is a copy of its own
//! before it is read. docs/reference/network.md lists the differences.

pub(crate) mod address;
pub(crate) mod client;
pub(crate) mod doors;
pub(crate) mod far;
pub(crate) mod made;
pub(crate) mod questions;

/// Maximum number of calls of one connection that a server takes at once. Further calls wait in the
/// client, in the order of asking.
pub(crate) const WINDOW: u16 = 256;
