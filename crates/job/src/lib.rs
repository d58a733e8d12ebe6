//! Jobs: the processes of a group, started, stopped and scheduled together.
//!
//! [`Job::run`] starts the members of a group on this machine and supervises them to their end. It
//! reports a member that dies, and ends the others or not. All members can be suspended and resumed
//! together ([`stop`], [`cont`], [`kill`], [`list`]). Several jobs take turns on the same
//! processors if they ask for it ([`JobSchedule`]). No user needs to be root, and no daemon runs:
//! each job has a supervisor, which is the process that calls [`Job::run`]. If the supervisor is
//! killed, the kernel kills the members.
//!
//! ```no_run
//! use upcall_job::{Job, JobSchedule};
//!
//! // Each of the four finds its group by `GroupBuilder::from_environment()`.
//! let code = Job::new(4, "./sieve")
//!     .arguments(["1000000"])
//!     .schedule(JobSchedule::Gang)
//!     .run(|what| eprintln!("{what}"))?;
//! std::process::exit(code.into());
//! # Ok::<(), upcall_job::JobError>(())
//! ```
//!
//! This crate does not deal with other machines, with messages (`upcall-message`), or with limits
//! on processor time or on memory other than that of messages.
//!
//! Source: UDM, sections 4.2 and 4.3 (the global scheduler, of which a job is a unit; gang and
//! loose co-scheduling). There is no global scheduler here: one of the supervisors takes its part
//! (`supervisor/part.rs`), by the rules in `turns.rs`.
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
pub use supervisor::Signals;
pub use turns::JobSchedule;
pub use wire::{JobState, ShownJob, ShownMember};

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::time::Duration;
use upcall_message::MOST_MEMBERS;

/// Maximum length of a time, so that its end can be computed.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// What happens to the other members when one dies.
///
/// A member dies if it ends with a code other than 0, or by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDeath {
    /// They are ended: by SIGTERM, and by SIGKILL after the grace period.
    End,
    /// They go on. Their group reports the death to them.
    GoOn,
}

/// A job to run.
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
    /// A job of `size` members that all run `program`.
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

    /// Sets the number of members.
    #[must_use]
    pub fn size(self, size: usize) -> Self {
        Self { size, ..self }
    }

    /// Sets the arguments of the program.
    #[must_use]
    pub fn arguments(self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self { arguments: arguments.into_iter().map(Into::into).collect(), ..self }
    }

    /// Sets the name by which the job can be stopped.
    ///
    /// Default: the name of the program and the number of this process.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// Sets what happens to the others when a member dies. Default: they are ended.
    #[must_use]
    pub fn on_death(self, on_death: OnDeath) -> Self {
        Self { on_death, ..self }
    }

    /// Sets how long members have to end by themselves after SIGTERM.
    ///
    /// Default: 5 s; maximum: a year.
    #[must_use]
    pub fn grace(self, grace: Duration) -> Self {
        Self { grace: grace.min(LONGEST), ..self }
    }

    /// Sets whether each member is confined to one processor. Default: it is.
    ///
    /// Rank i gets the i-th of the processors that this process may use, modulo their number.
    #[must_use]
    pub fn pin(self, pin: bool) -> Self {
        Self { pin, ..self }
    }

    /// Sets the maximum number of bytes that its group buffers.
    ///
    /// The group buffers for members that do not take their messages. See
    /// [`GroupBuilder::limit`](upcall_message::GroupBuilder::limit). Default: a quarter of the
    /// machine's memory. Members that join by
    /// [`GroupBuilder::from_environment`](upcall_message::GroupBuilder::from_environment) keep to
    /// it.
    #[must_use]
    pub fn limit(self, bytes: u64) -> Self {
        Self { limit: Some(bytes), ..self }
    }

    /// Sets whether each line that a member writes begins with the member's rank.
    #[must_use]
    pub fn label(self, label: bool) -> Self {
        Self { label, ..self }
    }

    /// Sets whether rank 0 gets the standard input of this process.
    ///
    /// All other members have none.
    #[must_use]
    pub fn input(self, input: bool) -> Self {
        Self { input, ..self }
    }

    /// Makes it take turns with the other jobs of this user that have a schedule.
    #[must_use]
    pub fn schedule(self, kind: JobSchedule) -> Self {
        Self { schedule: Some(kind), ..self }
    }

    /// Sets the length of its turns. Default: 10 ms; from 1 ms to a year.
    #[must_use]
    pub fn slice(self, slice: Duration) -> Self {
        Self { slice: slice.clamp(Duration::from_millis(1), LONGEST), ..self }
    }

    /// Sets how its members are suspended.
    ///
    /// Default: by the freezer, if it is available and the job is not co-scheduled.
    #[must_use]
    pub fn way(self, way: SuspendMethod) -> Self {
        Self { way: Some(way), ..self }
    }

    /// Runs the job to its end, and reports events to `tell`.
    ///
    /// Returns the code of the member that failed and ended first, or 128 and the signal by which
    /// it died; 0 if none failed. If that code is 1, a panic (101) or a crash of a member that ends
    /// after it, while the members are being ended, counts instead. A job that was ended by
    /// [`kill`] has 143.
    ///
    /// SIGINT, SIGTERM and SIGHUP of this process are passed on to the members while it runs.
    ///
    /// # Blocks
    /// The kernel thread. The members are killed when that thread ends.
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
            // No dot: names with a dot may be Upcall's own.
            format!("{}-{}", if plain.is_empty() { "run" } else { &plain }, std::process::id())
        })
    }
}

/// How a member ended.
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

/// An event of interest to the user while a job runs.
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
        /// How it ended.
        how: MemberExit,
        /// `true` if the others are ended because of it.
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
