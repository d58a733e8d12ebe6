//! A domain's endpoint: its socket in the folder of names, its exports, and the server that runs
//! them.

use crate::bound::ClientBinding;
use crate::error::ServeError;
use crate::exports::{Export, ExportEntry, Exports};
use crate::names;
use crate::network::doors::NetworkServer;
use crate::network::made;
use crate::peer::{self, ClientPeer};
use crate::reaper::Reaper;
use crate::session::let_go;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::{Arc, Weak, mpsc};
use std::time::{Duration, Instant};
use upcall_directory::clerk::{self, Clerk, TURN, Watched};
use upcall_directory::names::Group;
use upcall_directory::policy;
use upcall_os::fault::{Point, point};
use upcall_os::lock::KernelMutex;
use upcall_os::poll::Report;
use upcall_os::socket::{Connection, Listener, Peer, Reserve};
use upcall_sched::quota::{QuotaLedger, Quotas};
use upcall_sched::server::CallsUnderWay;
use upcall_sched::{Pacing, PollingIdle, ServerChannel};
use upcall_shm::tally::DomainCallStats;

/// Decides which clients may bind; see [`Server::policy`].
pub type BindPolicy = Box<policy::Policy>;

/// Maximum time for which a domain waits for the clerk to release a client that has ended, in
/// seconds.
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// Maximum number of connections of one process. A process needs one connection for each 64
/// bindings.
const MOST_CONNECTIONS: usize = 64;

/// The part of a server that admits clients.
pub(crate) struct Endpoint {
    path: PathBuf,
    pub(crate) reserve: Reserve,
    exports: Exports,
    policy: BindPolicy,
    processors: PollingIdle,
    ledger: Arc<QuotaLedger>,
    tallies: Arc<DomainCallStats>,
    clients: KernelMutex<Clients>,
    /// For each channel, the calls that may still run.
    calls: KernelMutex<Vec<CallsUnderWay>>,
    keeper: Arc<Reaper>,
    doors: NetworkServer,
}

#[derive(Default)]
struct Clients {
    all: Vec<Arc<ClientPeer>>,
    /// Set when no more clients are admitted.
    closed: bool,
}

impl Endpoint {
    pub(crate) fn exports(&self) -> &Exports {
        &self.exports
    }

    pub(crate) fn processors(&self) -> &PollingIdle {
        &self.processors
    }

    pub(crate) fn tallies(&self) -> &Arc<DomainCallStats> {
        &self.tallies
    }

    pub(crate) fn ledger(&self) -> &Arc<QuotaLedger> {
        &self.ledger
    }

    pub(crate) fn keeper(&self) -> &Arc<Reaper> {
        &self.keeper
    }

    /// Where clients on other machines connect.
    pub(crate) fn doors(&self) -> &NetworkServer {
        &self.doors
    }

    /// Records a client's channel.
    pub(crate) fn opened(&self, channel: &ServerChannel) {
        let mut calls = self.calls.lock();
        calls.retain(CallsUnderWay::may_run);
        calls.push(channel.calls());
    }

    /// Returns `true` if a call may still run.
    fn calls_run(&self) -> bool {
        self.calls.lock().iter().any(CallsUnderWay::may_run) || self.doors.calls_run()
    }

    /// Asks the policy, from one thread of the process at a time. Policies in C rely on that, and
    /// so do policies that read something and then change it.
    pub(crate) fn admits(&self, peer: &Peer) -> Result<(), String> {
        static ASKING: KernelMutex<()> = KernelMutex::new(());
        let _asking = ASKING.lock();
        (self.policy)(peer)
    }

    pub(crate) fn gone(&self, client: &ClientPeer) {
        let mut clients = self.clients.lock();
        let at = clients.all.iter().position(|other| std::ptr::eq(&**other, client));
        let gone = at.map(|at| clients.all.swap_remove(at));
        drop(clients);
        drop(gone);
    }

    fn connections_of(&self, client: u64) -> usize {
        self.clients.lock().all.iter().filter(|other| other.number() == client).count()
    }

    /// Accepts the next connection with the reserve entry of the descriptor table, sends the
    /// reason, and closes it. Returns `true` if there was a connection and an entry for it.
    fn turn_one_away(&self, listener: &Listener, error: &io::Error) -> bool {
        self.reserve.spend(|| match listener.accept() {
            Ok(Some(connection)) => {
                peer::turn_away(&connection, "taking a connection", error);
                true
            }
            _ => false,
        })
    }

