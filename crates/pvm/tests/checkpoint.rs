//! Tests of checkpoints: a machine that was killed goes on from a file, and prints what it would
//! have printed.

mod command;

use command::running::within;
use command::saved::{Place, signal, text, undisturbed};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

#[test]
fn a_machine_that_was_killed_goes_on_in_as_many_processes_as_one_likes() {
    let place = Place::new("images/saved.c");
    let expected = undisturbed(&place, "5", &["40"]);
    assert_eq!(expected.lines().count(), 5, "{expected}");
    for (before, after, last) in
        [("1", "1", "2"), ("1", "3", "1"), ("2", "1", "2"), ("2", "2", "3")]
    {
        let mut machine = place.run("5", before, &["40"]);
        machine.printed("begun");
        // At some moment, and at another one.
        place.saved("first");
        place.saved("first");
        machine.kill();
        // The machine that goes on is saved, too.
        let mut machine = place.start(&["restart", "first", "--procs", after]);
        while place.save("second").status.code() != Some(0) {
            assert!(machine.child.try_wait().unwrap().is_none(), "it ends without a checkpoint");
        }
        machine.kill();
        for (file, processes) in [("first", last), ("second", before), ("second", last)] {
            let mut machine = place.start(&["restart", file, "--procs", processes]);
            let rest = machine.rest();
            assert_eq!(rest, expected, "{file}: {before}, {after}, {processes} processes");
        }
        assert_eq!(place.files(), ["first", "second"]);
    }
}

/// The machine itself goes on after each checkpoint as if nothing had been.
#[test]
fn a_machine_that_is_saved_all_the_time_prints_the_same() {
    let place = Place::new("images/saved.c");
    let expected = undisturbed(&place, "5", &["20"]);
    for processes in ["1", "3"] {
        let mut machine = place.run("5", processes, &["20"]);
        machine.printed("begun");
        let mut count = 0;
        while machine.child.try_wait().unwrap().is_none() {
            count += usize::from(place.save("state").status.success());
        }
        assert_eq!(machine.rest(), expected);
        assert!(count > 1, "{count} checkpoints");
    }
}

#[test]
fn checkpoints_at_intervals_take_the_place_of_the_last_one() {
    let place = Place::new("images/saved.c");
    let expected = undisturbed(&place, "4", &["60"]);
    let program = place.program.to_str().unwrap();
    let every = ["--checkpoint", "state", "--every", "0.1"];
    let begin = ["run", "-n", "4", "--procs", "2"];
    let mut machine = place.start(&[&begin[..], &every, &[program, "60"]].concat());
    machine.printed("begun");
    let number = || fs::metadata(place.path("state")).map(|data| inode(&data)).ok();
    // Another file has the name each time, and the name always leads to one.
    let mut seen = Vec::new();
    while seen.len() < 3 {
        if let Some(number) = number().filter(|number| seen.last() != Some(number)) {
            seen.push(number);
        } else {
            assert!(number().is_some() || seen.is_empty());
            assert!(machine.child.try_wait().unwrap().is_none(), "it ends after {seen:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    machine.kill();
    let mut machine = place
        .start(&[&["restart", "state"], &["--checkpoint", "state", "--every", "1"][..]].concat());
    assert_eq!(machine.rest(), expected);
}

fn inode(data: &fs::Metadata) -> (u64, i64, i64) {
    use std::os::unix::fs::MetadataExt;
    (data.ino(), data.mtime(), data.mtime_nsec())
}

#[test]
fn what_cannot_be_saved_is_named_and_goes_on() {
    let place = Place::new("images/unsaved.c");
    for (why, reason) in [
        ("file", "open files"),
        ("map", "has mapped"),
        ("child", "children"),
        ("call", "a system call of its own is under way"),
    ] {
        for processes in ["1", "2"] {
            let mut machine = place.run("2", processes, &[why]);
            machine.printed("begun");
            let error = place.not_saved("state");
            assert!(error.contains(reason) && error.contains("(unsaved)"), "{why}: {error}");
            assert!(place.files().is_empty(), "{:?}", place.files());
            // A signal lets the task end what keeps it.
            let tasks = place.output(&["ps", "--json"]);
            let shown: serde_json::Value = serde_json::from_slice(&tasks.stdout).unwrap();
            for task in shown[0]["tasks"].as_array().unwrap() {
                let done = place.output(&["sig", "10", task["tid"].as_str().unwrap()]);
                assert!(done.status.success(), "{}", text(&done.stderr));
            }
            machine.printed("free");
            place.saved("state");
            let tasks = place.output(&["kill", "all"]);
            assert!(tasks.status.success(), "{}", text(&tasks.stderr));
            machine.kill();
            let mut machine = place.start(&["restart", "state"]);
            let shown = || place.output(&["ps", "--json"]).stdout;
            within(|| text(&shown()).contains("\"sleeps\"").then_some(()));
            assert!(place.output(&["halt"]).status.success());
            assert!(!machine.child.wait().unwrap().success());
            fs::remove_file(place.path("state")).unwrap();
        }
    }
}

#[test]
fn a_machine_is_not_saved_without_a_process_and_goes_on() {
    use rustix::process::Signal;
    let place = Place::new("images/saved.c");
    let expected = undisturbed(&place, "4", &["30"]);
    let mut machine = place.run("4", "2", &["30"]);
    machine.printed("begun");
    place.saved("state");
    let before = fs::read(place.path("state")).unwrap();
    let other = machine.others()[0];
    signal(other, Signal::STOP);
    let error = place.not_saved("state");
    assert!(error.contains(&format!("process 1 ({other})")), "{error}");
    // Nothing has happened to the former file, and the next checkpoint is one again.
    assert_eq!(
        (fs::read(place.path("state")).unwrap(), place.files()),
        (before, vec!["state".into()])
    );
    signal(other, Signal::CONT);
    place.saved("state");
    assert_eq!(machine.rest(), expected);
}

/// A machine in which a process ends at each step of a checkpoint. The former file stays, and
/// nothing else does.
#[test]
#[cfg(debug_assertions)]
fn a_process_that_ends_during_a_checkpoint_costs_the_checkpoint() {
    let place = Place::new("images/saved.c");
    let expected = undisturbed(&place, "4", &["10"]);
    let program = place.program.to_str().unwrap();
    let words = ["run", "-n", "4", "--procs", "2", program, "10"];
    let mut machine = place.start(&words);
    machine.printed("begun");
    place.saved("state");
    machine.kill();
    let before = fs::read(place.path("state")).unwrap();
    for (rank, step) in [
        ("1", "Hold"),
        ("1", "Held"),
        ("1", "Count"),
        ("1", "Counted"),
        ("1", "Save"),
        ("1", "Saved"),
        ("0", "Hold"),
        ("0", "Held"),
        ("0", "Save"),
        ("0", "Saved"),
    ] {
        let mut command = place.command(&[&words[..6], &["100000"]].concat());
        command.env("UPCALL_PVM_FAULT", format!("{rank}:{step}:kill"));
        let mut machine = place.started(command);
        machine.printed("begun");
        let error = place.not_saved("state");
        if rank == "1" {
            assert!(error.contains("process 1 has ended"), "{step}: {error}");
        }
        machine.kill();
        assert_eq!(fs::read(place.path("state")).unwrap(), before, "{rank} {step}");
        assert_eq!(place.files(), ["state"], "{rank} {step}");
    }
    let mut machine = place.start(&["restart", "state"]);
    assert_eq!(machine.rest(), expected);
}

/// Runs `look` on each item, on a few threads.
fn each<T: Sync>(items: &[T], look: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    look(item);
                }
            });
        }
    });
}

