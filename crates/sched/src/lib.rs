//! Scheduling: the next thread runs user-level, by hand-off, or on another machine.
//!
//! In this crate: the two ends of a channel ([`calls`], [`server`]); what a virtual processor does
//! when none of its threads is ready ([`idle`]): poll its channels, spin for a bounded time, sleep;
//! when a sleeper is woken, and on which processor ([`handoff`], [`sleep`], [`pacing`]).
//!
//! Not in this crate: interfaces and values. A message here is a line with the number of a
//! procedure; `rpc` knows what it means.
//!
//! # How a call travels
//!
//! *User-level* (URPC, section 3): the caller writes one line; the server, polling, takes it, runs
//! it and writes one line back; the caller, spinning or running other threads, takes that. Neither
//! side makes a system call.
//!
//! *Hand-off* (LRPC, section 3.2; URPC's processor donation, section 3.1.2): the server sleeps. The
//! caller moves the server's sleeping kernel thread to its own CPU, wakes it and sleeps itself. The
//! server runs on that CPU and gives it back by waking the caller and sleeping again. On this
//! generation of machines that is ten times cheaper than waking it on another CPU.
//!
//! *Network* (LRPC, section 5.1): the server is on another machine, and the call is a message on a
//! connection (`upcall_net`). This is decided when a client binds.
//!
//! The choice between the first two depends on a word that the server publishes
//! ([`upcall_shm::station`]), and never on a question to the kernel.
#![forbid(unsafe_code)]

#[cfg(not(loom))]
pub mod arrivals;
#[cfg(not(loom))]
pub mod aside;
#[cfg(not(loom))]
pub mod calls;
pub mod cancel_flag;
#[cfg(not(loom))]
pub mod costs;
#[cfg(not(loom))]
pub mod domain;
pub mod duty;
pub mod gate;
#[cfg(not(loom))]
pub mod handoff;
#[cfg(not(loom))]
pub mod idle;
#[cfg(not(loom))]
pub mod look;
pub mod mask;
#[cfg(not(loom))]
pub mod pacing;
pub mod placed;
#[cfg(not(loom))]
pub mod poller;
#[cfg(not(loom))]
pub mod post;
#[cfg(not(loom))]
pub mod quota;
pub mod rechecks;
#[cfg(not(loom))]
pub mod ringer;
#[cfg(not(loom))]
pub mod rung;
#[cfg(not(loom))]
pub mod server;
pub mod sleep;
pub mod stall;
#[cfg(not(loom))]
mod steer;
#[cfg(not(loom))]
pub mod turns;
#[cfg(not(loom))]
mod wait;
#[cfg(not(loom))]
mod wait_limit;
pub mod wake_check;

#[cfg(not(loom))]
pub use calls::CallerChannel;
#[cfg(not(loom))]
pub use domain::Domain;
#[cfg(not(loom))]
pub use handoff::HandOff;
#[cfg(not(loom))]
pub use idle::attended::Attended;
#[cfg(not(loom))]
pub use idle::{PollingIdle, Processor, index};
#[cfg(not(loom))]
pub use pacing::Pacing;
#[cfg(not(loom))]
pub use server::{Request, Serve, ServerChannel};
#[cfg(not(loom))]
pub use wait::{
    Closed, LateReply, NoReply, PIECE, Sleeper, WaitPolicy, block_unless, give_way, run_late,
};
#[cfg(not(loom))]
pub use wait_limit::{CancelToken, WaitLimit};
