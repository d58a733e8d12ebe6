//! Where guests on other hosts connect, and which objects they find there.
//!
//! The objects of a process that listen at the same address share its listener. It ends with the
//! last of them.

use super::guest::{ChargedGuest, LinkGuest, Reached};
use super::{HomeReply, WINDOW, body};
use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;
use upcall_net::identity::HostStore;
use upcall_net::listen::{listen, resolve_own};
use upcall_net::{
    Admissions, Admit, ConnectionOwner, FrameBody, LinkTerms, NetworkListener, NotListening,
    ProvedClient, TakeOver, Wire, usable_identity,
};
use upcall_os::lock::KernelMutex;
use upcall_os::socket::Peer;

/// The listeners of this process.
static GATES: KernelMutex<Vec<Weak<ObjectGate>>> = KernelMutex::new(Vec::new());

/// A listener, and the objects that are found there; see the module.
pub(crate) struct ObjectGate {
    listener: NetworkListener,
    /// The identity of this host, unless it is only reached from this host and has none.
    store: Option<Arc<HostStore>>,
    objects: KernelMutex<HashMap<String, ReachedObject>>,
    guests: KernelMutex<Vec<Weak<LinkGuest>>>,
    inside: Admissions,
}

struct ReachedObject {
    key: u64,
    object: Weak<dyn Reached>,
}

impl fmt::Debug for ObjectGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectGate({})", self.address())
    }
}

impl ObjectGate {
    /// The gate at an address, HOST:PORT, where this process listens from now on.
    ///
    /// # Errors
    /// See [`NotListening`].
    pub(crate) fn at(address: &str) -> Result<Arc<Self>, NotListening> {
        let identity = usable_identity();
        let at = resolve_own(address, &identity)?;
        let mut gates = GATES.lock();
        gates.retain(|gate| gate.strong_count() > 0);
        let shared = gates.iter().filter_map(Weak::upgrade).find(|gate| gate.address() == at);
        if let Some(gate) = shared {
            return Ok(gate);
        }
        let gate = Arc::new(Self {
            listener: listen(at, address)?,
            store: identity.ok(),
            objects: KernelMutex::default(),
            guests: KernelMutex::default(),
            inside: Admissions::default(),
        });
        let admission = GateAdmission { gate: Arc::downgrade(&gate), store: gate.store.clone() };
        let terms = LinkTerms { window: WINDOW, patience: Duration::ZERO };
        gate.listener.open(terms, admission).map_err(|error| {
            let what = format!("a thread that listens at {address}");
            NotListening::Unable { what, error }
        })?;
        gates.push(Arc::downgrade(&gate));
        Ok(gate)
    }

    /// The address at which it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Lets guests find an object. No other object has its key.
    pub(crate) fn enter(&self, name: &str, key: u64, object: Weak<dyn Reached>) {
        let before = self.objects.lock().insert(name.into(), ReachedObject { key, object });
        drop(before);
    }

    /// Lets guests no longer find an object.
    pub(crate) fn leave(&self, name: &str, key: u64) {
        let mut objects = self.objects.lock();
        let left = objects.get(name).is_some_and(|object| object.key == key);
        let gone = if left { objects.remove(name) } else { None };
        drop(objects);
        drop(gone);
    }

    /// The object of this name.
    pub(super) fn object(&self, name: &str) -> Option<Arc<dyn Reached>> {
        self.objects.lock().get(name)?.object.upgrade()
    }
}

impl Drop for ObjectGate {
    fn drop(&mut self) {
        let guests = std::mem::take(&mut *self.guests.lock());
        guests.iter().filter_map(Weak::upgrade).for_each(|guest| guest.end());
    }
}

/// Decides which connections are admitted.
struct GateAdmission {
    gate: Weak<ObjectGate>,
    store: Option<Arc<HostStore>>,
}

/// What an object's policy sees of a client.
fn peer_of(client: &ProvedClient) -> Result<Peer, String> {
    match client {
        ProvedClient::Here(Some(uid)) => Ok(Peer::of_user(*uid)),
        ProvedClient::Host(name) => Ok(Peer::on_host(name.as_str().into())),
        ProvedClient::Here(None) => {
            Err("the kernel does not say whose the connection is (/proc/net/tcp)".into())
        }
        ProvedClient::Stranger(stranger) => Err(stranger.to_string()),
        ProvedClient::Nobody => Err("connections from other hosts are taken only with TLS: trust \
                                     the home's host, see `upcall host --help`"
            .into()),
    }
}

impl Admit for GateAdmission {
    fn store(&self) -> Option<Arc<HostStore>> {
        self.store.clone()
    }

    /// Each object has a policy of its own, which is asked when the object is looked for.
    fn judge(&mut self, client: &ProvedClient) -> Result<(), FrameBody> {
        peer_of(client).map(drop).map_err(|why| body(&HomeReply::No(why)))
    }

    fn admit(
        &mut self,
        account: ConnectionOwner,
        client: ProvedClient,
    ) -> Result<Box<dyn TakeOver>, FrameBody> {
        let admit = || {
            // The last object at this address is gone.
            let gate = self.gate.upgrade().ok_or(HomeReply::Absent)?;
            let counted = gate.inside.admit(account).map_err(HomeReply::No)?;
            let peer = peer_of(&client).map_err(HomeReply::No)?;
            let charged = ChargedGuest::new(peer, counted).map_err(HomeReply::No)?;
            Ok(AdmittedGuest { gate, charged })
        };
        admit()
            .map(|admitted| Box::new(admitted) as Box<dyn TakeOver>)
            .map_err(|no: HomeReply| body(&no))
    }
}

/// A guest that is admitted, and has no link yet.
struct AdmittedGuest {
    gate: Arc<ObjectGate>,
    charged: ChargedGuest,
}

impl TakeOver for AdmittedGuest {
    fn take_over(self: Box<Self>, wire: Arc<Wire>, first: &[u8]) {
        let Self { gate, charged } = *self;
        let guest = LinkGuest::new(wire, charged, &gate);
        {
            let mut guests = gate.guests.lock();
            guests.retain(|guest| guest.strong_count() > 0);
            guests.push(Arc::downgrade(&guest));
        }
        guest.attend(first);
    }
}
