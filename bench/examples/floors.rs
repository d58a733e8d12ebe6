//! The suite without Upcall: the limits of this machine, and the peers beside them.
//!
//! `cargo run --release -p upcall-bench --example floors -- [--quick] [--peers LIST] [--cases LIST]
//! [--json FILE]`

use std::path::PathBuf;
use std::process::ExitCode;

use upcall_bench::{child, rpc};

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    if args.first().is_some_and(|first| first == "bench-child") {
        return child::child_main(args.into_iter().skip(1), &rpc::SYSTEMS);
    }
    let after =
        |flag: &str| args.iter().position(|arg| arg == flag).and_then(|at| args.get(at + 1));
    let text = |flag: &str| after(flag).map(|arg| arg.to_string_lossy().into_owned());
    let peers =
        match text("--peers").unwrap_or_else(|| "unix-socket".to_owned()).parse::<rpc::Peers>() {
            Ok(peers) => peers,
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        };
    let limits =
        ["limit", "limit-futex", "limit-eventfd", "limit-pipe", "limit-socket"].into_iter();
    let only = rpc::Only {
        systems: limits.chain(peers.names()).map(str::to_owned).collect(),
        cases: text("--cases")
            .map(|cases| cases.split(',').map(str::to_owned).collect())
            .unwrap_or_default(),
        ..rpc::Only::default()
    };
    let options = rpc::Options {
        exe: std::env::current_exe().expect("this program's own path"),
        peers,
        json: after("--json").map(PathBuf::from),
        quick: args.iter().any(|arg| arg == "--quick"),
        only,
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
