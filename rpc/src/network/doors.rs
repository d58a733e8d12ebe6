//! Where clients on other machines come in, who is let in, and where their calls run.
//!
//! Kernel threads read what clients send; the calls run where the server's procedures run, each on a thread of its scheduler. One thread there, the porter, takes them
//! from the readers and starts those threads, as many at once as the server's ceiling of calls.

use super::WINDOW;
use super::guest::{Guest, Identity, Job};
use crate::ceilings::Ceilings;
use crate::endpoint::Endpoint;
use crate::error::ServeError;
use crate::server::ClientBinding;
use crate::wire::{self, Refusal};
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use upcall_os::loopback;
use upcall_os::socket::Peer;
use upcall_thread::{Builder, Semaphore, mpsc};
use upcall_transfer::clerk::STACK;
use upcall_transfer::network::frame::{Preamble, VERSION};
use upcall_transfer::network::{Block, Door, Head, Kind, Wire};

/// The most connections at once; more are turned away.
const MOST_GUESTS: usize = 256;
/// So long a client may take to say who it is.
const GREETING: Duration = Duration::from_secs(5);
/// So long a client that is turned away is given to read why.
const PARTING: Duration = Duration::from_secs(1);

/// An address that a server is to listen at.
#[derive(Clone, Debug)]
pub(crate) struct Listen {
    pub(crate) address: String,
    /// Whether it must lie within this machine, and the policy is asked.
    pub(crate) guarded: bool,
}

/// See the module.
pub(crate) struct Doors {
    doors: Mutex<Vec<(Door, bool)>>,
    addresses: Vec<SocketAddr>,
    guests: Mutex<Guests>,
    /// Connections, those that have not said yet who they are included.
    connections: Arc<AtomicUsize>,
    porter: OnceLock<Mutex<mpsc::Sender<Option<Work>>>>,
    room: Arc<Semaphore>,
    under_way: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Guests {
    all: Vec<Arc<Guest>>,
    closed: bool,
}

/// A call, counted as long as it is here.
struct Work {
    job: Job,
    _counted: Counted,
}

struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The right to run, given back however the call ends.
struct Place(Arc<Semaphore>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.release(1);
    }
}

impl Doors {
    /// Listens, but lets nobody in yet.
    pub(crate) fn new(wanted: &[Listen], ceilings: &Ceilings) -> Result<Self, ServeError> {
        let mut doors = Vec::new();
        for Listen { address, guarded } in wanted {
            let unable = |error| ServeError::Resource { what: format!("listening at {address}"), error };
            let no_address = || unable(io::Error::new(io::ErrorKind::AddrNotAvailable, "it is no address: HOST:PORT"));
            let at = address.to_socket_addrs().map_err(unable)?.next().ok_or_else(no_address)?;
            if *guarded && !at.ip().to_canonical().is_loopback() {
                return Err(ServeError::Unprotected { address: address.clone() });
            }
            doors.push((Door::new(at).map_err(unable)?, *guarded));
        }
        Ok(Self {
            addresses: doors.iter().map(|(door, _)| door.address()).collect(),
            doors: Mutex::new(doors),
            guests: Mutex::default(),
            connections: Arc::default(),
            porter: OnceLock::new(),
            room: Arc::new(Semaphore::new(ceilings.calls.max(1))),
            under_way: Arc::default(),
        })
    }

    /// Where they are, in the order in which they were asked for.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Lets clients in. On a thread of the server, where their calls are to run.
    pub(crate) fn open(&self, endpoint: &Arc<Endpoint>) -> Result<(), ServeError> {
        let doors = locked(&self.doors);
        if doors.is_empty() {
            return Ok(());
        }
        let unable = |error| ServeError::Resource { what: "threads for the network".into(), error };
        let (sender, receiver) = mpsc::channel();
        let room = self.room.clone();
        let porter = Builder::new().name("upcall-net-porter").spawn(move || carry(&receiver, &room));
        drop(porter.map_err(unable)?);
        let _ = self.porter.set(Mutex::new(sender));
        for (door, guarded) in &*doors {
            let (endpoint, guarded) = (Arc::downgrade(endpoint), *guarded);
            let welcome = move |stream| {
                if let Some(endpoint) = endpoint.upgrade() {
                    welcome(&endpoint, stream, guarded);
                }
            };
            door.open(welcome).map_err(unable)?;
        }
        Ok(())
    }

