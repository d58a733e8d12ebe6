//! `upcall pvm`: PVM programs as user-level processes.

mod hosts;
mod ps;
mod top;

use crate::exit::{CommandError, CommandResult, Exit};
use crate::output::{println, report_in_time};
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use upcall_job::Signals;
use upcall_os::poll::PollSet;
use upcall_pvm::{
    BalancerKind, MOST_PROCESSES, MachineUse, MemorySize, NotRun, PeriodicCheckpoint,
    ProcessChange, RestartOptions, SavedCost, StackSize, Start, TaskPlacement,
};

/// Runs PVM programs, many tasks in one process (docs/reference/pvm.md).
///
/// Without a subcommand, starts PVM's console (see `upcall pvm console --help`).
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub struct PvmArgs {
    #[command(subcommand)]
    suite: Option<PvmCommand>,
    #[command(flatten)]
    console: PvmConsoleArgs,
}

const EXAMPLES: &str = "\
Examples:
  upvmcc hello.c -o hello && upcall pvm run ./hello
  upcall pvm ps
  echo 'spawn -4 -> ./hello' | upcall pvm";

#[derive(clap::Subcommand)]
enum PvmCommand {
    Run(PvmRunArgs),
    Console(PvmConsoleArgs),
    Ps(PvmPsArgs),
    Kill(PvmKillArgs),
    Sig(PvmSignalArgs),
    Move(PvmMoveArgs),
    Checkpoint(PvmCheckpointArgs),
    Restart(PvmRestartArgs),
    Evacuate(PvmEvacuateArgs),
    Procs(PvmProcsArgs),
    Add(hosts::PvmAddArgs),
    Delete(hosts::PvmDeleteArgs),
    Conf(hosts::PvmConfArgs),
    Join(hosts::PvmJoinArgs),
    Top(top::PvmTopArgs),
    Halt(PvmHaltArgs),
}

/// Starts PVM's console on a machine of its own; the console's `help` lists its commands.
///
/// The console reads ~/.pvmrc, then the standard input, and prompts if that is a terminal. The
/// output of spawned tasks goes to the error stream, each line with its task's id; with
/// `spawn -> ...` it goes to the standard output, with the job's number as well. Spawned tasks have
/// an empty standard input.
///
/// Unlike PVM's console, this console has its machine in its own process: `quit`, and the end of
/// the input, let the remaining tasks go on, and the machine ends with the last of them. `halt`
/// ends it at once. From another shell, use upcall pvm ps, kill, sig, move and halt.
#[derive(clap::Args)]
#[command(after_help = CONSOLE_EXAMPLES)]
struct PvmConsoleArgs {
    #[command(flatten)]
    shape: MachineArgs,
}

const CONSOLE_EXAMPLES: &str = "\
Examples:
  echo 'spawn -4 -> ./hello' | upcall pvm console
  upcall pvm console --procs 2 < script
  upcall pvm console --host ws2 --rendezvous ws1:7000 < script

Commands of the console:
  conf   ps -a   ps -s   spawn -3 -> ./worker 100   kill t40002   sig 15 t40002
  migrate t40002 1   jobs   names   reset   alias x kill   setenv NAME VALUE   export NAME
  halt   quit";

/// The shape of a machine.
#[derive(clap::Args)]
struct MachineArgs {
    /// Number of processes in which tasks run, at most one for each processor.
    ///
    /// With a range such as 1-4, the last number of processes start, and the first number have
    /// tasks until that is changed: by `upcall pvm procs`, or with --balance by the number of
    /// processors.
    #[arg(
        short, long, value_name = "P|LEAST-MOST", default_value = "1", value_parser = processes
    )]
    procs: ProcessRange,
    /// Move tasks from processes with much to do to others: all from scratch, the heaviest first
    /// (greedy), from overloaded processes alone (refine), or of these rather the tasks that
    /// exchange messages with the other process (comm). Without this option tasks stay.
    #[arg(long, value_name = "greedy|refine|comm", value_parser = balancer)]
    balance: Option<BalancerKind>,
    /// Which task runs in which process: neighbours together (block), neighbours apart
    /// (interleave), or as a file says, which has the number of a process, from 0, for each task.
    #[arg(
        long, value_name = "block|interleave|FILE", default_value = "block", value_parser = place
    )]
    place: TaskPlacement,
    /// Run each task in a process of its own, for debuggers: at most MOST tasks at a time (32 by
    /// default, up to 255).
    #[arg(
        long, value_name = "MOST", num_args = 0..=1, require_equals = true,
        default_missing_value = "32",
        conflicts_with_all = ["procs", "place", "balance", "rendezvous"],
        value_parser = |text: &str| number(text, MOST_PROCESSES - 1)
    )]
    as_processes: Option<u32>,
    /// Size of each task's stack: a number with K, M or G, from 64K to 512M. By default UPVM_STACK,
    /// or else `ulimit -s`.
    #[arg(short, long, value_name = "SIZE")]
    stack: Option<StackSize>,
    /// Size of each task's addresses for program, stack, heap and maps: a number with G, up to
    /// 1024G. By default UPVM_MEMORY, or else 1G.
    #[arg(long, value_name = "SIZE")]
    memory: Option<MemorySize>,
    /// Folder in which programs are looked for after the spawning program's; may be repeated.
    #[arg(long, value_name = "FOLDER")]
    path: Vec<PathBuf>,
    #[command(flatten)]
    hosts: Box<hosts::HostArgs>,
}

