//! The benchmark harness: Upcall, its peers and the limits of the machine, measured alike and in
//! the same run.
//!
//! The suites:
//!
//! * [`rpc`] starts each system as a server and a client process, pinned. All make the same calls
//!   with the same payloads, which are rewritten and checked on each call.
//! * [`threads`] runs the same thread operations in each system, in a process of its own, pinned
//!   and counted.
//! * [`urpc`] repeats that paper's experiments with Upcall: calls by several threads at once, and
//!   the parts of a call.
//! * [`lrpc`] repeats that paper's experiments: four calls on one processor beside the least that
//!   the machine permits, and calls by several processors at once.
//! * [`messages`] passes messages between a sender and a receiver of each system, and measures what
//!   only Upcall provides.
//! * [`homed`] runs operations on an object by every method.
//! * [`cache`] gets and puts entries of a table of a million, with Upcall and two servers of
//!   others.
//! * [`pvm`] runs PVM programs with Upcall, with PVM and with MPI.
//! * [`hosts`] calls from one host to another, both of them network namespaces, and runs PVM
//!   programs on both.
//! * [`links`] runs simulated hosts, up to 100 000, whose links are cut.
//!
//! The harness interleaves the systems round by round and probes the cache line beside each turn.
//! It reports medians over rounds as tables ([`table`]) and as JSON records ([`recorded`]). It does
//! not tune a peer beyond the peer's documentation, and does not depend on peers: they live in
//! `bench/peers`, a workspace of its own.
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
//! The first arguments and main functions of the other suites' children are `bench-threads` and
//! [`threads::child::child_main`], `bench-urpc` and [`urpc::child::child_main`], `bench-messages`
//! and [`messages::child::child_main`], `bench-own-messages` and
//! [`messages::own::child::child_main`], `bench-homed` and [`homed::child::child_main`],
//! `bench-cache` and [`cache::child::child_main`], `bench-pvm` and [`pvm::child::child_main`],
//! `bench-hosts` and [`hosts::child::child_main`], and `bench-links` and
//! [`links::child::child_main`].
//!
//! Reading order: [`suite`] and `run`, which all suites share. Calls: [`case`], [`payload`],
//! [`child`], then `limits` and `socket` as examples of systems, then `pair` and [`rpc`]. Threads:
//! [`threads::case`], [`threads::child`], [`threads::library`], then [`threads`]. The papers'
//! experiments: [`urpc::case`], [`urpc::child`], then [`urpc`]; [`lrpc`]. Messages:
//! [`messages::case`], [`messages::child`], then [`messages`]; [`messages::own::case`], [`lab`],
//! then [`messages::own`]. Objects: [`homed::case`], [`homed::paper`], then [`homed`]. Tables:
//! [`cache::case`], [`cache::child`], then [`cache`]. PVM: [`pvm::case`], [`pvm::contender`], then
//! [`pvm`]. Hosts: [`hosts::case`], [`hosts::child`], then [`hosts`]; [`links::case`], then
//! [`links`].
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
pub mod hosts;
mod interrupted;
pub mod lab;
mod like;
mod limits;
pub mod line;
pub mod links;
pub mod lrpc;
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
pub mod recorded;
mod remains;
mod report;
pub mod rpc;
mod run;
mod scratch;
mod socket;
pub mod stats;
pub mod suite;
pub mod table;
pub mod threads;
pub mod urpc;
