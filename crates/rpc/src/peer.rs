//! One client as its server sees it: the control connection, the channel, the bindings, and the
//! segments.
//!
//! Everything that arrives on the control connection is untrusted. A message that cannot be read,
//! or that breaks a rule, is refused or closes the connection, and has no other effect. When the
//! client ends, its bindings are revoked, its resources are dropped, and its memory is unmapped as
//! soon as no call uses it (LRPC, section 5.3).

use crate::bound::{ClientBinding, ServerBinding};
use crate::endpoint::Endpoint;
use crate::interface::{WantedProcedure, plan};
use crate::reaper::Reaper;
use crate::session::Session;
use crate::shared::ClientState;
use crate::wire::{self, BindRefusal, ClientRequest, ServerReply, ToClient, ToServer};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;
use upcall_directory::clerk::{self, Clerk, Watched};
use upcall_os::atomic::{AtomicBool, Ordering};
use upcall_os::clock;
use upcall_os::doorbell::Doorbell;
use upcall_os::fault::{Point, point};
use upcall_os::lock::KernelMutex;
use upcall_os::memory::{AdoptError, Mapping, MemoryFile};
use upcall_os::poll::Report;
use upcall_os::safe_doorbell::SafeDoorbell;
use upcall_os::socket::{Connection, Peer, SocketMessage};
use upcall_sched::quota::{Holding, Over, QuotaAccount, QuotaKind};
use upcall_sched::server::CallerWake;
use upcall_sched::{Domain, Request, Serve, ServerChannel};
use upcall_shm::channel::{self, Channel};
use upcall_shm::region::Region;
use upcall_shm::station::{self, NotAStation, PeerStation};
use upcall_shm::tally::Arrival;

/// Maximum number of segments of one channel.
const MOST_SEGMENTS: usize = 4096;
/// Maximum size, in bytes, of a segment that is entered into the page table when it arrives.
const ENTER_AT_ONCE: usize = 4 << 20;
/// Maximum size, in bytes, of a segment that the clerk itself unmaps when the client drops it.
const UNMAP_AT_ONCE: usize = 128 << 10;
/// Number of descriptors of a connection: its socket and the client's pidfd. A channel has one more
/// descriptor, and two mappings.
const OF_CONNECTION: usize = 2;
const OF_CHANNEL: (usize, usize) = (1, 2);

/// One client of this server.
pub(crate) struct ClientPeer {
    connection: Connection,
    peer: Peer,
    endpoint: Weak<Endpoint>,
    keeper: Arc<Reaper>,
    shared: Arc<ClientState>,
    channel: OnceLock<Arc<ServerChannel>>,
    ended: AtomicBool,
    watching: KernelMutex<Vec<u64>>,
    account: Arc<QuotaAccount>,
    /// Quota of the connection and of everything opened on it, returned when this client is
    /// dropped.
    held: KernelMutex<Vec<Holding>>,
}

/// The side of the channel that runs requests.
struct Runner {
    shared: Arc<ClientState>,
    peer: Weak<ClientPeer>,
}

impl Serve for Runner {
    fn serve(&self, request: Request<'_>, came: Arrival) {
        crate::server::serve(&self.shared, request, came);
    }

    fn violation(&self, _what: &'static str) {
        // Only the clerk ends a client, so nothing can be added to the client at the same time. It
        // sees that the connection is closed.
        if let Some(peer) = self.peer.upgrade() {
            peer.connection.shut_down();
        }
    }
}

fn resource(what: &str, error: &io::Error) -> BindRefusal {
    BindRefusal::Resource {
        what: what.into(),
        code: error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
    }
}

/// Reports a full descriptor table. The kernel does not say which table is full; nearly always it
/// is the table of this process.
fn table_full(what: &str) -> BindRefusal {
    BindRefusal::Resource { what: what.into(), code: Errno::MFILE.raw_os_error() }
}

fn quota_reached(over: Over) -> BindRefusal {
    BindRefusal::Quota(over.to_string())
}

fn protocol(what: impl ToString) -> BindRefusal {
    BindRefusal::Protocol(what.to_string())
}

