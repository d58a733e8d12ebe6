//! A control group of memory around one process.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A control group of memory that a process is put into, where the machine permits one.
#[derive(Debug)]
pub struct Group(Option<Made>);

#[derive(Debug)]
struct Made {
    path: PathBuf,
    names: Names,
}

/// What a version of control groups calls its files.
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

/// Makes a group with this limit: of version 1, or of version 2 below that of this process.
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
    /// A group with this limit for `pid`, whose pages from now on are charged to it. `what` names
    /// what is skipped without one.
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

    /// A group with this limit, for programs that are started by [`Group::command`].
    pub fn new(limit: u64, what: &str) -> Self {
        let made = make(limit);
        Self(
            made.inspect_err(|error| {
                eprintln!("skipped: {what}: a control group of memory: {error}")
            })
            .ok(),
        )
    }

    /// The command that runs a program in it, from the program's first page on. Empty without one.
    pub fn command(&self) -> Vec<String> {
        let Some(made) = &self.0 else { return Vec::new() };
        let script =
            format!("echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"", made.path.display());
        vec!["sh".into(), "-c".into(), script]
    }

    /// Whether there is one.
    pub fn exists(&self) -> bool {
        self.0.is_some()
    }

    fn read(&self, what: impl Fn(&Names) -> &'static str) -> u64 {
        let read = |made: &Made| {
            fs::read_to_string(made.path.join(what(&made.names))).ok()?.trim().parse().ok()
        };
        self.0.as_ref().and_then(read).unwrap_or(0)
    }

    /// Bytes that are charged to it; 0 without one.
    pub fn charged(&self) -> u64 {
        self.read(|names| names.usage)
    }

    /// The most bytes that were charged to it at a time since [`Group::forget_peak`]; 0 without
    /// one.
    pub fn peak(&self) -> u64 {
        self.read(|names| names.peak)
    }

    /// Begins to look for the most again.
    pub fn forget_peak(&self) {
        let forget = |made: &Made| fs::write(made.path.join(made.names.peak), "0");
        drop(self.0.as_ref().map(forget));
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(Made { path, .. }) = &self.0 {
            // Its process has ended, or ends now.
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
