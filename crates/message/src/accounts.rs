//! What members of groups have sent and taken, for people and programs that observe them.
//!
//! Each member counts in memory that others can only read ([`upcall_shm::account`]). The observer
//! gets that memory from the kernel, through `/proc`. That needs nothing of the member, which may
//! be stopped, in a debugger, or waiting for others.

use std::collections::BTreeMap;
use std::io;
use upcall_directory::names;
use upcall_os::memory;
use upcall_shm::account;

pub use upcall_shm::account::{MemberStatsReading, MemberStop, PairReading, PeerMemberStats};

/// Size of a segment, in which messages are buffered, in bytes; see [`PairReading::segments`].
pub const SEGMENT: u64 = upcall_shm::mailbag::SEGMENT_BYTES as u64;

/// The current time, in nanoseconds.
///
/// On the clock of [`MemberStop::since`] and [`MemberStatsReading::formed`].
pub fn now() -> u64 {
    upcall_os::clock::stamp(std::time::Instant::now())
}

/// The processes of this user that are members of groups or are joining one.
///
/// The value is the number of groups. Read from the folder of names; a process that was killed may
/// still be listed.
pub fn members() -> BTreeMap<u32, usize> {
    names::members()
}

/// Returns the accounts of a process. Takes some µs for each of its descriptors.
///
/// # Errors
/// The process has ended, or may not be inspected: it has made itself unreadable
/// (`PR_SET_DUMPABLE`), or is in another namespace.
pub fn of(pid: u32) -> io::Result<Vec<PeerMemberStats>> {
    // Files that are no account, or one of another version, are skipped.
    Ok(memory::files_of(pid, account::NAME)?
        .into_iter()
        .filter_map(|file| PeerMemberStats::join(file).ok())
        .collect())
}
