//! `upcall threads` beside programs that wait: the command shows each thread, and the programs go
//! on unharmed.
//!
//! The programs are this file itself, run again as [`program`], with
//! `crates/thread/examples/waiting.rs`.

use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[path = "../../thread/examples/waiting.rs"]
#[expect(dead_code, reason = "its `main`")]
mod waiting;

/// The variable that makes a run of this file one of the programs.
const PROGRAM: &str = "UPCALL_TEST_PROGRAM";

/// Not a test by itself.
#[test]
fn program() {
    match std::env::var(PROGRAM).as_deref() {
        Ok("idle") => idle(),
        Ok("switching") => switching(),
        Ok(more) => waiting::show(more.parse().expect("a number of threads")),
        Err(_) => {}
    }
}

/// Runs two processors without work.
fn idle() {
    let run = upcall_thread::Processors::new().count(2).run(|| {
        let first = upcall_thread::current();
        let reads = move || {
            std::thread::sleep(Duration::from_millis(100));
            println!("ready");
            let _ = std::io::stdin().read_line(&mut String::new());
            first.unpark();
        };
        std::thread::Builder::new().name("reader".into()).spawn(reads).expect("a thread");
        upcall_thread::park();
    });
    run.expect("two processors");
    println!("0 threads have ended");
}

