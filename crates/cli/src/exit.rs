//! Exit codes of the command, and the errors that lead to them.

use std::fmt;
use std::io;
use std::process::ExitCode;
use upcall::directory::FolderError;
use upcall::home::costs::NoCalibration;
use upcall::{BindError, CallError};
use upcall_idl::dynamic::ValueError;
use upcall_job::{JobError, JobRequestError};
use upcall_net::identity::IdentityError;
use upcall_pvm::{MachineRequestError, NotRun};

/// How a command ended. Scripts rely on the codes, so a code never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The command did what was asked.
    Done,
    /// The procedure returned its `err`, a check found a fault, or the command failed otherwise.
    Failed,
    /// The command line, or a file, folder or program named on it or in the environment, is wrong.
    Usage,
    /// Nothing of that name runs.
    NotFound,
    /// The server, its quota, or the kernel refused.
    Refused,
    /// No answer came in time.
    Deadline,
    /// The connection ended during the call, which may have run.
    Lost,
    /// The two sides do not understand each other.
    Mismatch,
    /// The exit code of a program that this command ran.
    Program(u8),
}

/// The exit codes, with their meaning as `upcall --help` and docs/reference/cli.md give it.
pub const CODES: [(Exit, &str); 8] = [
    (Exit::Done, "success"),
    (
        Exit::Failed,
        "the procedure returned its `err` or panicked, a check found a fault, or another failure",
    ),
    (Exit::Usage, "the command line is wrong, or a variable, file or program that it names"),
    (Exit::NotFound, "no such name, procedure, process, job, machine or task, or it has ended"),
    (Exit::Refused, "permission denied, by the server, its quotas or the kernel"),
    (Exit::Deadline, "no answer came before the deadline"),
    (Exit::Lost, "the server ended during the call, which may have run"),
    (Exit::Mismatch, "client and server disagree: another version, or a malformed answer"),
];

/// Where exit codes have another source than [`CODES`].
pub const OTHER_CODES: &str = "\
    `job run`, `job member`, `pvm run` and `pvm` end with the exit code of the program that they \
    ran.";

impl Exit {
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Refused => 4,
            Self::Deadline => 5,
            Self::Lost => 6,
            Self::Mismatch => 7,
            Self::Program(code) => code,
        }
    }

    /// The kernel's answer for a file, folder or program that the command line names.
    pub fn of_file(error: &io::Error) -> Self {
        /// The kernel's number for a file that is not a program.
        const NO_PROGRAM: i32 = 8;
        match error.kind() {
            _ if error.raw_os_error() == Some(NO_PROGRAM) => Self::Usage,
            io::ErrorKind::NotFound
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::ExecutableFileBusy
            | io::ErrorKind::InvalidFilename
            | io::ErrorKind::AlreadyExists => Self::Usage,
            _ => Self::Failed,
        }
    }

    /// The kernel's answer to what was tried.
    pub fn of_io(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::NotFound,
            io::ErrorKind::PermissionDenied => Self::Refused,
            io::ErrorKind::TimedOut => Self::Deadline,
            _ => Self::Failed,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

pub type CommandResult = Result<Exit, CommandError>;

/// Why a command did not do what was asked.
#[derive(Debug, PartialEq, Eq)]
pub enum CommandError {
    /// An error text for the user, of one or two sentences that say what to do.
    Report { exit: Exit, text: String },
    /// The reader of the standard output has gone, as `head` does. The command ends quietly, with
    /// the code of a program that SIGPIPE ended, so that no failure looks like success.
    OutputClosed,
}

impl CommandError {
    pub fn new(exit: Exit, text: impl fmt::Display) -> Self {
        Self::Report { exit, text: text.to_string() }
    }

    pub fn failed(text: impl fmt::Display) -> Self {
        Self::new(Exit::Failed, text)
    }

    pub fn usage(text: impl fmt::Display) -> Self {
        Self::new(Exit::Usage, text)
    }

    pub fn exit(&self) -> Exit {
        match self {
            Self::Report { exit, .. } => *exit,
            Self::OutputClosed => Exit::Program(128 + 13),
        }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Report { text, .. } => f.write_str(text),
            Self::OutputClosed => f.write_str("the standard output is closed"),
        }
    }
}

impl std::error::Error for CommandError {}

/// An error type, and the exit code of each of its errors.
macro_rules! exits {
    ($($error:ty: $of:expr;)*) => { $(
        impl From<$error> for CommandError {
            fn from(error: $error) -> Self {
                let of: fn(&$error) -> Exit = $of;
                Self::new(of(&error), &error)
            }
        }
    )* };
}

