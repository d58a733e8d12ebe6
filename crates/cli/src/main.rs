//! `upcall`: who exports what, calls by hand, interface definitions, the threads of a process,
//! jobs.
#![deny(unsafe_code)]

mod calibrate;
mod call;
mod job;
mod ls;
mod members;
mod objects;
mod pvm;
mod stat;
mod threads;
mod told;
mod top;
mod wit;

use crate::told::tell;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Calls between processes at memory speed: see who exports what, call it by hand, look at its
/// threads.
#[derive(Parser)]
#[command(name = "upcall", version, propagate_version = true)]
#[command(
    after_help = "Examples:\n  upcall ls\n  upcall call math.add 2 3\n  upcall ls tcp://127.0.0.1:7000\n  upcall wit diff old.wit new.wit\n  upcall threads 4711\n  upcall job run --group 4 -- ./sieve"
)]
struct CommandLine {
    #[command(subcommand)]
    command: UpcallCommand,
}

#[derive(Subcommand)]
enum UpcallCommand {
    /// Shows who exports what.
    Ls(ls::LsArgs),
    Stat(stat::StatArgs),
    Top(top::TopArgs),
    /// Calls a procedure; arguments and result are WAVE text.
    Call(call::CallArgs),
    /// Works on interface definitions, without a server.
    #[command(subcommand)]
    Wit(wit::WitCommand),
    Threads(threads::ThreadsArgs),
    /// Starts the processes of a group together, stops and schedules them (docs/jobs.md).
    #[command(subcommand)]
    Job(job::JobCommand),
    Pvm(pvm::PvmArgs),
    Calibrate(calibrate::CalibrateArgs),
}

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some((_, rest)) = args.split_first().filter(|(first, _)| *first == "pvm-member") {
        return pvm::member(rest).unwrap_or_else(|error| {
            tell(&*error);
            ExitCode::FAILURE
        });
    }
    let done = match CommandLine::parse().command {
        UpcallCommand::Ls(args) => ls::run(&args),
        UpcallCommand::Stat(args) => stat::run(&args),
        UpcallCommand::Top(args) => top::run(&args),
        UpcallCommand::Call(args) => call::run(&args),
        UpcallCommand::Wit(suite) => wit::run(suite),
        UpcallCommand::Threads(args) => threads::run(&args),
        UpcallCommand::Calibrate(args) => calibrate::run(&args),
        UpcallCommand::Job(suite) => job::run(suite),
        UpcallCommand::Pvm(args) => pvm::run(args),
    };
    done.unwrap_or_else(|error| {
        tell(&*error);
        ExitCode::FAILURE
    })
}

/// For tests that keep two processors busy by themselves: one at a time.
#[cfg(test)]
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// An interface that is compiled, for tests of what is made of its source.
#[cfg(test)]
#[allow(dead_code, missing_docs, reason = "only its description is used")]
mod compiled {
    upcall::interface!("src/wit/tests.wit");
}
