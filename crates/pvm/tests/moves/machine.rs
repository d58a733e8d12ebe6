//! A machine whose tasks are moved, as a user sees it: its output, and commands from other shells.

use crate::command::pretended::PretendedHosts;
use crate::command::upcall;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Maximum time for anything that must happen.
const LONG: Duration = Duration::from_secs(120);

/// Compiles a program of tests/images/moves.
pub fn compiled(folder: &Path, name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/images/moves/{name}.c"));
    let program = folder.join(name);
    let mut upvmcc = Command::new(env!("CARGO_BIN_EXE_upvmcc"));
    let done = upvmcc.args(["-O1", "-w", "-o"]).arg(&program).arg(&source).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    program
}

/// Calls `look` until it returns `Some`.
pub fn within<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < LONG, "not within {LONG:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A running machine with folders of its own.
pub struct Machine {
    child: Child,
    folder: TempDir,
    /// Its hosts, each with one process, if there are several.
    hosts: Option<PretendedHosts>,
    lines: Receiver<String>,
    /// What it has written so far, on both streams.
    pub said: Vec<String>,
    /// The numbers of its processes, by rank.
    processes: BTreeMap<usize, u32>,
}

impl Machine {
    /// Starts a task in each of these processes, in `count` of them.
    pub fn start(
        places: &[usize],
        count: usize,
        program: &Path,
        args: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        Self::start_by(&[], places, count, (program, args), variables)
    }

    /// The same in three processes, each on a host of its own.
    pub fn over_hosts(
        places: &[usize],
        program: &Path,
        args: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let hosts = PretendedHosts::new();
        let with = hosts.with();
        Self::over_these_hosts((hosts, &with), places, (program, args), variables)
    }

    /// The same, where this command starts the processes of the other hosts.
    pub fn over_these_hosts(
        (hosts, with): (PretendedHosts, &str),
        places: &[usize],
        (program, args): (&Path, &[&str]),
        variables: &[(&str, &str)],
    ) -> Self {
        let upcall = upcall();
        let mut options = vec!["--procs", "1", "--rendezvous", &hosts.address, "--with", with];
        options.extend(["--host", "b", "--host", "c", "--upcall", upcall.to_str().unwrap()]);
        let mut machine = Self::start_with(&[], places, &options, (program, args), |command| {
            command.envs(variables.iter().copied());
            command.env("UPCALL_DIR", hosts.folder.path().join("home"));
        });
        machine.hosts = Some(hosts);
        machine
    }

    /// The same by a command that executes the words after it.
    pub fn start_by(
        by: &[&str],
        places: &[usize],
        count: usize,
        (program, args): (&Path, &[&str]),
        variables: &[(&str, &str)],
    ) -> Self {
        let options = ["--procs", &count.to_string()];
        Self::start_with(by, places, &options, (program, args), |command| {
            command.envs(variables.iter().copied());
        })
    }

    fn start_with(
        by: &[&str],
        places: &[usize],
        options: &[&str],
        (program, args): (&Path, &[&str]),
        variables: impl FnOnce(&mut Command),
    ) -> Self {
        let folder = TempDir::new().unwrap();
        let said = vec![format!("{places:?} {args:?} {options:?}")];
        let places = places.iter().map(usize::to_string).collect::<Vec<_>>();
        let list = folder.path().join("places");
        fs::write(&list, places.join(" ")).unwrap();
        fs::create_dir(folder.path().join("work")).unwrap();
        let upcall = upcall();
        let words = by.iter().map(OsStr::new).chain([upcall.as_os_str()]).collect::<Vec<_>>();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command.args(["pvm", "run", "-n", &places.len().to_string()]);
        command.args(options).arg("--place").arg(list).arg(program).args(args);
        command.env("UPCALL_DIR", folder.path().join("names")).env("UPCALL", &upcall);
        variables(&mut command);
        command.current_dir(folder.path().join("work")).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let out = child.stdout.take().unwrap();
        read(out, sender.clone());
        read(child.stderr.take().unwrap(), sender);
        Self { child, folder, hosts: None, lines, said, processes: BTreeMap::new() }
    }