exits! {
    BindError: of_bind;
    CallError: of_call;
    FolderError: of_folder;
    ValueError: of_value;
    // A file that is named on the command line. A source of a server is judged where it is read.
    upcall_idl::Error: |_| Exit::Usage;
    JobError: of_job;
    JobRequestError: of_job_request;
    MachineRequestError: of_machine_request;
    NotRun: |error| match error {
        // PVM's code for a program that is not there.
        NotRun::Program { code: -7, .. } => Exit::Usage,
        _ => Exit::Failed,
    };
    NoCalibration: |error| match error {
        NoCalibration::None(_) => Exit::NotFound,
        _ => Exit::Failed,
    };
    IdentityError: of_identity;
    io::Error: Exit::of_io;
    serde_json::Error: |_| Exit::Failed;
}

fn of_identity(error: &IdentityError) -> Exit {
    match error {
        IdentityError::Missing { .. }
        | IdentityError::NoHostKey { .. }
        | IdentityError::NotTrusted { .. } => Exit::NotFound,
        IdentityError::Relative { .. }
        | IdentityError::Exists { .. }
        | IdentityError::Malformed { .. }
        | IdentityError::Taken { .. }
        | IdentityError::Known { .. }
        | IdentityError::BadCertificate { .. }
        | IdentityError::BadName(_) => Exit::Usage,
        IdentityError::Unsafe { .. } | IdentityError::Revoked { .. } => Exit::Refused,
        IdentityError::Busy { .. } => Exit::Deadline,
        IdentityError::Io { error, .. } => Exit::of_file(error),
        IdentityError::Expired { .. } | IdentityError::Library { .. } => Exit::Failed,
    }
}

fn of_bind(error: &BindError) -> Exit {
    match error {
        BindError::BadName { .. } => Exit::Usage,
        BindError::NoSuchName { .. }
        | BindError::ServerGone { .. }
        | BindError::NotThere { .. }
        | BindError::Unreachable { .. } => Exit::NotFound,
        BindError::NotProved { .. }
        | BindError::WrongUser { .. }
        | BindError::Denied { .. }
        | BindError::QuotaReached { .. } => Exit::Refused,
        BindError::NoAnswer { .. } => Exit::Deadline,
        BindError::HungUp { .. } => Exit::Lost,
        BindError::Version { .. }
        | BindError::WrongInterface { .. }
        | BindError::Mismatch { .. }
        | BindError::Protocol { .. } => Exit::Mismatch,
        BindError::Folder(error) => of_folder(error),
        BindError::Resource { error, .. } => Exit::of_io(error),
        _ => Exit::Failed,
    }
}

fn of_call(error: &CallError) -> Exit {
    match error {
        CallError::Failed(_) => Exit::Lost,
        CallError::Aborted { .. } => Exit::Deadline,
        CallError::TooLong { .. } | CallError::ForeignHandle | CallError::NoSuchHandle => {
            Exit::Usage
        }
        CallError::Refused(_)
        | CallError::Revoked
        | CallError::Quota { .. }
        | CallError::ResultQuota { .. } => Exit::Refused,
        CallError::NoSuchProcedure | CallError::BadReply(_) => Exit::Mismatch,
        _ => Exit::Failed,
    }
}

fn of_folder(error: &FolderError) -> Exit {
    match error {
        FolderError::Unusable { error, .. } => match Exit::of_io(error) {
            // The environment names the folder.
            Exit::NotFound => Exit::Usage,
            exit => exit,
        },
        FolderError::Owner { .. } | FolderError::Unprotected { .. } => Exit::Refused,
        _ => Exit::Usage,
    }
}

fn of_value(error: &ValueError) -> Exit {
    match error {
        ValueError::NoProcedure { .. } => Exit::NotFound,
        ValueError::Count { .. } | ValueError::Argument { .. } => Exit::Usage,
        ValueError::Malformed { .. } => Exit::Mismatch,
        _ => Exit::Failed,
    }
}

fn of_job(error: &JobError) -> Exit {
    match error {
        JobError::BadSize { .. } | JobError::BadName { .. } => Exit::Usage,
        JobError::NotStarted { error, .. } => Exit::of_file(error),
        JobError::Resource { error, .. } => Exit::of_io(error),
        JobError::Folder(error) => of_folder(error),
        JobError::Taken { .. } => Exit::Refused,
        _ => Exit::Failed,
    }
}

