//! Where clients on other machines connect, which of them are admitted, and where their calls run.
//!
//! Kernel threads read the clients' requests and submit them to the server's virtual processors,
//! which run them like the calls of other clients
//! ([`PollingIdle::submit`](upcall_sched::PollingIdle::submit)).

use super::WINDOW;
use super::client::{Charged, ClientIdentity, NetworkCall, NetworkClient};
use crate::bound::ClientBinding;
use crate::endpoint::Endpoint;
use crate::error::ServeError;
use crate::wire::{self, BindRefusal};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Weak};
use upcall_directory::clerk::STACK;
use upcall_net::door::greeting;
use upcall_net::{
    Admit, ConnectionOwner, FrameBody, FrameHeader, FrameKind, NetworkListener, Wire,
};
use upcall_os::atomic::{AtomicUsize, Ordering};
use upcall_os::lock::KernelMutex;
use upcall_os::loopback;
use upcall_os::socket::Peer;
use upcall_sched::PollingIdle;

/// Maximum number of admitted connections of a server. One user, or one address of another machine,
/// has at most as many as are left for others (see [`ceilings`](crate::ceilings)): half of them if
/// it is alone.
const MOST_GUESTS: usize = 256;

/// An address at which a server is to listen.
#[derive(Clone, Debug)]
pub(crate) struct Listen {
    pub(crate) address: String,
    /// `true` if the address must lie within this machine, and the policy is asked.
    pub(crate) guarded: bool,
}

