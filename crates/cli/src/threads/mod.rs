//! `upcall threads PID`: the user-level threads of a running process, seen from outside.
//!
//! A program with `upcall-thread` says in one place of its memory where its threads are (`beacon`).
//! The process is stopped (`halt`) for as long as it takes to copy its records and the stacks in
//! use (`snapshot`), and goes on; from the copies it is found out what the threads do (`thread`),
//! by which calls they came there (`unwind`), and how those are called (`symbols`).
//!
//! The process takes no part in this: it may hang, or be idle for good. What is read is another
//! program's, and is trusted in nothing.

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

use crate::told::CommandResult;
use code::ProcessCode;
use image::MappedFile;
use process::TargetProcess;
use std::io::ErrorKind;
use std::process::ExitCode;

/// Lists the user-level threads of a running process: name, state, what each waits for, and a
/// backtrace.
///
/// The process is stopped for a moment, as by a debugger, and need do nothing itself. It takes the
/// right to trace it: the same user, or root. A thread that was woken and has not run since is
/// shown as waiting. A system call of the process may return EINTR, as after any stop.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{}", json::DESCRIPTION))]
pub struct ThreadsArgs {
    /// The process.
    pid: u32,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Leave backtraces out.
    #[arg(long)]
    no_backtrace: bool,
    /// Show each thread by itself, and the scheduler's own calls too.
    #[arg(long)]
    all: bool,
}

const EXAMPLES: &str = "\
Examples:
  upcall threads 4711
  upcall threads --all 4711 | less
  upcall threads --json 4711 | jq '.threads[] | select(.waits_for.kind == \"mutex\") | .name'";

pub fn run(args: &ThreadsArgs) -> CommandResult {
    let process = TargetProcess::find(args.pid)?;
    let images = MappedFile::all(&process);
    let beacons = beacon::find(&process, &images)?;
    let snapshot = snapshot::take(&process, &beacons, !args.no_backtrace)?;
    let code = ProcessCode::new(images);
    let threads = thread::all(&snapshot, &code);
    let print = if args.json { json::print } else { text::print };
    match print(&process, &snapshot, &threads, &code, !args.no_backtrace, args.all) {
        // The reader has seen enough, as `head` does.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        printed => Ok(printed.map(|()| ExitCode::SUCCESS)?),
    }
}