    /// A file in the folder of its tasks.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join("work").join(name)
    }

    /// Makes a file that tasks wait for.
    pub fn make(&self, name: &str) {
        fs::write(self.file(name), "").unwrap();
    }

    /// Waits for the next line with this text. Lines before it are skipped.
    pub fn line(&mut self, what: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(LONG);
            let line = line.unwrap_or_else(|_| panic!("no {what:?}: {}", self.said.join("\n")));
            self.said.push(line.clone());
            if line.contains(what) {
                return line;
            }
        }
    }

    /// Waits for a line `WHAT TID` of each of `count` tasks. Returns their words in the order of
    /// the ids, and learns the numbers of the processes.
    pub fn ready(&mut self, count: usize) -> Vec<(String, String)> {
        let mut all = Vec::new();
        while all.len() < count {
            // Lines of spawned tasks begin with their ids.
            let line = self.line(" t");
            let words = line.split(' ').collect::<Vec<_>>();
            let [.., what, tid] = words[..] else { panic!("{line}") };
            all.push((what.to_owned(), tid.to_owned()));
        }
        all.sort_by_key(|(_, tid)| u32::from_str_radix(&tid[1..], 16).unwrap());
        self.processes.extend(self.found_processes());
        all
    }

    /// The tid of the task that has printed this word.
    pub fn tid(tasks: &[(String, String)], what: &str) -> String {
        let found = tasks.iter().find(|(one, _)| one == what);
        found.unwrap_or_else(|| panic!("no {what}: {tasks:?}")).1.clone()
    }

    /// A command about this machine.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(upcall());
        command.arg("pvm").args(words).env("UPCALL_DIR", self.names());
        command
    }

    /// The folder of its names, on its first host.
    fn names(&self) -> PathBuf {
        let of_hosts = |hosts: &PretendedHosts| hosts.folder.path().join("home");
        self.hosts.as_ref().map_or_else(|| self.folder.path().join("names"), of_hosts)
    }

    /// Runs a command about this machine. Returns its exit code, and what it prints.
    pub fn run(&self, words: &[&str]) -> (Option<i32>, String) {
        let done = self.command(words).output().unwrap();
        let all = [done.stdout, done.stderr].concat();
        (done.status.code(), String::from_utf8_lossy(&all).into_owned())
    }

    /// Moves a task that can be moved.
    pub fn moves(&self, tid: &str, rank: usize) {
        let (code, text) = self.run(&["move", tid, &rank.to_string()]);
        assert_eq!(code, Some(0), "{tid} to {rank}: {text} {}", self.said.join("\n"));
        assert_eq!(self.rank(tid), Some(rank));
    }

    /// Asks for a move that must be refused for this reason. The task's last move may not be over
    /// yet.
    pub fn refuses(&self, tid: &str, rank: usize, why: &str) {
        within("a move is refused", || {
            let (code, text) = self.run(&["move", tid, &rank.to_string()]);
            let is_refused = code == Some(4) && text.contains(why);
            assert!(is_refused || text.contains("not over yet"), "{tid}, {why}: {code:?} {text}");
            is_refused.then_some(())
        });
    }

    /// Moves a task whose last move may not be over yet.
    pub fn moves_at_last(&self, tid: &str, rank: usize) {
        within("a task moves", || {
            let (code, text) = self.run(&["move", tid, &rank.to_string()]);
            assert!(code == Some(0) || text.contains("not over yet"), "{code:?} {text}");
            (code == Some(0)).then_some(())
        });
        assert_eq!(self.rank(tid), Some(rank));
    }

    pub fn tasks(&self) -> Vec<Value> {
        let (_, text) = self.run(&["ps", "--json"]);
        let machines: Vec<Value> = serde_json::from_str(&text).unwrap_or_default();
        let tasks = machines.first().and_then(|machine| machine["tasks"].as_array().cloned());
        tasks.unwrap_or_default()
    }

    /// The rank of a task's process.
    pub fn rank(&self, tid: &str) -> Option<usize> {
        let tasks = self.tasks();
        let task = tasks.iter().find(|task| task["tid"] == tid)?;
        Some(task["rank"].as_u64()? as usize)
    }

    /// The numbers of its processes, as far as they have tasks.
    fn found_processes(&self) -> BTreeMap<usize, u32> {
        let number = |value: &Value| value.as_u64().unwrap();
        let tasks = self.tasks();
        let one = |task: &Value| (number(&task["rank"]) as usize, number(&task["process"]) as u32);
        tasks.iter().map(one).collect()
    }

    /// The number of the process of this rank, which had a task at the start.
    pub fn process(&self, rank: usize) -> u32 {
        self.processes[&rank]
    }

    /// Waits until a process is stopped.
    pub fn stopped(&mut self, process: u32) {
        self.line("STOP\" at ");
        within("a process stops", || (state(process) == Some('T')).then_some(()));
    }

    /// Waits for the end. Returns the status of the command, if it was not killed. Nothing of the
    /// machine is left.
    pub fn end(mut self) -> (Option<i32>, Vec<String>) {
        let mut said = std::mem::take(&mut self.said);
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(begun.elapsed() < LONG, "it hangs: {}", said.join("\n"));
            said.extend(self.lines.recv_timeout(Duration::from_millis(5)));
        };
        for process in std::mem::take(&mut self.processes).into_values() {
            within("the processes end", || {
                matches!(state(process), None | Some('Z')).then_some(())
            });
        }
        said.extend(self.lines.iter());
        assert_eq!(self.run(&["ps", "--json"]), (Some(0), "[]\n".into()));
        let names = fs::read_dir(self.names()).unwrap();
        assert_eq!(names.count(), 0, "names are left");
        (status.code(), said)
    }

    /// Waits for the end of a machine whose tasks have all succeeded.
    pub fn ends_well(self) -> Vec<String> {
        let (status, said) = self.end();
        let fails = said.iter().any(|line| line.contains("FAILED"));
        assert!(status == Some(0) && !fails, "{status:?}: {}", said.join("\n"));
        said
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for process in self.processes.values() {
            if self.child.try_wait().is_ok_and(|status| status.is_none()) {
                let _ = Command::new("kill").args(["-CONT", &process.to_string()]).output();
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The state of a process, as the kernel shows it.
pub fn state(process: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

/// Sends a signal to a process.
pub fn send(process: u32, signal: &str) {
    let done = Command::new("kill").args([signal, &process.to_string()]).status().unwrap();
    assert!(done.success(), "{signal} to {process}");
}

/// Reads lines as they come.
fn read(from: impl Read + Send + 'static, to: Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            let _ = to.send(String::from_utf8_lossy(&line).into_owned());
        }
    });
}
