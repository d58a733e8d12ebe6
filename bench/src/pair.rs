//! A server and a client as child processes, and talking to them.
//!
//! Nothing may hang the harness or outlive it: every wait has a time limit and sees an interrupt, the children are
//! killed on drop, and they ask the kernel to kill them when the harness dies.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Deserialize;

use crate::case::{Case, Mode, Placement};
use crate::child::{Binds, Throughput};
use crate::stats::Summary;

/// Longest time for a child to get ready or to end.
const START: Duration = Duration::from_secs(20);
const END: Duration = Duration::from_secs(3);
/// Longest time for a command, over what it was asked to take.
const PATIENCE: Duration = Duration::from_secs(20);

/// With what the names of a pair's files in /dev/shm begin: its directory's name and that of the run's.
pub fn shared_memory_prefix(dir: &Path) -> String {
    let name = |path: Option<&Path>| path.and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
    format!("{}-{}-", name(dir.parent()), name(Some(dir)))
}

/// Removes what begins with `prefix` in /dev/shm.
pub fn remove_shared_memory(prefix: &str) {
    for file in fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
        if file.file_name().to_string_lossy().starts_with(prefix) {
            fs::remove_file(file.path()).ok();
        }
    }
}

/// Why a pair could not be measured.
#[derive(Debug)]
pub enum PairError {
    /// The harness was asked to stop (SIGINT or SIGTERM).
    Interrupted,
    /// The program cannot be started.
    Start {
        /// The program.
        exe: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// A child ended, said something unexpected, or nothing in time.
    Child {
        /// System and role.
        who: String,
        /// What was expected and what happened, with the child's own words.
        what: String,
    },
    /// The client reported a failed call.
    Call {
        /// System and role.
        who: String,
        /// The client's words.
        what: String,
    },
}

impl fmt::Display for PairError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PairError::Interrupted => write!(f, "interrupted"),
            PairError::Start { exe, error } => write!(f, "cannot start {}: {error}", exe.display()),
            PairError::Child { who, what } | PairError::Call { who, what } => write!(f, "{who}: {what}"),
        }
    }
}

impl std::error::Error for PairError {}

/// What to start.
#[derive(Debug, Clone)]
pub struct Spec<'a> {
    /// The program that knows the system.
    pub exe: &'a Path,
    /// The system.
    pub system: &'a str,
    /// Where the two run.
    pub placement: Placement,
    /// How the server waits.
    pub mode: Mode,
    /// Processors of server and client.
    pub cpus: (usize, usize),
    /// A directory for this pair; made here, removed at the end.
    pub dir: PathBuf,
}

/// A running server with its client.
pub struct Pair<'a> {
    // Fields drop in this order: the client goes first.
    client: Process,
    server: Process,
    dir: PathBuf,
    interrupted: &'a AtomicBool,
}

/// One child.
struct Process {
    who: String,
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
    unread: Vec<u8>,
    errors: PathBuf,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Answer<T> {
    Done(T),
    Unsupported { unsupported: bool },
    Error { error: String },
}

impl<'a> Pair<'a> {
    /// Starts server and client and waits until both are ready.
    ///
    /// # Errors
    /// [`PairError`]; nothing is left running.
    pub fn start(spec: &Spec<'_>, interrupted: &'a AtomicBool) -> Result<Pair<'a>, PairError> {
        let no_dir = |error| PairError::Start { exe: spec.dir.clone(), error };
        fs::create_dir(&spec.dir).map_err(no_dir)?;
        let started = Process::start(spec, "server", spec.cpus.0, interrupted)
            .and_then(|server| Ok((Process::start(spec, "client", spec.cpus.1, interrupted)?, server)));
        match started {
            Ok((client, server)) => Ok(Pair { client, server, dir: spec.dir.clone(), interrupted }),
            Err(error) => {
                fs::remove_dir_all(&spec.dir).ok();
                Err(error)
            }
        }
    }

