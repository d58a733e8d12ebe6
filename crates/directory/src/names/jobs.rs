//! The names of jobs, and which supervisor lets them take turns.
//!
//! A supervisor stops processes at any moment, also while they enter or remove a name. That holds
//! up no other process, because no lock is held (see [`super::entry`]).

use super::{
    FolderError, Leader, NotEntered, NotFound, check, enter_entry, entries, entry, folder,
    folder_of, leave, unknown,
};
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) const NAMED: &str = "jobs.";
pub(super) const TURNS: &str = "turns.";
const LEADER: &str = "turns.now";

fn entry_of(name: &str) -> String {
    format!("{NAMED}{name}")
}

/// Enters the name of a job, as [`super::enter`] does.
///
/// # Errors
/// A running job has the name, the text cannot be a name, or the folder cannot be written.
pub fn enter(name: &str, supervisor: &Path) -> Result<(), NotEntered> {
    check(name).map_err(|why| NotEntered::BadName { name: name.into(), why })?;
    enter_entry(&entry_of(name), supervisor).map_err(|error| match error {
        NotEntered::Taken { pid, .. } => NotEntered::Taken { name: name.into(), pid },
        other => other,
    })
}

/// Removes what the supervisor with this socket has entered, and the socket.
pub fn forget(name: &str, supervisor: &Path) {
    leave(LEADER, supervisor);
    leave(&entry_of(name), supervisor);
    let _ = fs::remove_file(supervisor);
}

/// Finds the socket of a job's supervisor, which may have been killed.
///
/// # Errors
/// The text cannot be a name, or there is no such job.
pub fn find(name: &str) -> Result<PathBuf, NotFound> {
    check(name).map_err(|why| NotFound::BadName { name: name.into(), why })?;
    let folder = folder()?;
    match entry::find(&folder, &entry_of(name)) {
        Ok(Some(socket)) => Ok(socket),
        Ok(None) => Err(unknown(name, folder)),
        Err(error) => Err(FolderError::Unusable { path: folder, error }.into()),
    }
}

/// All jobs, by name, with the sockets of their supervisors.
pub fn all() -> Vec<(String, PathBuf)> {
    let named = entries().filter_map(|(path, entry)| {
        let name = entry.strip_prefix(NAMED)?.to_string();
        Some((name, entry::find(folder_of(&path), &entry).ok()??))
    });
    let mut jobs: Vec<_> = named.collect();
    jobs.sort();
    jobs
}

/// Finds the supervisor that lets the jobs take turns, or appoints this one.
///
/// Never waits. Returns `None` if the folder of names gives no answer yet; try again soon.
pub fn try_lead(supervisor: &Path) -> Option<Leader> {
    match entry::enter(LEADER, supervisor) {
        Ok(()) | Err(NotEntered::Here { .. }) => Some(Leader::Us),
        Err(_) => entry::find(folder_of(supervisor), LEADER).ok()?.map(Leader::At),
    }
}
