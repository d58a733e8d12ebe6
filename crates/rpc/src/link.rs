//! A client's connection to one server domain: the control connection, the channel, and the
//! segments.
//!
//! All bindings between the same two domains share one link (URPC: the channel is made once and
//! used for every later call). A message names its binding in six bits, so a link serves 64
//! bindings in its life; the next binding opens another link. The server answers requests on the
//! control connection in turn. Calls do not use that connection.

use crate::error::BindError;
use crate::interface::{KEPT_SEGMENTS, Mismatches};
use crate::places::Places;
use crate::turn::{Turn, TurnCell};
use crate::wire::{self, BindRefusal, ClientRequest, ServerReply, ToClient, ToServer};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use upcall_directory::clerk::{Clerk, Watched};
use upcall_directory::policy::{self, Policy};
use upcall_os::doorbell::Doorbell;
use upcall_os::fault::{Point, point};
use upcall_os::lock::KernelMutex;
use upcall_os::memory::{Mapping, MemoryFile};
use upcall_os::poll::Report;
use upcall_os::socket::{Connection, Peer, Received, says_ended};
use upcall_sched::{CallerChannel, Closed, Domain, WaitLimit};
use upcall_shm::channel::{self, Channel};
use upcall_shm::region::Region;
use upcall_shm::station::{NotAStation, PeerStation};
use upcall_shm::tally::PeerTallies;

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

/// Maximum length, in bytes, of a domain's list of exports.
pub const MOST_LISTED: usize = 64 << 20;

/// Time within which the server should take a notice that can wait, in milliseconds.
const SHORTLY: Duration = Duration::from_millis(2);

/// The client's end of everything that two domains share.
pub(crate) struct DomainLink {
    control: Arc<ControlConnection>,
    pub(crate) channel: Arc<CallerChannel>,
    pub(crate) peer: Peer,
    /// The places of the segments in use.
    pub(crate) places: Arc<Places>,
    segments: KernelMutex<Segments>,
    /// Bindings that have ended, and whose end the server has not been sent yet.
    ended: KernelMutex<Vec<u16>>,
    ids: KernelMutex<u16>,
    /// The clerk's keys for the connection and for the process.
    watching: OnceLock<(u64, Option<u64>)>,
}

