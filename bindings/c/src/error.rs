//! Statuses, error texts, and the border that no panic crosses.

use std::any::Any;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use upcall_message::{ExpectError, JoinError, RunError, SendError};
use upcall_rpc::{BindError, CallError, ServeError};

macro_rules! statuses {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        /// `upcall_status`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Status { $($name = $number),* }

        /// Returns a short description of a status.
        #[unsafe(no_mangle)]
        pub extern "C" fn upcall_status_text(status: u32) -> *const c_char {
            let text: &CStr = match status {
                $($number => $text,)*
                _ => c"an unknown status",
            };
            text.as_ptr()
        }
    };
}

statuses! {
    Ok = 0, c"ok";
    Misuse = 1, c"misuse";
    TooLong = 2, c"an argument is too long";
    ForeignHandle = 3, c"a resource of another binding";
    OtherThread = 4, c"a group of another thread";
    Unfit = 5, c"the payload does not fit its kind of message";
    Failed = 10, c"the call failed";
    Aborted = 11, c"the call was aborted";
    Refused = 12, c"the server refused the call";
    NoSuchHandle = 13, c"no such resource";
    Panicked = 14, c"the procedure failed";
    Revoked = 15, c"the binding was revoked";
    NoSuchProcedure = 16, c"no such procedure";
    BadReply = 17, c"the reply is malformed";
    NoMemory = 18, c"no memory for arguments or results";
    NoSuchName = 30, c"no server exports the name";
    ServerGone = 31, c"the server has ended, or closed the connection";
    NoAnswer = 32, c"the server does not answer";
    WrongUser = 33, c"the server runs as another user";
    Denied = 34, c"the server refuses this client";
    QuotaReached = 35, c"this client has reached its limit in the server";
    Version = 36, c"another version of Upcall's protocol";
    WrongInterface = 37, c"the name belongs to another interface";
    Mismatch = 38, c"procedures have other types in the server";
    Protocol = 39, c"the server violated the protocol";
    Unreachable = 40, c"no server can be reached at the address";
    NotThere = 41, c"the server at the address does not export the name";
    NotProved = 42, c"the other host is not proved";
    NameTaken = 50, c"the name is taken";
    TooManyProcedures = 51, c"too many procedures";
    Unprotected = 52, c"this host cannot prove its identity to other hosts";
    Incomplete = 80, c"not all members joined in time";
    NotTakenIn = 81, c"the group refuses this process";
    NoJob = 82, c"this process is not a member of a job";
    NoSuchRank = 83, c"no such rank";
    Ended = 84, c"the other member has ended or left";
    Violation = 85, c"the other member violated the protocol";
    Full = 86, c"there is no room yet";
    Overflow = 87, c"the share of the buffer is used up, or memory is low";
    NoQueue = 88, c"no queue to the other member";
    Unhandled = 89, c"a message without a handler waits";
    Unsent = 90, c"no resource is left to reach another member";
    Interrupted = 91, c"the wait was interrupted";
    NothingThere = 92, c"nothing waits";
    GivenUp = 93, c"another member reports that a third one is missing";
    QueueRefused = 94, c"the other member lives, but lacks a resource for the queue";
    NoRoom = 95, c"the group has no room for members that join later";
    NotLeader = 96, c"another member expects those that join later";
    RankTaken = 97, c"the rank is another member's";
    Growing = 98, c"members may join this group later";
    Parted = 99, c"two other members have lost each other";
    Resource = 70, c"the system has no such resource left";
    Internal = 71, c"a bug in Upcall";
}

/// Size of an error's text in bytes, including its NUL.
const TEXT: usize = 1000;

/// `upcall_error`.
#[repr(C)]
pub struct CError {
    status: Status,
    sent: bool,
    text: [c_char; TEXT],
}

/// A failure on its way to the border.
#[derive(Debug)]
pub struct Problem {
    pub status: Status,
    pub sent: bool,
    pub text: String,
}

impl Problem {
    #[cold]
    pub fn new(status: Status, text: impl Into<String>) -> Self {
        Self { status, sent: false, text: text.into() }
    }

    #[cold]
    pub fn misuse(text: impl Into<String>) -> Self {
        Self::new(Status::Misuse, text)
    }

