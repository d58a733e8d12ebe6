//! Why a run of a suite ends without a report.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::built::PeersError;
use crate::interrupted;

/// Why there is no report.
#[derive(Debug)]
pub enum RunError {
    /// SIGINT or SIGTERM; everything has been cleared away.
    Interrupted,
    /// The peers' program is missing.
    Peers(PeersError),
    /// A wish for a case or a system that is none.
    Unknown {
        /// A case, or a system.
        what: &'static str,
        /// What was asked for.
        found: String,
        /// What there is.
        known: Vec<String>,
    },
    /// Nothing is left of the suite.
    Nothing,
    /// A file or directory.
    File {
        /// Which.
        path: PathBuf,
        /// What was tried and what the kernel said.
        error: io::Error,
    },
    /// The processors that may be used cannot be told, or signals not be handled.
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
                    "nothing to measure: no system that takes part (see --peers) runs that part of the suite"
                )
            }
            RunError::File { path, error } => write!(f, "{}: {error}", path.display()),
            RunError::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RunError {}

impl RunError {
    /// # Errors
    /// The first of `wished` that is not among `known`, each of which is `what`.
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
    /// A build that an interrupt has ended is no fault of the build.
    fn from(error: PeersError) -> Self {
        if interrupted::is_asked() { RunError::Interrupted } else { RunError::Peers(error) }
    }
}