/// A number of processes that may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessRange {
    least: u32,
    most: u32,
}

/// Reads a number of processes, or a range.
fn processes(text: &str) -> Result<ProcessRange, String> {
    let one = |text: &str| number(text, MOST_PROCESSES);
    let (least, most) = match text.split_once('-') {
        Some((least, most)) => (one(least)?, one(most)?),
        None => (one(text)?, one(text)?),
    };
    match least <= most {
        true => Ok(ProcessRange { least, most }),
        false => Err("give the smaller number first".into()),
    }
}

fn balancer(text: &str) -> Result<BalancerKind, String> {
    BalancerKind::of(text).ok_or_else(|| "give greedy, refine or comm".into())
}

/// Reads a number of processes.
fn number(text: &str, most: u32) -> Result<u32, String> {
    let given = text.parse().ok().filter(|given| (1..=most).contains(given));
    given.ok_or_else(|| format!("give a number from 1 to {most}"))
}

/// Lists the machines of this user, and what each of their tasks does.
///
/// A task is in the queue (it runs when its turn comes), waits for a message, at a barrier or for a
/// descriptor, or sleeps. If the machine has several processes, DOES also says why a task could not
/// move to another one now. HELD is the memory of its messages, RESIDENT the memory at its
/// addresses, of which tasks of one program share the program's text. In a machine with several
/// hosts, PROCESS begins with the host, and RESIDENT is known for tasks of the first one.
#[derive(clap::Args)]
#[command(after_help = PS_EXAMPLES, after_long_help = format!("{PS_EXAMPLES}\n\n{PS_JSON}"))]
struct PvmPsArgs {
    /// Print a JSON array with one object for each machine.
    #[arg(long)]
    json: bool,
}

const PS_EXAMPLES: &str = "\
Examples:
  upcall pvm ps
  upcall pvm ps --json | jq '.[].tasks[] | select(.state == \"receives\") | .tid'";

const PS_JSON: &str = "\
JSON keys: machine, processes, console, hosts, and tasks with tid, number, parent, program, state
(starts, runs, polls, receives, asks, sleeps, awaits, pauses, aside, moves or silent), doing,
pinned (why the task could not move to another process now), refused (where it was last to move,
and why it did not), from, tag, messages, blocks, block_bytes, resident_kib, own_kib (without
shared text), rank, host, process and pid. Null means unknown or none.";

/// Ends a task, or all tasks of a machine.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  upcall pvm kill t40002\n  upcall pvm kill all --machine 4711")]
struct PvmKillArgs {
    /// The task's id, as `upcall pvm ps` shows it, or `all`.
    #[arg(value_name = "TID|all")]
    task: String,
    #[command(flatten)]
    which: Which,
}

/// Sends a signal to a task.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  upcall pvm sig 15 t40002\n  upcall pvm sig 15 t40002 --machine 4711"
)]
struct PvmSignalArgs {
    /// The signal's number.
    #[arg(value_name = "N", value_parser = clap::value_parser!(i32).range(0..=64))]
    number: i32,
    /// The task's id, as `upcall pvm ps` shows it.
    #[arg(value_name = "TID")]
    task: String,
    #[command(flatten)]
    which: Which,
}

