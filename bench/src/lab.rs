//! The processes of a child that measures: a sender and a receiver, or an object's home and its
//! users.
//!
//! The first process is the harness's child. It starts the others, which run the same program with
//! the same task. All processes call [`Lab::both`] or [`Lab::all`] equally often, and each runs its
//! own side. The others print their findings as a line, which the first process reads. Besides the
//! memory that is measured, they share a page by which they take turns and learn that another
//! process has failed ([`Gate`]).
//!
//! They are processes because threads of one process would pay for each other's mappings: a segment
//! that one of them unmaps interrupts the processor of the other.

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

/// Value of a gate after the last turn.
pub const OVER: u64 = u64::MAX;

/// Error of a side that has not failed itself.
const OTHER: &str = "the other side has failed";

/// The task of the processes of a lab.
pub trait Errand: Copy {
    /// Returns the arguments for starting another process with the same task, without its seat.
    fn arguments(&self) -> Vec<String>;

    /// Returns the id of the first process.
    fn group(&self) -> u32;

    /// Returns the processors of the first process and of the others.
    fn cpus(&self) -> [usize; 2];

    /// Returns the number of other processes.
    fn others(&self) -> usize {
        1
    }
}

/// Identifies one of the other processes: the value of `--second`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seat {
    /// Id of the first process.
    pub group: u32,
    /// The first process's descriptor of the memory.
    number: i32,
    /// Number of this process, from 1 on.
    rank: usize,
}

impl Seat {
    /// Parses a seat in the form that the first process writes.
    pub fn read(text: &str) -> Option<Seat> {
        let mut numbers = text.split('/');
        let (group, number, rank) = (
            numbers.next()?.parse().ok()?,
            numbers.next()?.parse().ok()?,
            numbers.next()?.parse().ok()?,
        );
        numbers.next().is_none().then_some(Seat { group, number, rank })
    }

    /// Parses the arguments after the task: none in the first process, the seat in the others.
    ///
    /// # Errors
    /// The arguments are different. The text contains `usage`.
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

/// The place where a case is measured.
pub struct Lab<T> {
    /// The task.
    pub task: T,
    role: Role,
    memory: Arc<Page>,
    gates: usize,
}

/// The role of this process.
enum Role {
    First {
        others: Vec<Other>,
        /// The memory, which the others open by this process's descriptor.
        _file: OwnedFd,
    },
    Other {
        rank: usize,
    },
    /// All processes, as threads.
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

/// The main function of a child: parses the task and measures it. The first process prints the
/// findings as a line of JSON. The child dies with its parent.
///
/// # Errors
/// Parsing or measuring failed, or the lab could not be set up.
pub(crate) fn run<T: Errand, F: Serialize>(
    asked: impl FnOnce() -> Outcome<(T, Option<Seat>)>,
    measure: impl FnOnce(&mut Lab<T>) -> Outcome<F>,
) -> Outcome<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let (task, seat) = asked()?;
    let mut lab = seat.map_or_else(|| Lab::first(task), |seat| Lab::second(task, seat))?;
    let (found, tells) = (measure(&mut lab), lab.tells());
    // The side that failed first says why. The harness shows a few lines only.
    if !tells && found.as_ref().is_err_and(|error| error.to_string() == OTHER) {
        std::process::exit(1);
    }
    let found = found?;
    lab.end()?;
    if tells {
        println!("{}", serde_json::to_string(&found)?);
    }
    Ok(())
}

impl<T: Errand> Lab<T> {
    /// Creates the lab in the harness's child, and starts the other processes.
    ///
    /// # Errors
    /// The memory or a process cannot be created.
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

    /// Creates the lab in another process.
    ///
    /// # Errors
    /// The first process has ended.
    pub(crate) fn second(task: T, seat: Seat) -> Outcome<Lab<T>> {
        let memory = Page::open(&path(seat.group, seat.number))?;
        Ok(Lab { task, role: Role::Other { rank: seat.rank }, memory: Arc::new(memory), gates: 0 })
    }