    fn admit(self: &Arc<Self>, connection: Connection) {
        point(Point::ServerAccepted);
        let peer = match connection.peer() {
            Ok(peer) => peer,
            // Most likely the client has ended, and does not read this.
            Err(error) => return peer::turn_away(&connection, "knowing the client", &error),
        };
        let account = self.ledger.account(peer.process(), Some(peer.uid));
        if self.connections_of(account.number()) >= MOST_CONNECTIONS {
            return peer::deny(
                &connection,
                format!("this process has {MOST_CONNECTIONS} connections to it already"),
            );
        }
        if let Ok(client) = ClientPeer::welcome(connection, peer, account, self) {
            let mut clients = self.clients.lock();
            if !clients.closed {
                return clients.all.push(client);
            }
            drop(clients);
            client.end();
        }
    }

    fn revoke(&self, which: &mut dyn FnMut(&ClientBinding<'_>) -> bool) -> usize {
        let clients = self.clients.lock().all.clone();
        let here: usize = clients.iter().map(|client| client.revoke_some(which)).sum();
        here + self.doors.revoke(which)
    }

    /// Ends all clients, and admits no more.
    fn end_clients(&self) {
        let all = {
            let mut clients = self.clients.lock();
            clients.closed = true;
            std::mem::take(&mut clients.all)
        };
        all.iter().for_each(|client| client.end());
    }
}

/// The listening socket. Dropping this closes it.
struct EndpointListener {
    endpoint: Arc<Endpoint>,
    listener: Listener,
}

impl Watched for EndpointListener {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn happened(&self, _hung_up: bool) -> bool {
        let endpoint = &self.endpoint;
        let full = |error: &_| endpoint.turn_one_away(&self.listener, error);
        clerk::let_in(&self.listener, TURN, full, |connection| endpoint.admit(connection));
        true
    }

