//! On SIGQUIT a process that asked for it dumps all its threads, and runs on.
#![cfg(not(loom))]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use upcall_thread as thread;
use upcall_thread::{Builder, Mutex, Processors, Semaphore};

const CHILD: &str = "UPCALL_TEST_DUMP";

#[inline(never)]
fn a_function_of_the_sleeper() {
    thread::sleep(std::time::Duration::from_secs(600));
    std::hint::black_box(());
}

#[inline(never)]
fn a_function_of_the_locker(lock: &Mutex<()>) {
    drop(lock.lock());
    std::hint::black_box(());
}

/// Runs threads in every state, until standard input ends.
fn live(processors: usize) {
    thread::dump_on_quit().unwrap();
    Processors::new()
        .count(processors)
        .run(|| {
            static LOCK: Mutex<()> = Mutex::new(());
            static GATE: Semaphore = Semaphore::new(0);
            let held = LOCK.lock();
            let named = |name: &str, body: fn()| Builder::new().name(name).spawn(body).unwrap();
            drop(named("sleeper", a_function_of_the_sleeper));
            drop(named("locker", || a_function_of_the_locker(&LOCK)));
            drop(named("parker", thread::park));
            let waiting = named("waiter", || GATE.acquire().forget());
            drop(Builder::new().name("joiner").spawn(move || waiting.join().unwrap()).unwrap());
            drop(named("busy", || {
                loop {
                    thread::yield_now();
                }
            }));
            drop(Builder::new().name("small").stack_size(1).spawn(thread::park).unwrap());
            thread::blocking(|| {
                println!("ready");
                std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
            });
            drop(held);
            println!("went on");
        })
        .unwrap();
}

fn quit(child: &Child) {
    let pid = libc::pid_t::try_from(child.id()).unwrap();
    // SAFETY: no memory operands.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGQUIT) }, 0);
}

/// Runs `test` in a process of its own and sends it SIGQUIT until all threads wait.
///
/// Returns what it wrote to standard error, then what it wrote to standard output.
fn dumped(test: &str, are_there: impl Fn(&str) -> bool) -> (String, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while line.trim() != "ready" {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0, "the child ended early");
    }
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let begun = std::time::Instant::now();
    // A dump comes in one write, and the busy thread runs for ever. So the next dump, after the
    // next signal, shows where this one ends.
    let (mut said, mut line) = (String::new(), String::new());
    quit(&child);
    while !line.contains("user-level threads") {
        line.clear();
        assert!(err.read_line(&mut line).unwrap() > 0, "{said}");
    }
    loop {
        quit(&child);
        said.push_str(&line);
        line.clear();
        while !line.contains("user-level threads") {
            said.push_str(&line);
            line.clear();
            assert!(err.read_line(&mut line).unwrap() > 0, "{said}");
        }
        if are_there(&said) {
            break;
        }
        assert!(
            begun.elapsed() < std::time::Duration::from_secs(60),
            "the threads do not all get to wait:\n{said}"
        );
        said.clear();
    }
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"x").unwrap();
    drop(input);
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(child.wait().unwrap().success());
    (said, rest)
}

#[test]
fn a_dump_tells_of_every_thread() {
    if std::env::var_os(CHILD).is_some() {
        return live(1);
    }
    let states = [
        ("sleeper", "waits for a time"),
        ("locker", "waits for the mutex at 0x"),
        ("parker", "waits for an unpark"),
        ("waiter", "waits for the read-write lock or semaphore at 0x"),
        ("joiner", "waits for the end of thread "),
        ("small", "waits for an unpark"),
    ];
    let of = |said: &str, name: &str| {
        said.lines().find(|line| line.contains(&format!("'{name}'"))).map(String::from)
    };
    let are_there = |said: &str| {
        let waits =
            |(name, state): &(&str, &str)| of(said, name).is_some_and(|line| line.contains(state));
        states.iter().all(waits) && said.contains("waits for blocking work done aside")
    };
    let (said, rest) = dumped("a_dump_tells_of_every_thread", are_there);
    assert!(rest.contains("went on"), "{rest}");
    assert!(said.contains("'busy' is ready") || said.contains("'busy' runs"), "{said}");
    // The threads' own frames and their callers are shown; the scheduler's are not.
    for function in ["a_function_of_the_sleeper", "a_function_of_the_locker"] {
        assert!(said.contains(function), "no {function}:\n{said}");
    }
    assert!(
        !["block", "dispatch", "dump", "switch", "vp"]
            .iter()
            .any(|module| said.contains(&format!("crates/thread/src/{module}.rs"))),
        "{said}"
    );
}

#[test]
fn a_dump_comes_from_every_processor() {
    if std::env::var_os(CHILD).is_some() {
        return live(2);
    }
    let (said, rest) = dumped("a_dump_comes_from_every_processor", |_| true);
    assert!(rest.contains("went on"), "{rest}");
    assert!(
        said.contains("virtual processor 0")
            && said.contains("virtual processor 1")
            && !said.contains("no answer"),
        "{said}"
    );
}