/// Moves a task to another process of its machine, and returns when it runs there.
///
/// The task keeps its id, its memory and its messages, and does not notice. A task stays where it
/// is if it has asked for that, while it waits for a file or socket or a helper makes a system call
/// for it, or while it has children or mapped files. Then the error says so, and so does
/// `upcall pvm ps`. Tasks move within one machine, also between its hosts
/// (docs/reference/moving.md).
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  upcall pvm move t40002 1\n  upcall pvm move t40002 1 --machine 4711"
)]
struct PvmMoveArgs {
    /// The task's id, as `upcall pvm ps` shows it.
    #[arg(value_name = "TID")]
    task: String,
    /// The rank of the process, from 0, as `upcall pvm ps` shows it after the process's number.
    #[arg(
        value_name = "RANK",
        value_parser = clap::value_parser!(u32).range(..i64::from(MOST_PROCESSES))
    )]
    rank: u32,
    #[command(flatten)]
    which: Which,
}

const CHECKPOINT_EXAMPLES: &str = "\
Examples:
  upcall pvm checkpoint state
  upcall pvm checkpoint state --machine 4711";

/// Saves a machine with all its tasks in a file, and returns when the file is on the disk.
///
/// The machine goes on. `upcall pvm restart` starts it again from the file, also after a crash or a
/// reboot. A former file of this name stays as it is until the new one is whole. A machine is not
/// saved while a task has children, open files or mapped files; the error says so.
///
/// Ctrl-C cancels the checkpoint, as the end of this command does: the machine goes on, and no new
/// file is left.
#[derive(clap::Args)]
#[command(after_help = CHECKPOINT_EXAMPLES)]
struct PvmCheckpointArgs {
    /// The file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    which: Which,
}

/// Moves all tasks out of a process, and returns when they run elsewhere.
///
/// The process gets no tasks until `--undo`. Tasks that cannot move stay there; the command names
/// them with the reasons, and ends with 1. The machine tries them again later.
#[derive(clap::Args)]
#[command(after_help = EVACUATE_EXAMPLES)]
struct PvmEvacuateArgs {
    /// The rank of the process, from 0, as `upcall pvm top` shows it.
    #[arg(
        value_name = "RANK",
        value_parser = clap::value_parser!(u32).range(..MOST_PROCESSES as i64)
    )]
    rank: u32,
    /// Let the process have tasks again.
    #[arg(long)]
    undo: bool,
    #[command(flatten)]
    which: Which,
}

/// Starts a machine again from a file that `upcall pvm checkpoint` has written.
///
/// All tasks go on where they were, with their ids, memory and messages, as if no time had passed.
/// Their programs must not have changed. If some tasks cannot go on, none does, and the error names
/// each with the reason. The machine's console is not restored: the output of its
/// jobs goes to the error stream. The command ends as `upcall pvm run` does.
///
/// This host is the machine's home now, also if it was another one. With --host, tasks go on on
/// other hosts, too: those of a host with that name. Tasks of hosts that are not named go on on
/// those that are.
#[derive(clap::Args)]
#[command(after_help = RESTART_EXAMPLES)]
struct PvmRestartArgs {
    /// The file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Number of processes of this host in which tasks run; by default as many as the machine had
    /// on its home. Tasks of processes that do not exist are distributed over the others.
    #[arg(short, long, value_name = "P", value_parser = |text: &str| number(text, MOST_PROCESSES))]
    procs: Option<u32>,
    /// Move tasks between processes, as `upcall pvm run` does, or leave them where they are (none).
    /// By default as the machine did before.
    #[arg(long, value_name = "greedy|refine|comm|none", value_parser = restart_balancer)]
    balance: Option<RestartBalancer>,
    /// Go on without this task, which cannot go on here; may be repeated. For the others, and in
    /// the exit code of this command, it was killed at the moment of the checkpoint.
    #[arg(long, value_name = "TID")]
    without: Vec<String>,
    #[command(flatten)]
    periodic: PeriodicArgs,
    #[command(flatten)]
    hosts: Box<hosts::HostArgs>,
}

/// The balancer of a machine that goes on.
#[derive(Clone, Copy, Debug)]
struct RestartBalancer(Option<BalancerKind>);

fn restart_balancer(text: &str) -> Result<RestartBalancer, String> {
    match text {
        "none" => Ok(RestartBalancer(None)),
        text => balancer(text)
            .map(|kind| RestartBalancer(Some(kind)))
            .map_err(|_| "give greedy, refine, comm or none".into()),
    }
}

