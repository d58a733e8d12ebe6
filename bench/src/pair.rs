//! A server and a client as child processes.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use crate::case::{Case, Mode, Placement};
use crate::child::{Binds, Halves, Throughput};
use crate::place;
use crate::process::{self, ChildError, Process};
use crate::remains::{Held, Remains};
use crate::stats::Summary;

/// Maximum time for a child to end.
const END: Duration = Duration::from_secs(3);
/// Maximum time for a command beyond its requested duration.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the prefix of the names of a pair's files in /dev/shm: the names of its directory and
/// the run's.
pub fn shared_memory_prefix(dir: &Path) -> String {
    let name = |path: Option<&Path>| {
        path.and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned()
    };
    format!("{}-{}-", name(dir.parent()), name(Some(dir)))
}

/// Removes the files in /dev/shm whose names begin with `prefix`.
pub fn remove_shared_memory(prefix: &str) {
    for file in fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
        if file.file_name().to_string_lossy().starts_with(prefix) {
            fs::remove_file(file.path()).ok();
        }
    }
}

/// The pair to start.
#[derive(Debug, Clone)]
pub struct Spec<'a> {
    /// The program that contains the system.
    pub exe: &'a Path,
    /// The system.
    pub system: &'a str,
    /// Where client and server run.
    pub placement: Placement,
    /// How the server waits.
    pub mode: Mode,
    /// The server's processors.
    pub server: &'a [usize],
    /// The processors of each client.
    pub clients: &'a [&'a [usize]],
    /// Directory for this pair. It is created at the start and removed at the end.
    pub dir: PathBuf,
}

/// A running server with one or more clients.
pub struct Pair<'a> {
    // Fields drop in this order: clients go first.
    client: Process,
    others: Vec<Process>,
    server: Process,
    dir: PathBuf,
    interrupted: &'a AtomicBool,
}

