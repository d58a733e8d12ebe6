//! `upcall pvm`: PVM programs as user-level processes.

use crate::Done;
use std::path::PathBuf;
use std::process::ExitCode;
use upcall_pvm::{Place, Start};

/// What can be done with PVM programs.
#[derive(clap::Subcommand)]
pub enum Suite {
    Run(Run),
}

/// Runs a PVM program, and what it spawns, many tasks in one process.
///
/// The program is compiled by `upvmcc` (upvmc++, upvmf77, upvmf90), and unchanged otherwise. With -n, so many copies of it are started together: they have no parent, and `pvm_siblings` tells them of each other.
///
/// What the program and its copies print goes where `upcall` prints; lines of tasks that they spawn go to its error stream with their task's number, where nobody catches them (`pvm_catchout`). Ends when all tasks have ended, with the worst status of those it was started with: 128 and the signal's number for one that has crashed.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  upvmcc hello.c -o hello && upcall pvm run ./hello\n  upcall pvm run -n 24 ./ring 1000")]
pub struct Run {
    /// How many copies to start together.
    #[arg(short = 'n', value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=14_336))]
    copies: u32,
    /// In how many processes tasks are to run: one for each processor, at most.
    #[arg(short, long, value_name = "P", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    procs: u32,
    /// Which task runs in which process: neighbours together (block), one here and the next one there (interleave), or as a file says, which has the number of a process, from 0, for each task.
    #[arg(long, value_name = "block|interleave|FILE", default_value = "block", value_parser = place)]
    place: Place,
    /// Each task in a process of its own, of which there are so many (32 if this says no more): for debuggers.
    #[arg(long, value_name = "MOST", num_args = 0..=1, require_equals = true, default_missing_value = "32", conflicts_with_all = ["procs", "place"], value_parser = clap::value_parser!(u32).range(1..=255))]
    as_processes: Option<u32>,
    /// A folder to look for programs in before all others; may be repeated.
    #[arg(long, value_name = "FOLDER")]
    path: Vec<PathBuf>,
    /// The program, and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM [ARGS]")]
    program: Vec<String>,
}

fn place(text: &str) -> Result<Place, String> {
    match text {
        "block" => return Ok(Place::Block),
        "interleave" => return Ok(Place::Interleave),
        _ => {}
    }
    let file = std::fs::read_to_string(text)
        .map_err(|error| format!("neither block nor interleave, nor a file that can be read: {error}"))?;
    let number = |word: &str| word.parse::<usize>().map_err(|_| format!("{word:?} is no number of a process"));
    let list = file.split_whitespace().map(number).collect::<Result<Vec<_>, _>>()?;
    if list.is_empty() { Err("the file names no process".into()) } else { Ok(Place::List(list)) }
}

/// A process of a machine beside its first one; for the command itself.
pub fn member(args: &[std::ffi::OsString]) -> Done {
    let args = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect::<Vec<_>>();
    upcall_pvm::run_member(&args)?;
    Ok(ExitCode::SUCCESS)
}

pub fn run(suite: Suite) -> Done {
    let Suite::Run(run) = suite;
    let mut words = run.program.into_iter();
    let program = words.next().unwrap_or_default();
    if let Place::List(list) = &run.place
        && let Some(rank) = list.iter().find(|rank| **rank >= run.procs as usize)
    {
        return Err(
            format!("--place names process {rank}, and there are {} (0 to {}): use --procs", run.procs, run.procs - 1).into()
        );
    }
    let start = Start {
        program,
        args: words.collect(),
        copies: run.copies as usize,
        folders: run.path,
        // The first one has no tasks.
        processes: run.as_processes.map_or(run.procs, |most| most + 1) as usize,
        place: if run.as_processes.is_some() { Place::Alone } else { run.place },
    };
    let status = upcall_pvm::run(&start)?;
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX)))
}
