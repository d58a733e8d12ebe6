//! Machines over several hosts that are one.

use super::running::{kill_all, said};
use super::upcall;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// Hosts that are one.
pub struct PretendedHosts {
    pub folder: tempfile::TempDir,
    /// The address at which processes meet, which also finds them.
    pub address: String,
}

impl PretendedHosts {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["home", "b", "c"] {
            std::fs::DirBuilder::new().mode(0o700).create(folder.path().join(name)).unwrap();
        }
        // For a while the kernel gives this port to no other process.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        Self { folder, address }
    }

    pub fn with(&self) -> String {
        format!("env UPCALL_DIR={}/{{host}}", self.folder.path().display())
    }

    /// `upcall pvm` with these words, at home.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.arg("60").arg(upcall()).arg("pvm").args(words);
        command.env("UPCALL_DIR", self.folder.path().join("home"));
        command
    }

    /// Runs a program on these hosts, with these further options.
    pub fn starts(
        &self,
        hosts: &[&str],
        options: &[&str],
        program: &Path,
        args: &[&str],
    ) -> Command {
        let mut command = self.command(&["run", "--rendezvous", &self.address]);
        command.arg("--with").arg(self.with()).arg("--upcall").arg(upcall());
        hosts.iter().for_each(|host| _ = command.args(["--host", host]));
        command.args(options).arg(program).args(args);
        command
    }

    pub fn run(&self, hosts: &[&str], options: &[&str], program: &Path, args: &[&str]) -> Output {
        let done = self.starts(hosts, options, program, args).output().unwrap();
        assert_ne!(done.status.code(), Some(124), "it hangs: {}", said(&done));
        done
    }

    /// The processes of other hosts.
    pub fn far_processes(&self) -> Vec<i32> {
        let at = format!("at={}", self.address);
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let is_member = |number: &i32| {
            let words = std::fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words).into_owned();
            let words = words.split('\0').collect::<Vec<_>>();
            words.get(1) == Some(&"pvm-member") && words.contains(&&*at)
        };
        numbers.filter(is_member).collect()
    }

    /// Kills the first process of the only other host.
    pub fn kill_leader(&self) {
        let all = self.far_processes();
        let leader = all.iter().min().expect("a process of the other host");
        kill(*leader);
    }
}

pub fn kill(process: i32) {
    let process = rustix::process::Pid::from_raw(process).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
}

/// A machine whose first task has written `ready`. Killed on drop.
pub struct ReadyMachine {
    pub child: Child,
    pub output: BufReader<std::process::ChildStdout>,
}

impl Drop for ReadyMachine {
    fn drop(&mut self) {
        kill_all(&mut self.child);
    }
}

impl ReadyMachine {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut machine = Self { child, output };
        let mut line = String::new();
        machine.output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        machine
    }

    /// What it writes until its end.
    pub fn end(mut self) -> (Option<i32>, String) {
        let (mut rest, mut errors) = (String::new(), String::new());
        self.output.read_to_string(&mut rest).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (self.child.wait().unwrap().code(), rest + &errors)
    }
}
