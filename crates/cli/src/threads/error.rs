//! Why the threads of a process cannot be listed: what was tried, what was found, what to do.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// See the module comment.
#[derive(Debug)]
pub enum InspectError {
    /// There is no process of that number.
    NoProcess(u32),
    /// It has ended; its parent has not waited for it.
    Ended(u32),
    /// The kernel forbids it.
    NotPermitted { pid: u32, tried: &'static str, error: io::Error },
    /// A debugger is at it: there can be one only.
    Traced { pid: u32, by: u32 },
    /// No file that it maps has the section with the beacon.
    NoBeacon { pid: u32, looked_at: usize, unreadable: Vec<(PathBuf, io::Error)> },
    /// The beacon is of another version of upcall-thread.
    Version { file: PathBuf, found: u32, known: u32 },
    /// What it says of itself cannot be.
    Damaged { file: PathBuf, what: String },
    /// Anything else that the kernel refuses.
    Failed { pid: u32, tried: &'static str, error: io::Error },
}

impl InspectError {
    /// The kernel's answer to something that was `tried` on process `pid`.
    pub fn kernel(pid: u32, tried: &'static str, error: io::Error) -> Self {
        match (error.kind(), error.raw_os_error()) {
            (io::ErrorKind::PermissionDenied, _) => Self::NotPermitted { pid, tried, error },
            // ESRCH; procfs answers so for a process that is ending.
            (io::ErrorKind::NotFound, _) | (_, Some(3)) => Self::NoProcess(pid),
            _ => Self::Failed { pid, tried, error },
        }
    }
}

impl fmt::Display for InspectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProcess(pid) => write!(f, "there is no process {pid}"),
            Self::Ended(pid) => {
                write!(f, "process {pid} has ended, and its parent has not waited for it yet")
            }
            Self::NotPermitted { pid, tried, error } => write!(
                f,
                "not permitted to {tried} of process {pid}: {error}. Be the same user as the process, or root (sudo). If you are, the system \
                 restricts tracing: set /proc/sys/kernel/yama/ptrace_scope to 0, or run this with CAP_SYS_PTRACE (in a container: --cap-add \
                 SYS_PTRACE)"
            ),
            Self::Traced { pid, by } => write!(
                f,
                "process {pid} is being traced by process {by}, a debugger or strace, and the kernel allows one tracer only: ask that one, or end it"
            ),
            Self::NoBeacon { pid, looked_at, unreadable } => {
                write!(
                    f,
                    "process {pid} has no user-level threads of Upcall: none of the {looked_at} files that it maps has the section \
                     .upcall.threads, which programs with the crate upcall-thread have"
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
                            "; it may be in what could not be read: {} ({error}){others}",
                            path.display()
                        )
                    }
                }
            }
            Self::Version { file, found, known } => write!(
                f,
                "{} says where its threads are by version {found}, and this command reads version {known}: take the command `upcall` of the \
                 release that the program was built with",
                file.display()
            ),
            Self::Damaged { file, what } => {
                write!(
                    f,
                    "{} says where its threads are, but {what}: its memory is damaged, or it is not upcall-thread's",
                    file.display()
                )
            }
            Self::Failed { pid, tried, error } => {
                write!(f, "cannot {tried} of process {pid}: {error}")
            }
        }
    }
}

impl std::error::Error for InspectError {}
