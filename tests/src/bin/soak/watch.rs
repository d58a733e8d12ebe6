//! Detects operations that do not return, and resources that are left over.

use crate::book::{Book, LANES, SlotWord, UNKNOWN, Underway};
use crate::charged::Memory;
use crate::fair::FairClock;
use crate::killer::{Actor, Fate};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use upcall_tests::now;
use upcall_tests::place::Place;
use upcall_tests::usage::{Usage, memory, open_descriptors, processes};

/// Maximum growth of the memory of a process, and of all together, that is not a leak, in KiB.
/// Allocators keep what they once had: 15 callers may have 1 MiB of arguments and 1 MiB of a result
/// each at the same time. In runs of 75 s up to 3.3 MiB were measured in one process, and 3.7 MiB
/// in all together.
const GROWTH: u64 = 32 << 10;

/// Maximum growth of what a process has allocated and not freed that is not a leak, in bytes.
/// Collections keep room for as many elements as they once had.
const HELD: u64 = 256 << 10;

/// Time that a group has to form before its members check whether the epoch has changed. Nothing
/// else ends a join into an epoch that has passed.
const FORMING: Duration = crate::member::FORMING;

/// Looks for operations that do not return.
///
/// The time of an operation is that of the [`FairClock`], without the time in which the killer had
/// stopped one of the participating processes, and without the time for which their threads waited
/// for a processor, by the kernel's count. On a machine with time to spare both clocks are the
/// wall's.
///
/// The time starts again when one of the processes dies, or is replaced by another: what a peer's
/// death ends is to end within the same time after the death. A death is the moment at which the
/// kernel has ended a killed process. The kernel closes that process's descriptors then, by which
/// peers learn of the death ([`Times::Ending`](crate::book::Times::Ending)).
pub struct Watchdog {
    clock: FairClock,
    patience: Duration,
    waits: Vec<Wait>,
    /// The longest time of any operation, and which operation it was.
    pub longest: (Duration, String),
}

/// The state of one caller's operation.
#[derive(Clone, Default)]
struct Wait {
    since: u64,
    /// The number of deaths and starts during the operation.
    lives: u64,
    /// Time waited so far, in nanoseconds.
    waited: u64,
    /// Time for which the participating threads had waited for a processor when the watchdog began
    /// to look at the operation closely.
    delayed: Option<u64>,
    /// Whether it was reported.
    told: bool,
}

impl Watchdog {
    /// Starts the clock.
    pub fn start(patience: Duration) -> Self {
        Self {
            clock: FairClock::start(),
            patience,
            waits: vec![Wait::default(); LANES],
            longest: (Duration::ZERO, String::new()),
        }
    }

    /// The share of the run in which sleeping threads had to wait for a processor.
    pub fn lost(&self) -> f64 {
        self.clock.lost()
    }

    /// Resets the longest time.
    pub fn forget(&mut self) {
        self.longest = (Duration::ZERO, String::new());
    }

    /// Checks all operations, every few milliseconds and after each stop. Returns a description of
    /// an operation that has not returned for too long.
    pub fn look(&mut self, book: &Book, actors: &[Actor]) -> Option<String> {
        let passed = self.clock.passed();
        (0..LANES).find_map(|lane| self.look_at(lane, passed, book, actors))
    }

    fn look_at(
        &mut self,
        lane: usize,
        passed: u64,
        book: &Book,
        actors: &[Actor],
    ) -> Option<String> {
        let wait = &mut self.waits[lane];
        let Some(Underway { by, target, via, since, what }) = book.underway(lane) else {
            *wait = Wait::default();
            return None;
        };
        if book.died(by) != 0 {
            return None;
        }
        let peers = Peers::of([by, target, via], actors);
        let lives = peers.lives(book);
        if (wait.since, wait.lives) != (since, lives) {
            *wait = Wait { since, lives, ..Wait::default() };
        }
        if peers.is_any_stopped(book) || peers.is_any_dying(actors) {
            return None;
        }
        wait.waited += passed.min(now().saturating_sub(since));
        let forming = if what == "join" { FORMING } else { Duration::ZERO };
        let beyond = |waited: u64| Duration::from_nanos(waited).saturating_sub(forming);
        if beyond(wait.waited) < self.patience / 4 {
            return None;
        }
        let pids = peers.pids(book);
        let delayed = pids.iter().map(|pid| delay(*pid)).sum::<u64>();
        let more = delayed.saturating_sub(*wait.delayed.get_or_insert(delayed));
        let beyond = beyond(wait.waited.saturating_sub(more));
        // The wait of a thread that waits for a processor now is counted only when the thread gets
        // it.
        let is_over = beyond >= self.patience
            && (!pids.iter().any(|pid| wants_to_run(*pid)) || beyond >= 10 * self.patience);
        if wait.told || !is_over && beyond <= self.longest.0 {
            return None;
        }
        wait.told = is_over;
        let waited = wait.waited;
        // The lane may have gone on in between.
        if book.underway(lane).is_none_or(|again| again.since != since) {
            return None;
        }
        let names = [by, target, via].map(|pid| describe(book, actors, pid));
        let then = if via == 0 { String::new() } else { format!(", which waits for {}", names[2]) };
        let text =
            format!("caller {lane} of {} waits in `{what}` for {}{then}", names[0], names[1]);
        self.longest = (beyond, text.clone());
        is_over.then(|| {
            let threads: String = pids.into_iter().map(threads).collect();
            format!(
                "hang: {text}, {:.3} s in which all could run, of {:.3} s without stops and {:.3} \
                s in all\n{threads}",
                beyond.as_secs_f64(),
                waited as f64 / 1e9,
                now().saturating_sub(since) as f64 / 1e9
            )
        })
    }
}