    #[cold]
    fn panic(panic: &(dyn Any + Send)) -> Self {
        let text = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Self::new(
            Status::Internal,
            format!(
                "a bug in Upcall, please report it: {}",
                text.unwrap_or("a panic without a text")
            ),
        )
    }

    /// Writes the problem to the caller's struct, if there is one.
    ///
    /// # Safety
    /// `error` is null, or points to a struct that only the caller uses.
    #[cold]
    pub unsafe fn write(&self, error: *mut CError) -> Status {
        if error.is_null() {
            return self.status;
        }
        let mut end = self.text.len().min(TEXT - 1);
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        let mut text = [0; TEXT];
        // A NUL would end the text in C.
        for (to, from) in text.iter_mut().zip(self.text[..end].bytes()) {
            *to = if from == 0 { b' ' } else { from } as c_char;
        }
        // SAFETY: the caller's contract; a plain store of a whole struct, which need not be
        // initialised.
        unsafe { error.write(CError { status: self.status, sent: self.sent, text }) };
        self.status
    }
}

impl From<CallError> for Problem {
    #[cold]
    fn from(error: CallError) -> Self {
        let (status, sent) = match &error {
            CallError::Failed(_) => (Status::Failed, false),
            CallError::Aborted { sent } => (Status::Aborted, *sent),
            CallError::TooLong { .. } => (Status::TooLong, false),
            CallError::ForeignHandle => (Status::ForeignHandle, false),
            CallError::NotSent(_) => (Status::Misuse, false),
            CallError::Refused(_) => (Status::Refused, false),
            CallError::NoSuchHandle => (Status::NoSuchHandle, false),
            CallError::Panicked(_) => (Status::Panicked, false),
            CallError::Revoked => (Status::Revoked, false),
            CallError::NoSuchProcedure => (Status::NoSuchProcedure, false),
            CallError::BadReply(_) => (Status::BadReply, false),
            CallError::ResultQuota { .. } => (Status::NoMemory, true),
            CallError::Quota { .. } | CallError::NoMemory { .. } => (Status::NoMemory, false),
            _ => (Status::Internal, false),
        };
        Self { status, sent, text: error.to_string() }
    }
}

impl From<BindError> for Problem {
    fn from(error: BindError) -> Self {
        let status = match &error {
            BindError::BadName { .. } => Status::Misuse,
            BindError::NoSuchName { .. } => Status::NoSuchName,
            BindError::ServerGone { .. } | BindError::HungUp { .. } => Status::ServerGone,
            BindError::NoAnswer { .. } => Status::NoAnswer,
            BindError::WrongUser { .. } => Status::WrongUser,
            BindError::Denied { .. } => Status::Denied,
            BindError::QuotaReached { .. } => Status::QuotaReached,
            BindError::Version { .. } => Status::Version,
            BindError::WrongInterface { .. } => Status::WrongInterface,
            BindError::Mismatch { .. } => Status::Mismatch,
            BindError::Resource { .. } | BindError::Folder(_) => Status::Resource,
            BindError::Protocol { .. } => Status::Protocol,
            BindError::Unreachable { .. } => Status::Unreachable,
            BindError::NotThere { .. } => Status::NotThere,
            BindError::NotProved { .. } => Status::NotProved,
            _ => Status::Internal,
        };
        Self::new(status, error.to_string())
    }
}

impl From<ServeError> for Problem {
    fn from(error: ServeError) -> Self {
        let status = match &error {
            ServeError::BadName { .. } => Status::Misuse,
            ServeError::NameTaken { .. }
            | ServeError::ExportedHere { .. }
            | ServeError::NameStale { .. }
            | ServeError::NameInTheWay { .. } => Status::NameTaken,
            ServeError::TooManyProcedures { .. } => Status::TooManyProcedures,
            ServeError::Unprotected { .. } => Status::Unprotected,
            ServeError::Resource { .. } | ServeError::Folder(_) => Status::Resource,
            _ => Status::Internal,
        };
        Self::new(status, error.to_string())
    }
}

