//! A child process, and communication with it.
//!
//! The harness never hangs and leaves no process behind: every wait has a time limit and observes
//! an interrupt, a child is killed on drop, and a child asks the kernel to kill it when the harness
//! dies.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::{place, raw};

/// Why a child, or a pair of children, could not be measured.
#[derive(Debug)]
pub enum ChildError {
    /// The harness was asked to stop (SIGINT or SIGTERM).
    Interrupted,
    /// The program cannot be started.
    Start {
        /// The program.
        exe: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// A child ended, answered unexpectedly, or did not answer in time.
    Child {
        /// System and role.
        who: String,
        /// What was expected and what happened, with the child's own output.
        what: String,
    },
    /// The client reported a failed call.
    Call {
        /// System and role.
        who: String,
        /// The client's message.
        what: String,
    },
}

impl fmt::Display for ChildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChildError::Interrupted => write!(f, "interrupted"),
            ChildError::Start { exe, error } => {
                write!(f, "cannot start {}: {error}", exe.display())
            }
            ChildError::Child { who, what } | ChildError::Call { who, what } => {
                write!(f, "{who}: {what}")
            }
        }
    }
}

impl std::error::Error for ChildError {}

/// Maximum time for a child to become ready.
const START: Duration = Duration::from_secs(20);

/// An answer of a child.
#[derive(Deserialize)]
#[serde(untagged)]
enum Answer<T> {
    Done(T),
    Unsupported { unsupported: bool },
    Error { error: String },
}

/// A child, killed on drop.
pub struct Process {
    /// Its name in errors.
    pub who: String,
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
    unread: Vec<u8>,
    errors: PathBuf,
}

impl Process {
    /// Starts `command`, with standard error redirected to the file `errors`. The harness uses the
    /// child's input and output.
    ///
    /// # Errors
    /// [`ChildError::Start`].
    pub fn start(
        mut command: Command,
        who: String,
        errors: PathBuf,
    ) -> Result<Process, ChildError> {
        let exe = PathBuf::from(command.get_program());
        let failed = |error| ChildError::Start { exe: exe.clone(), error };
        let said = File::create(&errors).map_err(failed)?;
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(said).spawn();
        let mut child = spawned.map_err(failed)?;
        let input = child.stdin.take();
        let Some(output) = child.stdout.take() else { unreachable!("stdout is piped") };
        Ok(Process { who, child, input, output, unread: Vec::new(), errors })
    }

    /// Like [`Process::start`], and waits until the child is ready.
    ///
    /// # Errors
    /// The child does not start, or is not ready in time.
    pub fn ready(
        command: Command,
        who: String,
        errors: PathBuf,
        interrupted: &AtomicBool,
    ) -> Result<Process, ChildError> {
        let mut process = Process::start(command, who, errors)?;
        match process.line("its start", Instant::now() + START, interrupted)?.as_str() {
            "ready" => Ok(process),
            other => Err(process.fault(&format!("said `{other}` where `ready` was expected"))),
        }
    }

    /// Sends a command and returns the answer, or `None` if the child does not support it.
    ///
    /// # Errors
    /// [`ChildError`]; the child is unusable afterwards.
    pub fn ask<T: DeserializeOwned>(
        &mut self,
        command: &str,
        limit: Duration,
        interrupted: &AtomicBool,
    ) -> Result<Option<T>, ChildError> {
        self.say(command)?;
        self.answer(command, limit, interrupted)
    }

    /// Waits for the answer to a command that was sent.
    ///
    /// # Errors
    /// [`ChildError`]; the child is unusable afterwards.
    pub fn answer<T: DeserializeOwned>(
        &mut self,
        command: &str,
        limit: Duration,
        interrupted: &AtomicBool,
    ) -> Result<Option<T>, ChildError> {
        let line = self.line(command, Instant::now() + limit, interrupted)?;
        match serde_json::from_str(&line) {
            Ok(Answer::Done(value)) => Ok(Some(value)),
            Ok(Answer::Unsupported { unsupported: true }) => Ok(None),
            Ok(Answer::Error { error }) => {
                Err(ChildError::Call { who: self.who.clone(), what: error })
            }
            _ => Err(self.fault(&format!("gave the invalid answer `{line}` to `{command}`"))),
        }
    }

    /// Reads a child's finding from the last line that it prints, and waits for its end.
    ///
    /// # Errors
    /// The line is not a finding, or the child does not end successfully within that time.
    pub fn finding<T: DeserializeOwned>(
        mut self,
        line: &str,
        within: Duration,
        interrupted: &AtomicBool,
    ) -> Result<T, ChildError> {
        let found = serde_json::from_str(line)
            .map_err(|_| self.fault(&format!("gave the invalid answer `{line}`")))?;
        self.end(within, interrupted)?;
        Ok(found)
    }

    /// Writes a line to the child's input.
    ///
    /// # Errors
    /// The child has ended.
    pub fn say(&mut self, line: &str) -> Result<(), ChildError> {
        let said = self.input.as_mut().map(|input| writeln!(input, "{line}"));
        match said {
            Some(Ok(())) => Ok(()),
            _ => Err(self.fault(&format!("ended before `{line}`"))),
        }
    }

