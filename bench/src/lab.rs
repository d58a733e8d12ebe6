//! The processes of a child that measures: who sends, and who receives; or an object's home, and
//! those who use it.
//!
//! The first one is the harness's child. It starts the others, which are the same program with the
//! same task; all run [`Lab::both`] or [`Lab::all`] as often as the case says so, each its own side
//! of it. What the others find they print as a line for the first one. Beside what is measured they
//! share a page by which they take turns, and learn that another one has failed ([`Gate`]).
//!
//! Processes, as threads of one would pay for each other's mappings: a segment that one of them
//! gives back interrupts the processor of the other.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, set_parent_process_death_signal};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::child::Outcome;
use crate::place;
use crate::raw::{self, PAGE, Page};

/// The turn after the last.
pub const OVER: u64 = u64::MAX;

/// What the one says that has not failed itself.
const OTHER: &str = "the other side has failed";

/// What the processes of a lab are started for.
pub trait Errand: Copy {
    /// What follows the program's name where another process is started for the same, but for its
    /// place.
    fn arguments(&self) -> Vec<String>;

    /// The first process.
    fn group(&self) -> u32;

    /// The processors: of the first process, and of the others.
    fn cpus(&self) -> [usize; 2];

    /// How many others there are.
    fn others(&self) -> usize {
        1
    }
}

/// Which of the processes this is: behind `--second`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seat {
    /// The first process.
    pub group: u32,
    /// The first one's descriptor of the memory.
    number: i32,
    /// From 1 on.
    rank: usize,
}

impl Seat {
    /// As the first process says it.
    pub fn read(text: &str) -> Option<Seat> {
        let mut numbers = text.split('/');
        let (group, number, rank) = (
            numbers.next()?.parse().ok()?,
            numbers.next()?.parse().ok()?,
            numbers.next()?.parse().ok()?,
        );
        numbers.next().is_none().then_some(Seat { group, number, rank })
    }

    /// What stands behind a task: nothing in the first process, in the others their place.
    ///
    /// # Errors
    /// Something else; told with the `usage`.
    pub fn behind(rest: &[&str], usage: &str) -> Outcome<Option<Seat>> {
        match rest {
            [] => Ok(None),
            ["--second", place] => Ok(Some(
                Seat::read(place).ok_or_else(|| format!("--second {place}; usage: {usage}"))?,
            )),
            _ => Err(format!("usage: {usage}").into()),
        }
    }
}

impl fmt::Display for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.group, self.number, self.rank)
    }
}

/// Where a case is measured.
pub struct Lab<T> {
    /// What is to be done.
    pub task: T,
    role: Role,
    memory: Arc<Page>,
    gates: usize,
}

/// Which of the processes this one is.
enum Role {
    First {
        others: Vec<Other>,
        /// The memory, which the others open by this process's descriptor.
        _file: OwnedFd,
    },
    Other {
        rank: usize,
    },
    /// All, as threads.
    All,
}

/// Another process.
struct Other {
    process: Child,
    found: BufReader<ChildStdout>,
}

impl Other {
    fn start(task: &impl Errand, seat: Seat) -> Outcome<Other> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(task.arguments()).arg("--second").arg(seat.to_string());
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let found = BufReader::new(process.stdout.take().ok_or("no output of another process")?);
        Ok(Other { process, found })
    }
}

/// All that a child does: it finds what it is asked for, and measures that; the first process tells
/// what was found, as a line of JSON. It dies with who has started it.
///
/// # Errors
/// Those of both, and of the lab.
pub(crate) fn run<T: Errand, F: Serialize>(
    asked: impl FnOnce() -> Outcome<(T, Option<Seat>)>,
    measure: impl FnOnce(&mut Lab<T>) -> Outcome<F>,
) -> Outcome<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let (task, seat) = asked()?;
    let mut lab = seat.map_or_else(|| Lab::first(task), |seat| Lab::second(task, seat))?;
    let found = measure(&mut lab)?;
    let tells = lab.tells();
    lab.end()?;
    if tells {
        println!("{}", serde_json::to_string(&found)?);
    }
    Ok(())
}

