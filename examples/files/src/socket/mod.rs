//! The same interface over a Unix socket, as a programmer would write it by hand today, to compare
//! with.
//!
//! It is meant to be good: binary, without avoidable copies, one write and usually one read for
//! each call, a thread for each connection.
//!
//! ```text
//! request   length u32 | operation u8 | arguments
//! reply     length u32 | 0 u8 | results
//!           length u32 | 1 u8 | error u8 | number u32
//! ```
//! All numbers are little-endian; the length counts what follows it. `close` has no reply.

mod client;
mod server;
mod wire;

pub use client::Socket;
pub use server::{Server, listen};

/// The operations.
mod operation {
    pub const ROOT: u8 = 0;
    pub const OPEN: u8 = 1;
    pub const STAT: u8 = 2;
    pub const READ: u8 = 3;
    pub const OPEN_DIRECTORY: u8 = 4;
    pub const ENTRIES: u8 = 5;
    pub const CLOSE: u8 = 6;
}

/// The first byte of a successful reply.
const DONE: u8 = 0;
const FAILED: u8 = 1;
/// Length of the head of a frame, in bytes: the length and the byte after it.
const HEAD: usize = 5;
/// Maximum length of a frame, in bytes: its head, a full chunk, and some room for numbers.
const LONGEST: usize = HEAD + crate::tree::MOST_BYTES as usize + 64;
