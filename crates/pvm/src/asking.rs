//! Requests to machines from another shell: to show their tasks, to end tasks, to halt.

use crate::door::{MachineReply, MachineRequest, PATIENCE, ProcessChange, question, unpack};
use crate::hosts::changes::TO_GO;
use crate::shown::{self as described};
use crate::shown::{MachineUse, MoveCost, SavedCost, ShownMachine};
use crate::tid::Tid;
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fmt, fs, io};
use upcall_directory::names;
use upcall_os::poll::{PollSet, Report};
use upcall_os::socket::{Connection, Received};
use upcall_ulp::slot::UlpSlot;

/// Maximum time that a move may take, for the one who asks for it.
const MOVES: Duration = Duration::from_secs(300);

/// Why a request to a machine failed.
#[non_exhaustive]
pub enum MachineRequestError {
    /// No machine runs.
    None {
        /// The folder that was searched.
        folder: PathBuf,
    },
    /// There is no such machine.
    NoMachine {
        /// Its number.
        machine: u32,
        /// The machines that exist.
        others: Vec<u32>,
    },
    /// Several machines match.
    Which {
        /// The request.
        what: String,
        /// The machines that match.
        machines: Vec<u32>,
    },
    /// There is no such task.
    NoTask {
        /// Its id.
        tid: Tid,
        /// The machines that were searched.
        machines: Vec<u32>,
    },
    /// There is no usable folder of names.
    Folder(names::FolderError),
    /// The machine has just ended.
    Gone {
        /// The machine.
        machine: u32,
    },
    /// The machine does not answer.
    Silent {
        /// The machine.
        machine: u32,
        /// The time that was waited.
        within: Duration,
    },
    /// The machine refuses the request.
    Refused {
        /// The machine.
        machine: u32,
        /// The machine's explanation.
        reason: String,
    },
    /// The connection failed.
    Connection {
        /// The machine.
        machine: u32,
        /// The error from the kernel.
        error: io::Error,
    },
}

fn list_of(machines: &[u32]) -> String {
    machines.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for MachineRequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None { folder } => write!(
                f,
                "no machine of this user runs (no machine.* in {}): start one by `upcall pvm run` \
                 or `upcall pvm`",
                folder.display()
            ),
            Self::NoMachine { machine, others } if others.is_empty() => {
                write!(f, "there is no machine {machine}, and no other")
            }
            Self::NoMachine { machine, others } => {
                write!(f, "there is no machine {machine}, but {}", list_of(others))
            }
            Self::Which { what, machines } => {
                write!(
                    f,
                    "{what}: there are machines {}; choose one by --machine",
                    list_of(machines)
                )
            }
            Self::NoTask { tid, machines } => {
                write!(
                    f,
                    "there is no task {tid} in machine {}: see `upcall pvm ps`",
                    list_of(machines)
                )
            }
            Self::Folder(error) => error.fmt(f),
            Self::Gone { machine } => write!(f, "machine {machine} has just ended"),
            Self::Silent { machine, within } => write!(
                f,
                "machine {machine} did not reply within {} s: it is stopped, or in a system call \
                 for one of its tasks; try again, or end it by `upcall pvm halt --machine \
                 {machine}`",
                within.as_secs()
            ),
            Self::Refused { machine, reason } => write!(f, "machine {machine} refuses: {reason}"),
            Self::Connection { machine, error } => write!(f, "asking machine {machine}: {error}"),
        }
    }
}

upcall_os::error_debug!(MachineRequestError {
    None { folder }, NoMachine { machine, others }, Which { what, machines },
    NoTask { tid, machines }, Folder(error), Gone { machine }, Silent { machine, within },
    Refused { machine, reason }, Connection { machine, error },
});

impl std::error::Error for MachineRequestError {}

struct MachineConnection {
    machine: u32,
    connection: Connection,
}

