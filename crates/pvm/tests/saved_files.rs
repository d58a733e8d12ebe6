//! Checkpoints whose file, name or asker is unusual, and machines that go on in another way.

mod command;

use command::running::within;
use command::saved::{Machine, Place, signal, text, undisturbed};
use rustix::process::Signal;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

fn is_stopped(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
}

/// A process of the machine stands still, so that the checkpoint does not end by itself.
#[test]
#[cfg(debug_assertions)]
fn a_checkpoint_whose_asker_is_interrupted_is_cancelled_and_the_machine_goes_on() {
    let place = Place::new("images/saved.c");
    let expected = undisturbed(&place, "4", &["30"]);
    let program = place.program.to_str().unwrap();
    for number in [Signal::INT, Signal::TERM, Signal::KILL] {
        let mut command = place.command(&["run", "-n", "4", "--procs", "2", program, "30"]);
        command.env("UPCALL_PVM_FAULT", "1:Hold:stop");
        let mut machine = place.started(command);
        machine.printed("begun");
        let other = machine.others()[0];
        // A shell's background processes ignore SIGINT.
        let heeds = ["env", "--default-signal=INT,TERM"];
        let mut asker = place.behind(&heeds, &["checkpoint", "state"]);
        let asker = asker.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        within(|| is_stopped(other).then_some(()));
        signal(asker.id(), number);
        let done = asker.wait_with_output().unwrap();
        assert_eq!(done.status.signal(), Some(number.as_raw()), "{done:?}");
        if number != Signal::KILL {
            assert!(
                text(&done.stderr).contains("it was cancelled; the machine goes on"),
                "{done:?}"
            );
        }
        assert_eq!(place.files(), [""; 0]);
        signal(other, Signal::CONT);
        within(|| place.save("state").status.success().then_some(()));
        assert_eq!(machine.rest(), expected);
        fs::remove_file(place.path("state")).unwrap();
    }
}

/// The writer is killed before each step in which the file gets its name.
#[test]
#[cfg(debug_assertions)]
fn what_a_killed_writer_leaves_is_whole_and_goes_with_the_next_checkpoint_or_restart() {
    let place = Place::new("images/saved.c");
    let expected = undisturbed(&place, "2", &["10"]);
    let program = place.program.to_str().unwrap();
    let mut first = place.run("2", "1", &["10"]);
    first.printed("begun");
    place.saved("first");
    first.kill();
    let former = fs::read(place.path("first")).unwrap();
    fs::remove_file(place.path("first")).unwrap();
    let mut count = 0;
    for (unnamed, steps) in [
        ("yes", &["Create", "Sync", "Link", "Rename", "SyncFolder", "Clean"][..]),
        ("no", &["Create", "Sync", "Rename", "SyncFolder", "Clean"]),
    ] {
        for (step, has_former) in steps.iter().flat_map(|step| [(*step, false), (*step, true)]) {
            if (unnamed, step, has_former) == ("yes", "Rename", false) {
                // The file gets its name at once.
                continue;
            }
            let what = format!("{unnamed} {step} {has_former}");
            if has_former {
                fs::write(place.path("state"), &former).unwrap();
            }
            let mut command = place.command(&["run", "-n", "2", program, "10000000"]);
            command.env("UPCALL_PVM_FAULT", format!("0:{step}:kill"));
            command.env("UPCALL_PVM_TMPFILE", unnamed);
            let mut machine = place.started(command);
            machine.printed("begun");
            place.not_saved("state");
            assert_eq!(machine.child.wait().unwrap().signal(), Some(9), "{what}");
            let is_new = ["SyncFolder", "Clean"].contains(&step);
            let (states, left) =
                place.files().into_iter().partition::<Vec<_>, _>(|name| name == "state");
            assert_eq!(states.len(), usize::from(has_former || is_new), "{what}");
            let leaves = step == "Rename" || unnamed == "no" && step == "Sync";
            assert_eq!(left.len(), usize::from(leaves), "{what}: {left:?}");
            if !states.is_empty() {
                let found = fs::read(place.path("state")).unwrap();
                assert_eq!(found == former, !is_new, "{what}");
            }
            count += left.len();
            if leaves && has_former {
                assert_eq!(place.start(&["restart", "state"]).rest(), expected, "{what}");
            } else if leaves {
                let mut next = place.run("2", "1", &["10000000"]);
                next.printed("begun");
                place.saved("state");
                next.kill();
            } else if is_new {
                // Another machine's, which runs until it is killed.
                let mut machine = place.start(&["restart", "state"]);
                within(|| place.save("state").status.success().then_some(()));
                machine.kill();
            }
            let expected = if has_former || is_new || leaves { &["state"][..] } else { &[] };
            assert_eq!(place.files(), expected, "{what}");
            let _ = fs::remove_file(place.path("state"));
        }
    }
    assert_eq!(count, 5);
}

