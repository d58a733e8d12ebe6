//! Builds the peers' programs from source, when their peers are requested.
//!
//! The peers' dependencies are heavy and nothing else needs them. Each program is built separately,
//! so that a run that needs only a Rust library does not require Go.

use crate::interrupted;
use rustix::process::{Pid, Signal, kill_process_group};
use std::env;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

/// Directory of the peers' sources when this crate was compiled.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers");

/// Why a peer's program is missing.
#[derive(Debug)]
pub enum PeersError {
    /// There are neither sources nor a built program.
    Nowhere {
        /// Where a built program was expected.
        beside: PathBuf,
    },
    /// A build requirement is missing and could not be installed.
    Missing {
        /// The requirement, and which peer needs it.
        what: &'static str,
        /// Debian packages to install.
        packages: &'static str,
    },
    /// A system that Debian does not have was not built.
    Unbuilt {
        /// The system.
        what: &'static str,
        /// The script that builds it, in the checkout.
        script: &'static str,
        /// The environment variable that names the folder of the built system.
        variable: &'static str,
    },
    /// The build failed. The compiler's diagnostics are on standard error.
    Build {
        /// The command, for a manual attempt.
        command: String,
        /// How the command ended.
        how: String,
    },
}

impl fmt::Display for PeersError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeersError::Nowhere { beside } => {
                let name = beside.file_name().unwrap_or_default().display();
                write!(
                    f,
                    "the peers' programs are missing: neither their sources \
                    ({SOURCES}) nor {} exist; run from a checkout, put {name} beside this \
                    program, or use --peers none or a peer that needs no such program \
                    (unix-socket, pthread)",
                    beside.display()
                )
            }
            PeersError::Missing { what, packages } => {
                write!(
                    f,
                    "building the peers needs {what}; install it (Debian: apt-get install \
                    {packages}) or use --peers none"
                )
            }
            PeersError::Unbuilt { what, script, variable } => {
                write!(
                    f,
                    "{what} was not found; build it ({script} SOURCES FOLDER) and set {variable} \
                    to that FOLDER, or use --peers none"
                )
            }
            PeersError::Build { command, how } => {
                write!(f, "the peers could not be built ({how}); to see more, run: {command}")
            }
        }
    }
}

impl std::error::Error for PeersError {}

impl PeersError {
    /// Returns `true` if a requirement is not on this machine, and nothing has failed.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, PeersError::Missing { .. } | PeersError::Unbuilt { .. })
    }
}

/// A requirement of a build that the build does not provide itself.
pub(crate) struct Need {
    pub what: &'static str,
    pub packages: &'static str,
    pub there: fn() -> bool,
}

const ZEROMQ: Need = Need {
    what: "a C++ compiler (ZeroMQ is C++)",
    packages: "g++",
    there: || env::var_os("CXX").is_some() || works(&cxx(), &["--version"]),
};

const BOOST: Need = Need {
    what: "a C++ compiler and Boost.Fiber",
    packages: "g++ libboost-fiber-dev",
    there: || works(&cxx(), &["-E", "-x", "c++", "-include", "boost/fiber/fiber.hpp", "/dev/null"]),
};

const GRPC_CPP: Need = Need {
    what: "a C++ compiler, and gRPC's C++ library with its generators",
    packages: "g++ pkg-config libgrpc++-dev libprotobuf-dev protobuf-compiler \
        protobuf-compiler-grpc",
    there: || {
        works(&cxx(), &["--version"])
            && works(Path::new("pkg-config"), &["--exists", "grpc++", "protobuf"])
            && works(Path::new("protoc"), &["--version"])
            // The plugin has no option with which it could be probed.
            && on_path("grpc_cpp_plugin")
    },
};

const UCX: Need = Need {
    what: "a C compiler and UCX",
    packages: "gcc pkg-config libucx-dev",
    there: || works(&cc(), &["--version"]) && works(Path::new("pkg-config"), &["--exists", "ucx"]),
};

/// The command by which Open MPI starts processes. No other package has a command of this name.
pub(crate) const ORTERUN: &str = "orterun";

const OPEN_MPI: Need = Need {
    what: "a C compiler and Open MPI with its command",
    packages: "gcc pkg-config libopenmpi-dev openmpi-bin",
    there: || {
        works(&cc(), &["--version"])
            && works(Path::new("pkg-config"), &["--exists", "ompi-c"])
            && works(Path::new(ORTERUN), &["--version"])
    },
};

const GO: Need = Need { what: "Go", packages: "golang-go", there: || works(&go(), &["version"]) };

/// Returns the path of an up-to-date `upcall-peers`, building it if needed.
///
/// The first build takes some minutes; its progress goes to standard error. `own` is the path of
/// the running program. If there are no sources, a built program beside it is used.
///
/// # Errors
/// [`PeersError`]; each variant says what to do.
pub fn peers(own: &Path) -> Result<PathBuf, PeersError> {
    cargo(own, "upcall-peers", &[], Some(&ZEROMQ))
}

