//! Jobs: the processes of a group, started, stopped and scheduled together.
//!
//! What: [`Job::run`] starts the members of a group on this machine and looks after them to their
//! end: one that dies is told of, and takes the others along or not; they can be suspended and let
//! go on, all together ([`stop`], [`cont`], [`kill`], [`list`]); several jobs take turns on the
//! same processors if they say so ([`JobSchedule`]). No user needs to be root, and no daemon runs:
//! each job has a supervisor, which is the process that calls [`Job::run`]. If that is killed the
//! kernel kills the members.
//!
//! ```no_run
//! use upcall_job::{Job, JobSchedule};
//!
//! // Each of the four finds its group by `GroupBuilder::from_environment()`.
//! let code = Job::new(4, "./sieve").arguments(["1000000"]).schedule(JobSchedule::Gang).run(|what| eprintln!("{what}"))?;
//! std::process::exit(code.into());
//! # Ok::<(), upcall_job::JobError>(())
//! ```
//!
//! What not: other machines; messages (`upcall-message`); limits on processor time, or on other
//! memory than that of messages.
//!
//! Source: UDM, sections 4.2 and 4.3 (the global scheduler, of which a job is a unit; gang and
//! loose co-scheduling). No global scheduler is there: one of the supervisors takes its part
//! (`supervisor/part.rs`), by rules that stand in `turns.rs`.
#![forbid(unsafe_code)]

mod ask;
mod error;
mod freezer;
mod label;
mod members;
mod supervisor;
mod turns;
mod wire;

pub use ask::{cont, kill, list, stop};
pub use error::{JobError, JobRequestError};
pub use members::SuspendMethod;
pub use turns::JobSchedule;
pub use wire::{JobState, ShownJob, ShownMember};

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::time::Duration;
use upcall_message::MOST_MEMBERS;

/// Times are not longer than this, so that there is a moment when they are over.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// What becomes of the others when a member dies: ends with another code than 0, or by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDeath {
    /// They are ended: by SIGTERM, and by SIGKILL after the period of grace.
    End,
    /// They go on. Their group tells them.
    GoOn,
}

/// A job that is to be run.
#[derive(Clone, Debug)]
pub struct Job {
    name: Option<String>,
    size: usize,
    program: OsString,
    arguments: Vec<OsString>,
    on_death: OnDeath,
    grace: Duration,
    pin: bool,
    label: bool,
    input: bool,
    schedule: Option<JobSchedule>,
    slice: Duration,
    way: Option<SuspendMethod>,
    limit: Option<u64>,
}

impl Job {
    /// A job of `size` members that all run this program.
    pub fn new(size: usize, program: impl Into<OsString>) -> Self {
        Self {
            name: None,
            size,
            program: program.into(),
            arguments: Vec::new(),
            on_death: OnDeath::End,
            grace: Duration::from_secs(5),
            pin: true,
            label: false,
            input: false,
            schedule: None,
            slice: Duration::from_millis(10),
            way: None,
            limit: None,
        }
    }

    /// Another number of members.
    #[must_use]
    pub fn size(self, size: usize) -> Self {
        Self { size, ..self }
    }

    /// The arguments of the program.
    #[must_use]
    pub fn arguments(self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self { arguments: arguments.into_iter().map(Into::into).collect(), ..self }
    }

    /// The name by which it can be stopped. If none is given: the program's, and the number of this
    /// process.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// What becomes of the others when a member dies. If nothing is said they are ended.
    #[must_use]
    pub fn on_death(self, on_death: OnDeath) -> Self {
        Self { on_death, ..self }
    }

    /// How long members have to end by themselves after SIGTERM: 5 s, if nothing is said; a year at
    /// most.
    #[must_use]
    pub fn grace(self, grace: Duration) -> Self {
        Self { grace: grace.min(LONGEST), ..self }
    }

    /// Whether each member is confined to one processor, rank i to the i-th of those that this
    /// process may use, and around. It is, if nothing is said.
    #[must_use]
    pub fn pin(self, pin: bool) -> Self {
        Self { pin, ..self }
    }