/// The control connection. It carries one exchange at a time.
pub(crate) struct ControlConnection {
    connection: Connection,
    /// The pidfd of the server's process; its number follows, or 0.
    server: Option<OwnedFd>,
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
    fn for_name(self, name: &str) -> BindError {
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
enum Life {
    Ended,
    Lives,
    /// The kernel gives no pidfd.
    Unknown,
}

impl ControlConnection {
    fn new(connection: Connection, server: &mut Peer) -> Self {
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
    fn sweep_after_end(&self) -> Life {
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
    fn notify_by(
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
    fn last_words(&self) -> Option<BindRefusal> {
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
    fn talk(&self, deadline: Instant) -> Result<Talk<'_>, NoExchange> {
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

/// Interval at which a thread that waits on the control connection checks its cancel token, in
/// milliseconds. The token cannot wake that thread.
const SLICE: Duration = Duration::from_millis(10);

/// Repeats `attempt`, for one slice each time, while `waits` returns `true`.
fn in_slices<T>(
    waits: impl Fn(Instant) -> bool,
    mut attempt: impl FnMut(Instant) -> Result<T, NoExchange>,
) -> Result<T, NoExchange> {
    loop {
        match attempt(Instant::now() + SLICE) {
            Err(NoExchange::TimedOut) if waits(Instant::now()) => {}
            done => return done,
        }
    }
}

/// The control connection, held by one thread. The holder may send requests before it takes the
/// answers to earlier ones; the answers arrive in the same order.
struct Talk<'a> {
    control: &'a ControlConnection,
    serial: Turn<'a, u32>,
    deadline: Instant,
}

impl Talk<'_> {
    /// Sends a request, and returns its serial number.
    fn say(
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
    fn hear(&mut self, serial: u32) -> Result<(ServerReply, Vec<OwnedFd>), NoExchange> {
        self.control.answer(serial, self.deadline)
    }
}

/// Asks a domain's socket for its identity and its exports, as `upcall ls` shows them.
///
/// # Errors
/// The domain has ended, does not answer, or breaks the protocol.
pub fn list(socket: &Path) -> Result<(Peer, Vec<crate::wire::Exported>), BindError> {
    list_of(&socket.display().to_string(), socket, &policy::own_user_or_root(), MOST_LISTED)
}

/// The exports of a domain that `accepts` accepts, instead of a domain of this user or of root. A
/// list of more than `most` bytes is refused.
///
/// # Errors
/// As for [`list`].
pub fn list_expecting(
    socket: &Path,
    accepts: &Policy,
    most: usize,
) -> Result<(Peer, Vec<crate::wire::Exported>), BindError> {
    list_of(&socket.display().to_string(), socket, accepts, most)
}

/// Like [`list`], for the domain that exports `name`.
///
/// # Errors
/// The name is invalid, no domain exports it, or as for [`list`].
pub fn list_named(name: &str) -> Result<(Peer, Vec<crate::wire::Exported>), BindError> {
    list_named_expecting(name, &policy::own_user_or_root())
}

/// Like [`list_named`], for a domain that `accepts` accepts instead of a domain of this user or of
/// root.
///
/// # Errors
/// As for [`list_named`].
pub fn list_named_expecting(
    name: &str,
    accepts: &Policy,
) -> Result<(Peer, Vec<crate::wire::Exported>), BindError> {
    list_of(name, &crate::names::find(name)?, accepts, MOST_LISTED)
}

/// The call statistics of a domain's bindings, for `upcall stat`.
///
/// # Errors
/// As for [`list`].
pub fn tallies(socket: &Path) -> Result<(Peer, PeerTallies), BindError> {
    let shown = socket.display().to_string();
    let (peer, answer, given) =
        ask_once(&shown, socket, ClientRequest::Tallies, &policy::own_user_or_root())?;
    let (ServerReply::Tallies, Some(fd)) = (answer, given) else {
        return Err(BindError::Protocol { what: "another answer than the tallies".into() });
    };
    let tallies =
        PeerTallies::join(fd).map_err(|error| BindError::Protocol { what: error.to_string() })?;
    Ok((peer, tallies))
}

fn list_of(
    shown: &str,
    socket: &Path,
    accepts: &Policy,
    most: usize,
) -> Result<(Peer, Vec<crate::wire::Exported>), BindError> {
    let (peer, answer, given) = ask_once(shown, socket, ClientRequest::List, accepts)?;
    let (ServerReply::Exports, Some(fd)) = (answer, given) else {
        return Err(BindError::Protocol { what: "another answer than the exports".into() });
    };
    let bytes = MemoryFile::read_all(&fd, most)
        .map_err(|error| BindError::Resource { what: format!("the exports of {shown}"), error })?;
    let exports: Vec<crate::wire::Exported> =
        wire::unpack(&bytes).map_err(|what| BindError::Protocol { what })?;
    let checked = exports.iter().try_for_each(wire::check_exported);
    checked.map_err(|what| BindError::Protocol { what: what.into() })?;
    Ok((peer, exports))
}

/// Makes one request on a connection of its own. Returns the peer, its answer, and the last
/// descriptor that came with the answer. A refusal is an error.
fn ask_once(
    shown: &str,
    socket: &Path,
    request: ClientRequest<'_>,
    accepts: &Policy,
) -> Result<(Peer, ServerReply, Option<OwnedFd>), BindError> {
    let deadline = patience_ends();
    let (connection, mut peer) = connect(shown, socket, deadline, accepts)?;
    let control = ControlConnection::new(connection, &mut peer);
    let asked = control.exchange(request, &[], deadline);
    match asked.map_err(|error| control.failed(error, shown))? {
        (ServerReply::Refused(refusal), _) => Err(refused(shown, "", refusal)),
        (answer, mut descriptors) => Ok((peer, answer, descriptors.pop())),
    }
}

/// Connects to the server with this socket, if `accepts` accepts it.
fn connect(
    name: &str,
    socket: &Path,
    deadline: Instant,
    accepts: &Policy,
) -> Result<(Connection, Peer), BindError> {
    let connection =
        Connection::connect_until(socket, deadline).map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                crate::names::sweep();
                BindError::ServerGone { name: name.into() }
            }
            io::ErrorKind::WouldBlock => BindError::NoAnswer { name: name.into(), after: PATIENCE },
            io::ErrorKind::PermissionDenied => {
                BindError::Denied { name: name.into(), reason: not_open(socket) }
            }
            _ => BindError::Resource { what: format!("connecting to {}", socket.display()), error },
        })?;
    let peer = connection.peer().map_err(|error| match says_ended(&error) {
        true => {
            crate::names::sweep();
            BindError::ServerGone { name: name.into() }
        }
        false => {
            BindError::Resource { what: format!("the identity of the server of {name:?}"), error }
        }
    })?;
    check(name, &peer, accepts)?;
    Ok((connection, peer))
}

/// Applies the client's policy to a server.
fn check(name: &str, server: &Peer, accepts: &Policy) -> Result<(), BindError> {
    accepts(server).map_err(|reason| BindError::WrongUser {
        name: name.into(),
        found: Some(server.uid),
        reason,
    })
}

/// Why the kernel does not let this process connect.
fn not_open(socket: &Path) -> String {
    let user = upcall_os::socket::own_user();
    format!(
        "user {user} may not connect to {}, which the server's mode and group decide",
        socket.display()
    )
}

pub(crate) fn refused(name: &str, wanted: &str, refusal: BindRefusal) -> BindError {
    let name = name.to_string();
    match refusal {
        BindRefusal::Version(reason) => BindError::Version { name, own: wire::VERSION, reason },
        BindRefusal::Denied(reason) => BindError::Denied { name, reason },
        BindRefusal::NoSuchName => BindError::ServerGone { name },
        BindRefusal::WrongInterface { exported } => {
            BindError::WrongInterface { name, wanted: wanted.into(), exported }
        }
        BindRefusal::Mismatch(Mismatches { told, more }) => {
            BindError::Mismatch { name, procedures: told, more }
        }
        BindRefusal::Resource { what, code } => BindError::Resource {
            what: format!("in the server of {name:?}: {what}"),
            error: io::Error::from_raw_os_error(code),
        },
        BindRefusal::Quota(reason) => BindError::QuotaReached { name, reason },
        BindRefusal::Protocol(what) => BindError::Protocol { what },
    }
}

/// The link to each domain, by the domain's socket. Each entry has a lock of its own: one binder at
/// a time opens a link, and binders to other domains do not wait for it.
type DomainLinks = HashMap<PathBuf, Arc<TurnCell<Weak<DomainLink>>>>;

/// Makes a kernel error into a [`BindError`] that names the missing resource.
fn unable(what: &'static str) -> impl Fn(io::Error) -> BindError {
    move |error| BindError::Resource { what: what.to_owned(), error }
}

/// Makes a channel in new memory.
fn new_channel() -> Result<(MemoryFile, Channel), BindError> {
    let memory = MemoryFile::create("upcall-channel", channel::BYTES)
        .map_err(unable("the channel's memory"))?;
    let map = Mapping::shared(&memory).map_err(unable("mapping the channel"))?;
    let region = Region::new(map)
        .ok_or_else(|| BindError::Protocol { what: "a read-only channel".into() })?;
    let channel =
        Channel::create(region).map_err(|error| BindError::Protocol { what: error.to_string() })?;
    Ok((memory, channel))
}

/// The entry for the link to the domain with this socket.
fn place_of(socket: &Path) -> Arc<TurnCell<Weak<DomainLink>>> {
    static LINKS: OnceLock<KernelMutex<DomainLinks>> = OnceLock::new();
    let mut links = LINKS.get_or_init(KernelMutex::default).lock();
    if let Some(place) = links.get(socket) {
        return place.clone();
    }
    // Entries are found under this lock only. An entry without a link that has no other reference
    // is unused.
    links.retain(|_, place| {
        Arc::strong_count(place) > 1 || place.peek(|link| link.strong_count() > 0).unwrap_or(true)
    });
    let place = Arc::new(TurnCell::new(Weak::new()));
    links.insert(socket.into(), place.clone());
    place
}

/// The number of a link's first binding.
const FIRST: u16 = 0;

fn descriptors(memory: Option<&MemoryFile>) -> Vec<BorrowedFd<'_>> {
    memory.into_iter().map(AsFd::as_fd).collect()
}

/// A binder's request, with the memory that it brings.
pub(crate) struct BinderRequest<'a> {
    pub(crate) request: ClientRequest<'a>,
    pub(crate) memory: Option<MemoryFile>,
}

/// The outcome of a binder's request: the link, the binding's number on it, and the server's
/// answer.
pub(crate) type BindOutcome = (Arc<DomainLink>, u16, ServerReply);

impl DomainLink {
    /// Asks the domain with this socket for a binding, through the open link, or through a new link
    /// if there is none or if the open link has no number left. Waits until `deadline` for the
    /// server, and for another binder that is opening a link to the same domain.
    pub(crate) fn bind<'a>(
        name: &str,
        socket: &Path,
        deadline: Instant,
        accepts: &Policy,
        ask: impl FnOnce(u16) -> Result<BinderRequest<'a>, BindError>,
    ) -> Result<BindOutcome, BindError> {
        let place = place_of(socket);
        let mut turn =
            place.take_by(deadline).ok_or_else(|| NoExchange::TimedOut.for_name(name))?;
        if let Some(link) = turn.upgrade()
            && link.channel.closed().is_none()
            // Another binder may have accepted this server by another policy.
            && check(name, &link.peer, accepts).map(|()| true)?
            && let Some(id) = link.next_binding()
        {
            drop(turn);
            let BinderRequest { request, memory } = ask(id)?;
            let bound = link.control.exchange(request, &descriptors(memory.as_ref()), deadline);
            if matches!(bound, Err(NoExchange::TimedOut)) {
                // The server may still process the request.
                link.ended.lock().push(id);
            }
            let (answer, _) = bound.map_err(|error| link.control.failed(error, name))?;
            link.tell_of_dropped(deadline.min(Instant::now() + SHORTLY));
            return Ok((link, id, answer));
        }
        let bound = Self::open(name, socket, deadline, accepts, ask)?;
        *turn = Arc::downgrade(&bound.0);
        Ok(bound)
    }

