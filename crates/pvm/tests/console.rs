//! Tests of PVM's console as a user types at it, and of requests to a machine from another shell.

mod command;

use command::running::within;
use command::upcall;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Start of `/proc/…/syscall` while a process is in `pause(2)`.
const PAUSE: &str = "34 ";

/// A folder with the test program, and with its own folder of names.
struct Place(TempDir);

/// A process that is killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn id(&self) -> u32 {
        self.0.id()
    }

    fn type_in(&mut self, text: &str) {
        self.0.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn code(&mut self) -> Option<i32> {
        self.0.stdin.take();
        within(|| self.0.try_wait().unwrap()).code()
    }
}

impl Place {
    fn new() -> Self {
        let place = Self(TempDir::new().unwrap());
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images/states.c");
        let mut upvmcc = Command::new(env!("CARGO_BIN_EXE_upvmcc"));
        let done =
            upvmcc.arg("-O1").arg(source).arg("-o").arg(place.path("states")).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(upcall());
        command.arg("pvm").args(words).current_dir(self.0.path());
        command.env("UPCALL_DIR", self.path("names")).env("HOME", self.0.path());
        command
    }

    /// Runs a console with this script as its input. Returns its output and errors.
    fn console(&self, words: &[&str], script: &str) -> (String, String) {
        let mut child = self
            .command(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        let done = child.wait_with_output().unwrap();
        let (out, err) = texts(&done);
        assert!(done.status.success(), "{out}{err}");
        (out, err)
    }

    /// Runs a command. Returns its exit code, output and errors.
    fn run(&self, words: &[&str]) -> (Option<i32>, String, String) {
        let done = self.command(words).output().unwrap();
        let (out, err) = texts(&done);
        (done.status.code(), out, err)
    }

    /// Starts a command that keeps running.
    fn start(&self, words: &[&str]) -> Running {
        let mut command = self.command(words);
        Running(
            command
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        )
    }

    fn machines(&self) -> Vec<Value> {
        let (code, out, err) = self.run(&["ps", "--json"]);
        assert_eq!(code, Some(0), "{err}");
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
    }

    /// Waits until the only machine has `count` tasks and all of them have reached their final
    /// state.
    fn settled(&self, count: usize) -> Vec<Value> {
        within(|| {
            let machines = self.machines();
            let tasks = machines.first()?["tasks"].as_array()?.clone();
            let settled = tasks.len() == count
                && tasks.iter().all(|task| task["state"] != "runs" && task["state"] != "starts");
            settled.then_some(tasks)
        })
    }

    /// The files in the folder of names, after a listing has removed stale ones.
    fn left(&self) -> Vec<String> {
        assert_eq!(self.machines(), Vec::<Value>::new());
        let entries = fs::read_dir(self.path("names")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

fn id(task: &Value) -> String {
    task["tid"].as_str().unwrap().to_owned()
}

fn texts(done: &Output) -> (String, String) {
    (
        String::from_utf8_lossy(&done.stdout).into_owned(),
        String::from_utf8_lossy(&done.stderr).into_owned(),
    )
}

/// Processor time of a process and its children, in ticks of 10 ms.
fn processor_time(process: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let words = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .map(|word| word.parse().unwrap_or(0))
        .collect::<Vec<u64>>();
    words[11] + words[12]
}

#[test]
fn a_script_spawns_and_its_end_waits_for_the_tasks() {
    let place = Place::new();
    fs::write(place.path(".pvmrc"), "# of this user\nalias w spawn\necho begun\n").unwrap();
    for words in
        [&[][..], &["console"], &["--procs", "2", "--place", "interleave"], &["--as-processes=3"]]
    {
        let script = "conf\nsetenv FOO bar\nexport FOO\nw -> ./states a\nw -> ./states i\n\
             put box 0 hi\nw -> ./states m\n";
        let (out, err) = place.console(words, script);
        let mut lines = out.lines();
        assert_eq!(
            (lines.next(), lines.next()),
            (Some("begun"), Some("1 host, 1 data format")),
            "{words:?}: {out}{err}"
        );
        // Tasks read an empty input, not the console's.
        for (job, what) in
            [(1, "a FOO=bar"), (1, "end"), (1, "EOF"), (2, "read -1"), (3, "found hi")]
        {
            let found = out.lines().any(|line| {
                line.starts_with(&format!("[{job}:t")) && line.ends_with(&format!("] {what}"))
            });
            assert!(found, "{words:?}: {what}: {out}{err}");
        }
        assert!(
            (1..=3).all(|job| out.contains(&format!("[{job}] finished\n"))),
            "{words:?}: {out}{err}"
        );
        assert_eq!(place.left(), Vec::<String>::new(), "{words:?}");
    }
}

#[test]
fn output_without_a_job_goes_to_the_error_stream_and_to_a_file_if_one_is_named() {
    let place = Place::new();
    let (out, err) = place.console(
        &[],
        "spawn ./states a\nspawn ->out ./states a1\nspawn ./nosuch\nquit\necho never\n",
    );
    assert_eq!(out.lines().take(2).collect::<Vec<_>>(), ["1 successful", "t40002"]);
    assert!(err.contains("[t40002] a FOO=-\n[t40002] end\n"), "{err}");
    assert!(
        out.contains("0 successful\nNo such file\nspawn: compile the program by `upvmcc`"),
        "{out}"
    );
    assert!(!out.contains("never"), "{out}");
    assert_eq!(
        fs::read_to_string(place.path("out")).unwrap(),
        "[1:t40003] a1 FOO=-\n[1:t40003] end\n[1:t40003] EOF\n"
    );
}

#[test]
fn a_console_that_is_left_does_not_wait_for_tasks_that_wait_for_nobody() {
    let place = Place::new();
    let mut command = place.command(&[]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"spawn ./states b\n").unwrap();
    let done = child.wait_with_output().unwrap();
    let (_, err) = texts(&done);
    assert_eq!(done.status.code(), Some(1), "{err}");
    assert!(err.contains("1 task is left, and the machine ends with it"), "{err}");
    assert!(
        err.contains(
            "t40002 (states) waits for others at the barrier of group \"ring\": 1 of 2 are there"
        ),
        "{err}"
    );
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn tasks_are_listed_signalled_and_reset() {
    let place = Place::new();
    let mut console = place.command(&[]);
    let out = fs::File::create(place.path("said")).unwrap();
    let mut console = Running(console.stdin(Stdio::piped()).stdout(out).spawn().unwrap());
    let said = || fs::read_to_string(place.path("said")).unwrap();
    console.type_in("spawn -3 -> ./states r\n");
    place.settled(3);
    console.type_in("ps -s\nsig 15 t40002\ntickle 2\njobs\n");
    within(|| said().contains("\n 1: t40003 t40004\n").then_some(()));
    let text = said();
    assert!(text.contains("waits for a message from any task, tag 7; 0 messages wait\n"), "{text}");
    assert!(text.contains("[1:t40002] EOF\n"), "{text}");
    assert!(text.contains("t40003 (states) waits for a message from any task, tag 7\n"), "{text}");
    console.type_in("reset\nps\njobs\n");
    within(|| said().contains("[1] finished\n").then_some(()));
    console.type_in("spawn ./states s\nhalt\n");
    assert_eq!(console.code(), Some(0));
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn another_shell_sees_what_each_task_does_and_ends_it() {
    let place = Place::new();
    let mut console = place.start(&["--procs", "2", "--place", "interleave"]);
    for what in ["r", "s", "b", "h"] {
        console.type_in(&format!("spawn ./states {what}\n"));
    }
    let tasks = place.settled(3);
    let of = |state: &str| {
        tasks
            .iter()
            .find(|task| task["state"] == state)
            .unwrap_or_else(|| panic!("{state}: {tasks:?}"))
    };
    let [receives, sleeps, asks] = ["receives", "sleeps", "asks"].map(of);
    assert_eq!(receives["doing"], "waits for a message from any task, tag 7");
    assert_eq!(
        (&receives["tag"], &receives["from"], &receives["program"]),
        (&7.into(), &Value::Null, &"states".into())
    );
    assert_eq!(
        asks["doing"],
        "waits for others at the barrier of group \"ring\": 1 of 2 are there"
    );
    assert!(sleeps["doing"].as_str().unwrap().starts_with("sleeps, for 5"), "{sleeps}");
    for task in &tasks {
        // At least a page of its stack is its own, and it shares its text with others.
        assert!(
            task["resident_kib"].as_u64() > task["own_kib"].as_u64()
                && task["own_kib"].as_u64() >= Some(8),
            "{task}"
        );
    }
    assert_eq!(
        (&receives["rank"], &receives["process"], &sleeps["rank"]),
        (&0.into(), &console.id().into(), &1.into())
    );
    let machine = place.machines().remove(0);
    assert_eq!((&machine["machine"], &machine["console"]), (&console.id().into(), &true.into()));
    let (_, table, _) = place.run(&["ps"]);
    assert!(
        table.starts_with(&format!(
            "machine {}: 3 tasks in 2 processes, with a console\nTID  ",
            console.id()
        )),
        "{table}"
    );

    assert_eq!(place.run(&["kill", &id(sleeps)]).0, Some(0));
    assert_eq!(place.run(&["sig", "15", &id(asks)]).0, Some(0));
    assert_eq!(id(&place.settled(1)[0]), id(receives));
    let (code, _, err) = place.run(&["kill", "t40099"]);
    assert_eq!(code, Some(3));
    assert!(err.contains(&format!("no task t40099 in machine {}", console.id())), "{err}");
    assert_eq!(place.run(&["kill", "all"]), (Some(0), "1 task is ended\n".into(), String::new()));
    place.settled(0);
    console.type_in("quit\n");
    assert_eq!(console.code(), Some(0));
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn a_machine_is_named_where_several_run_and_halted() {
    let place = Place::new();
    let (code, _, err) = place.run(&["halt"]);
    assert_eq!(code, Some(3));
    assert!(
        err.contains("no machine of this user runs") && err.contains("upcall pvm run"),
        "{err}"
    );
    let mut machines = [(); 2].map(|()| place.start(&["run", "./states", "s"]));
    within(|| (place.machines().len() == 2).then_some(()));
    for words in [&["halt"][..], &["kill", "all"], &["kill", "t40001"]] {
        let (code, _, err) = place.run(words);
        assert!(code == Some(2) && err.contains("--machine"), "{words:?}: {err}");
    }
    let numbers = machines.each_ref().map(|machine| machine.id().to_string());
    assert_eq!(place.run(&["kill", "t40001", "--machine", &numbers[0]]).0, Some(0));
    assert_eq!(machines[0].code(), Some(128 + 15));
    let (_, _, err) = place.run(&["kill", "all", "--machine", &numbers[0]]);
    assert!(err.contains(&format!("no machine {}, but {}", numbers[0], numbers[1])), "{err}");
    assert_eq!(place.run(&["halt"]).0, Some(0));
    assert_eq!(machines[1].code(), Some(128 + 15));
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn a_machine_answers_while_its_tasks_are_busy() {
    let place = Place::new();
    let _machine = place.start(&["run", "-n", "4", "./states", "p"]);
    within(|| (place.machines().first()?["tasks"].as_array()?.len() == 4).then_some(()));
    // A machine that answers too late shows its tasks as "silent".
    let tasks = place.machines()[0]["tasks"].clone();
    assert!(tasks.as_array().unwrap().iter().all(|task| task["state"] == "polls"), "{tasks}");
}

#[test]
fn a_machine_answers_while_its_tasks_only_compute() {
    let place = Place::new();
    for words in [
        &["run", "-n", "2", "./states", "c"][..],
        &["run", "-n", "2", "--procs", "2", "./states", "c"],
    ] {
        let mut machine = place.start(words);
        let tasks = within(|| {
            let tasks = place.machines().first()?["tasks"].as_array()?.clone();
            assert!(tasks.iter().all(|task| task["state"] != "silent"), "{tasks:?}");
            (tasks.len() == 2 && tasks.iter().all(|task| task["state"] == "runs")).then_some(tasks)
        });
        assert_eq!(place.run(&["kill", &id(&tasks[0])]).0, Some(0));
        // If both are in one process, the other one runs now.
        let left = place.machines()[0]["tasks"].clone();
        assert!(left.as_array().is_some_and(|left| left.len() == 1), "{left}");
        assert_eq!(place.run(&["sig", "15", &id(&tasks[1])]).0, Some(0));
        assert_eq!(machine.code(), Some(128 + 15));
    }
    // `halt` does not need force.
    let mut machine = place.start(&["run", "./states", "c"]);
    within(|| (!place.machines().is_empty()).then_some(()));
    assert_eq!(place.run(&["halt"]).0, Some(0));
    assert_eq!(machine.code(), Some(128 + 15));
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn who_waits_in_the_kernel_is_silent_and_halted_by_force() {
    let place = Place::new();
    // The first process has a console and is idle. In the other one, a task blocks all others.
    let mut console = place.start(&["--as-processes=2"]);
    console.type_in("spawn ./states k\nspawn ./states s\n");
    let silent = within(|| {
        let tasks = place.machines().first()?["tasks"].as_array()?.clone();
        tasks.into_iter().find(|task| task["state"] == "silent")
    });
    assert_eq!(silent["resident_kib"], Value::Null);
    assert_eq!(place.run(&["halt"]).0, Some(0));
    assert_eq!(console.code(), Some(0));
    // The same in the first process.
    let mut machine = place.start(&["run", "./states", "k"]);
    within(|| fs::read_dir(place.path("names")).ok()?.next()?.ok());
    let call = format!("/proc/{}/syscall", machine.id());
    within(|| fs::read_to_string(&call).ok()?.starts_with(PAUSE).then_some(()));
    assert_eq!(place.run(&["halt"]).0, Some(0));
    assert_eq!(machine.code(), None);
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn nothing_is_left_of_a_machine_that_is_killed() {
    let place = Place::new();
    let mut console = place.start(&["--as-processes=3"]);
    console.type_in("spawn -2 ./states c\nspawn ./states s\n");
    let processes = within(|| {
        let machines = place.machines();
        let tasks = machines.first()?["tasks"].as_array()?.clone();
        (tasks.len() == 3)
            .then(|| tasks.iter().map(|task| task["process"].as_u64().unwrap()).collect::<Vec<_>>())
    });
    console.0.kill().unwrap();
    console.0.wait().unwrap();
    within(|| {
        processes
            .iter()
            .all(|process| !Path::new(&format!("/proc/{process}")).exists())
            .then_some(())
    });
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn an_idle_console_takes_no_processor() {
    let place = Place::new();
    for words in [&[][..], &["--procs", "2", "--place", "interleave"]] {
        let mut console = place.start(words);
        console.type_in("spawn -2 ./states r\nspawn ./states s\n");
        place.settled(3);
        // On a busy machine it may still end earlier work. A console that spins is never idle for 2
        // s.
        within(|| {
            let before = processor_time(console.id());
            std::thread::sleep(Duration::from_secs(2));
            (processor_time(console.id()) <= before + 1).then_some(())
        });
        console.type_in("halt\n");
        assert_eq!(console.code(), Some(0));
    }
}

#[test]
fn a_terminal_has_a_prompt_and_a_pipe_has_none() {
    let place = Place::new();
    assert_eq!(place.console(&[], "id\n").0, "t40001\n");
    // util-linux gives it a terminal.
    let mut command = Command::new("script");
    command
        .args(["-qec", &format!("{} pvm", upcall().display()), "/dev/null"])
        .current_dir(place.0.path());
    command
        .env("UPCALL_DIR", place.path("names"))
        .env("HOME", place.0.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(b"id\nquit\n").unwrap();
    let (out, _) = texts(&child.wait_with_output().unwrap());
    assert!(out.contains("pvm> ") && out.contains("t40001\r\npvm> "), "{out:?}");
}
