//! What can go wrong, for each operation: what was tried, what was found, what to do.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;
use upcall_directory::names::{FolderError, NotEntered, NotFound};

/// Why a job was not run, or not to its end.
#[derive(Debug)]
#[non_exhaustive]
pub enum JobError {
    /// No group has so many members.
    BadSize {
        /// So many.
        size: usize,
    },
    /// The name of the job cannot be one.
    BadName {
        /// The name.
        name: String,
        /// Why.
        why: &'static str,
    },
    /// Another job has the name.
    Taken {
        /// The name.
        name: String,
        /// Its supervisor.
        pid: u32,
    },
    /// A member could not be started. Those that were are killed.
    NotStarted {
        /// The member.
        rank: usize,
        /// What it was to be.
        program: OsString,
        /// The kernel's word.
        error: io::Error,
    },
    /// The freezer was asked for, and cannot be had.
    NoFreezer {
        /// Why.
        why: String,
    },
    /// There is no usable folder of names.
    Folder(FolderError),
    /// A descriptor, a name, or another resource could not be had.
    Resource {
        /// What for.
        what: String,
        /// The kernel's word.
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
                "there is a job {name:?} already (its supervisor is process {pid}): choose another --name, or end it (upcall job kill {name})"
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
                    "the cgroup freezer cannot be had: {why}; leave --suspend out, or say --suspend signals"
                )
            }
            Self::Folder(error) => error.fmt(f),
            Self::Resource { what, error } => write!(f, "{what}: {error}"),
        }
    }
}

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

/// Why a job did not do what it was asked.
#[derive(Debug)]
#[non_exhaustive]
pub enum JobRequestError {
    /// The name cannot be one.
    BadName {
        /// The name.
        name: String,
        /// Why.
        why: &'static str,
    },
    /// There is no such job.
    NoJob {
        /// The name.
        name: String,
        /// The folder that was looked into.
        folder: PathBuf,
    },
    /// There is no usable folder of names.
    Folder(FolderError),
    /// There was one, but its supervisor was killed, and its members with it. What it had left is
    /// removed.
    Gone {
        /// The name.
        name: String,
    },
    /// Its supervisor does not answer.
    Silent {
        /// The name.
        name: String,
        /// The supervisor.
        pid: u32,
    },
    /// It refuses.
    Refused {
        /// The name.
        name: String,
        /// In its words.
        reason: String,
    },
    /// The connection to its supervisor failed.
    Connection {
        /// The name.
        name: String,
        /// The kernel's word.
        error: io::Error,
    },
}

impl fmt::Display for JobRequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadName { name, why } => write!(f, "{name:?} cannot be the name of a job: {why}"),
            Self::NoJob { name, folder } => {
                write!(f, "there is no job {name:?} in {}: see `upcall job ls`", folder.display())
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
                "the supervisor of the job {name:?}, process {pid}, does not answer: if it is stopped, `kill -CONT {pid}` lets it go on, and `kill -9 {pid}` ends it with all members"
            ),
            Self::Refused { name, reason } => write!(f, "the job {name:?} refuses: {reason}"),
            Self::Connection { name, error } => {
                write!(f, "asking the supervisor of the job {name:?}: {error}")
            }
        }
    }
}

impl std::error::Error for JobRequestError {}

impl From<NotFound> for JobRequestError {
    fn from(error: NotFound) -> Self {
        match error {
            NotFound::BadName { name, why } => Self::BadName { name, why },
            NotFound::Unknown { name, folder } => Self::NoJob { name, folder },
            NotFound::Folder(error) => Self::Folder(error),
        }
    }
}
