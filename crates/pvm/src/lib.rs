//! PVM 3.4 for user-level processes: message-passing programs, thousands of them in one process.
//!
//! Sources: UPVM, and PVM's own manual. A program is compiled and linked by `upvmcc` with its own
//! libpvm3 (`image/`), which holds its buffers and packs. The library asks the [`Node`](node) for
//! everything that concerns other tasks. The node's worker runs the tasks of one process one after
//! the other. The processes of a machine may be on several hosts ([`StartHosts`]).
#![forbid(unsafe_code)]

mod asking;
mod balance;
mod calls;
mod causal;
mod checkpoint;
pub mod compiler;
mod console;
mod counting;
mod door;
#[allow(dead_code, reason = "all that are ours or PVM's, also those that only libpvm3 uses")]
mod error;
mod holding;
mod hosts;
mod joining;
mod late;
mod machine;
/// For the simulator, which drives it too. Not a public interface.
#[doc(hidden)]
pub mod moves;
mod node;
#[allow(dead_code, reason = "some are for libpvm3 alone")]
mod ops;
mod output;
mod packed;
mod places;
mod processes;
mod programs;
mod remote;
mod report;
mod room;
mod services;
mod shown;
mod sizes;
mod start;
mod stream;
mod task;
mod tid;
pub mod tools;
mod transit;
mod unsent;
mod wire;

pub use asking::{
    MachineRequestError, add_hosts, change_use, checkpoint, halt, host_error, hosts, kill,
    machines, memory, move_task, remove_hosts, shown, signal, tid,
};
pub use balance::BalancerKind;
pub use checkpoint::CheckpointError;
pub use door::ProcessChange;
pub use hosts::{BadHost, HostStarter, StartHost, StartHosts};
pub use joining::{JoiningHost, check_token};
pub use machine::TaskPlacement;
pub use moves::Pin as TaskPin;
pub use processes::{join, run_member};
pub use room::make_room;
pub use shown::{
    MachineUse, MoveCost, ProcessState, SavedCost, ShownMachine, ShownProcess, ShownTask,
    StayingTask, TaskActivity, WantedMessage,
};
pub use sizes::{BadTaskSize, MemorySize, StackSize};
pub use start::{NotRun, PeriodicCheckpoint, Start};
pub use tid::{MOST_PROCESSES, Tid};
pub use upcall_ulp::{FilePin, FileStays};

use calls::{Input, NodeCalls};
use checkpoint::{Checkpoint, CheckpointHead, CheckpointHosts, RestoredHosts};
use console::Console;
use hosts::MachineHosts;
use machine::Machine;
use machine::saved::WaitingRequests;
use node::{AtTerminal, Node, NodeControl};
use packed::PackedTask;
use places::TaskPlaces;
use processes::Others;
use programs::Programs;
use remote::TaskSpec;
use report::report_line;
use sizes::TaskSizes;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stream::{STDERR, STDOUT};
use upcall_message::Rank;
use upcall_os::lock::KernelMutex;
use upcall_ulp::arena::ArenaNumber;
use upcall_ulp::{Image, SharedImage, Worker};

/// Runs a machine, with this process as its first, until all of its tasks have ended or one halts
/// it. Returns the worst status of the initial tasks: 128 plus the signal's number for a crash.
///
/// While it runs, the machine answers [`machines`], [`kill`], [`signal()`] and [`halt`] in other
/// processes.
///
/// This thread cannot be joined afterwards ([`Worker::begin`]): call `run` on the process's first
/// thread, and end by returning from `main`. The other processes are started as this program with
/// the arguments of [`run_member`].
pub fn run(start: &Start) -> Result<i32, NotRun> {
    run_with(start, None, || Ok(NodeControl::new(NodeCalls::new()?, None)))
}