const RESTART_EXAMPLES: &str = "\
Examples:
  upcall pvm restart state
  upcall pvm restart state --procs 4
  upcall pvm restart state --without t40002
  upcall pvm restart state --host ws2:4 --rendezvous ws1:7000";

/// Checkpoints at intervals.
#[derive(clap::Args)]
struct PeriodicArgs {
    /// Save the machine in this file at intervals; `upcall pvm restart` starts it again. Each
    /// checkpoint takes the place of the last one.
    #[arg(long, value_name = "FILE", requires = "every")]
    checkpoint: Option<PathBuf>,
    /// Seconds from one checkpoint to the next.
    #[arg(long, value_name = "SECONDS", requires = "checkpoint", value_parser = seconds)]
    every: Option<Duration>,
}

impl PeriodicArgs {
    fn checkpoints(self) -> Option<PeriodicCheckpoint> {
        let (file, every) = self.checkpoint.zip(self.every)?;
        Some(PeriodicCheckpoint { file, every })
    }
}

/// Reads an interval.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=1e9).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "give a number of seconds from 0.1".into())
}

const EVACUATE_EXAMPLES: &str = "\
Examples:
  upcall pvm evacuate 1
  upcall pvm evacuate 1 --undo";

/// Changes the number of processes in which tasks run, and returns when they have moved.
///
/// The machine has as many processes as it was started with (`--procs`). The lowest ranks have
/// tasks, without the evacuated ones; the other processes wait, and use no processor.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  upcall pvm procs 1\n  upcall pvm procs 2 --machine 4711")]
struct PvmProcsArgs {
    /// Number of processes.
    #[arg(value_name = "N", value_parser = |text: &str| number(text, MOST_PROCESSES))]
    number: u32,
    #[command(flatten)]
    which: Which,
}

/// Ends a machine with all its tasks, and returns when it has ended.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  upcall pvm halt\n  upcall pvm halt --machine 4711")]
struct PvmHaltArgs {
    #[command(flatten)]
    which: Which,
}

#[derive(clap::Args)]
struct Which {
    /// The machine, by the number of its first process, as `upcall pvm ps` shows it; only needed if
    /// several machines run.
    #[arg(short, long, value_name = "NUMBER")]
    machine: Option<u32>,
}

/// Runs a PVM program, and the tasks that it spawns, in one process or a few.
///
/// The program is compiled by `upvmcc` (upvmc++, upvmf77, upvmf90), and otherwise unchanged. With
/// -n, N copies start together: they have no parent, and find each other by `pvm_siblings`.
///
/// The program and its copies share this command's standard output. Spawned tasks write to the
/// error stream, each line with the task's id, unless `pvm_catchout` catches it. The command ends
/// when all tasks have ended, with the worst exit code of the copies: 128 plus the signal's number
/// for a copy that crashed.
///
/// With --host, tasks also run on other hosts (docs/how-to/pvm-hosts.md). Each copy, and each task
/// that is spawned without a host's name, gets a place among the processes of all hosts.
#[derive(clap::Args)]
#[command(after_help = RUN_EXAMPLES)]
struct PvmRunArgs {
    /// Number of copies that start together.
    #[arg(
        short = 'n', value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=14_336)
    )]
    copies: u32,
    #[command(flatten)]
    shape: MachineArgs,
    #[command(flatten)]
    periodic: PeriodicArgs,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM [ARGS]")]
    program: Vec<OsString>,
}

const RUN_EXAMPLES: &str = "\
Examples:
  upvmcc hello.c -o hello && upcall pvm run ./hello
  upcall pvm run -n 24 ./hello 1000
  upcall pvm run -n 4 --procs 2 ./hello
  upcall pvm run --checkpoint state --every 60 ./hello
  upcall pvm run -n 8 --host ws2:4 --rendezvous ws1:7000 ./hello";

fn place(text: &str) -> Result<TaskPlacement, String> {
    match text {
        "block" => return Ok(TaskPlacement::Block),
        "interleave" => return Ok(TaskPlacement::Interleave),
        _ => {}
    }
    let file = std::fs::read_to_string(text).map_err(|error| {
        format!("neither block nor interleave, nor a file that can be read: {error}")
    })?;
    let number = |word: &str| {
        word.parse::<usize>().map_err(|_| format!("{word:?} is not the number of a process"))
    };
    let list = file.split_whitespace().map(number).collect::<Result<Vec<_>, _>>()?;
    if list.is_empty() {
        Err("the file names no process".into())
    } else {
        Ok(TaskPlacement::List(list))
    }
}

