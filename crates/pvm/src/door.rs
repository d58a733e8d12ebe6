//! The socket on which a machine is asked from another shell. It belongs to the machine's first
//! process, lies in the folder of names, and takes one request per connection. Its thread waits for
//! requests and hands them to the node ([`NodeCalls`](crate::calls)). Only this user's requests are
//! accepted.
//!
//! The socket is the only sign that a machine runs. The socket of a machine that was killed is
//! removed by the next command that looks for machines.

use crate::calls::{NodeCall, NodeCaller};
use crate::report::report_line;
use crate::shown::{MachineUse, MoveCost, SavedCost, ShownMachine, ShownTask};
use rustix::process::{Signal, getpid, kill_process};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use upcall_directory::names::{self, NotEntered, Whose};
use upcall_os::doorbell::Doorbell;
use upcall_os::poll::{PollSet, Ready, Report};
use upcall_os::socket::{Connection, Listener, Received};

/// Maximum time that the other processes of a machine take to end.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// Version of the protocol below.
const VERSION: u32 = 8;
/// Keys in the poll set. Connections have keys from `GUESTS`.
const LISTENER: u64 = 0;
const END: u64 = 1;
const GUESTS: u64 = 2;
/// Maximum number of connections that have not sent a request yet.
const MOST: usize = 64;
/// Delay before the next attempt when no descriptor is available.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum time that a client may take to read its reply.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of tasks in one part of a reply.
const PART: usize = 200;

/// A change of which processes of a machine are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcessChange {
    /// The process of this rank is to have no tasks.
    Evacuate(u32),
    /// The process of this rank may have tasks again.
    Readmit(u32),
    /// This number of processes are to have tasks.
    Number(u32),
}

/// A request to a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum MachineRequest {
    Show,
    /// Ends a task, or all.
    Kill(Option<i32>),
    Signal {
        tid: i32,
        number: i32,
    },
    /// Moves a task to the process of this rank.
    Move {
        tid: i32,
        rank: u32,
    },
    /// Changes which processes are in use.
    Use(ProcessChange),
    Halt,
    /// Lets hosts come: NAME[:PROCESSES].
    AddHosts(Vec<String>),
    /// Removes hosts.
    RemoveHosts(Vec<String>),
    /// Lists the hosts.
    Hosts,
    /// Saves the machine in the file with this absolute path.
    Checkpoint {
        path: Vec<u8>,
    },
    /// On the same connection: the checkpoint is not wanted any more.
    Cancel,
}

/// A machine's reply.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum MachineReply {
    /// Some of its tasks. More parts follow.
    Tasks(Vec<ShownTask>),
    /// The last part: everything else.
    Shown(ShownMachine),
    /// Number of tasks for which the request was carried out.
    Done(usize),
    /// The task was moved.
    Moved(MoveCost),
    /// A checkpoint is being written, which takes longer: so far, and the number of all tasks.
    Saves {
        cost: SavedCost,
        all: u32,
    },
    /// The checkpoint is written.
    Saved(SavedCost),
    /// The tasks are in the processes in use, but for those that stay.
    Used(MachineUse),
    /// Hosts, each with its number or PVM's error.
    Hosts(Vec<(String, i32)>),
    /// The machine ends, and closes the connection when it has ended.
    Ends,
    Refused(String),
}

/// The client's protocol version. All versions read this first.
#[derive(Debug, Serialize, Deserialize)]
struct RequestHeader {
    version: u32,
}

pub(crate) fn question(ask: &MachineRequest) -> Vec<u8> {
    pack(&(RequestHeader { version: VERSION }, ask))
}

fn pack(message: &impl Serialize) -> Vec<u8> {
    // For these types this does not fail.
    postcard::to_stdvec(message).unwrap_or_default()
}

pub(crate) fn unpack<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    postcard::from_bytes(bytes)
        .map_err(|error| format!("a message cannot be read: {error}; is it another version's?"))
}

