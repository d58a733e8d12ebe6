//! `upcall-thread-peers`: Rust thread libraries, each behind the child protocol of the benchmark
//! harness (`upcall_bench::threads::child`), each with its default configuration. README.md lists
//! the exceptions and their reasons.

mod limit;
mod may;
mod tokio;

use std::process::ExitCode;

use upcall_bench::threads::child::{Entry, child_main};

const SYSTEMS: [Entry; 3] = [limit::LIMIT, Entry::of::<may::May>(), tokio::TOKIO];

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    match args.next() {
        Some(first) if first == "bench-threads" => child_main(args, &SYSTEMS),
        _ => {
            eprintln!("upcall-thread-peers is run by `upcall-bench threads --peers all`");
            ExitCode::FAILURE
        }
    }
}