#[test]
fn a_file_has_any_name_that_there_is_and_is_shown_on_one_line() {
    let place = Place::new("images/saved.c");
    let mut machine = place.run("2", "1", &["60"]);
    machine.printed("begun");
    let save = |name: &OsStr| place.command(&["checkpoint"]).arg(name).output().unwrap();
    let longest = "x".repeat(255);
    for name in [OsStr::new(&longest), OsStr::from_bytes(b"a b\n\x1b[2J\xff")] {
        for _ in 0..2 {
            let done = save(name);
            let said = text(&done.stdout);
            assert!(done.status.success(), "{}", text(&done.stderr));
            assert_eq!(said.lines().count(), 1, "{said:?}");
            assert!(!said.trim_end().contains(char::is_control), "{said:?}");
        }
    }
    let done = save(OsStr::new(&"x".repeat(256)));
    let error = text(&done.stderr);
    assert!(!done.status.success() && error.contains("File name too long"), "{error}");
    let done = save(OsStr::from_bytes(b"none\n\x1b[2J/state"));
    let error = text(&done.stderr);
    assert!(
        error.lines().count() == 1 && !error.trim_end().contains(char::is_control),
        "{error:?}"
    );
    assert_eq!(fs::read_dir(place.programs.0.path()).unwrap().count(), 4);
    machine.kill();
    let mut command = place.command(&["restart"]);
    command.arg(OsStr::from_bytes(b"a b\n\x1b[2J\xff"));
    assert!(place.started(command).rest().contains("task 0"));
}

/// The kernel lets a host have any name.
#[test]
fn a_machine_on_a_host_with_an_odd_name_is_saved_and_goes_on() {
    const ODD: &str = "printf 'my host\\033[2J' > /proc/sys/kernel/hostname && exec \"$@\"";
    let place = Place::new("images/saved.c");
    let inside = |words: &[&str]| place.behind(&["unshare", "--uts", "sh", "-c", ODD, "sh"], words);
    let can = Command::new("unshare").args(["--uts", "sh", "-c", ODD, "sh", "true"]).output();
    if !can.is_ok_and(|done| done.status.success()) {
        return println!("skipped: this needs a namespace with a host name of its own (root)");
    }
    let expected = undisturbed(&place, "2", &["40"]);
    let program = place.program.to_str().unwrap();
    let mut machine = place.started(inside(&["run", "-n", "2", program, "40"]));
    machine.printed("begun");
    place.saved("state");
    machine.kill();
    assert_eq!(place.started(inside(&["restart", "state"])).rest(), expected);
    assert_eq!(place.start(&["restart", "state"]).rest(), expected);
}

/// The numbers of the tasks that an error names as options.
fn named(error: &str) -> Vec<String> {
    let words = error.split_whitespace().collect::<Vec<_>>();
    let options = words.windows(2).filter(|pair| pair[0] == "--without");
    options.map(|pair| pair[1].to_owned()).collect()
}

