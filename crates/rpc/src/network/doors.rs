//! Where clients on other machines connect, which of them are admitted, and where their calls run.
//!
//! Kernel threads read the clients' requests and submit them to the server's virtual processors,
//! which run them like the calls of other clients
//! ([`PollingIdle::submit`](upcall_sched::PollingIdle::submit)).

use super::WINDOW;
use super::client::{Charged, ClientIdentity, NetworkClient};
use crate::bound::ClientBinding;
use crate::endpoint::Endpoint;
use crate::error::ServeError;
use crate::wire::{self, BindRefusal};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;
use upcall_net::identity::HostStore;
use upcall_net::listen::{listen, resolve_own};
use upcall_net::{
    Admissions, Admit, Admitted, ConnectionOwner, FrameBody, LinkTerms, NetworkListener,
    ProvedClient, TakeOver, Wire, usable_identity,
};
use upcall_os::atomic::{AtomicUsize, Ordering};
use upcall_os::lock::KernelMutex;
use upcall_os::socket::Peer;
use upcall_sched::PollingIdle;

/// See the module.
pub(crate) struct NetworkServer {
    doors: KernelMutex<Vec<NetworkListener>>,
    store: Option<Arc<HostStore>>,
    addresses: Vec<SocketAddr>,
    guests: KernelMutex<Guests>,
    inside: Admissions,
    under_way: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Guests {
    all: Vec<Arc<NetworkClient>>,
    closed: bool,
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
    pub(crate) fn new(wanted: &[String]) -> Result<Self, ServeError> {
        let mut doors = Vec::new();
        let identity = (!wanted.is_empty()).then(usable_identity);
        for address in wanted {
            let Some(identity) = &identity else { break };
            let at = resolve_own(address, identity)?;
            doors.push(listen(at, address)?);
        }
        Ok(Self {
            addresses: doors.iter().map(NetworkListener::address).collect(),
            store: identity.and_then(Result::ok),
            doors: KernelMutex::new(doors),
            guests: KernelMutex::default(),
            inside: Admissions::default(),
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
        for door in &*doors {
            let store = self.store.clone();
            let admission = Admission { endpoint: Arc::downgrade(endpoint), store };
            let terms = LinkTerms { window: WINDOW, patience: Duration::ZERO };
            door.open(terms, admission).map_err(unable)?;
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

    /// Gives a call or a question to the server. If the server has ended, or there is no memory,
    /// it is dropped, which replies to it.
    pub(crate) fn take(&self, job: impl FnOnce() + Send + 'static, processors: &PollingIdle) {
        let counted = Counted::new(&self.under_way);
        processors.submit(Box::new(move || {
            job();
            drop(counted);
        }));
    }
}

/// Decides which connections are admitted.
struct Admission {
    endpoint: Weak<Endpoint>,
    /// The identity of this host, unless the server listens to this machine only and has none.
    store: Option<Arc<HostStore>>,
}

impl Admission {
    fn endpoint(&self) -> Result<Arc<Endpoint>, BindRefusal> {
        self.endpoint.upgrade().ok_or_else(|| BindRefusal::Protocol("the server is ending".into()))
    }

    fn decide(&self, client: &ProvedClient) -> Result<(), BindRefusal> {
        let denied = |why: &str| Err(BindRefusal::Denied(why.into()));
        let peer = match client {
            ProvedClient::Here(Some(uid)) => Peer::of_user(*uid),
            ProvedClient::Host(name) => Peer::on_host(name.as_str().into()),
            ProvedClient::Here(None) => {
                return denied("the kernel does not say whose the connection is (/proc/net/tcp)");
            }
            ProvedClient::Stranger(stranger) => return denied(&stranger.to_string()),
            ProvedClient::Nobody => {
                return denied(
                    "connections from other hosts are taken only with TLS: trust the server's \
                     host, see `upcall host --help`",
                );
            }
        };
        self.endpoint()?.admits(&peer).map_err(BindRefusal::Denied)
    }
}

impl Admit for Admission {
    fn store(&self) -> Option<Arc<HostStore>> {
        self.store.clone()
    }

    fn judge(&mut self, client: &ProvedClient) -> Result<(), FrameBody> {
        self.decide(client).map_err(|refusal| farewell(&refusal))
    }

    fn admit(
        &mut self,
        account: ConnectionOwner,
        client: ProvedClient,
    ) -> Result<Box<dyn TakeOver>, FrameBody> {
        let admitted = self.endpoint().and_then(|endpoint| {
            let inside = &endpoint.doors().inside;
            let counted = inside.admit(account).map_err(BindRefusal::Quota)?;
            let identity = match client {
                ProvedClient::Here(uid) => ClientIdentity { uid, host: None },
                ProvedClient::Host(name) => {
                    ClientIdentity { uid: None, host: Some(name.as_str().into()) }
                }
                ProvedClient::Stranger(_) | ProvedClient::Nobody => {
                    ClientIdentity { uid: None, host: None }
                }
            };
            let charged = Charged::new(identity, &endpoint)?;
            Ok(AdmittedClient { endpoint, counted, charged })
        });
        admitted
            .map(|admitted| Box::new(admitted) as Box<dyn TakeOver>)
            .map_err(|refusal| farewell(&refusal))
    }
}

/// A client that is admitted, and has no connection yet.
struct AdmittedClient {
    endpoint: Arc<Endpoint>,
    counted: Admitted,
    charged: Charged,
}

impl TakeOver for AdmittedClient {
    fn take_over(self: Box<Self>, wire: Arc<Wire>, first: &[u8]) {
        let Self { endpoint, counted, charged } = *self;
        let guest = NetworkClient::new(wire.clone(), charged, counted, &endpoint);
        {
            let mut guests = endpoint.doors().guests.lock();
            if guests.closed {
                return wire.hang_up();
            }
            guests.all.push(guest.clone());
        }
        guest.attend(first);
    }
}

pub(super) fn farewell(refusal: &BindRefusal) -> FrameBody {
    FrameBody::from(&*wire::pack(refusal).unwrap_or_default())
}