    /// Other clients can still be admitted.
    fn failed(&self) -> bool {
        true
    }
}

/// A server: interfaces under names, and virtual processors that run their calls.
///
/// ```no_run
/// # fn export() -> upcall_rpc::Export { unimplemented!() }
/// upcall_rpc::Server::new().export("files", export()).run()?;
/// # Ok::<(), upcall_rpc::ServeError>(())
/// ```
pub struct Server {
    exports: Vec<(String, Export)>,
    policy: BindPolicy,
    mode: Option<u32>,
    group: Option<Group>,
    pacing: Pacing,
    processors: usize,
    spare_processors: usize,
    quotas: Quotas,
    stack_size: Option<usize>,
    listens: Vec<String>,
}

/// Maximum number of spare processors of a server by default. With its one processor, up to 16
/// handlers block at once.
const SPARES: usize = 15;

impl Default for Server {
    fn default() -> Self {
        Self {
            exports: Vec::new(),
            policy: Box::new(policy::own_user()),
            mode: None,
            group: None,
            pacing: Pacing::Adaptive,
            processors: 1,
            spare_processors: SPARES,
            quotas: Quotas::default(),
            stack_size: None,
            listens: Vec::new(),
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("exports", &self.exports)
            .field("pacing", &self.pacing)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Makes a server without exports, for clients of the same user, with one virtual processor and
    /// adaptive pacing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Exports an interface under a name: at most 64 ASCII letters, digits, dots, underscores and
    /// hyphens.
    #[must_use]
    pub fn export(mut self, name: &str, export: Export) -> Self {
        self.exports.push((name.into(), export));
        self
    }

    /// Sets the policy that decides which clients may bind; the default is [`policy::own_user`].
    /// `upcall::policy` has other ready-made policies. An admitted client may call everything that
    /// this server exports, and nothing else. The kernel reports who the client is.
    ///
    /// Clients of other users also need the right to connect to the server's socket, which
    /// [`Server::mode`] and [`Server::group`] grant, and a folder of names that both sides use.
    ///
    /// The server asks the policy when a client on this machine connects, and again for each
    /// binding: a client that the policy no longer admits gets no further binding.
    /// [`Running::revoke`] ends the bindings that it has.
    ///
    /// The server also asks the policy for `upcall ls`. The policy runs on threads of this library
    /// with 256 KiB of stack: on the clerk's thread for clients on this machine, and on one thread
    /// for all clients that connect by TCP to an address. Two threads never run it at once, nor
    /// beside the policy of another server of this process. So a policy must not block: new
    /// clients, and clients that need the clerk, would wait.
    #[must_use]
    pub fn policy(
        mut self,
        policy: impl Fn(&Peer) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.policy = Box::new(policy);
        self
    }

    /// Sets the mode of the server's socket; the default is 0600. A client needs the right to write
    /// in order to connect: 0660 admits the members of the socket's group, 0666 every user. The
    /// policy decides after that. The umask of this process has no effect.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Sets the group of the server's socket, by number or by name; the default is this process's
    /// own group. With [`Server::mode`] 0660 the members of the group can connect. A user other
    /// than root can set only a group that it belongs to; [`Server::run`] and [`Server::start`]
    /// refuse others.
    #[must_use]
    pub fn group(mut self, group: impl Into<Group>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Sets what the virtual processors do while there are no calls.
    #[must_use]
    pub fn pacing(mut self, pacing: Pacing) -> Self {
        self.pacing = pacing;
        self
    }

    /// Sets the number of virtual processors that run calls while no handler blocks: from 1, the
    /// default, to 32. All servers and callers of a process share 32 virtual processors; the server
    /// does not start if fewer than `count` are left.
    #[must_use]
    pub fn processors(mut self, count: usize) -> Self {
        self.processors = count.clamp(1, upcall_sched::domain::MOST_PROCESSORS);
        self
    }

    /// Sets the maximum number of spare virtual processors, in place of 15. Spares take over while
    /// handlers block.
    ///
    /// A handler blocks its virtual processor while it sleeps, or waits in the kernel or for a lock
    /// of `std`. If a call waits for that virtual processor for 0.5 ms, another one takes over
    /// after 0.5 ms more, until the handler returns. For this the server starts further kernel
    /// threads, one after the other, and keeps them until it ends. Handlers of a server
    /// therefore run concurrently, even if the server has only one virtual processor.
    ///
    /// A client with as many calls under way as virtual processors are left gets no more of them:
    /// one client blocks at most half of them. While all are blocked, calls wait.
    ///
    /// Spares do not take over for a handler that computes: only other virtual processors of the
    /// server do ([`Server::processors`]).
    ///
    /// With 0 the server starts no further kernel threads, and calls wait for a handler that blocks
    /// the only virtual processor. Calls also wait if the kernel refuses `membarrier` or another
    /// thread, or if only 8 of the process's 32 virtual processors are left. All this holds for
    /// calls by TCP too; all of them together count as one client.
    #[must_use]
    pub fn spare_processors(mut self, most: usize) -> Self {
        self.spare_processors = most;
        self
    }

    /// Sets the quotas of clients in this server, in place of the defaults.
    #[must_use]
    pub fn quotas(mut self, quotas: Quotas) -> Self {
        self.quotas = quotas;
        self
    }

    /// Sets the size, in bytes, of the stacks on which calls run, in place of 1 MiB, and of the
    /// stacks of threads that calls spawn, in place of 64 KiB. Only the pages that a call touches
    /// take memory, and pages beyond 64 KiB are returned soon after. The server has as many stacks
    /// as calls have run at once.
    #[must_use]
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_size = Some(bytes);
        self
    }

    /// Also serves clients that connect by TCP, and bind `tcp://HOST:PORT/NAME`. `address` is
    /// `HOST:PORT`. With port 0 the kernel chooses a port, which [`Running::addresses`] returns.
    ///
    /// The policy also decides on these clients. For a client within this machine (127.0.0.1 or
    /// ::1) the kernel reports the user at the other end of its connection, but not the process, so
    /// `pid` is 0. A client on another host has to prove a host that is trusted here
    /// (`upcall host trust`), and all that it sends is encrypted: the policy sees
    /// [`Peer::host`]. The default policy admits such hosts.
    ///
    /// Beyond this machine, this host needs an identity (`upcall host init`). Without one
    /// [`Server::run`] and [`Server::start`] refuse the address.
    #[must_use]
    pub fn listen(mut self, address: &str) -> Self {
        self.listens.push(address.into());
        self
    }

    /// Serves on the calling kernel thread, and on more if [`Server::processors`] says so, for
    /// ever. Waits for at most 5 s if a killed process that is still ending has one of the names.
    ///
    /// # Errors
    /// See [`ServeError`]. Errors occur only before all names are entered; the names that were
    /// entered before the error are then removed.
    ///
    /// # Panics
    /// On a virtual processor.
    pub fn run(self) -> Result<(), ServeError> {
        self.open()?.serve(|| {})
    }

    /// Serves on kernel threads of its own until the returned value is stopped or dropped. Clients
    /// can bind as soon as this returns. Waits like [`Server::run`].
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn start(self) -> Result<Running, ServeError> {
        let open = self.open()?;
        let (keeper, endpoint) = (open.endpoint.keeper.clone(), Arc::downgrade(&open.endpoint));
        let (ready, is_ready) = mpsc::channel();
        let thread = std::thread::Builder::new().name("upcall-server".into()).spawn(move || {
            let said = ready.clone();
            if let Err(error) = open.serve(move || drop(said.send(Ok(())))) {
                drop(ready.send(Err(error)));
            }
        });
        let thread = thread
            .map_err(|error| ServeError::Resource { what: "the server's thread".into(), error })?;
        match is_ready.recv() {
            Ok(Ok(())) => Ok(Running { keeper, endpoint, thread: Some(thread) }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(ServeError::Resource {
                what: "the server's thread".into(),
                error: io::Error::other("it ended at once"),
            }),
        }
    }

    fn open(mut self) -> Result<OpenServer, ServeError> {
        let procedures = self.exports.iter().flat_map(|(_, export)| &*export.interface.procedures);
        let values = procedures.map(|procedure| procedure.limits.values).max().unwrap_or(0);
        self.quotas = self.quotas.with_values(values);
        let unable = |what: &'static str| {
            move |error: io::Error| ServeError::Resource { what: what.into(), error }
        };
        let doors = NetworkServer::new(&self.listens)?;
        let group = self
            .group
            .as_ref()
            .map(Group::number)
            .transpose()
            .map_err(unable("the group of its socket"))?;
        let (path, listener) =
            names::listen_as(names::Whose::Domain, names::Access { mode: self.mode, group })?;
        let opened = self.open_at(path.clone(), listener, doors);
        opened.inspect_err(|_| drop(std::fs::remove_file(&path)))
    }

    /// Makes the endpoint and the listener of this socket.
    fn open_at(
        self,
        path: PathBuf,
        listener: Listener,
        doors: NetworkServer,
    ) -> Result<OpenServer, ServeError> {
        let unable = |what: &'static str| {
            move |error: io::Error| ServeError::Resource { what: what.into(), error }
        };
        let processors = PollingIdle::new(self.processors, self.pacing)
            .map_err(unable("the virtual processors"))?;
        let scheduler = upcall_thread::Processors::new()
            .count(self.processors)
            .most_work(self.quotas.calls / self.processors);
        let scheduler = match self.stack_size {
            Some(bytes) => scheduler.stack_size(bytes).work_stack_size(bytes),
            None => scheduler,
        };
        processors
            .enable_takeover(self.spare_processors, self.quotas.calls, scheduler.clone())
            .map_err(unable("the timer of the virtual processors"))?;
        let tallies =
            DomainCallStats::new(self.processors).map_err(unable("the memory of the tallies"))?;
        made::show_in(&tallies);
        let endpoint = Arc::new(Endpoint {
            path,
            reserve: Reserve::new().map_err(unable("a descriptor in reserve"))?,
            exports: Exports::default(),
            policy: self.policy,
            processors,
            ledger: QuotaLedger::new(self.quotas, tallies.holdings()),
            tallies,
            clients: KernelMutex::default(),
            calls: KernelMutex::default(),
            keeper: Arc::default(),
            doors,
        });
        let clerk = Clerk::current().map_err(unable("the clerk's thread"))?;
        let door = Arc::new(EndpointListener { endpoint: endpoint.clone(), listener });
        let key =
            clerk.watch(door, Report::WhileReadable).map_err(unable("the domain's socket"))?;
        let stalls = clerk
            .watch(Arc::new(StallTimer(endpoint.processors.clone())), Report::EachRing)
            .map_err(unable("the timer of the virtual processors"));
        let stalls = stalls.inspect_err(|_| clerk.forget(key))?;
        Ok(OpenServer {
            endpoint,
            key,
            stalls,
            names: Vec::new(),
            past: Vec::new(),
            exports: self.exports,
            scheduler,
            closed: false,
        })
    }
}

/// Makes the clerk check for stalled virtual processors.
struct StallTimer(PollingIdle);

impl Watched for StallTimer {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.stall_timer().unwrap_or_else(|| unreachable!("takeover is enabled before"))
    }