#[test]
fn a_damaged_file_is_refused_as_a_whole() {
    let place = Place::new("images/saved.c");
    let mut machine = place.run("2", "1", &["100"]);
    machine.printed("begun");
    place.saved("state");
    machine.kill();
    let whole = fs::read(place.path("state")).unwrap();
    let refused = |name: &str, bytes: &[u8]| {
        let path = place.path(name);
        fs::write(&path, bytes).unwrap();
        let done = place.output(&["restart", name]);
        fs::remove_file(&path).unwrap();
        let error = text(&done.stderr);
        // An error that names the file, and no crash.
        assert!(done.status.code() == Some(1) && error.contains(name), "{}: {error}", done.status);
        assert!(done.stdout.is_empty(), "{name}: a task has run");
        error
    };
    let mut random = 1_u64;
    let mut random = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) as usize % below
    };
    let header = (0..64).map(|at| (at, at % 8));
    let others = (0..60).map(|_| (random(whole.len()), random(8)));
    let flips = header.chain(others.collect::<Vec<_>>()).collect::<Vec<_>>();
    each(&flips, |(at, bit)| {
        let mut bent = whole.clone();
        bent[*at] ^= 1 << bit;
        refused(&format!("bent{at}.{bit}"), &bent);
    });
    let cuts = (0..40).map(|at| at * whole.len() / 40).chain([31, 33, whole.len() - 1]);
    each(&cuts.collect::<Vec<_>>(), |length| {
        refused(&format!("cut{length}"), &whole[..*length]);
    });
    let longer = [&whole[..], b"x"].concat();
    assert!(refused("longer", &longer).contains("damaged"));
    assert!(refused("foreign", &[b'x'; 1000]).contains("is not a checkpoint"));
    let mut other = whole.clone();
    other[8] = 99;
    assert!(refused("other", &other).contains("another version"));
    let none = place.output(&["restart", "none"]);
    assert!(text(&none.stderr).contains("none: No such file"), "{}", text(&none.stderr));
    // The program has changed since.
    let program = fs::read(&place.program).unwrap();
    fs::write(&place.program, program).unwrap();
    let done = place.output(&["restart", "state"]);
    let error = text(&done.stderr);
    let is_named = error.contains(place.program.to_str().unwrap()) && error.contains("time");
    assert!(done.status.code() == Some(1) && is_named, "{error}");
}

