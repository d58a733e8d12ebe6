//! The programs under our PVM: compiled by `upvmcc`, run by `upcall pvm run`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::cases::{Case, Program};
use crate::normal::Outcome;
use crate::{packages, process};

/// The command, and the folder of the compilers.
pub struct Tools {
    upcall: PathBuf,
    pub compilers: PathBuf,
}

/// The command is another package's, which is built here if it is not up to date.
pub fn tools() -> Tools {
    let compilers = Path::new(env!("CARGO_BIN_EXE_upvmcc")).parent().expect("a folder").to_owned();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--package", "upcall-cli", "--bins"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args(compilers.ends_with("release").then_some("--release")).arg("--target-dir").arg(compilers.with_file_name(""));
    assert!(cargo.status().expect("cargo").success(), "upcall is not built: {cargo:?}");
    Tools { upcall: compilers.join("upcall"), compilers }
}

/// Compiles a program; the compiler's words if it fails.
pub fn compile(tools: &Tools, program: &Program, sources: &[PathBuf], folder: &Path) -> Result<(), String> {
    let fortran = packages::fortran(sources);
    let mut compiler = Command::new(tools.compilers.join(if fortran { "upvmf77" } else { "upvmcc" }));
    compiler
        .args(packages::dialect(fortran))
        .args(&program.flags)
        .args(sources)
        .arg("-o")
        .arg(folder.join(&program.name))
        .arg("-lm");
    let output = compiler.output().expect("a compiler");
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// Runs a case.
pub fn run(tools: &Tools, case: &Case, folder: &Path) -> Outcome {
    let dir = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(&tools.upcall);
    command.args(["pvm", "run"]).current_dir(folder);
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
    // What those that were spawned print comes on standard error, each line with its label.
    let (others, err): (Vec<&str>, Vec<&str>) = ended.err.split_inclusive('\n').partition(|line| line.starts_with("[t"));
    Outcome { out: ended.out, err: err.concat(), others: others.concat(), status: process::told(ended.status) }
}