/// Like [`peers`], for the thread libraries in Rust.
///
/// # Errors
/// As for [`peers`].
pub fn thread_peers(own: &Path) -> Result<PathBuf, PeersError> {
    cargo(own, "upcall-thread-peers", &["--no-default-features", "--features", "threads"], None)
}

/// Like [`peers`], for calls between hosts.
///
/// # Errors
/// As for [`peers`].
pub fn host_peers(own: &Path) -> Result<PathBuf, PeersError> {
    cargo(own, "upcall-host-peers", &["--no-default-features", "--features", "hosts"], None)
}

/// Like [`peers`], for gRPC's C++ library.
///
/// # Errors
/// As for [`peers`].
pub fn grpc_cpp(own: &Path) -> Result<PathBuf, PeersError> {
    cargo(
        own,
        "upcall-grpc-cpp",
        &["--no-default-features", "--features", "grpc-cpp"],
        Some(&GRPC_CPP),
    )
}

/// Like [`peers`], for the message libraries in Rust.
///
/// # Errors
/// As for [`peers`].
pub fn message_peers(own: &Path) -> Result<PathBuf, PeersError> {
    cargo(own, "upcall-message-peers", &["--no-default-features", "--features", "messages"], None)
}

/// Like [`peers`], for UCX.
///
/// # Errors
/// As for [`peers`].
pub fn ucx(own: &Path) -> Result<PathBuf, PeersError> {
    cargo(own, "upcall-ucx", &["--no-default-features", "--features", "ucx"], Some(&UCX))
}

/// Like [`peers`], for Open MPI.
///
/// # Errors
/// As for [`peers`].
pub fn open_mpi(own: &Path) -> Result<PathBuf, PeersError> {
    cargo(
        own,
        "upcall-openmpi",
        &["--no-default-features", "--features", "openmpi"],
        Some(&OPEN_MPI),
    )
}

/// Like [`peers`], for Boost.Fiber.
///
/// # Errors
/// As for [`peers`].
pub fn boost_fiber(own: &Path) -> Result<PathBuf, PeersError> {
    compiled(own, "upcall-boost-fiber", "threads/boost_fiber.cpp", &BOOST, |source, program| {
        let mut compiler = Command::new(cxx());
        compiler.args(["-std=c++17", "-O2", "-Wall", "-o"]).arg(program).arg(source);
        compiler.args(["-lboost_fiber", "-lboost_context", "-pthread"]);
        compiler
    })
}

/// Like [`peers`], for goroutines.
///
/// # Errors
/// As for [`peers`].
pub fn goroutines(own: &Path) -> Result<PathBuf, PeersError> {
    compiled(own, "upcall-goroutines", "threads/goroutines.go", &GO, |source, program| {
        let mut compiler = Command::new(go());
        // One file and the standard library: this needs no module and no network, and leaves
        // nothing in the user's folders.
        compiler
            .env("GO111MODULE", "off")
            .env("GOTOOLCHAIN", "local")
            .env("GOCACHE", program.with_file_name("go-cache"));
        compiler.args(["build", "-o"]).arg(program).arg(source);
        compiler
    })
}

/// Directory of built programs.
fn release() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(SOURCES).join("target"), PathBuf::from)
        .join("release")
}

/// Finds a built program beside the running one.
fn without_sources(own: &Path, name: &str) -> Result<PathBuf, PeersError> {
    let beside = own.with_file_name(name);
    if beside.is_file() { Ok(beside) } else { Err(PeersError::Nowhere { beside }) }
}

/// Builds a program of the package `upcall-peers`.
fn cargo(
    own: &Path,
    name: &str,
    features: &[&str],
    need: Option<&Need>,
) -> Result<PathBuf, PeersError> {
    let manifest = Path::new(SOURCES).join("Cargo.toml");
    if !manifest.is_file() {
        return without_sources(own, name);
    }
    let program = release().join(name);
    if !program.is_file() {
        eprintln!("building {name} (some minutes, once) …");
        need.map_or(Ok(()), provide)?;
    }
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--release", "--locked", "--bin", name]).args(features);
    cargo
        .arg("--manifest-path")
        .arg(&manifest)
        .arg("--target-dir")
        .arg(release().with_file_name(""));
    build(cargo, &program)
}

/// Compiles a program of one source file, if the source is newer than the program.
fn compiled(
    own: &Path,
    name: &str,
    source: &str,
    need: &Need,
    compiler: fn(&Path, &Path) -> Command,
) -> Result<PathBuf, PeersError> {
    let source = Path::new(SOURCES).join(source);
    if !source.is_file() {
        return without_sources(own, name);
    }
    let program = release().join(name);
    let changed = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
    if changed(&program) >= changed(&source) {
        return Ok(program);
    }
    eprintln!("building {name} …");
    provide(need)?;
    fs::create_dir_all(release()).ok();
    // A killed compiler must not leave a partial program that looks newer than its source.
    fs::remove_file(&program).ok();
    build(compiler(&source, &program), &program)
}