/// Runs a machine with PVM's console, which reads `~/.pvmrc` and then the standard input. The
/// machine starts with what `start` says, whose `copies` may be 0. It does not end before the
/// console has read `quit`, `halt` or the end of its input.
///
/// Tasks find their standard input empty, because the console reads it.
pub fn console(start: &Start) -> Result<i32, NotRun> {
    run_with(start, None, || {
        let (calls, stdin) = (NodeCalls::new()?, std::io::stdin());
        let prompts = stdin.is_terminal();
        let from = rustix::io::fcntl_dupfd_cloexec(&stdin, 3)?;
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        let first = std::fs::read_to_string(home.join(".pvmrc")).unwrap_or_default();
        let environment =
            std::env::vars_os().map(|(name, value)| (text(&name), text(&value))).collect();
        let input = Input::start(from, calls.caller())?;
        let console = Console::new(node::CONSOLE, hosts::own_name(), environment, &first);
        Ok(NodeControl::new(calls, Some(AtTerminal::new(console, input, prompts))))
    })
}

fn text(word: &OsStr) -> String {
    word.to_string_lossy().into_owned()
}

/// CPU time of the process after which a computing task is interrupted.
const LOOKS: Duration = Duration::from_millis(10);

/// The worker that runs the tasks of this process, with the functions that they share.
///
/// `arena`: the number of the process's arena, in all processes but the first.
fn worker(arena: Option<ArenaNumber>) -> Result<Worker, NotRun> {
    let worker = arena.map_or_else(Worker::begin, Worker::begin_in);
    let mut worker = worker.map_err(NotRun::Worker)?;
    // Loaded once per process, which may run several machines.
    static SHARED: KernelMutex<Option<SharedImage>> = KernelMutex::new(None);
    let mut shared = SHARED.lock();
    let shared = match *shared {
        Some(shared) => shared,
        None => {
            let file = include_bytes!(concat!(env!("OUT_DIR"), "/shared"));
            *shared.insert(SharedImage::load(file, &ops::DOORS).map_err(NotRun::Shared)?)
        }
    };
    worker.share(&shared);
    if let Err(error) = worker.interrupt_every(LOOKS) {
        report_line!(
            "upcall pvm: a task that only computes is not interrupted, so no signal and no `kill` \
             reaches it until it calls PVM: {error}"
        );
    }
    Ok(worker)
}

/// A checkpoint with what it needs before a process begins.
struct Restart {
    checkpoint: Checkpoint,
    /// The arenas of blocks in the checkpoint, which no process may have.
    arenas: Vec<ArenaNumber>,
}

/// How a machine goes on from a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct RestartOptions {
    /// Number of processes of this host. `None`: as many as the machine had on its home.
    pub processes: Option<usize>,
    /// How tasks are balanced, or that they are not. `None`: as before.
    pub balancer: Option<Option<BalancerKind>>,
    /// Tasks without which it goes on. They end as if they were killed at that moment.
    pub without: Vec<Tid>,
}

/// Lets a machine go on from a [`checkpoint`], in this process and others, until it ends as it does
/// in [`run`]. The whole file is read and checked first.
///
/// `hosts`: the other hosts, if there are to be some. Each task runs on the host of the same name,
/// if that is there, and if possible in the process with the same place on it. The other tasks go
/// to the processes that have the fewest. The home may have another name now.
///
/// The process enters the folder in which the machine was started. A console of the machine is not
/// restored: what its jobs write goes to the error stream.
///
/// What killed writers of the file have left beside it is removed.
///
/// # Errors
/// See [`NotRun`]. None of the tasks has run then.
pub fn restart(
    file: &Path,
    RestartOptions { processes, balancer, without }: RestartOptions,
    periodic: Option<PeriodicCheckpoint>,
    hosts: Option<StartHosts>,
) -> Result<i32, NotRun> {
    let mut checkpoint = Checkpoint::read(file).map_err(NotRun::Checkpoint)?;
    checkpoint::clean(file);
    checkpoint.leave_out(&without).map_err(NotRun::Checkpoint)?;
    let periodic = periodic.map(|one| PeriodicCheckpoint {
        file: std::path::absolute(&one.file).unwrap_or(one.file),
        ..one
    });
    let restart = prepare(checkpoint).map_err(NotRun::Checkpoint)?;
    let head = &restart.checkpoint.head;
    let start = Start {
        program: OsString::new(),
        args: Vec::new(),
        copies: 0,
        folders: head.folders.iter().map(PathBuf::from).collect(),
        processes: processes.unwrap_or(head.processes.clamp(1, MOST_PROCESSES) as usize),
        place: TaskPlacement::Block,
        stack: Some(head.stack.parse().map_err(NotRun::Size)?),
        memory: Some(head.memory.parse().map_err(NotRun::Size)?),
        checkpoint: periodic,
        least: processes.unwrap_or(head.least.clamp(1, MOST_PROCESSES) as usize),
        balancer: balancer.unwrap_or(head.balancer),
        hosts,
    };
    run_with(&start, Some(restart), || Ok(NodeControl::new(NodeCalls::new()?, None)))
}