    /// `count` calls timed one by one, and as many together; fewer of either when `most` is over.
    ///
    /// # Errors
    /// [`PairError`]; the pair is of no further use.
    pub fn latency(&mut self, case: Case, count: u64, most: Duration) -> Result<Summary, PairError> {
        let summary = self.ask(&format!("latency {case} {count} {}", most.as_millis()), PATIENCE)?;
        summary.ok_or_else(|| self.client.fault("does not support latency, which every system must"))
    }

    /// Null calls by `callers` callers for `time`; None if the system does not support that many.
    ///
    /// # Errors
    /// [`PairError`]; the pair is of no further use.
    pub fn throughput(&mut self, callers: usize, time: Duration) -> Result<Option<Throughput>, PairError> {
        self.ask(&format!("throughput null {callers} {}", time.as_millis()), time + PATIENCE)
    }

    /// Binds of `rounds` rounds; None if the system does not tell the first from further ones.
    ///
    /// # Errors
    /// [`PairError`]; the pair is of no further use.
    pub fn bind(&mut self, rounds: u64) -> Result<Option<Binds>, PairError> {
        self.ask(&format!("bind {rounds}"), PATIENCE)
    }

    fn ask<T: for<'de> Deserialize<'de>>(&mut self, command: &str, limit: Duration) -> Result<Option<T>, PairError> {
        self.client.say(command)?;
        let line = self.client.line(command, Instant::now() + limit, self.interrupted)?;
        match serde_json::from_str(&line) {
            Ok(Answer::Done(value)) => Ok(Some(value)),
            Ok(Answer::Unsupported { unsupported: true }) => Ok(None),
            Ok(Answer::Error { error }) => Err(PairError::Call { who: self.client.who.clone(), what: error }),
            _ => Err(self.client.fault(&format!("answered `{command}` by `{line}`, which is no such answer"))),
        }
    }

    /// CPU time that the server uses in `time` while nobody calls, in nanoseconds per second.
    ///
    /// # Errors
    /// [`PairError`]; the pair is of no further use.
    pub fn idle_ns_per_s(&mut self, time: Duration) -> Result<f64, PairError> {
        let (before, begun) = (self.server.cpu_ns()?, Instant::now());
        while begun.elapsed() < time {
            if self.interrupted.load(Relaxed) {
                return Err(PairError::Interrupted);
            }
            std::thread::sleep(Duration::from_millis(50).min(time));
        }
        Ok((self.server.cpu_ns()? - before) as f64 / begun.elapsed().as_secs_f64())
    }

    /// Memory of server and client, in KiB (proportional set size: shared pages are divided among their users).
    ///
    /// # Errors
    /// [`PairError`]; the pair is of no further use.
    pub fn memory_kib(&self) -> Result<(u64, u64), PairError> {
        Ok((self.server.pss_kib()?, self.client.pss_kib()?))
    }

    /// Ends both, client first, and removes their directory.
    ///
    /// # Errors
    /// When one of them does not end well by itself; it is killed then.
    pub fn end(mut self) -> Result<(), PairError> {
        self.client.say("quit")?;
        self.client.end(self.interrupted)?;
        self.server.end(self.interrupted)
    }
}

impl Drop for Pair<'_> {
    fn drop(&mut self) {
        self.client.kill();
        self.server.kill();
        fs::remove_dir_all(&self.dir).ok();
        remove_shared_memory(&shared_memory_prefix(&self.dir));
    }
}

