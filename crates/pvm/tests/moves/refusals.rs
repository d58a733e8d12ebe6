//! Moves that are refused or aborted: why, and that the task goes on.

use crate::machine::{Machine, compiled, send};
use std::fs;
use std::process::Command;
use std::time::{Duration, SystemTime};

#[test]
fn a_move_is_refused_with_the_reason_and_the_task_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "pins");
    let ways = ["plain", "opened", "parent", "systems", "aside", "mapped", "told"];
    let mut places = vec![0; ways.len()];
    places.push(1);
    let args = [&ways[..], &["plain"]].concat();
    let mut machine = Machine::start(&places, 2, &program, &args, &[]);
    let tasks = machine.ready(args.len());
    let plain = Machine::tid(&tasks, "plain");
    let (code, text) = machine.run(&["move", "t7ffff", "1"]);
    assert!(code == Some(3) && text.contains("there is no task t7ffff"), "{code:?} {text}");
    machine.refuses(&plain, 2, "there is no such process");
    machine.refuses(&plain, 0, "the task is in that process already");
    let descriptor = "the task cannot leave its process: it has a descriptor that cannot move";
    for (way, why) in [
        ("parent", "the task cannot leave its process: it has child processes"),
        ("systems", "the task cannot leave its process: "),
        ("aside", "the task cannot leave its process: a helper carries out a system call for it"),
        ("mapped", "the task cannot leave its process: it has mapped a file or shared memory"),
        ("told", descriptor),
    ] {
        let tid = Machine::tid(&tasks, way);
        // It is refused as often as it is asked for.
        (0..2).for_each(|_| machine.refuses(&tid, 1, why));
        assert_eq!(machine.rank(&tid), Some(0), "{way}");
    }
    let (code, text) = machine.run(&["move", &plain, "256"]);
    assert!(code == Some(2) && text.contains("256"), "{code:?} {text}");
    let (code, text) = machine.run(&["move", "nobody", "1"]);
    assert!(code == Some(2) && text.contains("is not the id of a task"), "{code:?} {text}");
    // A task with an open file moves.
    for tid in [&plain, &Machine::tid(&tasks, "opened")] {
        machine.moves(tid, 1);
        machine.moves(tid, 0);
    }
    // A program's file that was changed since is not the task's any more.
    let file = fs::File::options().append(true).open(&program).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(1000)).unwrap();
    machine.refuses(&plain, 1, "the task cannot leave its process: its program's file was changed");
    machine.make("go");
    fs::write(machine.file("fifo"), "").unwrap();
    let said = machine.ends_well();
    for way in args {
        let line = format!("{way} is well");
        assert!(said.contains(&line), "{line}: {}", said.join("\n"));
    }
}

#[test]
fn a_machine_of_one_process_moves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "pins");
    let mut machine = Machine::start(&[0], 1, &program, &["plain"], &[]);
    let tasks = machine.ready(1);
    machine.refuses(&tasks[0].1, 0, "the task is in that process already");
    machine.refuses(&tasks[0].1, 1, "there is no such process");
    machine.make("go");
    machine.ends_well();
}

/// A process without the memory for a task refuses it, and takes it as soon as it has.
#[test]
fn a_process_without_memory_refuses_a_task() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "pins");
    let mut machine = Machine::start(&[0, 1], 2, &program, &["large", "plain"], &[]);
    let tasks = machine.ready(2);
    let large = Machine::tid(&tasks, "large");
    let process = machine.process(1);
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let kib: u64 = size.trim().trim_end_matches(" kB").parse().unwrap();
    limit(process, &format!("--as={}:", (kib << 10) + (16 << 20)));
    let why = "the other process does not take the task: there is no memory for it";
    (0..3).for_each(|_| machine.refuses(&large, 1, why));
    limit(process, "--as=unlimited:");
    machine.moves(&large, 1);
    machine.make("go");
    machine.ends_well();
}

/// Sets the soft limit of a process.
pub fn limit(process: u32, which: &str) {
    let mut prlimit = Command::new("prlimit");
    let done = prlimit.args(["--pid", &process.to_string(), which]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// A process that may have no further descriptors refuses a task with open files, keeps none of
/// them, and takes the task as soon as it may.
#[test]
fn a_process_without_descriptors_refuses_a_task() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "pins");
    let mut machine = Machine::start(&[0, 1], 2, &program, &["opened", "plain"], &[]);
    let tasks = machine.ready(2);
    let (opened, plain) = (Machine::tid(&tasks, "opened"), Machine::tid(&tasks, "plain"));
    let process = machine.process(1);
    let open = || fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
    let before = open();
    limit(process, &format!("--nofile={before}:"));
    let why = "the other process does not take the task: there are too few descriptors";
    (0..3).for_each(|_| machine.refuses(&opened, 1, why));
    assert_eq!(open(), before);
    // A task without open files needs none, and one may leave.
    machine.moves(&plain, 0);
    machine.moves_at_last(&plain, 1);
    limit(process, "--nofile=1024:");
    machine.moves(&opened, 1);
    machine.make("go");
    machine.ends_well();
}

