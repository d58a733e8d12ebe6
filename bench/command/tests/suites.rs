//! `upcall-bench` as a user runs it: within its time, with records in the specified form, and
//! without leftovers.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Maximum duration of a suite, as documented.
const PROMISED: Duration = Duration::from_secs(60);

const CALLS: [&str; 7] = ["null", "add", "bigin", "biginout", "in-4k", "in-64k", "in-1m"];

/// Returns the processes that have this folder in their environment.
fn processes_with(folder: &Path) -> Vec<String> {
    let mark = folder.as_os_str().as_encoded_bytes();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let marked = entries.filter(|entry| {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        environment.windows(mark.len()).any(|part| part == mark)
    });
    marked.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn names_in(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Returns the records of a suite by case, system, placement and mode, after checking the form of
/// each.
fn records(suite: &str, text: &str) -> BTreeMap<[String; 4], Value> {
    let all: Vec<Value> = serde_json::from_str(text).expect("a JSON array");
    let mut by_name = BTreeMap::new();
    for record in all {
        assert_eq!(record["suite"], suite, "{record}");
        let name = ["case", "system", "placement", "mode"]
            .map(|key| record[key].as_str().expect("a name").to_string());
        // A time above that of a direct message, or above a quiet time, may be 0 or less if the
        // latter was delayed more.
        let above = name[0].starts_with("divert")
            || name[0].starts_with("slowdown") && !name[0].ends_with("caller");
        for key in ["p50_ns", "p99_ns", "mean_ns", "per_s"].into_iter().filter(|_| !above) {
            assert!(record[key].as_f64().is_some_and(|figure| figure > 0.0), "{key}: {record}");
        }
        assert!(record["p50_ns"].as_f64() <= record["p99_ns"].as_f64(), "{record}");
        assert!(record["samples"].as_u64().is_some_and(|count| count > 0), "{record}");
        assert!(
            record.get("line_ns").is_some_and(|line| line.is_null() || line.as_f64() > Some(0.0)),
            "{record}"
        );
        assert!(by_name.insert(name, record.clone()).is_none(), "twice: {record}");
    }
    by_name
}

#[test]
#[ignore = "long: busies the machine for most of a minute"]
fn long_the_suite_without_peers_takes_less_than_a_minute() {
    let place = TempDir::new().expect("a folder");
    let [scratch, names] = ["scratch", "names"].map(|name| place.path().join(name));
    fs::create_dir(&scratch).expect("a folder");
    let file = place.path().join("records.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_upcall-bench"));
    command.args(["rpc", "--peers", "none", "--json"]).arg(&file);
    command.env("TMPDIR", &scratch).env("UPCALL_DIR", &names).env_remove("XDG_RUNTIME_DIR");

    let begun = Instant::now();
    let child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
    let pid = child.id();
    let output = child.wait_with_output().expect("its end");
    let took = begun.elapsed();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}\n{took:?}");
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(took < PROMISED, "{took:?}");

    let records = records("rpc", &fs::read_to_string(&file).expect("the records"));
    let two = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
    let mut wanted = BTreeSet::new();
    for placement in if two { &["two-cores", "one-core"][..] } else { &["one-core"] } {
        for mode in ["polling", "parked"] {
            let mut want = |case: &str, system: &str| {
                wanted.insert([case, system, placement, mode].map(String::from))
            };
            for case in CALLS {
                want(case, "upcall");
                want(case, "limit");
            }
            for callers in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
                want(&format!("null-t{callers}"), "upcall");
                // A bare hand-off has one outstanding call, so it is no floor for several.
                if mode == "polling" || callers == 1 {
                    want(&format!("null-t{callers}"), "limit");
                }
            }
        }
    }
    // The bare hand-offs, the best of which is `limit` with a parked server, also have records
    // under their own names.
    let found = records
        .keys()
        .filter(|[_, system, ..]| !system.starts_with("limit-"))
        .cloned()
        .collect::<BTreeSet<_>>();
    assert_eq!(found, wanted);
    assert!(
        records.values().all(|record| record["line_ns"].is_null() != two),
        "the line is probed where there are two processors"
    );

    assert_eq!(processes_with(place.path()), [""; 0], "processes that are left");
    assert_eq!(names_in(&scratch), BTreeSet::new(), "files that are left");
    assert_eq!(names_in(&names), BTreeSet::new(), "names that are left");
    let own = format!("upcall-bench-{pid}-");
    let shared = names_in(Path::new("/dev/shm"));
    assert!(
        !shared.iter().any(|name| name.starts_with(&own)),
        "shared memory that is left: {shared:?}"
    );
    assert_eq!(
        names_in(place.path()),
        ["names", "records.json", "scratch"].map(String::from).into()
    );
}

#[test]
#[ignore = "long: builds a peer in C++"]
fn long_grpcs_library_for_cpp_is_measured_or_said_to_be_missing() {
    let cases = ["null", "add", "biginout", "in-1m", "null-t1", "null-t32"];
    let wish = [
        "--quick",
        "--peers",
        "grpc-c++",
        "--system",
        "grpc-c++",
        "--system",
        "limit-pipe",
        "--mode",
        "parked",
        "--json",
        "-",
    ];
    let wish = [&wish[..], &cases.map(|case| ["--case", case]).concat()].concat();
    let (done, said, errors) = calls("rpc", &wish);
    assert!(done, "{errors}");
    let records = records("rpc", &said);
    if let Some(note) = errors.lines().find(|line| line.contains("grpc-c++ takes no part")) {
        assert!(
            note.contains("apt-get install")
                && records.keys().all(|[_, system, ..]| system != "grpc-c++"),
            "{note}"
        );
        println!("skipped: {note}");
        return;
    }
    for case in cases {
        let name = [case, "grpc-c++", "one-core", "parked"].map(String::from);
        assert!(records.contains_key(&name), "no {case}: {said}{errors}");
    }
}