fn asked(bytes: &[u8]) -> Result<MachineRequest, String> {
    let (head, rest) = postcard::take_from_bytes::<RequestHeader>(bytes)
        .map_err(|error| format!("the request cannot be read: {error}"))?;
    match head.version {
        VERSION => unpack(rest),
        other => Err(format!(
            "it speaks version {VERSION}, and this command version {other}: use the command of \
             the same installation"
        )),
    }
}

/// A client that has sent a request and waits for the reply.
#[derive(Debug)]
pub(crate) struct Visitor(Connection);

/// What a client does while its request is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VisitorWish {
    Waits,
    /// It wants no more, or has gone.
    Cancels,
}

impl Visitor {
    /// Returns what the client wants now. Never blocks.
    pub(crate) fn wish(&self) -> VisitorWish {
        match self.0.receive() {
            Ok(Received::Nothing) => VisitorWish::Waits,
            Ok(Received::Message(_) | Received::Closed) | Err(_) => VisitorWish::Cancels,
        }
    }

    /// Never blocks.
    pub(crate) fn answer(&self, answer: &MachineReply) {
        // A client that has gone gets no reply.
        let _ = self.0.send(&pack(answer), &[]);
    }

    /// Sends the parts of a reply. Does not block: if the client reads slowly, a separate thread
    /// waits for it.
    pub(crate) fn show(self, mut shown: ShownMachine) {
        let tasks = std::mem::take(&mut shown.tasks);
        let parts = tasks.chunks(PART).map(|part| pack(&MachineReply::Tasks(part.to_vec())));
        let mut parts =
            parts.chain([pack(&MachineReply::Shown(shown))]).collect::<Vec<_>>().into_iter();
        let blocked = |sent: std::io::Result<()>| {
            sent.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        };
        let Some(first) = parts.find(|part| blocked(self.0.send(part, &[]))) else { return };
        let until = Instant::now() + PATIENCE;
        let rest = move || {
            for part in [first].into_iter().chain(parts) {
                while blocked(self.0.send(&part, &[])) && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        };
        // Without a thread the reply is cut short, and the client reports that.
        let _ = std::thread::Builder::new().spawn(rest);
    }
}

/// The machine's socket and its thread. Dropping this closes the socket.
#[derive(Debug)]
pub(crate) struct MachineListener {
    socket: PathBuf,
    end: Arc<Doorbell>,
    /// Joined on drop: a debugger that sees a process end while a thread is still running may lose
    /// both (gdb 13 does, now and then).
    thread: Option<JoinHandle<()>>,
}

impl MachineListener {
    pub(crate) fn open(caller: NodeCaller) -> Result<Self, NotEntered> {
        let unable = |error| NotEntered::Resource { what: "waiting for requests".into(), error };
        let end = Arc::new(Doorbell::new().map_err(unable)?);
        let set = PollSet::new().map_err(unable)?;
        let (socket, listener) = names::listen(Whose::Machine)?;
        let mut door = Self { socket: socket.clone(), end: end.clone(), thread: None };
        set.add(&listener, LISTENER, Report::WhileReadable).map_err(unable)?;
        set.add(&*end, END, Report::WhileReadable).map_err(unable)?;
        let doorkeeper = MachineAcceptor {
            listener,
            set,
            caller,
            guests: BTreeMap::new(),
            next: GUESTS,
            socket,
            _end: end,
        };
        door.thread = Some(
            std::thread::Builder::new()
                .name("door".into())
                .spawn(|| doorkeeper.work())
                .map_err(unable)?,
        );
        Ok(door)
    }
}

impl Drop for MachineListener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        self.end.notify();
        // The thread waits for nothing else. If it has panicked, it has reported that itself.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// State of the thread.
struct MachineAcceptor {
    listener: Listener,
    set: PollSet,
    caller: NodeCaller,
    guests: BTreeMap<u64, Connection>,
    next: u64,
    socket: PathBuf,
    /// Kept alive because it is in the poll set.
    _end: Arc<Doorbell>,
}

impl MachineAcceptor {
    fn work(mut self) {
        let mut ready = Vec::new();
        loop {
            self.set.wait(&mut ready, None);
            for Ready { key, hung_up } in ready.drain(..) {
                match key {
                    LISTENER => self.let_in(),
                    END => return,
                    _ => self.hear(key, hung_up),
                }
            }
        }
    }

