//! Tests of the harness with real children: this program is its own server and client, so it has
//! its own `main`.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use upcall_bench::case::{Mode, Placement};
use upcall_bench::child;
use upcall_bench::place;
use upcall_bench::record::Record;
use upcall_bench::rpc::{self, Rpc};
use upcall_bench::suite::{self, Only, Options, Peer};
use upcall_bench::threads::{self, Threads};

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    if args.first().is_some_and(|first| first == "bench-child") {
        check_unpinned(&args);
        return child::child_main(args.into_iter().skip(1), &rpc::SYSTEMS);
    }
    if args.first().is_some_and(|first| first == "bench-threads") {
        return threads::child::child_main(args.into_iter().skip(1), &threads::SYSTEMS);
    }
    let tests: [(&str, fn()); 7] = [
        ("limits_and_the_socket_are_measured", limits_and_the_socket_are_measured),
        ("a_child_that_fails_is_reported", a_child_that_fails_is_reported),
        ("a_server_ends_with_its_input", a_server_ends_with_its_input),
        ("what_a_killed_pair_leaves_is_found", what_a_killed_pair_leaves_is_found),
        ("remains_of_a_killed_run_are_removed", remains_of_a_killed_run_are_removed),
        ("kernel_threads_are_measured", kernel_threads_are_measured),
        ("threads_that_cannot_be_had_are_told", threads_that_cannot_be_had_are_told),
    ];
    let listing = args.iter().any(|arg| arg == "--list");
    let filters: Vec<_> =
        args.iter().filter_map(|arg| arg.to_str()).filter(|arg| !arg.starts_with('-')).collect();
    let mut passed = 0;
    for (name, test) in tests {
        if listing {
            println!("{name}: test");
        } else if filters.is_empty() || filters.iter().any(|filter| name.contains(filter)) {
            test(); // a panic ends the program and names the location
            println!("test {name} ... ok");
            passed += 1;
        }
    }
    if !listing {
        println!(
            "\ntest result: ok. {passed} passed; 0 failed; 0 ignored; 0 measured; {} filtered out",
            tests.len() - passed
        );
    }
    ExitCode::SUCCESS
}

/// Checks that an unpinned child may use all processors that this process may use.
fn check_unpinned(args: &[OsString]) {
    let words: Vec<_> = args.iter().filter_map(|arg| arg.to_str()).collect();
    let after = |option| words.iter().skip_while(|word| **word != option).nth(1).copied();
    if words[1] == "unix-socket" && after("--placement") == Some("unpinned") {
        let all: Vec<_> = place::allowed().unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(after("--cpus"), Some(all.join(",").as_str()), "{words:?}");
    }
}

fn own_exe() -> PathBuf {
    std::env::current_exe().unwrap()
}

fn options<P: Peer>(peer: &str, systems: &[&str], cases: &[&str]) -> Options<P> {
    let text = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    Options {
        peers: peer.parse().unwrap(),
        quick: true,
        only: Only { systems: text(systems), cases: text(cases), ..Only::default() },
        ..Options::of(own_exe())
    }
}

fn call_options(systems: &[&str], cases: &[&str]) -> Options<rpc::Contender> {
    options("unix-socket", systems, cases)
}

fn thread_options(systems: &[&str], cases: &[&str]) -> Options<threads::Contender> {
    options("pthread", systems, cases)
}

fn own_scratch() -> PathBuf {
    std::env::temp_dir().join(format!("upcall-bench-{}", std::process::id()))
}

fn limits_and_the_socket_are_measured() {
    let json = std::env::temp_dir().join(format!("upcall-bench-test-{}.json", std::process::id()));
    let cases = ["null", "add", "biginout", "in-64k", "null-t1", "null-t8"];
    let systems =
        ["limit", "limit-futex", "limit-eventfd", "limit-pipe", "limit-socket", "unix-socket"];
    let options = Options { json: Some(json.clone()), ..call_options(&systems, &cases) };
    let report = suite::run(&Rpc::default(), &options).unwrap();
    assert!(report.failures.is_empty(), "{:?}", report.failures);

    let written: Vec<Record> = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    fs::remove_file(&json).unwrap();
    assert_eq!(written, report.records);
    let of = |case: &str, system: &str, placement, mode| {
        let found: Vec<_> = written
            .iter()
            .filter(|r| {
                (r.case.as_str(), r.system.as_str(), r.placement, r.mode)
                    == (case, system, placement, mode)
            })
            .collect();
        assert!(found.len() < 2, "{case} of {system} is there twice");
        found.first().copied()
    };
    let two = std::thread::available_parallelism().is_ok_and(|n| n.get() > 1);
    for (placement, there) in [(Placement::TwoCores, two), (Placement::OneCore, true)] {
        for mode in [Mode::Polling, Mode::Parked] {
            for case in cases {
                let several = case == "null-t8";
                let limit = of(case, "limit", placement, mode);
                assert_eq!(
                    limit.is_some(),
                    there && (mode == Mode::Polling || !several),
                    "{case}, {placement}, {mode}"
                );
                let socket = of(case, "unix-socket", placement, mode);
                assert_eq!(
                    socket.is_some(),
                    there && mode == Mode::Parked,
                    "{case}, {placement}, {mode}"
                );
            }
        }
    }
    // With these, `check_unpinned` has run in their children.
    assert!(of("null", "unix-socket", Placement::Unpinned, Mode::Parked).is_some());
    for record in &written {
        assert!(
            record.p50_ns > 0.0 && record.p50_ns <= record.p99_ns && record.samples > 0,
            "{record:?}"
        );
        assert!(record.mean_ns > 0.0 && record.per_s > 0.0, "{record:?}");
        assert_eq!(record.line_ns.is_some(), two, "{record:?}");
    }
    assert!(!own_scratch().exists());
}