    /// Opens a link and asks for the first binding. Both requests go to the server at once, so that
    /// each side does its part while the other does its own.
    fn open<'a>(
        name: &str,
        socket: &Path,
        deadline: Instant,
        accepts: &Policy,
        ask: impl FnOnce(u16) -> Result<BinderRequest<'a>, BindError>,
    ) -> Result<BindOutcome, BindError> {
        let (connection, mut peer) = connect(name, socket, deadline, accepts)?;
        point(Point::ClientConnected);
        let domain = Domain::current().map_err(unable("this domain's station"))?;
        let (memory, channel) = new_channel()?;
        let control = Arc::new(ControlConnection::new(connection, &mut peer));
        let open = ClientRequest::Open { version: wire::VERSION };
        let failed = |error| control.failed(error, name);
        let mut talk = control.talk(deadline).map_err(failed)?;
        let opening =
            talk.say(open, &[memory.as_fd(), domain.station().as_fd()]).map_err(failed)?;
        point(Point::ClientAsked);
        let BinderRequest { request, memory } = ask(FIRST)?;
        // If this cannot be sent, the answer to the opening says why.
        let binding = talk.say(request, &descriptors(memory.as_ref()));
        // The first link of a process starts the clerk's thread. The server is busy now, so this
        // costs no time.
        let clerk = Clerk::current().map_err(unable("the clerk's thread"))?;
        let (answer, given) = talk.hear(opening).map_err(failed)?;
        let home = match answer {
            ServerReply::Opened { home } => home,
            ServerReply::Refused(refusal) => return Err(refused(name, "", refusal)),
            _ => {
                return Err(BindError::Protocol {
                    what: "another answer than an open channel".into(),
                });
            }
        };
        let [station, doorbell] =
            <[OwnedFd; 2]>::try_from(given).map_err(|found| BindError::Protocol {
                what: format!("{} descriptors with the open channel, not 2", found.len()),
            })?;
        let station = PeerStation::join(station).map_err(|error| match error {
            NotAStation::Map(error) => unable("mapping the server's station")(error),
            error => BindError::Protocol { what: error.to_string() },
        })?;
        let doorbell = Doorbell::adopt(doorbell).map_err(unable("the server's doorbell"))?;
        let of_server = control.clone();
        let channel = CallerChannel::new(channel, station, peer.pid, home, doorbell, of_server);
        let places = Arc::<Places>::default();
        let of_channel = places.clone();
        channel.when_closed(Box::new(move || of_channel.close()));
        let link = Arc::new(Self {
            control: control.clone(),
            channel,
            places,
            peer,
            segments: KernelMutex::default(),
            ended: KernelMutex::default(),
            ids: KernelMutex::new(FIRST + 1),
            watching: OnceLock::new(),
        });
        link.watch(clerk).map_err(unable("watching the server"))?;
        point(Point::ClientOpened);
        let (answer, _) = binding.and_then(|serial| talk.hear(serial)).map_err(failed)?;
        Ok((link, FIRST, answer))
    }

    /// Sends the A-stacks of a binding that is open, and waits until `deadline` for the server to
    /// map them.
    pub(crate) fn bring_astacks(
        &self,
        name: &str,
        id: u16,
        memory: &MemoryFile,
        deadline: Instant,
    ) -> Result<(), BindError> {
        point(Point::ClientBringsStacks);
        let brought =
            self.control.exchange(ClientRequest::Stacks { id }, &[memory.as_fd()], deadline);
        match brought.map_err(|error| self.control.failed(error, name))? {
            (ServerReply::Mapped, _) => Ok(()),
            (ServerReply::Refused(refusal), _) => Err(refused(name, "", refusal)),
            _ => Err(BindError::Protocol { what: "another answer than mapped A-stacks".into() }),
        }
    }

    /// Makes the clerk close the channel when the server ends.
    fn watch(self: &Arc<Self>, clerk: &Clerk) -> io::Result<()> {
        let end = |of_process| {
            Arc::new(ServerEnd {
                link: Arc::downgrade(self),
                control: self.control.clone(),
                of_process,
            })
        };
        let connection = clerk.watch(end(false), Report::HangUp)?;
        let process = self
            .control
            .server
            .as_ref()
            .map(|_| clerk.watch(end(true), Report::WhileReadable))
            .transpose();
        // A watch keeps the connection open, so an incomplete pair of watches is removed.
        let process = process.inspect_err(|_| clerk.forget(connection))?;
        let _ = self.watching.set((connection, process));
        Ok(())
    }

    /// Returns a fresh number for a binding, or `None` if all have been used.
    fn next_binding(&self) -> Option<u16> {
        let mut next = self.ids.lock();
        let id = *next;
        (id < crate::bound::MOST_BINDINGS).then(|| *next += 1).map(|()| id)
    }

    /// Returns a kept segment of at least `len` bytes that the server has mapped.
    pub(crate) fn kept_segment(&self, len: usize) -> Option<Segment> {
        let mut segments = self.segments.lock();
        let fitting =
            segments.kept.iter().enumerate().filter(|(_, segment)| segment.region.len() >= len);
        let best = fitting.min_by_key(|(_, segment)| segment.region.len()).map(|(i, _)| i);
        best.map(|i| segments.kept.swap_remove(i))
    }

    /// Makes a new segment. Blocks the kernel thread until the server has mapped it, for at most as
    /// long as `until` allows and at most [`PATIENCE`]; then the error is `TimedOut`.
    pub(crate) fn new_segment(&self, len: usize, until: WaitLimit<'_>) -> io::Result<Segment> {
        // Rounded up to a power of two where that wastes little, so that later calls can use the
        // segment.
        let len = if len <= 1 << 24 {
            Some(len.next_power_of_two().max(1 << 16))
        } else {
            len.checked_next_multiple_of(1 << 21)
        };
        let len =
            len.filter(|&len| isize::try_from(len).is_ok()).ok_or(io::ErrorKind::OutOfMemory)?;
        let (memory, map) = MemoryFile::create_filled("upcall-segment", len)?;
        let region = Region::new(map).ok_or_else(|| io::Error::other("a read-only segment"))?;
        let deadline = until.ends.unwrap_or_else(patience_ends);
        self.tell_of_dropped(deadline.min(Instant::now() + SHORTLY));
        let number = {
            let mut segments = self.segments.lock();
            let number = segments.free.pop().unwrap_or_else(|| {
                segments.next = segments.next.saturating_add(1);
                segments.next
            });
            if number == u16::MAX {
                return Err(io::Error::other("more than 65534 segments in use at once"));
            }
            number
        };
        let request = ClientRequest::Segment { number, len: len as u64 };
        point(Point::ClientMadeSegment);
        let mut said = false;
        let waits = |now: Instant| now < deadline && !until.is_cancelled();
        let answered =
            in_slices(waits, |ends| self.control.talk(ends.min(deadline))).and_then(|mut talk| {
                talk.deadline = deadline;
                let serial = talk.say(request, &[memory.as_fd()])?;
                said = true;
                point(Point::ClientToldSegment);
                in_slices(waits, |ends| {
                    talk.deadline = ends.min(deadline);
                    talk.hear(serial)
                })
            });
        if answered.is_ok() {
            // Another thread may have held the connection when these were dropped.
            self.tell_of_dropped(deadline.min(Instant::now() + SHORTLY));
        }
        match answered {
            Ok((ServerReply::Mapped, _)) => Ok(Segment { number, region }),
            Ok((ServerReply::Refused(refusal), _)) => {
                self.segments.lock().free.push(number);
                Err(io::Error::other(format!("the server refuses the segment: {refusal}")))
            }
            Ok(_) => Err(io::Error::other("another answer than a mapped segment")),
            Err(NoExchange::TimedOut) => {
                // If the request was sent, the server will still map the segment.
                let mut segments = self.segments.lock();
                if said {
                    segments.overdue.push(number)
                } else {
                    segments.free.push(number)
                }
                Err(io::Error::new(io::ErrorKind::TimedOut, "the server did not map it in time"))
            }
            Err(error) => {
                // The clerk may not have noticed yet.
                if matches!(error, NoExchange::Closed) {
                    self.channel.close(Closed::PeerEnded);
                }
                Err(io::Error::other(format!("the server did not map the segment: {error:?}")))
            }
        }
    }

    /// Takes a segment back, and keeps it or drops it.
    pub(crate) fn give_segment(&self, segment: Segment) {
        let mut segments = self.segments.lock();
        let kept: usize = segments.kept.iter().map(|segment| segment.region.len()).sum();
        if kept + segment.region.len() <= KEPT_SEGMENTS {
            segments.kept.push(segment);
        } else {
            segments.overdue.push(segment.number);
            drop(segments);
            self.tell_of_dropped(Instant::now() + SHORTLY);
        }
    }

    /// Ends a binding. If the server does not respond now, it learns of the end later, at the
    /// latest when the link ends.
    pub(crate) fn unbind(&self, id: u16) {
        point(Point::ClientUnbinds);
        self.ended.lock().push(id);
        self.tell_of_dropped(Instant::now() + SHORTLY);
    }

    /// Sends the server the bindings that have ended and the segments that were dropped. What it
    /// does not take before the deadline is sent on the next occasion.
    fn tell_of_dropped(&self, deadline: Instant) {
        let mut ended = std::mem::take(&mut *self.ended.lock());
        self.tell_of_each(&mut ended, deadline, |id| ClientRequest::Unbind { id });
        self.ended.lock().append(&mut ended);
        let mut overdue = std::mem::take(&mut self.segments.lock().overdue);
        let told = self
            .tell_of_each(&mut overdue, deadline, |number| ClientRequest::DropSegment { number });
        let mut segments = self.segments.lock();
        segments.free.extend(told);
        segments.overdue.append(&mut overdue);
    }

    /// Sends those of `numbers` that the server takes before the deadline. Removes them from
    /// `numbers`, and returns them.
    fn tell_of_each(
        &self,
        numbers: &mut Vec<u16>,
        deadline: Instant,
        request: fn(u16) -> ClientRequest<'static>,
    ) -> Vec<u16> {
        let mut told = Vec::new();
        while let Some(&number) = numbers.last()
            && self.control.notify_by(deadline, request(number), &[]).is_ok()
        {
            told.extend(numbers.pop());
        }
        told
    }
}

