//! What a machine starts with, and why it did not run.

use crate::balance::{BalancePlan, BalancerKind};
use crate::checkpoint::CheckpointError;
use crate::error;
use crate::hosts::{BadHost, MachineHosts, StartHosts, own_name};
use crate::machine::TaskPlacement;
use crate::sizes::{BadTaskSize, MemorySize, StackSize};
use crate::tid::MOST_PROCESSES;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use upcall_ulp::{NoWorker, NotShared};

/// The initial tasks of a machine: copies of one program, which are siblings (`pvm_siblings`) and
/// have no parent.
#[derive(Clone, Debug)]
pub struct Start {
    /// The program: a path, or a name that is searched for as PVM and the shell do.
    pub program: OsString,
    /// Its arguments, without its name.
    pub args: Vec<OsString>,
    /// Number of copies.
    pub copies: usize,
    /// Folders that are searched first for programs.
    pub folders: Vec<PathBuf>,
    /// Number of processes of this host in which tasks can run, including this one.
    pub processes: usize,
    /// The other hosts, if there are any. Then tasks run in all processes from the start.
    pub hosts: Option<StartHosts>,
    /// Number of these in which tasks run at first, and the least number that the machine uses by
    /// itself. At most `processes` count.
    pub least: usize,
    /// How tasks are moved between processes. `None`: only on command.
    pub balancer: Option<BalancerKind>,
    /// How the tasks are distributed over the processes.
    pub place: TaskPlacement,
    /// Size of each task's stack. `None`: what `UPVM_STACK` says, or else the limit of this
    /// process's own stack (`ulimit -s`).
    pub stack: Option<StackSize>,
    /// Checkpoints at intervals, if there are to be some.
    pub checkpoint: Option<PeriodicCheckpoint>,
    /// Size of each task's memory. `None`: what `UPVM_MEMORY` says, or else 1 GiB.
    pub memory: Option<MemorySize>,
}

/// Checkpoints of a machine at intervals. Each one takes the place of the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeriodicCheckpoint {
    /// The file.
    pub file: PathBuf,
    /// The time from one checkpoint to the next.
    pub every: Duration,
}

impl Start {
    /// All hosts.
    pub(crate) fn machine_hosts(&self) -> Result<MachineHosts, BadHost> {
        let Some(others) = &self.hosts else { return Ok(MachineHosts::home(self.processes)) };
        let (home, room) = ((own_name(), self.processes), others.room);
        let others = others.hosts.iter().map(|host| (host.name.clone(), host.processes));
        MachineHosts::new([home].into_iter().chain(others))?.with_room(room)
    }

    /// What the machine may do with its processes.
    pub(crate) fn balance_plan(&self) -> BalancePlan {
        let is_alone = self.place == TaskPlacement::Alone;
        let least = match self.hosts {
            // The number of processors is that of one host.
            Some(_) => MOST_PROCESSES as usize,
            None if is_alone => self.processes,
            None => self.least.clamp(1, self.processes),
        };
        let balancer = self.balancer.filter(|_| !is_alone);
        BalancePlan { balancer, least, is_alone }
    }
}

/// Why a machine did not run, or not to its end.
#[derive(Debug)]
pub enum NotRun {
    /// This thread cannot run ULPs.
    Worker(NoWorker),
    /// The functions that all tasks share could not be mapped.
    Shared(NotShared),
    /// The program was not started.
    Program {
        /// Its name.
        name: String,
        /// PVM's code.
        code: i32,
    },
    /// The environment's size of tasks is none.
    Size(BadTaskSize),
    /// There are no addresses for the table of tasks.
    Places(std::io::Error),
    /// The hosts are none that a machine can have.
    Host(BadHost),
    /// Another process could not be started.
    Process(std::io::Error),
    /// A resource that the console or the requests of other shells need is not available.
    Desk(std::io::Error),
    /// The processes could not form a group.
    Join(upcall_message::JoinError),
    /// The machine does not go on from a checkpoint.
    Checkpoint(CheckpointError),
    /// All remaining tasks wait for what no task can send.
    Stuck {
        /// Each remaining task, and what it waits for.
        tasks: Vec<String>,
    },
}

impl fmt::Display for NotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Worker(error) => error.fmt(f),
            Self::Checkpoint(error) => error.fmt(f),
            Self::Shared(error) => error.fmt(f),
            Self::Size(error) => error.fmt(f),
            Self::Host(error) => error.fmt(f),
            Self::Places(error) => {
                write!(f, "no memory for the table that tells where each task runs: {error}")
            }
            Self::Process(error) => write!(f, "another process could not be started: {error}"),
            Self::Desk(error) => {
                write!(f, "the console, or waiting for requests from other shells, failed: {error}")
            }
            Self::Join(error) => {
                write!(f, "the processes of the machine did not come together: {error}")
            }
            Self::Program { name, code: error::NO_FILE } => {
                write!(
                    f,
                    "no program {name} that can run as a task: compile it by `upvmcc`, and give \
                     its path, or a name that is in PATH"
                )
            }
            Self::Program { name, code } => {
                write!(f, "{name} could not be started (PVM's error {code}; see above)")
            }
            Self::Stuck { tasks } => {
                write!(f, "all tasks that are left wait for what no task can send:")?;
                tasks.iter().take(20).try_for_each(|task| write!(f, "\n  {task}"))?;
                if tasks.len() > 20 {
                    write!(f, "\n  and {} more", tasks.len() - 20)
                } else {
                    Ok(())
                }
            }
        }
    }
}

impl std::error::Error for NotRun {}