pub(crate) fn build(mut compiler: Command, program: &Path) -> Result<PathBuf, PeersError> {
    let words = [compiler.get_program()].into_iter().chain(compiler.get_args());
    let command = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let failed = |how| PeersError::Build { command: command.clone(), how };
    match status(compiler.stdin(Stdio::null()).stdout(Stdio::null())) {
        Ok(status) if status.success() => Ok(program.to_owned()),
        Ok(status) => Err(failed(status.to_string())),
        Err(error) if error.kind() == io::ErrorKind::NotFound && program.is_file() => {
            Ok(program.to_owned())
        }
        Err(error) => Err(failed(error.to_string())),
    }
}

/// Runs a command to its end, or until this program is asked to stop. In the latter case, also ends
/// the processes that the command has started: cargo's compilers would otherwise continue.
fn status(command: &mut Command) -> io::Result<ExitStatus> {
    let mut child = command.process_group(0).spawn()?;
    let group = Pid::from_child(&child);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if interrupted::is_asked() {
            kill_process_group(group, Signal::KILL)?;
            return child.wait();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn cc() -> PathBuf {
    env::var_os("CC").map_or_else(|| "cc".into(), PathBuf::from)
}

fn cxx() -> PathBuf {
    env::var_os("CXX").map_or_else(|| "c++".into(), PathBuf::from)
}

/// Go's compiler on the path, or where Go's documentation installs it.
fn go() -> PathBuf {
    const INSTALLED: &str = "/usr/local/go/bin/go";
    if !works(Path::new("go"), &["version"]) && Path::new(INSTALLED).is_file() {
        INSTALLED.into()
    } else {
        "go".into()
    }
}

/// Returns `true` if a folder of the path has this program.
fn on_path(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// Returns why a peer that runs a program of Debian's takes no part; `None` if the program is on
/// the path.
///
/// The harness does not install such a program, because its package starts a service of the
/// machine.
pub(crate) fn absent(peer: &str, [program, package]: [&str; 2]) -> Option<String> {
    (!on_path(program)).then(|| {
        format!(
            "{peer} takes no part: no {program} is on the path; install it (Debian: apt-get \
            install {package})"
        )
    })
}

pub(crate) fn works(program: &Path, args: &[&str]) -> bool {
    Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Installs a missing requirement where that is possible.
pub(crate) fn provide(need: &Need) -> Result<(), PeersError> {
    if (need.there)() {
        return Ok(());
    }
    if rustix::process::geteuid().is_root() && works(Path::new("apt-get"), &["--version"]) {
        eprintln!("installing Debian's {} …", need.packages);
        let install = ["install", "-y", "-qq", "--no-install-recommends"]
            .into_iter()
            .chain(need.packages.split(' '));
        for args in [vec!["update", "-qq"], install.collect()] {
            Command::new("apt-get")
                .args(args)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .status()
                .ok();
        }
    }
    if (need.there)() {
        Ok(())
    } else {
        Err(PeersError::Missing { what: need.what, packages: need.packages })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_to_do() {
        let nowhere = PeersError::Nowhere { beside: PathBuf::from("/x/upcall-peers") }.to_string();
        assert!(nowhere.contains("/x/upcall-peers") && nowhere.contains("--peers none"));
        for need in [ZEROMQ, GRPC_CPP, UCX, OPEN_MPI, BOOST, GO] {
            let missing =
                PeersError::Missing { what: need.what, packages: need.packages }.to_string();
            assert!(missing.contains(&format!("apt-get install {}", need.packages)), "{missing}");
        }
        let unbuilt = PeersError::Unbuilt { what: "AMPI", script: "ampi.sh", variable: "AMPI_AT" };
        let told = unbuilt.to_string();
        assert!(told.contains("ampi.sh SOURCES FOLDER") && told.contains("AMPI_AT"), "{told}");
        let failed = build(Command::new("/nowhere/c++"), Path::new("/nowhere/program"))
            .unwrap_err()
            .to_string();
        assert!(failed.contains("run: /nowhere/c++"), "{failed}");
    }

    #[test]
    fn a_program_of_debians_is_found_or_its_package_is_named() {
        assert_eq!(absent("shell", ["sh", "dash"]), None);
        let why = absent("nats", ["no-such-program", "some-package"]).unwrap();
        assert!(why.starts_with("nats takes no part") && why.contains("install some-package"));
    }

    #[test]
    fn without_sources_a_program_beside_this_one_will_do() {
        let own = env::current_exe().unwrap();
        let name = own.file_name().unwrap().to_str().unwrap();
        assert_eq!(without_sources(&own, name).unwrap(), own);
        assert!(matches!(without_sources(&own, "upcall-nothing"), Err(PeersError::Nowhere { .. })));
    }
}
