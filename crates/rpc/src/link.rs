//! A client's connection to one server domain: the control connection, the channel, and the
//! segments.
//!
//! All bindings between the same two domains share one link (URPC: the channel is made once and
//! used for every later call). A message names its binding in six bits, so a link serves 64
//! bindings in its life; the next binding opens another link. The server answers requests on the
//! control connection in turn. Calls do not use that connection.

mod connect;
mod control;
mod listing;
mod segments;

pub(crate) use self::connect::refused;
use self::connect::{check, connect, unable};
use self::control::{ControlConnection, NoExchange};
pub(crate) use self::control::{PATIENCE, patience_ends};
pub use self::listing::{
    MOST_LISTED, list, list_expecting, list_named, list_named_expecting, tallies, tallies_expecting,
};
pub(crate) use self::segments::Segment;
use self::segments::{SHORTLY, Segments};
use crate::error::BindError;
use crate::places::Places;
use crate::turn::TurnCell;
use crate::wire::{self, ClientRequest, ServerReply};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;
use upcall_directory::clerk::{Clerk, Watched};
use upcall_directory::policy::Policy;
use upcall_os::doorbell::Doorbell;
use upcall_os::fault::{Point, point};
use upcall_os::lock::KernelMutex;
use upcall_os::memory::{Mapping, MemoryFile};
use upcall_os::poll::Report;
use upcall_os::socket::Peer;
use upcall_sched::{CallerChannel, Closed, Domain};
use upcall_shm::channel::{self, Channel};
use upcall_shm::region::Region;
use upcall_shm::station::{NotAStation, PeerStation};

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

/// The link to each domain, by the domain's socket. Each entry has a lock of its own: one binder at
/// a time opens a link, and binders to other domains do not wait for it.
type DomainLinks = HashMap<PathBuf, Arc<TurnCell<Weak<DomainLink>>>>;

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

    /// Ends a binding. If the server does not respond now, it learns of the end later, at the
    /// latest when the link ends.
    pub(crate) fn unbind(&self, id: u16) {
        point(Point::ClientUnbinds);
        self.ended.lock().push(id);
        self.tell_of_dropped(Instant::now() + SHORTLY);
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