/// Runs `upcall-bench threads` with these arguments. Returns whether it succeeded, its output and
/// its errors.
fn threads(arguments: &[&str], scratch: &Path) -> (bool, String, String) {
    suite("threads", arguments, scratch)
}

fn suite(suite: &str, arguments: &[&str], scratch: &Path) -> (bool, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_upcall-bench"));
    command.arg(suite).args(arguments).env("TMPDIR", scratch);
    let output = command.output().expect("the command starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn threads_are_measured() {
    let scratch = TempDir::new().expect("a folder");
    let measure = |case| {
        let (done, said, errors) =
            threads(&["--peers", "none", "--quick", "--case", case, "--json", "-"], scratch.path());
        assert!(done, "{errors}");
        records("threads", &said)
    };
    let one = |case: &str, system: &str| [case, system, "one-core", "polling"].map(String::from);
    // The floor of a yield is in the peers' program, that of a call in this one.
    assert_eq!(measure("yield").into_keys().collect::<Vec<_>>(), [one("yield", "upcall")]);
    let calls = measure("procedure-call");
    assert_eq!(
        calls.into_keys().collect::<Vec<_>>(),
        [one("procedure-call", "limit"), one("procedure-call", "upcall")]
    );
    assert_eq!(processes_with(scratch.path()), [""; 0], "processes that are left");
    assert_eq!(names_in(scratch.path()), BTreeSet::new(), "files that are left");
}

#[test]
fn growth_of_threads_is_drawn() {
    let place = TempDir::new().expect("a folder");
    let folder = place.path().join("figures");
    let into = folder.to_str().expect("a path in Unicode");
    let cases = ["yield", "yield-10", "alive-1", "alive-20"];
    let wish: Vec<&str> = cases.iter().flat_map(|case| ["--case", case]).collect();
    let wish =
        [&["--peers", "none", "--quick", "--alive", "1,20", "--plot", into], &wish[..]].concat();
    let (done, said, errors) = threads(&wish, place.path());
    assert!(
        done && cases.iter().all(|case| said.contains(case)) && said.contains("KiB a thread"),
        "{said}{errors}"
    );
    let files = names_in(&folder);
    let figures =
        ["threads-alive.svg", "threads-memory.svg", "threads-table.svg", "threads-yield.svg"];
    assert_eq!(files, figures.map(String::from).into());
    for file in files {
        let figure = fs::read_to_string(folder.join(&file)).expect("a figure");
        assert!(figure.starts_with("<svg") && figure.trim_end().ends_with("</svg>"), "{figure}");
        assert!(errors.contains(&file), "{errors}");
    }
    let (done, _, errors) = threads(&["--alive", "0"], place.path());
    assert!(!done && errors.contains("--alive"), "{errors}");
}

#[test]
fn many_threads_have_a_peak_of_memory() {
    let scratch = TempDir::new().expect("a folder");
    let wish = ["--peers", "none", "--quick", "--case", "alive-100k", "--json", "-"];
    let (done, said, errors) = threads(&wish, scratch.path());
    // Linux before 6.13 has room for some 32 700 stacks, which the error explains.
    assert!(done || errors.contains("MADV_GUARD_INSTALL"), "{errors}");
    for record in records("threads", &said).values() {
        // Each thread has at least one page of its own.
        assert!(record["peak_kib"].as_u64() > Some(400_000 / 4), "{record}");
        assert!(record["bytes_each"].as_f64() > Some(4096.0), "{record}");
    }
}

#[test]
fn wishes_for_threads_that_are_none_are_told() {
    let scratch = TempDir::new().expect("a folder");
    let told = |arguments: &[&str]| {
        let (done, said, errors) = threads(arguments, scratch.path());
        assert!(!done && said.is_empty(), "{said}");
        errors
    };
    let case = told(&["--peers", "none", "--case", "fork-bomb"]);
    assert!(
        case.contains("no case `fork-bomb`")
            && case.contains("fork-join")
            && case.contains("alive-1m"),
        "{case}"
    );
    let system = told(&["--system", "green"]);
    assert!(
        system.contains("no system `green`")
            && system.contains("boost-fiber, may, tokio, go, pthread"),
        "{system}"
    );
    let peer = told(&["--peers", "green"]);
    assert!(peer.contains("no peer `green`") && peer.contains("boost-fiber"), "{peer}");
    let nothing = told(&["--peers", "none", "--system", "go"]);
    assert!(nothing.contains("nothing to measure"), "{nothing}");
}

#[test]
fn an_interrupt_ends_a_run_of_threads_and_its_child() {
    let scratch = TempDir::new().expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_upcall-bench"));
    command
        .args(["threads", "--peers", "pthread", "--case", "ping-pong"])
        .env("TMPDIR", scratch.path());
    let mut run =
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the command starts");
    let begun = Instant::now();
    while processes_with(scratch.path()).len() < 2 {
        assert!(begun.elapsed() < Duration::from_secs(60), "no child");
        std::thread::sleep(Duration::from_millis(1));
    }
    let interrupt =
        Command::new("kill").args(["-INT", &run.id().to_string()]).status().expect("kill");
    assert!(interrupt.success() && !run.wait().expect("its end").success());
    assert!(begun.elapsed() < Duration::from_secs(80), "it went on");
    assert_eq!(processes_with(scratch.path()), [""; 0], "processes that are left");
    assert_eq!(names_in(scratch.path()), BTreeSet::new(), "files that are left");
}

/// An interrupt, sent to the command alone, ends a build of peers and the compilers that the build
/// has started.
#[test]
fn an_interrupt_ends_a_build_of_peers_and_its_compilers() {
    let [scratch, files] = [(); 2].map(|()| TempDir::new().expect("a folder"));
    let path = |name| files.path().join(name);
    // A stand-in for cargo: a process with a child.
    let script = format!("#!/bin/sh\nsleep 300 &\n: > {}\nwait\n", path("started").display());
    fs::write(path("cargo"), script).expect("a program");
    fs::set_permissions(path("cargo"), fs::Permissions::from_mode(0o755)).expect("its mode");
    let mut command = Command::new(env!("CARGO_BIN_EXE_upcall-bench"));
    command
        .args(["rpc", "--peers", "tarpc", "--case", "null"])
        .envs([("TMPDIR", scratch.path()), ("CARGO", &path("cargo"))])
        .envs([("CARGO_TARGET_DIR", files.path()), ("CXX", Path::new("c++"))]);
    let mut run =
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the command starts");
    let begun = Instant::now();
    while !path("started").exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no build");
        std::thread::sleep(Duration::from_millis(1));
    }
    let interrupt =
        Command::new("kill").args(["-INT", &run.id().to_string()]).status().expect("kill");
    assert!(interrupt.success() && !run.wait().expect("its end").success());
    // A killed process exists until its parent, or init, has reaped it.
    while !processes_with(scratch.path()).is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(120), "processes are left");
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut errors = String::new();
    run.stderr.take().expect("a pipe").read_to_string(&mut errors).expect("text");
    assert!(errors.ends_with("interrupted\n"), "{errors}");
    assert_eq!(names_in(scratch.path()), BTreeSet::new(), "files that are left");
}

