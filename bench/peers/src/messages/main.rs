//! `upcall-message-peers`: Rust libraries for messages, each behind the child protocol of the suite
//! `messages` (`upcall_bench::messages::child`), each with its default configuration. README.md
//! lists the exceptions and their reasons.

mod iceoryx;

use std::process::ExitCode;

use upcall_bench::messages::child::{Entry, child_main};

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    match args.next() {
        Some(first) if first == "bench-messages" => {
            child_main(args, &[Entry::of::<iceoryx::Iceoryx2>()])
        }
        _ => {
            eprintln!(
                "upcall-message-peers is run by `upcall-bench messages` with --peers iceoryx2"
            );
            ExitCode::FAILURE
        }
    }
}
