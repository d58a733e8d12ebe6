//! A file server in a process of its own, and a client that proves every byte.
//!
//! What: a directory tree served read-only ([`tree`], [`serve`]) behind the interface of
//! `wit/files.wit`; a walk over it that knows nothing of how its calls are carried ([`walk`]);
//! three carriers: calls of the interface, in the same process or to another one ([`calls`]), and a
//! Unix socket to compare with ([`socket`]). The programs are `file-server` and `file-client`.
//!
//! What not: a file system. There are no writes, no caches, no locks.
#![forbid(unsafe_code)]

pub mod calls;
pub mod contest;
pub mod direct;
pub mod progress;
pub mod proof;
pub mod report;
pub mod serve;
pub mod server;
pub mod socket;
pub mod started;
pub mod timing;
pub mod tree;
pub mod walk;

// The stubs, made by build.rs from wit/files.wit: the module `files`.
include!(concat!(env!("OUT_DIR"), "/files.rs"));