/// Runs `upcall-bench urpc` with these arguments, like [`calls`].
fn urpc(arguments: &[&str]) -> (bool, String, String) {
    calls("urpc", arguments)
}

/// Runs a suite with these arguments, in a folder of its own. Returns whether it succeeded, its
/// output and its errors, after checking that nothing is left of it.
fn calls(suite: &str, arguments: &[&str]) -> (bool, String, String) {
    let place = TempDir::new().expect("a folder");
    let names = place.path().join("names");
    let mut command = Command::new(env!("CARGO_BIN_EXE_upcall-bench"));
    command.arg(suite).args(arguments).env("TMPDIR", place.path()).env("UPCALL_DIR", &names);
    let output = command.env_remove("XDG_RUNTIME_DIR").output().expect("the command starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    let (said, errors) = (text(output.stdout), text(output.stderr));
    let left = processes_with(place.path());
    assert!(left.is_empty(), "processes that are left: {left:?}\n{said}{errors}");
    let left = names_in(place.path());
    assert!(
        left.is_subset(&["names".to_string()].into()),
        "files that are left: {left:?}\n{said}{errors}"
    );
    let left = names_in(&names);
    assert!(left.is_empty(), "names that are left: {left:?}\n{said}{errors}");
    (output.status.success(), said, errors)
}

/// Returns the last two cells of a row of properties: the processor time of an idle server, polling
/// and parked.
fn at_rest(row: &str) -> [String; 2] {
    let mut words: Vec<&str> = row.split_whitespace().collect();
    let mut cell = || match words.pop() {
        Some("%") => format!("{} %", words.pop().unwrap_or_default()),
        word => word.unwrap_or_default().to_owned(),
    };
    let parked = cell();
    [cell(), parked]
}

#[test]
fn properties_of_systems_are_found() {
    let wish = ["--quick", "--peers", "unix-socket", "--case", "properties"];
    let (done, said, errors) = calls("rpc", &wish);
    assert!(done, "{errors}");
    let row = |system: &str, trust: &str| {
        let words = |line: &&str| line.split_whitespace().take(2).eq([system, trust]);
        said.lines().find(words).unwrap_or_else(|| panic!("{system}: {said}"))
    };
    let ours = row("upcall", "checked");
    assert!(!ours.contains("/dev/shm") && ours.ends_with(" %"), "{ours}");
    let socket = row("unix-socket", "copied");
    assert!(socket.contains("1 in folders") && at_rest(socket)[0] == "-", "{said}");
}

/// With one mode, a row of properties has the cost of an idle server of that mode.
#[test]
fn properties_of_one_mode_are_found() {
    for mode in ["parked", "polling"] {
        let wish = ["--quick", "--peers", "none", "--case", "properties", "--mode", mode];
        let (done, said, errors) = calls("rpc", &wish);
        assert!(done, "{mode}: {errors}");
        let row =
            said.lines().find(|line| line.split_whitespace().take(2).eq(["upcall", "checked"]));
        let row = row.unwrap_or_else(|| panic!("{mode}: no row of ours in {said}"));
        let found = at_rest(row).map(|cell| cell.ends_with(" %"));
        assert_eq!(found, [mode == "polling", mode == "parked"], "{row}");
    }
}

#[test]
fn calls_by_several_threads_are_measured() {
    let (done, said, errors) = urpc(&[
        "--quick", "--config", "1,0", "--case", "null-t1", "--case", "null-t4", "--case",
        "null-t32", "--json", "-",
    ]);
    assert!(done, "{errors}");
    let records = records("urpc", &said);
    let of = |case: &str, system: &str| [case, system, "one-core", "parked"].map(String::from);
    let limits = ["limit", "limit-eventfd", "limit-futex", "limit-pipe", "limit-socket"]
        .map(|limit| of("null-t1", limit));
    let ours = ["null-t1", "null-t32", "null-t4"].map(|case| of(case, "upcall"));
    assert_eq!(
        records.keys().cloned().collect::<BTreeSet<_>>(),
        limits.into_iter().chain(ours).collect()
    );
    assert!(records.values().all(|record| record["config"] == "1,0"), "{said}");
}

#[test]
fn both_ways_of_waiting_are_measured_where_the_server_has_a_processor() {
    let (done, said, errors) =
        urpc(&["--quick", "--config", "1,1", "--case", "null-t2", "--json", "-"]);
    assert!(done, "{errors}");
    if std::thread::available_parallelism().is_ok_and(|count| count.get() > 1) {
        let of = |system: &str| ["null-t2", system, "two-cores", "polling"].map(String::from);
        assert_eq!(
            records("urpc", &said).into_keys().collect::<Vec<_>>(),
            [of("upcall"), of("upcall-polling")]
        );
    } else {
        assert!(errors.contains("C,S = 1,1 was not run: it takes 2 processors"), "{errors}");
    }
}

#[test]
fn lrpcs_experiments_are_measured() {
    let (done, said, errors) = calls("lrpc", &["--quick", "--peers", "unix-socket", "--json", "-"]);
    assert!(done, "{errors}");
    // Records with a configuration have the same name in several configurations.
    let all: Vec<Value> = serde_json::from_str(&said).expect("a JSON array");
    let (configured, plain): (Vec<Value>, Vec<Value>) =
        all.into_iter().partition(|record| record["config"].is_string());
    let two = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
    let mut wanted = BTreeSet::new();
    for test in ["null", "add", "bigin", "biginout"] {
        let mut want = |system: &str, placement: &str, mode: &str| {
            wanted.insert([test, system, placement, mode].map(String::from))
        };
        want("limit", "one-core", "polling");
        want("upcall", "one-core", "parked");
        want("unix-socket", "one-core", "parked");
        if two {
            want("limit", "two-cores", "polling");
            want("upcall", "two-cores", "polling");
        }
    }
    for half in ["null-there", "null-back"] {
        wanted.insert([half, "upcall", "one-core", "parked"].map(String::from));
    }
    for part in ["procedure-call", "kernel-crossing"] {
        wanted.insert([part, "limit", "one-core", "polling"].map(String::from));
    }
    let plain = records("lrpc", &serde_json::to_string(&plain).expect("text"));
    assert_eq!(plain.into_keys().collect::<BTreeSet<_>>(), wanted);
    for config in
        ["one-server", "pairs", "no-spare", "one-spare"].into_iter().take(if two { 4 } else { 3 })
    {
        let of: Vec<Value> =
            configured.iter().filter(|record| record["config"] == config).cloned().collect();
        let cases: BTreeSet<String> = records("lrpc", &serde_json::to_string(&of).expect("text"))
            .into_keys()
            .map(|[case, ..]| case)
            .collect();
        let mixes = ["null-s4-even", "null-s4-mostly"].map(String::from).into();
        assert!(
            if config.ends_with("spare") { cases == mixes } else { cases.contains("null-p1") },
            "{config}: {cases:?}"
        );
    }
}

#[test]
#[ignore = "long: measures every case"]
fn long_messages_are_measured() {
    let (done, said, errors) = calls("messages", &["--quick", "--peers", "none", "--json", "-"]);
    assert!(done, "{errors}");
    let two = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
    let on_the_way = ["one-way-0", "one-way-8", "one-way-1000", "one-way-10000"];
    let sides = [
        "send-0",
        "send-1",
        "send-2",
        "send-4",
        "send-8",
        "send-16",
        "send-0-polled",
        "receive-0",
        "rate-8",
    ];
    let mut wanted = BTreeSet::new();
    for system in ["limit", "upcall"] {
        let mut want = |case: &str, placement: &str| {
            wanted.insert([case, system, placement, "polling"].map(String::from))
        };
        for case in on_the_way {
            want(case, "one-core");
        }
        for case in sides.into_iter().chain(on_the_way).take(if two { usize::MAX } else { 0 }) {
            want(case, "two-cores");
        }
    }
    for case in of_ours_alone().into_iter().take(if two { usize::MAX } else { 0 }) {
        let waits = if case == "upcall-asleep" { "parked" } else { "polling" };
        wanted.insert([&case, "upcall", "two-cores", waits].map(String::from));
    }
    let records = records("messages", &said);
    assert_eq!(records.keys().cloned().collect::<BTreeSet<_>>(), wanted);
    assert!(
        records.values().all(|record| record["line_ns"].is_null() != two),
        "the line is probed where there are two processors"
    );
    let once = &records[&["exactly-once", "upcall", "two-cores", "polling"].map(String::from)];
    assert_eq!(once["samples"], 100_000);
    if two {
        for case in of_the_paper() {
            let record = &records[&[&case, "upcall", "two-cores", "polling"].map(String::from)];
            assert!(
                record["buffered"].as_u64() <= record["samples"].as_u64().map(|all| 2 * all),
                "{record}"
            );
        }
        // On virtual clocks the result is the same each time: messages of a sender that is too fast
        // for its receiver are buffered.
        let share = |case: &str| {
            let record = &records[&[case, "upcall", "two-cores", "polling"].map(String::from)];
            record["buffered"].as_f64().expect("a count")
                / record["samples"].as_f64().expect("a count")
        };
        assert!(
            share("synth-simulated-1000-500") > 0.5 && share("synth-simulated-1000-2000") < 0.02
        );
        assert!(
            records[&["tpuz-null-co", "upcall", "two-cores", "polling"].map(String::from)]
                ["samples"]
                .as_u64()
                > Some(500)
        );
    }
}

/// Returns the cases of the second part of the suite `messages`.
fn of_ours_alone() -> Vec<String> {
    let of = |case: &str, parts: &[&str]| {
        parts.iter().map(|part| format!("{case}{part}")).collect::<Vec<_>>()
    };
    let sides = ["", "-sender", "-receiver"];
    [
        of("section", &["-1", "-7", "-30"]),
        of("available", &["-1", "-7", "-30"]),
        of("poll-0", &["", "-by-receive"]),
        ["direct-0", "direct-4", "buffered-0", "buffered-4"]
            .iter()
            .flat_map(|case| of(case, &sides))
            .collect(),
        of("divert", &["", "-take", "-home", "-leave", "-and-back"]),
        of("stopped", &["-nothing", "-buffered"]),
        of("upcall", &["-polled", "-idle", "-asleep", "-busy", "-computing", "-signal"]),
        of("exactly-once", &["", "-diverted", "-diversions"]),
        of_the_paper(),
    ]
    .concat()
}

/// Returns the cases of UDM's Figure 7 and Table 6.
fn of_the_paper() -> Vec<String> {
    let mut all = Vec::new();
    for group in ["10", "100", "1000", "simulated-10", "simulated-100", "simulated-1000"] {
        all.extend(
            [250, 500, 750, 1000, 1250, 1500, 2000, 3000]
                .map(|interval| format!("synth-{group}-{interval}")),
        );
    }
    for tpuz in ["tpuz", "tpuz-simulated"] {
        all.push(format!("{tpuz}-alone"));
        for schedule in ["batch", "gang", "co"] {
            all.extend(
                ["null", "tpuz", "synth-100", "synth-10"]
                    .map(|other| format!("{tpuz}-{other}-{schedule}")),
            );
            all.extend(
                ["tpuz", "synth-100", "synth-10"]
                    .map(|other| format!("{tpuz}-{other}-{schedule}-other")),
            );
        }
    }
    all
}

#[test]
#[ignore = "long: measures the paper's experiments"]
fn long_the_papers_experiments_are_told_and_drawn() {
    let place = TempDir::new().expect("a folder");
    let folder = place.path().join("figures");
    let into = folder.to_str().expect("a path in Unicode");
    let cases = [
        "--case",
        "synth-1000",
        "--case",
        "synth-simulated",
        "--case",
        "tpuz",
        "--case",
        "tpuz-simulated",
    ];
    let (done, said, errors) =
        calls("messages", &[&["--quick", "--peers", "none", "--plot", into], &cases[..]].concat());
    assert!(done, "{said}{errors}");
    if std::thread::available_parallelism().is_ok_and(|count| count.get() > 1) {
        for row in [
            "synth-1000, simulated",
            "Tpuz alone",
            "Tpuz beside synth-10 ",
            "Tpuz beside synth-10, sim. ",
            "1.377",
        ] {
            assert!(said.contains(row), "{row}: {said}");
        }
        assert_eq!(
            names_in(&folder),
            ["messages-figure-7.svg", "messages-table-6.svg"].map(String::from).into()
        );
    }
}

#[test]
fn ours_alone_is_told_in_a_table() {
    let (done, said, errors) = calls(
        "messages",
        &["--quick", "--case", "section", "--case", "exactly-once", "--messages", "30000"],
    );
    assert!(done, "{said}{errors}");
    if std::thread::available_parallelism().is_ok_and(|count| count.get() > 1) {
        assert!(
            said.contains("upcall alone, two-cores")
                && said.contains("atomic section")
                && said.contains("≤ 2.0"),
            "{said}"
        );
        assert!(
            said.contains("diverted")
                && !said.contains("words (medians)")
                && errors.contains("ours alone, round 2"),
            "{said}{errors}"
        );
    }
    let (done, _, errors) = calls(
        "messages",
        &["--quick", "--peers", "none", "--system", "limit", "--case", "section"],
    );
    assert!(!done && errors.contains("nothing to measure"), "{errors}");
}

#[test]
fn messages_are_told_in_a_table() {
    let wish = [
        "--quick",
        "--peers",
        "none",
        "--system",
        "upcall",
        "--case",
        "one-way-0",
        "--placement",
        "one-core",
    ];
    let (done, said, errors) = calls("messages", &wish);
    assert!(
        done && said.contains("one-core: ns on the way") && said.contains("upcall"),
        "{said}{errors}"
    );
    let told = |arguments: &[&str]| {
        let (done, said, errors) = calls("messages", arguments);
        assert!(!done && said.is_empty(), "{said}");
        errors
    };
    let case = told(&["--peers", "none", "--case", "send-3"]);
    assert!(
        case.contains("no case `send-3`") && case.contains("send-16") && case.contains("rate-8"),
        "{case}"
    );
    let system = told(&["--peers", "none", "--system", "corba"]);
    assert!(system.contains("no system `corba`") && system.contains("upcall, ucx-am"), "{system}");
    let peer = told(&["--peers", "mpich"]);
    assert!(peer.contains("no peer `mpich`") && peer.contains("openmpi"), "{peer}");
    let nothing = told(&["--peers", "none", "--system", "ucx-am"]);
    assert!(nothing.contains("nothing to measure"), "{nothing}");
}

#[test]
#[ignore = "long: builds peers in C and in Rust"]
fn long_peers_of_messages_are_measured_or_said_to_be_missing() {
    let wish = [
        "--quick",
        "--peers",
        "all",
        "--case",
        "send-4",
        "--case",
        "one-way-1000",
        "--case",
        "rate-8",
        "--json",
        "-",
    ];
    let (done, said, errors) = calls("messages", &wish);
    assert!(done, "{errors}");
    let records = records("messages", &said);
    for peer in ["ucx-am", "ucx-tag", "openmpi", "iceoryx2"] {
        let measured =
            records.contains_key(&["one-way-1000", peer, "one-core", "polling"].map(String::from));
        let missing = errors.lines().any(|line| {
            line.contains(peer) && line.contains("no part") && line.contains("apt-get install")
        });
        assert!(measured != missing, "{peer}: {said}{errors}");
    }
}

/// Returns the records of the suite `homed`: cases and methods.
fn of_homed() -> BTreeSet<[String; 4]> {
    let mut all = BTreeSet::new();
    let mut want = |case: &str, ways: &[&str]| {
        for way in ways {
            let mode = if way.ends_with("background") { "parked" } else { "polling" };
            assert!(
                all.insert([case, way, "two-cores", mode].map(String::from)),
                "twice: {case} {way}"
            );
        }
    };
    let finds = ["find-last-5", "find-last-10", "find-last-100", "find-last-1000"];
    for case in finds.into_iter().chain(["enqueue-dequeue", "create-segment"]) {
        let remote =
            ["access", "access-unlocked", "bulk", "urgent", "auto", "urgent-computing", "invoke"];
        let plain = ["bare", "local", "local-unlocked", "urgent-background", "invoke-background"];
        let dirty = format!("{case}-dirty");
        want(case, &[&plain[..], &remote].concat());
        want(&dirty, &remote);
        if finds.contains(&case) {
            want(case, &["read"]);
            want(&dirty, &["read"]);
        }
    }
    for case in ["map-segment", "create-process"] {
        want(case, &["local", "access", "invoke", "invoke-background"]);
        want(&format!("{case}-dirty"), &["access", "invoke"]);
    }
    for hot in ["counter", "queue"] {
        want(&format!("throughput-{hot}-alone"), &["local", "pthread-mutex", "spin-lock"]);
        for callers in [1, 2, 4, 8] {
            want(
                &format!("throughput-{hot}-{callers}"),
                &["access", "urgent", "pthread-mutex", "spin-lock"],
            );
        }
    }
    for op in ["enqueue-dequeue", "find-last-10"] {
        let urgent = [
            "urgent-computing",
            "urgent-computing-paused",
            "urgent-signal",
            "urgent-signal-paused",
        ];
        want(&format!("slowdown-{op}"), &[&["access", "invoke"][..], &urgent].concat());
        want(&format!("slowdown-{op}-caller"), &[&["access", "invoke"][..], &urgent].concat());
        want(
            &format!("slowdown-{op}-quiet"),
            &["bare", "urgent-computing", "urgent-signal", "invoke"],
        );
    }
    for lines in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512] {
        want(
            &format!("chain-{lines}"),
            &["local", "access", "read", "bulk", "urgent", "auto", "invoke"],
        );
    }
    all
}

