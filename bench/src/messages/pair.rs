//! A sender and a receiver as child processes.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use super::case::Case;
use super::child::{MEMORY, Processes, Side};
use super::contender::{Contender, Program};
use super::raw;
use crate::built::ORTERUN;
use crate::case::Placement;
use crate::found::Found;
use crate::pair::{remove_shared_memory, shared_memory_prefix};
use crate::process::{self, ChildError, Process};

/// Maximum time for the two to connect.
const START: Duration = Duration::from_secs(20);
/// Maximum time for a child to end.
const END: Duration = Duration::from_secs(5);
/// Maximum time for a command beyond its requested duration.
const PATIENCE: Duration = Duration::from_secs(20);

/// The pair to start.
#[derive(Debug, Clone)]
pub struct Spec<'a> {
    /// The program that contains the system.
    pub exe: &'a Path,
    /// The system.
    pub contender: Contender,
    /// Where the two processes run.
    pub placement: Placement,
    /// The processors of sender and receiver.
    pub cpus: (usize, usize),
    /// Directory for this pair. It is created at the start and removed at the end.
    pub dir: PathBuf,
}

/// A running sender with its receiver.
pub struct Pair<'a> {
    // Fields drop in this order.
    sender: Process,
    /// `None` if one command has started both.
    receiver: Option<Process>,
    _dir: Directory,
    interrupted: &'a AtomicBool,
}

/// The directory of a pair with its memory. Drop removes it, and the pair's files in /dev/shm.
struct Directory {
    path: PathBuf,
    /// The memory, which children open by this process's descriptor.
    _memory: OwnedFd,
}

impl Directory {
    fn make(path: PathBuf) -> io::Result<Directory> {
        let memory = raw::create()?;
        fs::create_dir(&path)?;
        let file = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
        let directory = Directory { path, _memory: memory };
        symlink(file, directory.path.join(MEMORY))?;
        Ok(directory)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.path).ok();
        remove_shared_memory(&shared_memory_prefix(&self.path));
    }
}

impl<'a> Pair<'a> {
    /// Starts both, and waits until messages go both ways.
    ///
    /// # Errors
    /// [`ChildError`]; no process is left running.
    pub fn start(spec: &Spec<'_>, interrupted: &'a AtomicBool) -> Result<Pair<'a>, ChildError> {
        let failed = |error| ChildError::Start { exe: spec.dir.clone(), error };
        let dir = Directory::make(spec.dir.clone()).map_err(failed)?;
        let start = |command, what: &str, errors: &str| {
            let who = format!("{} {what} ({})", spec.contender.name, spec.placement);
            Process::start(command, who, spec.dir.join(errors))
        };
        let (sender, receiver) = if spec.contender.program == Program::OpenMpi {
            (start(by_open_mpi(spec), "both sides", "stderr")?, None)
        } else {
            let receiver = start(child(spec, Side::Receiver), "receiver", "receiver.stderr")?;
            (start(child(spec, Side::Sender), "sender", "sender.stderr")?, Some(receiver))
        };
        let mut pair = Pair { sender, receiver, _dir: dir, interrupted };
        match pair.sender.line("its start", Instant::now() + START, interrupted) {
            Ok(line) if line == "ready" => Ok(pair),
            Ok(line) => {
                Err(pair.sender.fault(&format!("said `{line}` where `ready` was expected")))
            }
            Err(ChildError::Interrupted) => Err(ChildError::Interrupted),
            // One side may have failed because the other did.
            Err(error) => match pair
                .receiver
                .as_mut()
                .map(|receiver| receiver.end(Duration::from_millis(100), interrupted))
            {
                Some(Err(receiver)) => {
                    Err(ChildError::Child { who: error.to_string(), what: receiver.to_string() })
                }
                _ => Err(error),
            },
        }
    }

    /// Measures a case for about `time`. Returns `None` if the system does not support it.
    ///
    /// # Errors
    /// [`ChildError`]; the pair is unusable afterwards.
    pub fn measure(&mut self, case: Case, time: Duration) -> Result<Option<Found>, ChildError> {
        self.ask(&format!("{case} {}", time.as_millis()), time + PATIENCE)
    }

    fn ask<T: DeserializeOwned>(
        &mut self,
        command: &str,
        limit: Duration,
    ) -> Result<Option<T>, ChildError> {
        self.sender.ask(command, limit, self.interrupted)
    }

    /// Returns the CPU time that the receiver uses in `time` while nothing is sent, in nanoseconds
    /// per second, and the memory of sender and receiver, in KiB (proportional set size).
    ///
    /// # Errors
    /// [`ChildError`]; the pair is unusable afterwards.
    pub fn rest(&mut self, time: Duration) -> Result<(f64, [u64; 2]), ChildError> {
        let processes = self.ask("processes", PATIENCE)?;
        let Processes { sender, receiver } =
            processes.ok_or_else(|| self.sender.fault("does not report its processes"))?;
        let fault = |error: io::Error| {
            self.sender.fault(&format!("the figures of its processes cannot be read: {error}"))
        };
        let memory =
            [process::pss_kib(sender).map_err(fault)?, process::pss_kib(receiver).map_err(fault)?];
        std::thread::sleep(time / 4); // time to become idle
        let (before, begun) = (process::cpu_ns(receiver).map_err(fault)?, Instant::now());
        process::pause(time, self.interrupted)?;
        let spent = process::cpu_ns(receiver).map_err(fault)?.saturating_sub(before);
        Ok((spent as f64 / begun.elapsed().as_secs_f64(), memory))
    }

    /// Ends both and removes their directory.
    ///
    /// # Errors
    /// A process did not end by itself, or failed; it is killed then.
    pub fn end(mut self) -> Result<(), ChildError> {
        let interrupted = self.interrupted;
        self.sender.say("quit")?;
        self.sender.end(END, interrupted)?;
        self.receiver.as_mut().map_or(Ok(()), |receiver| receiver.end(END, interrupted))
    }
}