impl From<JoinError> for Problem {
    fn from(error: JoinError) -> Self {
        let status = match &error {
            JoinError::BadName { .. }
            | JoinError::BadSize { .. }
            | JoinError::TooManyKinds { .. }
            | JoinError::NoAddress { .. }
            | JoinError::NotAmongLate { .. } => Status::Misuse,
            JoinError::Incomplete { .. } => Status::Incomplete,
            JoinError::Refused { .. } => Status::NotTakenIn,
            JoinError::NoJob { .. } => Status::NoJob,
            JoinError::NotProved { .. } => Status::NotProved,
            JoinError::Interrupted => Status::Interrupted,
            JoinError::Resource { .. } | JoinError::Folder(_) => Status::Resource,
            _ => Status::Internal,
        };
        Self::new(status, error.to_string())
    }
}

impl From<SendError> for Problem {
    #[cold]
    fn from(error: SendError) -> Self {
        let status = match &error {
            SendError::NoSuchRank { .. } => Status::NoSuchRank,
            SendError::Ended { .. } => Status::Ended,
            SendError::TooLong { .. } => Status::TooLong,
            SendError::Full => Status::Full,
            SendError::Overflow { .. } | SendError::LowMemory { .. } => Status::Overflow,
            SendError::NoMemory { .. } => Status::NoMemory,
            SendError::Violation { .. } => Status::Violation,
            SendError::Unreachable { .. } => Status::NoQueue,
            SendError::Refused { .. } => Status::QueueRefused,
            SendError::Unfit(_) => Status::Unfit,
            SendError::Interrupted => Status::Interrupted,
            _ => Status::Internal,
        };
        Self::new(status, error.to_string())
    }
}

impl From<RunError> for Problem {
    #[cold]
    fn from(error: RunError) -> Self {
        let status = match &error {
            RunError::Lost(upcall_message::Event::Ended { .. }) => Status::Ended,
            RunError::GivenUp { .. } => Status::GivenUp,
            RunError::Parted { .. } => Status::Parted,
            RunError::Lost(_) => Status::Violation,
            RunError::Unhandled { .. } => Status::Unhandled,
            RunError::Unsent { .. } => Status::Unsent,
            RunError::Interrupted => Status::Interrupted,
            RunError::Growing => Status::Growing,
            _ => Status::Internal,
        };
        Self::new(status, error.to_string())
    }
}

impl From<ExpectError> for Problem {
    #[cold]
    fn from(error: ExpectError) -> Self {
        let status = match &error {
            ExpectError::NoRoom => Status::NoRoom,
            ExpectError::NotLeader => Status::NotLeader,
            ExpectError::Taken { .. } => Status::RankTaken,
            _ => Status::Internal,
        };
        Self::new(status, error.to_string())
    }
}

/// Runs `run`. A failure, including a panic, is written to `error`, and `otherwise` converts its
/// status to the return value.
///
/// # Safety
/// As for [`Problem::write`].
#[inline]
pub unsafe fn guard<T>(
    error: *mut CError,
    otherwise: impl FnOnce(Status) -> T,
    run: impl FnOnce() -> Result<T, Problem>,
) -> T {
    let problem = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(done)) => return done,
        Ok(Err(problem)) => problem,
        Err(panic) => Problem::panic(&*panic),
    };
    // SAFETY: passed on from the caller.
    otherwise(unsafe { problem.write(error) })
}

/// The same for functions that return a status.
///
/// # Safety
/// As for [`Problem::write`].
#[inline]
pub unsafe fn guard_status(
    error: *mut CError,
    run: impl FnOnce() -> Result<(), Problem>,
) -> Status {
    // SAFETY: passed on from the caller.
    unsafe { guard(error, |status| status, || run().map(|()| Status::Ok)) }
}

/// The same for functions that cannot report a failure.
#[inline]
pub fn guard_or<T>(otherwise: T, run: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(otherwise)
}