/// Makes room for tasks' addresses.
fn make_room() {
    if let Err(error) = upcall_pvm::make_room() {
        // The machine refuses to run if that matters.
        crate::output::report(format_args!(
            "a limit of the stack above 64 GiB leaves tasks less room, and was not lowered: {error}"
        ));
    }
}

/// Runs a process of a machine other than its first. The command starts itself for this.
pub fn member(args: &[std::ffi::OsString]) -> CommandResult {
    make_room();
    let args = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect::<Vec<_>>();
    ended(upcall_pvm::run_member(&args).map(|()| 0))
}

pub fn run(args: PvmArgs) -> CommandResult {
    let command = args.suite.unwrap_or(PvmCommand::Console(args.console));
    if matches!(command, PvmCommand::Run(_) | PvmCommand::Console(_) | PvmCommand::Restart(_)) {
        make_room();
    }
    match command {
        PvmCommand::Run(run) => {
            let mut words = run.program.into_iter();
            let start = Start {
                copies: run.copies as usize,
                program: words.next().unwrap_or_default(),
                args: words.collect(),
                checkpoint: run.periodic.checkpoints(),
                ..machine(run.shape)?
            };
            ended(upcall_pvm::run(&start))
        }
        PvmCommand::Console(console) => ended(upcall_pvm::console(&machine(console.shape)?)),
        PvmCommand::Ps(args) => ps::list(args.json),
        PvmCommand::Kill(PvmKillArgs { task, which }) => {
            let tid = (task != "all").then(|| tid(&task)).transpose()?;
            let count = upcall_pvm::kill(which.machine, tid)?;
            if tid.is_none() {
                let tasks = if count == 1 { "task is" } else { "tasks are" };
                println(format_args!("{count} {tasks} ended"))?;
            }
            Ok(Exit::Done)
        }
        PvmCommand::Sig(PvmSignalArgs { number, task, which }) => {
            upcall_pvm::signal(which.machine, tid(&task)?, number)?;
            Ok(Exit::Done)
        }
        PvmCommand::Move(PvmMoveArgs { task, rank, which }) => {
            let cost = upcall_pvm::move_task(which.machine, tid(&task)?, rank)?;
            println(format_args!(
                "{task} runs in process {rank}: it paused for {} us of {}, with {} sent",
                cost.pause.as_micros(),
                cost.total.as_micros(),
                crate::output::size(cost.bytes)
            ))?;
            Ok(Exit::Done)
        }
        PvmCommand::Checkpoint(PvmCheckpointArgs { file, which }) => checkpoint(&file, &which),
        PvmCommand::Restart(PvmRestartArgs { file, procs, balance, without, periodic, hosts }) => {
            let options = RestartOptions {
                processes: procs.map(|procs| procs as usize),
                balancer: balance.map(|RestartBalancer(balancer)| balancer),
                without: without.iter().map(|text| tid(text)).collect::<Result<_, _>>()?,
            };
            let hosts = hosts.start()?;
            ended(upcall_pvm::restart(&file, options, periodic.checkpoints(), hosts))
        }
        PvmCommand::Evacuate(PvmEvacuateArgs { rank, undo, which }) => {
            let change =
                if undo { ProcessChange::Readmit(rank) } else { ProcessChange::Evacuate(rank) };
            used(&upcall_pvm::change_use(which.machine, change)?)
        }
        PvmCommand::Procs(PvmProcsArgs { number, which }) => {
            used(&upcall_pvm::change_use(which.machine, ProcessChange::Number(number))?)
        }
        PvmCommand::Add(args) => hosts::add(&args),
        PvmCommand::Delete(args) => hosts::delete(&args),
        PvmCommand::Conf(args) => hosts::conf(&args),
        PvmCommand::Join(args) => hosts::join(args),
        PvmCommand::Top(args) => top::run(&args),
        PvmCommand::Halt(PvmHaltArgs { which }) => {
            upcall_pvm::halt(which.machine)?;
            Ok(Exit::Done)
        }
    }
}

