//! Messages that are sent from memory to a receive that waits with its own.

mod command;

use command::running::{Programs, run_named, said};
use command::upcall;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use upcall_ulp::tools::HEADERS;

/// Compiles the program, which uses the library's own header.
fn compiled(programs: &Programs) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = programs.0.path().join("posted");
    for (name, text) in HEADERS {
        fs::write(programs.0.path().join(name), text).unwrap();
    }
    let mut upvmcc = Command::new(env!("CARGO_BIN_EXE_upvmcc"));
    upvmcc.args(["-O1", "-w", "-std=gnu11", "-I", env!("OUT_DIR"), "-I"]);
    upvmcc.arg(package.join("image")).arg("-I").arg(programs.0.path());
    upvmcc.arg("-o").arg(&program).arg(package.join("tests/images/posted.c"));
    let done = upvmcc.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    program
}

/// The host counts what it copies in builds with debug assertions only.
#[test]
#[cfg(debug_assertions)]
fn a_posted_receive_gets_its_message_with_one_copy() {
    let programs = Programs::new();
    let program = compiled(&programs);
    // With three processes the last one is idle, so that each message comes alone.
    for (processes, names) in [("1", "own"), ("2", "own"), ("2", "lent"), ("3", "own")] {
        let place = programs.0.path().join("place");
        let (order, hosts) = if processes == "1" { ("0\n0\n0\n", "1") } else { ("0\n1\n1\n", "2") };
        fs::write(&place, order).unwrap();
        let place = format!("--place={}", place.display());
        let options = ["-n", "3", "--procs", processes, &place];
        let done = run_named(names, &options, &program, &[hosts]);
        let said = said(&done);
        assert!(said.contains("ok: all messages are there"), "{processes}, {names}: {said}");
    }
}

/// Tasks move while they wait with memory of their own.
#[test]
#[cfg(debug_assertions)]
fn messages_from_memory_come_whole_and_in_order_while_tasks_move() {
    let programs = Programs::new();
    let program = compiled(&programs);
    for (options, messages) in [
        (&["-n", "5"][..], "400"),
        (&["-n", "6", "--procs", "2"], "150"),
        (&["-n", "6", "--procs", "3"], "150"),
    ] {
        let mut command = Command::new("timeout");
        command.arg("60").arg(upcall()).args(["pvm", "run"]).args(options).arg(&program);
        command.args(["1", messages]).env("UPCALL_PVM_SHUFFLE", "2000,1");
        let done = command.output().unwrap();
        let said = said(&done);
        let tasks = options[1].parse::<usize>().unwrap();
        let is_well = done.status.success() && said.matches("ok: task").count() == tasks;
        assert!(is_well, "{options:?}: {} {said}", done.status);
    }
}
