//! The resources that a process uses, as the kernel counts them.

use crate::place::eventually;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// Numbers of descriptors, mappings and threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Open descriptors.
    pub descriptors: usize,
    /// Mappings of memory files.
    pub shared: usize,
    /// All mappings.
    pub mappings: usize,
    /// Kernel threads, without spare processors.
    pub threads: usize,
    /// Spare processors, which a server starts while a handler seems to block, and keeps.
    pub spares: usize,
}

/// Number of descriptors of a spare processor: its poll set, its timer, its doorbell, and the
/// doorbell of its lanes.
pub const OF_A_SPARE: usize = 4;

impl Usage {
    /// The resources of the process `pid`.
    ///
    /// # Panics
    /// If the process does not exist.
    pub fn of(pid: u32) -> Self {
        let count =
            |what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).map_or(0, Iterator::count);
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))
            .unwrap_or_else(|error| panic!("process {pid}: {error}"));
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let names = tasks.map(|task| fs::read_to_string(task.path().join("comm")));
        let is_spare = |name: &String| name.starts_with("upcall-spare");
        let spares = names.flatten().filter(is_spare).count();
        Self {
            descriptors: count("fd"),
            shared: maps.lines().filter(|line| line.contains("/memfd:upcall")).count(),
            mappings: maps.lines().count(),
            threads: count("task").saturating_sub(spares),
            spares,
        }
    }

    /// Returns `true` if the usage does not exceed `before`. There may be some more mappings of
    /// ordinary memory, since the allocator keeps what it once got, and more spare processors.
    pub fn is_back_to(&self, before: &Self) -> bool {
        let of_spares = self.spares.saturating_sub(before.spares) * OF_A_SPARE;
        self.descriptors <= before.descriptors + of_spares
            && self.shared <= before.shared
            && self.threads <= before.threads
    }
}

/// Number of context switches of all kernel threads of a process so far.
pub fn switches(pid: u32) -> u64 {
    counted(pid, |name| name.ends_with("ctxt_switches"))
}

/// Number of times that the kernel threads of a process have slept so far.
pub fn sleeps(pid: u32) -> u64 {
    counted(pid, |name| name == "voluntary_ctxt_switches")
}

/// The sum, over all kernel threads, of the numbers with such a name in their status.
fn counted(pid: u32, is: impl Fn(&str) -> bool) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let statuses = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    let counted = statuses.map(|status| {
        let lines = status.lines().filter(|line| line.split(':').next().is_some_and(&is));
        lines.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok()).sum::<u64>()
    });
    counted.sum()
}

/// Number of TCP connections that a process holds, listening sockets excluded.
pub fn connections(pid: u32) -> usize {
    const LISTENS: &str = "0A";
    let all = ["tcp", "tcp6"].map(|file| fs::read_to_string(format!("/proc/{pid}/net/{file}")));
    let rows = all.iter().flatten().flat_map(|text| text.lines().skip(1));
    let fields = rows.map(|row| row.split_whitespace().collect::<Vec<_>>());
    let known: BTreeSet<String> = fields
        .filter(|fields| fields.len() > 9 && fields[3] != LISTENS)
        .map(|fields| format!("socket:[{}]", fields[9]))
        .collect();
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = open.filter_map(|fd| fs::read_link(fd.path()).ok());
    links.filter(|link| known.contains(&*link.to_string_lossy())).count()
}

/// The open descriptors of a process, for the text of a failure.
pub fn open_descriptors(pid: u32) -> String {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut targets: Vec<String> = entries
        .map(|entry| {
            fs::read_link(entry.path())
                .map_or_else(|_| "?".into(), |target| target.display().to_string())
        })
        .map(|target| target.split(':').next().unwrap_or_default().to_string())
        .collect();
    targets.sort();
    let mut counted: Vec<(String, usize)> = Vec::new();
    for target in targets {
        match counted.last_mut() {
            Some((last, count)) if *last == target => *count += 1,
            _ => counted.push((target, 1)),
        }
    }
    format!("{counted:?}")
}

