//! Where a machine is asked from another shell: a socket of its first process in the folder of
//! names, one question a connection. Its thread waits there, and hands over what is asked
//! ([`NodeCalls`](crate::calls)); only this user is heard.
//!
//! Nothing else says that a machine is there: the socket of one that was killed is removed by
//! whoever looks next.

use crate::calls::{NodeCall, NodeCaller};
use crate::report::report_line;
use crate::shown::{ShownMachine, ShownTask};
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

/// The version of what follows.
const VERSION: u32 = 1;
/// Keys of the set of descriptors; those who ask follow.
const LISTENER: u64 = 0;
const END: u64 = 1;
const GUESTS: u64 = 2;
/// So many may be there at once who have not asked yet.
const MOST: usize = 64;
/// So long it is waited where no descriptor can be had.
const PAUSE: Duration = Duration::from_millis(100);
/// So long who has asked may take to read the answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// So many tasks at most in one part of an answer.
const PART: usize = 200;

/// What a machine is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum MachineRequest {
    Show,
    /// To end a task, or all.
    Kill(Option<i32>),
    Signal {
        tid: i32,
        number: i32,
    },
    Halt,
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum MachineReply {
    /// Some of its tasks; more follows.
    Tasks(Vec<ShownTask>),
    /// And all the rest.
    Shown(ShownMachine),
    /// So many tasks were there for which it is done.
    Done(usize),
    /// It ends; the connection is closed when it has.
    Ends,
    Refused(String),
}

/// Who asks, in which version: read first, and by all versions.
#[derive(Debug, Serialize, Deserialize)]
struct RequestHeader {
    version: u32,
}

pub(crate) fn question(ask: MachineRequest) -> Vec<u8> {
    pack(&(RequestHeader { version: VERSION }, ask))
}

fn pack(message: &impl Serialize) -> Vec<u8> {
    // Of these types it cannot fail but for memory.
    postcard::to_stdvec(message).unwrap_or_default()
}

pub(crate) fn unpack<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    postcard::from_bytes(bytes)
        .map_err(|error| format!("what it says cannot be read: {error}; is it another version's?"))
}

fn asked(bytes: &[u8]) -> Result<MachineRequest, String> {
    let (head, rest) = postcard::take_from_bytes::<RequestHeader>(bytes)
        .map_err(|error| format!("the question cannot be read: {error}"))?;
    match head.version {
        VERSION => unpack(rest),
        other => Err(format!(
            "it speaks version {VERSION}, and this command version {other}: use the one of the same installation"
        )),
    }
}

/// Who has asked, and waits for the answer.
#[derive(Debug)]
pub(crate) struct Visitor(Connection);

impl Visitor {
    /// Never blocks.
    pub(crate) fn answer(&self, answer: &MachineReply) {
        // Who has gone is told nothing.
        let _ = self.0.send(&pack(answer), &[]);
    }

    /// Does not block: what the other side takes its time to read waits on a thread of its own.
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
        // Without a thread the answer is cut short, which is told at the other side.
        let _ = std::thread::Builder::new().spawn(rest);
    }
}

/// See the module. Closed when it is dropped.
#[derive(Debug)]
pub(crate) struct MachineListener {
    socket: PathBuf,
    end: Arc<Doorbell>,
    /// Waited for: a debugger that sees a process end with a thread still there may lose both (gdb
    /// 13 does, now and then).
    thread: Option<JoinHandle<()>>,
}

impl MachineListener {
    pub(crate) fn open(caller: NodeCaller) -> Result<Self, NotEntered> {
        let unable =
            |error| NotEntered::Resource { what: "waiting for those who ask".into(), error };
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
        // It waits for nobody else, and cannot have panicked but by a mistake, which it has told.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// What the thread has.
struct MachineAcceptor {
    listener: Listener,
    set: PollSet,
    caller: NodeCaller,
    guests: BTreeMap<u64, Connection>,
    next: u64,
    socket: PathBuf,
    /// In the set.
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

    /// The process ends, if it has not by then: it is in a call of the kernel's for a task. The
    /// kernel ends the others with it.
    fn end_by_force(&self) {
        let socket = self.socket.clone();
        let end = move || {
            std::thread::sleep(2 * GRACE);
            report_line!(
                "upcall pvm: the machine is halted by force: it is in a call of the kernel's for one of its tasks"
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
    fn questions_are_read_and_those_of_other_versions_refused() {
        for ask in [
            MachineRequest::Show,
            MachineRequest::Kill(None),
            MachineRequest::Kill(Some(0x40002)),
            MachineRequest::Signal { tid: 0x40002, number: 10 },
            MachineRequest::Halt,
        ] {
            assert_eq!(asked(&question(ask)), Ok(ask));
        }
        let other =
            asked(&pack(&(RequestHeader { version: 7 }, MachineRequest::Halt))).unwrap_err();
        assert!(other.contains("version 7"), "{other}");
        assert!(asked(&[]).is_err() && asked(&[1, 99]).is_err());
    }
}