    /// So many bytes at most its group buffers for members that do not take their messages
    /// ([`GroupBuilder::limit`](upcall_message::GroupBuilder::limit)): a quarter of the machine's
    /// memory, if nothing is said. Members that join by
    /// [`GroupBuilder::from_environment`](upcall_message::GroupBuilder::from_environment) keep to
    /// it.
    #[must_use]
    pub fn limit(self, bytes: u64) -> Self {
        Self { limit: Some(bytes), ..self }
    }

    /// Puts each line that members write behind the rank of who wrote it.
    #[must_use]
    pub fn label(self, label: bool) -> Self {
        Self { label, ..self }
    }

    /// Gives the standard input of this process to rank 0. Otherwise no member has any.
    #[must_use]
    pub fn input(self, input: bool) -> Self {
        Self { input, ..self }
    }

    /// Has it take turns with other jobs of this user that do.
    #[must_use]
    pub fn schedule(self, kind: JobSchedule) -> Self {
        Self { schedule: Some(kind), ..self }
    }

    /// The length of its turns: 10 ms, if nothing is said; 1 ms at the least, a year at most.
    #[must_use]
    pub fn slice(self, slice: Duration) -> Self {
        Self { slice: slice.clamp(Duration::from_millis(1), LONGEST), ..self }
    }

    /// How its members are suspended. If nothing is said: by the freezer, where it can be had and
    /// the job is not co-scheduled.
    #[must_use]
    pub fn way(self, way: SuspendMethod) -> Self {
        Self { way: Some(way), ..self }
    }

    /// Runs it to its end, and tells what happens. Blocks the kernel thread; the members are killed
    /// when that thread ends. SIGINT, SIGTERM and SIGHUP of this process are passed on meanwhile.
    ///
    /// The code is that of the first member that failed, or 128 and the signal by which it died; 0
    /// if none did. A job that was ended by [`kill`] has 143.
    ///
    /// # Errors
    /// See [`JobError`]. Then no member is left.
    pub fn run(self, mut tell: impl FnMut(&Happening)) -> Result<u8, JobError> {
        if self.size == 0 || self.size > MOST_MEMBERS {
            return Err(JobError::BadSize { size: self.size });
        }
        supervisor::run(self, &mut tell)
    }

    fn name(&self) -> String {
        self.name.clone().unwrap_or_else(|| {
            let program =
                Path::new(&self.program).file_name().unwrap_or_default().to_string_lossy();
            let plain: String =
                program.chars().filter(|c| c.is_ascii_alphanumeric()).take(40).collect();
            // No dot: with one it might be a name of Upcall's own.
            format!("{}-{}", if plain.is_empty() { "run" } else { &plain }, std::process::id())
        })
    }
}

/// How a member has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberExit {
    /// With a code.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

impl fmt::Display for MemberExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "ended with code {code}"),
            Self::Signal(signal) => match signal_hook::low_level::signal_name(*signal) {
                Some(name) => write!(f, "was killed by {name} (signal {signal})"),
                None => write!(f, "was killed by signal {signal}"),
            },
        }
    }
}

/// What a user may want to know while a job runs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Happening {
    /// All members were started.
    Started {
        /// The name of the job.
        name: String,
    },
    /// A member has died.
    Died {
        /// The name of the job.
        name: String,
        /// The member.
        rank: usize,
        /// Its process.
        pid: u32,
        /// Of what.
        how: MemberExit,
        /// The others are ended for that.
        ends: bool,
    },
}

impl fmt::Display for Happening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { name } => write!(f, "{name}: started"),
            Self::Died { name, rank, pid, how, ends } => {
                write!(f, "{name}: member {rank} (process {pid}) {how}")?;
                f.write_str(if *ends { "; the others are ended" } else { "" })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_to_an_end() {
        let job = Job::new(1, "true").grace(Duration::MAX).slice(Duration::MAX);
        assert!(
            [job.grace, job.slice]
                .iter()
                .all(|time| std::time::Instant::now().checked_add(*time).is_some())
        );
    }
}
