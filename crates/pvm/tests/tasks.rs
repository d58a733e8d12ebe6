//! Runs test programs in one process and in several, and tests what happens to programs that fail.

mod command;

use command::running::{KilledMachine, Programs, here_and_there, run, run_named, said, within};
use command::upcall;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn functions_do_in_several_processes_what_they_do_in_one() {
    let programs = Programs::new();
    let one = &|name: &str| {
        let program = programs.compiled(&format!("images/{name}.c"));
        for (names, options) in [
            ("own", &[][..]),
            ("own", &["--procs", "2"]),
            ("own", &["--procs", "3", "--place", "interleave"]),
            ("lent", &["--procs", "3", "--place", "interleave"]),
            ("own", &["--as-processes=12"]),
        ] {
            let done = run_named(names, options, &program, &[]);
            let said = said(&done);
            assert!(
                done.status.success() && !said.contains("FAILED") && said.contains("ok: "),
                "{name} {options:?}, {names} names: {said}"
            );
        }
    };
    // In parallel, because these programs mostly wait for what must not arrive.
    std::thread::scope(|scope| {
        for name in ["group", "mailbox", "notify", "context", "spared", "probed", "limits"] {
            scope.spawn(move || one(name));
        }
    });
}

/// In builds with debug assertions, the tests below also run with tasks whose names tell another
/// process than their own.
#[test]
#[cfg(debug_assertions)]
fn a_process_names_its_tasks_by_its_own_numbers_or_by_lent_ones() {
    let programs = Programs::new();
    let program = programs.compiled("images/names.c");
    for (names, processes) in [("own", [0, 1]), ("lent", [1, 0])] {
        let done = run_named(names, &["-n", "2", "--procs", "2"], &program, &[]);
        let said = said(&done);
        assert!(done.status.success(), "{said}");
        for (task, process) in processes.iter().enumerate() {
            let told = format!("task {task} is named in process {process}, apart\n");
            assert!(said.contains(&told), "{names}: {said}");
        }
    }
}

#[test]
fn what_is_sent_because_of_a_message_comes_after_it_by_whatever_way() {
    let programs = Programs::new();
    let program = programs.compiled("images/causal.c");
    let place = programs.0.path().join("place");
    std::fs::write(&place, "0\n1\n2\n1\n").unwrap();
    let place = format!("--place={}", place.display());
    for (count, arg) in [("3", None), ("4", Some("posted"))] {
        let apart = &["-n", count, "--procs", "3", &place][..];
        for (names, options) in [("own", &["-n", "3"][..]), ("own", apart), ("lent", apart)] {
            let done = run_named(names, options, &program, arg.as_slice());
            let said = said(&done);
            assert!(done.status.success(), "{options:?}, {names} names, {arg:?}: {said}");
        }
    }
}

/// Kills and signals go by way of the first process, which computes here, and messages do not.
#[test]
fn kills_signals_and_messages_of_a_task_come_in_its_order() {
    let programs = Programs::new();
    let place = programs.0.path().join("place");
    std::fs::write(&place, "0\n1\n2\n2\n").unwrap();
    let place = format!("--place={}", place.display());
    let program = programs.compiled("images/ordered.c");
    let apart = &["-n", "4", "--procs", "3", &place][..];
    for (names, options) in [("own", &["-n", "4"][..]), ("own", apart), ("lent", apart)] {
        let done = run_named(names, options, &program, &[]);
        let said = said(&done);
        // The status of the task that was killed.
        assert_eq!(done.status.code(), Some(128 + 15), "{options:?}, {names} names: {said}");
        assert!(said.contains("the order is right"), "{options:?}, {names} names: {said}");
    }
}

/// A task that sends and then computes does not hold its message back.
#[test]
fn what_is_sent_to_another_process_goes_at_once() {
    let programs = Programs::new();
    let program = programs.compiled("images/afar.c");
    for (how, names) in [("send", "own"), ("psend", "own"), ("send", "lent"), ("psend", "lent")] {
        let file = programs.0.path().join(format!("{how}-{names}"));
        let args = [how, file.to_str().unwrap()];
        let done = run_named(names, &["-n", "2", "--procs", "2"], &program, &args);
        assert!(done.status.success(), "{how}, {names} names: {}", said(&done));
    }
}

#[test]
fn no_two_tasks_of_a_machine_are_at_the_same_addresses() {
    let programs = Programs::new();
    let program = programs.compiled("images/where.c");
    let done = run(&["-n", "7", "--procs", "3", "--place", "interleave"], &program, &[]);
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let mut places = said.lines().filter_map(|line| line.split("at ").nth(1)).collect::<Vec<_>>();
    places.sort_unstable();
    places.dedup();
    assert!(done.status.success() && places.len() == 14, "{said}");
}

