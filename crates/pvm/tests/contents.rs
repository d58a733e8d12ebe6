//! What moves of a task: memory that it writes during the move, and open files.
#![cfg(debug_assertions)]

mod command;

use command::running::{Programs, said};
use command::upcall;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Runs a program in a folder, with variables for tests ([`crate`] `transit/trials.rs`).
fn run(folder: &Path, options: &[&str], program: &Path, args: &[&str], how: &str) -> Output {
    let mut command = Command::new(upcall());
    command.args(["pvm", "run"]).args(options).arg(program).args(args);
    command.env("UPCALL_PVM_CONTENTS", how);
    within_a_minute(&command, folder)
}

fn within_a_minute(what: &Command, folder: &Path) -> Output {
    let mut command = Command::new("timeout");
    command.arg("60").arg(what.get_program()).args(what.get_args());
    command.envs(what.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let done = command.current_dir(folder).stdin(Stdio::null()).output().unwrap();
    assert_ne!(done.status.code(), Some(124), "it hangs: {}", said(&done));
    done
}

/// The new process reads the memory of the old one, or is sent it, or the old one writes it there.
/// Large tasks are copied while they write, and stop for what they have written since.
#[test]
fn memory_that_is_written_while_it_is_copied_arrives_as_it_was_last() {
    let programs = Programs::new();
    let program = programs.compiled("images/dirty.c");
    let folder = tempfile::tempdir().unwrap();
    for (how, mib, moves) in [("written", "4", "40"), ("read", "1", "12"), ("sent", "1", "12")] {
        for processes in ["2", "3"] {
            let options = ["-n", "3", "--procs", processes];
            let done = run(folder.path(), &options, &program, &[mib, moves, processes], how);
            let said = said(&done);
            let is_well = done.status.success() && said.matches("all is well").count() == 3;
            let moved = said.contains(&format!("{moves} moves, 0 refused"));
            assert!(is_well && moved, "{how}, {processes} processes: {said}");
        }
    }
}

#[test]
fn open_files_move_with_their_task() {
    let programs = Programs::new();
    let program = programs.compiled("images/moves/files.c");
    for (processes, how) in [("2", "written"), ("3", "written"), ("2", "read"), ("3", "read")] {
        let folder = tempfile::tempdir().unwrap();
        let args = ["30", processes];
        let done = run(folder.path(), &["--procs", processes], &program, &args, how);
        let said = said(&done);
        assert!(done.status.success() && said == "all files are there\n", "{said}");
        let lines = fs::read_to_string(folder.path().join("lines")).unwrap();
        assert!(lines.lines().eq((0..30).map(|line| format!("line {line}"))), "{lines}");
    }
    // Descriptors cannot be sent.
    let folder = tempfile::tempdir().unwrap();
    let done = run(folder.path(), &["--procs", "2"], &program, &["3", "2"], "sent");
    let said = said(&done);
    assert!(
        !done.status.success() && said.contains("it has a descriptor that cannot move"),
        "{said}"
    );
}

/// The launcher of a program that may not make some system calls.
fn refusing(folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/without.c");
    let program = folder.join("without");
    let done =
        Command::new("cc").args(["-Wall", "-o"]).arg(&program).arg(&source).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    program
}

/// A container may refuse the system calls by which a process uses the memory and the descriptors
/// of another one. Tasks move all the same, and those with open files say why they stay.
#[test]
fn tasks_move_in_a_container_that_refuses_access_to_other_processes() {
    let programs = Programs::new();
    let [dirty, files] =
        ["images/dirty.c", "images/moves/files.c"].map(|source| programs.compiled(source));
    let folder = tempfile::tempdir().unwrap();
    let launcher = refusing(folder.path());
    let run = |without: &str, options: &[&str], program: &Path, args: &[&str]| {
        let mut command = Command::new(&launcher);
        command
            .arg(without)
            .arg(upcall())
            .args(["pvm", "run"])
            .args(options)
            .arg(program)
            .args(args);
        let done = within_a_minute(&command, folder.path());
        (done.status.success(), said(&done))
    };
    let both = "process_vm_readv,process_vm_writev";
    let all = format!("{both},pidfd_getfd");
    for without in ["process_vm_writev", "process_vm_readv", both, &all] {
        let (is_well, said) = run(without, &["-n", "3", "--procs", "2"], &dirty, &["1", "12", "2"]);
        let is_well = is_well && said.matches("all is well").count() == 3;
        assert!(is_well && said.contains("12 moves, 0 refused"), "{without}: {said}");
    }
    for without in ["pidfd_getfd", &all] {
        let (is_well, said) = run(without, &["--procs", "2"], &files, &["3", "2"]);
        assert!(!is_well && said.contains("take the task's open files (pidfd_getfd, "), "{said}");
    }
}

/// The processes of a machine find each other, and learn of each other's ends, by the ends of their
/// connections.
#[test]
fn processes_form_a_machine_where_no_process_may_be_opened_by_its_number() {
    let programs = Programs::new();
    let [dirty, killed] = ["images/dirty.c", "images/killed.c"].map(|one| programs.compiled(one));
    let folder = tempfile::tempdir().unwrap();
    let launcher = refusing(folder.path());
    let run = |options: &[&str], program: &Path, args: &[&str]| {
        let mut command = Command::new(&launcher);
        command.arg("pidfd_open").arg(upcall()).args(["pvm", "run", "--procs"]);
        command.args(options).arg(program).args(args);
        let done = within_a_minute(&command, folder.path());
        (done.status.success(), said(&done))
    };
    let (is_well, said) = run(&["3", "--place", "interleave"], &killed, &[]);
    assert!(is_well && said.contains("2 of 4 have ended"), "{said}");
    assert!(said.contains("process 1 has ended, and 2 tasks with it"), "{said}");
    let (is_well, said) = run(&["2", "-n", "3"], &dirty, &["1", "12", "2"]);
    assert!(is_well && said.contains("12 moves, 0 refused"), "{said}");
}
