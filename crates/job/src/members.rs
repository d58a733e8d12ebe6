//! The members of a job as processes: start, suspend, resume, signal, end.
//!
//! A member is our child, known by a pidfd from its start, and not waited for before it has ended.
//! So its process number is never another process's. The kernel kills it when the supervisor ends,
//! however that happens ([`upcall_os::process::bind`]). Suspending returns when the kernel reports
//! that all have stopped: a signal is sent at once, but stops a process only when one of its
//! threads has seen it.

use crate::error::JobError;
use crate::freezer::Freezer;
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use upcall_message::GroupBuilder;
use upcall_os::process::{self, Bounds};
use upcall_os::processor::{self, CpuSet};

/// How members are suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SuspendMethod {
    /// The freezer of cgroup v2: the whole job at once, with the processes that its members have
    /// started.
    Freezer,
    /// SIGSTOP and SIGCONT, to each member's process.
    Signals,
}

/// Maximum wait for the kernel to suspend all members. A member that has not stopped by then sleeps
/// in the kernel, or has had no processor since; it runs no more of its program.
const LONGEST_STOP: Duration = Duration::from_millis(50);

/// Interval between two checks whether they have stopped.
const LOOK: Duration = Duration::from_micros(10);

/// What members are started with.
pub(crate) struct Program {
    pub(crate) path: OsString,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) group: String,
    pub(crate) size: usize,
    pub(crate) limit: Option<u64>,
    pub(crate) pin: bool,
    /// `true` if rank 0 reads from a pipe; all others have nothing to read.
    pub(crate) input: bool,
    /// `true` if their output goes to pipes, `false` if it goes where ours goes.
    pub(crate) pipes: bool,
}

pub(crate) struct JobMember {
    pub(crate) child: Child,
    pub(crate) pidfd: OwnedFd,
    pub(crate) processor: Option<u32>,
    pub(crate) suspended: bool,
    pub(crate) ended: Option<ExitStatus>,
    /// Its processor time, and when that was read.
    used: (Duration, Instant),
    pub(crate) works: bool,
}

impl JobMember {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn lives(&self) -> bool {
        self.ended.is_none()
    }

    fn signal(&self, signal: Signal) {
        // A member that has just ended needs no signal.
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }

    /// Returns `true` if it has stopped on our signal, or has ended. Can be repeated.
    fn has_stopped(&self) -> bool {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        // On an error the member has ended.
        waitid(WaitId::PidFd(self.pidfd.as_fd()), options).map_or(true, |found| found.is_some())
    }
}

/// All members of a job. Dropping them kills those that are left.
pub(crate) struct JobMembers {
    all: Vec<JobMember>,
    freezer: Option<Freezer>,
    frozen: bool,
}

/// The processors of the members of a job of this size.
pub(crate) fn places(size: usize, pin: bool) -> io::Result<Vec<Option<u32>>> {
    if !pin {
        return Ok(vec![None; size]);
    }
    let allowed: Vec<u32> = CpuSet::allowed()?.iter().map(|processor| processor as u32).collect();
    Ok((0..size).map(|rank| Some(allowed[rank % allowed.len()])).collect())
}

impl JobMembers {
    /// None yet.
    pub(crate) fn new(freezer: Option<Freezer>) -> Self {
        Self { all: Vec::new(), freezer, frozen: false }
    }

    /// Starts them all.
    pub(crate) fn start(&mut self, program: &Program) -> Result<(), JobError> {
        let places = places(program.size, program.pin).map_err(|error| JobError::Resource {
            what: "the processors that may be used".into(),
            error,
        })?;
        for (rank, &processor) in places.iter().enumerate() {
            let cgroup = self.freezer.as_ref().map(Freezer::door).transpose();
            let cgroup = cgroup.map_err(|error| JobError::Resource {
                what: format!(
                    "opening the job's cgroup for member {rank} (`--suspend signals` needs none)"
                ),
                error,
            })?;
            let started = self.start_one(program, rank, processor, cgroup);
            started.map_err(|error| JobError::NotStarted {
                rank,
                program: program.path.clone(),
                error,
            })?;
        }
        Ok(())
    }

