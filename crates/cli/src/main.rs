//! `upcall`: who exports what, calls by hand, interface definitions, the threads of a process,
//! jobs, benchmarks.
#![deny(unsafe_code)]

mod bench;
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
/// threads, measure it.
#[derive(Parser)]
#[command(name = "upcall", version, propagate_version = true)]
#[command(
    after_help = "Examples:\n  upcall ls\n  upcall call math.add 2 3\n  upcall ls tcp://127.0.0.1:7000\n  upcall wit diff old.wit new.wit\n  upcall threads 4711\n  upcall job run --group 4 -- ./sieve\n  upcall bench rpc --peers none\n  upcall bench threads --peers none"
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Shows who exports what.
    Ls(ls::Args),
    Stat(stat::Args),
    Top(top::Args),
    /// Calls a procedure; arguments and result are WAVE text.
    Call(call::Args),
    /// Works on interface definitions, without a server.
    #[command(subcommand)]
    Wit(wit::Suite),
    Threads(threads::Args),
    /// Starts the processes of a group together, stops and schedules them (docs/jobs.md).
    #[command(subcommand)]
    Job(job::Suite),
    Pvm(pvm::Args),
    Calibrate(calibrate::Args),
    /// Measures calls and threads: ours, the limits of the machine, and other systems, in one run.
    #[command(subcommand)]
    Bench(bench::Suite),
}

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    // A child of a benchmark: its arguments are the harness's own.
    if args.first().is_some_and(|first| first == "bench-child") {
        return bench::child(args.into_iter().skip(1));
    }
    if args.first().is_some_and(|first| first == "bench-threads") {
        return bench::threads_child(args.into_iter().skip(1));
    }
    if args.first().is_some_and(|first| first == "bench-urpc") {
        return bench::urpc_child(args.into_iter().skip(1));
    }
    if args.first().is_some_and(|first| first == "bench-messages") {
        return bench::messages_child(args.into_iter().skip(1));
    }
    if args.first().is_some_and(|first| first == "bench-own-messages") {
        return bench::own_messages_child(args.into_iter().skip(1));
    }
    if args.first().is_some_and(|first| first == "bench-homed") {
        return bench::homed_child(args.into_iter().skip(1));
    }
    if args.first().is_some_and(|first| first == "bench-cache") {
        return bench::cache_child(args.into_iter().skip(1));
    }
    if args.first().is_some_and(|first| first == "bench-pvm") {
        return bench::pvm_child(args.into_iter().skip(1));
    }
    if let Some((first, rest)) =
        args.split_first().filter(|(first, _)| *first == "bench-job" || *first == "bench-member")
    {
        return bench::own_jobs_child(first == "bench-job", rest);
    }
    if let Some((_, rest)) = args.split_first().filter(|(first, _)| *first == "pvm-member") {
        return pvm::member(rest).unwrap_or_else(|error| {
            tell(&*error);
            ExitCode::FAILURE
        });
    }
    let done = match Args::parse().command {
        Command::Ls(args) => ls::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Call(args) => call::run(&args),
        Command::Wit(suite) => wit::run(suite),
        Command::Threads(args) => threads::run(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Job(suite) => job::run(suite),
        Command::Pvm(args) => pvm::run(args),
        Command::Bench(suite) => bench::run(suite),
    };
    done.unwrap_or_else(|error| {
        tell(&*error);
        ExitCode::FAILURE
    })
}
