//! What does not return, and what is left over.

use crate::book::{Book, LANES, Underway};
use crate::killer::{Actor, Fate};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use upcall_tests::now;
use upcall_tests::place::Place;
use upcall_tests::usage::{Usage, memory, open_descriptors, processes};

/// Growth of a process's own memory that is no leak, in KiB: allocators keep what they once had.
const GROWTH: u64 = 32 << 10;

/// An operation that has not returned for longer than `patience`, though none of its peers is
/// stopped.
pub fn hang(book: &Book, actors: &[Actor], patience: Duration) -> Option<String> {
    let is_stopped = |pid: u32| pid != 0 && book.died(pid) == 0 && book.went_on(pid) == u64::MAX;
    let any_stop = actors.iter().filter_map(|actor| actor.party.as_ref()).map(|party| book.went_on(party.pid())).max();
    for lane in 0..LANES {
        let Some(wait) = book.underway(lane) else { continue };
        let Underway { by, target, via, since, .. } = wait;
        if book.died(by) != 0 || [by, target, via].into_iter().any(is_stopped) {
            continue;
        }
        let mut since = [by, target, via]
            .into_iter()
            .filter(|pid| *pid != 0)
            .fold(since, |since, pid| since.max(book.died(pid)).max(book.went_on(pid)));
        // Where the peer is not known, any of them may be.
        if target == 0 {
            match any_stop {
                Some(u64::MAX) => continue,
                other => since = since.max(other.unwrap_or(0)),
            }
        }
        let waited = Duration::from_nanos(now().saturating_sub(since));
        if waited < patience {
            continue;
        }
        // The lane may have gone on in between.
        if book.underway(lane).is_none_or(|again| again.since != wait.since) {
            continue;
        }
        let names = [by, target, via].map(|pid| describe(book, actors, pid));
        let then = if via == 0 { String::new() } else { format!(", which waits for {}", names[2]) };
        let threads = [by, target, via].map(threads).concat();
        return Some(format!(
            "hang: caller {lane} of {} waits in `{}` for {}{then}, {:.1} s since all of them went on or died\n{threads}",
            names[0],
            wait.what,
            names[1],
            waited.as_secs_f64()
        ));
    }
    None
}

fn describe(book: &Book, actors: &[Actor], pid: u32) -> String {
    if pid == 0 {
        return "a peer that is not known".into();
    }
    let own = actors.iter().find(|actor| actor.party.as_ref().is_some_and(|party| party.pid() == pid));
    let name = own.map_or("an earlier process", |actor| actor.name.as_str());
    match book.died(pid) {
        0 => format!("{name} (process {pid})"),
        died => format!("{name} (process {pid}, killed {:.1} s ago)", now().saturating_sub(died) as f64 / 1e9),
    }
}

/// The kernel's view of a process's threads: where each waits.
fn threads(pid: u32) -> String {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let one = |path: &Path| {
        let read = |what: &str| fs::read_to_string(path.join(what)).unwrap_or_default().trim().replace('\n', " ");
        let state = read("stat").rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?');
        format!("    {pid} {} {state} {} {}\n", read("comm"), read("wchan"), read("syscall"))
    };
    tasks.map(|task| one(&task.path())).collect()
}

/// Whether a caller waits for something; those that were killed do not count.
pub fn is_busy(book: &Book) -> bool {
    (0..LANES).any(|lane| book.underway(lane).is_some_and(|wait| book.died(wait.by) == 0))
}

/// What a process uses while all rest.
#[derive(Clone, Debug)]
pub struct State {
    pub name: String,
    pid: u32,
    pub usage: Usage,
    /// Memory of its own, in KiB.
    pub own: u64,
    open: String,
}

fn states(actors: &[Actor]) -> Vec<State> {
    let living = actors.iter().filter(|actor| matches!(actor.fate, Fate::Spared | Fate::Stopped) && actor.name != "endures");
    let one = |actor: &Actor| {
        let pid = actor.party.as_ref()?.pid();
        fs::metadata(format!("/proc/{pid}")).ok()?;
        let (all, shared) = memory(pid);
        Some(State { name: actor.name.clone(), pid, usage: Usage::of(pid), own: all - shared, open: open_descriptors(pid) })
    };
    living.filter_map(one).collect()
}

/// What those use that live on, once that no longer changes.
pub fn settled(actors: &[Actor]) -> Vec<State> {
    let (start, mut last, mut same) = (Instant::now(), states(actors), 0);
    while same < 10 && start.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(50));
        let new = states(actors);
        let is_same = new.iter().zip(&last).all(|(new, last)| new.usage == last.usage);
        (same, last) = (if is_same { same + 1 } else { 0 }, new);
    }
    last
}

/// Two states of rest.
pub struct Leaks(pub Vec<(State, State)>);

impl Leaks {
    /// Pairs what the same processes used before and after.
    pub fn between(before: Vec<State>, after: Vec<State>) -> Self {
        let pairs = before.into_iter().filter_map(|before| {
            let after = after.iter().find(|after| after.pid == before.pid)?.clone();
            Some((before, after))
        });
        Self(pairs.collect())
    }

    /// What has grown that must not.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (before, after) in &self.0 {
            if !after.usage.is_back_to(&before.usage) {
                faults.push(format!(
                    "leak: {} (process {}) uses {:?}, and used {:?}; open {}, before {}",
                    after.name, after.pid, after.usage, before.usage, after.open, before.open
                ));
            }
            if after.own > before.own + GROWTH {
                faults.push(format!(
                    "leak: {} (process {}) has {} KiB of memory of its own, and had {}",
                    after.name, after.pid, after.own, before.own
                ));
            }
        }
        faults
    }
}

/// What the run has left in its folder, and its processes.
pub fn left_inside(place: &Place) -> Vec<String> {
    let mut left: Vec<String> = place.entries().iter().map(|name| format!("left: {name} in the folder of names")).collect();
    let files = fs::read_dir(place.path().join("tmp")).into_iter().flatten().flatten();
    left.extend(files.map(|entry| format!("left: {} in the folder for temporary files", entry.file_name().to_string_lossy())));
    let folder = place.names().to_string_lossy().into_owned();
    for pid in processes() {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        if environment.windows(folder.len()).any(|part| part == folder.as_bytes()) {
            left.push(format!("left: process {pid}"));
        }
    }
    left
}

/// Entries of the machine's folders that bear our name.
pub fn outside() -> BTreeSet<String> {
    let entries = |folder: &str| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let named = entries.map(|entry| entry.path().to_string_lossy().into_owned());
        named.filter(|path| path.contains("upcall")).collect::<Vec<_>>()
    };
    ["/dev/shm", "/tmp"].into_iter().flat_map(entries).collect()
}

/// What is there now, and was not there before.
pub fn left_outside(before: &BTreeSet<String>) -> Vec<String> {
    outside().difference(before).map(|path| format!("left: {path}")).collect()
}
