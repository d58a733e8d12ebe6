//! Reasons why the threads of a process cannot be listed, with what to do.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// A reason why the threads of a process cannot be listed.
#[derive(Debug)]
pub enum InspectError {
    /// No process of that number runs.
    NoProcess(u32),
    /// The process has ended; its parent has not waited for it.
    Ended(u32),
    /// The kernel forbids access to the process.
    NotPermitted { pid: u32, tried: &'static str, error: io::Error },
    /// Another process traces the process, and the kernel allows one tracer.
    Traced { pid: u32, by: u32 },
    /// No file that the process maps has the section with the beacon.
    NoBeacon { pid: u32, looked_at: usize, unreadable: Vec<(PathBuf, io::Error)> },
    /// The beacon is of another version of upcall-thread.
    Version { file: PathBuf, found: u32, known: u32 },
    /// The beacon holds values that are impossible.
    Damaged { file: PathBuf, what: String },
    /// The kernel gives this command no thread that could stop the process.
    NoThread(io::Error),
    /// The kernel refused a request for another reason.
    Failed { pid: u32, tried: &'static str, error: io::Error },
}

impl InspectError {
    /// The error for a request that was `tried` on process `pid`.
    pub fn kernel(pid: u32, tried: &'static str, error: io::Error) -> Self {
        match (error.kind(), error.raw_os_error()) {
            (io::ErrorKind::PermissionDenied, _) => Self::NotPermitted { pid, tried, error },
            // ESRCH: procfs returns this for a process that is ending.
            (io::ErrorKind::NotFound, _) | (_, Some(3)) => Self::NoProcess(pid),
            _ => Self::Failed { pid, tried, error },
        }
    }
}

impl fmt::Display for InspectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProcess(pid) => {
                write!(f, "there is no process {pid}: `upcall ls` shows those of servers")
            }
            Self::Ended(pid) => {
                write!(f, "process {pid} has ended, and its parent has not waited for it yet")
            }
            Self::NotPermitted { pid, tried, error } => write!(
                f,
                "not permitted to {tried} of process {pid}: {error}. Run this as the user of the \
                 process or as root. If you do, the system restricts ptrace: set \
                 /proc/sys/kernel/yama/ptrace_scope to 0, or give the command CAP_SYS_PTRACE (in a \
                 container: --cap-add SYS_PTRACE)"
            ),
            Self::Traced { pid, by } => write!(
                f,
                "process {pid} is traced by process {by}, a debugger or strace, and the kernel \
                 allows only one tracer. End process {by} first, or use it to list the threads"
            ),
            Self::NoBeacon { pid, looked_at, unreadable } => {
                write!(
                    f,
                    "process {pid} has no user-level threads of Upcall: none of the {looked_at} \
                     files that it maps has the section .upcall.threads of the crate upcall-thread"
                )?;
                match unreadable.first() {
                    None => Ok(()),
                    Some((path, error)) => {
                        let others = match unreadable.len() - 1 {
                            0 => String::new(),
                            more => format!(", and {more} more"),
                        };
                        write!(
                            f,
                            ". These files could not be read: {} ({error}){others}",
                            path.display()
                        )
                    }
                }
            }
            Self::Version { file, found, known } => write!(
                f,
                "{} has its threads in format {found}, and this command reads format {known}: use \
                 the command of the release that the program was built with",
                file.display()
            ),
            Self::Damaged { file, what } => write!(
                f,
                "the list of threads in {} is damaged, or is not upcall-thread's: {what}",
                file.display()
            ),
            Self::NoThread(error) => write!(
                f,
                "cannot start the thread that would stop the process: {error}. End other \
                 processes of this user, or run this as another user"
            ),
            Self::Failed { pid, tried, error } => {
                write!(f, "cannot {tried} of process {pid}: {error}")
            }
        }
    }
}

impl std::error::Error for InspectError {}