/// Saves a machine, and shows how far it is if that takes longer.
fn checkpoint(file: &Path, which: &Which) -> CommandResult {
    const LONG: Duration = Duration::from_secs(1);
    let (since, is_terminal) = (Instant::now(), std::io::stderr().is_terminal());
    let mut is_shown = false;
    let unable = |error| CommandError::new(Exit::Failed, format!("waiting for signals: {error}"));
    let signals = PollSet::new().map_err(unable)?;
    let mut taken = Signals::new(&signals, 0).map_err(unable)?;
    let cancel = Some(signals.as_fd());
    let saved = upcall_pvm::checkpoint(which.machine, file, cancel, |cost, all| {
        if is_terminal && since.elapsed() >= LONG {
            is_shown = true;
            let bytes = crate::output::size(cost.bytes);
            // Fails if the terminal is gone, which does not matter.
            let _ = write!(std::io::stderr(), "\r\x1b[K{} of {all} tasks, {bytes}", cost.tasks);
        }
    });
    if is_shown {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    if let Err(error) = &saved
        && let Some(signal) = taken.take().first()
    {
        report_in_time(error);
        Signals::end_by(*signal);
    }
    let SavedCost { tasks, bytes, pause, total } = saved?;
    println(format_args!(
        "{} in {}: {}; they paused for {} ms of {}",
        crate::output::counted(tasks as usize, "task"),
        crate::output::line(&file.to_string_lossy()),
        crate::output::size(bytes),
        pause.as_millis(),
        total.as_millis()
    ))?;
    Ok(Exit::Done)
}

/// Reports which processes are in use, and the tasks that stay in others.
fn used(machine: &MachineUse) -> CommandResult {
    let ranks = machine.used.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let moved = match machine.moved {
        1 => "1 task has moved".into(),
        more => format!("{more} tasks have moved"),
    };
    let processes = if ranks.contains(',') { "processes" } else { "process" };
    println(format_args!("tasks run in {processes} {ranks}; {moved}"))?;
    for task in &machine.stay {
        let program = crate::output::cell(&task.program);
        report_in_time(format_args!(
            "{} ({program}) stays in process {}: {}",
            task.tid, task.rank, task.why
        ));
    }
    match machine.staying - machine.stay.len().min(machine.staying) {
        0 => {}
        more => report_in_time(format_args!("and {more} more stay")),
    }
    Ok(if machine.staying == 0 { Exit::Done } else { Exit::Failed })
}

fn tid(text: &str) -> Result<upcall_pvm::Tid, CommandError> {
    upcall_pvm::tid(text).ok_or_else(|| {
        CommandError::usage(format_args!(
            "{text:?} is not the id of a task: give one as `upcall pvm ps` shows it, such as t40002"
        ))
    })
}

/// What the end of a machine means. Its error is reported here, since a full error stream must not
/// keep the command from ending.
fn ended(status: Result<i32, NotRun>) -> CommandResult {
    match status {
        Ok(0) => Ok(Exit::Done),
        Ok(status) => Ok(Exit::Program(u8::try_from(status).unwrap_or(u8::MAX))),
        Err(error) => {
            let error = CommandError::from(error);
            report_in_time(&error);
            Ok(error.exit())
        }
    }
}

/// The start of a machine without tasks.
fn machine(shape: MachineArgs) -> Result<Start, CommandError> {
    let far = shape.hosts.processes();
    let all = shape.procs.most as usize + far;
    if let TaskPlacement::List(list) = &shape.place
        && let Some(rank) = list.iter().find(|rank| **rank >= all)
    {
        return Err(CommandError::usage(format_args!(
            "--place names process {rank}, and there are {all} (0 to {}): use --procs",
            all - 1
        )));
    }
    if shape.hosts.are_several() && shape.procs.least != shape.procs.most {
        return Err(CommandError::usage(
            "--procs has a range, and a machine over several hosts uses all of its processes: give \
             one number",
        ));
    }
    Ok(Start {
        program: OsString::new(),
        args: Vec::new(),
        copies: 0,
        folders: shape.path,
        // The first process has no tasks.
        processes: shape.as_processes.map_or(shape.procs.most, |most| most + 1) as usize,
        least: shape.procs.least as usize,
        balancer: shape.balance,
        place: if shape.as_processes.is_some() { TaskPlacement::Alone } else { shape.place },
        stack: shape.stack,
        checkpoint: None,
        memory: shape.memory,
        hosts: shape.hosts.start()?,
    })
}
