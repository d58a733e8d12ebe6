//! Why an invocation has no reply: [`InvokeError`].

use crate::error::{AccessError, FindError};
use crate::lane::{LONGEST, MessageError};
use crate::rules::{Blocked, Broken};
use crate::types::DataError;
use crate::wire::InvokeFailure;
use std::fmt;
use std::panic::Location;
use std::time::Duration;

/// Why an invocation has no reply. What it says of whether the operation was run is meant so: a
/// home that ended may have run it.
#[derive(Debug)]
#[non_exhaustive]
pub enum InvokeError {
    /// The home has ended, or serves the object no more.
    Ended {
        /// The request was there already: it may have been run. Else it was not.
        asked: bool,
    },
    /// The home cannot be asked: it has ended, or runs nothing for others, or refuses.
    NotServed(FindError),
    /// The home has registered no operation of this name.
    Unknown {
        /// The name.
        name: &'static str,
        /// Those that it has.
        known: Vec<String>,
    },
    /// The home has registered it as the other kind: as short, or as a procedure that may
    /// block.
    Kind {
        /// The name.
        name: &'static str,
    },
    /// Its arguments have more bytes than can be sent.
    TooLong {
        /// Their number.
        bytes: usize,
    },
    /// The home has not answered for so long. The operation may still be run.
    Busy {
        /// Time that the caller has waited.
        waited: Duration,
    },
    /// What the operation has returned.
    Data(DataError),
    /// What was found in the object, as its home says: as [`DataError::Corrupt`].
    Corrupt {
        /// What was looked for.
        what: String,
        /// Where.
        at: u64,
    },
    /// The procedure's own words.
    Said(String),
    /// The home did not run it, and says why.
    NotRun(String),
    /// It panicked at the home, which decides what becomes of the object.
    Panicked,
    /// What the home has sent is no reply to this: both programs are to be built with the same
    /// definition.
    Malformed(String),
    /// This hold is in an operation already.
    Nested,
    /// At home: why it was not run there.
    Access(AccessError),
    /// It could wait for ever.
    Rule(Broken),
    /// It was run, and has blocked. In builds with debug assertions only.
    Blocked(Blocked),
}

impl fmt::Display for InvokeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended { asked: true } => f.write_str(
                "the home has ended, or serves it no more; it may have run the operation",
            ),
            Self::Ended { asked: false } => f.write_str(
                "the home has ended, or serves it no more: find the object again when it is there",
            ),
            Self::NotServed(error) => error.fmt(f),
            Self::Unknown { name, known } => {
                write!(
                    f,
                    "its home has no operation called {name:?}, but {}: register it where the \
                     object is served",
                    known.join(", ")
                )
            }
            Self::Kind { name } => {
                write!(
                    f,
                    "{name:?} is short here and may block there, or the other way: both programs \
                     are to be built with the same definition"
                )
            }
            Self::TooLong { bytes } => {
                write!(
                    f,
                    "its arguments have {bytes} bytes, and {LONGEST} can be sent: send them in \
                     parts"
                )
            }
            Self::Busy { waited } => {
                write!(
                    f,
                    "the home has not answered for {waited:?}: it is busy, stopped, or masks; the \
                     operation may still be run"
                )
            }
            Self::Data(error) => error.fmt(f),
            Self::Corrupt { what, at } => write!(
                f,
                "at home {what} was to be at byte {at} of the object, and something else is"
            ),
            Self::Said(words) => f.write_str(words),
            Self::NotRun(why) => write!(f, "its home did not run it: {why}"),
            Self::Panicked => {
                f.write_str("it panicked at its home, which decides what becomes of the object")
            }
            Self::Malformed(error) => {
                write!(
                    f,
                    "what its home has sent is no reply to it: {error}. Both programs are to be \
                     built with the same definition"
                )
            }
            Self::Nested => f.write_str(
                "this hold is in an operation already: end that first, or use one of your own",
            ),
            Self::Access(error) => error.fmt(f),
            Self::Rule(broken) => broken.fmt(f),
            Self::Blocked(blocked) => blocked.fmt(f),
        }
    }
}

impl std::error::Error for InvokeError {}

impl InvokeError {
    /// What a home has said of an operation, which was asked for by the caller.
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