/// Checks what a machine needs to go on, and enters its folder.
fn prepare(checkpoint: Checkpoint) -> Result<Restart, CheckpointError> {
    let path = PathBuf::from(&checkpoint.head.folder);
    std::env::set_current_dir(&path).map_err(|error| CheckpointError::Folder { path, error })?;
    let mut arenas = BTreeSet::new();
    let mut programs = BTreeSet::new();
    let mut wrong = BTreeMap::<_, (String, Vec<Tid>)>::new();
    for (tid, task) in &checkpoint.tasks {
        for block in &task.packed.blocks {
            arenas.insert(block.name.arena().ok_or(CheckpointError::Addresses)?);
        }
        let path = Path::new(task.packed.program());
        if programs.insert(path)
            && let Err(why) = is_program(path, &task.packed)
        {
            wrong.insert(path, (why, Vec::new()));
        }
        wrong.entry(path).and_modify(|(_, tasks)| tasks.push(*tid));
    }
    if let Some((path, (why, tasks))) = wrong.pop_first() {
        return Err(CheckpointError::Program { path: path.into(), why, tasks });
    }
    let arenas = arenas.into_iter().map(ArenaNumber::take_this).collect::<Option<_>>();
    Ok(Restart { arenas: arenas.ok_or(CheckpointError::Addresses)?, checkpoint })
}

/// Checks that this file is the program that a task runs.
///
/// # Errors
/// What is wrong with it.
fn is_program(path: &Path, task: &PackedTask) -> Result<(), String> {
    let image = Image::open(path).map_err(|error| error.to_string())?;
    let own = image.identity().ok_or("it cannot be identified")?;
    match own.difference(task.image()) {
        Some(differs) => Err(format!("its {differs} differs")),
        None => Ok(()),
    }
}

/// What a checkpoint of this machine begins with.
fn head_of(start: &Start, sizes: TaskSizes) -> CheckpointHead {
    CheckpointHead {
        seconds: 0,
        processes: start.processes as u32,
        balancer: start.balance_plan().balancer,
        least: start.least as u32,
        // They are known when the checkpoint is written.
        hosts: Vec::new(),
        stack: sizes.stack.to_string(),
        memory: sizes.memory.to_string(),
        folder: std::env::current_dir().unwrap_or_default().into(),
        folders: start.folders.iter().map(Into::into).collect(),
    }
}

/// A machine at its start.
struct FirstState {
    machine: Machine,
    hosts: MachineHosts,
    /// Where the tasks of a checkpoint run.
    ranks: BTreeMap<Tid, Rank>,
    /// What has become of its hosts.
    restored: RestoredHosts,
    /// What has waited for the end of the checkpoint.
    waiting: WaitingRequests,
}

/// The machine of a checkpoint.
fn machine_of(
    restart: &mut Restart,
    hosts: MachineHosts,
    sizes: TaskSizes,
) -> Result<FirstState, NotRun> {
    let saved = restart.checkpoint.machine.take().ok_or(CheckpointError::Process);
    let mut saved = saved.map_err(NotRun::Checkpoint)?;
    let map = CheckpointHosts::new(&restart.checkpoint.head.hosts, hosts);
    let ranks = map.ranks(saved.tasks());
    for (host, name) in map.gone() {
        let tasks = saved.tasks().filter(|(_, rank)| map.host_of(*rank) == Some(host)).count();
        if tasks > 0 {
            report_line!(
                "upcall pvm: host {name} of the checkpoint is not there: its tasks ({tasks}) go on \
                 on the other hosts"
            );
        }
    }
    let gone = |tid: Tid| tid == node::CONSOLE || restart.checkpoint.left_out.contains(&tid);
    let waiting = saved.take_waiting().in_another_machine(node::CONSOLE, gone, &map);
    let (restored, hosts) = (map.restored(), map.hosts().clone());
    let machine = saved.restore(sizes.places(), &ranks, node::CONSOLE);
    let damaged = || restart.checkpoint.damaged("the machine's state is impossible");
    let mut machine = machine.ok_or_else(|| NotRun::Checkpoint(damaged()))?;
    machine.arenas = std::mem::take(&mut restart.arenas);
    Ok(FirstState { machine, hosts, ranks, restored, waiting })
}

