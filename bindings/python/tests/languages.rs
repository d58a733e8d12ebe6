//! Python's client on every language's server, and every language's client on Python's server, over
//! an interface with every construct.
//!
//! The other pairs are in `bindings/c/tests/languages.rs`, whose programs these are, except for
//! Python's. C's are compiled here without the sanitizers that they have there.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use support::{Programs, Serving, finish, here, left_out, names};

#[path = "../../c/tests/rust/mod.rs"]
mod rust;
mod support;

fn programs() -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(Programs::new)
}

fn python_server(names: &[String; 2]) -> Serving {
    let mut command = programs().command("server.py");
    command.args(names);
    Serving::start(command)
}

fn python_client(names: &[String; 2], what: &str) {
    programs().run("client.py", &[&names[0], &names[1], what]);
}

/// A program in C.
fn c(program: &str) -> Command {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let folder = BUILT.get_or_init(|| {
        let folder = programs().path().join("c");
        std::fs::create_dir(&folder).unwrap();
        let code = upcall_idl::generate_c(here("tests/languages/every.wit"), "every").unwrap();
        std::fs::write(folder.join("every.h"), code.header).unwrap();
        std::fs::write(folder.join("every.c"), code.source).unwrap();
        let library = std::env::current_exe().unwrap().with_file_name("libupcall_c.so");
        for name in ["libupcall.so", "libupcall.so.0"] {
            std::os::unix::fs::symlink(&library, folder.join(name)).unwrap();
        }
        for program in ["server", "client"] {
            let mut gcc = Command::new("gcc");
            gcc.args(["-std=gnu11", "-O0", "-pthread", "-I"])
                .arg(here("../c/include"))
                .arg("-I")
                .arg(&folder);
            gcc.arg(here("tests/languages").join(program).with_extension("c"))
                .arg(folder.join("every.c"));
            gcc.arg("-o")
                .arg(folder.join(program))
                .arg("-L")
                .arg(&folder)
                .args(["-lupcall", "-Wl,-rpath"])
                .arg(&folder);
            let run = gcc.output().unwrap();
            assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        }
        folder
    });
    Command::new(folder.join(program))
}

#[test]
fn python_on_python() {
    if left_out() {
        return;
    }
    let names = names();
    let server = python_server(&names);
    python_client(&names, "all");
    server.end();
}

/// Without a module: the client learns the interface from the server.
#[test]
fn python_on_python_without_a_module() {
    if left_out() {
        return;
    }
    let names = names();
    let server = python_server(&names);
    python_client(&names, "learn");
    // Or takes it from a file.
    let wit = here("tests/languages/every.wit");
    programs().run("client.py", &[&names[0], &names[1], "wit", &wit.display().to_string()]);
    server.end();
}

#[test]
fn python_on_rust() {
    if left_out() {
        return;
    }
    let names = names();
    let (running, counts) = rust::serve(&names);
    python_client(&names, "all");
    running.stop();
    assert_eq!(counts.alive(), 0);
}

#[test]
fn rust_on_python() {
    if left_out() {
        return;
    }
    let names = names();
    let server = python_server(&names);
    rust::client(&names);
    server.end();
}

#[test]
fn python_on_c() {
    if left_out() {
        return;
    }
    let names = names();
    let mut command = c("server");
    command.args(&names);
    let server = Serving::start(command);
    python_client(&names, "all");
    server.end();
}

#[test]
fn c_on_python() {
    if left_out() {
        return;
    }
    let names = names();
    let server = python_server(&names);
    finish(c("client").args(&names).arg("all"), "C's client");
    server.end();
}

/// A client in Python knows of a call without memory whether it has run.
#[test]
fn a_result_that_is_not_kept_says_so() {
    if left_out() {
        return;
    }
    let names = names();
    let mut quotas = upcall::Quotas::default();
    (quotas.client.results, quotas.all.results) = (1000, 1000);
    let (running, counts) = rust::serve_by(upcall::Server::new().quotas(quotas), &names);
    python_client(&names, "memory");
    running.stop();
    assert_eq!(counts.alive(), 0);
}

/// The errors of a client in Python when the server dies in its call, and afterwards.
#[test]
fn a_server_that_dies() {
    if left_out() {
        return;
    }
    let names = names();
    let mut server = python_server(&names);
    python_client(&names, "die");
    assert!(server.0.wait().unwrap().success());
}
