//! `upcall-bench` measures calls, threads, messages and objects in one run, beside the limits of
//! the machine and other systems. Upcall itself is one of the systems that the harness
//! (`upcall_bench`) runs.
#![deny(unsafe_code)]

mod cache;
mod children;
mod homed;
mod hosts;
mod links;
mod messages;
mod own;
mod pages;
mod parts;
mod plot;
mod pvm;
mod rpc;
mod suites;
mod threads;
mod told;
mod urpc;

use clap::Parser;
use std::process::ExitCode;

/// Measures calls, threads, messages and objects: Upcall, the limits of the machine, and other
/// systems, in one run.
#[derive(Parser)]
#[command(name = "upcall-bench", version, propagate_version = true)]
#[command(after_help = "Examples:\n  \
        upcall-bench rpc --peers none\n  \
        upcall-bench rpc --peers grpc,unix-socket --case null --json rpc.json\n  \
        upcall-bench threads --peers none --record docs/performance/records\n  \
        upcall-bench pages --check")]
struct Args {
    #[command(subcommand)]
    suite: suites::Command,
}

const ERROR: anstyle::Style = anstyle::AnsiColor::Red.on_default().bold();

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(done) = children::run(&args) {
        return done;
    }
    suites::run(Args::parse().suite).unwrap_or_else(|error| {
        anstream::eprintln!("{ERROR}upcall-bench:{ERROR:#} {error}");
        ExitCode::FAILURE
    })
}

/// Locked by tests that keep two processors busy, so that they run one at a time.
#[cfg(test)]
pub(crate) static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
