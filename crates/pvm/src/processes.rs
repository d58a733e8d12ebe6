//! Several processes for one machine: the first process starts the others as copies of its own
//! program, and all of them form a group.

use crate::door::GRACE;
use crate::node::Node;
use crate::places::TaskPlaces;
use crate::programs::Programs;
use crate::remote::MachineLink;
use crate::sizes::TaskSizes;
use crate::start::{NotRun, Start};
use crate::stream::STDERR;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use upcall_os::process::{self, Bounds};
use upcall_ulp::arena::ArenaNumber;

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

    pub(crate) fn join(&self) -> Result<MachineLink, NotRun> {
        MachineLink::join(&self.name, 0, self.children.len() + 1).map_err(NotRun::Join)
    }
}

/// Waits for the processes, which end when the first one leaves the group. A process that is in a
/// system call that does not return is killed, but not while standard error is full, because what
/// tasks have written is not to be lost. No process remains.
impl Drop for Others {
    fn drop(&mut self) {
        let mut until = Instant::now() + GRACE;
        for child in &mut self.children {
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(LOOK);
                if STDERR.is_full() {
                    until = Instant::now() + GRACE;
                }
            }
            // Does nothing if the child has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
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
    let link = MachineLink::join(name, rank as usize, size).map_err(NotRun::Join)?;
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
