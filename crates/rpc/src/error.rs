//! The errors of each operation. Each says what was tried, what was found, and what to do.

use crate::decode::{Malformed, QuotaScope};
use crate::encode::EncodeError;
use crate::interface::Mismatch;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use upcall_directory::names::{FolderError, NameHint, NotEntered, NotFound};
use upcall_directory::nearby::{self, NameKind};
use upcall_net::NotListening;
use upcall_sched::{Closed, NoReply};

/// Why a client could not bind.
#[non_exhaustive]
pub enum BindError {
    /// The name is not a valid name.
    BadName {
        /// The name.
        name: String,
        /// Why.
        why: &'static str,
    },
    /// No process exports the name.
    NoSuchName {
        /// The name.
        name: String,
        /// The folder of names that was searched.
        folder: PathBuf,
        /// Where the name may be instead.
        hint: NameHint,
    },
    /// There is no usable folder of names.
    Folder(FolderError),
    /// The server has ended, or no longer exports the name. The entry that a dead server left in
    /// the folder is removed, unless another process is removing it.
    ServerGone {
        /// The name.
        name: String,
    },
    /// The server closed the connection before it answered, and its process has not ended yet.
    HungUp {
        /// The name.
        name: String,
    },
    /// The server does not answer. It is stopped, or another program listens there.
    NoAnswer {
        /// The name.
        name: String,
        /// How long the client waited.
        after: Duration,
    },
    /// The client does not accept the server. By default it accepts servers of its own user and of
    /// root; `expect` sets another policy.
    WrongUser {
        /// The name.
        name: String,
        /// The server's user; `None` if it is unknown.
        found: Option<u32>,
        /// Why, in the words of the client's policy.
        reason: String,
    },
    /// The server refuses this client.
    Denied {
        /// The name.
        name: String,
        /// The server's reason.
        reason: String,
    },
    /// This process holds all that the server's [`Quotas`](crate::Quotas) permit, or all that they
    /// leave beside other clients.
    QuotaReached {
        /// The name.
        name: String,
        /// The server's reason.
        reason: String,
    },
    /// Client and server speak different versions of Upcall's protocol.
    Version {
        /// The name.
        name: String,
        /// The version that this program speaks.
        own: u32,
        /// The server's reason, which names its own version.
        reason: String,
    },
    /// The server exports another interface under the name.
    WrongInterface {
        /// The name.
        name: String,
        /// The interface of this program.
        wanted: String,
        /// The interface exported.
        exported: String,
    },
    /// Procedures have other types in the server than in this program.
    Mismatch {
        /// The name.
        name: String,
        /// The first of these procedures, with both signatures. Long signatures are cut.
        procedures: Vec<Mismatch>,
        /// Number of further such procedures.
        more: u32,
    },
    /// A descriptor, memory, or another resource is missing, here or in the server.
    Resource {
        /// The operation that needed it.
        what: String,
        /// The kernel's error.
        error: io::Error,
    },
    /// No connection to a server on another machine: nothing listens there, the listener is not an
    /// Upcall server, or the connection was lost.
    Unreachable {
        /// Its address.
        server: String,
        /// What was found.
        why: String,
    },
    /// The host of the server is not trusted, or is another than the trusted one.
    NotProved {
        /// Its address.
        server: String,
        /// What was found.
        why: String,
    },
    /// The server on another machine does not export the name.
    NotThere {
        /// The name.
        name: String,
        /// Its address.
        server: String,
    },
    /// The server broke the protocol, reports that this program broke it, or is just ending.
    Protocol {
        /// What was found.
        what: String,
    },
}

impl From<NotFound> for BindError {
    fn from(error: NotFound) -> Self {
        match error {
            NotFound::BadName { name, why } => Self::BadName { name, why },
            NotFound::Unknown { name, folder, hint } => Self::NoSuchName { name, folder, hint },
            // The folder itself is usable: this process, or the machine, lacks a resource.
            NotFound::Folder(FolderError::Unusable { path, error }) if is_shortage(&error) => {
                Self::Resource { what: format!("the folder of names {}", path.display()), error }
            }
            NotFound::Folder(error) => Self::Folder(error),
        }
    }
}

impl BindError {
    /// Looks for where a name may be instead that no process exports: see [`nearby::hint`]. Each
    /// way to bind does so itself, once its wait is over.
    #[must_use]
    pub fn with_hint(mut self) -> Self {
        if let Self::NoSuchName { name, folder, hint } = &mut self {
            *hint = nearby::hint(NameKind::Export, name, folder);
        }
        self
    }
}