fn a_child_that_fails_is_reported() {
    let mut options = call_options(&["upcall", "limit"], &["null"]);
    let suite = Rpc { modes: vec![Mode::Polling] };
    options.only.placements = vec![Placement::OneCore];
    let report = suite::run(&suite, &options).unwrap();
    assert_eq!(report.failures.len(), 1, "{:?}", report.failures);
    let failure = &report.failures[0];
    assert!(
        failure.contains("upcall server") && failure.contains("no system `upcall`"),
        "{failure}"
    );
    assert!(
        report.records.iter().all(|record| record.system == "limit") && !report.records.is_empty()
    );

    options.exe = PathBuf::from("/nowhere/upcall");
    let report = suite::run(&suite, &options).unwrap();
    assert!(report.failures.iter().all(|failure| failure.contains("cannot start /nowhere/upcall")));
    assert!(!own_scratch().exists());
}

fn a_server_ends_with_its_input() {
    let dir = std::env::temp_dir().join(format!("upcall-bench-test-{}", std::process::id()));
    fs::create_dir(&dir).unwrap();
    let mut server = Command::new(own_exe())
        .args(["bench-child", "unix-socket", "server", "--cpus", "0", "--mode", "parked", "--dir"])
        .arg(&dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 6];
    server.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    assert_eq!(&said, b"ready\n");
    drop(server.stdin.take());
    let begun = Instant::now();
    while server.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the server goes on without its input");
        std::thread::sleep(Duration::from_millis(5));
    }
    fs::remove_dir_all(&dir).unwrap();
}

fn what_a_killed_pair_leaves_is_found() {
    let options = call_options(&["unix-socket", "limit"], &["properties"]);
    let report = suite::run(&Rpc::default(), &options).unwrap();
    assert!(report.failures.is_empty() && report.records.is_empty(), "{report:?}");
    let [properties] = &report.properties[..] else { panic!("{:?}", report.properties) };
    // Its socket.
    assert_eq!((properties.left.files, properties.left.shared), (1, (0, 0)), "{properties:?}");
    let [(Mode::Parked, percent)] = properties.idle[..] else { panic!("{properties:?}") };
    assert!((0.0..50.0).contains(&percent), "{properties:?}");
    assert!(!own_scratch().exists());
}

fn remains_of_a_killed_run_are_removed() {
    // The id of a process that has ended, which is not reused for a while.
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let remains = std::env::temp_dir().join(format!("upcall-bench-{}", gone.id()));
    let shared = Path::new("/dev/shm").join(format!("upcall-bench-{}-1-x", gone.id()));
    fs::create_dir_all(remains.join("1")).unwrap();
    fs::write(&shared, "x").unwrap();
    suite::run(&Rpc::default(), &call_options(&["limit"], &["null"])).unwrap();
    assert!(!remains.exists() && !shared.exists());
}

fn kernel_threads_are_measured() {
    let json = std::env::temp_dir().join(format!("upcall-bench-test-{}.json", std::process::id()));
    let cases =
        ["procedure-call", "fork", "fork-join", "yield", "lock-unlock", "ping-pong", "alive-10"];
    let options =
        Options { json: Some(json.clone()), ..thread_options(&["limit", "pthread"], &cases) };
    let report = suite::run(&Threads::default(), &options).unwrap();
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    let written: Vec<Record> = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    fs::remove_file(&json).unwrap();
    assert_eq!(written, report.records);
    for case in cases {
        let has = |system: &str| {
            written
                .iter()
                .filter(|r| (r.case.as_str(), r.system.as_str()) == (case, system))
                .count()
        };
        let bare = ["procedure-call", "lock-unlock"].contains(&case);
        assert_eq!((has("pthread"), has("limit")), (1, usize::from(bare)), "{case}");
    }
    for record in &written {
        assert_eq!(
            (record.suite.as_str(), record.placement, record.mode),
            ("threads", Placement::OneCore, Mode::Polling)
        );
        let alive = record.case == "alive-10";
        let samples = if alive { 1 } else { 10 };
        assert!(
            record.p50_ns > 0.0 && record.p50_ns <= record.p99_ns && record.samples >= samples,
            "{record:?}"
        );
        let memory =
            [record.peak_kib.is_some(), record.bytes_each.is_some(), record.first_ns.is_some()];
        assert_eq!(memory, [alive; 3], "{record:?}");
    }
    assert!(!own_scratch().exists());
}

fn threads_that_cannot_be_had_are_told() {
    // More threads than any machine of today permits, and a system that this program does not have.
    let report =
        suite::run(&Threads::default(), &thread_options(&["upcall", "pthread"], &["alive-1m"]))
            .unwrap();
    assert!(report.records.is_empty(), "{:?}", report.records);
    assert!(
        report.notes.iter().any(|note| note.contains("alive-1m") && note.contains("not")),
        "{:?}",
        report.notes
    );
    // If there is not enough memory for so many threads, no system is asked.
    assert!(
        report.failures.iter().all(|failure| failure.contains("no system `upcall`")),
        "{:?}",
        report.failures
    );

    let options = Options { exe: "/nowhere/upcall".into(), ..thread_options(&[], &["yield"]) };
    let report = suite::run(&Threads::default(), &options).unwrap();
    assert!(
        report.failures.iter().all(|failure| failure.contains("cannot start /nowhere/upcall")),
        "{:?}",
        report.failures
    );
    assert!(!own_scratch().exists());
}
