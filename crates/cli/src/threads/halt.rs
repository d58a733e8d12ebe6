//! A stopped process: each of its kernel threads is held (see `upcall_os::trace`) until the
//! [`Halted`] is dropped.
//!
//! The process may start kernel threads while the first ones are being stopped, so the list is read
//! again until it has no new ones. A kernel thread may be in a system call that nothing interrupts.
//! The wait for it ends after [`PATIENCE`], since it stops before it runs any code of the program.
//! A kernel thread that could run gets more time ([`BUSY`]).

use super::error::InspectError;
use super::process::TargetProcess;
use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};
use upcall_os::trace::{HeldThread, HoldState, Registers};

/// Maximum wait for a kernel thread in a system call that nothing interrupts.
const PATIENCE: Duration = Duration::from_millis(200);
/// Maximum wait for a kernel thread that could run, whose turn comes late on a busy machine. The
/// other threads are stopped until then, so the wait is not longer than people wait for a program.
const BUSY: Duration = Duration::from_secs(2);
/// Time for which this command yields the processor between checks. After that it sleeps between
/// them.
const SPIN: Duration = Duration::from_millis(1);

/// All kernel threads of a process, held. A kernel thread that ends soon makes and drops the value.
pub struct Halted {
    tasks: Vec<HeldThread>,
    since: Instant,
}

/// A kernel thread while it is stopped.
pub struct StoppedThread {
    pub tid: u32,
    /// The number of the thread in the process's own PID namespace.
    pub own_number: u32,
    /// `None` if the thread is in a system call that was not interrupted.
    pub registers: Option<Registers>,
}

impl Halted {
    pub fn new(process: &TargetProcess) -> Result<Self, InspectError> {
        let mut halted = Self { tasks: Vec::new(), since: Instant::now() };
        let mut seen = HashSet::new();
        loop {
            let tasks = process.tasks().map_err(|error| {
                InspectError::kernel(process.pid, "list the kernel threads", error)
            })?;
            let before = seen.len();
            for tid in tasks.into_iter().filter(|&tid| seen.insert(tid)) {
                match HeldThread::seize(tid) {
                    Ok(held) => halted.tasks.push(held),
                    // The thread has ended in the meantime.
                    Err(_) if process.is_dead(tid) => {}
                    Err(error) => return Err(refused(process, tid, error)),
                }
            }
            if seen.len() == before {
                break;
            }
            halted.wait(process);
        }
        halted.tasks.retain_mut(|held| held.look() != HoldState::Gone);
        if halted.tasks.is_empty() { Err(InspectError::NoProcess(process.pid)) } else { Ok(halted) }
    }

    /// Waits until all threads have stopped, or the time is over.
    fn wait(&mut self, process: &TargetProcess) {
        let start = Instant::now();
        let is_waited_for = |held: &mut HeldThread| {
            let waited = start.elapsed();
            held.look() == HoldState::Coming
                && waited < BUSY
                && (waited < PATIENCE || !process.is_uninterruptible(held.tid()))
        };
        while self.tasks.iter_mut().any(is_waited_for) {
            if start.elapsed() < SPIN {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }

    /// The stopped threads with their registers.
    pub fn tasks(&self, process: &TargetProcess) -> Vec<StoppedThread> {
        let task = |held: &HeldThread| StoppedThread {
            tid: held.tid(),
            own_number: process.own_number(held.tid()),
            registers: held.registers().ok(),
        };
        self.tasks.iter().map(task).collect()
    }

    /// Continues the process. Returns for how long it was stopped.
    pub fn release(self) -> Duration {
        let since = self.since;
        drop(self);
        since.elapsed()
    }
}

fn refused(process: &TargetProcess, tid: u32, error: io::Error) -> InspectError {
    match process.tracer(tid) {
        0 => InspectError::kernel(process.pid, "stop the kernel threads", error),
        by => InspectError::Traced { pid: process.pid, by },
    }
}