    fn let_in(&mut self) {
        let connection = match self.listener.accept() {
            Ok(Some(connection)) => connection,
            Ok(None) => return,
            Err(_) => return std::thread::sleep(PAUSE),
        };
        let own = upcall_os::socket::own_user();
        if self.guests.len() < MOST
            && connection.peer().is_ok_and(|peer| peer.uid == own)
            && self.set.add(&connection, self.next, Report::WhileReadable).is_ok()
        {
            self.guests.insert(self.next, connection);
            self.next += 1;
        }
    }

    /// Kills this process if it has not ended after a delay, because it is in a system call for a
    /// task. The kernel ends the other processes with it.
    fn end_by_force(&self) {
        let socket = self.socket.clone();
        let end = move || {
            std::thread::sleep(2 * GRACE);
            report_line!(
                "upcall pvm: the machine is halted by force: it is in a system call for one of its \
                 tasks, or waits for the reader of what they have written, or for a host that is \
                 stopped"
            );
            let _ = std::fs::remove_file(socket);
            let _ = kill_process(getpid(), Signal::KILL);
        };
        let _ = std::thread::Builder::new().spawn(end);
    }

    fn hear(&mut self, key: u64, hung_up: bool) {
        let Some(connection) = self.guests.get(&key) else { return };
        let message = match connection.receive() {
            Ok(Received::Message(message)) => message,
            Ok(Received::Nothing) if !hung_up => return,
            _ => {
                self.guests.remove(&key);
                return;
            }
        };
        self.set.remove(connection);
        let Some(visitor) = self.guests.remove(&key).map(Visitor) else { return };
        match asked(&message.bytes) {
            Ok(MachineRequest::Halt) => {
                self.caller.call(NodeCall::Asked(MachineRequest::Halt, visitor));
                self.end_by_force();
            }
            Ok(ask) => _ = self.caller.call(NodeCall::Asked(ask, visitor)),
            Err(why) => visitor.answer(&MachineReply::Refused(why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_cancels_by_a_message_and_by_its_end() {
        let (own, client) = Connection::pair().unwrap();
        let visitor = Visitor(own);
        assert_eq!(visitor.wish(), VisitorWish::Waits);
        client.send(&question(&MachineRequest::Cancel), &[]).unwrap();
        assert_eq!(visitor.wish(), VisitorWish::Cancels);
        assert_eq!(visitor.wish(), VisitorWish::Waits);
        drop(client);
        assert_eq!(visitor.wish(), VisitorWish::Cancels);
    }

    #[test]
    fn questions_are_read_and_those_of_other_versions_refused() {
        for ask in [
            MachineRequest::Show,
            MachineRequest::Kill(None),
            MachineRequest::Kill(Some(0x40002)),
            MachineRequest::Signal { tid: 0x40002, number: 10 },
            MachineRequest::Move { tid: 0x40002, rank: 1 },
            MachineRequest::Use(ProcessChange::Evacuate(1)),
            MachineRequest::Halt,
            MachineRequest::AddHosts(vec!["b:2".into()]),
            MachineRequest::RemoveHosts(Vec::new()),
            MachineRequest::Hosts,
            MachineRequest::Checkpoint { path: b"/tmp/a\xFF".into() },
            MachineRequest::Cancel,
        ] {
            assert_eq!(asked(&question(&ask)), Ok(ask));
        }
        let other = asked(&pack(&(RequestHeader { version: VERSION + 1 }, MachineRequest::Halt)))
            .unwrap_err();
        assert!(other.contains(&format!("version {}", VERSION + 1)), "{other}");
        assert!(asked(&[]).is_err() && asked(&[1, 99]).is_err());
    }
}
