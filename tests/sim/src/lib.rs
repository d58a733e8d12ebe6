//! Domains that exchange messages on a virtual clock, driven by a seed that reproduces each run.
//!
//! Domains run as threads of this process, one at a time, each on a virtual processor with its own
//! clock; the domain whose clock is behind goes on ([`engine`]). They run the code that ships.
//! Their messages go through the queue `upcall_shm::direct`, over memory whose every access is a
//! step of the simulator ([`bag`]): a domain is stopped, overtaken or killed between any two of its
//! loads and stores. `upcall_message::proto` decides what a sender does without room, whose message
//! a receiver takes next, and when it forgets a sender. The sleep is that of `upcall_sched::sleep`.
//! [`member`] drives them, as `Group` does in a process.
//!
//! [`chaos`] makes domains do anything, from a seed, while [`ledger`] checks that the promises of
//! messages hold. [`synth`] is the application of Figure 7 in UDM, and [`tpuz`] has those of its
//! Table 6: two jobs on the same processors. [`calling`] makes callers, liars and other threads
//! share CPUs with a server that follows the shipped idle policy `upcall_sched::poller`; the inputs
//! of the policy in a run are replayed to a new one ([`recorded`]).
//!
//! [`moving`] moves tasks between processes by the shipped `upcall_pvm::moves`. [`links`] are hosts
//! whose connections are cut, with the shipped `upcall_net::link`.
//!
//! Not covered: calls of user-level threads; processors that reorder (every step is seen by all at
//! once: loom and Spin check that, see `crates/message/model/messages.pml`); the kernel; joining a
//! group; peers that break the rules (`upcall-tests`).
//!
//! Source: UDM, section 5, whose results are from a simulator too.
//!
//! ```
//! let summary = upcall_simulator::chaos::run(7, 2_000).unwrap();
//! assert_eq!(summary, upcall_simulator::chaos::run(7, 2_000).unwrap());
//! ```
#![forbid(unsafe_code)]

pub mod bag;
pub mod calling;
pub mod chaos;
pub mod cpus;
pub mod dice;
pub mod engine;
pub mod jobs;
pub mod ledger;
pub mod links;
pub mod member;
pub mod moving;
pub mod puzzle;
pub mod recorded;
pub mod slices;
pub mod state;
pub mod synth;
pub mod tpuz;
pub mod trouble;
pub mod turns;

/// A domain's number, from 0.
pub type Rank = usize;