#[test]
#[ignore = "long: measures every case"]
fn long_objects_are_measured_within_a_minute() {
    let begun = Instant::now();
    let (done, said, errors) = calls("homed", &["--quick", "--json", "-"]);
    assert!(done, "{errors}");
    assert!(begun.elapsed() < PROMISED, "{:?}", begun.elapsed());
    let found: BTreeSet<_> = records("homed", &said).into_keys().collect();
    let two = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
    assert_eq!(found, if two { of_homed() } else { BTreeSet::new() });
}

#[test]
fn objects_are_told_and_drawn_beside_the_papers() {
    let place = TempDir::new().expect("a folder");
    let folder = place.path().join("figures");
    let into = folder.to_str().expect("a path in Unicode");
    let cases = [
        "--case",
        "find-last-5",
        "--case",
        "throughput-counter",
        "--case",
        "break-even",
        "--case",
        "slowdown",
    ];
    let two = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
    let plot = if two { &["--plot", into][..] } else { &[] };
    let (done, said, errors) = calls("homed", &[&["--quick"], plot, &cases].concat());
    assert!(done, "{said}{errors}");
    if two {
        for row in [
            "find-last-5-dirty",
            "1993",
            "R = ",
            "urgent: C = ",
            "ordinary: C = ",
            "counter, 8 processes",
            "≥ 2",
            "by access 1 ms of 19, 5 %",
        ] {
            assert!(said.contains(row), "{row}: {said}");
        }
        let figures = ["break-even", "figure-3", "figure-4", "figure-5", "table-1", "throughput"];
        assert_eq!(names_in(&folder), figures.map(|figure| format!("homed-{figure}.svg")).into());
    } else {
        assert!(said.contains("one processor only"), "{said}");
    }
    let (done, said, errors) = calls("homed", &["--case", "find-last-7"]);
    assert!(
        !done
            && said.is_empty()
            && errors.contains("no case `find-last-7`")
            && errors.contains("break-even"),
        "{errors}"
    );
}