#[test]
fn tasks_that_cannot_go_on_are_named_and_the_others_go_on_without_them() {
    let place = Place::new("images/missed.c");
    for processes in ["1", "2"] {
        fs::create_dir(place.path("one")).unwrap();
        fs::create_dir(place.path("two")).unwrap();
        let mut machine = place.run("4", processes, &["one", ".", "two"]);
        machine.printed("begun");
        place.saved("state");
        machine.kill();
        fs::remove_dir(place.path("one")).unwrap();
        fs::remove_dir(place.path("two")).unwrap();
        let done = place.output(&["restart", "state"]);
        let error = text(&done.stderr);
        assert!(done.status.code() == Some(1) && done.stdout.is_empty(), "{error}");
        let lines = error.lines().filter(|line| line.contains("its folder cannot be entered"));
        assert!(lines.clone().all(|line| line.contains("(missed) on host ")), "{error}");
        let named = named(&error);
        assert_eq!((lines.count(), named.len()), (2, 2), "{error}");
        assert!(named.iter().all(|tid| error.contains(&format!("  {tid} (missed)"))), "{error}");
        // One of them is not enough, and there is no such task.
        let done = place.output(&["restart", "state", "--without", &named[0]]);
        let error = text(&done.stderr);
        assert!(error.contains("1 task of the checkpoint cannot go on"), "{error}");
        let done = place.output(&["restart", "state", "--without", "t7ffff"]);
        let error = text(&done.stderr);
        assert!(error.contains("has no task t7ffff, but t"), "{error}");
        // The others see that these have ended, and one of them still waits.
        let words = ["restart", "state", "--without", &named[0], "--without", &named[1]];
        let mut machine = place.start(&words);
        let mut gone = named.iter().map(|tid| format!("gone: {}, there: 0", &tid[1..]));
        let mut seen = Vec::new();
        for _ in 0..2 {
            let mut line = String::new();
            std::io::BufRead::read_line(&mut machine.output, &mut line).unwrap();
            seen.push(line.trim_end().to_owned());
        }
        assert!(gone.all(|line| seen.contains(&line)), "{seen:?}");
        let tasks = text(&place.output(&["ps", "--json"]).stdout);
        let tids = tasks.matches("\"tid\"").count();
        assert!(tids == 2 && named.iter().all(|tid| !tasks.contains(&**tid)), "{tasks}");
        fs::write(place.path("stop"), "").unwrap();
        // As if they had been killed.
        assert_eq!(machine.child.wait().unwrap().code(), Some(137));
        fs::remove_file(place.path("stop")).unwrap();
    }
}

/// A machine of one process has nothing to balance, and still knows how.
#[test]
fn a_machine_balances_after_a_restart_as_before_unless_it_is_not_to() {
    let place = Place::new("images/balance.c");
    let stop = place.path("stop").display().to_string();
    let program = place.program.to_str().unwrap();
    let words = ["run", "-n", "6", "--procs", "2", "--balance", "refine", program, "ring", &stop];
    let balancer = || {
        let shown = place.output(&["top", "--once", "--json", "--interval", "0.02"]).stdout;
        let shown = serde_json::from_slice::<serde_json::Value>(&shown).ok()?;
        Some(shown["balancer"].clone())
    };
    let saved = |mut machine: Machine, expected: Option<&str>| {
        assert_eq!(within(balancer).as_str(), expected);
        within(|| place.save("state").status.success().then_some(()));
        machine.kill();
    };
    saved(place.start(&words), Some("refine"));
    saved(place.start(&["restart", "state"]), Some("refine"));
    saved(place.start(&["restart", "state", "--procs", "1"]), None);
    saved(place.start(&["restart", "state", "--procs", "2"]), Some("refine"));
    saved(place.start(&["restart", "state", "--procs", "2", "--balance", "comm"]), Some("comm"));
    saved(place.start(&["restart", "state", "--procs", "2", "--balance", "none"]), None);
    saved(place.start(&["restart", "state", "--procs", "2"]), None);
    fs::write(&stop, "").unwrap();
    let mut machine = place.start(&["restart", "state"]);
    assert_eq!(machine.rest().matches(": done").count(), 6);
    let done = place.output(&["restart", "state", "--balance", "all"]);
    assert!(text(&done.stderr).contains("greedy, refine, comm or none"), "{done:?}");
}