#[test]
fn tasks_are_spawned_in_another_process_from_a_folder_of_any_name() {
    let programs = Programs::new();
    let folder = programs.0.path().join(OsStr::from_bytes(b"no UTF-8: \xFF"));
    std::fs::create_dir(&folder).unwrap();
    let program = folder.join("where");
    std::fs::copy(programs.compiled("images/where.c"), &program).unwrap();
    let done = run(&["-n", "4", "--procs", "2", "--place", "interleave"], &program, &[]);
    let said = said(&done);
    assert!(done.status.success() && said.matches("at 0x").count() == 8, "{said}");
}

#[test]
fn a_thousand_tasks_go_around_in_one_process_and_in_two() {
    let ring = Programs::new();
    let program = ring.compiled("programs/ring.c");
    for options in [
        &["-n", "1000"][..],
        &["-n", "1000", "--procs", "2"],
        &["-n", "64", "--procs", "2", "--place", "interleave"],
    ] {
        let done = run(options, &program, &[options[1], "20"]);
        assert!(done.status.success(), "{options:?}: {}", said(&done));
    }
}

#[test]
#[ignore = "takes 2 GiB and 10 s"]
fn ten_thousand_tasks_go_around_on_one_machine() {
    let ring = Programs::new();
    let done = run(&["-n", "10000"], &ring.compiled("programs/ring.c"), &["10000", "3"]);
    let said = said(&done);
    assert!(
        done.status.success()
            && said.contains("ring of 10000 tasks, 3 rounds: sum 149985000, right"),
        "{said}"
    );
}

#[test]
fn a_receive_finds_what_a_signals_handler_has_taken_in() {
    let programs = Programs::new();
    let program = programs.compiled("images/probes.c");
    for options in [&["-n", "2"][..], &["-n", "2", "--procs", "2"]] {
        let done = run(options, &program, &[]);
        assert!(done.status.success(), "{options:?}: {}", said(&done));
    }
}

/// Runs two tasks of which one sends the other a message of this length.
fn long(options: &[&str], args: [&str; 2]) {
    let programs = Programs::new();
    let done = run(options, &programs.compiled("images/long.c"), &args);
    let said = said(&done);
    assert!(done.status.success() && said.contains("whole"), "{options:?} {args:?}: {said}");
}

#[test]
fn a_message_is_whole_and_its_length_is_known() {
    for way in ["pack", "psend"] {
        long(&["-n", "2"], [way, "40"]);
        // In three parts, in builds with debug assertions.
        long(&["-n", "2", "--procs", "2"], [way, "150"]);
    }
}

#[test]
#[ignore = "takes 10 GiB and 10 s"]
fn a_message_of_more_than_2_gib_is_whole_and_its_length_is_said_to_be_too_long() {
    for way in ["pack", "psend"] {
        for processes in ["1", "2"] {
            long(&["-n", "2", "--memory", "3G", "--procs", processes], [way, "2048"]);
        }
    }
}

/// The shared functions work on data of the program's own library, so both must have the same
/// layout.
#[test]
fn a_program_of_another_version_is_told_to_be_linked_anew() {
    let programs = Programs::new();
    let program = programs.compiled("images/states.c");
    let agreed = std::fs::read_to_string(concat!(env!("OUT_DIR"), "/ops.h")).unwrap();
    let version = agreed
        .lines()
        .find_map(|line| line.strip_prefix("#define UPVM_LIBRARY_VERSION 0x"))
        .unwrap();
    let version = u32::from_str_radix(version, 16).unwrap().to_le_bytes();
    let mut bytes = std::fs::read(&program).unwrap();
    let places = bytes
        .windows(4)
        .enumerate()
        .filter(|(_, word)| *word == version)
        .map(|(at, _)| at)
        .collect::<Vec<_>>();
    assert!(!places.is_empty());
    places.iter().for_each(|at| bytes[*at] ^= 1);
    std::fs::write(&program, bytes).unwrap();
    let done = run(&[], &program, &[]);
    assert!(
        done.status.code() == Some(127) && said(&done).contains("link it again"),
        "{}",
        said(&done)
    );
}

