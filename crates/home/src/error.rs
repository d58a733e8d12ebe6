//! Errors of objects with a home: what was tried, what was found, and what to do.

use crate::rules::{Blocked, Broken};
use crate::types::DataError;
use crate::types::arena::MOST;
use std::time::Duration;
use std::{fmt, io};
use upcall_directory::names::{NotEntered, NotFound};
use upcall_directory::nearby::NameKind;
use upcall_net::NotListening;
use upcall_os::memory::AdoptError;

/// Why an object was not made.
pub enum CreateError {
    /// The object's name was not entered.
    Name(NotEntered),
    /// The kernel refused a resource.
    Resource {
        /// The resource.
        what: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
    /// The home cannot listen for guests on other hosts.
    Listen(NotListening),
    /// The object's first value could not be written.
    Data(DataError),
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(error) => error.fmt(f),
            Self::Resource { what, error } => write!(f, "{what}: {error}"),
            Self::Listen(error) => error.fmt(f),
            Self::Data(error) => error.fmt(f),
        }
    }
}

upcall_os::error_debug!(CreateError {
    Name(error), Resource { what, error }, Listen(error), Data(error),
});

impl std::error::Error for CreateError {}

impl From<NotEntered> for CreateError {
    fn from(error: NotEntered) -> Self {
        Self::Name(error)
    }
}

/// Why memory that came from a home is not the object that was looked for.
pub enum NotAnObject {
    /// No object has this length.
    Length {
        /// The length that the home reported, in bytes.
        found: u64,
    },
    /// The file is not such a memory file.
    Memory(AdoptError),
    /// The kernel does not map the memory.
    Kernel(io::Error),
    /// The memory does not begin with the header of an object of this version.
    Header,
    /// The object has another layout.
    Shape {
        /// The shape of the object.
        found: u64,
        /// The shape of the type here.
        expected: u64,
    },
}

impl fmt::Display for NotAnObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { found } => {
                write!(f, "its home reports {found} bytes, but an object has 1 to {}", MOST)
            }
            Self::Memory(error) => error.fmt(f),
            Self::Kernel(error) => write!(f, "its memory cannot be mapped: {error}"),
            Self::Header => {
                f.write_str("its memory does not begin with the header of this version's objects")
            }
            Self::Shape { found, expected } => write!(
                f,
                "it is of another type: its shape is {found:016x}, but {expected:016x} is expected \
                 here. Build both programs with the same definition"
            ),
        }
    }
}

upcall_os::error_debug!(NotAnObject {
    Length { found }, Memory(error), Kernel(error), Header, Shape { found, expected },
});

impl std::error::Error for NotAnObject {}

/// Why an object was not found.
pub enum FindError {
    /// There is no such name.
    Name(NotFound),
    /// The home has ended, or does not answer. Another one may make the object again.
    Absent {
        /// The object.
        name: String,
        /// What happened.
        why: String,
    },
    /// The home is there, and refuses the connection or breaks the protocol; or a resource is
    /// missing here.
    Unreachable {
        /// The object.
        name: String,
        /// What happened.
        why: String,
    },
    /// This program does not accept the home. By default it accepts homes of this user and of root,
    /// and homes on hosts that this user trusts; `expect` sets another policy.
    WrongUser {
        /// The object.
        name: String,
        /// The home's user; the largest number if the home is on another host.
        found: u32,
        /// The policy's reason.
        reason: String,
    },
    /// The home's host is not proved, and nothing was sent to it.
    NotProved {
        /// The object.
        name: String,
        /// What is missing.
        why: String,
    },
    /// No home here has made the object, and the reference has no address that leads to another
    /// host.
    NoAddress {
        /// The object.
        name: String,
    },
    /// The home refuses.
    Refused {
        /// The object.
        name: String,
        /// The home's reason.
        why: String,
    },
    /// The home handed over something that is not the object.
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
            Self::Name(NotFound::Unknown { name, folder, hint }) => {
                write!(f, "no home has made {name:?} in {}{hint}", folder.display())?;
                match hint.is_advice() {
                    true => Ok(()),
                    false => f.write_str(
                        ": start its home first, wait for it by `find_wait`, or look which objects \
                         there are by `upcall stat --objects`",
                    ),
                }
            }
            Self::Name(error) => error.fmt(f),
            Self::Absent { name, why } | Self::Unreachable { name, why } => {
                write!(f, "the home of {name:?} cannot be reached: {why}")
            }
            Self::WrongUser { name, reason, .. } => {
                write!(
                    f,
                    "this program does not accept the home of {name:?}: {reason}; `expect` sets \
                     which homes it accepts"
                )
            }
            Self::NotProved { name, why } => {
                write!(f, "the host of the home of {name:?} is not proved: {why}")
            }
            Self::NoAddress { name } => write!(
                f,
                "no home here has made {name:?}, and the reference to it has no address that leads \
                 to another host: if its home is there, it has to make the object with `listen`, \
                 at an address by which other hosts reach it (or `reached_at`)"
            ),
            Self::Refused { name, why } => write!(f, "the home of {name:?} refuses: {why}"),
            Self::NotAnObject { name, error } => write!(f, "{name:?}: {error}"),
        }
    }
}

