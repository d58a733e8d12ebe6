//! Tests that a task's waiting stops no other task, and that signals and descriptors belong to a
//! single task. The tests are C programs, run by the example `host`.

mod command;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Compiles a program of tests/images/waits as a user does.
fn compile(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // Unique, because tests may compile the same program at the same time.
    let program =
        folder.join(format!("{name}.{}.{:?}", std::process::id(), std::thread::current().id()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/images/waits/{name}.c"));
    let done = Command::new(env!("CARGO_BIN_EXE_upvmcc"))
        .args(["-O1", "-Wall"])
        .arg(source)
        .arg("-o")
        .arg(&program)
        .env("XDG_CACHE_HOME", folder)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    program
}

/// The example, which is built with the tests if all are built.
fn host() -> PathBuf {
    command::built("examples/host", &["--package", "upcall-pvm", "--example", "host"])
}

/// Runs a program in a folder of its own. Returns its output and its status.
fn run(processes: usize, copies: usize, program: &Path, args: &[&str]) -> (String, Option<i32>) {
    let folder = tempfile::tempdir().unwrap();
    let mut host_of = Command::new("timeout");
    host_of
        .arg("60")
        .arg(host())
        .args([processes, copies].map(|number| number.to_string()))
        .arg(program)
        .args(args);
    let Output { status, stdout, stderr } =
        host_of.current_dir(folder.path()).stdin(std::process::Stdio::null()).output().unwrap();
    (
        format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr)),
        status.code(),
    )
}

/// Runs a program that must succeed.
fn well(processes: usize, copies: usize, program: &Path, args: &[&str]) -> String {
    let (said, status) = run(processes, copies, program, args);
    assert_eq!(status, Some(0), "{args:?} in {processes}: {said}");
    said
}

#[test]
fn who_waits_stops_nobody() {
    let program = compile("waits");
    let cases = [
        "sleep", "fifo", "open", "terminal", "write", "child", "children", "aside", "system",
        "popen", "poll", "select", "epoll", "socket", "lock", "sync",
    ];
    for case in cases {
        let said = well(1, 2, &program, &[case]);
        assert!(said.contains("done\n"), "{case}: {said}");
    }
    // The second task counts in another process. A third task in the first's process does not.
    for case in ["fifo", "child", "aside", "poll"] {
        well(2, 3, &program, &[case]);
    }
}

#[test]
fn who_waits_for_children_gets_no_others() {
    let program = compile("family");
    for (processes, args) in [(1, &[][..]), (2, &["moves"])] {
        let said = well(processes, 2, &program, args);
        assert!(said.contains("done\n"), "in {processes}: {said}");
    }
}

#[test]
fn each_has_its_own_signals() {
    let program = compile("signals");
    for processes in [1, 3] {
        let (said, status) = run(processes, 1, &program, &[]);
        assert!(
            said.contains("done\n") && status == Some(128 + 15),
            "{status:?} in {processes}: {said}"
        );
    }
}

#[test]
fn who_computes_gets_its_signals_and_loses_nothing_by_that() {
    let program = compile("computes");
    for (way, processes, copies) in [
        ("registers", 1, 1),
        ("buffers", 1, 1),
        ("blocked", 1, 1),
        ("pending", 1, 1),
        ("suspended", 1, 1),
        ("within", 1, 1),
        ("nested", 1, 1),
        ("sends", 1, 2),
        ("sends", 2, 2),
        ("registers", 2, 2),
    ] {
        let said = well(processes, copies, &program, &[way]);
        assert!(said.contains("done\n"), "{way}: {said}");
    }
    // The same without symbols.
    let stripped = program.with_extension("stripped");
    assert!(
        Command::new("strip").arg("-o").arg(&stripped).arg(&program).status().unwrap().success()
    );
    well(1, 1, &stripped, &["buffers"]);
}

#[test]
fn who_computes_can_be_ended_and_what_it_sent_before_has_come() {
    let program = compile("computes");
    for (way, status) in [("killed", 128 + 15), ("signalled", 128 + 12)] {
        let (said, ended) = run(2, 3, &program, &[way]);
        assert!(
            said.matches("done\n").count() == 2 && ended == Some(status),
            "{way}, {ended:?}: {said}"
        );
    }
    assert_eq!(run(1, 1, &program, &["alarm"]), (String::new(), Some(128 + 14)));
    let (said, ended) = run(1, 1, &program, &["crash"]);
    let calls = ["SIGSEGV", " in crashes", " in is_interrupted+0x", " in main+0x"]
        .map(|one| said.find(one));
    assert!(
        calls.is_sorted() && calls[0].is_some() && ended == Some(128 + 11),
        "{ended:?}: {said}"
    );
}

#[test]
fn each_has_its_own_descriptors_and_folder_and_nothing_is_left_of_those_that_are_killed() {
    let program = compile("own");
    for processes in [1, 2] {
        let said = well(processes, 1, &program, &[]);
        assert!(said.contains("done\n"), "in {processes}: {said}");
        eprintln!("{said}");
    }
}