/// A memory file of Upcall, as a process has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held {
    /// Its purpose: `channel`, `astacks`, `segment`, `station`.
    pub kind: String,
    /// Its inode number, which is unique among memory files.
    pub inode: u64,
    /// Whether the process may write it through this mapping; always `true` for a descriptor.
    pub writable: bool,
}

/// The prefix of the names of memory files in `/proc`.
const MEMORY: &str = "/memfd:upcall-";

fn held(path: &str, inode: u64, writable: bool) -> Option<Held> {
    let kind = path.strip_prefix(MEMORY)?.split(' ').next()?;
    Some(Held { kind: kind.into(), inode, writable })
}

/// The memory files that a process has mapped; none if the process has ended or may not be
/// inspected.
pub fn mapped_memory(pid: u32) -> BTreeSet<Held> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    // Range, permissions, offset, device, inode number, path.
    let of_line = |line: &str| {
        let path = &line[line.find(MEMORY)?..];
        let words: Vec<&str> = line.split_whitespace().collect();
        held(path, words.get(4)?.parse().ok()?, words.get(1)?.contains('w'))
    };
    maps.lines().filter_map(of_line).collect()
}

/// The memory files that a process has open.
pub fn open_memory(pid: u32) -> BTreeSet<Held> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let of_entry = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?;
        held(target.to_str()?, fs::metadata(entry.path()).ok()?.ino(), true)
    };
    entries.filter_map(of_entry).collect()
}

/// All processes of the machine.
pub fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The process that `pid` has started in its place, as `unshare --fork` does, or `pid` itself if
/// there is none.
pub fn program_of(pid: u32) -> u32 {
    let parent = |child: u32| {
        let stat = fs::read_to_string(format!("/proc/{child}/stat")).ok()?;
        // The state and the parent follow the name, which is in brackets.
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse::<u32>().ok()
    };
    processes().into_iter().find(|&child| parent(child) == Some(pid)).unwrap_or(pid)
}

/// Returns `true` if all kernel threads of a process are stopped.
pub fn is_stopped(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    // The state follows the name, which is in brackets.
    let stopped =
        |stat: String| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'));
    stats.all(stopped)
}

/// The CPUs that each kernel thread of a process may run on.
pub fn allowed_cpus(pid: u32) -> Vec<BTreeSet<usize>> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let statuses = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    statuses.filter_map(|status| cpus_of(&status)).collect()
}

/// The list of CPUs in such a text: single numbers and ranges, separated by commas.
fn cpus_of(status: &str) -> Option<BTreeSet<usize>> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let mut cpus = BTreeSet::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cpus.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(cpus)
}

/// The processor time that all threads of a process have used, in nanoseconds.
pub fn processor_time(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let spent = tasks.filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok());
    spent.filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok()).sum()
}

/// Waits until each of these processes has used less than `most` of processor time during a whole
/// `window`. A process that spins never does. A process that still finishes earlier work on a busy
/// machine does so later.
///
/// # Panics
/// If they do not within 60 s.
pub fn come_to_rest(what: &str, pids: &[u32], window: Duration, most: Duration) {
    eventually(&format!("{what} uses less than {most:?} in {window:?}"), || {
        let spent = || pids.iter().map(|&pid| processor_time(pid)).collect::<Vec<_>>();
        let before = spent();
        std::thread::sleep(window);
        let used = spent()
            .into_iter()
            .zip(before)
            // The time of an ended thread is lost, so such a window does not count.
            .map(|(after, before)| {
                after.checked_sub(before).map_or(Duration::MAX, Duration::from_nanos)
            });
        let restless = pids.iter().zip(used).filter(|(_, used)| *used >= most);
        let texts: Vec<String> =
            restless.map(|(pid, used)| format!("process {pid} used {used:?}")).collect();
        if texts.is_empty() { Ok(()) } else { Err(texts.join(", ")) }
    });
}

/// The memory that a process has in use, in KiB: all of it, and the part shared with others. The
/// memory of its program is left out. All its processes share it, and the kernel maps 64 KiB of it
/// around each touched byte, so that its size only shows where the linker has put things.
pub fn memory(pid: u32) -> (u64, u64) {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let find = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let shared = find("RssShmem:").unwrap_or(0);
    (find("RssAnon:").unwrap_or(0) + shared, shared)
}
