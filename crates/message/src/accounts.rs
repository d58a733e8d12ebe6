//! What members of groups have sent and taken, for people and programs that look on.
//!
//! Each member counts in memory that others can only read ([`upcall_shm::account`]), and who looks
//! takes it from the kernel, by `/proc`: that asks nothing of the member, which may be stopped, in
//! a debugger, or waiting for others.

use std::collections::BTreeMap;
use std::io;
use upcall_directory::names;
use upcall_os::memory;
use upcall_shm::account;

pub use upcall_shm::account::{MemberStatsReading, MemberStop, PairReading, PeerMemberStats};

/// Bytes of a segment, in which messages are buffered: see [`PairReading::segments`].
pub const SEGMENT: u64 = upcall_shm::mailbag::SEGMENT_BYTES as u64;

/// This moment, by the clock of [`MemberStop::since`] and [`MemberStatsReading::formed`]: in
/// nanoseconds.
pub fn now() -> u64 {
    upcall_os::clock::stamp(std::time::Instant::now())
}

/// The processes of this user that are members of groups, or want to be, and of how many. From the
/// folder of names; one that was killed may be among them still.
pub fn members() -> BTreeMap<u32, usize> {
    names::members()
}

/// The accounts of a process. Takes some µs for each descriptor that it has.
///
/// # Errors
/// The process has ended, or may not be looked into: it has made itself unreadable
/// (`PR_SET_DUMPABLE`), or is in another namespace.
pub fn of(pid: u32) -> io::Result<Vec<PeerMemberStats>> {
    // What is no account, or one of another version, is none for us.
    Ok(memory::files_of(pid, account::NAME)?
        .into_iter()
        .filter_map(|file| PeerMemberStats::join(file).ok())
        .collect())
}