impl MachineConnection {
    fn begin(
        machine: u32,
        socket: &Path,
        ask: MachineRequest,
    ) -> Result<Self, MachineRequestError> {
        let connection =
            Connection::connect_until(socket, Instant::now() + PATIENCE).map_err(|error| {
                match error.kind() {
                    io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                        MachineRequestError::Gone { machine }
                    }
                    _ => MachineRequestError::Connection { machine, error },
                }
            })?;
        connection
            .send(&question(&ask), &[])
            .map_err(|error| MachineRequestError::Connection { machine, error })?;
        Ok(Self { machine, connection })
    }

    /// Waits for a reply. `None`: the other side has closed the connection.
    fn hear(&self) -> Result<Option<MachineReply>, MachineRequestError> {
        // This is long enough for a machine that has to be halted by force.
        self.hear_within(PATIENCE)
    }

    fn hear_within(&self, time: Duration) -> Result<Option<MachineReply>, MachineRequestError> {
        let machine = self.machine;
        let received = self.connection.receive_within(Duration::ZERO, time);
        match received.map_err(|error| MachineRequestError::Connection { machine, error })? {
            Received::Message(message) => match unpack(&message.bytes) {
                Ok(MachineReply::Refused(reason)) | Err(reason) => {
                    Err(MachineRequestError::Refused { machine, reason })
                }
                Ok(answer) => Ok(Some(answer)),
            },
            Received::Closed => Ok(None),
            Received::Nothing => Err(MachineRequestError::Silent { machine, within: time }),
        }
    }
}

fn look(machine: u32, socket: &Path) -> Result<ShownMachine, MachineRequestError> {
    let asking = MachineConnection::begin(machine, socket, MachineRequest::Show)?;
    let mut tasks = Vec::new();
    loop {
        match asking.hear()? {
            Some(MachineReply::Tasks(some)) => tasks.extend(some),
            Some(MachineReply::Shown(shown)) => return Ok(ShownMachine { tasks, ..shown }),
            _ => return Err(MachineRequestError::Gone { machine }),
        }
    }
}

/// Lists all machines of this user, and the errors of those that do not answer.
///
/// Blocks for at most 5 s per machine that does not answer. Removes the sockets of machines that
/// were killed.
pub fn machines() -> (Vec<ShownMachine>, Vec<MachineRequestError>) {
    names::sweep();
    let (mut shown, mut silent) = (Vec::new(), Vec::new());
    for (machine, socket) in names::machines() {
        match look(machine, &socket) {
            Ok(found) => shown.push(found),
            Err(MachineRequestError::Gone { .. }) => {}
            Err(error) => silent.push(error),
        }
    }
    (shown, silent)
}

/// The machine with this number, or all machines.
fn meant(machine: Option<u32>) -> Result<BTreeMap<u32, PathBuf>, MachineRequestError> {
    names::sweep();
    let mut all = names::machines();
    match machine {
        Some(machine) => match all.remove(&machine) {
            Some(socket) => Ok(BTreeMap::from([(machine, socket)])),
            None => {
                Err(MachineRequestError::NoMachine { machine, others: all.into_keys().collect() })
            }
        },
        None if all.is_empty() => Err(names::folder()
            .map_or_else(MachineRequestError::Folder, |folder| MachineRequestError::None {
                folder,
            })),
        None => Ok(all),
    }
}

/// The machine with this number, or the only machine.
fn only(machine: Option<u32>, what: &str) -> Result<(u32, PathBuf), MachineRequestError> {
    let mut all = meant(machine)?;
    match all.pop_first() {
        Some(one) if all.is_empty() => Ok(one),
        first => Err(MachineRequestError::Which {
            what: what.into(),
            machines: first.into_iter().chain(all).map(|(pid, _)| pid).collect(),
        }),
    }
}

/// The only machine that has this task.
fn with(tid: Tid, machine: Option<u32>) -> Result<(u32, PathBuf), MachineRequestError> {
    let mut all = meant(machine)?;
    let machines = all.keys().copied().collect::<Vec<_>>();
    if machines.len() > 1 {
        // A machine that does not answer may have the task.
        all.retain(|machine, socket| {
            look(*machine, socket)
                .map_or(true, |shown| shown.tasks.iter().any(|task| task.tid == tid))
        });
    }
    match all.pop_first() {
        Some(one) if all.is_empty() => Ok(one),
        None => Err(MachineRequestError::NoTask { tid, machines }),
        first => {
            let machines = first.into_iter().chain(all).map(|(pid, _)| pid).collect();
            Err(MachineRequestError::Which {
                what: format!("several machines may have task {tid}"),
                machines,
            })
        }
    }
}