    fn happened(&self, _hung_up: bool) -> bool {
        self.0.check_stalls();
        true
    }

    fn failed(&self) -> bool {
        true
    }
}

/// A server that admits clients. Dropping it closes its socket and ends its clients' bindings.
struct OpenServer {
    endpoint: Arc<Endpoint>,
    /// The clerk's keys for the listener and for the timer of stalled processors.
    key: u64,
    stalls: u64,
    /// Names that are entered in the folder.
    names: Vec<String>,
    /// Exports whose names were removed. They are dropped at the very end.
    past: Vec<Arc<ExportEntry>>,
    /// Exports that are still to be entered.
    exports: Vec<(String, Export)>,
    scheduler: upcall_thread::Processors,
    closed: bool,
}

impl OpenServer {
    /// Starts to serve, enters the names, calls `ready`, and serves until it is stopped and its
    /// last call has ended.
    fn serve(mut self, ready: impl FnOnce()) -> Result<(), ServeError> {
        let processors = self.scheduler.clone().idle(Arc::new(self.endpoint.processors.clone()));
        let unable = |error| ServeError::Resource { what: "the virtual processors".into(), error };
        let served = processors.run(|| {
            let begun = self.endpoint.processors.check().map_err(unable);
            let entered = begun
                .and_then(|()| self.enter())
                .and_then(|()| self.endpoint.doors.open(&self.endpoint));
            if entered.is_ok() {
                ready();
                self.endpoint.keeper.keep();
            }
            self.close();
            self.endpoint.keeper.finish(|| self.endpoint.calls_run());
            self.endpoint.processors.close_queue();
            entered
        });
        served.map_err(unable)?
    }

