//! Every language's client on every language's server, over an interface with every construct.
//!
//! The C programs are compiled here, with the address and undefined-behaviour sanitizers, and run as processes of their own; Rust's sides are in this process, and call through
//! channels too. C's server says itself, when it ends, whether each of its objects was dropped once.
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

mod rust;

/// The programs, in a folder that goes with this.
struct Programs {
    folder: tempfile::TempDir,
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The shared library: cargo puts it beside this test.
fn library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libupcall_c.so")
}

fn programs() -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let code = upcall_idl::generate_c(here("tests/languages/every.wit"), "every").unwrap();
        std::fs::write(folder.path().join("every.h"), code.header).unwrap();
        std::fs::write(folder.path().join("every.c"), code.source).unwrap();
        // By the names that it has when it is installed.
        for name in ["libupcall.so", "libupcall.so.0"] {
            std::os::unix::fs::symlink(library(), folder.path().join(name)).unwrap();
        }
        std::thread::scope(|scope| {
            for program in ["server", "client"] {
                let folder = folder.path();
                scope.spawn(move || compile(program, folder));
            }
        });
        Programs { folder }
    })
}

fn compile(program: &str, folder: &Path) {
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-O1", "-pthread", "-I"])
        .arg(here("include"))
        .arg("-I")
        .arg(folder);
    gcc.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    gcc.arg(here("tests/languages").join(program).with_extension("c"))
        .arg(folder.join("every.c"))
        .arg("-o")
        .arg(folder.join(program));
    gcc.arg("-L").arg(folder).args(["-lupcall", "-Wl,-rpath"]).arg(folder);
    let run = gcc.output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

impl Programs {
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.folder.path().join(program));
        // Its server's stacks are not those that the sanitizer knows, and some of the runtime's memory is meant to stay.
        let leaks = if program == "client" { "1" } else { "0" };
        command.env("ASAN_OPTIONS", format!("detect_leaks={leaks}:detect_stack_use_after_return=0:halt_on_error=1"));
        command
    }
}

/// Where the library is built with a sanitizer of Rust's (`make asan`), gcc's cannot be linked with it, and programs in C are left out.
fn left_out() -> bool {
    let out = std::env::var("RUSTFLAGS").is_ok_and(|flags| flags.contains("sanitizer"));
    if out {
        println!("left out: the library has a sanitizer's runtime of its own");
    }
    out
}

/// A C server that serves, and ends with this.
struct Serving(Child);

impl Serving {
    fn start(names: &[String; 2]) -> Self {
        let mut child = programs().command("server").args(names).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }

    fn end(mut self) {
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

fn names() -> [String; 2] {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    ["every", "more"].map(|name| format!("languages-{name}-{}-{number}", std::process::id()))
}

fn c_client(names: &[String; 2], what: &str) {
    let run = programs().command("client").args(names).arg(what).output().unwrap();
    assert!(run.status.success(), "{}: {}", run.status, String::from_utf8_lossy(&run.stderr));
}

#[test]
fn c_on_c() {
    if left_out() {
        return;
    }
    let names = names();
    let server = Serving::start(&names);
    c_client(&names, "all");
    server.end();
}

#[test]
fn c_on_rust() {
    if left_out() {
        return;
    }
    let names = names();
    let (running, counts) = rust::serve(&names);
    c_client(&names, "all");
    running.stop();
    assert_eq!(counts.alive(), 0);
}

#[test]
fn rust_on_c() {
    if left_out() {
        return;
    }
    let names = names();
    let server = Serving::start(&names);
    rust::client(&names);
    server.end();
}

#[test]
fn rust_on_rust() {
    let names = names();
    let (running, counts) = rust::serve(&names);
    rust::client(&names);
    running.stop();
    assert_eq!(counts.alive(), 0);
}

/// What a client in C is told when the server dies in its call, and afterwards.
#[test]
fn a_server_that_dies() {
    if left_out() {
        return;
    }
    let names = names();
    let mut server = Serving::start(&names);
    c_client(&names, "die");
    assert!(server.0.wait().unwrap().success());
    std::thread::sleep(Duration::from_millis(1));
}