/// Requests something for tasks. Returns the number of tasks for which it was done.
fn done(
    (machine, socket): (u32, PathBuf),
    ask: MachineRequest,
) -> Result<usize, MachineRequestError> {
    match MachineConnection::begin(machine, &socket, ask)?.hear()? {
        Some(MachineReply::Done(count)) => Ok(count),
        _ => Err(MachineRequestError::Gone { machine }),
    }
}

/// Ends a task, or all tasks of a machine. Returns how many.
///
/// Without `machine`, there must be a single machine, or a single machine with this task. A machine
/// ends with its last task, unless its console is open.
pub fn kill(machine: Option<u32>, tid: Option<Tid>) -> Result<usize, MachineRequestError> {
    match tid {
        None => done(only(machine, "kill all")?, MachineRequest::Kill(None)),
        Some(tid) => for_one(with(tid, machine)?, tid, MachineRequest::Kill(Some(tid.number()))),
    }
}

/// Sends a signal to a task.
pub fn signal(machine: Option<u32>, tid: Tid, number: i32) -> Result<(), MachineRequestError> {
    for_one(with(tid, machine)?, tid, MachineRequest::Signal { tid: tid.number(), number })
        .map(drop)
}

/// Moves a task to the process of this rank, and returns when it runs there.
///
/// Waits for at most 300 s. In each case the task goes on, where it was or in the other process.
///
/// # Errors
/// [`MachineRequestError::Refused`] with the reason if the task was not moved, and others.
pub fn move_task(
    machine: Option<u32>,
    tid: Tid,
    rank: u32,
) -> Result<MoveCost, MachineRequestError> {
    let (machine, socket) = with(tid, machine)?;
    let ask = MachineRequest::Move { tid: tid.number(), rank };
    // A large task is copied before it stops, which takes time.
    match MachineConnection::begin(machine, &socket, ask)?.hear_within(MOVES)? {
        Some(MachineReply::Moved(cost)) => Ok(cost),
        Some(MachineReply::Done(_)) => {
            Err(MachineRequestError::NoTask { tid, machines: vec![machine] })
        }
        _ => Err(MachineRequestError::Gone { machine }),
    }
}

/// Saves a machine in a file, from which [`restart`](crate::restart) lets it go on. Returns when
/// the file is on the disk. The machine's tasks go on then.
///
/// A former file stays as it is until the new one takes its place. `progress` is called now and
/// then, with what was saved so far and the number of all tasks.
///
/// The checkpoint is cancelled when `cancel` becomes readable, or this process ends. The machine
/// then goes on without the file, unless the file was complete before.
///
/// # Blocking
/// Until the machine has answered, or has not for 10 s.
///
/// # Errors
/// [`MachineRequestError::Refused`] with the reason if the machine was not saved, and others.
pub fn checkpoint(
    machine: Option<u32>,
    file: &Path,
    cancel: Option<BorrowedFd<'_>>,
    mut progress: impl FnMut(SavedCost, u32),
) -> Result<SavedCost, MachineRequestError> {
    let (machine, socket) = only(machine, "checkpoint")?;
    let file = std::path::absolute(file)
        .map_err(|error| MachineRequestError::Connection { machine, error })?;
    let ask = MachineRequest::Checkpoint { path: file.into_os_string().into_vec() };
    let asking = MachineConnection::begin(machine, &socket, ask)?;
    let failed = |error| MachineRequestError::Connection { machine, error };
    let watch = CancelWatch::new(&asking.connection, cancel).map_err(failed)?;
    let mut until = Instant::now() + LONGEST_SILENCE;
    loop {
        match watch.wait(until) {
            AwaitedReply::Reply => until = Instant::now() + LONGEST_SILENCE,
            AwaitedReply::Cancels => {
                // A machine that has ended is found out below.
                let _ = asking.connection.send(&question(&MachineRequest::Cancel), &[]);
                continue;
            }
            AwaitedReply::Nothing => {
                return Err(MachineRequestError::Silent { machine, within: LONGEST_SILENCE });
            }
        }
        match asking.hear()? {
            Some(MachineReply::Saves { cost, all }) => progress(cost, all),
            Some(MachineReply::Saved(cost)) => return Ok(cost),
            _ => return Err(MachineRequestError::Gone { machine }),
        }
    }
}