/// See the module.
pub(crate) struct NetworkServer {
    doors: KernelMutex<Vec<(NetworkListener, bool)>>,
    addresses: Vec<SocketAddr>,
    guests: KernelMutex<Guests>,
    inside: Arc<KernelMutex<AdmittedCounts>>,
    under_way: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Guests {
    all: Vec<Arc<NetworkClient>>,
    closed: bool,
}

/// Number of admitted connections, by the account that is charged with them.
type AdmittedCounts = HashMap<ConnectionOwner, usize>;

/// An admitted connection, counted while this exists.
struct Admitted {
    inside: Arc<KernelMutex<AdmittedCounts>>,
    account: ConnectionOwner,
}

impl Admitted {
    fn new(
        inside: &Arc<KernelMutex<AdmittedCounts>>,
        account: ConnectionOwner,
    ) -> Result<Self, BindRefusal> {
        let mut counts = inside.lock();
        let all = counts.values().sum::<usize>();
        let own = counts.get(&account).copied().unwrap_or(0);
        if own >= MOST_GUESTS.saturating_sub(all + 1) {
            return Err(BindRefusal::Quota(format!(
                "this user or address would have {} connections to it, more than would be left of \
                {MOST_GUESTS} for others",
                own + 1
            )));
        }
        counts.insert(account, own + 1);
        Ok(Self { inside: inside.clone(), account })
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut counts = self.inside.lock();
        if let Entry::Occupied(mut own) = counts.entry(self.account) {
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}

/// A call, counted while this exists.
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

impl NetworkServer {
    /// Listens, but admits no client yet.
    pub(crate) fn new(wanted: &[Listen]) -> Result<Self, ServeError> {
        let mut doors = Vec::new();
        for Listen { address, guarded } in wanted {
            let unable = |error: io::Error| ServeError::Resource {
                what: match error.kind() {
                    io::ErrorKind::AddrInUse => format!(
                        "listening at {address}, where another process listens: stop it, or choose \
                         another port"
                    ),
                    _ => format!("listening at {address}"),
                },
                error,
            };
            let no_address = |why: String| {
                let text = format!("{why}; an address is HOST:PORT, such as 127.0.0.1:7411");
                unable(io::Error::new(io::ErrorKind::InvalidInput, text))
            };
            let at = address
                .to_socket_addrs()
                .map_err(|error| no_address(error.to_string()))?
                .next()
                .ok_or_else(|| no_address("the host has no address".into()))?;
            if *guarded && !at.ip().to_canonical().is_loopback() {
                return Err(ServeError::Unprotected { address: address.clone() });
            }
            doors.push((NetworkListener::new(at).map_err(unable)?, *guarded));
        }
        Ok(Self {
            addresses: doors.iter().map(|(door, _)| door.address()).collect(),
            doors: KernelMutex::new(doors),
            guests: KernelMutex::default(),
            inside: Arc::default(),
            under_way: Arc::default(),
        })
    }

    /// The addresses, in the order in which they were requested.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Starts to admit clients.
    pub(crate) fn open(&self, endpoint: &Arc<Endpoint>) -> Result<(), ServeError> {
        let doors = self.doors.lock();
        if doors.is_empty() {
            return Ok(());
        }
        endpoint.processors().open_queue();
        let unable = |error| ServeError::Resource { what: "threads for the network".into(), error };
        for (door, guarded) in &*doors {
            let admission = Admission { endpoint: Arc::downgrade(endpoint), guarded: *guarded };
            door.open(greeting(WINDOW), admission).map_err(unable)?;
        }
        Ok(())
    }

    /// Admits no more clients, and ends those that are connected.
    pub(crate) fn shut(&self) {
        self.doors.lock().clear();
        let all = {
            let mut guests = self.guests.lock();
            guests.closed = true;
            std::mem::take(&mut guests.all)
        };
        all.iter().for_each(|guest| guest.end());
    }

    /// Returns `true` if a call may still run.
    pub(crate) fn calls_run(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn revoke(&self, which: &mut dyn FnMut(&ClientBinding<'_>) -> bool) -> usize {
        let guests = self.guests.lock().all.clone();
        guests.iter().map(|guest| guest.revoke_some(which)).sum()
    }

    pub(crate) fn gone(&self, guest: &NetworkClient) {
        let mut guests = self.guests.lock();
        let at = guests.all.iter().position(|other| std::ptr::eq(&**other, guest));
        let gone = at.map(|at| guests.all.swap_remove(at));
        drop(guests);
        drop(gone);
    }

    /// Gives a call to the server. If the server has ended, or there is no memory, the call is
    /// dropped, which replies to it.
    pub(crate) fn take(&self, job: NetworkCall, processors: &PollingIdle) {
        let counted = Counted::new(&self.under_way);
        processors.submit(Box::new(move || {
            job.run();
            drop(counted);
        }));
    }
}

/// Decides which connections are admitted.
struct Admission {
    endpoint: Weak<Endpoint>,
    guarded: bool,
}

impl Admission {
    fn endpoint(&self) -> Result<Arc<Endpoint>, BindRefusal> {
        self.endpoint.upgrade().ok_or_else(|| BindRefusal::Protocol("the server is ending".into()))
    }

    /// Asks the policy, if the address is guarded.
    fn decide(&self, user: Option<u32>) -> Result<(), BindRefusal> {
        if !self.guarded {
            return Ok(());
        }
        let uid = user.ok_or_else(|| {
            BindRefusal::Denied(
                "the kernel does not say whose the connection is (/proc/net/tcp)".into(),
            )
        })?;
        self.endpoint()?
            .admits(&Peer { pid: 0, uid, gid: u32::MAX, groups: Vec::new(), pidfd: None })
            .map_err(BindRefusal::Denied)
    }
}

impl Admit for Admission {
    /// The kernel knows the user of a connection of this machine before its first byte.
    fn came(&mut self, stream: &TcpStream) -> Result<ConnectionOwner, (ConnectionOwner, Vec<u8>)> {
        let (Ok(theirs), Ok(ours)) = (stream.peer_addr(), stream.local_addr()) else {
            // The connection is already reset.
            return Err((ConnectionOwner::of(Ipv4Addr::UNSPECIFIED.into()), Vec::new()));
        };
        let is_here = theirs.ip().to_canonical().is_loopback();
        let user = if is_here { loopback::user_of(theirs, ours) } else { None };
        let account = user.map_or_else(|| ConnectionOwner::of(theirs.ip()), ConnectionOwner::User);
        self.decide(user).map_err(|refusal| (account, farewell(&refusal)))?;
        Ok(account)
    }

    fn admit(
        &mut self,
        stream: TcpStream,
        account: ConnectionOwner,
        first: Vec<u8>,
    ) -> Result<(), (TcpStream, Vec<u8>)> {
        let admitted = self.endpoint().and_then(|endpoint| {
            let counted = Admitted::new(&endpoint.doors().inside, account)?;
            let uid = match account {
                ConnectionOwner::User(uid) if self.guarded => Some(uid),
                _ => None,
            };
            let identity = ClientIdentity { uid };
            let charged = Charged::new(identity, &endpoint)?;
            Ok((endpoint, counted, charged))
        });
        let (endpoint, counted, charged) = match admitted {
            Ok(admitted) => admitted,
            Err(refusal) => return Err((stream, farewell(&refusal))),
        };
        let thread = std::thread::Builder::new().name("upcall-net-in".into()).stack_size(STACK);
        // Without a thread the connection is closed.
        let _ = thread.spawn(move || {
            let _counted = counted;
            if let Ok(wire) = Wire::new(stream) {
                serve(
                    &endpoint,
                    &wire,
                    NetworkClient::new(wire.clone(), charged, &endpoint),
                    &first,
                );
            }
        });
        Ok(())
    }
}

fn serve(endpoint: &Arc<Endpoint>, wire: &Arc<Wire>, guest: Arc<NetworkClient>, first: &[u8]) {
    if wire.start_to_write().is_err() {
        return wire.hang_up();
    }
    {
        let mut guests = endpoint.doors().guests.lock();
        if guests.closed {
            return wire.hang_up();
        }
        guests.all.push(guest.clone());
    }
    guest.attend(first);
}

fn farewell(refusal: &BindRefusal) -> Vec<u8> {
    let head = FrameHeader {
        kind: FrameKind::Farewell,
        call: 0,
        binding: 0,
        number: 0,
        left: None,
        len: 0,
    };
    head.with(&FrameBody::from(&*wire::pack(refusal).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Admits as many connections as this account may have.
    fn all_of(inside: &Arc<KernelMutex<AdmittedCounts>>, user: u32) -> Vec<Admitted> {
        std::iter::from_fn(|| Admitted::new(inside, ConnectionOwner::User(user)).ok()).collect()
    }

    #[test]
    fn whoever_takes_all_it_can_get_leaves_as_many_connections_for_others() {
        let inside = Arc::default();
        let mut all: Vec<_> = (0..7).map(|user| all_of(&inside, user)).collect();
        assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [128, 64, 32, 16, 8, 4, 2]);
        let Err(BindRefusal::Quota(text)) = Admitted::new(&inside, ConnectionOwner::User(1)) else {
            panic!("one more than its share")
        };
        assert!(text.contains("have 65 connections") && text.contains("256"), "{text}");
        all.remove(0);
        assert_eq!(all_of(&inside, 100).len(), 65);
        drop(all);
        assert!(inside.lock().is_empty());
    }
}
