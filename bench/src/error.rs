//! Errors that end a suite without a report.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::built::PeersError;
use crate::interrupted;
use crate::recorded::RecordedError;

/// Why there is no report.
#[derive(Debug)]
pub enum RunError {
    /// SIGINT or SIGTERM. All children and files have been cleaned up.
    Interrupted,
    /// The peers' program is missing.
    Peers(PeersError),
    /// The requested case or system does not exist.
    Unknown {
        /// The kind of name: a case or a system.
        what: &'static str,
        /// The requested name.
        found: String,
        /// The names that exist.
        known: Vec<String>,
    },
    /// The options leave nothing to measure.
    Nothing,
    /// A file or directory operation failed.
    File {
        /// The file or directory.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// The record file cannot be used.
    Recorded(RecordedError),
    /// The allowed processors cannot be determined, or signals cannot be handled.
    System(io::Error),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Interrupted => write!(f, "interrupted"),
            RunError::Peers(error) => error.fmt(f),
            RunError::Unknown { what, found, known } => {
                write!(f, "no {what} `{found}`; there are {}", known.join(", "))
            }
            RunError::Nothing => {
                write!(
                    f,
                    "nothing to measure: no system that takes part (see --peers) runs that part \
                    of the suite"
                )
            }
            RunError::File { path, error } => write!(f, "{}: {error}", path.display()),
            RunError::Recorded(error) => error.fmt(f),
            RunError::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RunError {}

impl RunError {
    /// # Errors
    /// A name in `wished` is not in `known`; `what` is the kind of name. The first such name is
    /// reported.
    pub(crate) fn unless_known(
        what: &'static str,
        wished: &[String],
        known: Vec<String>,
    ) -> Result<(), RunError> {
        match wished.iter().find(|name| !known.contains(name)) {
            Some(found) => Err(RunError::Unknown { what, found: found.clone(), known }),
            None => Ok(()),
        }
    }
}

impl From<PeersError> for RunError {
    /// A build that was interrupted is reported as an interrupt, not as a build failure.
    fn from(error: PeersError) -> Self {
        if interrupted::is_asked() { RunError::Interrupted } else { RunError::Peers(error) }
    }
}

impl From<RecordedError> for RunError {
    fn from(error: RecordedError) -> Self {
        RunError::Recorded(error)
    }
}
