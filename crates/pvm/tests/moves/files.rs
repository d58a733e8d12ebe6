//! Tasks with open files that move between hosts. Those hosts are one, with the same files.

use crate::command::pretended::PretendedHosts;
use crate::machine::{Machine, compiled};
use crate::refusals::limit;
use std::fs;
use std::process::Command;

fn is_well(said: &[String], ways: &[&str]) {
    for way in ways {
        let line = format!("{way} is well");
        assert!(said.iter().any(|one| one.ends_with(&line)), "{line}: {}", said.join("\n"));
    }
}

#[test]
fn a_task_takes_its_open_files_along_from_host_to_host() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "travels");
    let mut machine = Machine::over_hosts(&[0], &program, &["travels"], &[]);
    machine.line("travels is well");
    let read = |name| fs::read_to_string(machine.file(name)).unwrap();
    let lines = (0..7).map(|round| format!("line {round}\n")).collect::<String>();
    assert_eq!(read("lines"), format!("{lines}child\n"));
    assert_eq!(read("log"), lines);
    assert_eq!(read("stream"), "0123456");
    machine.ends_well();
}

#[test]
fn what_cannot_move_to_another_host_is_named_and_the_task_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "travels");
    let all = [
        ("pipe", "is a pipe"),
        ("socket", "is a socket"),
        ("event", "is no file with a path"),
        ("device", "is a device"),
        ("standard", "is a device"),
        ("folder", "is a folder"),
        ("deleted", "is a deleted file"),
        ("flock", "has a lock"),
        ("fcntl", "has a lock"),
    ];
    let ways = all.map(|(way, _)| way);
    let mut machine = Machine::over_hosts(&[0; 9], &program, &ways, &[]);
    let tasks = machine.ready(all.len());
    for (way, why) in all {
        let tid = Machine::tid(&tasks, way);
        let why = format!("its descriptor 3 {why}, and stays on its host");
        machine.refuses(&tid, 1, &format!("the task cannot leave its process: {why}"));
        let seen = machine.tasks().into_iter().find(|task| task["tid"] == *tid).unwrap();
        assert_eq!((&seen["rank"], &seen["pinned"]), (&0.into(), &why.into()), "{way}");
    }
    machine.make("go");
    is_well(&machine.ends_well(), &ways);
}

#[test]
fn a_process_of_another_host_without_descriptors_refuses_a_task_with_files() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "travels");
    let ways = ["written", "none"];
    let mut machine = Machine::over_hosts(&[0, 1], &program, &ways, &[]);
    let tasks = machine.ready(2);
    let (tid, process) = (Machine::tid(&tasks, "written"), machine.process(1));
    let open = || fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
    let before = open();
    limit(process, &format!("--nofile={before}:"));
    let why = "the other process does not take the task: there are too few descriptors";
    (0..3).for_each(|_| machine.refuses(&tid, 1, why));
    assert_eq!((open(), machine.rank(&tid)), (before, Some(0)));
    limit(process, "--nofile=1024:");
    machine.moves(&tid, 1);
    machine.make("go");
    is_well(&machine.ends_well(), &ways);
}

/// The new process is stopped when it has the whole task, and the file changes.
#[test]
#[cfg(debug_assertions)]
fn a_file_that_is_not_the_same_on_another_host_is_named_and_the_task_goes_on() {
    use crate::refusals::during;
    use std::collections::VecDeque;
    use std::path::Path;
    type Change = fn(&Path);
    let changes: [(&str, Change); 5] = [
        ("is not there", |path| fs::rename(path, path.with_extension("away")).unwrap()),
        ("is not a regular file there", |path| {
            fs::rename(path, path.with_extension("away")).unwrap();
            std::os::unix::fs::symlink(path.with_extension("away"), path).unwrap();
        }),
        ("is another file there", |path| {
            let copy = path.with_extension("copy");
            fs::copy(path, &copy).unwrap();
            fs::rename(copy, path).unwrap();
        }),
        ("has another length there", |path| {
            fs::File::options().append(true).open(path).unwrap().set_len(5).unwrap();
        }),
        ("was changed at another time there", |path| {
            let file = fs::File::options().append(true).open(path).unwrap();
            let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_nanos(7);
            file.set_modified(time).unwrap();
        }),
    ];
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "travels");
    let mut left = VecDeque::from(changes);
    while let Some((why, change)) = left.pop_front() {
        let (ways, fault) = (["none", "written", "none"], [("UPCALL_PVM_FAULT", "2:Finish:stop")]);
        let mut machine = Machine::over_hosts(&[0, 1, 2], &program, &ways, &fault);
        let tasks = machine.ready(ways.len());
        let (tid, process) = (Machine::tid(&tasks, "written"), machine.process(2));
        let path = machine.file(".").canonicalize().unwrap().join("written");
        let (code, text) = during(&mut machine, (&tid, process), |_| change(&path));
        let file = path.display();
        let says = format!("the other process does not take the task: its open file {file} {why}");
        // A machine that is very busy may take longer for the change than a move may take.
        if text.contains("did not answer in time") {
            left.push_front((why, change));
        } else {
            assert!(code == Some(4) && text.contains(&says), "{says}: {code:?} {text}");
        }
        machine.refuses(&tid, 1, "the task is in that process already");
        machine.make("go");
        is_well(&machine.ends_well(), &ways);
    }
}

/// The other hosts have file systems of their own in one folder: an empty one, or one with a file
/// of the same name and length.
#[test]
fn a_folder_that_is_another_one_on_another_host_has_other_files() {
    let mount = ["--mount", "mount", "-t", "tmpfs", "none", "/mnt"];
    let can = Command::new("unshare").args(mount).output();
    if !can.is_ok_and(|done| done.status.success()) {
        return println!("SKIPPED: no file systems to mount (CAP_SYS_ADMIN)");
    }
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "travels");
    for (makes, why) in [(":", "is not there"), ("printf ab >", "is another file there")] {
        let (hosts, own) = (PretendedHosts::new(), folder.path().join("own"));
        fs::create_dir_all(&own).unwrap();
        let file = own.canonicalize().unwrap().join("file").display().to_string();
        let script = folder.path().join("script");
        let mount = format!("mount -t tmpfs none {} && {makes} {file}", own.display());
        fs::write(&script, format!("{mount} && exec \"$@\"\n")).unwrap();
        let with = format!("unshare --mount sh {} {}", script.display(), hosts.with());
        let ways = [&*file, "written"];
        let machine = (hosts, &*with);
        let mut machine = Machine::over_these_hosts(machine, &[0, 0], (&program, &ways), &[]);
        let tasks = machine.ready(ways.len());
        let tid = Machine::tid(&tasks, &file);
        let why = format!("the other process does not take the task: its open file {file} {why}");
        machine.refuses(&tid, 1, &why);
        assert_eq!(machine.rank(&tid), Some(0));
        machine.moves(&Machine::tid(&tasks, "written"), 1);
        machine.make("go");
        is_well(&machine.ends_well(), &ways);
    }
}