impl<T: Errand> Lab<T> {
    /// In the harness's child: starts the other processes.
    ///
    /// # Errors
    /// No memory, or no process.
    pub(crate) fn first(task: T) -> Outcome<Lab<T>> {
        let file = raw::create(PAGE)?;
        let number = file.as_raw_fd();
        let memory = Arc::new(Page::open(&path(task.group(), number))?);
        let mut lab =
            Lab { task, role: Role::First { others: Vec::new(), _file: file }, memory, gates: 0 };
        for rank in 1..=task.others() {
            let other = Other::start(&task, Seat { group: task.group(), number, rank })?;
            if let Role::First { others, .. } = &mut lab.role {
                others.push(other);
            }
        }
        Ok(lab)
    }

    /// In another process.
    ///
    /// # Errors
    /// The first one has ended.
    pub(crate) fn second(task: T, seat: Seat) -> Outcome<Lab<T>> {
        let memory = Page::open(&path(seat.group, seat.number))?;
        Ok(Lab { task, role: Role::Other { rank: seat.rank }, memory: Arc::new(memory), gates: 0 })
    }

    /// All as threads of this process, for tests: what they take is not what processes take.
    ///
    /// # Errors
    /// No memory.
    pub fn of_threads(task: T) -> Outcome<Lab<T>> {
        let file = raw::create(PAGE)?;
        let memory = Page::open(&path(std::process::id(), file.as_raw_fd()))?;
        Ok(Lab { task, role: Role::All, memory: Arc::new(memory), gates: 0 })
    }

    /// Has the first process run `first`, on its processor, and the second one `second`, on its
    /// own. What they find, in the first one; `None` in the second. For tasks of one other process.
    ///
    /// # Errors
    /// A side has failed.
    pub fn both<A: Send, B: Send + Serialize + DeserializeOwned>(
        &mut self,
        first: impl FnOnce(&Gate) -> Outcome<A> + Send,
        second: impl FnOnce(&Gate) -> Outcome<B> + Send,
    ) -> Outcome<Option<(A, B)>> {
        let second = Mutex::new(Some(second));
        let other = |_: usize, gate: &Gate| {
            let second = second.lock().ok().and_then(|mut second| second.take());
            second.ok_or("there is one other process")?(gate)
        };
        let Some((first, mut others)) = self.all(first, other)? else { return Ok(None) };
        Ok(others.pop().map(|second| (first, second)))
    }

    /// Has the first process run `first`, on its processor, and each of the others `other`, with
    /// its number from 1 on, on theirs. What they find, in the first one; `None` in the others.
    ///
    /// # Errors
    /// One has failed.
    pub fn all<A: Send, B: Send + Serialize + DeserializeOwned>(
        &mut self,
        first: impl FnOnce(&Gate) -> Outcome<A> + Send,
        other: impl Fn(usize, &Gate) -> Outcome<B> + Sync,
    ) -> Outcome<Option<(A, Vec<B>)>> {
        let gate = Gate { memory: self.memory.clone(), line: 2 + 2 * self.gates };
        self.gates += 1;
        let cpus = self.task.cpus();
        let first =
            || gate.guard(|| place::pin(cpus[0]).map_err(Into::into).and_then(|()| first(&gate)));
        let other = |rank| {
            gate.guard(|| place::pin(cpus[1]).map_err(Into::into).and_then(|()| other(rank, &gate)))
        };
        match &mut self.role {
            Role::Other { rank } => {
                println!("{}", serde_json::to_string(&other(*rank)?)?);
                Ok(None)
            }
            Role::First { others, .. } => {
                let mine = first();
                let mut lines = Vec::new();
                for Other { found, .. } in others {
                    let mut line = String::new();
                    found.read_line(&mut line)?;
                    lines.push(line);
                }
                let mine = mine?;
                let theirs =
                    lines.iter().map(|line| serde_json::from_str(line).map_err(|_| OTHER.into()));
                Ok(Some((mine, theirs.collect::<Outcome<Vec<B>>>()?)))
            }
            Role::All => {
                let (mine, theirs) = thread::scope(|scope| {
                    let other = &other;
                    let others: Vec<_> = (1..=self.task.others())
                        .map(|rank| scope.spawn(move || other(rank)))
                        .collect();
                    let first = scope.spawn(first);
                    let panicked = || "a side panicked".to_owned().into();
                    let theirs = others
                        .into_iter()
                        .map(|other| other.join().unwrap_or_else(|_| Err(panicked())));
                    let theirs = theirs.collect::<Vec<_>>();
                    (first.join().unwrap_or_else(|_| Err(panicked())), theirs)
                });
                // Who fails first has a reason of its own.
                let failed = mine
                    .as_ref()
                    .err()
                    .into_iter()
                    .chain(theirs.iter().filter_map(|other| other.as_ref().err()));
                let reasons: Vec<String> = failed.map(ToString::to_string).collect();
                if let Some(reason) =
                    reasons.iter().find(|reason| *reason != OTHER).or(reasons.first())
                {
                    return Err(reason.clone().into());
                }
                Ok(Some((mine?, theirs.into_iter().collect::<Outcome<Vec<B>>>()?)))
            }
        }
    }

