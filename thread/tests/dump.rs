//! On SIGQUIT a process that asked for it tells of all its threads, and goes on.
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

/// Threads in every state, until standard input ends.
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

/// Starts `test` in a process of its own, sends SIGQUIT when it is ready, and returns what it said on standard error, and then on standard output.
fn dumped(test: &str) -> (String, String) {
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
    // A little for the threads to come to where they wait.
    std::thread::sleep(std::time::Duration::from_millis(50));
    quit(&child);
    let mut said = String::new();
    let mut err = BufReader::new(child.stderr.take().unwrap());
    // All of it comes in one write, and the busy thread goes on for ever, so the end is told by what comes last: a second signal.
    while !said.contains("user-level threads") {
        assert!(err.read_line(&mut said).unwrap() > 0, "{said}");
    }
    quit(&child);
    let mut second = String::new();
    while !second.contains("user-level threads") {
        second.clear();
        assert!(err.read_line(&mut second).unwrap() > 0, "{said}");
        said.push_str(&second);
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
    let (said, rest) = dumped("a_dump_tells_of_every_thread");
    assert!(rest.contains("went on"), "{rest}");
    for (name, state) in [
        ("sleeper", "waits for a time"),
        ("locker", "waits for the mutex at 0x"),
        ("parker", "waits for an unpark"),
        ("waiter", "waits for the read-write lock or semaphore at 0x"),
        ("joiner", "waits for the end of thread "),
        ("small", "waits for an unpark"),
    ] {
        let line = said.lines().find(|line| line.contains(&format!("'{name}'"))).unwrap_or_else(|| panic!("no {name}:\n{said}"));
        assert!(line.contains(state), "{line}");
    }
    assert!(said.contains("'busy' is ready") || said.contains("'busy' runs"), "{said}");
    assert!(said.contains("waits for blocking work done aside"), "{said}");
    // Frames of the threads' own, and where they were called from; not the scheduler's.
    for function in ["a_function_of_the_sleeper", "a_function_of_the_locker"] {
        assert!(said.contains(function), "no {function}:\n{said}");
    }
    assert!(!said.contains("thread/src/vp.rs") && !said.contains("thread/src/dump.rs"), "{said}");
}

#[test]
fn a_dump_comes_from_every_processor() {
    if std::env::var_os(CHILD).is_some() {
        return live(2);
    }
    let (said, rest) = dumped("a_dump_comes_from_every_processor");
    assert!(rest.contains("went on"), "{rest}");
    assert!(
        said.contains("virtual processor 0") && said.contains("virtual processor 1") && !said.contains("no answer"),
        "{said}"
    );
}
