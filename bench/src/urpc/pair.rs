//! A server and a client of the suite, each a child process, and a child that measures a part of a
//! call.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::case::Part;
use super::child::{Calls, Waits};
use super::config::Config;
use crate::place;
use crate::process::{ChildError, Process};
use crate::stats::Summary;

/// Maximum time for a child to end.
const END: Duration = Duration::from_secs(3);
/// Maximum time for a command beyond its requested duration.
const PATIENCE: Duration = Duration::from_secs(20);

/// The pair to start.
#[derive(Debug, Clone)]
pub struct Spec<'a> {
    /// The program.
    pub exe: &'a Path,
    /// C and S.
    pub config: Config,
    /// How both sides wait.
    pub waits: Waits,
    /// Processors of the client and of the server.
    pub cpus: (Vec<usize>, Vec<usize>),
    /// Directory for this pair. It is created at the start and removed at the end.
    pub dir: PathBuf,
}

/// A running server with its client.
pub struct Pair<'a> {
    // Fields drop in this order: the client goes first.
    client: Process,
    server: Process,
    dir: Directory,
    interrupted: &'a AtomicBool,
}

/// Removed on drop.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

impl<'a> Pair<'a> {
    /// Starts server and client and waits until both are ready.
    ///
    /// # Errors
    /// [`ChildError`]; no process is left running.
    pub fn start(spec: &Spec<'_>, interrupted: &'a AtomicBool) -> Result<Pair<'a>, ChildError> {
        fs::create_dir(&spec.dir)
            .map_err(|error| ChildError::Start { exe: spec.dir.clone(), error })?;
        let dir = Directory(spec.dir.clone());
        let server = start(spec, "server", &spec.cpus.1, interrupted)?;
        let client = start(spec, "client", &spec.cpus.0, interrupted)?;
        Ok(Pair { client, server, dir, interrupted })
    }

    /// Makes null calls by `threads` threads, twice for `time`.
    ///
    /// # Errors
    /// [`ChildError`]; the pair is unusable afterwards.
    pub fn calls(&mut self, threads: usize, time: Duration) -> Result<Calls, ChildError> {
        let command = format!("calls {threads} {}", time.as_millis());
        let calls = self.client.ask(&command, 3 * time + PATIENCE, self.interrupted)?;
        calls.ok_or_else(|| self.client.fault("does not support calls, which every system must"))
    }

    /// Ends both, client first, and removes their directory.
    ///
    /// # Errors
    /// A process did not end by itself, or failed; it is killed then.
    pub fn end(self) -> Result<(), ChildError> {
        let Pair { mut client, mut server, dir, interrupted } = self;
        client.say("quit")?;
        client.end(END, interrupted)?;
        server.end(END, interrupted)?;
        drop(dir);
        Ok(())
    }
}

/// Starts one of the two, and waits until it is ready.
fn start(
    spec: &Spec<'_>,
    role: &str,
    cpus: &[usize],
    interrupted: &AtomicBool,
) -> Result<Process, ChildError> {
    let cpus = place::list(cpus);
    let mut command = Command::new(spec.exe);
    command.args([
        "bench-urpc",
        role,
        "--config",
        &spec.config.to_string(),
        "--waits",
        spec.waits.name(),
        "--cpus",
        &cpus,
    ]);
    command.arg("--dir").arg(&spec.dir);
    let who = format!("upcall {role} (C,S = {}, {})", spec.config, spec.waits.name());
    Process::ready(command, who, spec.dir.join(format!("{role}.stderr")), interrupted)
}

/// Measures a part of a call in a process of its own, on processor `cpu`. Its standard error goes
/// to the file `errors`.
///
/// # Errors
/// [`ChildError`].
pub fn part(
    exe: &Path,
    part: Part,
    samples: usize,
    cpu: usize,
    errors: &Path,
    interrupted: &AtomicBool,
) -> Result<Summary, ChildError> {
    let mut command = Command::new(exe);
    command.args(["bench-urpc", "part", part.name(), &samples.to_string()]);
    // Without a backtrace the reason is the last line; the harness shows the last lines.
    command.env("RUST_BACKTRACE", "0");
    let started =
        place::on(cpu, || Process::start(command, format!("upcall, {part}"), errors.to_owned()));
    let mut process =
        started.map_err(|error| ChildError::Start { exe: exe.to_owned(), error })??;
    let line = process.line(part.name(), Instant::now() + PATIENCE, interrupted)?;
    process.finding(&line, END, interrupted)
}
