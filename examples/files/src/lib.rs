//! A file server in its own process, and a client that proves every byte.
//!
//! A directory tree is served read-only ([`tree`], [`serve`]) behind the interface of
//! `wit/files.wit`. A walk over it is independent of how its calls are carried ([`walk`]). There
//! are three carriers: calls of the interface, in the same process or to another one ([`calls`]),
//! and a Unix socket to compare with ([`socket`]). The programs are `file-server` and
//! `file-client`.
//!
//! This is not a file system: there are no writes, no caches, no locks.
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

// The stubs that build.rs generates from wit/files.wit: the module `files`.
include!(concat!(env!("OUT_DIR"), "/files.rs"));
