//! The two processes of a child that measures: who sends, and who receives.
//!
//! The first one is the harness's child. It starts the second one, which is the same program with the same task; both run [`Lab::both`] as often as the case says so, each its own side of it. What the second one finds it
//! prints as a line for the first one. Beside the group that is measured they share a page by which they take turns, and learn that the other one has failed ([`Gate`]).
//!
//! Two processes, as threads of one would pay for each other's mappings: a segment that one of them gives back interrupts the processor of the other.

use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::child::{Task, arguments};
use crate::child::Outcome;
use crate::messages::raw;
use crate::place;

/// The turn after the last.
pub const OVER: u64 = u64::MAX;

/// What the one says that has not failed itself.
const OTHER: &str = "the other side has failed";

/// Where a case is measured.
pub struct Lab {
    /// What is to be done.
    pub task: Task,
    role: Role,
    memory: Arc<raw::Gate>,
    gates: usize,
}

/// Which of the two this process is.
enum Role {
    First {
        second: Child,
        found: BufReader<ChildStdout>,
        /// The memory, which the second one opens by this process's descriptor.
        _file: OwnedFd,
    },
    Second,
    /// Both, as threads.
    Both,
}

impl Lab {
    /// In the harness's child: starts the second process.
    ///
    /// # Errors
    /// No memory, or no process.
    pub(super) fn first(task: Task) -> Outcome<Lab> {
        let file = raw::create()?;
        let number = file.as_raw_fd();
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments(&task)).arg("--second").arg(format!("{}/{number}", task.group));
        let mut second = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let found = BufReader::new(second.stdout.take().ok_or("no output of the second process")?);
        let memory = raw::Gate::open(&path(task.group, number))?;
        Ok(Lab { task, role: Role::First { second, found, _file: file }, memory: Arc::new(memory), gates: 0 })
    }

    /// In the second process; the first one's memory is that descriptor.
    ///
    /// # Errors
    /// The first one has ended.
    pub(super) fn second(task: Task, number: i32) -> Outcome<Lab> {
        let memory = raw::Gate::open(&path(task.group, number))?;
        Ok(Lab { task, role: Role::Second, memory: Arc::new(memory), gates: 0 })
    }

    /// Both sides as threads of this process, for tests: what they take is not what processes take.
    ///
    /// # Errors
    /// No memory.
    pub fn of_threads(task: Task) -> Outcome<Lab> {
        let file = raw::create()?;
        let memory = raw::Gate::open(&path(std::process::id(), file.as_raw_fd()))?;
        Ok(Lab { task, role: Role::Both, memory: Arc::new(memory), gates: 0 })
    }

    /// Has the first process run `first`, on its processor, and the second one `second`, on its own. What they find, in the first one; `None` in the second.
    ///
    /// # Errors
    /// A side has failed.
    pub fn both<A: Send, B: Send + Serialize + DeserializeOwned>(
        &mut self,
        first: impl FnOnce(&Gate) -> Outcome<A> + Send,
        second: impl FnOnce(&Gate) -> Outcome<B> + Send,
    ) -> Outcome<Option<(A, B)>> {
        let gate = Gate { memory: self.memory.clone(), line: 2 + 2 * self.gates };
        self.gates += 1;
        let cpus = self.task.cpus;
        let first = || gate.guard(|| place::pin(cpus[0]).map_err(Into::into).and_then(|()| first(&gate)));
        let second = || gate.guard(|| place::pin(cpus[1]).map_err(Into::into).and_then(|()| second(&gate)));
        match &mut self.role {
            Role::Second => {
                println!("{}", serde_json::to_string(&second()?)?);
                Ok(None)
            }
            Role::First { found, .. } => {
                let mine = first();
                let mut line = String::new();
                found.read_line(&mut line)?;
                let mine = mine?;
                Ok(Some((mine, serde_json::from_str(&line).map_err(|_| OTHER)?)))
            }
            Role::Both => {
                let (first, second) = thread::scope(|scope| {
                    let (first, second) = (scope.spawn(first), scope.spawn(second));
                    let panicked = || "a side panicked".to_owned().into();
                    (first.join().unwrap_or_else(|_| Err(panicked())), second.join().unwrap_or_else(|_| Err(panicked())))
                });
                match (first, second) {
                    (Ok(first), Ok(second)) => Ok(Some((first, second))),
                    (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
                    (Err(one), Err(other)) => Err(if one.to_string() == OTHER { other } else { one }),
                }
            }
        }
    }

    /// Confines this thread, and what it starts, to the two processors.
    ///
    /// # Errors
    /// They may not be used.
    pub fn confine(&self) -> Outcome<()> {
        Ok(place::confine(&self.task.cpus)?)
    }

    /// Waits for the second process, if this is the first one.
    ///
    /// # Errors
    /// It has ended badly.
    pub(super) fn end(mut self) -> Outcome<()> {
        let Role::First { second, .. } = &mut self.role else { return Ok(()) };
        if second.wait()?.success() { Ok(()) } else { Err(OTHER.into()) }
    }

    /// Whether what was found is told here.
    pub fn tells(&self) -> bool {
        !matches!(self.role, Role::Second)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Role::First { second, .. } = &mut self.role {
            // One that learns that this side has failed says why it ends, unless it hangs.
            self.memory.line(0).store(1, Ordering::Release);
            for _ in 0..100 {
                if !matches!(second.try_wait(), Ok(None)) {
                    return;
                }
                thread::sleep(Duration::from_millis(10));
            }
            second.kill().ok();
            second.wait().ok();
        }
    }
}

fn path(process: u32, number: i32) -> PathBuf {
    PathBuf::from(format!("/proc/{process}/fd/{number}"))
}

/// A turn, which grows; alone on its lines. Beside it, whether a side has failed.
#[derive(Clone)]
pub struct Gate {
    memory: Arc<raw::Gate>,
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
    use super::super::case::Own;
    use super::*;

    fn lab() -> Lab {
        let cpu = place::allowed().unwrap()[0];
        Lab::of_threads(Task { case: Own::Section, cpus: [cpu, cpu], time: Duration::ZERO, count: 0, group: 0 }).unwrap()
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
