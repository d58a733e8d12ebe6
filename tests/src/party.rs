//! A program that a test has started, and talks to line by line.

use crate::usage::is_stopped;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Longest wait for a party's reply.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A program under a test's control. It is killed on drop.
#[derive(Debug)]
pub struct Party {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    /// The party's standard error.
    errors: File,
    what: String,
}

/// An error's variant and fields in one word.
pub fn structure_of(error: &dyn std::error::Error) -> String {
    let lines = format!("{error:#?}");
    let word: String = lines.split_whitespace().collect();
    word.replace(",}", "}").replace(",)", ")")
}

/// A party's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// The command succeeded, with these words.
    Ok(Vec<String>),
    /// The command failed, with the variant of the error and its text.
    Error {
        /// The variant's name, followed by that of the variant inside if there is one.
        kind: String,
        /// The text that a user would read.
        text: String,
    },
}

impl Said {
    /// The words of a success.
    ///
    /// # Panics
    /// If the reply is an error.
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
    /// If the reply is a success, or another error.
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
    /// If the reply is an error, or has a word that is not a number.
    #[track_caller]
    pub fn numbers(self, what: &str) -> Vec<u64> {
        let words = self.expect_ok(what);
        words
            .iter()
            .map(|word| word.parse().unwrap_or_else(|_| panic!("{what}: {words:?}")))
            .collect()
    }

    /// The reply as the line that a party writes.
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
        let debug = format!("{error:#?}");
        let kind =
            debug.split(|c: char| !c.is_alphanumeric()).filter(|part| !part.is_empty()).take(2);
        Self::Error { kind: kind.collect::<Vec<_>>().join("."), text: error.to_string() }
    }
}

impl Party {
    /// Starts a program whose standard input and output are lines. When the program has ended, its
    /// standard error is copied to that of the test, and it is part of the text of a panic here.
    ///
    /// # Panics
    /// If the program cannot be started.
    pub fn start(command: Command, what: &str) -> Self {
        let errors =
            memfd_create("errors", MemfdFlags::CLOEXEC).expect("a file for what it complains of");
        Self::with_errors(command, what, errors.into())
    }

    /// Starts a program with this file as its standard error.
    ///
    /// # Panics
    /// If the program cannot be started.
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

    /// The party's process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes a line to the party.
    #[track_caller]
    pub fn say(&mut self, line: &str) {
        let input = self.input.as_mut().expect("its input is open");
        writeln!(input, "{line}").unwrap_or_else(|error| {
            panic!("{}: {line}: {error}{}", self.what, complaints(&self.errors))
        });
    }

    /// Waits for the party's next reply.
    ///
    /// # Panics
    /// If the party sends none, or has ended.
    #[track_caller]
    pub fn hear(&mut self) -> Said {
        self.hear_within(PATIENCE)
    }

    /// Waits for the party's next reply with another time limit.
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

    /// The party's next reply; `None` if it ends first.
    ///
    /// # Panics
    /// If the party does neither.
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

    /// The next line that the party has already written and that was not read yet.
    pub fn heard(&mut self) -> Option<Said> {
        self.lines.try_recv().ok().map(|line| Said::from_line(&line))
    }

    /// Writes a line to the party and waits for the reply.
    #[track_caller]
    pub fn ask(&mut self, line: &str) -> Said {
        self.say(line);
        self.hear()
    }

    /// Sends the party a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid() as i32).expect("a process number");
        let _ = kill_process(pid, signal);
    }

    /// Stops the party (SIGSTOP), and waits until all of its kernel threads have stopped. One of
    /// the threads has to run to take the signal, and the others go on until then.
    ///
    /// # Panics
    /// If they do not stop.
    #[track_caller]
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let start = Instant::now();
        while !is_stopped(self.pid()) {
            assert!(start.elapsed() < PATIENCE, "{} does not stop", self.what);
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Ends the party at once (`kill -9`), without waiting until the kernel has ended it. Returns
    /// the time of the signal, by [`crate::now`].
    pub fn kill(&self) -> u64 {
        let at = crate::now();
        self.signal(Signal::KILL);
        at
    }

    /// Returns `true` if the party is still running.
    pub fn lives(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for the party's end.
    ///
    /// # Panics
    /// If the party does not end.
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

/// The last 4 KiB of such a file, on separate lines.
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
