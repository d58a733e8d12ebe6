//! Runs a machine for tests: `host PROCESSES COPIES PROGRAM [ARGS …]`.

use std::process::ExitCode;
use upcall_pvm::{Start, TaskPlacement};

fn main() -> ExitCode {
    let args = std::env::args().skip(1).collect::<Vec<_>>();
    if let Some((_, rest)) = args.split_first().filter(|(first, _)| *first == "pvm-member") {
        return ExitCode::from(u8::from(upcall_pvm::run_member(rest).is_err()));
    }
    let [processes, copies, program, rest @ ..] = &args[..] else { return ExitCode::from(2) };
    let start = Start {
        checkpoint: None,
        program: program.into(),
        args: rest.iter().map(Into::into).collect(),
        copies: copies.parse().unwrap_or(1),
        folders: Vec::new(),
        processes: processes.parse().unwrap_or(1),
        least: processes.parse().unwrap_or(1),
        balancer: None,
        hosts: None,
        place: TaskPlacement::default(),
        stack: None,
        memory: None,
    };
    match upcall_pvm::run(&start) {
        Ok(status) => ExitCode::from(status as u8),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(3)
        }
    }
}
