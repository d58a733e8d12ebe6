//! A program that a test has started and speaks with, line by line.

use crate::usage::is_stopped;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long a party may take to say something.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A program under a test's control. Killed on drop.
#[derive(Debug)]
pub struct Party {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    /// What it writes to its standard error.
    errors: File,
    what: String,
}

/// What a party said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// It worked, with these words.
    Ok(Vec<String>),
    /// It did not: the variant of the error, and its text.
    Error {
        /// The variant's name, with that of the variant inside if there is one.
        kind: String,
        /// What a user would read.
        text: String,
    },
}

impl Said {
    /// The words of a success.
    ///
    /// # Panics
    /// It was none.
    #[track_caller]
    pub fn expect_ok(self, what: &str) -> Vec<String> {
        match self {
            Self::Ok(words) => words,
            Self::Error { kind, text } => panic!("{what}: {kind}: {text}"),
        }
    }

    /// The text of an error of this kind, which contains all of `parts`.
    ///
    /// # Panics
    /// It was none, or another one.
    #[track_caller]
    pub fn expect_error(self, expected: &str, parts: &[&str]) -> String {
        match self {
            Self::Error { kind, text } if kind.starts_with(expected) => {
                println!("    {kind}: {}", text.replace('\n', "\n        "));
                for part in parts {
                    assert!(
                        text.contains(part),
                        "the text of {kind} does not say {part:?}: {text}"
                    );
                }
                text
            }
            other => panic!("expected {expected}, found {other:?}"),
        }
    }

    /// The numbers of a success.
    ///
    /// # Panics
    /// It was none, or has something else than numbers.
    #[track_caller]
    pub fn numbers(self, what: &str) -> Vec<u64> {
        let words = self.expect_ok(what);
        words
            .iter()
            .map(|word| word.parse().unwrap_or_else(|_| panic!("{what}: {words:?}")))
            .collect()
    }

    /// As a party writes it.
    pub fn to_line(&self) -> String {
        match self {
            Self::Ok(words) => format!("ok {}", words.join(" ")),
            Self::Error { kind, text } => format!("error {kind} {}", text.replace('\n', "\\n")),
        }
    }

    fn from_line(line: &str) -> Self {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("error", rest) => {
                let (kind, text) = rest.split_once(' ').unwrap_or((rest, ""));
                Self::Error { kind: kind.into(), text: text.replace("\\n", "\n") }
            }
            (_, rest) => Self::Ok(rest.split_whitespace().map(String::from).collect()),
        }
    }

    /// An error by its variant's name.
    pub fn error(error: &(dyn std::error::Error + 'static)) -> Self {
        let debug = format!("{error:?}");
        let kind =
            debug.split(|c: char| !c.is_alphanumeric()).filter(|part| !part.is_empty()).take(2);
        Self::Error { kind: kind.collect::<Vec<_>>().join("."), text: error.to_string() }
    }
}

impl Party {
    /// Starts a program whose standard input and output are lines. What it writes to its standard
    /// error is written to ours when it has ended, and belongs to the text of a panic here.
    ///
    /// # Panics
    /// It cannot be started.
    pub fn start(command: Command, what: &str) -> Self {
        let errors =
            memfd_create("errors", MemfdFlags::CLOEXEC).expect("a file for what it complains of");
        Self::with_errors(command, what, errors.into())
    }

    /// The same with a file for its standard error.
    ///
    /// # Panics
    /// It cannot be started.
    pub fn with_errors(mut command: Command, what: &str, errors: File) -> Self {
        let theirs = errors.try_clone().expect("a descriptor for what it complains of");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(theirs);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("starting {what}: {error}"));
        let (send, lines) = channel();
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        let input = child.stdin.take();
        Self { child, input, lines, errors, what: what.into() }
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Says a line to it.
    #[track_caller]
    pub fn say(&mut self, line: &str) {
        let input = self.input.as_mut().expect("its input is open");
        writeln!(input, "{line}").unwrap_or_else(|error| {
            panic!("{}: {line}: {error}{}", self.what, complaints(&self.errors))
        });
    }

    /// Waits for what it says next.
    ///
    /// # Panics
    /// It says nothing, or has ended.
    #[track_caller]
    pub fn hear(&mut self) -> Said {
        self.hear_within(PATIENCE)
    }

    /// The same with another limit.
    #[track_caller]
    pub fn hear_within(&mut self, limit: Duration) -> Said {
        match self.lines.recv_timeout(limit) {
            Ok(line) => Said::from_line(&line),
            Err(RecvTimeoutError::Timeout) => {
                panic!("{} (process {}) hangs: nothing said in {limit:?}", self.what, self.pid())
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.ended();
                panic!("{} has ended: {status}{}", self.what, complaints(&self.errors))
            }
        }
    }

    /// What it says next, if it says anything before it ends.
    ///
    /// # Panics
    /// It does neither.
    #[track_caller]
    pub fn try_hear(&mut self) -> Option<Said> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Some(Said::from_line(&line)),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                panic!("{} (process {}) hangs", self.what, self.pid())
            }
        }
    }

    /// What it has said by now and was not heard yet: the next line.
    pub fn heard(&mut self) -> Option<Said> {
        self.lines.try_recv().ok().map(|line| Said::from_line(&line))
    }

    /// Says a line to it and waits for the answer.
    #[track_caller]
    pub fn ask(&mut self, line: &str) -> Said {
        self.say(line);
        self.hear()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid() as i32).expect("a process number");
        let _ = kill_process(pid, signal);
    }

    /// Stops it (SIGSTOP), and waits until all of its kernel threads have: the signal is taken by
    /// one of them, which has to run for that, and meanwhile the others go on.
    ///
    /// # Panics
    /// They do not stop.
    #[track_caller]
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let start = Instant::now();
        while !is_stopped(self.pid()) {
            assert!(start.elapsed() < PATIENCE, "{} does not stop", self.what);
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Ends it at once (`kill -9`), without waiting for the kernel to be done with it. Returns when
    /// that was, by [`crate::now`].
    pub fn kill(&self) -> u64 {
        let at = crate::now();
        self.signal(Signal::KILL);
        at
    }

    /// Whether it is still running.
    pub fn lives(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// It does not end.
    pub fn ended(&mut self) -> ExitStatus {
        drop(self.input.take());
        let start = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return status,
                Ok(None) => assert!(start.elapsed() < PATIENCE, "{} does not end", self.what),
                Err(error) => panic!("{}: {error}", self.what),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Party {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let said = complaints(&self.errors);
        if !said.is_empty() {
            eprintln!("{} wrote to its standard error:{said}", self.what);
        }
    }
}

/// What such a file has, on lines of its own; its last 4 KiB.
fn complaints(errors: &File) -> String {
    let len = errors.metadata().map_or(0, |found| found.len());
    let from = len.saturating_sub(4096);
    let mut said = vec![0; (len - from) as usize];
    let read = errors.read_exact_at(&mut said, from);
    let said = String::from_utf8_lossy(&said);
    if read.is_err() || said.trim().is_empty() {
        String::new()
    } else {
        format!("\n{}", said.trim_end())
    }
}
