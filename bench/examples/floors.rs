//! The suite `rpc` without Upcall: the limits of this machine, and the peers beside them.
//!
//! ```text
//! cargo run --release -p upcall-bench --example floors --
//!     [--quick] [--peers LIST] [--cases LIST] [--json FILE]
//! ```

use std::path::PathBuf;
use std::process::ExitCode;

use upcall_bench::child;
use upcall_bench::rpc::{self, Contender, Rpc};
use upcall_bench::suite::{self, Only, Options, Peers};

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    if args.first().is_some_and(|first| first == "bench-child") {
        return child::child_main(args.into_iter().skip(1), &rpc::SYSTEMS);
    }
    let after =
        |flag: &str| args.iter().position(|arg| arg == flag).and_then(|at| args.get(at + 1));
    let text = |flag: &str| after(flag).map(|arg| arg.to_string_lossy().into_owned());
    let peers: Peers<Contender> =
        match text("--peers").unwrap_or_else(|| "unix-socket".to_owned()).parse() {
            Ok(peers) => peers,
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        };
    let limits =
        ["limit", "limit-futex", "limit-eventfd", "limit-pipe", "limit-socket"].into_iter();
    let only = Only {
        systems: limits.chain(peers.names()).map(str::to_owned).collect(),
        cases: text("--cases")
            .map(|cases| cases.split(',').map(str::to_owned).collect())
            .unwrap_or_default(),
        ..Only::default()
    };
    let options = Options {
        peers,
        json: after("--json").map(PathBuf::from),
        quick: args.iter().any(|arg| arg == "--quick"),
        only,
        ..Options::of(std::env::current_exe().expect("this program's own path"))
    };
    match suite::run(&Rpc::default(), &options) {
        Ok(report) if report.failures.is_empty() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