/// A text from C.
///
/// # Safety
/// `text` is null or a C string that lives for `'a`.
pub unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Problem> {
    if text.is_null() {
        return Err(Problem::misuse(format!("{what} is NULL")));
    }
    // SAFETY: the caller's contract.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Problem::misuse(format!("{what} is not UTF-8")))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_misuse(error: *mut CError, said: *const c_char) -> Status {
    // SAFETY: per the header, `said` is a C string.
    let run = || Err(Problem::misuse(unsafe { text(said, "the text") }?));
    // SAFETY: per the header, `error` is null or the caller's.
    unsafe { guard_status(error, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_bad_reply(error: *mut CError) -> Status {
    let problem = CallError::BadReply("a number that stands for none of its type's cases".into());
    // SAFETY: per the header, `error` is null or the caller's.
    unsafe { guard_status(error, || Err(problem.into())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zeroed() -> CError {
        CError { status: Status::Ok, sent: true, text: [1; TEXT] }
    }

    fn text_of(error: &CError) -> String {
        let bytes: Vec<u8> = error.text.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
        String::from_utf8(bytes).unwrap()
    }

    /// A panic with any payload stops at the border, and becomes a status and a text.
    #[test]
    fn a_panic_is_stopped_at_the_border() {
        let mut error = zeroed();
        let panics: [(fn(), &str); 3] = [
            (|| panic!("a text"), "a bug in Upcall, please report it: a text"),
            (
                || panic!("number {}", std::hint::black_box(7)),
                "a bug in Upcall, please report it: number 7",
            ),
            (
                || std::panic::panic_any(7),
                "a bug in Upcall, please report it: a panic without a text",
            ),
        ];
        for (panics, expected) in panics {
            let run = || {
                panics();
                Ok(())
            };
            // SAFETY: this test's own struct.
            let status = unsafe { guard_status(&mut error, run) };
            assert_eq!(
                (status, error.status, error.sent),
                (Status::Internal, Status::Internal, false)
            );
            assert_eq!(text_of(&error), expected);
            // SAFETY: null is allowed.
            assert_eq!(unsafe { guard_status(std::ptr::null_mut(), run) }, Status::Internal);
        }
        assert_eq!(guard_or(7, || panic!("nobody is told")), 7);
    }

    /// Each error that only calls and groups across machines have gets a status and a text of its
    /// own, and the runtime's text is passed on.
    #[test]
    fn errors_of_the_network_have_names() {
        let (name, server) = ("files".to_string(), "far:7000".to_string());
        let all = [
            (
                BindError::Unreachable { server: server.clone(), why: "no route".into() }.into(),
                Status::Unreachable,
                "no route",
            ),
            (
                BindError::NotProved { server: server.clone(), why: "no identity".into() }.into(),
                Status::NotProved,
                "no identity",
            ),
            (BindError::NotThere { name, server }.into(), Status::NotThere, "\"files\""),
            (
                JoinError::NotProved { address: "far:7500".into(), why: "no identity".into() }
                    .into(),
                Status::NotProved,
                "`upcall host --help`",
            ),
            (
                ServeError::Unprotected {
                    address: "0.0.0.0:7000".into(),
                    why: "no identity".into(),
                }
                .into(),
                Status::Unprotected,
                "0.0.0.0:7000",
            ),
        ];
        let unknown = upcall_status_text(u32::MAX);
        for (problem, status, part) in all {
            let problem: Problem = problem;
            assert_eq!(problem.status, status);
            assert!(problem.text.contains(part), "{}", problem.text);
            assert_ne!(upcall_status_text(status as u32), unknown);
        }
    }

    /// C, too, does not report a member as dead that lives and refuses a queue.
    #[test]
    fn a_refused_queue_has_a_name() {
        let refused = SendError::Refused {
            rank: 3,
            lack: upcall_message::Lack::Memory,
            errno: Some(12),
            waiting: 5,
        };
        let problem = Problem::from(refused);
        assert_eq!((problem.status, problem.status as u32), (Status::QueueRefused, 94));
        for part in [
            "member 3 lives",
            "memory",
            "os error 12",
            "was not sent",
            "5 sent before wait",
            "send again",
        ] {
            assert!(problem.text.contains(part), "{part}: {}", problem.text);
        }
        assert!(!problem.text.contains("ended"), "{}", problem.text);
    }

    /// A text that is too long is cut between characters, and a NUL within a text does not end it.
    #[test]
    fn texts_fit() {
        let mut error = zeroed();
        let long = format!("a\0b{}", "ß".repeat(TEXT));
        // SAFETY: this test's own struct.
        unsafe { Problem::misuse(long.as_str()).write(&mut error) };
        let text = text_of(&error);
        assert!(
            text.starts_with("a bß") && text.ends_with('ß') && text.len() >= TEXT - 2,
            "{text}"
        );
    }
}
