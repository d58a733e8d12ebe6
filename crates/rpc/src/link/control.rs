//! The control connection of a link, and the exchanges on it.

use crate::error::BindError;
use crate::turn::{Turn, TurnCell};
use crate::wire::{self, BindRefusal, ClientRequest, ServerReply, ToClient, ToServer};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use upcall_os::doorbell::Doorbell;
use upcall_os::socket::{Connection, Peer, Received};

/// Time within which a server must answer a binder, in seconds. It covers the connection, the
/// channel and the binding, and the wait behind other binders.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// The deadline of a binder that starts now.
pub(crate) fn patience_ends() -> Instant {
    Instant::now() + PATIENCE
}

/// Time for which a binder polls for the answer before it sleeps, in microseconds. An answer takes
/// about as long as a wake-up.
const EAGER: Duration = Duration::from_micros(150);

/// The control connection. It carries one exchange at a time.
pub(crate) struct ControlConnection {
    pub(super) connection: Connection,
    /// The pidfd of the server's process; its number follows, or 0.
    pub(super) server: Option<OwnedFd>,
    pid: u32,
    /// The serial number of the last exchange.
    serial: TurnCell<u32>,
}

/// Why an exchange on the control connection brought no answer.
#[derive(Debug)]
pub(crate) enum NoExchange {
    Closed,
    TimedOut,
    Kernel(io::Error),
    Protocol(String),
}

impl NoExchange {
    pub(super) fn for_name(self, name: &str) -> BindError {
        match self {
            Self::Closed => BindError::ServerGone { name: name.into() },
            Self::TimedOut => BindError::NoAnswer { name: name.into(), after: PATIENCE },
            Self::Kernel(error) => {
                BindError::Resource { what: format!("the control connection to {name:?}"), error }
            }
            Self::Protocol(what) => BindError::Protocol { what },
        }
    }
}

/// State of a server's process after its connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Ended,
    Lives,
    /// The kernel gives no pidfd.
    Unknown,
}

impl ControlConnection {
    pub(super) fn new(connection: Connection, server: &mut Peer) -> Self {
        Self { connection, server: server.pidfd.take(), pid: server.pid, serial: TurnCell::new(0) }
    }

    /// Turns a failed exchange into the binder's error. First removes what a dead server left
    /// behind, since no other process may have noticed.
    pub(crate) fn failed(&self, error: NoExchange, name: &str) -> BindError {
        match error {
            NoExchange::Closed if self.sweep_after_end() == Life::Lives => {
                BindError::HungUp { name: name.into() }
            }
            error => error.for_name(name),
        }
    }

    /// Removes what the server left in the folder of names. A process that is being killed closes
    /// its connections some moments before its listening socket, and looks alive until then. This
    /// waits for those moments, but not longer, since the server may have hung up and live.
    pub(super) fn sweep_after_end(&self) -> Life {
        let start = Instant::now();
        let mut lives = self.server.as_ref().map_or(Life::Unknown, |_| Life::Lives);
        while lives == Life::Lives && start.elapsed() < Duration::from_millis(30) {
            match &self.server {
                Some(server) if upcall_os::socket::has_ended(server) => lives = Life::Ended,
                _ => std::thread::sleep(Duration::from_micros(200)),
            }
        }
        crate::names::sweep();
        // A process with much memory takes longer to end. A process that has ended since then no
        // longer counts as ending.
        let ends = || {
            upcall_os::socket::is_ending(self.pid)
                || self.server.as_ref().is_some_and(upcall_os::socket::has_ended)
        };
        if lives == Life::Lives && ends() { Life::Ended } else { lives }
    }

