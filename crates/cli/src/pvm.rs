//! `upcall pvm`: PVM programs as user-level processes.

mod ps;

use crate::told::CommandResult;
use std::path::PathBuf;
use std::process::ExitCode;
use upcall_pvm::{Start, TaskPlacement};

/// Runs PVM programs as user-level processes, many tasks in one process (docs/pvm.md).
///
/// Without a subcommand: PVM's console (see `upcall pvm console --help`).
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct PvmArgs {
    #[command(subcommand)]
    suite: Option<PvmCommand>,
    #[command(flatten)]
    console: PvmConsoleArgs,
}

#[derive(clap::Subcommand)]
enum PvmCommand {
    Run(PvmRunArgs),
    Console(PvmConsoleArgs),
    Ps(PvmPsArgs),
    Kill(PvmKillArgs),
    Sig(PvmSignalArgs),
    Halt(PvmHaltArgs),
}

/// PVM's console, on a machine of its own: `help` lists its commands.
///
/// It reads ~/.pvmrc, then the standard input, and prompts if that is a terminal. Output of tasks
/// that are spawned goes to the error stream, each line with its task's id, or with `spawn -> ...`
/// here, with the number of the job as well. They have nothing to read on their standard input.
///
/// Other than PVM's, this console has its machine in its own process: `quit`, and the end of the
/// input, let the tasks that are left go on, and the machine ends with the last of them; `halt`
/// ends it at once. From another shell: upcall pvm ps, kill, sig and halt.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  upcall pvm\n  echo 'spawn -4 -> ./hello' | upcall pvm\n  upcall pvm console --procs 2 < script\n\nCommands of the console:\n  conf   ps -a   ps -s   spawn -3 -> ./worker 100   kill t40002   sig 15 t40002\n  jobs   names   reset   alias x kill   setenv NAME VALUE   export NAME   halt   quit"
)]
struct PvmConsoleArgs {
    #[command(flatten)]
    shape: MachineArgs,
}

/// What machine it is.
#[derive(clap::Args)]
struct MachineArgs {
    /// In how many processes tasks are to run: one for each processor, at most.
    #[arg(short, long, value_name = "P", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    procs: u32,
    /// Which task runs in which process: neighbours together (block), one here and the next one
    /// there (interleave), or as a file says, which has the number of a process, from 0, for each
    /// task.
    #[arg(long, value_name = "block|interleave|FILE", default_value = "block", value_parser = place)]
    place: TaskPlacement,
    /// Each task in a process of its own, of which there are so many (32 if this says no more):
    /// for debuggers.
    #[arg(long, value_name = "MOST", num_args = 0..=1, require_equals = true, default_missing_value = "32", conflicts_with_all = ["procs", "place"], value_parser = clap::value_parser!(u32).range(1..=255))]
    as_processes: Option<u32>,
    /// A folder to look for programs in before all others; may be repeated.
    #[arg(long, value_name = "FOLDER")]
    path: Vec<PathBuf>,
}

/// Shows the machines of this user, and what each of their tasks does.
///
/// A task is in the queue (it runs when its turn comes), waits for a message, at a barrier or for a
/// descriptor, or sleeps. HELD is what it holds of messages, RESIDENT what memory of its own
/// addresses is there, of which program text is shared among tasks of the same program (own_kib in
/// JSON leaves that out).
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  upcall pvm ps\n  upcall pvm ps --json | jq '.[].tasks[] | select(.state == \"receives\") | .tid'"
)]
struct PvmPsArgs {
    /// Print a JSON array with one object for each machine.
    #[arg(long)]
    json: bool,
}

/// Ends a task, or all tasks of a machine.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  upcall pvm kill t40002\n  upcall pvm kill all --machine 4711")]
struct PvmKillArgs {
    /// The task, as `upcall pvm ps` shows it, or `all`.
    #[arg(value_name = "TID|all")]
    task: String,
    #[command(flatten)]
    which: Which,
}

/// Sends a task a signal.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  upcall pvm sig 15 t40002")]
struct PvmSignalArgs {
    /// The signal's number.
    #[arg(value_name = "N", value_parser = clap::value_parser!(i32).range(0..=64))]
    number: i32,
    /// The task, as `upcall pvm ps` shows it.
    #[arg(value_name = "TID")]
    task: String,
    #[command(flatten)]
    which: Which,
}

