//! Machines of one host that are saved, killed and started again.

use super::running::Programs;
use super::upcall;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

/// A folder with a program, and with its own folder of names.
pub struct Place {
    pub programs: Programs,
    pub program: PathBuf,
}

/// A machine that is killed on drop.
pub struct Machine {
    pub child: Child,
    pub output: BufReader<ChildStdout>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Machine {
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits until the machine has printed this line.
    pub fn printed(&mut self, line: &str) {
        let mut next = String::new();
        while self.output.read_line(&mut next).unwrap() > 0 {
            if next.trim_end() == line {
                return;
            }
            next.clear();
        }
        panic!("the machine ends without {line:?}");
    }

    /// What the machine prints until it ends successfully.
    pub fn rest(&mut self) -> String {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        let status = self.child.wait().unwrap();
        let mut errors = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert!(status.success(), "{status}: {rest}{errors}");
        rest
    }

    /// The process ids of the machine's other processes.
    pub fn others(&self) -> Vec<u32> {
        let path = format!("/proc/{0}/task/{0}/children", self.child.id());
        let children = fs::read_to_string(path).unwrap();
        children.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn signal(process: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(process as i32).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

impl Place {
    pub fn new(source: &str) -> Self {
        let programs = Programs::new();
        let program = programs.compiled(source);
        Self { programs, program }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.programs.0.path().join(name)
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(upcall());
        command.arg("pvm").args(words).current_dir(self.programs.0.path());
        command.env("UPCALL_DIR", self.path("names")).env("HOME", self.programs.0.path());
        command.stdin(Stdio::null());
        command
    }

    /// The same command, which another one starts.
    pub fn behind(&self, starter: &[&str], words: &[&str]) -> Command {
        let command = self.command(words);
        let mut starts = Command::new(starter[0]);
        starts.args(&starter[1..]).arg(command.get_program()).args(command.get_args());
        let all = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
        starts.envs(all).current_dir(self.programs.0.path()).stdin(Stdio::null());
        starts
    }

    pub fn output(&self, words: &[&str]) -> Output {
        let mut command = self.command(words);
        command.output().unwrap()
    }

    pub fn start(&self, words: &[&str]) -> Machine {
        self.started(self.command(words))
    }

    /// The machine of this command.
    pub fn started(&self, mut command: Command) -> Machine {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Machine { child, output }
    }

    /// Starts the program in this number of processes.
    pub fn run(&self, copies: &str, processes: &str, args: &[&str]) -> Machine {
        let program = self.program.to_str().unwrap();
        let words = ["run", "-n", copies, "--procs", processes, "--place", "interleave", program];
        self.start(&[&words[..], args].concat())
    }

    /// Saves the machine.
    pub fn save(&self, file: &str) -> Output {
        self.output(&["checkpoint", file])
    }

    pub fn saved(&self, file: &str) {
        let done = self.save(file);
        assert!(done.status.success(), "{}", text(&done.stderr));
    }

    /// The error with which a checkpoint is refused.
    pub fn not_saved(&self, file: &str) -> String {
        let done = self.save(file);
        assert!(!done.status.success(), "{}{}", text(&done.stdout), text(&done.stderr));
        text(&done.stderr)
    }

    /// The names of all files here but the program and the folder of names.
    pub fn files(&self) -> Vec<String> {
        let own = self.program.file_name().unwrap().to_owned();
        let all = fs::read_dir(self.programs.0.path()).unwrap().flatten();
        let names = all.map(|one| one.file_name()).filter(|name| *name != own && name != "names");
        let mut names = names.map(|name| name.into_string().unwrap()).collect::<Vec<_>>();
        names.sort();
        names
    }
}

/// What the program prints without a checkpoint, after its first line.
pub fn undisturbed(place: &Place, copies: &str, args: &[&str]) -> String {
    let mut machine = place.run(copies, "1", args);
    machine.printed("begun");
    machine.rest()
}
