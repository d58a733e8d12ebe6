//! The memory of all processes of a run together, as the kernel charges it to a control group.
//!
//! A process's own count misses memory that no process maps any more, and counts shared memory once
//! for each process. A group of version 1 or 2 is created below that of this process, where that is
//! allowed, and the anonymous and shared memory charged to it is read from it. Pages of files on
//! disk do not count, since the first reader is charged for them.

use std::fmt;
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A control group with this process and all that it starts from now on.
pub struct Charged {
    group: PathBuf,
    /// The group that this process was in before.
    before: PathBuf,
}

impl Charged {
    /// Creates a group, and enters it. Returns `None` if the machine does not permit that.
    pub fn enter() -> Option<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let first =
            groups.lines().find_map(|line| line.split_once(":memory:")).map(|(_, path)| path);
        let first =
            first.map(|path| Path::new("/sys/fs/cgroup/memory").join(path.trim_start_matches('/')));
        let before = first.or_else(upcall_os::cgroup::own)?;
        let group = before.join(format!("upcall-soak-{}", std::process::id()));
        fs::create_dir(&group).ok()?;
        let made = Self { group, before };
        fs::write(made.group.join("cgroup.procs"), std::process::id().to_string()).ok()?;
        Some(made)
    }

    /// The memory charged to the group, without the pages of the `record`: it has words for each
    /// process ID, and a long run uses very many of those.
    pub fn memory(&self, record: impl AsFd) -> Option<Memory> {
        // A block is 512 bytes.
        let record = u64::try_from(rustix::fs::fstat(record).ok()?.st_blocks).ok()? / 2;
        let stat = fs::read_to_string(self.group.join("memory.stat")).ok()?;
        let number = |name: &str| {
            stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
        };
        let anonymous = number("total_rss ").or_else(|| number("anon "))?;
        let shared = number("total_shmem ").or_else(|| number("shmem "))?;
        Some(Memory { anonymous: anonymous >> 10, shared: (shared >> 10).saturating_sub(record) })
    }
}

/// Memory charged to a group, in KiB.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub anonymous: u64,
    /// Memory files, mapped or not.
    pub shared: u64,
}

impl Memory {
    pub fn all(self) -> u64 {
        self.anonymous + self.shared
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} KiB ({} of them shared)", self.all(), self.shared)
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        let _ = fs::write(self.before.join("cgroup.procs"), std::process::id().to_string());
        let start = Instant::now();
        while fs::remove_dir(&self.group).is_err()
            && self.group.exists()
            && start.elapsed() < Duration::from_secs(10)
        {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
