//! Why connections end.

use crate::frame::FrameError;
use crate::link::LinkError;
use crate::secure::SecureError;
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::time::Duration;

/// Why a connection has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The other side closed the connection, often because its process ended.
    Ended,
    /// The kernel's error.
    Error(String),
    /// The other side gave no sign of life for this time.
    Silent(Duration),
    /// The other side sent bytes that do not continue the link.
    Link(LinkError),
    /// This side has no memory for a message. The other side has done nothing wrong.
    NoMemory,
    /// The other side sent bytes that do not continue the protected connection.
    Unprotected(String),
    /// The host at the other end is not trusted any more, for this reason.
    Untrusted(String),
}

impl Lost {
    /// Returns `true` if a session can go on after it: no side has ended it or broken the protocol.
    pub fn is_cut(&self) -> bool {
        matches!(self, Self::Ended | Self::Error(_) | Self::Silent(_) | Self::NoMemory)
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => {
                write!(
                    f,
                    "the other side closed the connection without a reason: its process may be \
                     gone, may have stopped serving, or may lack memory or threads"
                )
            }
            Self::Error(error) | Self::Unprotected(error) | Self::Untrusted(error) => {
                f.write_str(error)
            }
            Self::Silent(after) => write!(
                f,
                "the other side gave no sign of life for {} s: its machine or the network may be \
                 down",
                after.as_secs_f32()
            ),
            Self::Link(error) => error.fmt(f),
            Self::NoMemory => LinkError::NoMemory.fmt(f),
        }
    }
}

impl From<LinkError> for Lost {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::NoMemory => Self::NoMemory,
            error => Self::Link(error),
        }
    }
}

impl From<FrameError> for Lost {
    fn from(error: FrameError) -> Self {
        Self::Link(error.into())
    }
}

impl From<SecureError> for Lost {
    fn from(error: SecureError) -> Self {
        Self::Unprotected(error.to_string())
    }
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Self::Ended,
            _ => Self::Error(error.to_string()),
        }
    }
}

impl From<Errno> for Lost {
    fn from(error: Errno) -> Self {
        io::Error::from(error).into()
    }
}