/// A task that is spawned with others does not run before all of them have started.
#[test]
fn a_task_that_has_not_begun_stays() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "pins");
    let mut machine = Machine::start(&[0, 1], 2, &program, &["spawns", "plain"], &[]);
    let tasks = machine.ready(2);
    let process = machine.process(1);
    send(process, "-STOP");
    machine.make("spawn");
    let tid = crate::machine::within("a task starts", || {
        let task = machine.tasks().into_iter().find(|task| task["state"] == "starts")?;
        Some(task["tid"].as_str().unwrap().to_owned())
    });
    machine.refuses(&tid, 1, "the task cannot leave its process: it has not begun to run");
    send(process, "-CONT");
    drop(tasks);
    let spawned = machine.ready(2);
    assert!(spawned.iter().any(|(_, one)| *one == tid), "{tid}: {spawned:?}");
    machine.moves(&tid, 1);
    machine.make("go");
    machine.ends_well();
}

/// A machine with a task of this way in process 1, which goes to process 2. That one stops at this
/// label. Returns the task's id, and the number of process 2.
#[cfg(debug_assertions)]
fn stopping(way: &str, label: &str) -> (tempfile::TempDir, Machine, String, u32) {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "pins");
    let fault = format!("2:{label}:stop");
    let variables = [("UPCALL_PVM_FAULT", &*fault)];
    let args = ["plain", way, "plain"];
    let mut machine = Machine::start(&[0, 1, 2], 3, &program, &args, &variables);
    let tasks = machine.ready(3);
    let (tid, process) = (Machine::tid(&tasks, way), machine.process(2));
    (folder, machine, tid, process)
}

/// The move of a task waits for a stopped process, while this is done. Returns the result of the
/// move.
#[cfg(debug_assertions)]
pub fn during(
    machine: &mut Machine,
    (tid, process): (&str, u32),
    what: impl FnOnce(&Machine),
) -> (Option<i32>, String) {
    let (sender, result) = std::sync::mpsc::channel();
    let mut command = machine.command(&["move", tid, "2"]);
    let thread = std::thread::spawn(move || {
        let done = command.output().unwrap();
        let _ = sender.send((done.status.code(), String::from_utf8(done.stderr).unwrap()));
    });
    machine.stopped(process);
    what(machine);
    send(process, "-CONT");
    thread.join().unwrap();
    result.recv().unwrap()
}

#[test]
#[cfg(debug_assertions)]
fn a_task_that_ends_while_it_moves_has_ended() {
    for (way, status) in [("ends", 5), ("crashes", 128 + 11)] {
        let (_folder, mut machine, tid, process) = stopping(way, "MarkedBefore");
        let (code, text) = during(&mut machine, (&tid, process), |machine| {
            machine.make("end");
            crate::machine::within("the task ends", || {
                machine.tasks().iter().all(|task| task["tid"] != *tid).then_some(())
            });
        });
        assert!(code == Some(4) && text.contains("the task has ended"), "{way}: {code:?} {text}");
        assert_eq!(machine.run(&["move", &tid, "2"]).0, Some(3));
        machine.make("go");
        let (code, said) = machine.end();
        assert_eq!(code, Some(status), "{way}: {}", said.join("\n"));
        assert_eq!(said.iter().filter(|line| line.contains("plain is well")).count(), 2);
    }
}

#[test]
#[cfg(debug_assertions)]
fn a_task_that_is_killed_while_it_moves_ends() {
    let (_folder, mut machine, tid, process) = stopping("killed", "Finish");
    let (code, text) = during(&mut machine, (&tid, process), |machine| {
        assert_eq!(machine.run(&["kill", &tid]).0, Some(0));
    });
    assert!(code == Some(4) && text.contains("the task is being killed"), "{code:?} {text}");
    machine.make("go");
    let (code, said) = machine.end();
    assert_eq!(code, Some(128 + 15), "{}", said.join("\n"));
    assert_eq!(said.iter().filter(|line| line.contains("plain is well")).count(), 2);
}

#[test]
#[cfg(debug_assertions)]
fn a_signal_follows_a_task_and_a_second_move_waits() {
    let (_folder, mut machine, tid, process) = stopping("signalled", "Finish");
    let result = during(&mut machine, (&tid, process), |machine| {
        assert_eq!(machine.run(&["sig", "10", &tid]).0, Some(0));
        for rank in [0, 1, 2] {
            machine.refuses(&tid, rank, "the task's last move is not over yet: try again later");
        }
    });
    assert_eq!(result.0, Some(0), "{}", result.1);
    assert_eq!(machine.rank(&tid), Some(2));
    machine.moves(&tid, 0);
    machine.make("go");
    machine.ends_well();
}

/// The first process is stopped when the new one has made room for the task. What it has made is
/// of no use when the task stops, or has pages that the task does not have any more.
#[test]
#[cfg(debug_assertions)]
fn a_task_whose_mappings_change_after_room_was_made_for_it_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "pins");
    for way in ["changes", "changes-large", "drops"] {
        let variables = [("UPCALL_PVM_FAULT", "0:Leaving:stop")];
        let args = ["plain", way, "plain"];
        let mut machine = Machine::start(&[0, 1, 2], 3, &program, &args, &variables);
        let tasks = machine.ready(3);
        let (tid, process) = (Machine::tid(&tasks, way), machine.process(0));
        let (code, text) = during(&mut machine, (&tid, process), |machine| {
            machine.make("change");
            crate::machine::within("mappings change", || {
                machine.file("changed").exists().then_some(())
            });
        });
        assert_eq!(code, Some(0), "{way}: {text}");
        machine.moves(&tid, 0);
        machine.moves_at_last(&tid, 1);
        machine.make("go");
        let said = machine.ends_well();
        assert!(said.contains(&format!("{way} is well")), "{}", said.join("\n"));
    }
}