    fn enter(&mut self) -> Result<(), ServeError> {
        for (name, export) in std::mem::take(&mut self.exports) {
            self.endpoint.exports.add(&name, export)?;
            point(Point::ServerEntersName);
            names::enter(&name, &self.endpoint.path)?;
            point(Point::ServerEntered);
            self.names.push(name);
        }
        Ok(())
    }

    fn close(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        for name in &self.names {
            names::leave(name, &self.endpoint.path);
        }
        self.past.extend(self.endpoint.exports.remove_all());
        let _ = std::fs::remove_file(&self.endpoint.path);
        if let Ok(clerk) = Clerk::current() {
            clerk.forget(self.key);
        }
        self.endpoint.doors.shut();
        self.endpoint.end_clients();
    }
}

impl Drop for OpenServer {
    fn drop(&mut self) {
        self.close();
        if let Ok(clerk) = Clerk::current() {
            clerk.forget(self.stalls);
        }
        self.endpoint.processors.end_spares();
        self.endpoint.keeper.leave();
        self.past.drain(..).for_each(let_go_alone);
    }
}

/// Drops an export on this thread rather than on the thread that used it last, because the drop may
/// block.
fn let_go_alone(entry: Arc<ExportEntry>) {
    let start = Instant::now();
    // The clerk may still be working on a client of this export.
    while Arc::strong_count(&entry) > 1 && start.elapsed() < LONGEST_LOOK {
        std::thread::sleep(Duration::from_micros(100));
    }
    let_go(entry);
}

/// A server that runs on kernel threads of its own. Dropping it stops it, and waits like
/// [`Running::stop`].
pub struct Running {
    keeper: Arc<Reaper>,
    endpoint: Weak<Endpoint>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Running")
    }
}

impl Running {
    /// Ends the server. As soon as its first virtual processor switches threads, the names are
    /// removed and the channels closed, so that the calls of its clients fail.
    ///
    /// # Blocking
    /// Blocks the kernel thread until the calls that run, and the drops of its clients' objects,
    /// have ended. That has no bound if one of them waits for an event that does not happen. A
    /// procedure of this server that calls this blocks for ever.
    pub fn stop(mut self) {
        self.end();
    }

    /// The addresses at which the server listens, in the order of the calls of [`Server::listen`].
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.endpoint
            .upgrade()
            .map_or_else(Vec::new, |endpoint| endpoint.doors.addresses().to_vec())
    }

    /// Revokes all bindings for which `which` returns `true`, and returns their number. New calls
    /// through a revoked binding fail at once with
    /// [`CallError::Revoked`](crate::CallError::Revoked). Calls that run go on to their end and are
    /// answered. The objects that the client holds through the binding are dropped. The client's
    /// other bindings stay, and it may bind again unless the policy refuses it. Blocks no longer
    /// than `which` does.
    pub fn revoke(&self, mut which: impl FnMut(&ClientBinding<'_>) -> bool) -> usize {
        self.endpoint.upgrade().map_or(0, |endpoint| endpoint.revoke(&mut which))
    }

    fn end(&mut self) {
        self.keeper.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}