    fn start_one(
        &mut self,
        program: &Program,
        rank: usize,
        processor: Option<u32>,
        cgroup: Option<OwnedFd>,
    ) -> io::Result<()> {
        let mut command = Command::new(&program.path);
        command.args(&program.arguments).envs(GroupBuilder::environment(
            &program.group,
            program.size,
            rank,
        ));
        match program.limit {
            Some(bytes) => command.env(GroupBuilder::LIMIT, bytes.to_string()),
            // The supervisor may itself be a member of another job.
            None => command.env_remove(GroupBuilder::LIMIT),
        };
        let output = || if program.pipes { Stdio::piped() } else { Stdio::inherit() };
        let input = if program.input && rank == 0 { Stdio::piped() } else { Stdio::null() };
        command.stdin(input).stdout(output()).stderr(output());
        // They have a process group of their own, so that the terminal's signals to ours reach them
        // once, through us.
        let first = self.all.first().filter(|first| first.lives());
        command.process_group(first.map_or(0, |first| first.pid().cast_signed()));
        process::bind(
            &mut command,
            Bounds { processors: processor.map(|one| CpuSet::only(one as usize)), cgroup },
        );
        let mut child = command.spawn()?;
        let pid = rustix::process::Pid::from_child(&child);
        match rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) {
            Ok(pidfd) => {
                let used = (Duration::ZERO, Instant::now());
                self.all.push(JobMember {
                    child,
                    pidfd,
                    processor,
                    suspended: false,
                    ended: None,
                    used,
                    works: true,
                });
                Ok(())
            }
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error.into())
            }
        }
    }

    pub(crate) fn all(&self) -> &[JobMember] {
        &self.all
    }

    pub(crate) fn get(&mut self, rank: usize) -> Option<&mut JobMember> {
        self.all.get_mut(rank)
    }

    /// Members that have not ended, with their ranks.
    pub(crate) fn living(&self) -> impl Iterator<Item = (usize, &JobMember)> {
        self.all.iter().enumerate().filter(|(_, member)| member.lives())
    }

    pub(crate) fn way(&self) -> SuspendMethod {
        if self.freezer.is_some() { SuspendMethod::Freezer } else { SuspendMethod::Signals }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.living().for_each(|(_, member)| member.signal(signal));
    }

    /// Resumes the members whose processor `may` run, and suspends all others.
    ///
    /// Returns when that is done.
    pub(crate) fn let_run(&mut self, may: impl Fn(Option<u32>) -> bool) {
        if let Some(freezer) = &self.freezer {
            // The freezer suspends all or none.
            let freeze =
                !self.all.is_empty() && !self.all.iter().any(|member| may(member.processor));
            if freeze != self.frozen && freezer.set(freeze).is_ok() {
                self.frozen = freeze;
                if freeze {
                    until(|| freezer.is_frozen());
                }
            }
            for member in &mut self.all {
                member.mark(self.frozen);
            }
            return;
        }
        // A member that is resumed where this thread runs may take its processor, so those come
        // last.
        let here = Some(processor::current() as u32);
        let (near, far): (Vec<_>, Vec<_>) =
            self.all.iter_mut().partition(|member| member.processor == here);
        for member in far.into_iter().chain(near).filter(|member| member.lives()) {
            let suspend = !may(member.processor);
            if suspend != member.suspended {
                member.signal(if suspend { Signal::STOP } else { Signal::CONT });
                member.mark(suspend);
            }
        }
        until(|| {
            self.living()
                .filter(|(_, member)| member.suspended)
                .all(|(_, member)| member.has_stopped())
        });
    }

    /// The processors on which members work, or worked before they were suspended.
    ///
    /// A member works if it has used a fiftieth of the time since the last check, or is runnable.
    pub(crate) fn look(&mut self) -> BTreeSet<u32> {
        for member in
            self.all.iter_mut().filter(|member| member.ended.is_none() && !member.suspended)
        {
            let now = (process::processor_time(member.pid()).unwrap_or_default(), Instant::now());
            let (used, passed) = (now.0.saturating_sub(member.used.0), now.1 - member.used.1);
            member.works = used * 50 > passed || process::is_runnable(member.pid());
            member.used = now;
        }
        let working = self.living().filter(|(_, member)| member.works);
        working.map(|(_, member)| member.processor.unwrap_or(crate::turns::ANYWHERE)).collect()
    }
}

impl JobMember {
    fn mark(&mut self, suspended: bool) {
        if self.suspended && !suspended {
            self.used = (process::processor_time(self.pid()).unwrap_or_default(), Instant::now());
        }
        self.suspended = suspended;
    }
}

/// Waits for a condition, but at most [`LONGEST_STOP`].
fn until(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() && start.elapsed() < LONGEST_STOP {
        std::thread::sleep(LOOK);
    }
}

impl Drop for JobMembers {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        for member in &mut self.all {
            let _ = member.child.wait();
        }
    }
}

#[cfg(test)]
#[path = "members_tests.rs"]
mod tests;