#[test]
fn a_table_that_processes_share_is_measured() {
    let wish = [
        "--quick",
        "--entries",
        "500",
        "--peers",
        "all",
        "--case",
        "get",
        "--case",
        "put-16",
        "--json",
        "-",
    ];
    let (done, said, errors) = calls("cache", &wish);
    assert!(done, "{errors}");
    let records = records("cache", &said);
    let of = |case: &str, system: &str, mode: &str| {
        records.contains_key(&[case, system, "one-core", mode].map(String::from))
    };
    for (way, mode) in [
        ("read", "polling"),
        ("access", "polling"),
        ("urgent", "parked"),
        ("invoke", "parked"),
        ("auto", "polling"),
    ] {
        let system = format!("upcall-{way}");
        assert!(
            of("get", &system, mode) && !of("put-16", &system, mode),
            "{system}: {said}{errors}"
        );
    }
    for peer in ["redis", "memcached"] {
        let measured = of("get", peer, "parked") && of("put-16", peer, "parked");
        let missing = errors.lines().any(|line| {
            line.contains(peer) && line.contains("no part") && line.contains("apt-get install")
        });
        assert!(measured != missing, "{peer}: {said}{errors}");
    }
    let (done, said, errors) = calls("cache", &["--peers", "none", "--case", "got"]);
    assert!(
        !done && said.is_empty() && errors.contains("no case `got`") && errors.contains("put-16"),
        "{errors}"
    );
}