/// Maximum time between two reports about a checkpoint.
const LONGEST_SILENCE: Duration = Duration::from_secs(10);

/// Waits for the reply to a request, and for the request to be cancelled.
struct CancelWatch<'a> {
    set: PollSet,
    cancel: Option<BorrowedFd<'a>>,
}

/// What ends a wait.
enum AwaitedReply {
    Reply,
    /// Returned once.
    Cancels,
    /// Nothing until the time.
    Nothing,
}

impl<'a> CancelWatch<'a> {
    const REPLY: u64 = 0;
    const CANCEL: u64 = 1;

    fn new(connection: &Connection, cancel: Option<BorrowedFd<'a>>) -> io::Result<Self> {
        let set = PollSet::new()?;
        set.add(connection, Self::REPLY, Report::WhileReadable)?;
        cancel.iter().try_for_each(|fd| set.add(fd, Self::CANCEL, Report::WhileReadable))?;
        Ok(Self { set, cancel })
    }

    fn wait(&self, until: Instant) -> AwaitedReply {
        let mut ready = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            self.set.wait(&mut ready, Some(left));
            match ready.iter().map(|one| one.key).min() {
                Some(Self::REPLY) => return AwaitedReply::Reply,
                Some(_) => {
                    self.cancel.iter().for_each(|fd| self.set.remove(fd));
                    return AwaitedReply::Cancels;
                }
                None if left.is_zero() => return AwaitedReply::Nothing,
                // A signal has arrived.
                None => {}
            }
        }
    }
}

/// Changes which processes of a machine are in use, and returns when its tasks have moved there.
///
/// Waits for at most a minute. The moves go on after that.
///
/// # Errors
/// [`MachineRequestError::Refused`] if the change is not possible, and others.
pub fn change_use(
    machine: Option<u32>,
    change: ProcessChange,
) -> Result<MachineUse, MachineRequestError> {
    const LONGEST: Duration = Duration::from_secs(60);
    let what = match change {
        ProcessChange::Evacuate(_) | ProcessChange::Readmit(_) => "evacuate",
        ProcessChange::Number(_) => "procs",
    };
    let (machine, socket) = only(machine, what)?;
    let asking = MachineConnection::begin(machine, &socket, MachineRequest::Use(change))?;
    match asking.hear_within(LONGEST)? {
        Some(MachineReply::Used(used)) => Ok(used),
        _ => Err(MachineRequestError::Gone { machine }),
    }
}

/// Lets hosts come to a machine: each is NAME or NAME:PROCESSES. Returns when each has joined or
/// failed: its text, and its number or PVM's error (a negative number).
///
/// # Blocking
/// For at most an hour, the time for processes that are started by hand.
///
/// # Errors
/// See [`MachineRequestError`].
pub fn add_hosts(
    machine: Option<u32>,
    hosts: &[String],
) -> Result<Vec<(String, i32)>, MachineRequestError> {
    /// A little more than the time for processes that are started by hand.
    const LONGEST: Duration = Duration::from_secs(3660);
    about_hosts(machine, "add", MachineRequest::AddHosts(hosts.to_vec()), LONGEST)
}

/// Removes hosts from a machine, with all their tasks. Returns when each has left: its name, and 0
/// or PVM's error.
///
/// # Blocking
/// For at most 30 s, the time for the hosts' processes to end, and 5 s for the machine's answer.
///
/// # Errors
/// See [`MachineRequestError`].
pub fn remove_hosts(
    machine: Option<u32>,
    hosts: &[String],
) -> Result<Vec<(String, i32)>, MachineRequestError> {
    let longest = TO_GO + PATIENCE;
    about_hosts(machine, "delete", MachineRequest::RemoveHosts(hosts.to_vec()), longest)
}

/// Lists the hosts of a machine: name and number.
///
/// # Blocking
/// For at most 5 s if the machine does not answer.
///
/// # Errors
/// See [`MachineRequestError`].
pub fn hosts(machine: Option<u32>) -> Result<Vec<(String, i32)>, MachineRequestError> {
    about_hosts(machine, "conf", MachineRequest::Hosts, PATIENCE)
}