#[test]
fn who_crashes_ends_alone_and_others_are_told() {
    let programs = Programs::new();
    let program = programs.compiled("images/crashes.c");
    for said in here_and_there(&program) {
        for word in ["SIGSEGV", "wanted 0x8", "SIGABRT", "(crashes) has crashed"] {
            assert!(said.contains(word), "{word}: {said}");
        }
        assert!(said.contains("5 have ended, and the neighbour goes on"), "{said}");
    }
}

/// Kinds of standard error that take no reports.
#[derive(Clone, Copy, Debug)]
enum Deaf {
    Closed,
    NobodyReads,
    Full,
}

#[test]
fn a_crash_ends_nothing_else_where_standard_error_takes_no_report() {
    let programs = Programs::new();
    let program = programs.compiled("images/crashes.c");
    for how in [Deaf::Closed, Deaf::NobodyReads, Deaf::Full] {
        for options in [&[][..], &["--procs", "2", "--place", "interleave"]] {
            let mut command = Command::new("timeout");
            command.arg("60");
            if matches!(how, Deaf::Closed) {
                command.args(["sh", "-c", "exec \"$@\" 2>&-", "sh"]);
            }
            command.arg(upcall()).args(["pvm", "run"]).args(options).arg(&program);
            let (reads, writes) = std::io::pipe().unwrap();
            let reads = match how {
                Deaf::Full => {
                    fill(&writes);
                    Some(reads)
                }
                _ => None,
            };
            let done = command.stderr(writes).output().unwrap();
            let said = said(&done);
            assert!(done.status.success(), "{how:?} {options:?}: {:?}: {said}", done.status);
            assert!(
                said.contains("5 have ended, and the neighbour goes on"),
                "{how:?} {options:?}: {said}"
            );
            drop(reads);
        }
    }
}

/// Writes to a pipe until it is full.
fn fill(pipe: &std::io::PipeWriter) {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    let flags = fcntl_getfl(pipe).unwrap();
    fcntl_setfl(pipe, flags | OFlags::NONBLOCK).unwrap();
    while rustix::io::write(pipe, &[b'x'; 4096]).is_ok() {}
    fcntl_setfl(pipe, flags).unwrap();
}

#[test]
fn a_report_of_a_crash_is_written_at_once() {
    let programs = Programs::new();
    let program = programs.compiled("images/crashes.c");
    for options in [&[][..], &["--procs", "2", "--place", "interleave"]] {
        // On a datagram socket, each write is one message.
        let (reads, writes) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            let mut bytes = vec![0; 1 << 16];
            while let Ok(count @ 1..) = reads.recv(&mut bytes) {
                all.push(String::from_utf8(bytes[..count].to_vec()).unwrap());
            }
            all
        });
        let mut command = Command::new("timeout");
        command.arg("60").arg(upcall()).args(["pvm", "run"]).args(options).arg(&program);
        let last = writes.try_clone().unwrap();
        let done = command.stderr(std::os::fd::OwnedFd::from(writes)).output().unwrap();
        drop(command);
        assert!(done.status.success(), "{options:?}: {:?}", done.status);
        // An empty message marks the end.
        last.send(&[]).unwrap();
        let written = reader.join().unwrap();
        assert!(written.iter().all(|one| one.len() <= 4096 && one.ends_with('\n')), "{written:#?}");
        let crashes = written.iter().filter(|one| one.contains("has crashed")).collect::<Vec<_>>();
        assert_eq!(crashes.len(), 3, "{written:#?}");
        for one in crashes {
            assert!(
                one.starts_with("upcall pvm: t") && one.contains(" (crashes) has crashed: SIG"),
                "{written:#?}"
            );
            assert!(
                one.matches("has crashed").count() == 1 && one.contains(" in main+0x"),
                "{options:?}: {written:#?}"
            );
        }
    }
}

#[test]
fn each_task_has_a_process_number_of_its_own_and_none_becomes_another_program() {
    let programs = Programs::new();
    let program = programs.compiled("images/process.c");
    for options in [&["-n", "6"][..], &["-n", "6", "--procs", "3", "--place", "interleave"]] {
        let done = run(options, &program, &[]);
        assert!(done.status.success(), "{options:?}: {:?}: {}", done.status, said(&done));
        let printed = String::from_utf8_lossy(&done.stdout).into_owned();
        let mut pids = printed.lines().collect::<Vec<_>>();
        pids.sort_unstable();
        pids.dedup();
        assert_eq!(pids.len(), 6, "{options:?}: {printed}");
        let refusals = String::from_utf8_lossy(&done.stderr)
            .matches("upvm: execv is refused in a task: ")
            .count();
        assert_eq!(refusals, 6, "{options:?}: {}", said(&done));
    }
}

