//! Programs in Python, as separate processes, with the engine that cargo has built beside this
//! test.
#![allow(dead_code)] // Not every test uses all of it.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Maximum run time of a program.
const PATIENCE: Duration = Duration::from_secs(120);

pub fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The interpreter: `$PYTHON`, or `python3`.
pub fn interpreter() -> &'static str {
    static PYTHON: OnceLock<String> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
        let asked = Command::new(&python)
            .args(["-c", "import sys; print(sys.version_info >= (3, 11), sys.version)"])
            .output();
        let said = asked.unwrap_or_else(|error| {
            panic!(
                "`{python}` cannot be run: {error}; these tests need Python 3.11 or newer ($PYTHON)"
            )
        });
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(
            said.starts_with("True"),
            "`{python}` is too old for upcall, which needs Python 3.11 or newer ($PYTHON): {said}"
        );
        python
    })
}

/// Makes a command for Python. Ctrl-C ends it, even if these tests were started in the background
/// by a shell that makes them ignore it.
pub fn python() -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", interpreter()]);
    command
}

/// Returns `true` if programs in Python are skipped: if the engine is built with one of Rust's
/// sanitizers (`make asan`), an interpreter without it cannot load the engine.
pub fn left_out() -> bool {
    let out = std::env::var("RUSTFLAGS").is_ok_and(|flags| flags.contains("sanitizer"));
    if out {
        eprintln!("skipped: the engine has a sanitizer's runtime of its own");
    }
    out
}

/// A folder with the package and modules, which is removed when this is dropped.
pub struct Programs {
    folder: tempfile::TempDir,
}

impl Programs {
    /// With the module of the WIT of the test of languages.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        package(folder.path());
        let module = upcall_idl::generate_python(here("tests/languages/every.wit")).unwrap();
        std::fs::write(folder.path().join("every.py"), module).unwrap();
        Self { folder }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A program of `tests/programs`.
    pub fn command(&self, program: &str) -> Command {
        let mut command = python();
        command
            .args(["-W", "error", "-X", "faulthandler"])
            .arg(here("tests/programs").join(program));
        command.env("PYTHONPATH", self.path()).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// Runs a program to its end, which must be successful.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let mut command = self.command(program);
        finish(command.args(arguments), program)
    }
}

/// Waits for a program, which must end successfully and in time.
pub fn finish(command: &mut Command, what: &str) -> Output {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = child.stderr.take().unwrap();
    let mut output = child.stdout.take().unwrap();
    let (status, stdout, stderr) = std::thread::scope(|scope| {
        let output = scope.spawn(move || read(&mut output));
        let errors = scope.spawn(move || read(&mut errors));
        let start = Instant::now();
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break Some(status),
                None if start.elapsed() > PATIENCE => {
                    // Makes Python print where all its threads are.
                    let _ = Command::new("kill").args(["-ABRT", &child.id().to_string()]).status();
                    std::thread::sleep(Duration::from_secs(1));
                    let _ = child.kill();
                    let _ = child.wait();
                    break None;
                }
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        (status, output.join().unwrap(), errors.join().unwrap())
    });
    let said =
        || format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    let status =
        status.unwrap_or_else(|| panic!("{what} did not end within {PATIENCE:?}:\n{}", said()));
    assert!(status.success(), "{what} ended with {status}:\n{}", said());
    Output { status, stdout, stderr }
}

fn read(from: &mut impl Read) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = from.read_to_end(&mut all);
    all
}

/// Writes the package as a wheel would contain it.
pub fn package(folder: &Path) {
    let package = folder.join("upcall");
    std::fs::create_dir(&package).unwrap();
    for entry in std::fs::read_dir(here("upcall")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::os::unix::fs::symlink(&path, package.join(path.file_name().unwrap())).unwrap();
        }
    }
    let engine = std::env::current_exe().unwrap().with_file_name("lib_upcall.so");
    assert!(engine.exists(), "cargo puts the engine beside this test: {}", engine.display());
    std::os::unix::fs::symlink(engine, package.join("_upcall.abi3.so")).unwrap();
}

/// Compiles a member in C, and links it with the library that cargo has built. Returns the program,
/// which is in `folder`.
pub fn compile(folder: &Path, source: &Path) -> PathBuf {
    std::fs::create_dir(folder).unwrap();
    let library = std::env::current_exe().unwrap().with_file_name("libupcall_c.so");
    for name in ["libupcall.so", "libupcall.so.0"] {
        std::os::unix::fs::symlink(&library, folder.join(name)).unwrap();
    }
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu11", "-O0", "-pthread", "-I"]).arg(here("../c/include")).arg(source);
    gcc.arg("-o").arg(folder.join("member")).arg("-L").arg(folder);
    gcc.args(["-lupcall", "-Wl,-rpath"]).arg(folder);
    let run = gcc.output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    folder.join("member")
}

/// A server that serves until its input ends; it is ended when this is dropped.
pub struct Serving(pub Child);

impl Serving {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }

    pub fn end(mut self) {
        drop(self.0.stdin.take());
        let status = self.0.wait().unwrap();
        assert!(status.success(), "the server ended with {status}");
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Names that no other test has.
pub fn names() -> [String; 2] {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    ["every", "more"].map(|name| format!("python-{name}-{}-{number}", std::process::id()))
}