    /// Reads the next line that the child prints in answer to `what`.
    ///
    /// # Errors
    /// No line arrives before `deadline`.
    pub fn line(
        &mut self,
        what: &str,
        deadline: Instant,
        interrupted: &AtomicBool,
    ) -> Result<String, ChildError> {
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
                Ok(0) | Err(_) => {
                    // The exit status says more than a missing answer. A child that is still ending
                    // would not answer either.
                    self.child.kill().ok();
                    let how =
                        self.child.wait().map_or(String::new(), |status| format!(" ({status})"));
                    return Err(self.fault(&format!("ended in answer to {what}{how}")));
                }
                Ok(n) => self.unread.extend_from_slice(&piece[..n]),
            }
        }
    }

    fn wait_for_output(
        &self,
        deadline: Instant,
        interrupted: &AtomicBool,
    ) -> Result<Waited, ChildError> {
        loop {
            if interrupted.load(Relaxed) {
                return Err(ChildError::Interrupted);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Waited::TimeUp);
            }
            // An interrupt that arrives between the check above and this wait is noticed at the end
            // of the wait.
            let tick = Timespec { tv_sec: 0, tv_nsec: left.as_nanos().min(200_000_000) as i64 };
            match poll(&mut [PollFd::new(&self.output, PollFlags::IN)], Some(&tick)) {
                Ok(1..) => return Ok(Waited::Output),
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(self.fault(&format!("cannot be waited for: {error}"))),
            }
        }
    }

    /// Closes the input and waits for the end.
    ///
    /// # Errors
    /// The child does not end successfully within that time.
    pub fn end(&mut self, within: Duration, interrupted: &AtomicBool) -> Result<(), ChildError> {
        self.input = None;
        let deadline = Instant::now() + within;
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

    /// Asks a child that has to clean up after others to end. Returns `true` if it ends in time.
    pub fn terminate(&mut self, within: Duration) -> bool {
        if let (Ok(None), Some(id)) = (self.child.try_wait(), Pid::from_raw(self.child.id() as i32))
        {
            kill_process(id, Signal::TERM).ok();
        }
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begun.elapsed() > within {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }

    /// Kills the child without waiting for its end.
    pub fn strike(&mut self) {
        self.child.kill().ok();
    }

    /// Kills the child and waits for its end.
    pub fn kill(&mut self) {
        // Neither does anything to a child that was already waited for.
        self.child.kill().ok();
        self.child.wait().ok();
    }

    /// Makes an error of this child, with the child's own output.
    pub fn fault(&self, what: &str) -> ChildError {
        let said = fs::read_to_string(&self.errors).unwrap_or_default();
        let last: Vec<_> = said.lines().rev().take(4).collect();
        let said: Vec<_> = last.into_iter().rev().collect();
        let what = if said.is_empty() {
            what.to_owned()
        } else {
            format!("{what}; it said: {}", said.join(" / "))
        };
        ChildError::Child { who: self.who.clone(), what }
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Keeps all threads of the child, and those that they start, on these processors from now on.
    ///
    /// # Errors
    /// The child has ended, or none of the processors exists.
    pub fn confine(&self, cpus: &[usize]) -> Result<(), ChildError> {
        place::confine_process(self.child.id(), cpus)
            .map_err(|error| self.fault(&format!("cannot be confined: {error}")))
    }

    /// Returns the CPU time of all threads of the child so far.
    ///
    /// # Errors
    /// The child has ended.
    pub fn cpu_ns(&self) -> Result<u64, ChildError> {
        cpu_ns(self.child.id())
            .map_err(|error| self.fault(&format!("its CPU time cannot be read: {error}")))
    }

    /// Returns the child's memory, in KiB (proportional set size).
    ///
    /// # Errors
    /// The child has ended.
    pub fn pss_kib(&self) -> Result<u64, ChildError> {
        pss_kib(self.child.id())
            .map_err(|error| self.fault(&format!("its memory cannot be read: {error}")))
    }
}

/// Waits for `time`.
///
/// # Errors
/// The run was interrupted.
pub fn pause(time: Duration, interrupted: &AtomicBool) -> Result<(), ChildError> {
    let begun = Instant::now();
    while begun.elapsed() < time {
        if interrupted.load(Relaxed) {
            return Err(ChildError::Interrupted);
        }
        std::thread::sleep(Duration::from_millis(20).min(time));
    }
    Ok(())
}

/// Returns the CPU time of all threads of a process so far, also of those that have ended.
///
/// # Errors
/// The process has ended.
pub fn cpu_ns(process: u32) -> io::Result<u64> {
    raw::process_cpu_ns(process)
}

/// Returns the memory of a process, in KiB (proportional set size).
///
/// # Errors
/// The process has ended.
pub fn pss_kib(process: u32) -> io::Result<u64> {
    let rollup = fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
    let pss = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB")?.parse().ok());
    pss.ok_or_else(|| io::Error::other("smaps_rollup is not as documented"))
}

/// Returns the running descendants of a process.
pub fn descendants(process: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parents: Vec<(u32, u32)> = ids.filter_map(|id| Some((id, parent(id)?))).collect();
    let mut found = vec![process];
    let mut at = 0;
    while at < found.len() {
        let of = found[at];
        found.extend(parents.iter().filter(|(_, parent)| *parent == of).map(|(id, _)| *id));
        at += 1;
    }
    found.split_off(1)
}

fn parent(process: u32) -> Option<u32> {
    // The name may contain brackets and spaces.
    let line = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    line.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_has_started_is_found() {
        // Two commands, so that the shell stays.
        let mut child = Command::new("sh").args(["-c", "sleep 60; true"]).spawn().unwrap();
        let begun = Instant::now();
        let found = loop {
            let found = descendants(child.id());
            if !found.is_empty() || begun.elapsed() > Duration::from_secs(10) {
                break found;
            }
        };
        assert!(descendants(std::process::id()).contains(&child.id()));
        let [sleep] = found[..] else { panic!("{found:?}") };
        kill_process(Pid::from_raw(sleep as i32).unwrap(), Signal::KILL).unwrap();
        child.wait().unwrap();
    }
}
