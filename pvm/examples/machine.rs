//! Runs so many copies of a program as tasks in this process, as `upcall pvm run -n N ./prog` does.
//!
//! ```text
//! cargo run -p upcall-pvm --example machine 3 ./prog
//! ```

use std::process::ExitCode;
use upcall_pvm::{Place, Start};

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let (Some(Ok(copies)), Some(program)) = (words.next().map(|word| word.parse()), words.next()) else {
        eprintln!("usage: machine COPIES PROGRAM [ARGS]");
        return ExitCode::from(2);
    };
    let start = Start { program, args: words.collect(), copies, folders: Vec::new(), processes: 1, place: Place::Block };
    match upcall_pvm::run(&start) {
        Ok(status) => ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX)),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