fn is_shortage(error: &io::Error) -> bool {
    const SHORT: [rustix::io::Errno; 3] =
        [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE, rustix::io::Errno::NOMEM];
    SHORT.iter().any(|short| error.raw_os_error() == Some(short.raw_os_error()))
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(24) => {
            " (the descriptor table of the process is full: close some, or raise `ulimit -n`)"
        }
        Some(23) => " (the descriptor table of the machine is full)",
        Some(12) => " (no memory, or too many mappings: see vm.max_map_count)",
        Some(13) => " (this user may not)",
        Some(28 | 122) => " (the file system is full, or this user's share of it)",
        Some(30) => " (the file system is read-only)",
        _ => "",
    }
}

impl fmt::Display for BindError {
    #[expect(clippy::too_many_lines, reason = "one arm for each error")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadName { name, why } => {
                write!(f, "{name:?} cannot be a name: {why}")?;
                match name.contains('/') && !name.starts_with("tcp://") {
                    true => write!(f, "; a server on another machine is tcp://HOST:PORT/NAME"),
                    false => Ok(()),
                }
            }
            Self::NoSuchName { name, folder, hint } => {
                write!(f, "no process exports {name:?} in {}{hint}", folder.display())?;
                match hint.is_advice() {
                    true => Ok(()),
                    false => f.write_str(
                        ": start its server, or see `upcall ls --all` for other folders",
                    ),
                }
            }
            Self::Folder(error) => error.fmt(f),
            Self::ServerGone { name } => {
                write!(
                    f,
                    "the last server of {name:?} has ended, or no longer exports it: start it \
                    again, or try again if a new one is just starting"
                )
            }
            Self::HungUp { name } => write!(
                f,
                "the server of {name:?} closed the connection before it answered, and its process \
                has not ended so far: \
                it may be stopping, or not be a server of Upcall"
            ),
            Self::NoAnswer { name, after } => {
                write!(
                    f,
                    "the server of {name:?} did not answer within {after:?}: it may be stopped or \
                    overloaded"
                )
            }
            Self::WrongUser { name, reason, .. } => {
                write!(
                    f,
                    "this program does not accept the server of {name:?}: {reason}; `expect` sets \
                    which it accepts"
                )
            }
            Self::Denied { name, reason } => {
                write!(f, "the server of {name:?} refuses this client: {reason}")
            }
            Self::QuotaReached { name, reason } => {
                write!(
                    f,
                    "the server of {name:?} takes no more from this client: {reason}; drop \
                    bindings, or have its quotas raised"
                )
            }
            Self::Version { name, own, reason } => {
                write!(
                    f,
                    "the server of {name:?} speaks another version of Upcall's protocol than this \
                    program, which speaks version {own}: {reason}; \
                    build both with the same version of Upcall"
                )
            }
            Self::WrongInterface { name, wanted, exported } => {
                write!(
                    f,
                    "{name:?} is {exported}, but this program wants {wanted}: bind another name, \
                    or run the matching server"
                )
            }
            Self::Mismatch { name, procedures, more } => {
                write!(
                    f,
                    "the server of {name:?} was built from another interface; rebuild one of the \
                    two, and start it again:"
                )?;
                procedures.iter().try_for_each(|procedure| write!(f, "\n  {procedure}"))?;
                if *more > 0 { write!(f, "\n  and {more} more") } else { Ok(()) }
            }
            Self::Resource { what, error } => write!(f, "{what}: {error}{}", hint(error)),
            Self::Unreachable { server, why } => {
                write!(
                    f,
                    "no server can be reached at {server}: {why}; is it started, and does it \
                    listen there?"
                )
            }
            Self::NotProved { server, why } => {
                write!(f, "nothing was sent to {server}, because its host is not proved: {why}")
            }
            Self::NotThere { name, server } => {
                write!(
                    f,
                    "the server at {server} exports no {name:?}: it has another name there, or is \
                    another server's"
                )
            }
            Self::Protocol { what } => write!(f, "the server broke the protocol: {what}"),
        }
    }
}

upcall_os::error_debug!(BindError {
    BadName { name, why }, NoSuchName { name, folder, hint }, Folder(error), ServerGone { name },
    HungUp { name }, NoAnswer { name, after }, WrongUser { name, found, reason },
    Denied { name, reason }, QuotaReached { name, reason }, Version { name, own, reason },
    WrongInterface { name, wanted, exported }, Mismatch { name, procedures, more },
    Resource { what, error }, Unreachable { server, why }, NotProved { server, why },
    NotThere { name, server }, Protocol { what },
});