    /// Confines this thread, and what it starts, to the two processors.
    ///
    /// # Errors
    /// They may not be used.
    pub fn confine(&self) -> Outcome<()> {
        Ok(place::confine(&self.task.cpus())?)
    }

    /// Waits for the other processes, if this is the first one.
    ///
    /// # Errors
    /// One has ended badly.
    pub(crate) fn end(mut self) -> Outcome<()> {
        let Role::First { others, .. } = &mut self.role else { return Ok(()) };
        for Other { process, .. } in others {
            if !process.wait()?.success() {
                return Err(OTHER.into());
            }
        }
        Ok(())
    }
}

impl<T> Lab<T> {
    /// Whether what was found is told here.
    pub fn tells(&self) -> bool {
        !matches!(self.role, Role::Other { .. })
    }
}

impl<T> Drop for Lab<T> {
    fn drop(&mut self) {
        let Role::First { others, .. } = &mut self.role else { return };
        // One that learns that this side has failed says why it ends, unless it hangs.
        self.memory.line(0).store(1, Ordering::Release);
        for _ in 0..100 {
            others.retain_mut(|other| matches!(other.process.try_wait(), Ok(None)));
            if others.is_empty() {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        for Other { process, .. } in others {
            process.kill().ok();
            process.wait().ok();
        }
    }
}

/// Keeps this thread, and what it starts, on that processor.
///
/// # Errors
/// It may not be used.
pub fn pin(cpu: usize) -> Outcome<()> {
    Ok(place::pin(cpu)?)
}

fn path(process: u32, number: i32) -> PathBuf {
    PathBuf::from(format!("/proc/{process}/fd/{number}"))
}

/// A turn, which grows; alone on its lines. Beside it, whether a side has failed.
#[derive(Clone)]
pub struct Gate {
    memory: Arc<Page>,
    line: usize,
}

/// Says that one has failed, unless it is forgotten.
struct Failing<'a>(&'a Gate);

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        self.0.memory.line(0).store(1, Ordering::Release);
    }
}

impl Gate {
    #[inline]
    fn word(&self) -> &AtomicU64 {
        self.memory.line(self.line)
    }

    /// It is that turn now.
    #[inline]
    pub fn open(&self, turn: u64) {
        self.word().store(turn, Ordering::Release);
    }

    /// The turn.
    #[inline]
    pub fn turn(&self) -> u64 {
        self.word().load(Ordering::Acquire)
    }

    /// A number for who has the next turn.
    pub fn say(&self, number: u64) {
        self.memory.line(self.line + 1).store(number, Ordering::Release);
    }

    /// One more has come: what was said is one more.
    pub fn arrive(&self) {
        self.memory.line(self.line + 1).fetch_add(1, Ordering::AcqRel);
    }

