//! The suite without Upcall: the limits of this machine, and a bare Unix socket beside them.
//!
//! `cargo run --release -p upcall-bench --example floors [--quick] [--json FILE]`

use std::path::PathBuf;
use std::process::ExitCode;

use upcall_bench::{child, rpc};

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    if args.first().is_some_and(|first| first == "bench-child") {
        return child::child_main(args.into_iter().skip(1), &rpc::SYSTEMS);
    }
    let after = |flag: &str| args.iter().position(|arg| arg == flag).and_then(|at| args.get(at + 1));
    let systems = ["limit", "limit-futex", "limit-eventfd", "limit-pipe", "unix-socket"];
    let options = rpc::Options {
        exe: std::env::current_exe().expect("this program's own path"),
        peers: "unix-socket".parse().expect("a peer"),
        json: after("--json").map(PathBuf::from),
        quick: args.iter().any(|arg| arg == "--quick"),
        only: rpc::Only { systems: systems.map(str::to_owned).into(), ..rpc::Only::default() },
    };
    match rpc::run(&options) {
        Ok(report) if report.failures.is_empty() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
