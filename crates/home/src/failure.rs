//! Why an invocation has no reply: [`InvokeError`].

use crate::error::{AccessError, FindError};
use crate::lane::{LONGEST, MessageError};
use crate::rules::{Blocked, Broken};
use crate::types::DataError;
use crate::wire::InvokeFailure;
use std::fmt;
use std::panic::Location;
use std::time::Duration;

/// Why an invocation has no reply.
///
/// Each variant tells whether the operation was run; a home that ended may have run it.
#[non_exhaustive]
pub enum InvokeError {
    /// The home has ended, or no longer serves the object.
    Ended {
        /// `true` if the request had been sent, so that the operation may have been run. If
        /// `false`, it was not run.
        asked: bool,
    },
    /// The link to a home on another host is lost.
    Lost {
        /// `true` if the request had been sent, so that the operation may have been run. If
        /// `false`, it was not run.
        asked: bool,
        /// How the end of the link was detected.
        why: String,
    },
    /// The home cannot be asked: it has ended, runs nothing for others, or refuses.
    NotServed(FindError),
    /// The home has registered no operation of this name.
    Unknown {
        /// The name.
        name: &'static str,
        /// The operations that it has.
        known: Vec<String>,
    },
    /// The home has registered the operation as the other kind: as short, or as a procedure that
    /// may block.
    Kind {
        /// The name.
        name: &'static str,
    },
    /// The arguments are longer than can be sent.
    TooLong {
        /// Their length, in bytes.
        bytes: usize,
    },
    /// The home has not answered in this time. The operation may still be run.
    Busy {
        /// Time that the caller has waited.
        waited: Duration,
    },
    /// The request was not sent in this time, because too many others wait for replies of a home
    /// on another host. The operation was not run.
    Unsent {
        /// Time that the caller has waited.
        waited: Duration,
    },
    /// The operation returned this error.
    Data(DataError),
    /// The home found the object corrupt, as [`DataError::Corrupt`].
    Corrupt {
        /// What was expected.
        what: String,
        /// At which byte of the object.
        at: u64,
    },
    /// The procedure returned this text.
    Said(String),
    /// The home did not run the operation, for this reason.
    NotRun(String),
    /// The operation panicked at the home, which decides what becomes of the object.
    Panicked,
    /// The arguments could not be encoded, or the home's reply could not be decoded. Both programs
    /// must be built with the same definition.
    Malformed(String),
    /// This handle is already in an operation.
    Nested,
    /// Why the operation was not run, when the caller is the home itself.
    Access(AccessError),
    /// The invocation could wait for ever.
    Rule(Broken),
    /// The operation was run, and it blocked. Only in builds with debug assertions.
    Blocked(Blocked),
}

impl fmt::Display for InvokeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended { asked: true } => f.write_str(
                "the home has ended or no longer serves the object; it may have run the operation",
            ),
            Self::Ended { asked: false } => f.write_str(
                "the home has ended or no longer serves the object: find it again when it is back",
            ),
            Self::Lost { asked: true, why } => {
                write!(f, "the link to the home is lost: {why}; it may have run the operation")
            }
            Self::Lost { asked: false, why } => write!(f, "the link to the home is lost: {why}"),
            Self::NotServed(error) => error.fmt(f),
            Self::Unknown { name, known } => {
                write!(
                    f,
                    "the home has no operation called {name:?}, only {}: register it where the \
                     object is served",
                    known.join(", ")
                )
            }
            Self::Kind { name } => {
                write!(
                    f,
                    "{name:?} is short on one side and may block on the other: build both \
                     programs with the same definition"
                )
            }
            Self::TooLong { bytes } => {
                write!(
                    f,
                    "its arguments have {bytes} bytes, but at most {LONGEST} can be sent: send \
                     them in parts"
                )
            }
            Self::Busy { waited } => {
                write!(
                    f,
                    "the home has not answered for {waited:?}: it is busy, stopped, or masks \
                     operations; the operation may still be run"
                )
            }
            Self::Unsent { waited } => write!(
                f,
                "the request could not be sent for {waited:?}, because too many others wait for \
                 replies of this home; the operation was not run"
            ),
            Self::Data(error) => error.fmt(f),
            Self::Corrupt { what, at } => write!(
                f,
                "the home expected {what} at byte {at} of the object, and found something else"
            ),
            Self::Said(words) => f.write_str(words),
            Self::NotRun(why) => write!(f, "the home did not run it: {why}"),
            Self::Panicked => {
                f.write_str("it panicked at the home, which decides what becomes of the object")
            }
            Self::Malformed(error) => {
                write!(
                    f,
                    "the arguments cannot be encoded, or the reply cannot be decoded: {error}. \
                     Build both programs with the same definition"
                )
            }
            Self::Nested => f.write_str(
                "this handle is already in an operation: end that first, or use another handle",
            ),
            Self::Access(error) => error.fmt(f),
            Self::Rule(broken) => broken.fmt(f),
            Self::Blocked(blocked) => blocked.fmt(f),
        }
    }
}

upcall_os::error_debug!(InvokeError {
    Ended { asked }, Lost { asked, why }, NotServed(error), Unknown { name, known }, Kind { name },
    TooLong { bytes }, Busy { waited }, Unsent { waited }, Data(error), Corrupt { what, at },
    Said(error), NotRun(error), Panicked, Malformed(error), Nested, Access(error), Rule(error),
    Blocked(error),
});

impl std::error::Error for InvokeError {}

impl InvokeError {
    /// The error for a failure that the home has reported for the caller's operation.
    #[track_caller]
    pub(crate) fn said(name: &'static str, failure: InvokeFailure) -> Self {
        match failure {
            InvokeFailure::Full { asked } => Self::Data(DataError::Full { asked }),
            InvokeFailure::Corrupt { what, at } => Self::Corrupt { what: what.into_owned(), at },
            InvokeFailure::ReadOnly => Self::Data(DataError::ReadOnly),
            InvokeFailure::Said(words) => Self::Said(words.into_owned()),
            InvokeFailure::NotRun(why) => Self::NotRun(why.into_owned()),
            InvokeFailure::Panicked => Self::Panicked,
            InvokeFailure::Blocked { file, line } => Self::Blocked(Blocked {
                name,
                here: Location::caller(),
                registered: Some(format!("{file}:{line}")),
            }),
        }
    }
}

impl From<MessageError> for InvokeError {
    fn from(unsent: MessageError) -> Self {
        match unsent {
            MessageError::TooLong { bytes } => Self::TooLong { bytes },
            MessageError::Unencodable(error) => Self::Malformed(error.to_string()),
        }
    }
}

impl From<AccessError> for InvokeError {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::Data(error) => Self::Data(error),
            AccessError::Nested => Self::Nested,
            AccessError::Blocked(blocked) => Self::Blocked(*blocked),
            error => Self::Access(error),
        }
    }
}