    fn tell(
        &self,
        serial: u32,
        request: ClientRequest<'_>,
        descriptors: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<(), NoExchange> {
        let bytes = wire::pack(&ToServer { serial, request }).map_err(NoExchange::Kernel)?;
        if bytes.len() > upcall_os::socket::LONGEST {
            let text = format!(
                "a control message of {} bytes is too long: split the interface",
                bytes.len()
            );
            return Err(NoExchange::Kernel(io::Error::other(text)));
        }
        loop {
            return match self.connection.send(&bytes, descriptors) {
                Ok(()) => Ok(()),
                // Our own requests fill the server's buffer. The server is slow, and will read
                // them.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if Instant::now() > deadline {
                        return Err(NoExchange::TimedOut);
                    }
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                    ) =>
                {
                    Err(NoExchange::Closed)
                }
                Err(error) => Err(NoExchange::Kernel(error)),
            };
        }
    }

    /// Sends a request without an answer.
    pub(super) fn notify_by(
        &self,
        deadline: Instant,
        request: ClientRequest<'_>,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), NoExchange> {
        let _turn = self.serial.take_by(deadline).ok_or(NoExchange::TimedOut)?;
        self.tell(0, request, descriptors, deadline)
    }

    /// Sends a request and waits for its answer until `deadline`.
    pub(crate) fn exchange(
        &self,
        request: ClientRequest<'_>,
        descriptors: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<(ServerReply, Vec<OwnedFd>), NoExchange> {
        let mut talk = self.talk(deadline)?;
        let serial = talk.say(request, descriptors)?;
        talk.hear(serial)
    }

    /// Returns what the server sent before it hung up. `None` if it sent nothing, or if a thread
    /// that waited for an answer has received it. The connection is closed, so a thread that holds
    /// it at this moment returns it soon.
    pub(super) fn last_words(&self) -> Option<BindRefusal> {
        let _turn = self.serial.take_by(Instant::now() + Duration::from_millis(100))?;
        loop {
            let Ok(Received::Message(message)) = self.connection.receive() else { return None };
            match wire::unpack(&message.bytes) {
                Ok(ToClient { serial: wire::UNASKED, answer: ServerReply::Refused(refusal) }) => {
                    return Some(refusal);
                }
                _ => continue,
            }
        }
    }

    /// Takes the connection for several requests.
    pub(super) fn talk(&self, deadline: Instant) -> Result<Talk<'_>, NoExchange> {
        let serial = self.serial.take_by(deadline).ok_or(NoExchange::TimedOut)?;
        Ok(Talk { control: self, serial, deadline })
    }

    fn answer(
        &self,
        serial: u32,
        deadline: Instant,
    ) -> Result<(ServerReply, Vec<OwnedFd>), NoExchange> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let received = match &self.server {
                Some(server) => self.connection.receive_while(server.as_fd(), EAGER, left),
                None => self.connection.receive_within(EAGER, left),
            };
            match received.map_err(NoExchange::Kernel)? {
                Received::Nothing => return Err(NoExchange::TimedOut),
                Received::Closed => return Err(NoExchange::Closed),
                Received::Message(message) => {
                    if message.lost {
                        return Err(NoExchange::Kernel(Errno::MFILE.into()));
                    }
                    let ToClient { serial: found, answer } =
                        wire::unpack(&message.bytes).map_err(NoExchange::Protocol)?;
                    if found == serial || found == wire::UNASKED {
                        return Ok((answer, message.descriptors));
                    }
                    // The answer belongs to an exchange that was given up, and is merely late. The
                    // deadline bounds how many of them a server can send.
                    if Instant::now() >= deadline {
                        return Err(NoExchange::TimedOut);
                    }
                }
            }
        }
    }
}

impl upcall_sched::calls::ServerClerk for ControlConnection {
    fn open_lane(
        &self,
        number: u16,
        vp: Option<(u16, &Doorbell)>,
        until: Instant,
    ) -> io::Result<()> {
        let doorbell: Vec<_> = vp.iter().map(|(_, doorbell)| doorbell.as_fd()).collect();
        let request = ClientRequest::OpenLane { number, vp: vp.as_ref().map(|(vp, _)| *vp) };
        self.notify_by(until, request, &doorbell).map_err(|error| match error {
            NoExchange::Closed => io::ErrorKind::BrokenPipe.into(),
            NoExchange::TimedOut => io::ErrorKind::TimedOut.into(),
            error => io::Error::other(format!("{error:?}")),
        })
    }

    fn report_stall(&self) {
        let _ = self.notify_by(Instant::now(), ClientRequest::Stalled, &[]);
    }
}

/// The control connection, held by one thread. The holder may send requests before it takes the
/// answers to earlier ones; the answers arrive in the same order.
pub(super) struct Talk<'a> {
    control: &'a ControlConnection,
    serial: Turn<'a, u32>,
    pub(super) deadline: Instant,
}

impl Talk<'_> {
    /// Sends a request, and returns its serial number.
    pub(super) fn say(
        &mut self,
        request: ClientRequest<'_>,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<u32, NoExchange> {
        *self.serial = self.serial.wrapping_add(1).max(1);
        match self.control.tell(*self.serial, request, descriptors, self.deadline) {
            // A server that hangs up first says why, if it can. That message is then taken instead
            // of an answer.
            Ok(()) | Err(NoExchange::Closed) => Ok(*self.serial),
            Err(error) => Err(error),
        }
    }

    /// Waits for the answer to the request with this serial number.
    pub(super) fn hear(&mut self, serial: u32) -> Result<(ServerReply, Vec<OwnedFd>), NoExchange> {
        self.control.answer(serial, self.deadline)
    }
}