impl std::error::Error for BindError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Resource { error, .. } => Some(error),
            Self::Folder(error) => Some(error),
            _ => None,
        }
    }
}

/// Why a call did not return its procedure's result.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallError {
    /// LRPC's call-failed: no reply will arrive. If the server ended during the call, the procedure
    /// may or may not have run.
    Failed(Closed),
    /// LRPC's call-aborted: before the reply arrived, the deadline of this call or of the call on
    /// whose behalf it was made passed, or the call was cancelled. As far as is known, the server
    /// is alive and goes on. A late result is dropped.
    Aborted {
        /// `true` if the server has the request: the procedure may have run, may be running, or may
        /// still run. `false` if it never will.
        sent: bool,
    },
    /// An argument is longer than the interface permits. Nothing was sent.
    TooLong {
        /// "string" or "list".
        what: &'static str,
        /// Its length in bytes or elements.
        len: u64,
        /// The maximum; see the TOML file beside the interface.
        limit: u64,
    },
    /// The procedure has run, but the server did not keep its result, for which the client had
    /// brought too little room.
    ResultQuota {
        /// Bytes of the result.
        bytes: u64,
        /// The maximum.
        limit: u64,
        /// Whose quota it is: [`QuotaScope::Client`] or [`QuotaScope::All`].
        of: QuotaScope,
    },
    /// An argument is a handle of another binding. Nothing was sent.
    ForeignHandle,
    /// This process could not write the arguments: its own table of objects is full, or a type
    /// computes a wrong size, which generated stubs never cause. Nothing was sent.
    NotSent(&'static str),
    /// The server refused: the arguments or the result exceed the interface's limit, too many
    /// resources are held, or the arguments are malformed, which generated stubs never cause. The
    /// text says so if the procedure has run.
    Refused(String),
    /// The server no longer knows the handle.
    NoSuchHandle,
    /// The procedure panicked, with this message. The server goes on. A message of more than 4096
    /// bytes is cut.
    Panicked(String),
    /// The binding was revoked.
    Revoked,
    /// The server has no procedure of this number.
    NoSuchProcedure,
    /// The result is not of the procedure's type, or longer than the client's limits. The client's
    /// limits are stricter than the server's, or the server is faulty or hostile.
    BadReply(String),
    /// As values in the server, the arguments take more memory than the server permits. The
    /// procedure did not run.
    Quota {
        /// Bytes that the arguments take, as far as they were read.
        bytes: u64,
        /// The maximum.
        limit: u64,
        /// Whose quota it is.
        of: QuotaScope,
    },
    /// No memory carries the arguments or the result, or the server refused the memory, or did not
    /// map it within 5 s. A result of more than 16 MiB also fails if it would take more than a
    /// quarter of the memory that this process can have, because only the server vouches for its
    /// length.
    NoMemory {
        /// Bytes that were needed.
        bytes: u64,
        /// The reason.
        error: String,
    },
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(closed) => write!(f, "the call failed: {closed}; bind again"),
            Self::Aborted { sent: true } => {
                write!(
                    f,
                    "the call was aborted: it was cancelled, or its deadline passed. The procedure \
                    may still run, and its result will be dropped: call again only if it can run \
                    twice"
                )
            }
            Self::Aborted { sent: false } => {
                write!(
                    f,
                    "the call was aborted: it was cancelled, or its deadline passed, before it was \
                    sent. The procedure will not run. If the deadline passed, call again with a \
                    longer one, or make fewer calls at once"
                )
            }
            Self::TooLong { what, len, limit } => {
                write!(
                    f,
                    "a {what} of {len} is longer than the interface's limit of {limit}; nothing \
                    was sent"
                )
            }
            Self::ForeignHandle => {
                write!(f, "a handle of another binding was given; nothing was sent")
            }
            Self::NotSent(why) => write!(f, "the call was not sent: {why}"),
            Self::Refused(why) => write!(f, "the server refused the call: {why}"),
            Self::NoSuchHandle => write!(
                f,
                "the server does not know the handle: it was dropped, or is of another type"
            ),
            Self::Panicked(message) => write!(f, "the procedure panicked in the server: {message}"),
            Self::Revoked => write!(f, "the binding was revoked; bind again"),
            Self::NoSuchProcedure => write!(f, "the server has no such procedure"),
            Self::BadReply(why) => write!(f, "the server's reply is malformed: {why}"),
            // The server stops reading at the limit, so the whole length is not known.
            Self::Quota { limit, of, .. } => {
                let others = match of {
                    QuotaScope::Call => "",
                    QuotaScope::Client | QuotaScope::All => ", with those of other calls,",
                };
                write!(
                    f,
                    "the server did not run the call: its arguments{others} take more than {limit} \
                    bytes there as values, the limit for {of}; send less at a time, or raise that \
                    limit"
                )
            }
            Self::ResultQuota { bytes, limit, of } => write!(
                f,
                "the procedure has run, and the server did not keep its result of {bytes} bytes: \
                results that are not fetched yet may have {limit} bytes, for {of}; ask for less \
                at a time, make fewer such calls at once, or raise that limit"
            ),
            Self::NoMemory { bytes, error } => {
                write!(f, "no memory for {bytes} bytes of arguments or results: {error}")
            }
        }
    }
}

