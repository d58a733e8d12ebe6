//! Errors of each operation: what was tried, what was found, what to do.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;
use upcall_directory::names::{FolderError, NameHint, NotEntered, NotFound};

/// Why a job was not run, or not to its end.
#[non_exhaustive]
pub enum JobError {
    /// No group has this number of members.
    BadSize {
        /// The number.
        size: usize,
    },
    /// The name is not valid for a job.
    BadName {
        /// The name.
        name: String,
        /// The reason.
        why: &'static str,
    },
    /// Another job has the name.
    Taken {
        /// The name.
        name: String,
        /// Its supervisor.
        pid: u32,
    },
    /// A member could not be started. Members that were started are killed.
    NotStarted {
        /// The member.
        rank: usize,
        /// The program that it was to run.
        program: OsString,
        /// The kernel's error.
        error: io::Error,
    },
    /// The freezer was requested, and is not available.
    NoFreezer {
        /// The reason.
        why: String,
    },
    /// There is no usable folder of names.
    Folder(FolderError),
    /// A descriptor, a name, or another resource is not available.
    Resource {
        /// What it was needed for.
        what: String,
        /// The kernel's error.
        error: io::Error,
    },
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadSize { size } => {
                write!(
                    f,
                    "a job has from 1 to {} members, not {size}",
                    upcall_message::MOST_MEMBERS
                )
            }
            Self::BadName { name, why } => write!(f, "{name:?} cannot be the name of a job: {why}"),
            Self::Taken { name, pid } => write!(
                f,
                "there is a job {name:?} already (its supervisor is process {pid}): choose another \
                 --name, or end it (upcall job kill {name})"
            ),
            Self::NotStarted { rank, program, error } => {
                write!(f, "member {rank}, {}, could not be started: {error}", program.display())?;
                match error.kind() {
                    io::ErrorKind::NotFound => f.write_str("; give a path, or a program on PATH"),
                    io::ErrorKind::PermissionDenied => f.write_str("; is it a program (chmod +x)?"),
                    _ => Ok(()),
                }
            }
            Self::NoFreezer { why } => {
                write!(
                    f,
                    "the cgroup freezer is not available: {why}; omit --suspend, or use --suspend \
                     signals"
                )
            }
            Self::Folder(error) => error.fmt(f),
            Self::Resource { what, error } => write!(f, "{what}: {error}"),
        }
    }
}

upcall_os::error_debug!(JobError {
    BadSize { size }, BadName { name, why }, Taken { name, pid },
    NotStarted { rank, program, error }, NoFreezer { why }, Folder(error), Resource { what, error },
});

impl std::error::Error for JobError {}

impl From<NotEntered> for JobError {
    fn from(error: NotEntered) -> Self {
        match error {
            NotEntered::BadName { name, why } => Self::BadName { name, why },
            NotEntered::Taken { name, pid } => Self::Taken { name, pid },
            NotEntered::Folder(error) => Self::Folder(error),
            NotEntered::Resource { what, error } => Self::Resource { what, error },
            other => Self::Resource {
                what: other.to_string(),
                error: io::ErrorKind::AlreadyExists.into(),
            },
        }
    }
}

/// Why a job did not carry out a request.
#[non_exhaustive]
pub enum JobRequestError {
    /// The name is not valid for a job.
    BadName {
        /// The name.
        name: String,
        /// The reason.
        why: &'static str,
    },
    /// There is no such job.
    NoJob {
        /// The name.
        name: String,
        /// The folder that was searched.
        folder: PathBuf,
        /// Where the job may be instead.
        hint: NameHint,
    },
    /// There is no usable folder of names.
    Folder(FolderError),
    /// The job's supervisor was killed, and its members with it. What it left behind is removed.
    Gone {
        /// The name.
        name: String,
    },
    /// Its supervisor does not reply.
    Silent {
        /// The name.
        name: String,
        /// The supervisor.
        pid: u32,
    },
    /// Its supervisor refuses the request.
    Refused {
        /// The name.
        name: String,
        /// The supervisor's reason.
        reason: String,
    },
    /// The connection to its supervisor failed.
    Connection {
        /// The name.
        name: String,
        /// The kernel's error.
        error: io::Error,
    },
}

impl fmt::Display for JobRequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadName { name, why } => write!(f, "{name:?} cannot be the name of a job: {why}"),
            Self::NoJob { name, folder, hint } => {
                write!(f, "there is no job {name:?} in {}{hint}", folder.display())?;
                match hint.is_advice() {
                    true => Ok(()),
                    false => f.write_str(": see `upcall job ls`"),
                }
            }
            Self::Folder(error) => error.fmt(f),
            Self::Gone { name } => {
                write!(
                    f,
                    "the job {name:?} has ended: its supervisor was killed, and its members with it"
                )
            }
            Self::Silent { name, pid } => write!(
                f,
                "the supervisor of the job {name:?}, process {pid}, does not answer: \
                 if it is stopped, `kill -CONT {pid}` resumes it, and `kill -9 {pid}` ends it with \
                 all members"
            ),
            Self::Refused { name, reason } => write!(f, "the job {name:?} refuses: {reason}"),
            Self::Connection { name, error } => {
                write!(f, "the request to the supervisor of the job {name:?} failed: {error}")
            }
        }
    }
}

upcall_os::error_debug!(JobRequestError {
    BadName { name, why }, NoJob { name, folder, hint }, Folder(error), Gone { name },
    Silent { name, pid }, Refused { name, reason }, Connection { name, error },
});

impl std::error::Error for JobRequestError {}

impl From<NotFound> for JobRequestError {
    fn from(error: NotFound) -> Self {
        match error {
            NotFound::BadName { name, why } => Self::BadName { name, why },
            NotFound::Unknown { name, folder, hint } => Self::NoJob { name, folder, hint },
            NotFound::Folder(error) => Self::Folder(error),
        }
    }
}
