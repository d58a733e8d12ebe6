//! The kernel, as Upcall uses it.
//!
//! This crate has sealed memory files and their mappings ([`memory`]), doorbells ([`doorbell`]) and
//! their safe notification ([`safe_doorbell`]), and waiting on a word or on many doorbells
//! ([`futex`], [`poll`]) or for a time ([`timer`]). It has private memory by the page ([`pages`]),
//! handlers of signals ([`signal`]), the control socket that carries descriptors and the peer's
//! identity ([`socket`]), processors ([`processor`]), a fence for all of them ([`membarrier`]), and
//! interrupts of a thread ([`interrupt`]). It has times ([`clock`]), random bytes ([`random`]), the
//! memory that is left ([`headroom`]), other processes ([`process`]) and how they look from outside
//! ([`trace`]), the cgroup of this one ([`cgroup`]), users and groups by name ([`user`],
//! [`group`]), files on their way to the disk ([`write_back`]), descriptors that forked children do
//! not keep ([`unforked`]), and the atomics that a model checker can replace ([`atomic`]).
//! Errors print their text also as `Debug` ([`error_debug!`]).
//! For tests it has the points at which a process ends ([`fault`]) and a count of the system calls
//! that calls make ([`crossings`]). The feature `testing` adds system calls that a test answers
//! (`seccomp`), an allocator that refuses (`ration`), forked children (`forked`), and network
//! devices whose packets a test carries (`tun`); the feature `frames` adds backtraces by call frame
//! information (`frames`).
//!
//! It has no policy. Nothing here decides when to wait, which peer to trust, or how long to spin;
//! every call is one or a few system calls with a typed result. Nothing here logs.
//!
//! ```
//! use upcall_os::memory::{Mapping, MemoryFile};
//!
//! let file = MemoryFile::create("example", 4096)?;
//! let map = Mapping::shared(&file)?;
//! assert_eq!(map.len(), 4096);
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod atomic;
pub mod cgroup;
pub mod clock;
mod closer;
#[cfg(not(loom))]
pub mod cost;
pub mod crossings;
pub mod doorbell;
pub mod error_debug;
pub mod fault;
#[cfg(feature = "testing")]
pub mod forked;
#[cfg(feature = "frames")]
pub mod frames;
pub mod futex;
pub mod group;
pub mod headroom;
pub mod interrupt;
pub mod lock;
pub mod loopback;
pub mod membarrier;
pub mod memory;
pub mod once;
pub mod pages;
pub mod poll;
pub mod process;
pub mod processor;
pub mod random;
#[cfg(feature = "testing")]
pub mod ration;
pub mod reaper;
pub mod safe_doorbell;
#[cfg(feature = "testing")]
pub mod seccomp;
pub mod signal;
pub mod socket;
pub mod tcp;
pub mod text;
pub mod timer;
pub mod trace;
#[cfg(feature = "testing")]
pub mod tun;
pub mod unforked;
pub mod user;
pub mod write_back;

/// Marks the path on which this is called as rarely taken, so that the compiler lays the other one
/// out in line. `std::hint::cold_path` does the same, and needs Rust 1.95.
#[inline]
#[cold]
pub const fn cold_path() {}