impl<'a> Pair<'a> {
    /// Starts a server and the clients, and waits until all are ready.
    ///
    /// # Errors
    /// [`ChildError`]; no process is left running.
    ///
    /// # Panics
    /// There is no client.
    pub fn start(spec: &Spec<'_>, interrupted: &'a AtomicBool) -> Result<Pair<'a>, ChildError> {
        Pair::start_at(spec, false, interrupted)
    }

    /// Like [`start`](Self::start); if `at_home` is set, the pair's home directory is its own
    /// directory, so that files which a system keeps there for its user or temporarily are found.
    ///
    /// # Errors
    /// [`ChildError`]; no process is left running.
    ///
    /// # Panics
    /// There is no client.
    pub fn start_at(
        spec: &Spec<'_>,
        at_home: bool,
        interrupted: &'a AtomicBool,
    ) -> Result<Pair<'a>, ChildError> {
        let no_dir = |error| ChildError::Start { exe: spec.dir.clone(), error };
        // The mode that Upcall requires of a directory of names.
        fs::DirBuilder::new().mode(0o700).create(&spec.dir).map_err(no_dir)?;
        let started = || {
            let start = |role: &str, cpus: &[usize]| {
                let mut command = command(spec, role, cpus);
                if at_home {
                    for variable in ["HOME", "TMPDIR", "XDG_RUNTIME_DIR", "UPCALL_DIR"] {
                        command.env(variable, &spec.dir);
                    }
                }
                let who = format!("{} {role} ({}, {})", spec.system, spec.placement, spec.mode);
                Process::ready(command, who, spec.dir.join(format!("{role}.stderr")), interrupted)
            };
            let server = start("server", spec.server)?;
            let client = |cpus: &&[usize]| start("client", cpus);
            let (first, others) = spec.clients.split_first().expect("a pair has a client");
            let client_and_others =
                (client(first)?, others.iter().map(client).collect::<Result<_, _>>()?);
            Ok((client_and_others, server))
        };
        match started() {
            Ok(((client, others), server)) => {
                Ok(Pair { client, others, server, dir: spec.dir.clone(), interrupted })
            }
            Err(error) => {
                fs::remove_dir_all(&spec.dir).ok();
                Err(error)
            }
        }
    }

    /// Makes `count` calls timed one by one and as many timed together, or fewer of either when
    /// `most` is over.
    ///
    /// # Errors
    /// [`ChildError`]; the pair is unusable afterwards.
    pub fn latency(
        &mut self,
        case: Case,
        count: u64,
        most: Duration,
    ) -> Result<Summary, ChildError> {
        let summary =
            self.ask(&format!("latency {case} {count} {}", most.as_millis()), PATIENCE)?;
        summary
            .ok_or_else(|| self.client.fault("does not support latency, which every system must"))
    }

    /// Makes null calls by `callers` callers for `time`. Returns `None` if the system does not
    /// support that many.
    ///
    /// # Errors
    /// [`ChildError`]; the pair is unusable afterwards.
    pub fn throughput(
        &mut self,
        callers: usize,
        time: Duration,
    ) -> Result<Option<Throughput>, ChildError> {
        self.ask(&format!("throughput null {callers} {}", time.as_millis()), time + PATIENCE)
    }

    /// Times binds for `rounds` rounds. Returns `None` if the system does not distinguish first and
    /// further binds.
    ///
    /// # Errors
    /// [`ChildError`]; the pair is unusable afterwards.
    pub fn bind(&mut self, rounds: u64) -> Result<Option<Binds>, ChildError> {
        self.ask(&format!("bind {rounds}"), PATIENCE)
    }

    /// Times the halves of `count` null calls. Returns `None` if the system has no procedure that
    /// reports when it ran.
    ///
    /// # Errors
    /// [`ChildError`]; the pair is unusable afterwards.
    pub fn halves(&mut self, count: u64) -> Result<Option<Halves>, ChildError> {
        self.ask(&format!("halves {count}"), PATIENCE)
    }

    /// Makes null calls by the clients of all pairs at once, one caller each, for `time`. Returns
    /// the throughput of each, or `None` if a system does not support it.
    ///
    /// # Errors
    /// [`ChildError`]; the pairs are unusable afterwards.
    pub fn together(
        pairs: &mut [Pair<'_>],
        time: Duration,
    ) -> Result<Option<Vec<Throughput>>, ChildError> {
        let command = format!("throughput null 1 {}", time.as_millis());
        for pair in &mut *pairs {
            pair.clients().try_for_each(|client| client.say(&command))?;
        }
        let answers = pairs.iter_mut().flat_map(|pair| {
            let interrupted = pair.interrupted;
            pair.clients().map(move |client| (client, interrupted))
        });
        answers
            .map(|(client, interrupted)| client.answer(&command, time + PATIENCE, interrupted))
            .collect()
    }

    /// Makes null calls for `time` from the first pair's client to the servers of all pairs,
    /// `first` of 16 to its own. Returns `None` if the system does not call several servers.
    ///
    /// # Errors
    /// [`ChildError`]; the pairs are unusable afterwards.
    ///
    /// # Panics
    /// There is no pair.
    pub fn mix(
        pairs: &mut [Pair<'_>],
        first: usize,
        time: Duration,
    ) -> Result<Option<Throughput>, ChildError> {
        let (own, others) = pairs.split_first_mut().expect("a pair whose client calls");
        let others: String = others.iter().map(|pair| format!(" {}", pair.dir.display())).collect();
        own.ask(&format!("mix {first} {}{others}", time.as_millis()), time + PATIENCE)
    }

    fn clients(&mut self) -> impl Iterator<Item = &mut Process> {
        std::iter::once(&mut self.client).chain(&mut self.others)
    }

    fn ask<T: DeserializeOwned>(
        &mut self,
        command: &str,
        limit: Duration,
    ) -> Result<Option<T>, ChildError> {
        self.client.ask(command, limit, self.interrupted)
    }

    /// Measures the CPU time that server and client use in `time` without calls, in nanoseconds per
    /// second.
    ///
    /// # Errors
    /// [`ChildError`]; the pair is unusable afterwards.
    pub fn idle_ns_per_s(&mut self, time: Duration) -> Result<[f64; 2], ChildError> {
        let spent = || Ok([self.server.cpu_ns()?, self.client.cpu_ns()?]);
        let (before, begun) = (spent()?, Instant::now());
        process::pause(time, self.interrupted)?;
        let (after, seconds) = (spent()?, begun.elapsed().as_secs_f64());
        Ok([0, 1].map(|at| after[at].saturating_sub(before[at]) as f64 / seconds))
    }

    /// Kills all processes at once, and returns what is left of them.
    pub fn killed(mut self) -> Remains {
        let mut all = vec![self.server.id()];
        all.extend(self.clients().map(|client| client.id()));
        let others: Vec<u32> = all.iter().flat_map(|id| process::descendants(*id)).collect();
        all.extend(others);
        let held = Held::by(&all, &shared_memory_prefix(&self.dir));
        self.server.strike();
        self.clients().for_each(Process::kill);
        self.server.kill();
        held.left(&self.dir)
    }

    /// Returns the memory of server and client, in KiB (proportional set size: shared pages are
    /// divided among their users).
    ///
    /// # Errors
    /// [`ChildError`]; the pair is unusable afterwards.
    pub fn memory_kib(&self) -> Result<[u64; 2], ChildError> {
        Ok([self.server.pss_kib()?, self.client.pss_kib()?])
    }

    /// Ends all processes, clients first, and removes their directory.
    ///
    /// # Errors
    /// A process did not end by itself, or failed; all are killed then.
    pub fn end(mut self) -> Result<(), ChildError> {
        let interrupted = self.interrupted;
        for client in self.clients() {
            client.say("quit")?;
            client.end(END, interrupted)?;
        }
        self.server.end(END, self.interrupted)
    }
}

impl Drop for Pair<'_> {
    fn drop(&mut self) {
        self.clients().for_each(Process::kill);
        self.server.kill();
        fs::remove_dir_all(&self.dir).ok();
        remove_shared_memory(&shared_memory_prefix(&self.dir));
    }
}

fn command(spec: &Spec<'_>, role: &str, cpus: &[usize]) -> Command {
    let mut command = Command::new(spec.exe);
    command
        .args(["bench-child", spec.system, role, "--cpus", &place::list(cpus)])
        .args(["--placement", spec.placement.name(), "--mode", spec.mode.name(), "--dir"])
        .arg(&spec.dir);
    command
}
