//! Where the program `upcall-peers` comes from: it is built from source when peers are asked for, because its
//! dependencies are heavy and nobody else needs them.

use std::env;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Sources of `upcall-peers`, as they were when this crate was compiled.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers");

/// Why there is no `upcall-peers`.
#[derive(Debug)]
pub enum PeersError {
    /// Neither sources nor a built program.
    Nowhere {
        /// Where a built one was looked for.
        beside: PathBuf,
    },
    /// No C++ compiler, which ZeroMQ needs, and none could be installed.
    NoCompiler,
    /// The build failed; cargo has said why on standard error.
    Build {
        /// The command, to be tried by hand.
        command: String,
        /// How it ended.
        how: String,
    },
}

impl fmt::Display for PeersError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeersError::Nowhere { beside } => write!(
                f,
                "the peers live in a program of their own, and neither its sources ({SOURCES}) nor {} are there; \
                 run from a checkout, put upcall-peers beside this program, or use --peers none or --peers unix-socket",
                beside.display()
            ),
            PeersError::NoCompiler => write!(
                f,
                "building the peers takes a C++ compiler (ZeroMQ is C++); install one (Debian: apt-get install g++) \
                 or use --peers none"
            ),
            PeersError::Build { command, how } => {
                write!(f, "the peers could not be built ({how}); to see more, run: {command}")
            }
        }
    }
}

impl std::error::Error for PeersError {}

/// The path of an up-to-date `upcall-peers`, built now if need be. Building takes some minutes the first time; its
/// progress goes to standard error. `own` is the running program, beside which a built one may lie when there are no
/// sources.
///
/// # Errors
/// [`PeersError`], each saying what to do.
pub fn program(own: &Path) -> Result<PathBuf, PeersError> {
    let manifest = Path::new(SOURCES).join("Cargo.toml");
    if !manifest.is_file() {
        let beside = own.with_file_name("upcall-peers");
        return if beside.is_file() { Ok(beside) } else { Err(PeersError::Nowhere { beside }) };
    }
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| Path::new(SOURCES).join("target"), PathBuf::from);
    let program = target.join("release/upcall-peers");
    if !program.is_file() {
        eprintln!("building the peers (some minutes, once) …");
        provide_compiler()?;
    }
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--release", "--locked", "--manifest-path"]).arg(&manifest).arg("--target-dir").arg(&target);
    let failed =
        |how| PeersError::Build { command: format!("cargo build --release --manifest-path {}", manifest.display()), how };
    match cargo.stdin(Stdio::null()).stdout(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(program),
        Ok(status) => Err(failed(status.to_string())),
        Err(error) if error.kind() == io::ErrorKind::NotFound && program.is_file() => Ok(program),
        Err(error) => Err(failed(format!("cargo: {error}"))),
    }
}

/// The one thing that the build needs and cargo cannot bring.
fn provide_compiler() -> Result<(), PeersError> {
    let there = |program: &str| Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success());
    if env::var_os("CXX").is_some() || there("c++") {
        return Ok(());
    }
    if rustix::process::geteuid().is_root() && there("apt-get") {
        eprintln!("installing Debian's g++ …");
        for args in [&["update", "-qq"][..], &["install", "-y", "-qq", "--no-install-recommends", "g++"]] {
            Command::new("apt-get").args(args).stdin(Stdio::null()).stdout(Stdio::null()).status().ok();
        }
    }
    if there("c++") { Ok(()) } else { Err(PeersError::NoCompiler) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_to_do() {
        let nowhere = PeersError::Nowhere { beside: PathBuf::from("/x/upcall-peers") }.to_string();
        assert!(nowhere.contains("/x/upcall-peers") && nowhere.contains("--peers none"));
        assert!(PeersError::NoCompiler.to_string().contains("apt-get install g++"));
    }
}