/// The waiting process, and those that it waits for.
struct Peers<'a> {
    known: Vec<u32>,
    /// Where the peer is not known, all roles that may be it.
    possible: Vec<&'a Actor>,
}

impl<'a> Peers<'a> {
    fn of(pids: [u32; 3], actors: &'a [Actor]) -> Self {
        let by = actors.iter().find(|actor| actor.pid() == pids[0]);
        // A member of a group waits for any other member, also in a send, which runs handlers.
        let talks = by.and_then(|actor| actor.talks);
        let possible = if talks.is_some() || pids[1] == 0 || pids[2] == UNKNOWN {
            actors.iter().filter(|actor| talks.is_none() || actor.talks == talks).collect()
        } else {
            Vec::new()
        };
        Self {
            known: pids.into_iter().filter(|pid| *pid != 0 && *pid != UNKNOWN).collect(),
            possible,
        }
    }

    fn pids(&self, book: &Book) -> Vec<u32> {
        let possible = self.possible.iter().map(|actor| actor.pid());
        let mut pids: Vec<u32> =
            self.known.iter().copied().chain(possible).filter(|pid| *pid != 0).collect();
        pids.sort_unstable();
        pids.dedup();
        pids.retain(|pid| book.died(*pid) == 0);
        pids
    }

    /// A number that changes with each death and each start among these processes.
    fn lives(&self, book: &Book) -> u64 {
        let died = self.known.iter().map(|pid| book.died(*pid));
        let begun = self.possible.iter().map(|actor| actor.begun() + book.died(actor.pid()));
        died.chain(begun).fold(0, u64::wrapping_add)
    }

    /// Returns `true` if the kernel has yet to end one of the processes that was killed.
    fn is_any_dying(&self, actors: &[Actor]) -> bool {
        let known = actors.iter().filter(|actor| self.known.contains(&actor.pid()));
        known.chain(self.possible.iter().copied()).any(|actor| actor.dying)
    }

    fn is_any_stopped(&self, book: &Book) -> bool {
        self.pids(book).into_iter().any(|pid| book.went_on(pid) == u64::MAX)
    }
}

/// The fields of this file of /proc for each thread of a process.
fn of_threads(pid: u32, file: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| fs::read_to_string(task.path().join(file)).ok()).collect()
}

/// Total time for which all threads of a process have waited for a processor, in nanoseconds.
fn delay(pid: u32) -> u64 {
    let second = |text: &String| text.split_whitespace().nth(1)?.parse::<u64>().ok();
    of_threads(pid, "schedstat").iter().filter_map(second).sum()
}

/// Returns `true` if a thread of the process runs, or waits for a processor.
fn wants_to_run(pid: u32) -> bool {
    of_threads(pid, "stat")
        .iter()
        .any(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R')))
}

fn describe(book: &Book, actors: &[Actor], pid: u32) -> String {
    if pid == 0 || pid == UNKNOWN {
        return "a peer that is not known".into();
    }
    let own =
        actors.iter().find(|actor| actor.party.as_ref().is_some_and(|party| party.pid() == pid));
    let name = own.map_or("an earlier process", |actor| actor.name.as_str());
    match book.died(pid) {
        0 => format!("{name} (process {pid})"),
        died => format!(
            "{name} (process {pid}, killed {:.1} s ago)",
            now().saturating_sub(died) as f64 / 1e9
        ),
    }
}

/// Where each of a process's threads waits in the kernel.
fn threads(pid: u32) -> String {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let one = |path: &Path| {
        let read = |what: &str| {
            fs::read_to_string(path.join(what)).unwrap_or_default().trim().replace('\n', " ")
        };
        let state =
            read("stat").rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?');
        format!("    {pid} {} {state} {} {}\n", read("comm"), read("wchan"), read("syscall"))
    };
    tasks.map(|task| one(&task.path())).collect()
}

/// Returns `true` if a caller waits for something. Callers that were killed do not count.
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
    /// Bytes that it has allocated and not freed; 0 if the process does not count them.
    pub held: u64,
    open: String,
}

