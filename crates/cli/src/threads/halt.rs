//! A process that stands still: each of its kernel threads is held (see `upcall_os::trace`) until
//! the [`Halted`] is dropped.
//!
//! New kernel threads may be started while the first are being stopped, so the list is read again
//! until it has no new ones. A kernel thread may be in a system call that nothing interrupts. After
//! [`PATIENCE`] it is not waited for: it runs none of the program's code before it stops. A kernel
//! thread that could run gets more time ([`BUSY`]).

use super::error::InspectError;
use super::process::TargetProcess;
use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};
use upcall_os::trace::{HeldThread, HoldState, Registers};

const PATIENCE: Duration = Duration::from_millis(200);
/// The same for a kernel thread that could run: on a busy machine its turn comes late. The others
/// stand still until then, so this is no longer than people wait for a program.
const BUSY: Duration = Duration::from_secs(2);
/// So long the processor is given away between looks, then slept.
const SPIN: Duration = Duration::from_millis(1);

/// All kernel threads of a process, held. To be made and dropped on a kernel thread that ends soon
/// after.
pub struct Halted {
    tasks: Vec<HeldThread>,
    since: Instant,
}

/// A kernel thread at the moment when it stood still.
pub struct StoppedThread {
    pub tid: u32,
    /// By which the process itself knows it.
    pub own_number: u32,
    /// `None`: in a system call that was not interrupted.
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
                    // It ended meanwhile.
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

    /// Until all have stopped, or for as long as we are willing.
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

    /// Where each of them stands.
    pub fn tasks(&self, process: &TargetProcess) -> Vec<StoppedThread> {
        let task = |held: &HeldThread| StoppedThread {
            tid: held.tid(),
            own_number: process.own_number(held.tid()),
            registers: held.registers().ok(),
        };
        self.tasks.iter().map(task).collect()
    }

    /// Lets the process go on; returns for how long it has stood.
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