upcall_os::error_debug!(CallError {
    Failed(error), Aborted { sent }, TooLong { what, len, limit }, ResultQuota { bytes, limit, of },
    ForeignHandle, NotSent(error), Refused(error), NoSuchHandle, Panicked(error), Revoked,
    NoSuchProcedure, BadReply(error), Quota { bytes, limit, of }, NoMemory { bytes, error },
});

impl std::error::Error for CallError {}

impl From<Closed> for CallError {
    fn from(closed: Closed) -> Self {
        Self::Failed(closed)
    }
}

impl From<NoReply> for CallError {
    fn from(reason: NoReply) -> Self {
        match reason {
            NoReply::Closed(closed) => Self::Failed(closed),
            NoReply::OutOfTime { sent } => Self::Aborted { sent },
            NoReply::NoMemory { bytes } => {
                Self::NoMemory { bytes: bytes as u64, error: "the request was not sent".into() }
            }
        }
    }
}

impl From<EncodeError> for CallError {
    fn from(fault: EncodeError) -> Self {
        match fault {
            EncodeError::TooLong { what, len, limit } => Self::TooLong { what, len, limit },
            EncodeError::ForeignHandle => Self::ForeignHandle,
            EncodeError::TooManyObjects => {
                Self::NotSent("this process holds too many objects to give another one: drop some")
            }
            EncodeError::NoMemory => Self::NotSent("this process has no memory to hold an object"),
            EncodeError::Room => {
                Self::NotSent("the arguments do not fit the space that their types ask for")
            }
        }
    }
}

impl From<Malformed> for CallError {
    fn from(malformed: Malformed) -> Self {
        match malformed {
            Malformed::NoMemory { bytes } => {
                Self::NoMemory { bytes, error: "to read the result; the procedure has run".into() }
            }
            other => Self::BadReply(other.to_string()),
        }
    }
}

/// The error of a procedure whose result is a WIT `result`: the procedure's own error, or the
/// call's.
#[derive(Clone, PartialEq, Eq)]
pub enum Failure<E> {
    /// The procedure ran and returned this error.
    Returned(E),
    /// The call itself failed.
    Call(CallError),
}

impl<E> From<CallError> for Failure<E> {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

impl<E: fmt::Debug> fmt::Display for Failure<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Returned(error) => write!(f, "the procedure returned the error {error:?}"),
            Self::Call(error) => write!(f, "{error}"),
        }
    }
}

// By hand, because `error_debug!` knows no parameters of types.
impl<E: fmt::Debug> fmt::Debug for Failure<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            _ if !f.alternate() => upcall_os::error_debug::write_text(self, f),
            Self::Returned(error) => f.debug_tuple("Returned").field(error).finish(),
            Self::Call(error) => f.debug_tuple("Call").field(error).finish(),
        }
    }
}

impl<E: fmt::Debug> std::error::Error for Failure<E> {}

/// Why a server could not export or run.
#[non_exhaustive]
pub enum ServeError {
    /// The name is not a valid name.
    BadName {
        /// The name.
        name: String,
        /// Why.
        why: &'static str,
    },
    /// Another living process exports the name.
    NameTaken {
        /// The name.
        name: String,
        /// The process; 0 if its PID namespace is not visible from here.
        pid: u32,
    },
    /// There is no usable folder of names.
    Folder(FolderError),
    /// A server that has ended exported the name, and only another user may remove the entry.
    NameStale {
        /// The name.
        name: String,
        /// The file to remove.
        path: PathBuf,
        /// The user who may remove it, beside root and the owner of the folder of names.
        user: u32,
    },
    /// A file that is not a name occupies the name's place.
    NameInTheWay {
        /// The name.
        name: String,
        /// The file to remove.
        path: PathBuf,
    },
    /// This process already exports the name.
    ExportedHere {
        /// The name.
        name: String,
    },
    /// The interface has more procedures than a binding can number.
    TooManyProcedures {
        /// Number of its procedures.
        found: usize,
    },
    /// Other machines can reach the address to listen at, and nothing would protect it.
    Unprotected {
        /// The address.
        address: String,
        /// What is missing.
        why: String,
    },
    /// The kernel refused an operation.
    Resource {
        /// The operation.
        what: String,
        /// The kernel's error.
        error: io::Error,
    },
}