impl Drop for DomainLink {
    fn drop(&mut self) {
        let (Ok(clerk), Some((connection, process))) = (Clerk::current(), self.watching.get())
        else {
            return;
        };
        process.iter().for_each(|&key| clerk.forget(key));
        // A thread that learned of the server's end before the clerk did leaves the sweep to the
        // clerk. The connection hangs up at the latest because this link drops it.
        if self.channel.closed() == Some(Closed::PeerEnded) {
            self.control.connection.shut_down();
        } else {
            clerk.forget(*connection);
        }
        // Wakes the threads that wait for late replies, and they end.
        self.channel.close(Closed::Here);
    }
}

/// A segment that both sides have mapped.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) number: u16,
    pub(crate) region: Arc<Region>,
}

#[derive(Default)]
struct Segments {
    kept: Vec<Segment>,
    free: Vec<u16>,
    /// Segments that were dropped, and whose drop the server has not been sent yet.
    overdue: Vec<u16>,
    next: u16,
}

/// Reacts to the end of the server's process or of its connection.
struct ServerEnd {
    link: Weak<DomainLink>,
    control: Arc<ControlConnection>,
    of_process: bool,
}

impl Watched for ServerEnd {
    fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.control.server {
            Some(server) if self.of_process => server.as_fd(),
            _ => self.control.connection.as_fd(),
        }
    }

    fn happened(&self, _hung_up: bool) -> bool {
        if let Some(link) = self.link.upgrade() {
            let said = if self.of_process { None } else { self.control.last_words() };
            link.channel.close(
                said.map_or(Closed::PeerEnded, |refusal| Closed::Refused(refusal.to_string())),
            );
        }
        // The first process that notices removes what the server left in the folder of names.
        let _ = self.control.sweep_after_end();
        false
    }

    fn failed(&self) -> bool {
        if let Some(link) = self.link.upgrade() {
            link.channel.close(Closed::PeerEnded);
        }
        false
    }
}