/// Sends a client the reason before its connection is closed. Does not wait for a client that does
/// not read.
fn farewell(connection: &Connection, refusal: BindRefusal) {
    if let Ok(bytes) =
        wire::pack(&ToClient { serial: wire::UNASKED, answer: ServerReply::Refused(refusal) })
    {
        let _ = connection.send(&bytes, &[]);
    }
}

/// Refuses a client because this process or this machine lacks a resource.
pub(crate) fn turn_away(connection: &Connection, what: &str, error: &io::Error) {
    farewell(connection, resource(what, error));
}

/// Refuses a client because the server's policy does not admit it.
pub(crate) fn deny(connection: &Connection, why: String) {
    farewell(connection, BindRefusal::Denied(why));
}

impl ClientPeer {
    /// Admits a client: the clerk watches its connection and its process. If that fails, the client
    /// is sent the reason.
    pub(crate) fn welcome(
        connection: Connection,
        peer: Peer,
        account: Arc<QuotaAccount>,
        endpoint: &Arc<Endpoint>,
    ) -> io::Result<Arc<Self>> {
        let held = account.hold(QuotaKind::Descriptors, OF_CONNECTION).map_err(|over| {
            farewell(&connection, quota_reached(over));
            io::Error::from(io::ErrorKind::QuotaExceeded)
        })?;
        let client = Arc::new(Self {
            connection,
            peer,
            endpoint: Arc::downgrade(endpoint),
            keeper: endpoint.keeper().clone(),
            shared: Arc::default(),
            channel: OnceLock::new(),
            ended: AtomicBool::new(false),
            watching: KernelMutex::default(),
            account,
            held: KernelMutex::new(vec![held]),
        });
        match client.watch() {
            Ok(()) => Ok(client),
            Err(error) => {
                turn_away(&client.connection, "watching the client", &error);
                Err(error)
            }
        }
    }

    fn watch(self: &Arc<Self>) -> io::Result<()> {
        let clerk = Clerk::current()?;
        let mut keys =
            vec![clerk.watch(Arc::new(OnConnection(self.clone())), Report::WhileReadable)?];
        if self.peer.pidfd.is_some() {
            let key = clerk.watch(Arc::new(OnEnd(self.clone())), Report::WhileReadable);
            keys.push(key.inspect_err(|_| keys.iter().for_each(|&key| clerk.forget(key)))?);
        }
        *self.watching.lock() = keys;
        Ok(())
    }

    /// The number of the client's process, which all of its connections share and no other process
    /// has.
    pub(crate) fn number(&self) -> u64 {
        self.account.number()
    }

    /// Revokes everything that the client has. Calls that run go on to their end.
    pub(crate) fn end(&self) {
        if self.ended.swap(true, Ordering::SeqCst) {
            return;
        }
        self.revoke_all();
        if let Ok(clerk) = Clerk::current() {
            let keys = std::mem::take(&mut *self.watching.lock());
            keys.iter().for_each(|&key| clerk.forget(key));
        }
        if let Some(endpoint) = self.endpoint.upgrade() {
            endpoint.gone(self);
        }
    }

    /// Ends the client after a failure of this process. Closing the connection also ends the
    /// client's wait for an answer.
    fn fail(&self) -> bool {
        self.connection.shut_down();
        self.end();
        false
    }

    fn revoke_all(&self) {
        if let Some(channel) = self.channel.get() {
            channel.close();
        }
        for bound in self.shared.bindings.iter().filter_map(OnceLock::get) {
            bound.revoke(&self.keeper);
        }
        self.shared.let_segments_go();
    }