fn run_with(
    start: &Start,
    mut restart: Option<Restart>,
    desk: impl FnOnce() -> std::io::Result<NodeControl>,
) -> Result<i32, NotRun> {
    let sizes = TaskSizes::of_run(start.stack, start.memory).map_err(NotRun::Size)?;
    let hosts = start.machine_hosts().map_err(NotRun::Host)?;
    let first = match &mut restart {
        Some(restart) => machine_of(restart, hosts, sizes)?,
        None => {
            let machine = Machine::new(start.place.clone()).with_places(sizes.places());
            let (ranks, restored) = (BTreeMap::new(), RestoredHosts::default());
            FirstState { machine, hosts, ranks, restored, waiting: WaitingRequests::default() }
        }
    };
    let FirstState { machine, hosts, ranks, restored, waiting } = first;
    // A machine that goes on has no arena that its blocks may be in.
    let arena = || ArenaNumber::take().ok_or(NotRun::Checkpoint(CheckpointError::Addresses));
    let arena = restart.as_ref().map(|_| arena()).transpose()?;
    // Comes first, because the other processes inherit the standard input that this replaces.
    let desk = desk().map_err(NotRun::Desk)?;
    let has_others = hosts.most() > 1;
    let others = has_others.then(|| Others::start(start, &hosts, sizes)).transpose()?;
    let link = others.as_ref().map(Others::join).transpose()?;
    if link.is_some() {
        processes::settle(0);
    }
    let worker = worker(arena)?;
    if let Some(reason) = worker.not_caught() {
        report_line!("upcall pvm: {reason}");
    }
    let places = TaskPlaces::new(0, hosts.size()).map_err(NotRun::Places)?;
    let programs = Programs::new(start.folders.clone());
    let mut node = Node::new(worker, programs, Some(machine), link, places)
        .with_hosts(hosts)
        .with_recruiter(
            others.as_ref().zip(start.hosts.as_ref()).map(|(one, how)| one.recruiter(how)),
        )
        .with_sizes(sizes)
        .with_balance(start.balance_plan())
        .with_start(head_of(start, sizes), start.checkpoint.clone())
        .with_waiting(waiting)
        .at_desk(desk);
    if let Some(restart) = &restart {
        node.restore(&restart.checkpoint, &ranks, &restored).map_err(NotRun::Checkpoint)?;
    }
    spawn_first(&mut node, start)?;
    let ended = node.run();
    // `upcall pvm halt` still ends this.
    [&STDOUT, &STDERR].into_iter().for_each(|stream| stream.flush());
    let worst = ended.map_err(|tasks| NotRun::Stuck { tasks })?;
    match node.refused {
        Some(code) => Err(NotRun::Program { name: readable(&start.program), code }),
        None => Ok(worst),
    }
}

/// A program's name as it is shown.
fn readable(program: &OsStr) -> String {
    program.to_string_lossy().into_owned()
}

/// Spawns the initial tasks.
fn spawn_first(node: &mut Node, start: &Start) -> Result<(), NotRun> {
    if start.copies == 0 {
        return Ok(());
    }
    let args = start.args.iter().map(|word| CString::new(word.as_bytes()));
    let args = args
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| NotRun::Program { name: readable(&start.program), code: error::BAD_PARAM })?;
    let plan = TaskSpec {
        program: start.program.clone(),
        args,
        parent: error::NO_PARENT,
        ..TaskSpec::default()
    };
    node.spawn(None, plan, start.copies);
    Ok(())
}

/// Writes lines to standard error. After some seconds without a reader they are dropped.
///
/// For the error that [`run`] or [`console`] has returned: a machine that could not be started, or
/// whose tasks all wait, ends though standard error is full. At most 4096 bytes are written.
pub fn report(text: &str) {
    report::report(text);
    STDERR.flush();
}
