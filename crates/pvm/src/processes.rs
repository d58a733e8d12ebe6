//! Several processes for one machine: the first process starts the others as copies of its own
//! program, and all of them form a group.
//!
//! # Numbers of processes
//! A process names another one by its number when it reads or writes the other one's memory
//! (`upcall_ulp::UlpPages::write_to`). A check before that call would not do: the caller may be
//! stopped between the two, while the other process ends and its number becomes a stranger's. So no
//! number becomes free while a process of the machine can still make such a call:
//!
//! 1. The numbers are those of the first process and of its children ([`Others::join`]).
//! 2. A child that has ended keeps its number until it is waited for. The kernel does not do that
//!    by itself ([`keep_ended_children`]), and tasks wait only for children of their own.
//! 3. The first process waits for none before all have ended ([`Others`]'s `drop`).
//! 4. When the first process ends, all others have a SIGKILL pending before the kernel hands any of
//!    the children to another parent, and before it reports the end (`bind`). Only then can one of
//!    these numbers become free. From then on no process of the machine begins a call. A call that
//!    has begun transfers nothing, because the kernel looks for a pending SIGKILL before it finds
//!    the first page.

use crate::door::GRACE;
use crate::node::Node;
use crate::places::TaskPlaces;
use crate::programs::Programs;
use crate::remote::MachineLink;
use crate::sizes::TaskSizes;
use crate::start::{NotRun, Start};
use crate::stream::STDERR;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use upcall_os::process::{self, Bounds};
use upcall_ulp::arena::ArenaNumber;
use upcall_ulp::keep_ended_children;

/// Pins this thread to its process's own CPU, chosen by rank among the CPUs that it may use. Two
/// processes that wait for each other on one CPU are ten times as slow as on two, and the kernel
/// tends to put them on the same one.
pub(crate) fn settle(rank: usize) {
    let Ok(all) = sched_getaffinity(None) else { return };
    let mine = (0..CpuSet::MAX_CPU).filter(|processor| all.is_set(*processor)).collect::<Vec<_>>();
    let mut own = CpuSet::new();
    if let Some(processor) = mine.get(rank % mine.len().max(1)) {
        own.set(*processor);
        // If pinning is not permitted, the thread runs where the kernel puts it.
        let _ = sched_setaffinity(None, &own);
    }
}

/// Interval between two checks whether a child has ended.
const LOOK: Duration = Duration::from_micros(200);

/// The processes that the first one has started.
pub(crate) struct Others {
    name: String,
    children: Vec<Child>,
    /// The numbers of their arenas, which no other process may have while they live.
    arenas: Vec<ArenaNumber>,
}

impl Others {
    pub(crate) fn start(start: &Start, sizes: TaskSizes) -> Result<Self, NotRun> {
        let name = format!("pvm.{}", std::process::id());
        let program = std::env::current_exe().map_err(NotRun::Process)?;
        keep_ended_children().map_err(NotRun::Process)?;
        let mut others = Self { name, children: Vec::new(), arenas: Vec::new() };
        for rank in 1..start.processes {
            let no_arena = || std::io::Error::other("all addresses for messages are taken");
            let arena = ArenaNumber::take().ok_or_else(no_arena).map_err(NotRun::Process)?;
            let mut command = Command::new(&program);
            command
                .args(["pvm-member", &others.name])
                .args([rank, start.processes].map(|number| number.to_string()))
                .args([sizes.stack.to_string(), sizes.memory.to_string()])
                .arg(arena.number().to_string())
                .args(&start.folders);
            // The child ends whenever this process ends, even while it is in a system call for a
            // task and receives no messages.
            process::bind(&mut command, Bounds::default());
            others.arenas.push(arena);
            others.children.push(command.spawn().map_err(NotRun::Process)?);
        }
        Ok(others)
    }