/// Runs threads that do nothing but yield to each other.
fn switching() {
    static STOP: AtomicBool = AtomicBool::new(false);
    fn gives_way() {
        while !STOP.load(Ordering::Relaxed) {
            upcall_thread::yield_now();
        }
    }
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_millis(100));
        println!("ready");
        let _ = std::io::stdin().read_line(&mut String::new());
        STOP.store(true, Ordering::Relaxed);
    });
    let run = upcall_thread::Processors::new().count(2).run(|| {
        let threads: Vec<_> = (0..100).map(|_| upcall_thread::spawn(gives_way)).collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
    run.expect("two processors");
    println!("100 threads have ended");
}

/// A program, at the point where its threads wait. Killed on drop.
struct Program {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Program {
    fn start(what: &str) -> Self {
        Self::start_file(&std::env::current_exe().expect("its own path"), what)
    }

    fn start_file(file: &Path, what: &str) -> Self {
        let mut command = Command::new(file);
        command.args(["--exact", "program", "--nocapture"]).env(PROGRAM, what);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = loop {
            match command.spawn() {
                // A child of another test may have the new file open for a moment.
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                    std::thread::yield_now()
                }
                started => break started.expect("the program starts"),
            }
        };
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut program = Self { child, out };
        program.says("ready");
        program
    }

    /// Reads up to the first line that contains `what`.
    fn says(&mut self, what: &str) {
        let mut line = String::new();
        while !line.contains(what) {
            line.clear();
            assert_ne!(
                self.out.read_line(&mut line).expect("text"),
                0,
                "the program ended without saying {what:?}"
            );
        }
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Ends the program, which succeeds only if it was not harmed.
    fn ends_well(mut self, threads: usize) {
        self.child.stdin.take().expect("a pipe").write_all(b"\n").expect("it reads");
        self.says(&format!("{threads} threads have ended"));
        assert!(self.child.wait().expect("it was started here").success());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_upcall"));
    command.arg("threads").args(arguments);
    command
}

/// Runs the command. Returns whether it succeeded, its output, and its errors.
fn threads(arguments: &[&str]) -> (bool, String, String) {
    let Output { status, stdout, stderr } =
        command(arguments).output().expect("the command starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.success(), text(stdout), text(stderr))
}

/// Runs the command, which has to succeed. Returns its output, or `None` if this machine permits no
/// tracing, so that nothing can be tested.
fn listed(arguments: &[&str]) -> Option<String> {
    let (done, said, error) = threads(arguments);
    if ["read the memory of", "stop the kernel threads of"]
        .iter()
        .any(|tried| error.contains(&format!("not permitted to {tried}")))
    {
        println!("nothing tested: {error}");
        return None;
    }
    assert!(done, "{error}");
    Some(said)
}

fn json(arguments: &[&str]) -> Option<Value> {
    let said = listed(&[arguments, &["--json"]].concat())?;
    Some(serde_json::from_str(&said).expect("JSON"))
}

fn by_name(whole: &Value) -> BTreeMap<&str, &Value> {
    let threads = whole["threads"].as_array().expect("a list");
    // Kernel threads that do not wait through Upcall have the number 0.
    let known = threads.iter().filter(|thread| thread["number"] != 0);
    known.filter_map(|thread| Some((thread["name"].as_str()?, thread))).collect()
}

fn functions(thread: &Value) -> Vec<&str> {
    let calls = thread["backtrace"].as_array().expect("a list");
    calls.iter().map(|call| call["function"].as_str().unwrap_or("?")).collect()
}

#[test]
#[expect(clippy::too_many_lines, reason = "one entry for each state")]
fn every_state_and_every_wait() {
    let program = Program::start("0");
    let Some(whole) = json(&[&program.pid()]) else { return };
    let threads = by_name(&whole);
    // Name, state, kind of wait, the call that waits, and the program's own function.
    for (name, state, kind, waits_in, function) in [
        ("mutex", "waiting", "mutex", "::lock", "waits_for_mutex"),
        ("condition", "waiting", "condition", "::wait", "waits_for_condition"),
        ("channel", "waiting", "condition", "::recv", "waits_for_channel"),
        ("permit", "waiting", "shares", "::acquire", "waits_for_permit"),
        ("join", "waiting", "thread", "::join", "waits_for_thread"),
        ("work", "waiting", "blocking-work", "::blocking", "waits_for_work"),
        ("asleep", "waiting", "time", "::sleep", "sleeps"),
        ("parked", "waiting", "unpark", "::park", "parks"),
        ("ready", "ready", "", "::yield_now", "gives_way"),
        ("computing", "running", "", "", "computes"),
        ("not started", "not-started", "", "", ""),
        ("ended", "ended", "", "", ""),
        ("kernel", "waiting", "mutex", "::lock", "waits_for_mutex"),
    ] {
        let thread = threads.get(name).unwrap_or_else(|| panic!("{name} is not listed: {whole}"));
        assert_eq!(thread["state"], state, "{thread}");
        assert_eq!(thread["waits_for"]["kind"].as_str().unwrap_or(""), kind, "{thread}");
        assert_eq!(thread["kind"], if name == "kernel" { "kernel" } else { "user" }, "{thread}");
        let functions = functions(thread);
        if !function.is_empty() {
            assert!(functions.iter().any(|known| known.contains(function)), "{thread}");
            assert_eq!(thread["cut"], Value::Null, "{thread}");
        }
        if !waits_in.is_empty() {
            // `<upcall_thread::…>::lock` in the newer mangling of symbols.
            let first = functions[0].trim_start_matches('<');
            assert!(first.starts_with("upcall_thread::") && first.contains(waits_in), "{thread}");
        }
        assert!(
            functions
                .iter()
                .all(|known| !known.contains("trampoline") && !known.contains("run_packet")),
            "{thread}"
        );
    }
    assert_eq!(threads["join"]["waits_for"]["thread"], threads["parked"]["number"]);
    assert_eq!(threads["mutex"]["waits_for"]["object"], threads["kernel"]["waits_for"]["object"]);
    let calls = threads["parked"]["backtrace"].as_array().expect("a list");
    let own = calls
        .iter()
        .find(|call| call["function"].as_str().is_some_and(|name| name.contains("parks")))
        .expect("the function");
    assert!(
        own["file"].as_str().is_some_and(|file| file.ends_with("waiting.rs"))
            && own["line"].as_u64() > Some(0),
        "{own}"
    );
    assert_eq!(whole["processors"][0]["thread"], threads["computing"]["number"]);
    assert_eq!(
        (&whole["processors"][0]["idle"], &whole["notes"]),
        (&Value::Bool(false), &Value::Array(Vec::new()))
    );

    // The text for people, and with the scheduler's calls.
    let text = listed(&[&program.pid()]).expect("as before");
    for part in [
        "\"computing\" runs on processor 0",
        "\"asleep\" sleeps",
        "\"parked\" is parked",
        "waits for the end of thread",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    assert!(!text.contains('\u{1b}'), "colours only on a terminal: {text:?}");
    assert!(!text.contains("trampoline"), "{text}");
    assert!(listed(&["--all", &program.pid()]).expect("as before").contains("trampoline"));
    let without = json(&["--no-backtrace", &program.pid()]).expect("as before");
    for (name, thread) in by_name(&without) {
        assert_eq!(thread["state"], threads[name]["state"], "{thread}");
        assert_eq!(functions(thread), Vec::<&str>::new());
    }
    program.ends_well(10);
}

#[test]
fn processors_that_idle() {
    let program = Program::start("idle");
    let Some(whole) = json(&[&program.pid()]) else { return };
    let (processors, threads) =
        (&whole["processors"], whole["threads"].as_array().expect("a list"));
    assert_eq!(
        (processors[0]["idle"].as_bool(), processors[1]["idle"].as_bool()),
        (Some(true), Some(true)),
        "{whole}"
    );
    let on = |index: usize| {
        threads
            .iter()
            .find(|thread| thread["number"] == processors[index]["thread"])
            .expect("its thread")
    };
    assert_eq!(
        (&on(0)["state"], &on(0)["waits_for"]["kind"]),
        (&"waiting".into(), &"unpark".into()),
        "{whole}"
    );
    assert_eq!(on(1)["waits_for"]["kind"], "end-of-run", "{whole}");
    assert!(
        functions(on(0))[0].ends_with("::park")
            && functions(on(0)).iter().any(|name| name.contains("idle")),
        "{whole}"
    );
    let text = listed(&[&program.pid()]).expect("as before");
    assert!(text.contains("is parked; processor 0 idles on its stack"), "{text}");
    // A kernel thread that waits for something else has a backtrace as well.
    let reader = threads.iter().find(|thread| thread["name"] == "reader");
    let reader = reader.unwrap_or_else(|| panic!("no reader: {whole}"));
    assert_eq!(
        (&reader["number"], &reader["kind"], &reader["state"]),
        (&0.into(), &"kernel".into(), &"elsewhere".into()),
        "{whole}"
    );
    assert!(functions(reader).iter().any(|name| name.contains("idle")), "{reader}");
    assert!(functions(reader).iter().any(|name| name.contains("read_line")), "{reader}");
    let title = format!("kernel thread {} \"reader\"", reader["kernel_thread"]);
    assert!(text.contains("other kernel threads") && text.contains(&title), "{text}");
    program.ends_well(0);
}

/// The processors are mostly in the middle of a switch, where neither registers nor records are
/// complete.
#[test]
fn threads_that_switch() {
    let program = Program::start("switching");
    for _ in 0..10 {
        let Some(whole) = json(&[&program.pid()]) else { return };
        let threads = whole["threads"].as_array().expect("a list");
        let own = threads
            .iter()
            .filter(|thread| functions(thread).iter().any(|name| name.contains("gives_way")));
        assert_eq!(own.count(), 100, "{whole}");
        for thread in threads.iter().filter(|thread| thread["number"] != 0) {
            assert_eq!(thread["cut"], Value::Null, "{thread}");
            let state = thread["state"].as_str().expect("a state");
            let expected = if thread["name"].is_null() {
                ["ready", "running"]
            } else {
                ["waiting", "running"]
            };
            assert!(expected.contains(&state), "{thread}");
        }
    }
    program.ends_well(100);
}

#[test]
fn ten_thousand_threads() {
    let program = Program::start("10000");
    let start = Instant::now();
    let Some(text) = listed(&[&program.pid()]) else { return };
    let took = start.elapsed();
    println!("{took:?} for: {}", text.lines().next().unwrap_or(""));
    assert!(took < Duration::from_secs(60), "{took:?}");
    assert!(text.contains("10000 threads wait for the mutex at 0x"), "{text}");
    assert!(text.lines().count() < 150, "{text}");
    let whole = json(&[&program.pid()]).expect("as before");
    let waiting =
        |thread: &&Value| functions(thread).iter().any(|name| name.contains("waits_for_mutex"));
    assert_eq!(whole["threads"].as_array().expect("a list").iter().filter(waiting).count(), 10_002);
    program.ends_well(10_010);
}

/// The command is killed at every point of its work, also while the process is stopped.
#[test]
fn a_killed_command_does_no_harm() {
    let program = Program::start("1000");
    for after in 0..30 {
        let mut looking = command(&[&program.pid()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the command starts");
        std::thread::sleep(Duration::from_millis(after));
        let _ = looking.kill();
        looking.wait().expect("it was started here");
    }
    program.ends_well(1010);
}

#[test]
fn mistakes_are_told() {
    let other =
        Command::new("sleep").arg("100").stdin(Stdio::null()).spawn().expect("`sleep` is there");
    let out = BufReader::new(
        Command::new("true")
            .stdout(Stdio::piped())
            .spawn()
            .expect("`true` is there")
            .stdout
            .take()
            .expect("a pipe"),
    );
    let other = Program { child: other, out };
    for (pid, part) in [
        (other.pid().as_str(), "has no user-level threads of Upcall"),
        // A number above the kernel's maximum.
        ("99999999", "there is no process 99999999"),
        ("one", "no process exports \"one\""),
    ] {
        let (done, said, error) = threads(&[pid]);
        println!("    upcall threads {pid}: {}", error.trim());
        assert!(!done && said.is_empty() && error.contains(part), "{pid}: {said}{error}");
    }
}

/// A copy of this program has another version in its beacon, and another copy an impossible size.
#[test]
fn other_versions_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut bytes =
        std::fs::read(std::env::current_exe().expect("its own path")).expect("it can be read");
    // Magic, version, size. The text here is not followed by the numbers.
    let beacon = [b"upcall threads\0\0".as_slice(), &[1, 0, 0, 0], &[104, 0, 0, 0]].concat();
    let places: Vec<_> = bytes
        .windows(beacon.len())
        .enumerate()
        .filter(|(_, part)| *part == beacon)
        .map(|(at, _)| at)
        .collect();
    let [place] = places[..] else { panic!("{} beacons in the program", places.len()) };
    for (at, value, part) in
        [(16, 7, "in format 7, and this command reads format 1"), (20, 99, "99 bytes")]
    {
        let before = std::mem::replace(&mut bytes[place + at], value);
        let file = folder.path().join(format!("changed-{at}"));
        write_program(&file, &bytes);
        bytes[place + at] = before;
        let program = Program::start_file(&file, "0");
        let (done, _, error) = threads(&[&program.pid()]);
        assert!(!done && error.contains(part) && error.contains("changed-"), "{error}");
        program.ends_well(10);
    }
    // The file may be deleted, since the process still has it.
    let file: PathBuf = folder.path().join("deleted");
    write_program(&file, &bytes);
    let program = Program::start_file(&file, "0");
    std::fs::remove_file(&file).expect("it is there");
    if let Some(whole) = json(&[&program.pid()]) {
        assert!(
            functions(by_name(&whole)["mutex"]).iter().any(|name| name.contains("waits_for_mutex")),
            "{whole}"
        );
    }
    program.ends_well(10);
}

fn write_program(file: &Path, bytes: &[u8]) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(file, bytes).expect("room for a copy");
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755)).expect("our own file");
}