#[test]
fn a_process_that_is_killed_takes_its_tasks_with_it_and_no_others() {
    let programs = Programs::new();
    let program = programs.compiled("images/killed.c");
    for names in ["own", "lent"] {
        let done = run_named(names, &["--procs", "3", "--place", "interleave"], &program, &[]);
        let said = said(&done);
        assert!(done.status.success() && said.contains("2 of 4 have ended"), "{names}: {said}");
        assert!(
            said.contains("process 1 has ended, and 2 tasks with it")
                && said.matches(" EOF\n").count() == 4,
            "{names}: {said}"
        );
    }
}

#[test]
fn who_waits_for_nobody_is_told_and_the_run_ends() {
    let programs = Programs::new();
    let program = programs.compiled("images/stuck.c");
    for options in [&["-n", "3"][..], &["-n", "3", "--procs", "2"], &["-n", "2", "--as-processes"]]
    {
        let done = run(options, &program, &[]);
        let said = said(&done);
        assert_eq!(done.status.code(), Some(1), "{options:?}: {said}");
        assert!(said.contains("wait for what no task can send"), "{options:?}: {said}");
        let all = said.matches("(stuck) waits for a message from any task, tag 7").count();
        assert_eq!(all, options[1].parse::<usize>().unwrap(), "{options:?}: {said}");
    }
    // A task that waits for a timer, in any process, may still send.
    for options in
        [&["-n", "3", "--procs", "2"][..], &["-n", "3", "--procs", "2", "--place", "interleave"]]
    {
        let done = run(options, &program, &["late"]);
        assert!(done.status.success(), "{options:?}: {}", said(&done));
    }
    let place = programs.0.path().join("place");
    std::fs::write(&place, "1 0 0\n").unwrap();
    let done =
        run(&["-n", "3", "--procs", "2", "--place", place.to_str().unwrap()], &program, &["late"]);
    assert!(done.status.success(), "{}", said(&done));
}

#[test]
fn a_program_from_the_shell_becomes_a_task_by_itself() {
    upcall();
    let programs = Programs::new();
    let program = programs.compiled("images/pack.c");
    let done = Command::new("timeout").arg("60").arg(&program).output().unwrap();
    assert!(
        done.status.success() && String::from_utf8_lossy(&done.stdout).lines().count() > 100,
        "{}",
        said(&done)
    );
    let lost = Command::new("env")
        .args(["-i", "UPCALL=/nowhere/upcall", "PATH=/nowhere"])
        .arg(&program)
        .output()
        .unwrap();
    assert_eq!(lost.status.code(), Some(127));
    assert!(said(&lost).contains("needs `upcall` to run it"), "{}", said(&lost));
}

#[test]
fn what_is_no_task_is_refused_with_the_way_out() {
    let plain = Programs::new();
    let done = run(&[], Path::new("/bin/true"), &[]);
    assert!(!done.status.success() && said(&done).contains("upvmcc"), "{}", said(&done));
    let done = run(&["--place", "/nowhere"], Path::new("/bin/true"), &[]);
    assert!(said(&done).contains("neither block nor interleave"), "{}", said(&done));
    let mut upvmcc = Command::new(env!("CARGO_BIN_EXE_upvmcc"));
    let done = upvmcc.args(["-shared", "x.c"]).current_dir(plain.0.path()).output().unwrap();
    assert!(!done.status.success() && said(&done).contains("shared library"), "{}", said(&done));
}

/// Runs a program that must succeed and print this. Returns its reports.
fn reports(options: &[&str], program: &Path, args: &[&str], prints: &str) -> String {
    let done = run(options, program, args);
    assert!(done.status.success(), "{options:?}: {}", said(&done));
    assert_eq!(String::from_utf8_lossy(&done.stdout), prints, "{options:?}: {}", said(&done));
    String::from_utf8_lossy(&done.stderr).into_owned()
}

#[test]
fn a_name_that_is_no_program_is_reported_once() {
    let programs = Programs::new();
    let program = programs.compiled("images/spawns.c");
    for options in [&[][..], &["--procs", "2"], &["--as-processes=3"]] {
        let said = reports(options, &program, &["sun", "2"], "0 of 2 started\n0 of 2 started\n");
        let folder = programs.0.path().canonicalize().unwrap();
        let report = format!("upcall pvm: pvm_spawn: no program `sun` in {}, ", folder.display());
        assert!(said.starts_with(&report) && said.contains(" or PATH. "), "{options:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{options:?}: {said}");
        let said = reports(options, &program, &["true", "2"], "0 of 2 started\n0 of 2 started\n");
        assert!(said.contains("no program `true` in ") && said.contains("/true"), "{said}");
        assert_eq!(said.lines().count(), 1, "{options:?}: {said}");
    }
}

