//! A control group of memory around one process.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A control group of memory that a process is put into, where the machine permits one.
#[derive(Debug)]
pub struct Group(Option<PathBuf>);

impl Group {
    /// A group with this limit for `pid`, whose pages from now on are charged to it. `what` names
    /// what is skipped without one.
    pub fn around(pid: u32, limit: u64, what: &str) -> Self {
        let path = PathBuf::from(format!("/sys/fs/cgroup/memory/upcall-cost-{pid}"));
        let made = fs::create_dir(&path)
            .and_then(|()| fs::write(path.join("memory.limit_in_bytes"), limit.to_string()))
            .and_then(|()| fs::write(path.join("cgroup.procs"), pid.to_string()));
        match made {
            Ok(()) => Self(Some(path)),
            Err(error) => {
                eprintln!("skipped: {what}: {error}");
                Self(None)
            }
        }
    }

    /// Whether there is one.
    pub fn exists(&self) -> bool {
        self.0.is_some()
    }

    fn read(&self, what: &str) -> u64 {
        let read = |path: &PathBuf| fs::read_to_string(path.join(what)).ok()?.trim().parse().ok();
        self.0.as_ref().and_then(read).unwrap_or(0)
    }

    /// Bytes that are charged to it; 0 without one.
    pub fn charged(&self) -> u64 {
        self.read("memory.usage_in_bytes")
    }

    /// The most bytes that were charged to it at a time since [`Group::forget_peak`]; 0 without one.
    pub fn peak(&self) -> u64 {
        self.read("memory.max_usage_in_bytes")
    }

    /// Begins to look for the most again.
    pub fn forget_peak(&self) {
        let forget = |path: &PathBuf| fs::write(path.join("memory.max_usage_in_bytes"), "0");
        drop(self.0.as_ref().map(forget));
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // Its process has ended, or ends now.
            let start = Instant::now();
            while fs::remove_dir(path).is_err() && start.elapsed() < Duration::from_secs(10) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}
