//! What users and programs see of moves of tasks: `upvm.h`, the console, and `upcall pvm ps`.

mod command;

use command::running::{Programs, run, said, within};
use command::upcall;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use tempfile::TempDir;

#[test]
fn a_program_moves_tasks_and_learns_why_one_stays() {
    let programs = Programs::new();
    let program = programs.compiled("images/migrates.c");
    for processes in 1..=3 {
        let count = processes.to_string();
        let done = run(&["--procs", &count], &program, &[&count]);
        let said = said(&done);
        assert!(done.status.success() && said.contains("all is well"), "{processes}: {said}");
        let why = match processes {
            1 => "there is no such process",
            _ => "the task cannot leave its process: it has asked not to be moved",
        };
        let report = format!("libpvm [t40001]: upvm_migrate(): t40001 was not moved: {why}\n");
        assert!(said.contains(&report), "{processes}: {said}");
    }
}

/// A machine with a console, a folder of names, and the program `states` in its folder.
struct Place(TempDir);

/// A console at which the test types, with its lines. Killed on drop.
struct Session {
    child: Child,
    stdin: ChildStdin,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Place {
    fn new() -> Self {
        let place = Self(TempDir::new().unwrap());
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images/stays.c");
        let mut upvmcc = Command::new(env!("CARGO_BIN_EXE_upvmcc"));
        let done = upvmcc.arg(source).arg("-o").arg(place.0.path().join("stays")).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        place
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(upcall());
        command.arg("pvm").args(words).current_dir(self.0.path());
        command.env("UPCALL_DIR", self.0.path().join("names")).env("HOME", self.0.path());
        command
    }

    fn console(&self, words: &[&str]) -> Session {
        let mut command = self.command(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Session { child, stdin, lines: BufReader::new(stdout).lines() }
    }

    /// These tasks of the only machine, once all of them wait.
    fn settled(&self, tids: &[String]) -> Vec<Value> {
        within(|| {
            let done = self.command(&["ps", "--json"]).output().unwrap();
            let machines: Value = serde_json::from_slice(&done.stdout).ok()?;
            let tasks = machines.get(0)?["tasks"].as_array()?;
            let find = |tid: &String| tasks.iter().find(|task| task["tid"] == tid.as_str());
            let found = tids.iter().map(|tid| find(tid).cloned()).collect::<Option<Vec<_>>>()?;
            found.iter().all(|task| task["state"] == "receives").then_some(found)
        })
    }

    fn table(&self) -> String {
        String::from_utf8(self.command(&["ps"]).output().unwrap().stdout).unwrap()
    }
}

impl Session {
    /// Starts a task of `stays` for each of [`PINS`].
    fn spawn(&mut self) -> Vec<String> {
        let said = PINS.map(|(what, _)| self.line(&format!("spawn ./stays {what}")));
        said.iter().map(|said| said.lines().nth(1).unwrap().to_owned()).collect()
    }

    /// Types a line, and then an `echo`. Returns what was printed in between.
    fn line(&mut self, line: &str) -> String {
        writeln!(self.stdin, "{line}\necho done").unwrap();
        let lines = self.lines.by_ref().map(Result::unwrap);
        lines.take_while(|line| line != "done").map(|line| line + "\n").collect()
    }
}

/// Why each task of `stays` stays, by its argument.
const PINS: [(&str, Option<&str>); 4] = [
    ("waits", None),
    ("wish", Some("it has asked not to be moved")),
    ("child", Some("it has child processes")),
    ("descriptor", Some("it has a descriptor that cannot move")),
];

#[test]
fn the_console_moves_tasks_and_says_why_one_stays() {
    let place = Place::new();
    let mut console = place.console(&["--procs", "2"]);
    let tids = console.spawn();
    let ranks = || place.settled(&tids).iter().map(|task| task["rank"].clone()).collect::<Vec<_>>();
    let before = ranks();
    for (at, (_, pin)) in PINS.iter().enumerate() {
        let (tid, rank) = (&tids[at], 1 - before[at].as_u64().unwrap());
        let said = console.line(&format!("migrate {tid} {rank}"));
        let line = |why| {
            format!("migrate: {tid} was not moved: the task cannot leave its process: {why}\n")
        };
        assert_eq!(said, pin.map_or(String::new(), line), "{:?}", PINS[at]);
        assert_eq!(ranks()[at] == before[at], pin.is_some(), "{:?}", PINS[at]);
    }
    let there = ranks()[0].clone();
    let said = console.line(&format!("migrate {} {there}", tids[0]));
    let why = "the task is in that process already";
    assert_eq!(said, format!("migrate: {} was not moved: {why}\n", tids[0]));
    let said = console.line(&format!("migrate {} 2", tids[0]));
    assert_eq!(said, format!("migrate: {} was not moved: there is no such process\n", tids[0]));
    assert_eq!(console.line("migrate t40999 1"), "t40999: No such task\n");
    console.line("halt");
}

#[test]
fn a_list_of_tasks_says_why_they_stay() {
    let place = Place::new();
    for (processes, shown) in [("1", false), ("2", true)] {
        let mut console = place.console(&["--procs", processes]);
        let tids = console.spawn();
        let tasks = place.settled(&tids);
        let table = place.table();
        for (task, (what, pin)) in tasks.iter().zip(PINS) {
            assert_eq!(task["pinned"].as_str(), pin, "{what}: {task}");
            let tid = task["tid"].as_str().unwrap();
            let row = table.lines().find(|row| row.starts_with(tid)).unwrap();
            let doing = task["doing"].as_str().unwrap();
            let does = pin
                .filter(|_| shown)
                .map_or(doing.into(), |why| format!("{doing}; stays here: {why}"));
            assert!(row.ends_with(&does), "{what}: {table}");
        }
        console.line("halt");
        console.child.wait().unwrap();
    }
}
