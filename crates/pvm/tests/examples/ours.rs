//! Programs under our PVM: compiled by `upvmcc`, run by `upcall pvm run`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::cases::{Case, Program};
use crate::normal::Outcome;
use crate::{command, packages, process};

/// The command, and the folder of the compilers.
#[derive(Clone)]
pub struct Tools {
    upcall: PathBuf,
    pub compilers: PathBuf,
    /// Variables of the command's environment.
    variables: Vec<(&'static str, String)>,
}

/// Random moves of all tasks of a machine.
#[derive(Clone, Copy)]
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
    Tools { upcall, compilers, variables: Vec::new() }
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
    run_with(tools, &[], case, folder)
}

/// Runs a case in a machine of several processes, while its tasks move at random.
pub fn run_moved(tools: &Tools, moves: RandomMoves, case: &Case, folder: &Path) -> Outcome {
    let RandomMoves { processes, interval, seed } = moves;
    println!("{}: {processes} processes, UPCALL_PVM_SHUFFLE={interval},{seed}", case.name);
    let mut tools = Tools { variables: vec![], ..tools.clone() };
    tools.variables.push(("UPCALL_PVM_SHUFFLE", format!("{interval},{seed}")));
    let mut options = vec![format!("--procs={processes}")];
    if case.any {
        options.push("--place=interleave".into());
    } else {
        // Outputs are compared in the order of the tasks' numbers, which depends on the places.
        let place = folder.join("place");
        fs::write(&place, "0\n").expect("a file of places");
        options.push(format!("--place={}", place.display()));
    }
    run_with(&tools, &options, case, folder)
}

fn run_with(tools: &Tools, options: &[String], case: &Case, folder: &Path) -> Outcome {
    let dir = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(&tools.upcall);
    command.args(["pvm", "run"]).args(options).current_dir(folder);
    command.envs(tools.variables.iter().map(|(name, value)| (name, value)));
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