#[test]
fn tasks_for_which_there_is_no_process_are_counted_once() {
    let programs = Programs::new();
    let program = programs.compiled("images/spawns.c");
    let said = reports(
        &["--as-processes=3"],
        &program,
        &["spawns", "5"],
        "2 of 5 started\n0 of 5 started\n",
    );
    assert_eq!(
        said,
        "upcall pvm: 3 of 5 tasks were not started: --as-processes gives each task a process, and \
         all 3 are taken. Give --as-processes=MOST, up to 255\n"
    );
}

#[test]
fn the_example_of_the_page_runs() {
    let page = include_str!("../../../docs/reference/pvm.md");
    let text = page.split("```c\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let programs = Programs::new();
    let source = programs.0.path().join("page.c");
    std::fs::write(&source, text).unwrap();
    let done = run(&["-n", "24"], &programs.compiled(source.to_str().unwrap()), &[]);
    assert!(done.status.success() && done.stderr.is_empty(), "{}", said(&done));
    // A task writes what it has printed when it ends.
    let printed = String::from_utf8_lossy(&done.stdout);
    let printed: BTreeSet<&str> = printed.lines().collect();
    let expected: Vec<String> =
        (0..24).map(|task| format!("task {task}: hop {}", task + 1)).collect();
    assert_eq!(printed, expected.iter().map(String::as_str).collect());
}

#[test]
fn a_task_begins_in_the_folder_that_its_spawner_says() {
    let programs = Programs::new();
    here_and_there(&programs.compiled("images/folder.c"));
}

#[test]
fn each_task_has_a_umask_of_its_own() {
    let programs = Programs::new();
    let program = programs.compiled("images/umask.c");
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap().trim();
    for options in [&["-n", "3"][..], &["-n", "3", "--procs", "2", "--place", "interleave"]] {
        let folder = programs.0.path().to_str().unwrap();
        let done = run(options, &program, &[folder, mask]);
        assert!(done.status.success(), "{options:?}: {} {}", done.status, said(&done));
    }
}

#[test]
fn the_parent_process_of_all_tasks_is_the_machines_first() {
    let programs = Programs::new();
    let program = programs.compiled("images/parent.c");
    for processes in ["1", "3"] {
        let done = run(&["-n", "6", "--procs", processes], &program, &[]);
        let said = said(&done);
        let numbers = said.lines().filter_map(|line| line.split_once(' '));
        let (parents, hosts): (BTreeSet<_>, BTreeSet<_>) = numbers.unzip();
        assert!(
            done.status.success()
                && parents.len() == 1
                && hosts.len().to_string() == processes
                && parents.is_subset(&hosts),
            "{said}"
        );
    }
}

/// Processor time of a process and its children, in ticks of 10 ms.
fn ticks(process: u32) -> u64 {
    let stat = |path: &Path| std::fs::read_to_string(path.join("stat")).ok();
    let all = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|one| stat(&one.path()));
    let its = all.filter_map(|text| {
        let (pid, rest) = text.split_once(' ')?;
        let fields = rest.rsplit_once(')')?.1.split_whitespace().collect::<Vec<_>>();
        let own = process.to_string();
        (pid == own || fields[1] == own)
            .then(|| fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap())
    });
    its.sum()
}

/// A process that spins takes about 100 ticks of each second. It has a second with 2 ticks only
/// beside 50 other programs for each processor. A process that waits has such a second soon after
/// the last message, or later if the machine is slow.
#[test]
fn tasks_that_wait_take_no_processor() {
    let programs = Programs::new();
    let program = programs.compiled("images/idle.c");
    for processes in ["1", "2"] {
        let mut command = Command::new(upcall());
        command
            .args(["pvm", "run", "-n", "100", "--procs", processes])
            .arg(&program)
            .stdout(Stdio::piped());
        let mut machine = KilledMachine(Some(command.spawn().unwrap()));
        let run = machine.0.as_mut().unwrap();
        let mut said = String::new();
        BufReader::new(run.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "idle\n");
        within(|| {
            let before = ticks(run.id());
            std::thread::sleep(Duration::from_secs(1));
            let taken = ticks(run.id()) - before;
            println!("{processes} processes took {} ms of a second", taken * 10);
            (taken <= 2).then_some(())
        });
        assert_eq!(run.try_wait().unwrap(), None, "the machine has ended");
    }
}
