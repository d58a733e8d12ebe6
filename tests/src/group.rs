//! A control group of memory around one process.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A memory control group for a process, where the machine permits one.
#[derive(Debug)]
pub struct Group(Option<Made>);

#[derive(Debug)]
struct Made {
    path: PathBuf,
    names: Names,
}

/// The file names in a version of control groups.
#[derive(Debug)]
struct Names {
    limit: &'static str,
    usage: &'static str,
    peak: &'static str,
}

const FIRST: Names = Names {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    peak: "memory.max_usage_in_bytes",
};
const SECOND: Names = Names { limit: "memory.max", usage: "memory.current", peak: "memory.peak" };

/// Creates a group with this limit: of version 1, or of version 2 below that of this process.
fn make(limit: u64) -> io::Result<Made> {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let first = Path::new("/sys/fs/cgroup/memory");
    let (above, names) = match first.join("cgroup.procs").exists() {
        true => (first.into(), FIRST),
        false => {
            (upcall_os::cgroup::own().ok_or_else(|| io::Error::other("no control groups"))?, SECOND)
        }
    };
    let path = above.join(format!(
        "upcall-test-{}-{}",
        std::process::id(),
        MADE.fetch_add(1, Ordering::Relaxed)
    ));
    fs::create_dir(&path)?;
    let made = Made { path, names };
    match fs::write(made.path.join(made.names.limit), limit.to_string()) {
        Ok(()) => Ok(made),
        Err(error) => {
            let _ = fs::remove_dir(&made.path);
            Err(error)
        }
    }
}

impl Group {
    /// Creates a group with this limit for `pid`, whose pages are charged to it from now on. `what`
    /// names what is skipped without a group.
    pub fn around(pid: u32, limit: u64, what: &str) -> Self {
        let group = Self::new(limit, what);
        let put = |made: &Made| fs::write(made.path.join("cgroup.procs"), pid.to_string());
        match group.0.as_ref().map(put) {
            Some(Err(error)) => {
                eprintln!("skipped: {what}: {error}");
                drop(group);
                Self(None)
            }
            _ => group,
        }
    }

    /// Creates a group with this limit for programs that [`Group::command`] starts.
    pub fn new(limit: u64, what: &str) -> Self {
        let made = make(limit);
        Self(
            made.inspect_err(|error| {
                eprintln!("skipped: {what}: a control group of memory: {error}")
            })
            .ok(),
        )
    }

    /// The command that runs a program in the group, from the program's first page on; empty if
    /// there is no group.
    pub fn command(&self) -> Vec<String> {
        let Some(made) = &self.0 else { return Vec::new() };
        let script =
            format!("echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"", made.path.display());
        vec!["sh".into(), "-c".into(), script]
    }

    /// Returns `true` if the group exists.
    pub fn exists(&self) -> bool {
        self.0.is_some()
    }

    fn read(&self, what: impl Fn(&Names) -> &'static str) -> u64 {
        let read = |made: &Made| {
            fs::read_to_string(made.path.join(what(&made.names))).ok()?.trim().parse().ok()
        };
        self.0.as_ref().and_then(read).unwrap_or(0)
    }

    /// Bytes charged to the group; 0 if there is none.
    pub fn charged(&self) -> u64 {
        self.read(|names| names.usage)
    }

    /// Maximum number of bytes charged to the group since [`Group::forget_peak`]; 0 if there is
    /// none.
    pub fn peak(&self) -> u64 {
        self.read(|names| names.peak)
    }

    /// Resets the peak.
    pub fn forget_peak(&self) {
        let forget = |made: &Made| fs::write(made.path.join(made.names.peak), "0");
        drop(self.0.as_ref().map(forget));
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(Made { path, .. }) = &self.0 {
            // The group's process has ended, or is about to.
            let start = Instant::now();
            while fs::remove_dir(path).is_err()
                && path.exists()
                && start.elapsed() < Duration::from_secs(10)
            {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}
