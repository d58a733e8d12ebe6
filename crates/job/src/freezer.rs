//! The freezer of cgroup v2: one write suspends all processes of a job.
//!
//! That includes the processes that the members start. It takes a cgroup below our own that this
//! user may create and move processes into. Root has one, and so has a user who was given one
//! (`systemd-run --user --scope`). Nothing is mounted or changed above it. A supervisor that is
//! killed leaves an empty cgroup behind. Its name identifies the process, and the next supervisor
//! removes it.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use upcall_os::cgroup;
use upcall_os::process;
use upcall_os::socket::has_ended;

const PREFIX: &str = "upcall-job-";

/// A job's cgroup. Dropping it ends the processes in it, and removes it.
#[derive(Debug)]
pub(crate) struct Freezer(PathBuf);

impl Freezer {
    /// Makes a cgroup of our own.
    ///
    /// The error is the reason why there can be none, in words.
    pub(crate) fn new() -> Result<Self, String> {
        let above = cgroup::own().ok_or("this process is in no mounted cgroup of version 2")?;
        sweep_in(&above);
        let pid = std::process::id();
        let folder = above.join(format!("{PREFIX}{pid}-{}", process::born(pid).unwrap_or(0)));
        let why = |what: &Path, error: io::Error| format!("{}: {error}", what.display());
        fs::create_dir(&folder).map_err(|error| why(&folder, error))?;
        let freezer = Self(folder);
        // A process that is moved into it also has to be moved out of its present cgroup.
        for needed in [
            freezer.0.join("cgroup.freeze"),
            freezer.0.join("cgroup.procs"),
            above.join("cgroup.procs"),
        ] {
            fs::OpenOptions::new()
                .write(true)
                .open(&needed)
                .map_err(|error| why(&needed, error))?;
        }
        Ok(freezer)
    }

    /// A cgroup that another process has removed.
    #[cfg(test)]
    pub(crate) fn removed() -> Self {
        Self("/proc/no-cgroup".into())
    }

    /// The file by which a process joins.
    pub(crate) fn door(&self) -> io::Result<OwnedFd> {
        Ok(fs::OpenOptions::new().write(true).open(self.0.join("cgroup.procs"))?.into())
    }

    /// Suspends or resumes the whole cgroup.
    pub(crate) fn set(&self, frozen: bool) -> io::Result<()> {
        fs::write(self.0.join("cgroup.freeze"), if frozen { "1" } else { "0" })
    }

    /// Returns `true` if the whole cgroup is suspended.
    pub(crate) fn is_frozen(&self) -> bool {
        fs::read_to_string(self.0.join("cgroup.events"))
            .is_ok_and(|events| events.lines().any(|line| line == "frozen 1"))
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

fn remove(folder: &Path) {
    let _ = fs::write(folder.join("cgroup.kill"), "1");
    for _ in 0..100 {
        match fs::remove_dir(folder) {
            // A killed process stays in the cgroup until it is gone.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                std::thread::sleep(Duration::from_millis(1))
            }
            _ => return,
        }
    }
}

/// Removes what killed supervisors left, where this process can make cgroups.
pub(crate) fn sweep() {
    if let Some(above) = cgroup::own() {
        sweep_in(&above);
    }
}

fn sweep_in(above: &Path) {
    let entries = fs::read_dir(above).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let parts = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split_once('-'));
        let numbers = parts
            .and_then(|(pid, born)| Some((pid.parse::<u32>().ok()?, born.parse::<u64>().ok()?)));
        if let Some((pid, born)) = numbers
            && process::open(pid, born).is_ok_and(|process| process.is_none_or(has_ended))
        {
            remove(&entry.path());
        }
    }
}