#[test]
fn calls_between_hosts_are_measured_or_said_to_need_root() {
    let wish = ["--quick", "--peers", "none", "--case", "null", "--case", "connect", "--json", "-"];
    let (done, said, errors) = calls("hosts", &wish);
    assert!(done, "{errors}");
    if let Some(why) = errors.lines().find(|line| line.contains("nothing was measured")) {
        return println!("skipped: calls between hosts: {why}");
    }
    let records = records("hosts", &said);
    for (case, system) in ["null", "connect"]
        .into_iter()
        .flat_map(|case| ["limit", "upcall"].map(|system| (case, system)))
    {
        let name = [case, system, "two-cores", "parked"].map(String::from);
        let record = records.get(&name).unwrap_or_else(|| panic!("{name:?}: {said}{errors}"));
        for side in ["client_cpu_ns", "server_cpu_ns"] {
            assert!(record[side].as_f64() > Some(0.0), "{side}: {record}");
        }
    }
    assert_eq!(records.len(), 4, "{said}");
}

#[test]
#[ignore = "long: builds the peers for hosts, in Rust and in C"]
fn long_messages_between_hosts_are_measured_beside_those_of_peers() {
    let cases = ["message-round", "message-8", "message-64k", "idle"];
    let wish = ["--quick", "--peers", "nats,openmpi", "--system", "nats", "--system", "openmpi"];
    let wish = wish.into_iter().chain(cases.into_iter().flat_map(|case| ["--case", case]));
    let (done, said, errors) = calls("hosts", &wish.chain(["--json", "-"]).collect::<Vec<_>>());
    assert!(done, "{errors}");
    if let Some(why) = errors.lines().find(|line| line.contains("nothing was measured")) {
        return println!("skipped: messages between hosts: {why}");
    }
    let records = records("hosts", &said);
    for (peer, mode) in [("nats", "parked"), ("openmpi", "polling")] {
        let missing = errors.lines().any(|line| {
            line.contains(peer) && line.contains("no part") && line.contains("apt-get install")
        });
        for case in cases {
            let name = [case, peer, "two-cores", mode].map(String::from);
            assert!(records.contains_key(&name) != missing, "{name:?}: {said}{errors}");
        }
    }
}

