//! Every language's client on every language's server, over an interface with every construct.
//!
//! The C programs are compiled here, with the address and undefined-behaviour sanitizers, and run
//! as separate processes. Rust's client and server are in this process, and also call through
//! channels. C's server reports at its end whether each of its objects was dropped once.
#![forbid(unsafe_code)]

use gcc::{here, left_out};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

mod gcc;
mod rust;

/// The programs, in a folder that is removed when this is dropped.
struct Programs {
    folder: tempfile::TempDir,
}

fn programs() -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let code = upcall_idl::generate_c(here("tests/languages/every.wit"), "every").unwrap();
        std::fs::write(folder.path().join("every.h"), code.header).unwrap();
        std::fs::write(folder.path().join("every.c"), code.source).unwrap();
        gcc::install(folder.path());
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
    let sources =
        [here("tests/languages").join(program).with_extension("c"), folder.join("every.c")];
    gcc::compile(&["-g", "-O1"], &sources, folder, program);
}

impl Programs {
    fn command(&self, program: &str) -> Command {
        gcc::command(&self.folder.path().join(program), program == "client")
    }
}

/// A server in C, which is ended when this is dropped.
struct Serving(Child);

impl Serving {
    fn start(names: &[String; 2]) -> Self {
        Self::start_by(programs().command("server").args(names)).0
    }

    /// Starts a server that also listens for clients on other machines. Also returns its names for
    /// these.
    fn start_far(names: &[String; 2]) -> (Self, [String; 2]) {
        let (serving, said) =
            Self::start_by(programs().command("server").args(names).arg("127.0.0.1:0"));
        (serving, far(&said[0], names))
    }

    /// Starts a server. Also returns what it printed before it was ready.
    fn start_by(command: &mut Command) -> (Self, Vec<String>) {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        let said =
            lines.by_ref().map(|line| line.unwrap()).take_while(|line| line != "ready").collect();
        (Self(child), said)
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

/// The names for clients on other machines.
fn far(address: &str, names: &[String; 2]) -> [String; 2] {
    names.each_ref().map(|name| format!("tcp://{address}/{name}"))
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

/// As if client and server were on two machines.
#[test]
fn c_on_c_far() {
    if left_out() {
        return;
    }
    let (server, far) = Serving::start_far(&names());
    c_client(&far, "all");
    server.end();
}

#[test]
fn c_on_rust_and_rust_on_c_far() {
    if left_out() {
        return;
    }
    let names = names();
    let (running, counts) = rust::serve_by(upcall::Server::new().listen("127.0.0.1:0"), &names);
    c_client(&far(&running.addresses()[0].to_string(), &names), "all");
    running.stop();
    assert_eq!(counts.alive(), 0);
    let (server, far) = Serving::start_far(&names);
    rust::client(&far);
    server.end();
}

#[test]
fn a_server_that_dies_far() {
    if left_out() {
        return;
    }
    let (mut server, far) = Serving::start_far(&names());
    c_client(&far, "die");
    assert!(server.0.wait().unwrap().success());
}

/// The errors of a client in C when the server dies in its call, and afterwards.
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
