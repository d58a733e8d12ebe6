//! Bindings to other machines: the client's side ([`far`]), the server's ([`doors`], [`guest`]),
//! and how they are named ([`address`]).
//!
//! The blocks are those of shared memory, and so are the readers: here a block is a copy of its own
//! before anybody looks at it. What differs is told in docs/network.md.

pub(crate) mod address;
pub(crate) mod doors;
pub(crate) mod far;
pub(crate) mod guest;

/// Calls of one connection that a server takes at once; more wait in the client, in the order of
/// asking.
pub(crate) const WINDOW: u16 = 256;