fn of_job_request(error: &JobRequestError) -> Exit {
    match error {
        JobRequestError::BadName { .. } => Exit::Usage,
        JobRequestError::NoJob { .. } | JobRequestError::Gone { .. } => Exit::NotFound,
        JobRequestError::Folder(error) => of_folder(error),
        JobRequestError::Silent { .. } => Exit::Deadline,
        JobRequestError::Refused { .. } => Exit::Refused,
        JobRequestError::Connection { .. } => Exit::Lost,
        _ => Exit::Failed,
    }
}

fn of_machine_request(error: &MachineRequestError) -> Exit {
    match error {
        MachineRequestError::None { .. }
        | MachineRequestError::NoMachine { .. }
        | MachineRequestError::NoTask { .. }
        | MachineRequestError::Gone { .. } => Exit::NotFound,
        MachineRequestError::Which { .. } => Exit::Usage,
        MachineRequestError::Folder(error) => of_folder(error),
        MachineRequestError::Silent { .. } => Exit::Deadline,
        MachineRequestError::Refused { .. } => Exit::Refused,
        MachineRequestError::Connection { .. } => Exit::Lost,
        _ => Exit::Failed,
    }
}

/// The table of exit codes, for the help.
pub fn help() -> String {
    let lines = CODES.map(|(exit, meaning)| format!("  {}  {meaning}\n", exit.code()));
    format!("Exit codes:\n{}{OTHER_CODES}", lines.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scripts rely on the numbers.
    #[test]
    fn the_codes_are_those_of_the_table_in_its_order() {
        let codes: Vec<u8> = CODES.iter().map(|(exit, _)| exit.code()).collect();
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(help().contains("\n  5  no answer came before the deadline\n"), "{}", help());
    }

    #[test]
    fn each_kind_of_error_has_its_code() {
        let name = || "math".to_string();
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let bind: [(BindError, Exit); 6] = [
            (BindError::ServerGone { name: name() }, Exit::NotFound),
            (BindError::Denied { name: name(), reason: name() }, Exit::Refused),
            (BindError::HungUp { name: name() }, Exit::Lost),
            (BindError::NoAnswer { name: name(), after: Default::default() }, Exit::Deadline),
            (BindError::Protocol { what: name() }, Exit::Mismatch),
            (BindError::Resource { what: name(), error: denied() }, Exit::Refused),
        ];
        for (error, exit) in bind {
            let text = error.to_string();
            assert_eq!(CommandError::from(error), CommandError::new(exit, text));
        }
        let call: [(CallError, Exit); 4] = [
            (CallError::Aborted { sent: true }, Exit::Deadline),
            (CallError::Refused(name()), Exit::Refused),
            (CallError::Panicked(name()), Exit::Failed),
            (CallError::BadReply(name()), Exit::Mismatch),
        ];
        for (error, exit) in call {
            assert_eq!(CommandError::from(error).exit(), exit);
        }
        assert_eq!(CommandError::from(FolderError::Empty).exit(), Exit::Usage);
        let job = JobRequestError::Silent { name: name(), pid: 1 };
        assert_eq!(CommandError::from(job).exit(), Exit::Deadline);
        let machine = MachineRequestError::Gone { machine: 1 };
        assert_eq!(CommandError::from(machine).exit(), Exit::NotFound);
        assert_eq!(CommandError::from(denied()).exit(), Exit::Refused);
    }

    /// A file that is missing, that this user may not use, or that is of the wrong kind, is a
    /// mistake in the command line. What the machine lacks is not.
    #[test]
    fn a_wrong_file_is_a_mistake_in_the_command_line() {
        for (number, exit) in [
            (2, Exit::Usage),   // ENOENT
            (13, Exit::Usage),  // EACCES
            (20, Exit::Usage),  // ENOTDIR
            (8, Exit::Usage),   // ENOEXEC
            (28, Exit::Failed), // ENOSPC
            (24, Exit::Failed), // EMFILE
            (22, Exit::Failed), // EINVAL
        ] {
            let error = io::Error::from_raw_os_error(number);
            assert_eq!(Exit::of_file(&error), exit, "{error}");
            let started = JobError::NotStarted { rank: 0, program: "a".into(), error };
            assert_eq!(CommandError::from(started).exit(), exit);
        }
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let folder = FolderError::Unusable { path: "/no".into(), error: missing() };
        assert_eq!(CommandError::from(folder).exit(), Exit::Usage);
        let task = NotRun::Program { name: "a".into(), code: -7 };
        assert_eq!(CommandError::from(task).exit(), Exit::Usage);
    }
}
