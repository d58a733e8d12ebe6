//! The messages between an object's home and its guests, in postcard's encoding.

use crate::types::DataError;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::panic::Location;

/// The version of these messages and of the layout of an object's memory.
pub(crate) const VERSION: u32 = 4;

/// How an operation is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum OperationKind {
    Short,
    MayBlock,
}

/// The home's answer to an operation that has no reply.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum InvokeFailure {
    Full {
        asked: u64,
    },
    Corrupt {
        what: Cow<'static, str>,
        at: u64,
    },
    ReadOnly,
    /// The procedure returned this text.
    Said(Cow<'static, str>),
    /// The operation was not run, for this reason.
    NotRun(Cow<'static, str>),
    Panicked,
    /// The operation was run, and it blocked. It was registered at this line.
    Blocked {
        file: Cow<'static, str>,
        line: u32,
    },
}

impl InvokeFailure {
    /// An operation that blocked, with the place where it was registered.
    pub(crate) fn blocked(registered: &'static Location<'static>) -> Self {
        Self::Blocked { file: Cow::Borrowed(registered.file()), line: registered.line() }
    }
}

impl From<DataError> for InvokeFailure {
    fn from(error: DataError) -> Self {
        match error {
            DataError::Full { asked } => Self::Full { asked },
            DataError::Corrupt { what, at } => Self::Corrupt { what: what.into(), at },
            DataError::ReadOnly => Self::ReadOnly,
            DataError::Unchecked { why } => Self::Said(why.into()),
        }
    }
}

/// A guest's request to a home.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ObjectRequest {
    /// Asks for the object, which must have this shape.
    Open { version: u32, shape: u64 },
    /// Asks the home to run operations on the object. Descriptors: the lane, the doorbell that
    /// wakes the home, the doorbell that wakes the caller, and the station with the line at which
    /// the caller sleeps.
    Invoke { version: u32, shape: u64, line: u16, makes_fences: bool },
    /// Reports that the guest ended an operation in the middle, by a panic.
    Tore,
}

/// The home's answer to the first request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum OpenReply {
    /// Grants the object. Descriptor: the object's memory. Without a place the guest may only read
    /// it. `sealed` memory can be written only by its home. Other hosts reach the home at
    /// `reached_at`, HOST:PORT.
    Yes {
        place: Option<u16>,
        length: u64,
        sealed: bool,
        reached_at: Option<String>,
    },
    /// The object may be invoked, but its memory is not handed over.
    ToInvoke {
        reached_at: Option<String>,
    },
    /// Accepts a lane. Descriptor: the station with the line at which the thread sleeps that serves
    /// the object.
    Invokes {
        line: u16,
        makes_fences: bool,
        operations: Vec<(String, OperationKind)>,
    },
    No(String),
}

pub(crate) fn pack<T: Serialize>(message: &T) -> std::io::Result<Vec<u8>> {
    postcard::to_stdvec(message).map_err(std::io::Error::other)
}

pub(crate) fn unpack<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    postcard::from_bytes(bytes)
        .map_err(|error| format!("a control message cannot be read: {error}"))
}
