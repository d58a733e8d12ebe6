//! Messages for which a process has no memory.

mod command;

use command::running::{KilledMachine, Programs, process, within};
use command::upcall;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::fs::{self, File};
use std::process::{Command, Stdio};

/// Bytes of addresses that a process has mapped.
fn mapped(process: Pid) -> u64 {
    let pages = fs::read_to_string(format!("/proc/{}/statm", process.as_raw_nonzero())).unwrap();
    pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
}

/// Sends a message of `mebibytes` to a process that can map only `room` more, and that reports to
/// lack `lack`.
fn is_not_lost(mebibytes: u64, room: u64, lack: &str) {
    let programs = Programs::new();
    let program = programs.compiled("images/short.c");
    let folder = programs.0.path();
    let exists = |name: &str| within(|| folder.join(name).exists().then_some(()));
    let make = |name: &str| drop(File::create(folder.join(name)).unwrap());
    let mut command = Command::new(upcall());
    command.args(["pvm", "run", "-n", "3", "--procs", "3", "--place", "interleave"]);
    command.arg(&program).arg(folder).arg(mebibytes.to_string()).env("UPCALL_DIR", folder);
    command.stdout(File::create(folder.join("out")).unwrap());
    command.stderr(File::create(folder.join("errors")).unwrap()).stdin(Stdio::null());
    let mut machine = KilledMachine(Some(command.spawn().unwrap()));
    exists("ready");
    let second = process(folder, 1);
    let limit = |bytes| {
        let current = Rlimit { current: bytes, maximum: None };
        prlimit(Some(second), Resource::As, current).unwrap();
    };
    limit(Some(mapped(second) + (room << 20)));
    make("limited");
    exists("caused");
    let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let report = format!("upcall pvm: process 1 has no memory for{lack} a message from process 0:");
    within(|| text("errors").contains(&report).then_some(()));
    limit(None);
    let status = machine.0.as_mut().unwrap().wait().unwrap();
    let said = text("out") + &text("errors");
    assert!(status.success() && said.contains("all have arrived\n"), "{said}");
}

#[test]
fn a_message_waits_for_memory_and_nothing_overtakes_it() {
    // Its block has 64 MiB, and it is in 64 MiB that the processes share.
    is_not_lost(40, 100, " 41943040 bytes of");
}

#[test]
fn so_does_one_that_cannot_be_read() {
    is_not_lost(40, 20, "");
}

#[test]
fn so_does_one_that_comes_in_parts() {
    let room = if cfg!(debug_assertions) { " 209715200 bytes of" } else { "" };
    is_not_lost(200, 240, room);
}