impl From<NotListening> for ServeError {
    fn from(error: NotListening) -> Self {
        match error {
            NotListening::Unprotected { address, why } => Self::Unprotected { address, why },
            NotListening::Unable { what, error } => Self::Resource { what, error },
        }
    }
}

impl From<NotEntered> for ServeError {
    fn from(error: NotEntered) -> Self {
        match error {
            NotEntered::BadName { name, why } => Self::BadName { name, why },
            NotEntered::Taken { name, pid } => Self::NameTaken { name, pid },
            NotEntered::Here { name } => Self::ExportedHere { name },
            NotEntered::Stale { name, path, user } => Self::NameStale { name, path, user },
            NotEntered::InTheWay { name, path } => Self::NameInTheWay { name, path },
            NotEntered::Folder(error) => Self::Folder(error),
            NotEntered::Resource { what, error } => Self::Resource { what, error },
        }
    }
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadName { name, why } => write!(f, "{name:?} cannot be a name: {why}"),
            Self::NameTaken { name, pid: 0 } => write!(
                f,
                "{name:?} is exported by a process of another user or PID namespace already: \
                 stop it, or choose another name"
            ),
            Self::Folder(error) => error.fmt(f),
            Self::NameStale { name, path, user } => {
                let (name, path) = (name.clone(), path.clone());
                NotEntered::Stale { name, path, user: *user }.fmt(f)
            }
            Self::NameInTheWay { name, path } => {
                NotEntered::InTheWay { name: name.clone(), path: path.clone() }.fmt(f)
            }
            Self::NameTaken { name, pid } => {
                write!(
                    f,
                    "{name:?} is exported by process {pid} already: stop it, or choose another name"
                )
            }
            Self::ExportedHere { name } => write!(f, "this process exports {name:?} already"),
            Self::TooManyProcedures { found } => {
                write!(
                    f,
                    "the interface has {found} procedures, more than {}: split it",
                    crate::interface::MOST_PROCEDURES
                )
            }
            Self::Unprotected { address, why } => {
                let (address, why) = (address.clone(), why.clone());
                NotListening::Unprotected { address, why }.fmt(f)
            }
            Self::Resource { what, error } => write!(f, "{what}: {error}{}", hint(error)),
        }
    }
}

upcall_os::error_debug!(ServeError {
    BadName { name, why }, NameTaken { name, pid }, Folder(error), NameStale { name, path, user },
    NameInTheWay { name, path }, ExportedHere { name }, TooManyProcedures { found },
    Unprotected { address, why }, Resource { what, error },
});

impl std::error::Error for ServeError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server has not read all arguments, so their length is not in the text.
    #[test]
    fn a_quota_of_values_is_told_by_its_limit_alone() {
        for (of, part) in [
            (QuotaScope::Call, "its arguments take more than 65536 bytes there"),
            (
                QuotaScope::Client,
                "arguments, with those of other calls, take more than 65536 bytes",
            ),
            (QuotaScope::All, "arguments, with those of other calls, take more than 65536 bytes"),
        ] {
            let text = CallError::Quota { bytes: 65_580, limit: 65_536, of }.to_string();
            assert!(text.contains(part) && !text.contains("65580"), "{text}");
            assert!(text.contains(&format!("the limit for {of}")), "{text}");
        }
    }

    /// What this process could not write has not reached the server.
    #[test]
    fn arguments_that_were_not_sent_are_not_refused_by_the_server() {
        for (fault, part) in [
            (EncodeError::TooManyObjects, "this process holds too many objects"),
            (EncodeError::NoMemory, "no memory to hold an object"),
            (EncodeError::Room, "do not fit the space"),
        ] {
            let text = CallError::from(fault).to_string();
            assert!(text.starts_with("the call was not sent: ") && text.contains(part), "{text}");
        }
    }
}
