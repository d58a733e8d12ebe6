//! Programs under our PVM: compiled by `upvmcc`, run by `upcall pvm run`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::cases::{Case, Program};
use crate::normal::Outcome;
use crate::{command, packages, process};

/// The command, and the folder of the compilers.
pub struct Tools {
    upcall: PathBuf,
    pub compilers: PathBuf,
}

/// Random moves of all tasks of a machine.
pub struct RandomMoves {
    /// Number of processes of the machine.
    pub processes: usize,
    /// Interval between two moves, in microseconds.
    pub interval: u32,
    pub seed: u64,
}

/// Finds the tools.
pub fn tools() -> Tools {
    let upcall = command::upcall();
    let compilers = upcall.parent().expect("a folder").to_owned();
    Tools { upcall, compilers }
}

/// Compiles a program. Returns the compiler's output if it fails.
pub fn compile(
    tools: &Tools,
    program: &Program,
    sources: &[PathBuf],
    folder: &Path,
) -> Result<(), String> {
    let fortran = packages::fortran(sources);
    let mut compiler =
        Command::new(tools.compilers.join(if fortran { "upvmf77" } else { "upvmcc" }));
    compiler
        .args(packages::dialect(fortran))
        .args(&program.flags)
        .args(sources)
        .arg("-o")
        .arg(folder.join(&program.name))
        .arg("-lm");
    let output = compiler.output().expect("a compiler");
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Runs a case.
pub fn run(tools: &Tools, case: &Case, folder: &Path) -> Outcome {
    run_with(tools, &[], &[], case, folder)
}

/// Runs a case in a machine of several processes, while its tasks move at random.
pub fn run_moved(tools: &Tools, moving: &RandomMoves, case: &Case, folder: &Path) -> Outcome {
    let RandomMoves { processes, interval, seed } = moving;
    let shuffle = format!("UPCALL_PVM_SHUFFLE={interval},{seed}");
    // Outputs are compared in the order of the tasks' numbers, which depends on the places.
    let place = if case.any {
        "--place=interleave".to_owned()
    } else {
        let file = folder.join("place");
        fs::write(&file, "0\n".repeat(64)).expect("a file of places");
        format!("--place={}", file.display())
    };
    let begun = std::time::Instant::now();
    let outcome =
        run_with(tools, &[&shuffle], &[&format!("--procs={processes}"), &place], case, folder);
    eprintln!("{} {:?}", case.name, begun.elapsed());
    outcome
}

fn run_with(
    tools: &Tools,
    variables: &[&str],
    options: &[&str],
    case: &Case,
    folder: &Path,
) -> Outcome {
    let dir = tempfile::tempdir().expect("a folder");
    let mut command = Command::new("env");
    command
        .args(variables)
        .arg(&tools.upcall)
        .args(["pvm", "run"])
        .args(options)
        .current_dir(folder);
    if let Some(copies) = case.copies {
        command.args(["-n", &copies.to_string()]);
    }
    command.arg(folder.join(case.run.first().map_or("cast", String::as_str)));
    if let Some(text) = &case.script {
        let script = dir.path().join("script");
        fs::write(&script, text).expect("a script");
        command.arg(script);
    }
    command.args(case.run.iter().skip(1));
    let ended = process::run(command, &case.stdin, Duration::from_secs(case.limit), dir.path());
    // Output of spawned tasks is on standard error, each line with its label.
    let (others, err): (Vec<&str>, Vec<&str>) =
        ended.err.split_inclusive('\n').partition(|line| line.starts_with("[t"));
    Outcome {
        out: ended.out,
        err: err.concat(),
        others: others.concat(),
        status: process::told(ended.status),
    }
}
