//! What can go wrong, what was found, and what to do.

use crate::rules::{Blocked, Broken};
use crate::types::DataError;
use crate::types::arena::MOST;
use std::time::Duration;
use std::{fmt, io};
use upcall_directory::names::{NotEntered, NotFound};
use upcall_os::memory::AdoptError;

/// Why an object was not made.
#[derive(Debug)]
pub enum CreateError {
    /// Its name was not entered.
    Name(NotEntered),
    /// The kernel refused something.
    Resource {
        /// What for.
        what: &'static str,
        /// Its word.
        error: io::Error,
    },
    /// What it was to begin with cannot be written.
    Data(DataError),
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(error) => error.fmt(f),
            Self::Resource { what, error } => write!(f, "{what}: {error}"),
            Self::Data(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CreateError {}

impl From<NotEntered> for CreateError {
    fn from(error: NotEntered) -> Self {
        Self::Name(error)
    }
}

/// Why memory that came from a home is not the object that is looked for.
#[derive(Debug)]
pub enum NotAnObject {
    /// No object has so many bytes.
    Length {
        /// So many were told.
        found: u64,
    },
    /// It is not such a file.
    Memory(AdoptError),
    /// The kernel does not map it.
    Kernel(io::Error),
    /// What stands at its beginning is none of this version's objects.
    Header,
    /// It has another layout.
    Shape {
        /// What stands there.
        found: u64,
        /// That of the type here.
        expected: u64,
    },
}

impl fmt::Display for NotAnObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { found } => {
                write!(f, "it is said to have {found} bytes, and an object has 1 to {}", MOST)
            }
            Self::Memory(error) => error.fmt(f),
            Self::Kernel(error) => write!(f, "its memory cannot be mapped: {error}"),
            Self::Header => {
                f.write_str("its memory does not begin as an object of this version does")
            }
            Self::Shape { found, expected } => write!(
                f,
                "it is of another type: its shape is {found:016x}, and here it would be {expected:016x}. Both programs are to be built with the same definition"
            ),
        }
    }
}

impl std::error::Error for NotAnObject {}

/// Why an object was not found.
#[derive(Debug)]
pub enum FindError {
    /// There is no such name.
    Name(NotFound),
    /// Its home does not answer.
    Unreachable {
        /// The object.
        name: String,
        /// What happened.
        why: String,
    },
    /// This program does not accept its home: by default one of neither this user nor root.
    /// `expect` sets another policy.
    WrongUser {
        /// The object.
        name: String,
        /// The home's user.
        found: u32,
        /// Why, in the words of the policy.
        reason: String,
    },
    /// Its home refuses.
    Refused {
        /// The object.
        name: String,
        /// Its words.
        why: String,
    },
    /// What its home has given is something else.
    NotAnObject {
        /// The object.
        name: String,
        /// What is wrong.
        error: NotAnObject,
    },
}

impl fmt::Display for FindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(error) => error.fmt(f),
            Self::Unreachable { name, why } => {
                write!(f, "the home of {name:?} cannot be reached: {why}")
            }
            Self::WrongUser { name, reason, .. } => {
                write!(
                    f,
                    "this program does not accept the home of {name:?}: {reason}; `expect` sets which it accepts"
                )
            }
            Self::Refused { name, why } => write!(f, "the home of {name:?} refuses: {why}"),
            Self::NotAnObject { name, error } => write!(f, "{name:?}: {error}"),
        }
    }
}

impl std::error::Error for FindError {}

impl From<NotFound> for FindError {
    fn from(error: NotFound) -> Self {
        Self::Name(error)
    }
}

/// Why an operation was not run. It has changed nothing then, unless it was run and returned
/// [`Data`](Self::Data), or has [blocked](Self::Blocked).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessError {
    /// The home has ended, or has let go of the object: find it again, or make it anew.
    Ended,
    /// Somebody ended in the middle of an operation, and the home could not repair the object. It
    /// is to be made anew.
    Poisoned,
    /// Others had it for so long.
    Busy {
        /// So long this waited.
        waited: Duration,
        /// The process of who has it, if that can be told.
        holder: Option<u32>,
    },
    /// This handle is in an operation already: within it, or in another thread of this virtual
    /// processor that waits.
    Nested,
    /// It may only be read here, or only be invoked.
    NotGranted,
    /// Two that do this can wait for each other for ever. In builds with debug assertions only.
    Rule(Box<Broken>),
    /// An operation by name ([`perform`](crate::Homed::perform)) was run, and has blocked. In
    /// builds with debug assertions only.
    Blocked(Box<Blocked>),
    /// What the operation has returned.
    Data(DataError),
}

/// In the words of [`AccessError::Poisoned`].
pub(crate) const POISONED: &str = "a process ended in the middle of an operation, and its home could not repair it: it has to be made anew";

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => f.write_str("its home has ended, or has let go of it: find it again when it is there"),
            Self::Poisoned => f.write_str(POISONED),
            Self::Busy { waited, holder: Some(pid) } => {
                write!(f, "process {pid} has had it for {waited:?}: it may be stopped (kill -CONT {pid}), or in a long operation")
            }
            Self::Busy { waited, holder: None } => write!(f, "others have had it for {waited:?}"),
            Self::Nested => {
                f.write_str("this handle is in an operation on it already: end that first, or use a handle of your own")
            }
            Self::Rule(broken) => broken.fmt(f),
            Self::Blocked(blocked) => blocked.fmt(f),
            Self::NotGranted => f.write_str(
                "its home lets this process do less than that: `Homed::grant` says what. Use `read`, `urgent` or `invoke`, or have its home grant more",
            ),
            Self::Data(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for AccessError {}