/// Ends a machine with all its tasks; returns when it has ended.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  upcall pvm halt\n  upcall pvm halt --machine 4711")]
struct PvmHaltArgs {
    #[command(flatten)]
    which: Which,
}

#[derive(clap::Args)]
struct Which {
    /// The machine, by the number of its first process, as `upcall pvm ps` shows it; need not be
    /// said if only one can be meant.
    #[arg(short, long, value_name = "NUMBER")]
    machine: Option<u32>,
}

/// Runs a PVM program, and what it spawns, many tasks in one process.
///
/// The program is compiled by `upvmcc` (upvmc++, upvmf77, upvmf90), and unchanged otherwise. With
/// -n, so many copies of it are started together: they have no parent, and `pvm_siblings` tells
/// them of each other.
///
/// What the program and its copies print goes where `upcall` prints; lines of tasks that they spawn
/// go to its error stream with their task's number, where nobody catches them (`pvm_catchout`).
/// Ends when all tasks have ended, with the worst status of those it was started with: 128 and the
/// signal's number for one that has crashed.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  upvmcc hello.c -o hello && upcall pvm run ./hello\n  upcall pvm run -n 24 ./ring 1000"
)]
struct PvmRunArgs {
    /// How many copies to start together.
    #[arg(short = 'n', value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=14_336))]
    copies: u32,
    #[command(flatten)]
    shape: MachineArgs,
    /// The program, and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM [ARGS]")]
    program: Vec<String>,
}

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
        word.parse::<usize>().map_err(|_| format!("{word:?} is no number of a process"))
    };
    let list = file.split_whitespace().map(number).collect::<Result<Vec<_>, _>>()?;
    if list.is_empty() {
        Err("the file names no process".into())
    } else {
        Ok(TaskPlacement::List(list))
    }
}

/// A process of a machine beside its first one; for the command itself.
pub fn member(args: &[std::ffi::OsString]) -> CommandResult {
    let args = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect::<Vec<_>>();
    upcall_pvm::run_member(&args)?;
    Ok(ExitCode::SUCCESS)
}

pub fn run(args: PvmArgs) -> CommandResult {
    match args.suite.unwrap_or(PvmCommand::Console(args.console)) {
        PvmCommand::Run(run) => {
            let mut words = run.program.into_iter();
            let start = Start {
                copies: run.copies as usize,
                program: words.next().unwrap_or_default(),
                args: words.collect(),
                ..machine(run.shape)?
            };
            ended(upcall_pvm::run(&start)?)
        }
        PvmCommand::Console(console) => ended(upcall_pvm::console(&machine(console.shape)?)?),
        PvmCommand::Ps(args) => ps::list(args.json),
        PvmCommand::Kill(PvmKillArgs { task, which }) => {
            let tid = (task != "all").then(|| tid(&task)).transpose()?;
            let count = upcall_pvm::kill(which.machine, tid)?;
            if tid.is_none() {
                println!("{count} {} ended", if count == 1 { "task is" } else { "tasks are" });
            }
            Ok(ExitCode::SUCCESS)
        }
        PvmCommand::Sig(PvmSignalArgs { number, task, which }) => {
            upcall_pvm::signal(which.machine, tid(&task)?, number)?;
            Ok(ExitCode::SUCCESS)
        }
        PvmCommand::Halt(PvmHaltArgs { which }) => {
            upcall_pvm::halt(which.machine)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn tid(text: &str) -> Result<upcall_pvm::Tid, String> {
    upcall_pvm::tid(text).ok_or_else(|| {
        format!("{text:?} is no task's id: give one as `upcall pvm ps` shows it, such as t40002")
    })
}

fn ended(status: i32) -> CommandResult {
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX)))
}

/// A machine without tasks yet.
fn machine(shape: MachineArgs) -> Result<Start, String> {
    if let TaskPlacement::List(list) = &shape.place
        && let Some(rank) = list.iter().find(|rank| **rank >= shape.procs as usize)
    {
        return Err(format!(
            "--place names process {rank}, and there are {} (0 to {}): use --procs",
            shape.procs,
            shape.procs - 1
        ));
    }
    Ok(Start {
        program: String::new(),
        args: Vec::new(),
        copies: 0,
        folders: shape.path,
        // The first one has no tasks.
        processes: shape.as_processes.map_or(shape.procs, |most| most + 1) as usize,
        place: if shape.as_processes.is_some() { TaskPlacement::Alone } else { shape.place },
    })
}