    /// What was said last.
    pub fn said(&self) -> u64 {
        self.memory.line(self.line + 1).load(Ordering::Acquire)
    }

    /// # Errors
    /// The other side has failed.
    #[inline]
    pub fn check(&self) -> Outcome<()> {
        if self.memory.line(0).load(Ordering::Acquire) == 0 { Ok(()) } else { Err(OTHER.into()) }
    }

    /// Looks until it is that turn or a later one, which it returns.
    ///
    /// # Errors
    /// The other side has failed.
    #[inline]
    pub fn wait(&self, turn: u64) -> Outcome<u64> {
        let mut looks = 0_u32;
        loop {
            let now = self.turn();
            if now >= turn {
                return Ok(now);
            }
            self.check()?;
            looks += 1;
            // The other one may need this processor.
            if looks.is_multiple_of(1 << 14) {
                thread::yield_now();
            }
        }
    }

    /// The same for one that may be late, and must not cost the others anything.
    ///
    /// # Errors
    /// The other side has failed.
    pub fn rest(&self, turn: u64) -> Outcome<u64> {
        while self.turn() < turn {
            self.check()?;
            thread::sleep(Duration::from_millis(2));
        }
        Ok(self.turn())
    }

    /// Runs `body`; everybody learns of it if it fails. For threads that a side starts besides.
    ///
    /// # Errors
    /// Those of `body`.
    pub fn guard<T>(&self, body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        let failing = Failing(self);
        let done = body()?;
        std::mem::forget(failing);
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many others, on any processor.
    #[derive(Clone, Copy)]
    struct Test(usize);

    impl Errand for Test {
        fn arguments(&self) -> Vec<String> {
            Vec::new()
        }
        fn group(&self) -> u32 {
            0
        }
        fn cpus(&self) -> [usize; 2] {
            [place::allowed().unwrap()[0]; 2]
        }
        fn others(&self) -> usize {
            self.0
        }
    }

    fn lab() -> Lab<Test> {
        Lab::of_threads(Test(1)).unwrap()
    }

    #[test]
    fn all_are_counted_and_told_of() {
        let mut lab = Lab::of_threads(Test(5)).unwrap();
        let first = |gate: &Gate| {
            while gate.said() < 5 {
                gate.check()?;
                thread::yield_now();
            }
            gate.open(1);
            Ok(0)
        };
        let other = |rank: usize, gate: &Gate| {
            gate.arrive();
            gate.wait(1)?;
            Ok(rank)
        };
        assert_eq!(lab.all(first, other).unwrap(), Some((0, vec![1, 2, 3, 4, 5])));
        let told = lab.all(
            |gate| gate.wait(1),
            |rank, gate| if rank == 3 { Err("the third".into()) } else { gate.wait(1) },
        );
        assert_eq!(told.unwrap_err().to_string(), "the third");
    }

    #[test]
    fn seats_are_read_back() {
        let seat = Seat { group: 13, number: 17, rank: 2 };
        assert_eq!(Seat::read(&seat.to_string()), Some(seat));
        assert_eq!(["13/17", "13/17/2/1", "13/x/1", ""].map(Seat::read), [None; 4]);
    }

    #[test]
    fn two_take_turns_again_and_again() {
        let mut lab = lab();
        for _ in 0..3 {
            let first = |gate: &Gate| {
                gate.open(1);
                gate.wait(2)
            };
            let second = |gate: &Gate| {
                gate.wait(1)?;
                gate.open(2);
                Ok(7)
            };
            assert_eq!(lab.both(first, second).unwrap(), Some((2, 7)));
        }
        lab.end().unwrap();
    }

    #[test]
    fn who_waits_for_one_that_fails_ends_too() {
        let told = lab().both(|gate| gate.wait(1), |_| Outcome::<()>::Err("the reason".into()));
        assert_eq!(told.unwrap_err().to_string(), "the reason");
        let told = lab().both(|_| -> Outcome<()> { panic!("as it is to") }, |gate| gate.rest(1));
        assert_eq!(told.unwrap_err().to_string(), "a side panicked");
    }
}
