//! The benchmark harness: Upcall, its peers and the limits of the machine, measured alike and in
//! the same run.
//!
//! What it does: in the suite [`rpc`], starts each system as a server and a client process, pinned,
//! and has them make the same calls with the same payloads, written afresh and checked on each
//! call; in the suite [`threads`], has each system do the same operations of threads in a process
//! of its own, pinned and counted; in the suite [`urpc`], has Upcall repeat that paper's
//! experiments: calls by several threads at once, and the parts of a call; in the suite [`lrpc`],
//! those of LRPC: four calls on one processor beside the least that the machine permits, and calls
//! by several processors at once; in the suite [`messages`], has a sender and a receiver of each
//! system pass messages, and measures what only ours has of them; in the suite [`homed`], has
//! operations on an object run by every way that there is; in the suite [`cache`], has ours and two
//! servers of others get and put entries of a table of a million; in the suite [`pvm`], has PVM
//! programs run as ours, as PVM's and as MPI's. It interleaves the systems round by round;
//! probes the cache line beside each turn; and reports medians over rounds as a table and as JSON
//! records. What it does not do: tune a peer beyond its documentation, or depend on one (they live
//! in `bench/peers`, a workspace of its own).
//!
//! A program that runs the benchmark is also the program that its children run:
//!
//! ```no_run
//! use std::process::ExitCode;
//! use upcall_bench::rpc::{self, Rpc};
//! use upcall_bench::suite::{self, Options};
//! use upcall_bench::child;
//!
//! fn main() -> ExitCode {
//!     let args: Vec<_> = std::env::args_os().skip(1).collect();
//!     if args.first().is_some_and(|first| first == "bench-child") {
//!         return child::child_main(args.into_iter().skip(1), &rpc::SYSTEMS);
//!     }
//!     let options = Options::of(std::env::current_exe().expect("this program's own path"));
//!     match suite::run(&Rpc::default(), &options) {
//!         Ok(report) if report.failures.is_empty() => ExitCode::SUCCESS,
//!         Ok(_) => ExitCode::FAILURE,
//!         Err(error) => {
//!             eprintln!("{error}");
//!             ExitCode::FAILURE
//!         }
//!     }
//! }
//! ```
//! The other suites have `bench-threads` and [`threads::child::child_main`], `bench-urpc` and
//! [`urpc::child::child_main`], `bench-messages` and [`messages::child::child_main`],
//! `bench-own-messages` and [`messages::own::child::child_main`], `bench-homed` and
//! [`homed::child::child_main`], `bench-cache` and [`cache::child::child_main`], and `bench-pvm`
//! and [`pvm::child::child_main`] for this.
//!
//! Reading order: [`suite`] and `run`, which all suites have in common. Of calls: [`case`],
//! [`payload`], [`child`], then `limits` and `socket` as examples of systems, then `pair` and
//! [`rpc`]. Of threads: [`threads::case`], [`threads::child`],
//! [`threads::library`], then [`threads`]. Of the papers' experiments: [`urpc::case`],
//! [`urpc::child`], then [`urpc`]; [`lrpc`]. Of messages: [`messages::case`], [`messages::child`],
//! then [`messages`]; [`messages::own::case`], [`lab`], then [`messages::own`]. Of objects:
//! [`homed::case`], [`homed::paper`], then [`homed`]. Of tables: [`cache::case`], [`cache::child`],
//! then [`cache`]. Of PVM: [`pvm::case`], [`pvm::contender`], then [`pvm`].
#![deny(unsafe_code)]

mod built;
pub mod bytes;
pub mod cache;
pub mod case;
pub mod child;
mod contender;
mod error;
mod found;
pub mod homed;
mod interrupted;
pub mod lab;
mod like;
mod limits;
pub mod line;
pub mod lrpc;
pub mod markdown;
pub mod messages;
mod output;
mod pair;
pub mod payload;
mod peers;
pub mod place;
mod process;
mod programs;
mod progress;
pub mod pvm;
#[allow(unsafe_code)]
mod raw;
pub mod record;
mod remains;
mod report;
pub mod rpc;
mod run;
mod scratch;
mod socket;
pub mod stats;
pub mod suite;
mod table;
pub mod threads;
pub mod urpc;