fn states(book: &Book, actors: &[Actor]) -> Vec<State> {
    let living = actors.iter().filter(|actor| {
        matches!(actor.fate, Fate::Spared | Fate::Stopped) && actor.name != "endures"
    });
    let one = |actor: &Actor| {
        let pid = actor.party.as_ref()?.pid();
        fs::metadata(format!("/proc/{pid}")).ok()?;
        let (all, shared) = memory(pid);
        let held = book.slot(actor.slot, SlotWord::Held).load(SeqCst);
        Some(State {
            name: actor.name.clone(),
            pid,
            usage: Usage::of(pid),
            own: all - shared,
            held,
            open: open_descriptors(pid),
        })
    };
    living.filter_map(one).collect()
}

/// What the surviving processes use, once that no longer changes.
pub fn settled(book: &Book, actors: &[Actor]) -> Vec<State> {
    let (start, mut last, mut same) = (Instant::now(), states(book, actors), 0);
    while same < 10 && start.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(50));
        let new = states(book, actors);
        let is_same = new.iter().zip(&last).all(|(new, last)| new.usage == last.usage);
        (same, last) = (if is_same { same + 1 } else { 0 }, new);
    }
    last
}

/// Two states of rest of the same processes.
pub struct Leaks(pub Vec<(State, State)>);

impl Leaks {
    /// Pairs what each process used before and after.
    pub fn between(before: Vec<State>, after: Vec<State>) -> Self {
        let pairs = before.into_iter().filter_map(|before| {
            let after = after.iter().find(|after| after.pid == before.pid)?.clone();
            Some((before, after))
        });
        Self(pairs.collect())
    }

    /// Reports growth that must not happen.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (before, after) in &self.0 {
            if !after.usage.is_back_to(&before.usage) {
                faults.push(format!(
                    "leak: {} (process {}) uses {:?}, and used {:?}; open {}, before {}",
                    after.name, after.pid, after.usage, before.usage, after.open, before.open
                ));
            }
            if after.held > before.held + HELD {
                faults.push(format!(
                    "leak: {} (process {}) has allocated {} bytes and not freed them, and had {}",
                    after.name, after.pid, after.held, before.held
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

/// Reports the memory charged to all processes before and after, if it has grown too much.
pub fn charged_too_much((before, after): (Memory, Memory)) -> Option<String> {
    let has_grown = after.all() > before.all() + GROWTH;
    has_grown.then(|| {
        format!("leak: all processes together are charged {after}, and were charged {before}")
    })
}

/// What the run has left in its folder, and its processes.
pub fn left_inside(place: &Place) -> Vec<String> {
    let mut left: Vec<String> =
        place.entries().iter().map(|name| format!("left: {name} in the folder of names")).collect();
    let files = fs::read_dir(place.path().join("tmp")).into_iter().flatten().flatten();
    left.extend(files.map(|entry| {
        format!("left: {} in the folder for temporary files", entry.file_name().to_string_lossy())
    }));
    let folder = place.names().to_string_lossy().into_owned();
    for pid in processes() {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        if environment.windows(folder.len()).any(|part| part == folder.as_bytes()) {
            left.push(format!("left: process {pid}"));
        }
    }
    left
}

/// Entries of the machine's folders that bear Upcall's name.
pub fn outside() -> BTreeSet<String> {
    let entries = |folder: &str| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let named = entries.map(|entry| entry.path().to_string_lossy().into_owned());
        named.filter(|path| path.contains("upcall")).collect::<Vec<_>>()
    };
    ["/dev/shm", "/tmp"].into_iter().flat_map(entries).collect()
}

/// Longest wait for entries of other programs to vanish.
const OTHERS_END: Duration = Duration::from_secs(60);

/// Such entries that were not there before, and that stay. Other tests may run at the same time,
/// and remove their entries when they end.
pub fn left_outside(before: &BTreeSet<String>) -> Vec<String> {
    let start = Instant::now();
    let mut left = &outside() - before;
    while !left.is_empty() && start.elapsed() < OTHERS_END {
        std::thread::sleep(Duration::from_millis(100));
        left = &left & &outside();
    }
    left.iter().map(|path| format!("left: {path}")).collect()
}
