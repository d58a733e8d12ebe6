//! Requests to the supervisors of jobs, from outside.

use crate::error::JobRequestError;
use crate::freezer;
use crate::wire::{JobReply, JobRequest, ShownJob, VERSION, pack, unpack};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};
use upcall_directory::names::{self, jobs};
use upcall_directory::nearby::NameKind;
use upcall_os::socket::{Connection, Received};

/// Maximum wait for a supervisor's reply: it may be starting a thousand members.
const PATIENCE: Duration = Duration::from_secs(5);

struct JobConnection<'a> {
    name: &'a str,
    connection: Connection,
}

impl<'a> JobConnection<'a> {
    /// Connects to the supervisor of the job with this name. The error for an unknown name has a
    /// hint where the job may be.
    fn find(name: &'a str) -> Result<Self, JobRequestError> {
        let socket = jobs::find(name).map_err(|error| error.with_hint(NameKind::Job))?;
        Self::new(name, &socket)
    }

    fn new(name: &'a str, socket: &Path) -> Result<Self, JobRequestError> {
        match Connection::connect_until(socket, Instant::now() + PATIENCE) {
            Ok(connection) => Ok(Self { name, connection }),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
                ) =>
            {
                sweep();
                Err(JobRequestError::Gone { name: name.into() })
            }
            Err(error) => Err(JobRequestError::Connection { name: name.into(), error }),
        }
    }

    fn failed(&self, error: io::Error) -> JobRequestError {
        JobRequestError::Connection { name: self.name.into(), error }
    }

    fn send(&self, ask: &JobRequest) -> Result<(), JobRequestError> {
        self.connection.send(&pack(ask), &[]).map_err(|error| self.failed(error))
    }

    /// The next reply; `None` if the supervisor has ended.
    fn hear(&self, patience: Duration) -> Result<Option<JobReply>, JobRequestError> {
        let end = Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self
                .connection
                .receive_within(Duration::ZERO, left)
                .map_err(|error| self.failed(error))?
            {
                Received::Message(message) => {
                    let refused =
                        |reason| JobRequestError::Refused { name: self.name.into(), reason };
                    return match unpack(&message.bytes).map_err(refused)? {
                        JobReply::Refused(reason) => Err(refused(reason)),
                        answer => Ok(Some(answer)),
                    };
                }
                Received::Closed => return Ok(None),
                Received::Nothing if left.is_zero() => {
                    let pid = self.connection.peer().map_or(0, |peer| peer.pid);
                    return Err(JobRequestError::Silent { name: self.name.into(), pid });
                }
                Received::Nothing => {}
            }
        }
    }

    fn ask(name: &'a str, ask: &JobRequest) -> Result<(), JobRequestError> {
        let asking = Self::find(name)?;
        asking.send(ask)?;
        asking.hear(PATIENCE)?.map(drop).ok_or_else(|| JobRequestError::Gone { name: name.into() })
    }
}

/// Removes what killed supervisors left behind.
fn sweep() {
    names::sweep();
    freezer::sweep();
}

/// Lists all jobs of this user, and the errors of those that do not reply.
///
/// # Blocks
/// For at most 5 s for each supervisor that does not reply.
pub fn list() -> (Vec<ShownJob>, Vec<JobRequestError>) {
    sweep();
    let (mut shown, mut silent) = (Vec::new(), Vec::new());
    for (name, socket) in jobs::all() {
        let asked = JobConnection::new(&name, &socket).and_then(|asking| {
            asking.send(&JobRequest::Show { version: VERSION })?;
            asking.hear(PATIENCE)
        });
        match asked {
            Ok(Some(JobReply::Shown(job))) => shown.push(*job),
            // It has just ended.
            Ok(_) | Err(JobRequestError::Gone { .. }) => {}
            Err(error) => silent.push(error),
        }
    }
    (shown, silent)
}

/// Suspends all members of a job.
///
/// When this returns, no member runs any more of its program. On a busy machine the kernel may
/// still show a member as running for a moment: it stops when it next has a processor. A job that
/// is stopped already stays so.
///
/// # Errors
/// There is no such job, it is being ended, or its supervisor does not reply within 5 s.
pub fn stop(name: &str) -> Result<(), JobRequestError> {
    JobConnection::ask(name, &JobRequest::Stop)
}

/// Resumes a stopped job: at once, or when its turn comes.
///
/// # Errors
/// As [`stop`].
pub fn cont(name: &str) -> Result<(), JobRequestError> {
    JobConnection::ask(name, &JobRequest::Cont)
}

/// Ends a job: its members get SIGTERM, and SIGKILL after its grace period.
///
/// Returns when all members have ended.
///
/// # Errors
/// As [`stop`].
pub fn kill(name: &str) -> Result<(), JobRequestError> {
    let asking = JobConnection::find(name)?;
    asking.send(&JobRequest::Kill)?;
    let mut patience = PATIENCE;
    while let Some(answer) = asking.hear(patience)? {
        if let JobReply::Ending { grace } = answer {
            patience = grace + PATIENCE;
        }
    }
    Ok(())
}