#[test]
fn a_console_saves_its_machine_and_its_job_goes_on_without_it() {
    use std::io::Write;
    let place = Place::new("images/saved.c");
    let mut console = place.command(&["console"]);
    console.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut console = console.spawn().unwrap();
    let mut input = console.stdin.take().unwrap();
    writeln!(input, "spawn -1 -> ./saved 200000\ncheckpoint state\nhalt").unwrap();
    drop(input);
    let done = console.wait_with_output().unwrap();
    assert!(text(&done.stdout).contains("state: 1 task in "), "{done:?}");
    let mut machine = place.start(&["restart", "state"]);
    let shown = within(|| {
        let shown = place.output(&["ps"]);
        Some(text(&shown.stdout)).filter(|shown| shown.contains("saved"))
    });
    assert!(shown.contains("1 task in 1 process"), "{shown}");
    assert!(place.output(&["halt"]).status.success());
    machine.kill();
}

/// Many tasks with memory: the times are only reported.
#[test]
fn many_tasks_are_saved_and_go_on() {
    let place = Place::new("images/large.c");
    let mut machine = place.run("100", "2", &[]);
    machine.printed("begun");
    let begun = Instant::now();
    place.saved("state");
    let saved = begun.elapsed();
    machine.kill();
    let begun = Instant::now();
    let mut machine = place.start(&["restart", "state"]);
    let rest = machine.rest();
    eprintln!("100 tasks: saved in {saved:?}, and over {:?} after the restart", begun.elapsed());
    assert_eq!(rest, "whole\n");
    assert!(fs::metadata(place.path("state")).unwrap().len() > 100 * (100 << 10));
}

/// A stuck machine is still found while it is saved at intervals.
#[test]
fn a_stuck_machine_that_is_saved_at_intervals_is_reported() {
    let place = Place::new("images/stuck.c");
    let program = place.program.to_str().unwrap();
    let every = ["--checkpoint", "state", "--every", "0.3"];
    for processes in ["1", "2"] {
        let begin = ["run", "-n", "2", "--procs", processes];
        let done = place.output(&[&begin[..], &every, &[program]].concat());
        let error = text(&done.stderr);
        assert!(error.contains("wait for what no task can send"), "{processes}: {error}");
    }
}

#[test]
fn the_file_needs_a_folder_and_a_name() {
    let place = Place::new("images/saved.c");
    let mut machine = place.run("2", "1", &["100"]);
    machine.printed("begun");
    fs::create_dir(place.path("folder")).unwrap();
    for (file, why) in [("folder", "directory"), ("none/state", "No such file")] {
        let error = place.not_saved(file);
        assert!(error.to_lowercase().contains(&why.to_lowercase()), "{error}");
    }
    assert_eq!(place.files(), ["folder"]);
    assert!(Path::new(&place.path("folder")).is_dir());
    place.saved("folder/state");
    machine.rest();
}

/// A machine that was killed may have left a file. A later one may have the same process number.
#[test]
fn a_file_that_another_machine_has_left_is_in_no_checkpoints_way() {
    let place = Place::new("images/saved.c");
    let mut machine = place.run("2", "1", &["100"]);
    machine.printed("begun");
    place.saved("state");
    let left = format!("state.new.{}", machine.child.id());
    fs::write(place.path(&left), "").unwrap();
    place.saved("state");
    assert_eq!(place.files(), ["state".into(), left]);
    machine.rest();
}

/// A limit of the size of files, as batch systems set it.
#[test]
fn a_file_that_is_too_long_costs_the_checkpoint_and_not_the_machine() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let place = Place::new("images/saved.c");
    let expected = undisturbed(&place, "2", &["30"]);
    let mut machine = place.run("2", "1", &["30"]);
    machine.printed("begun");
    let process = Pid::from_raw(machine.child.id() as i32);
    let limit = |current| Rlimit { current, maximum: None };
    let before = prlimit(process, Resource::Fsize, limit(Some(4096))).unwrap();
    let error = place.not_saved("state");
    assert!(error.contains("state: File too large"), "{error}");
    assert_eq!(place.files(), [""; 0]);
    prlimit(process, Resource::Fsize, before).unwrap();
    place.saved("state");
    assert_eq!(machine.rest(), expected);
}

/// The owner can read the file, whichever umask a task has.
#[test]
fn a_file_has_its_mode_and_not_what_a_task_leaves_of_it() {
    use std::os::unix::fs::MetadataExt;
    let place = Place::new("images/masked.c");
    let mut machine = place.run("1", "1", &[]);
    machine.printed("begun");
    place.saved("state");
    assert_eq!(fs::metadata(place.path("state")).unwrap().mode() & 0o777, 0o600);
    machine.kill();
}