    /// Lets nobody in any more, and ends who is in.
    pub(crate) fn shut(&self) {
        locked(&self.doors).clear();
        let all = {
            let mut guests = locked(&self.guests);
            guests.closed = true;
            std::mem::take(&mut guests.all)
        };
        all.iter().for_each(|guest| guest.end());
    }

    /// Ends the porter, when no call is left.
    pub(crate) fn finish(&self) {
        if let Some(porter) = self.porter.get() {
            let _ = locked(porter).send(None);
        }
    }

    /// Whether a call may still run.
    pub(crate) fn calls_run(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn revoke(&self, which: &mut dyn FnMut(&ClientBinding<'_>) -> bool) -> usize {
        let guests = locked(&self.guests).all.clone();
        guests.iter().map(|guest| guest.revoke_some(which)).sum()
    }

    pub(crate) fn gone(&self, guest: &Guest) {
        let mut guests = locked(&self.guests);
        let at = guests.all.iter().position(|other| std::ptr::eq(&**other, guest));
        let gone = at.map(|at| guests.all.swap_remove(at));
        drop(guests);
        drop(gone);
    }

    /// Has a call run.
    pub(crate) fn take(&self, job: Job) {
        let work = Work { job, _counted: Counted::new(&self.under_way) };
        if let Some(porter) = self.porter.get() {
            // One that comes when the porter has gone is dropped, and so answered.
            let unsent = locked(porter).send(Some(work));
            drop(unsent);
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The porter.
fn carry(calls: &mpsc::Receiver<Option<Work>>, room: &Arc<Semaphore>) {
    while let Ok(Some(work)) = calls.recv() {
        room.acquire().forget();
        let place = Place(room.clone());
        // Without memory for a thread the call is dropped, and so answered.
        let run = Builder::new().name("upcall-net-call").spawn(move || {
            let Work { job, _counted } = work;
            job.run();
            drop(place);
        });
        drop(run);
    }
}

/// Who has come, and is not in yet, has a kernel thread of its own: it may take its time. The policy is asked there.
fn welcome(endpoint: &Arc<Endpoint>, stream: TcpStream, guarded: bool) {
    let connection = Counted::new(&endpoint.doors().connections);
    if endpoint.doors().connections.load(Ordering::SeqCst) > MOST_GUESTS {
        return;
    }
    let endpoint = endpoint.clone();
    let thread = std::thread::Builder::new().name("upcall-net-in".into()).stack_size(STACK);
    // Without one the connection is closed.
    let _ = thread.spawn(move || {
        let _connection = connection;
        let Ok(wire) = Wire::new(stream) else { return };
        let greeted = wire.greet(Preamble { version: VERSION, window: WINDOW }, Instant::now() + GREETING);
        if !greeted.is_ok_and(|greeted| greeted.version == VERSION) {
            // Who has another version was told ours, and who is none of us has nothing to be told.
            return;
        }
        let guest = identify(&endpoint, &wire, guarded).and_then(|identity| Guest::new(wire.clone(), identity, &endpoint));
        match guest {
            Ok(guest) => serve(&endpoint, &wire, guest),
            Err(refusal) => wire.dismiss(&farewell(&refusal), Instant::now() + PARTING),
        }
    });
}

fn serve(endpoint: &Arc<Endpoint>, wire: &Arc<Wire>, guest: Arc<Guest>) {
    if wire.start_to_write().is_err() {
        return wire.hang_up();
    }
    {
        let mut guests = locked(&endpoint.doors().guests);
        if guests.closed {
            return wire.hang_up();
        }
        guests.all.push(guest.clone());
    }
    guest.attend();
}

/// Who it is, if the server lets it in.
fn identify(endpoint: &Endpoint, wire: &Wire, guarded: bool) -> Result<Identity, Refusal> {
    if !guarded {
        return Ok(Identity { uid: None });
    }
    let own = wire.own().map_err(|error| Refusal::Denied(error.to_string()))?;
    let uid = loopback::user_of(wire.peer(), own)
        .ok_or_else(|| Refusal::Denied("the kernel does not say whose the connection is (/proc/net/tcp)".into()))?;
    endpoint.admits(&Peer { pid: 0, uid, gid: u32::MAX, groups: Vec::new(), pidfd: None }).map_err(Refusal::Denied)?;
    Ok(Identity { uid: Some(uid) })
}

fn farewell(refusal: &Refusal) -> Vec<u8> {
    let head = Head { kind: Kind::Farewell, call: 0, binding: 0, number: 0, left: None, len: 0 };
    head.with(&Block::from(&*wire::pack(refusal).unwrap_or_default()))
}
