//! The messages between an object's home and who uses it, in postcard's encoding.

use crate::types::DataError;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::panic::Location;

/// The version of these messages and of the object's memory.
pub(crate) const VERSION: u32 = 3;

/// How it is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OperationKind {
    Short,
    MayBlock,
}

/// What the home says in place of a reply.
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
    /// The procedure's own words.
    Said(Cow<'static, str>),
    /// It was not run.
    NotRun(Cow<'static, str>),
    Panicked,
    /// It was run, and has blocked. This line has registered it.
    Blocked {
        file: Cow<'static, str>,
        line: u32,
    },
}

impl InvokeFailure {
    /// The operation that was registered there has blocked.
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

/// What one who has connected says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ObjectRequest {
    /// Wants to use the object, and takes it for one of this shape.
    Open { version: u32, shape: u64 },
    /// Wants the home to run operations on it. Descriptors: the lane, the doorbell to ring for the
    /// home, the doorbell to ring for the caller, and the station at a line of which the caller
    /// sleeps.
    Invoke { version: u32, shape: u64, line: u16, makes_fences: bool },
    /// Ended an operation in the middle, by a panic.
    Tore,
}

/// What the home answers to the first.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum OpenReply {
    /// Descriptor: the object's memory. Without a place it may only be read; `sealed` memory only
    /// its home may write.
    Yes {
        place: Option<u16>,
        length: u64,
        sealed: bool,
    },
    /// It may be invoked, and is not handed over.
    ToInvoke,
    /// Descriptor: the station at a line of which the thread sleeps that serves the object.
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
