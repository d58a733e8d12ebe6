//! The order in which a process handles the messages of others.

mod command;

use command::running::{KilledMachine, Programs, process, within};
use command::upcall;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::process::{Command, Stdio};

fn is_stopped(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).unwrap();
    stat.rsplit(") ").next().unwrap().starts_with('T')
}

#[test]
fn a_message_is_not_handled_before_the_many_that_caused_it() {
    let programs = Programs::new();
    let program = programs.compiled("images/order.c");
    let folder = programs.0.path();
    let exists = |name: &str| within(|| folder.join(name).exists().then_some(()));
    let mut command = Command::new(upcall());
    command.args(["pvm", "run", "-n", "3", "--procs", "3"]).arg(&program).arg(folder);
    command.env("UPCALL_DIR", folder).stdout(Stdio::piped());
    let mut machine = KilledMachine(Some(command.spawn().unwrap()));
    exists("opened");
    let third = process(folder, 2);
    kill_process(third, Signal::STOP).unwrap();
    within(|| is_stopped(third).then_some(()));
    File::create(folder.join("stopped")).unwrap();
    exists("sent");
    kill_process(third, Signal::CONT).unwrap();
    let done = machine.0.take().unwrap().wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    let expected = "the effect comes after 10000 of its causes";
    assert!(done.status.success() && said.contains(expected) && !said.contains("wrong"), "{said}");
}
