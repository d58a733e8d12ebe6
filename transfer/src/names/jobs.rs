//! The names of jobs, and which supervisor lets them take turns.
//!
//! A supervisor stops processes, and any of them may hold the folder's lock at that moment. So once its members run it never waits for the lock, but looks whether it is free; and it stops members while it has the lock itself
//! ([`still`]), so that none of them has it while it is stopped.

use super::{Leader, Lock, NotEntered, NotFound, check, enter_entry, enter_locked, folder, leave, try_lock};
use std::fs;
use std::path::{Path, PathBuf};

pub(super) const NAMED: &str = "jobs.";
pub(super) const TURNS: &str = "turns.";
const LEADER: &str = "turns.now";

fn entry(name: &str) -> String {
    format!("{NAMED}{name}")
}

/// Enters the name of a job for the supervisor with this socket, as [`super::enter`] does.
///
/// # Errors
/// It is taken by a job that runs, cannot be a name, or the folder cannot be written.
pub fn enter(name: &str, supervisor: &Path) -> Result<(), NotEntered> {
    check(name).map_err(|why| NotEntered::BadName { name: name.into(), why })?;
    enter_entry(&entry(name), supervisor).map_err(|error| match error {
        NotEntered::Taken { pid, .. } => NotEntered::Taken { name: name.into(), pid },
        other => other,
    })
}

/// Takes out what the supervisor with this socket has entered, and the socket. For when its members have ended: this waits for the lock.
pub fn forget(name: &str, supervisor: &Path) {
    leave(LEADER, supervisor);
    leave(&entry(name), supervisor);
    let _ = fs::remove_file(supervisor);
}

/// The socket of a job's supervisor. It may be one that was killed.
///
/// # Errors
/// A bad name, or there is no such job.
pub fn find(name: &str) -> Result<PathBuf, NotFound> {
    check(name).map_err(|why| NotFound::BadName { name: name.into(), why })?;
    let folder = folder();
    match fs::read_link(folder.join(entry(name))) {
        Ok(target) => Ok(folder.join(target.file_name().unwrap_or_default())),
        Err(_) => Err(NotFound::Unknown { name: name.into(), folder }),
    }
}

/// All jobs, by name, with the sockets of their supervisors.
pub fn all() -> Vec<(String, PathBuf)> {
    let folder = folder();
    let Ok(entries) = fs::read_dir(&folder) else { return Vec::new() };
    let named = |entry: fs::DirEntry| {
        let name = entry.file_name().to_str()?.strip_prefix(NAMED)?.to_string();
        let target = fs::read_link(entry.path()).ok()?;
        Some((name, folder.join(target.file_name()?)))
    };
    let mut jobs: Vec<_> = entries.flatten().filter_map(named).collect();
    jobs.sort();
    jobs
}

/// Finds which supervisor lets the jobs take turns, or has the one with this socket do it. `None`: somebody else is at the folder; try again soon. Never waits.
pub fn try_lead(supervisor: &Path) -> Option<Leader> {
    let folder = supervisor.parent()?;
    let _lock = try_lock(folder)?;
    match enter_locked(LEADER, supervisor) {
        Ok(()) | Err(NotEntered::Here { .. }) => Some(Leader::Us),
        Err(_) => {
            let target = fs::read_link(folder.join(LEADER)).ok()?;
            Some(Leader::At(folder.join(target.file_name()?)))
        }
    }
}

/// As long as this is held nobody changes the folder of this socket: who is stopped meanwhile is not stopped at that.
#[derive(Debug)]
pub struct Still(#[expect(dead_code, reason = "held for its lock")] Lock);

/// See [`Still`]. `None` if somebody is at it.
pub fn still(supervisor: &Path) -> Option<Still> {
    try_lock(supervisor.parent()?).map(Still)
}