impl Drop for Pair<'_> {
    fn drop(&mut self) {
        // Open MPI's command removes the files of both in /dev/shm, if it has the time.
        if self.receiver.is_none() {
            self.sender.terminate(END);
        }
    }
}

/// Returns the command that starts one side.
fn child(spec: &Spec<'_>, side: Side) -> Command {
    let mut command = Command::new(spec.exe);
    command.args(arguments(spec, side)).arg(&spec.dir);
    command
}

/// Returns the program's arguments, without the directory.
fn arguments(spec: &Spec<'_>, side: Side) -> Vec<String> {
    let cpu = if side == Side::Sender { spec.cpus.0 } else { spec.cpus.1 };
    let (cpu, placement) = (cpu.to_string(), spec.placement.name());
    [
        "bench-messages",
        spec.contender.name,
        side.name(),
        "--cpu",
        &cpu,
        "--placement",
        placement,
        "--dir",
    ]
    .map(str::to_owned)
    .into()
}

/// Returns the command that starts both sides. The sender is the first process, which gets the
/// command's standard input. The processes confine themselves, so the command must not bind them.
fn by_open_mpi(spec: &Spec<'_>) -> Command {
    let mut command = Command::new(ORTERUN);
    // Allows root, and more processes than processors.
    command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
    if spec.placement == Placement::OneCore {
        // Open MPI's own default when it knows that there are more processes than processors.
        command.args(["--mca", "mpi_yield_when_idle", "1"]);
    }
    for side in [Side::Sender, Side::Receiver] {
        command.args(["-np", "1"]).arg(spec.exe).args(arguments(spec, side)).arg(&spec.dir);
        if side == Side::Sender {
            command.arg(":");
        }
    }
    // The directory of its files.
    command.env("TMPDIR", &spec.dir);
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::found::Throughput;
    use crate::messages::contender::{LIMIT, PEERS};
    use crate::stats::Summary;

    fn spec(contender: Contender) -> Spec<'static> {
        let (exe, dir) = (Path::new("/x/program"), PathBuf::from("/tmp/pair"));
        Spec { exe, contender, placement: Placement::OneCore, cpus: (2, 3), dir }
    }

    fn line(command: &Command) -> String {
        command.get_args().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_side_is_told_its_processor() {
        let receiver = line(&child(&spec(LIMIT), Side::Receiver));
        assert_eq!(
            receiver,
            "bench-messages limit receiver --cpu 3 --placement one-core --dir /tmp/pair"
        );
    }

    #[test]
    fn open_mpi_starts_both() {
        let open_mpi = PEERS.into_iter().find(|peer| peer.program == Program::OpenMpi).unwrap();
        let command = line(&by_open_mpi(&spec(open_mpi)));
        let sides: Vec<_> = command.split(" : ").collect();
        assert!(
            sides[0].contains("mpi_yield_when_idle 1")
                && sides[0].contains("openmpi sender --cpu 2"),
            "{command}"
        );
        assert!(
            sides[1].starts_with("-np 1 /x/program bench-messages openmpi receiver --cpu 3"),
            "{command}"
        );
    }

    #[test]
    fn answers_are_told_apart() {
        let rate: Found = serde_json::from_str(r#"{"calls":3,"elapsed_ns":4}"#).unwrap();
        assert_eq!(rate, Found::Rate(Throughput { calls: 3, elapsed_ns: 4 }));
        let times = r#"{"p50_ns":1.0,"p99_ns":2.0,"p999_ns":3.0,"mean_ns":4.0,"count":5}"#;
        assert!(matches!(
            serde_json::from_str(times).unwrap(),
            Found::Times(Summary { count: 5, .. })
        ));
    }
}