upcall_os::error_debug!(FindError {
    Name(error), Absent { name, why }, Unreachable { name, why }, WrongUser { name, found, reason },
    NotProved { name, why }, NoAddress { name }, Refused { name, why }, NotAnObject { name, error },
});

impl std::error::Error for FindError {}

impl FindError {
    /// Looks for where an object may be instead that no home has made.
    pub(crate) fn with_hint(self) -> Self {
        match self {
            Self::Name(error) => Self::Name(error.with_hint(NameKind::Object)),
            other => other,
        }
    }
}

impl From<NotFound> for FindError {
    fn from(error: NotFound) -> Self {
        Self::Name(error)
    }
}

/// Why an operation was not run.
///
/// The object is unchanged, unless the operation was run and returned [`Data`](Self::Data), or
/// [blocked](Self::Blocked).
#[derive(Clone, PartialEq, Eq)]
pub enum AccessError {
    /// The home has ended or has let go of the object: find it again, or create it again.
    Ended,
    /// A process ended in the middle of an operation, and the home could not repair the object,
    /// which has to be created again.
    Poisoned,
    /// Other parties held the object for the whole time that the caller waited.
    Busy {
        /// Time that the caller waited.
        waited: Duration,
        /// The process that holds the object, if it is known.
        holder: Option<u32>,
    },
    /// This handle is already in an operation: of the caller, or of a waiting thread of the same
    /// virtual processor.
    Nested,
    /// This process may only read the object, or only invoke it.
    NotGranted,
    /// The object's home is on another host, whose memory cannot be mapped here.
    OtherHost,
    /// Two processes that do this can wait for each other for ever. Only in builds with debug
    /// assertions.
    Rule(Box<Broken>),
    /// An operation by name ([`perform`](crate::Homed::perform)) was run, and it blocked. Only in
    /// builds with debug assertions.
    Blocked(Box<Blocked>),
    /// The operation returned this error.
    Data(DataError),
}

/// The text of [`AccessError::Poisoned`].
pub(crate) const POISONED: &str = "a process ended in the middle of an operation, and the home \
                                   could not repair the object: it has to be created again";

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => f.write_str(
                "the object's home has ended or has let go of it: find it again when it is back",
            ),
            Self::Poisoned => f.write_str(POISONED),
            Self::Busy { waited, holder: Some(pid) } => {
                write!(
                    f,
                    "process {pid} has held it for {waited:?}: that process may be stopped \
                     (kill -CONT {pid}), or in a long operation"
                )
            }
            Self::Busy { waited, holder: None } => write!(f, "others have held it for {waited:?}"),
            Self::Nested => {
                f.write_str("this handle is already in an operation: end it first, or use another")
            }
            Self::Rule(broken) => broken.fmt(f),
            Self::Blocked(blocked) => blocked.fmt(f),
            Self::NotGranted => f.write_str(
                "the object's home grants this process less than that: see `Homed::grant`. Use \
                 `read`, `urgent` or `invoke`, or have the home grant more",
            ),
            Self::OtherHost => f.write_str(
                "the object's home is on another host, whose memory cannot be mapped here: have \
                 the home run the operation, by `urgent`, `invoke` or `auto`",
            ),
            Self::Data(error) => error.fmt(f),
        }
    }
}

upcall_os::error_debug!(AccessError {
    Ended, Poisoned, Busy { waited, holder }, Nested, NotGranted, OtherHost, Rule(error),
    Blocked(error), Data(error),
});

impl std::error::Error for AccessError {}