impl Process {
    fn start(spec: &Spec<'_>, role: &str, cpu: usize, interrupted: &AtomicBool) -> Result<Process, PairError> {
        let errors = spec.dir.join(format!("{role}.stderr"));
        let failed = |error| PairError::Start { exe: spec.exe.to_owned(), error };
        let mut child = Command::new(spec.exe)
            .args(["bench-child", spec.system, role, "--cpu", &cpu.to_string()])
            .args(["--placement", spec.placement.name(), "--mode", spec.mode.name(), "--dir"])
            .arg(&spec.dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&errors).map_err(failed)?)
            .spawn()
            .map_err(failed)?;
        let input = child.stdin.take();
        let Some(output) = child.stdout.take() else { unreachable!("stdout is piped") };
        let who = format!("{} {role} ({}, {})", spec.system, spec.placement, spec.mode);
        let mut process = Process { who, child, input, output, unread: Vec::new(), errors };
        let line = process.line("its start", Instant::now() + START, interrupted)?;
        match line.as_str() {
            "ready" => Ok(process),
            other => Err(process.fault(&format!("said `{other}` where `ready` was expected"))),
        }
    }

    fn say(&mut self, line: &str) -> Result<(), PairError> {
        let said = self.input.as_mut().map(|input| writeln!(input, "{line}"));
        match said {
            Some(Ok(())) => Ok(()),
            _ => Err(self.fault(&format!("ended before `{line}`"))),
        }
    }

    /// The next line that the child prints in answer to `what`.
    fn line(&mut self, what: &str, deadline: Instant, interrupted: &AtomicBool) -> Result<String, PairError> {
        loop {
            if let Some(end) = self.unread.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if self.wait_for_output(deadline, interrupted)? == Waited::TimeUp {
                return Err(self.fault(&format!("no answer in time to {what}")));
            }
            let mut piece = [0; 4096];
            match self.output.read(&mut piece) {
                Ok(0) | Err(_) => return Err(self.fault(&format!("ended in answer to {what}"))),
                Ok(n) => self.unread.extend_from_slice(&piece[..n]),
            }
        }
    }

    fn wait_for_output(&self, deadline: Instant, interrupted: &AtomicBool) -> Result<Waited, PairError> {
        loop {
            if interrupted.load(Relaxed) {
                return Err(PairError::Interrupted);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Waited::TimeUp);
            }
            // An interrupt that comes between the test above and this wait is seen at the end of this wait.
            let tick = Timespec { tv_sec: 0, tv_nsec: left.as_nanos().min(200_000_000) as i64 };
            match poll(&mut [PollFd::new(&self.output, PollFlags::IN)], Some(&tick)) {
                Ok(1..) => return Ok(Waited::Output),
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(self.fault(&format!("cannot be waited for: {error}"))),
            }
        }
    }

    /// Closes the input and waits for the end.
    fn end(&mut self, interrupted: &AtomicBool) -> Result<(), PairError> {
        self.input = None;
        let deadline = Instant::now() + END;
        // The output ends when the child does.
        loop {
            if self.wait_for_output(deadline, interrupted)? == Waited::TimeUp {
                return Err(self.fault("did not end when asked to"));
            }
            if !matches!(self.output.read(&mut [0; 256]), Ok(1..)) {
                break;
            }
        }
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(self.fault(&format!("ended with {status}"))),
            Err(error) => Err(self.fault(&format!("cannot be waited for: {error}"))),
        }
    }

    fn kill(&mut self) {
        // Both do nothing to a child that has ended and been waited for.
        self.child.kill().ok();
        self.child.wait().ok();
    }

    fn fault(&self, what: &str) -> PairError {
        let said = fs::read_to_string(&self.errors).unwrap_or_default();
        let last: Vec<_> = said.lines().rev().take(4).collect();
        let said: Vec<_> = last.into_iter().rev().collect();
        let what = if said.is_empty() { what.to_owned() } else { format!("{what}; it said: {}", said.join(" / ")) };
        PairError::Child { who: self.who.clone(), what }
    }

    fn cpu_ns(&self) -> Result<u64, PairError> {
        let sum = || -> io::Result<u64> {
            let mut sum = 0;
            for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
                let line = fs::read_to_string(task?.path().join("schedstat"))?;
                let ns = line.split(' ').next().and_then(|word| word.parse::<u64>().ok());
                sum += ns.ok_or_else(|| io::Error::other("schedstat is not as documented"))?;
            }
            Ok(sum)
        };
        sum().map_err(|error| self.fault(&format!("no CPU time to be had: {error}")))
    }

    fn pss_kib(&self) -> Result<u64, PairError> {
        let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id()))
            .map_err(|error| self.fault(&format!("no memory figures to be had: {error}")))?;
        rollup
            .lines()
            .find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB")?.parse().ok())
            .ok_or_else(|| self.fault("smaps_rollup is not as documented"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

#[derive(PartialEq, Eq)]
enum Waited {
    Output,
    TimeUp,
}