    /// Revokes the bindings for which `which` returns `true`, and returns their number.
    pub(crate) fn revoke_some(&self, which: &mut dyn FnMut(&ClientBinding<'_>) -> bool) -> usize {
        let Peer { pid, uid, .. } = self.peer;
        let process = self.peer.process();
        let stands = self
            .shared
            .bindings
            .iter()
            .filter_map(OnceLock::get)
            .filter(|bound| !bound.is_revoked());
        let chosen = stands.filter(|bound| {
            let host = None;
            which(&ClientBinding { name: &bound.entry.name, pid, uid, host, process })
        });
        chosen.inspect(|bound| bound.revoke(&self.keeper)).count()
    }

    /// Reads what the client has sent. Returns `true` if the client is still there.
    fn attend(self: &Arc<Self>) -> bool {
        clerk::hear(&self.connection, |message| self.handle(message))
    }

    fn handle(self: &Arc<Self>, message: SocketMessage) -> bool {
        if self.ended.load(Ordering::SeqCst) {
            return false;
        }
        let there = self.answer(message);
        // A stopping server may have ended the client during this. What was added is removed too.
        if self.ended.load(Ordering::SeqCst) {
            self.revoke_all();
            return false;
        }
        there
    }

    fn answer(self: &Arc<Self>, message: SocketMessage) -> bool {
        let Ok(ToServer { serial, request }) = wire::unpack(&message.bytes) else { return false };
        let descriptors = if message.lost {
            Err(table_full("taking the descriptors of a request"))
        } else {
            Ok(message.descriptors)
        };
        let mut out: Vec<OwnedFd> = Vec::new();
        let answer = match request {
            ClientRequest::Open { version } => {
                descriptors.and_then(|descriptors| self.open(version, descriptors, &mut out))
            }
            // A client that the policy has not admitted has no channel, and receives nothing.
            ClientRequest::Bind { .. }
            | ClientRequest::Stacks { .. }
            | ClientRequest::Segment { .. }
                if self.channel.get().is_none() =>
            {
                Err(protocol("the channel comes first"))
            }
            ClientRequest::Bind { id, name, interface, procedures, stacks } => descriptors
                .and_then(|descriptors| {
                    let brought = (stacks as usize, descriptors);
                    self.bind(id, name, interface, &procedures, brought)
                }),
            ClientRequest::Stacks { id } => {
                descriptors.and_then(|descriptors| self.bring_astacks(id, descriptors))
            }
            ClientRequest::Segment { number, len } => {
                let begun = descriptors
                    .and_then(|descriptors| self.segment(serial, number, len, descriptors));
                return match begun {
                    Ok(()) => true,
                    Err(refusal) => self.reply(serial, ServerReply::Refused(refusal), &[]),
                };
            }
            ClientRequest::List => self.list(&mut out),
            ClientRequest::Tallies => self.tallies(&mut out),
            ClientRequest::OpenLane { number, vp } => {
                // This request has no answer. But a caller on a lane that is not open would wait
                // for ever, so the client is sent the reason and the connection is closed.
                let opened =
                    descriptors.and_then(|descriptors| self.open_lane(number, vp, descriptors));
                return opened.map_err(|refusal| farewell(&self.connection, refusal)).is_ok();
            }
            ClientRequest::Stalled => {
                if let Some(endpoint) = self.endpoint.upgrade() {
                    endpoint.processors().stall_reported();
                }
                return true;
            }
            ClientRequest::Unbind { id } => {
                self.shared.bound(id).iter().for_each(|bound| bound.revoke(&self.keeper));
                return true;
            }
            ClientRequest::DropSegment { number } => {
                let shared = self.shared.clone();
                let is_small =
                    self.shared.segment(number).is_none_or(|region| region.len() <= UNMAP_AT_ONCE);
                let unmap = Box::new(move || {
                    // The lock is released before the memory is unmapped.
                    let gone = shared.segments().remove(&number);
                    drop(gone);
                });
                if is_small {
                    self.account.after(unmap);
                } else {
                    self.account.aside(unmap);
                }
                return true;
            }
        };
        self.reply(serial, answer.unwrap_or_else(ServerReply::Refused), &out)
    }

    /// Answers a request. Returns `false` if the client has ended, or if it does not read its
    /// answers, which breaks the protocol.
    fn reply(&self, serial: u32, answer: ServerReply, descriptors: &[OwnedFd]) -> bool {
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        wire::pack(&ToClient { serial, answer })
            .is_ok_and(|bytes| self.connection.send(&bytes, &descriptors).is_ok())
    }

    fn open(
        self: &Arc<Self>,
        version: u32,
        descriptors: Vec<OwnedFd>,
        out: &mut Vec<OwnedFd>,
    ) -> Result<ServerReply, BindRefusal> {
        if version != wire::VERSION {
            let text = format!(
                "the client speaks version {version}, the server version {}",
                wire::VERSION
            );
            return Err(BindRefusal::Version(text));
        }
        let endpoint = self.endpoint.upgrade().ok_or_else(|| protocol("the server is ending"))?;
        endpoint.admits(&self.peer).map_err(BindRefusal::Denied)?;
        if self.channel.get().is_some() {
            return Err(protocol("a second channel on one connection"));
        }
        let [memory, station] = <[OwnedFd; 2]>::try_from(descriptors)
            .map_err(|_| protocol("a channel comes with two descriptors"))?;
        let unfilled = channel::HEAD_BYTES + station::BYTES;
        let open = self.count(&[(QuotaKind::Descriptors, OF_CHANNEL.0)])?;
        let held = self.count(&[
            (QuotaKind::Mappings, OF_CHANNEL.1),
            (QuotaKind::Bytes, channel::BYTES),
            (QuotaKind::Unfilled, unfilled),
        ])?;
        let memory = MemoryFile::adopt(memory, channel::BYTES).map_err(protocol)?;
        let map = Mapping::shared(&memory)
            .map_err(|error| resource("mapping the channel", &error))?
            .with(held);
        let region = Region::new(map).ok_or_else(|| protocol("a read-only channel"))?;
        let channel = Channel::join(region).map_err(protocol)?;
        let station = PeerStation::join(station).map_err(|error| match error {
            NotAStation::Map(error) => resource("mapping the client's station", &error),
            error => protocol(error),
        })?;
        point(Point::ServerMapped);
        let unable = |error: io::Error| resource("opening the channel", &error);
        let domain = Domain::current().map_err(unable)?;
        let doorbell = Doorbell::new().map_err(unable)?;
        out.push(domain.station().as_fd().try_clone_to_owned().map_err(unable)?);
        out.push(doorbell.as_fd().try_clone_to_owned().map_err(unable)?);
        let processors = endpoint.processors().clone();
        let home =
            processors.next_home().ok_or_else(|| protocol("the server has not begun to serve"))?;
        let runner = Runner { shared: self.shared.clone(), peer: Arc::downgrade(self) };
        let channel = ServerChannel::new(
            channel,
            station,
            processors,
            self.account.owner(),
            (home, doorbell),
            Box::new(runner),
        )
        .map_err(unable)?;
        endpoint.opened(&channel);
        self.held.lock().extend(open);
        let _ = self.channel.set(channel);
        Ok(ServerReply::Opened { home })
    }

    fn open_lane(
        &self,
        number: u16,
        vp: Option<u16>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), BindRefusal> {
        let caller = match (vp, <[OwnedFd; 1]>::try_from(descriptors)) {
            (None, _) => {
                let held = self.count(&[(QuotaKind::Unfilled, channel::LANE_BYTES)])?;
                self.held.lock().extend(held);
                CallerWake::KernelThread
            }
            (Some(vp), Ok([doorbell])) => {
                let held = self.count(&[
                    (QuotaKind::Descriptors, 1),
                    (QuotaKind::Unfilled, channel::LANE_BYTES),
                ])?;
                let doorbell = Doorbell::adopt(doorbell).map_err(protocol)?;
                let safe_doorbell = SafeDoorbell::current()
                    .map_err(|error| resource("what rings the doorbells of clients", &error))?;
                self.held.lock().extend(held);
                CallerWake::Processor { vp, doorbell, safe_doorbell }
            }
            (Some(_), Err(_)) => {
                return Err(protocol("a virtual processor's lane comes with one doorbell"));
            }
        };
        let channel = self.channel.get().ok_or_else(|| protocol("the channel comes first"))?;
        point(Point::ServerOpensLane);
        channel.open_lane(number, caller).map_err(protocol)
    }

    fn bind(
        &self,
        id: u16,
        name: &str,
        interface: &str,
        wanted: &[WantedProcedure<'_>],
        (stacks, descriptors): (usize, Vec<OwnedFd>),
    ) -> Result<ServerReply, BindRefusal> {
        let endpoint = self.endpoint.upgrade().ok_or_else(|| protocol("the server is ending"))?;
        endpoint.admits(&self.peer).map_err(BindRefusal::Denied)?;
        let (entry, procedures) = endpoint.exports().bind(name, interface, wanted)?;
        point(Point::ServerBinds);
        let cell = self
            .shared
            .bindings
            .get(usize::from(id))
            .ok_or_else(|| protocol("a binding number out of range"))?;
        if cell.get().is_some() {
            return Err(protocol("a binding number used twice"));
        }
        let plan = plan(&procedures);
        let astacks = match stacks >= plan.bytes() {
            true => self.map_astacks(plan.bytes(), descriptors)?,
            false => None,
        };
        let tally =
            endpoint.tallies().open(name, interface, self.peer.pid, clock::stamp(Instant::now()));
        let bound =
            ServerBinding::new(entry, tally, Session::new(self.account.clone()), plan, astacks);
        // Only the clerk binds, so the cell is still empty.
        let _ = cell.set(bound);
        Ok(ServerReply::Bound { procedures })
    }

    /// Takes the A-stacks of a binding whose list needs more than the request for the binding
    /// brought.
    fn bring_astacks(
        &self,
        id: u16,
        descriptors: Vec<OwnedFd>,
    ) -> Result<ServerReply, BindRefusal> {
        let bound = self
            .shared
            .bound(id)
            .ok_or_else(|| protocol("A-stacks for a binding that does not stand"))?;
        if bound.is_revoked() {
            // The client itself or the server has ended the binding in the meantime.
            return Err(BindRefusal::Denied("the binding was taken back".into()));
        }
        if bound.plan.bytes() == 0 || bound.astacks.get().is_some() {
            return Err(protocol("A-stacks for a binding that has its own already, or none"));
        }
        point(Point::ServerMapsStacks);
        let astacks = self.map_astacks(bound.plan.bytes(), descriptors)?;
        astacks.into_iter().for_each(|astacks| drop(bound.astacks.set(astacks)));
        Ok(ServerReply::Mapped)
    }

    /// Maps this many bytes for A-stacks from the memory that the client has sent.
    fn map_astacks(
        &self,
        bytes: usize,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Option<Arc<Region>>, BindRefusal> {
        if bytes == 0 {
            return Ok(None);
        }
        let fd =
            descriptors.into_iter().next().ok_or_else(|| protocol("A-stacks without memory"))?;
        let memory = MemoryFile::adopt(fd, bytes).map_err(protocol)?;
        let held = self.count(&[
            (QuotaKind::Mappings, 1),
            (QuotaKind::Bytes, bytes),
            (QuotaKind::Unfilled, bytes),
        ])?;
        let map = Mapping::shared(&memory)
            .map_err(|error| resource("mapping the A-stacks", &error))?
            .with(held);
        Ok(Some(Region::new(map).ok_or_else(|| protocol("read-only A-stacks"))?))
    }

    /// Starts to map a segment, and answers the request when that is done. The kernel can take as
    /// long for this as the client's own operations on the file last, so the clerk does not map it
    /// itself.
    fn segment(
        self: &Arc<Self>,
        serial: u32,
        number: u16,
        len: u64,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), BindRefusal> {
        let len = usize::try_from(len).map_err(protocol)?;
        let fd =
            descriptors.into_iter().next().ok_or_else(|| protocol("a segment without memory"))?;
        let open = self.count(&[(QuotaKind::Descriptors, 1)])?;
        let held = self.count(&[(QuotaKind::Mappings, 1), (QuotaKind::Bytes, len)])?;
        point(Point::ServerMapsSegment);
        let client = self.clone();
        // The descriptor may have taken the reserve entry of the table.
        let endpoint = self.endpoint.clone();
        let loan = endpoint.upgrade().map(|endpoint| endpoint.reserve.lend());
        self.account.aside(Box::new(move || {
            let mapped =
                catch_unwind(AssertUnwindSafe(|| client.map_segment(number, len, fd, held)));
            drop(open);
            if let (Some(endpoint), Some(loan)) = (endpoint.upgrade(), loan) {
                endpoint.reserve.give_back(loan);
            }
            let answered = mapped.is_ok_and(|answer| {
                client.reply(serial, answer.unwrap_or_else(ServerReply::Refused), &[])
            });
            if !answered {
                client.connection.shut_down();
            }
        }));
        Ok(())
    }

    fn map_segment(
        &self,
        number: u16,
        len: usize,
        fd: OwnedFd,
        held: Vec<Holding>,
    ) -> Result<ServerReply, BindRefusal> {
        let map = MemoryFile::adopt_filled(fd, len).map_err(|error| match error {
            AdoptError::Kernel(error) if error.raw_os_error().is_some() => {
                resource("mapping the segment", &error)
            }
            error => protocol(error),
        })?;
        let map = map.with(held);
        if len <= ENTER_AT_ONCE {
            map.enter().map_err(|error| resource("entering the segment", &error))?;
        }
        let region = Region::new(map).ok_or_else(|| protocol("a read-only segment"))?;
        let mut segments = self.shared.segments();
        if number == 0 || segments.contains_key(&number) || segments.len() >= MOST_SEGMENTS {
            return Err(protocol(
                "a segment's number used twice, or more segments than a channel may have",
            ));
        }
        let no_memory = |_| resource("noting the segment", &Errno::NOMEM.into());
        segments.try_reserve(1).map_err(no_memory)?;
        segments.insert(number, region);
        drop(segments);
        // The client may have ended during this. What was added is removed too.
        if self.ended.load(Ordering::SeqCst) {
            self.shared.let_segments_go();
        }
        Ok(ServerReply::Mapped)
    }

    /// Charges the client for what it is about to have. If the client then fails to deliver, the
    /// caller drops the returned holdings, and the charge ends.
    fn count(&self, what: &[(QuotaKind, usize)]) -> Result<Vec<Holding>, BindRefusal> {
        what.iter()
            .map(|&(kind, amount)| self.account.hold(kind, amount).map_err(quota_reached))
            .collect()
    }

    fn list(&self, out: &mut Vec<OwnedFd>) -> Result<ServerReply, BindRefusal> {
        let endpoint = self.endpoint.upgrade().ok_or_else(|| protocol("the server is ending"))?;
        endpoint.admits(&self.peer).map_err(BindRefusal::Denied)?;
        let unable = |error: io::Error| resource("the list of exports", &error);
        let bytes = wire::pack(&endpoint.exports().list()).map_err(unable)?;
        let file = MemoryFile::frozen("upcall-exports", &bytes).map_err(unable)?;
        out.push(file.as_fd().try_clone_to_owned().map_err(unable)?);
        Ok(ServerReply::Exports)
    }

    fn tallies(&self, out: &mut Vec<OwnedFd>) -> Result<ServerReply, BindRefusal> {
        let endpoint = self.endpoint.upgrade().ok_or_else(|| protocol("the server is ending"))?;
        endpoint.admits(&self.peer).map_err(BindRefusal::Denied)?;
        let unable = |error: io::Error| resource("the tallies", &error);
        out.push(endpoint.tallies().as_fd().try_clone_to_owned().map_err(unable)?);
        Ok(ServerReply::Tallies)
    }
}

struct OnConnection(Arc<ClientPeer>);

impl Watched for OnConnection {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.connection.as_fd()
    }

    fn happened(&self, _hung_up: bool) -> bool {
        // Counts the reserve entry as free. Most requests bring a descriptor that is closed again
        // at once, and a full table must not keep a bound client from making them.
        let there = match self.0.endpoint.upgrade() {
            Some(endpoint) => endpoint.reserve.spend(|| self.0.attend()),
            None => self.0.attend(),
        };
        if !there {
            self.0.end();
        }
        there
    }

    fn failed(&self) -> bool {
        self.0.fail()
    }
}

struct OnEnd(Arc<ClientPeer>);

impl Watched for OnEnd {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.peer.pidfd.as_ref().map_or_else(|| self.0.connection.as_fd(), AsFd::as_fd)
    }

    fn happened(&self, _hung_up: bool) -> bool {
        self.0.end();
        false
    }

    fn failed(&self) -> bool {
        self.0.fail()
    }
}