/// Returns the arguments of a short run of PVM's tasks on two hosts. PVM takes part where it is.
fn wish_for_tasks() -> Vec<&'static str> {
    let peers = if Path::new("/usr/include/pvm3.h").exists() { "pvm,pvm-direct" } else { "none" };
    let cases = ["pvm-one-way-0", "pvm-ring-24", "move-100k"];
    let cases = cases.into_iter().flat_map(|case| ["--case", case]);
    ["--quick", "--peers", peers, "--json", "-"].into_iter().chain(cases).collect()
}

#[test]
fn pvm_tasks_on_two_hosts_are_measured_or_said_to_need_root() {
    let wish = wish_for_tasks();
    let (done, said, errors) = calls("hosts", &wish);
    assert!(done, "{errors}");
    if let Some(why) = errors.lines().find(|line| line.contains("nothing was measured")) {
        return println!("skipped: tasks on two hosts: {why}");
    }
    let records = records("hosts", &said);
    let mut wanted = vec![("move-100k", "upcall")];
    for case in ["pvm-one-way-0", "pvm-ring-24"] {
        let systems = ["upcall", "pvm", "pvm-direct"];
        let there = if wish.contains(&"none") { &systems[..1] } else { &systems };
        wanted.extend(there.iter().map(|system| (case, *system)));
    }
    for (case, system) in &wanted {
        let name = [case, system, "two-cores", "parked"].map(|part| (*part).to_string());
        assert!(records.contains_key(&name), "{name:?}: {said}{errors}");
    }
    assert_eq!(records.len(), wanted.len(), "{said}");
    // By a clock that stands still while the task moves, the pause would be a poll.
    let moved = records.iter().find(|(name, _)| name[0] == "move-100k").expect("the move").1;
    assert!(moved["p50_ns"].as_f64() > Some(10e3), "{moved}");
}