    /// Runs all processes as threads of this one, for tests. The times differ from those of
    /// processes.
    ///
    /// # Errors
    /// The memory cannot be created.
    pub fn of_threads(task: T) -> Outcome<Lab<T>> {
        let file = raw::create(PAGE)?;
        let memory = Page::open(&path(std::process::id(), file.as_raw_fd()))?;
        Ok(Lab { task, role: Role::All, memory: Arc::new(memory), gates: 0 })
    }

    /// Runs `first` in the first process and `second` in the second, each on its own processor. For
    /// tasks with one other process. Returns both findings in the first process and `None` in the
    /// second.
    ///
    /// # Errors
    /// A side failed.
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

    /// Runs `first` in the first process, and `other` with a number from 1 on in each of the
    /// others, on their processors. Returns the findings in the first process and `None` in the
    /// others.
    ///
    /// # Errors
    /// A side failed.
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
                // The side that failed first has its own reason; the others have `OTHER`.
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

    /// Confines this thread, and its children, to the two processors.
    ///
    /// # Errors
    /// The processors may not be used.
    pub fn confine(&self) -> Outcome<()> {
        Ok(place::confine(&self.task.cpus())?)
    }

    /// Waits for the other processes, if this is the first.
    ///
    /// # Errors
    /// One of them failed.
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
    /// Returns `true` if this process reports the findings.
    pub fn tells(&self) -> bool {
        !matches!(self.role, Role::Other { .. })
    }
}

impl<T> Drop for Lab<T> {
    fn drop(&mut self) {
        let Role::First { others, .. } = &mut self.role else { return };
        // A process that learns of this side's failure exits with its reason, unless it hangs.
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

/// Keeps this thread, and its children, on this processor.
///
/// # Errors
/// The processor may not be used.
pub fn pin(cpu: usize) -> Outcome<()> {
    Ok(place::pin(cpu)?)
}

fn path(process: u32, number: i32) -> PathBuf {
    PathBuf::from(format!("/proc/{process}/fd/{number}"))
}

/// A turn number that only grows, alone on its lines. Beside it is a flag that a side has failed.
#[derive(Clone)]
pub struct Gate {
    memory: Arc<Page>,
    line: usize,
}

/// Reports a failure when dropped, unless it is forgotten.
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

    /// Begins this turn.
    #[inline]
    pub fn open(&self, turn: u64) {
        self.word().store(turn, Ordering::Release);
    }

    /// Returns the current turn.
    #[inline]
    pub fn turn(&self) -> u64 {
        self.word().load(Ordering::Acquire)
    }

    /// Stores a number for the side that has the next turn.
    pub fn say(&self, number: u64) {
        self.memory.line(self.line + 1).store(number, Ordering::Release);
    }

    /// Adds 1 to the stored number.
    pub fn arrive(&self) {
        self.memory.line(self.line + 1).fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the stored number.
    pub fn said(&self) -> u64 {
        self.memory.line(self.line + 1).load(Ordering::Acquire)
    }

    /// # Errors
    /// The other side failed.
    #[inline]
    pub fn check(&self) -> Outcome<()> {
        if self.memory.line(0).load(Ordering::Acquire) == 0 { Ok(()) } else { Err(OTHER.into()) }
    }

    /// Polls until this turn or a later one has begun, and returns it.
    ///
    /// # Errors
    /// The other side failed.
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
            // The other side may need this processor.
            if looks.is_multiple_of(1 << 14) {
                thread::yield_now();
            }
        }
    }

    /// Like [`wait`](Self::wait), for a side that may be late and must not cost the others
    /// anything: it sleeps between polls.
    ///
    /// # Errors
    /// The other side failed.
    pub fn rest(&self, turn: u64) -> Outcome<u64> {
        while self.turn() < turn {
            self.check()?;
            thread::sleep(Duration::from_millis(2));
        }
        Ok(self.turn())
    }

    /// Runs `body`, and reports its failure to all sides. For additional threads of a side.
    ///
    /// # Errors
    /// Those of `body`, unless another side has failed before: then this failure is probably its
    /// consequence.
    pub fn guard<T>(&self, body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        let failing = Failing(self);
        let done = body().map_err(|error| self.check().err().unwrap_or(error))?;
        std::mem::forget(failing);
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A task with this number of others, on any processor.
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
