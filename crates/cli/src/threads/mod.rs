//! `upcall threads`: the user-level threads of a running process, from outside.
//!
//! A program with `upcall-thread` has a beacon in its memory that leads to its threads (`beacon`).
//! The command stops the process (`halt`) while it copies the records and the used parts of stacks
//! (`snapshot`). From the copies it finds out what the threads do (`thread`), the calls that led
//! there (`unwind`), and their names (`symbols`).
//!
//! The process takes no part in this, so it may hang or be idle. Everything that is read is another
//! program's memory, and nothing in it is trusted.

mod backtrace;
mod beacon;
mod code;
mod error;
mod halt;
mod image;
mod json;
mod memory;
mod process;
mod slabs;
mod snapshot;
mod symbols;
mod text;
mod thread;
mod unwind;

use crate::exit::{CommandError, CommandResult, Exit};
use crate::names::process_of;
use crate::output::unwritten;
use code::ProcessCode;
use error::InspectError;
use image::MappedFile;
use process::TargetProcess;

/// Lists the threads of a running process, with backtraces.
///
/// For each user-level thread these are name, state, what it waits for, and its calls; for other
/// kernel threads, name and calls. The process is stopped
/// for a moment, as by a debugger, which takes the same user or root. A thread that was woken and
/// has not run since is shown as waiting. A system call of the process may return EINTR, as after
/// any stop.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{}", json::DESCRIPTION))]
pub struct ThreadsArgs {
    /// The process: its number, or the name of one of its exports.
    #[arg(value_name = "PID|NAME")]
    process: String,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Leave out backtraces.
    #[arg(long)]
    no_backtrace: bool,
    /// Show each thread by itself, and the scheduler's own calls too.
    #[arg(short, long)]
    all: bool,
}

const EXAMPLES: &str = "\
Examples:
  upcall threads files
  upcall threads --all 4711 | less
  upcall threads --json 4711 | jq '.threads[] | select(.waits_for.kind == \"mutex\") | .name'";

pub fn run(args: &ThreadsArgs) -> CommandResult {
    // A name may consist of digits, but a number is a process.
    let pid = args.process.parse().or_else(|_| process_of(&args.process))?;
    let process = TargetProcess::find(pid)?;
    let images = MappedFile::all(&process);
    let beacons = beacon::find(&process, &images)?;
    let snapshot = snapshot::take(&process, &beacons, !args.no_backtrace)?;
    let code = ProcessCode::new(images);
    let threads = thread::all(&snapshot, &code);
    let print = if args.json { json::print } else { text::print };
    print(&process, &snapshot, &threads, &code, !args.no_backtrace, args.all).map_err(unwritten)?;
    Ok(Exit::Done)
}

impl From<InspectError> for CommandError {
    fn from(error: InspectError) -> Self {
        let exit = match error {
            InspectError::NoProcess(_) | InspectError::Ended(_) => Exit::NotFound,
            InspectError::NotPermitted { .. }
            | InspectError::Traced { .. }
            | InspectError::NoThread(_) => Exit::Refused,
            InspectError::Version { .. } | InspectError::Damaged { .. } => Exit::Mismatch,
            InspectError::NoBeacon { .. } | InspectError::Failed { .. } => Exit::Failed,
        };
        Self::new(exit, error)
    }
}