fn about_hosts(
    machine: Option<u32>,
    what: &'static str,
    ask: MachineRequest,
    longest: Duration,
) -> Result<Vec<(String, i32)>, MachineRequestError> {
    let (machine, socket) = only(machine, what)?;
    match MachineConnection::begin(machine, &socket, ask)?.hear_within(longest)? {
        Some(MachineReply::Hosts(all)) => Ok(all),
        _ => Err(MachineRequestError::Gone { machine }),
    }
}

/// Describes PVM's error for a host.
pub fn host_error(code: i32) -> &'static str {
    described::error(code)
}

/// Shows a machine: the one with this number, or the only one.
///
/// Blocks for at most 5 s if the machine does not answer.
///
/// # Errors
/// See [`MachineRequestError`].
pub fn shown(machine: Option<u32>) -> Result<ShownMachine, MachineRequestError> {
    let (machine, socket) = only(machine, "top")?;
    look(machine, &socket)
}

fn for_one(
    at: (u32, PathBuf),
    tid: Tid,
    ask: MachineRequest,
) -> Result<usize, MachineRequestError> {
    let machine = at.0;
    match done(at, ask)? {
        0 => Err(MachineRequestError::NoTask { tid, machines: vec![machine] }),
        count => Ok(count),
    }
}

/// Ends a machine with all its tasks, and returns its number when it has ended. A machine that is
/// in a system call for one of its tasks is killed after some seconds.
pub fn halt(machine: Option<u32>) -> Result<u32, MachineRequestError> {
    let (machine, socket) = only(machine, "halt")?;
    let asking = MachineConnection::begin(machine, &socket, MachineRequest::Halt)?;
    while asking.hear()?.is_some() {}
    Ok(machine)
}

/// Parses a task's id as people write it: `t40002`, or only the digits.
pub fn tid(text: &str) -> Option<Tid> {
    i32::from_str_radix(text.strip_prefix('t').unwrap_or(text), 16).ok().and_then(Tid::of)
}

/// The memory of each slot of a process, in KiB: resident, and the private part of that. Read from
/// `/proc/PID/smaps`, so that the tasks need not stop. Empty if that cannot be read.
pub fn memory(process: u32) -> BTreeMap<usize, (u64, u64)> {
    let text = fs::read_to_string(format!("/proc/{process}/smaps")).unwrap_or_default();
    memory_of(&text)
}

fn memory_of(smaps: &str) -> BTreeMap<usize, (u64, u64)> {
    let mut slots = BTreeMap::<usize, (u64, u64)>::new();
    let mut slot = None;
    for line in smaps.lines() {
        let Some((name, rest)) = line.split_once([' ', ':']) else { continue };
        if let Some((start, _)) = name.split_once('-') {
            slot = u64::from_str_radix(start, 16).ok().and_then(UlpSlot::of);
            continue;
        }
        let Some(slot) = slot else { continue };
        let kib = || rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0);
        match name {
            "Rss" => slots.entry(slot).or_default().0 += kib(),
            "Private_Clean" | "Private_Dirty" => slots.entry(slot).or_default().1 += kib(),
            _ => {}
        }
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_summed_by_slot() {
        let mapping = |start: u64, rss, dirty| {
            format!(
                "{start:x}-{:x} rw-p 00000000 00:00 0 \nSize:    4096 kB\nRss:     {rss} kB\n\
                 Private_Clean:  1 kB\nPrivate_Dirty:  {dirty} kB\nVmFlags: rd wr\n",
                start + 4096
            )
        };
        let first = if cfg!(upcall_asan) { 17 << 40 } else { 1 << 40 };
        let slot = |number: u64| first + (number << 30);
        let text = [
            mapping(slot(0) + 4096, 8, 4),
            mapping(0x55_0000, 100, 100),
            mapping(slot(3), 16, 12),
            mapping(slot(0) + (12 << 20), 2, 0),
        ];
        assert_eq!(memory_of(&text.concat()), BTreeMap::from([(0, (10, 6)), (3, (16, 13))]));
    }

    #[test]
    fn ids_are_read_as_they_are_shown() {
        assert_eq!((tid("t40002"), tid("40002")), (Some(Tid::new(0, 2)), Some(Tid::new(0, 2))));
        assert!(["", "t", "x", "t1", "t-40002", "all"].map(tid).iter().all(Option::is_none));
    }
}