/// A killed run leaves no process, and the next one removes its folder and its hosts.
#[test]
fn a_killed_run_of_tasks_on_two_hosts_leaves_nothing() {
    let scratch = TempDir::new().expect("a folder");
    let hosts = |run: u32| {
        let prefix = format!("upcall-bench-{run}-");
        let all = names_in(Path::new("/run/netns"));
        all.iter().filter(|name| name.starts_with(&prefix)).count()
    };
    for part in ["pvm-member", "pvm_bench\0ring"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_upcall-bench"));
        command.arg("hosts").args(wish_for_tasks()).env("TMPDIR", scratch.path());
        let mut run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a run");
        // PVM's daemons, if they take part, are there before the ring begins.
        let is_there = |process: &String| {
            let words = fs::read(Path::new("/proc").join(process).join("cmdline"));
            String::from_utf8_lossy(&words.unwrap_or_default()).contains(part)
        };
        while !processes_with(scratch.path()).iter().any(is_there) {
            if run.try_wait().expect("its state").is_some() {
                return println!("skipped: tasks on two hosts, which need root");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        run.kill().expect("a signal");
        run.wait().expect("its end");
        let begun = Instant::now();
        while !processes_with(scratch.path()).is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(60), "processes are left");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(hosts(run.id()), 2, "the killed run has no hosts");
        let (done, said, errors) = suite("hosts", &wish_for_tasks()[..7], scratch.path());
        assert!(done, "{said}{errors}");
        let left = Command::new("find").arg(scratch.path()).args(["-mindepth", "1"]).output();
        let left = String::from_utf8_lossy(&left.expect("what is left").stdout).into_owned();
        assert_eq!(left, "", "files that are left: {said}{errors}");
        assert_eq!(hosts(run.id()), 0, "hosts that are left");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "steps of one run, each of which needs those before")]
fn pvm_programs_are_measured() {
    let place = TempDir::new().expect("a folder");
    let [scratch, plots, file] =
        ["scratch", "plots", "records.json"].map(|name| place.path().join(name));
    fs::create_dir(&scratch).expect("a folder");
    let cases = [
        "procedure-call",
        "switch-process",
        "switch-1",
        "switch-16",
        "call-one-way",
        "one-way-0",
        "one-way-1000",
        "ring-2",
        "ring-8",
        "start-1",
        "checkpoint-10",
        "restart-10",
        "laplace-paper-64",
        "balance-ideal",
        "balance-on",
        "processor-away",
    ];
    let mut wish: Vec<&str> = cases.iter().flat_map(|case| ["--case", case]).collect();
    wish.extend(["--case", "laplace-1", "--case", "idle-24", "--quick", "--peers", "none"]);
    let [into, json] = [&plots, &file].map(|path| path.to_str().expect("a path in Unicode"));
    let (done, said, errors) =
        suite("pvm", &[&wish[..], &["--plot", into, "--json", json]].concat(), &scratch);
    assert!(done && names_in(&scratch).is_empty(), "{said}{errors}");
    let text = fs::read_to_string(&file).expect("the records");
    // Waiting tasks take almost no time, which is not the figure of an operation.
    let (idle, others): (Vec<&str>, Vec<&str>) =
        text.lines().partition(|line| line.contains("\"idle-24\""));
    let records = records("pvm", &others.join("").replace(",]", "]"));
    let two = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
    let of = |case: &str, system: &str, placement: &str| {
        records.keys().any(|[own, who, place, _]| {
            (own.as_str(), who.as_str(), place.as_str()) == (case, system, placement)
        })
    };
    for case in [
        "switch-1",
        "switch-16",
        "one-way-0",
        "one-way-1000",
        "ring-2",
        "ring-8",
        "start-1",
        "laplace-1",
        "checkpoint-10",
        "restart-10",
        "laplace-paper-64",
    ] {
        assert!(of(case, "upcall", "one-core"), "{case}: {said}{errors}");
    }
    for case in ["checkpoint-10", "restart-10", "balance-ideal", "balance-on", "processor-away"] {
        assert_eq!(of(case, "upcall-2", "two-cores"), two, "{case}: {said}{errors}");
    }
    assert!(
        of("switch-process", "limit", "one-core") && of("procedure-call", "limit", "one-core"),
        "{errors}"
    );
    assert_eq!(
        of("call-one-way", "upcall", "two-cores") && of("one-way-0", "upcall-2", "two-cores"),
        two,
        "{errors}"
    );
    assert_eq!(of("ring-8", "upcall-2-interleave", "two-cores"), two, "{errors}");
    let idle: Value = serde_json::from_str(idle[0].trim_end_matches(',')).expect("a record");
    assert!(idle["system"] == "upcall" && idle["bytes_each"].as_f64() > Some(10e3), "{idle}");
    assert!(
        said.contains("Figures 5 and 6")
            && said.contains("what is aimed at")
            && said.contains("1994: UPVM"),
        "{said}"
    );
    assert_eq!(
        names_in(&plots),
        ["pvm-switch.svg", "pvm-one-way.svg", "pvm-ring.svg"].map(String::from).into()
    );

    let told = |arguments: &[&str]| {
        let (done, said, errors) = suite("pvm", arguments, &scratch);
        assert!(!done && said.is_empty(), "{said}{errors}");
        errors
    };
    assert!(told(&["--case", "ring-3"]).contains("no case `ring-3`"));
    assert!(told(&["--peers", "lam"]).contains("no peer `lam`"));
}

#[test]
#[ignore = "long: PVM, Open MPI and MPICH, which it installs where it may, and AMPI"]
fn long_peers_of_pvm_are_measured_or_said_to_be_missing() {
    let scratch = TempDir::new().expect("a folder");
    let wish = [
        "--quick",
        "--case",
        "one-way-1000",
        "--case",
        "ring-2",
        "--case",
        "idle-24",
        "--json",
        "-",
    ];
    let (done, said, errors) = suite("pvm", &wish, scratch.path());
    assert!(done && names_in(scratch.path()).is_empty(), "{said}{errors}");
    for peer in ["pvm", "pvm-direct", "openmpi", "openmpi-yield", "mpich", "ampi", "ampi-2"] {
        let measured = said.contains(&format!("\"one-way-1000\",\"system\":\"{peer}\""));
        let advice = |line: &str| line.contains("apt-get install") || line.contains("ampi.sh");
        let names = |line: &str| {
            line.split_whitespace().any(|word| word.trim_end_matches([',', ':']) == peer)
        };
        let missing = errors.lines().any(|line| names(line) && advice(line));
        assert!(measured != missing, "{peer}: {said}{errors}");
    }
}

#[test]
fn the_parts_of_a_call_are_measured() {
    let names = [
        "procedure-call",
        "send-client",
        "receive-client",
        "dispatch-client",
        "poll-server",
        "dispatch-server",
    ];
    let wish: Vec<&str> =
        names.iter().flat_map(|name| ["--case", name]).chain(["--quick"]).collect();
    let (done, said, errors) = urpc(&[&wish[..], &["--json", "-"]].concat());
    assert!(done, "{errors}");
    let found: BTreeSet<String> =
        records("urpc", &said).into_keys().map(|[case, ..]| case).collect();
    assert_eq!(found, names.map(String::from).into());
    let (done, said, errors) = urpc(&wish);
    assert!(
        done && said.contains("dispatch")
            && said.contains("A procedure call:")
            && !said.contains("T \\"),
        "{said}{errors}"
    );
}

#[test]
fn figures_are_drawn() {
    let place = TempDir::new().expect("a folder");
    let folder = place.path().join("figures");
    let into = folder.to_str().expect("a path in Unicode");
    let (done, said, errors) = urpc(&[
        "--quick", "--config", "1,0", "--case", "null-t1", "--case", "null-t2", "--plot", into,
    ]);
    assert!(done && said.contains("latency to hand-off"), "{said}{errors}");
    let files = names_in(&folder);
    assert_eq!(
        files,
        ["urpc-latency.svg", "urpc-relative.svg", "urpc-throughput.svg"].map(String::from).into()
    );
    for file in files {
        let figure = fs::read_to_string(folder.join(&file)).expect("a figure");
        assert!(figure.starts_with("<svg") && figure.trim_end().ends_with("</svg>"), "{figure}");
        assert!(errors.contains(&file), "{errors}");
    }
    // Cases that are not measured are not drawn.
    let (done, _, errors) = urpc(&["--quick", "--case", "send-client", "--plot", into]);
    assert!(!done && errors.contains("nothing to plot"), "{errors}");
}

#[test]
fn wishes_for_calls_that_are_none_are_told() {
    let told = |arguments: &[&str]| {
        let (done, said, errors) = urpc(arguments);
        assert!(!done && said.is_empty(), "{said}");
        errors
    };
    let case = told(&["--case", "null-t5"]);
    assert!(
        case.contains("no case `null-t5`")
            && case.contains("null-t6")
            && case.contains("dispatch-server"),
        "{case}"
    );
    let config = told(&["--config", "9,9"]);
    assert!(
        config.contains("no configuration `9,9`") && config.contains("1,0 1,1 1,2"),
        "{config}"
    );
    let nothing = told(&["--config", "1,1", "--case", "null-t32"]);
    assert!(nothing.contains("nothing to measure"), "{nothing}");
}