    /// Joins the group of the processes.
    ///
    /// # Errors
    /// The group was not formed, or has a process that is no child of this one.
    pub(crate) fn join(&self) -> Result<MachineLink, NotRun> {
        let link = joined(&self.name, 0, self.children.len() + 1)?;
        for (rank, child) in (1..).zip(&self.children) {
            // The number of a process that cannot be seen is 0, which no process has.
            let process = link.process(rank).cast_unsigned();
            if process != 0 && process != child.id() {
                let report = format!("process {process} has joined in place of {}", child.id());
                return Err(NotRun::Process(io::Error::other(report)));
            }
        }
        Ok(link)
    }
}

/// Joins the machine's processes as this one.
fn joined(name: &str, rank: usize, size: usize) -> Result<MachineLink, NotRun> {
    let link = MachineLink::join(name, rank, size).map_err(NotRun::Join)?;
    // Later there may be no descriptor left, and tasks could neither leave nor enter. Where there
    // is no /proc, tasks stay.
    let _ = upcall_ulp::prepare_moves();
    Ok(link)
}

/// Waits for the processes, which end when the first one leaves the group. A process that is in a
/// system call that does not return is killed, but not while standard error is full, because what
/// tasks have written is not to be lost. No process remains.
impl Drop for Others {
    fn drop(&mut self) {
        let mut until = Instant::now() + GRACE;
        for child in &mut self.children {
            while lives(child, WaitIdOptions::NOHANG) && Instant::now() < until {
                std::thread::sleep(LOOK);
                if STDERR.is_full() {
                    until = Instant::now() + GRACE;
                }
            }
            // Does nothing if the child has ended.
            let _ = child.kill();
        }
        // Those that were killed end at once, also while they are stopped.
        while self.children.iter().any(|child| lives(child, WaitIdOptions::empty())) {}
        // Now no process can use the number of another one.
        for child in &mut self.children {
            let _ = child.wait();
        }
    }
}

/// Returns `true` if a child has not ended. The child keeps its number. Without `NOHANG`, blocks
/// until the child has ended, or the call is interrupted.
fn lives(child: &Child, options: WaitIdOptions) -> bool {
    let options = options | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    match waitid(WaitId::Pid(Pid::from_child(child)), options) {
        Ok(ended) => ended.is_none(),
        Err(error) => error == rustix::io::Errno::INTR,
    }
}

/// Runs one of the other processes, which [`run`](crate::run) starts: `pvm-member NAME RANK SIZE
/// STACK MEMORY ARENA [FOLDER …]`. Returns when the machine is over. The thread can do nothing else
/// then.
///
/// # Errors
/// See [`NotRun`]. Wrong arguments are reported as [`NotRun::Process`].
pub fn run_member(args: &[String]) -> Result<(), NotRun> {
    let wrong = || {
        NotRun::Process(std::io::Error::other(
            "pvm-member NAME RANK SIZE STACK MEMORY ARENA [FOLDER …] is for the command itself",
        ))
    };
    let [name, rank, size, stack, memory, arena, folders @ ..] = args else { return Err(wrong()) };
    let (Ok(rank), Ok(size)) = (rank.parse::<u32>(), size.parse()) else { return Err(wrong()) };
    let (Ok(stack), Ok(memory)) = (stack.parse(), memory.parse()) else { return Err(wrong()) };
    let arena = arena.parse().ok().and_then(ArenaNumber::take_this).ok_or_else(wrong)?;
    let link = joined(name, rank as usize, size)?;
    let worker = crate::worker(Some(arena))?;
    settle(rank as usize);
    let folders = folders.iter().map(PathBuf::from).collect();
    let places = TaskPlaces::new(rank, size).map_err(NotRun::Places)?;
    // With a link this process is never stuck, because others may send something.
    let node = Node::new(worker, Programs::new(folders), None, Some(link), places);
    let _ = node.with_sizes(TaskSizes { stack, memory }).run();
    STDERR.flush();
    Ok(())
}
