//! Members of one group on several hosts, in any language, which a test controls line by line:
//! `member.c`, and `far_member.py` of the tests of Python. The hosts are network namespaces with a
//! folder of names each.
#![allow(dead_code)] // Not every test uses all of it.

use hosts::{Host, Hosts};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

#[path = "../../../../tests/src/hosts.rs"]
pub mod hosts;

/// Longest wait for a member's reply, or for its end.
const GUARD: Duration = Duration::from_secs(60);

/// Some hosts, and the address at which the members of a group meet.
pub struct Scene {
    pub hosts: Hosts,
    names: Vec<TempDir>,
    pub address: String,
}

impl Scene {
    pub fn new(count: usize) -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let hosts = Hosts::new(count);
        let names = (0..count).map(|_| tempfile::tempdir().unwrap()).collect();
        // Hosts that are one have an address for each group, which no other process takes.
        let (pid, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let address = match hosts.are_apart() {
            true => format!("{}:7460", hosts.host(0).address),
            false => format!("127.{}.{}.{number}:7460", 1 + (pid >> 8) % 250, pid & 0xFF),
        };
        Self { hosts, names, address }
    }

    /// The folder of names of a host.
    fn folder(&self, on: usize) -> PathBuf {
        self.names[on].path().join("names")
    }

    /// Starts a member on a host, which meets the others at the scene's address.
    pub fn start(&self, on: usize, program: Command, line: &str) -> FarMember {
        let line = format!("{line} across={}", self.address);
        self.start_plain((on, self.hosts.host(on)), program, &line)
    }

    /// Starts a member with these arguments only, at the place of host `on`.
    pub fn start_plain(
        &self,
        (on, host): (usize, &Host),
        program: Command,
        line: &str,
    ) -> FarMember {
        let wrapper = host.wrapper();
        let mut command = Command::new(&wrapper[0]);
        command.args(&wrapper[1..]).arg(program.get_program()).args(program.get_args());
        for (name, value) in program.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        command.args(line.split(' ')).env("UPCALL_DIR", self.folder(on));
        FarMember::start(command, line)
    }

    /// Waits until nothing is left in the folders of names.
    pub fn is_clean(&self) {
        for names in &self.names {
            let start = Instant::now();
            loop {
                let left: Vec<_> = std::fs::read_dir(names.path().join("names"))
                    .into_iter()
                    .flatten()
                    .flatten()
                    .map(|entry| entry.file_name())
                    .collect();
                if left.is_empty() {
                    break;
                }
                assert!(start.elapsed() < GUARD, "{left:?} is left");
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

/// A member's process, which is ended when this is dropped.
pub struct FarMember {
    child: Child,
    lines: Receiver<String>,
    what: String,
}

impl FarMember {
    fn start(mut command: Command, what: &str) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (send, lines) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            let _ = output.lines().map_while(Result::ok).try_for_each(|line| send.send(line));
        });
        Self { child, lines, what: what.into() }
    }

    pub fn say(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// The next reply, as it is written.
    #[track_caller]
    fn hear(&mut self) -> String {
        let heard = self.lines.recv_timeout(GUARD);
        heard.unwrap_or_else(|error| panic!("{}: no reply: {error}", self.what))
    }

    /// The words of the next reply, which is a success.
    #[track_caller]
    pub fn hear_ok(&mut self) -> String {
        let heard = self.hear();
        let words = heard.strip_prefix("ok ").map(str::to_string);
        words.unwrap_or_else(|| panic!("{}: {heard}", self.what))
    }

    /// Checks that the next reply is an error of this class or status, with these parts.
    #[track_caller]
    pub fn hear_error(&mut self, class: &str, parts: &[&str]) {
        let heard = self.hear();
        assert!(heard.starts_with(&format!("error {class} ")), "{}: {heard}", self.what);
        for part in parts {
            assert!(heard.contains(part), "{part}: {heard}");
        }
    }

    /// Says a line, and returns the words of the reply.
    #[track_caller]
    pub fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.hear_ok()
    }

    /// Sends the process a signal by its name.
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the process at once, as `kill -9` does.
    pub fn dies(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Leaves the group, and ends well.
    #[track_caller]
    pub fn leaves(mut self) {
        self.ask("leave");
        self.ends();
    }

    /// Waits for the end of the process, which is a good one.
    #[track_caller]
    pub fn ends(mut self) {
        drop(self.child.stdin.take());
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(start.elapsed() < GUARD, "{} does not end", self.what),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert!(status.success(), "{}: {status}", self.what);
    }
}

impl Drop for FarMember {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
