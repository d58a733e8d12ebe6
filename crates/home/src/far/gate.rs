//! Where guests on other hosts connect, and which objects they find there.
//!
//! The objects of a process that listen at the same address share its listener. It ends with the
//! last of them.

use super::guest::{ChargedGuest, LinkGuest, Reached};
use super::{HomeReply, ListedObject, PAGE, WINDOW, body};
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

/// An object, and the name by which guests find it.
type FoundObject = (String, Arc<dyn Reached>);

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

    /// The objects that this guest may invoke, among the next [`PAGE`] objects behind a key. Others
    /// are passed over.
    ///
    /// So a list costs the thread of links little at a time, and an answer has a bounded length.
    pub(super) fn page(&self, guest: &Peer, after: Option<u64>) -> HomeReply {
        let (next, there) = self.behind(after);
        let objects = there.into_iter().filter_map(|(name, object)| {
            let shape = object.shape();
            object.admits(guest, shape).ok()?;
            let operations = object.desk().map(|desk| desk.names.len() as u32);
            Some(ListedObject { name, shape, operations })
        });
        HomeReply::Listed { objects: objects.collect(), next }
    }

    /// The next objects behind a key, and the last of their keys if more follow.
    fn behind(&self, key: Option<u64>) -> (Option<u64>, Vec<FoundObject>) {
        let objects = self.objects.lock();
        // `None` is below each key.
        let behind = objects.iter().filter(|(_, object)| Some(object.key) > key);
        let mut behind: Vec<_> = behind.collect();
        let more = behind.len() > PAGE;
        if more {
            // Of many objects only a page is sorted.
            behind.select_nth_unstable_by_key(PAGE, |(_, object)| object.key);
            behind.truncate(PAGE);
        }
        behind.sort_unstable_by_key(|(_, object)| object.key);
        let next = behind.last().filter(|_| more).map(|(_, object)| object.key);
        let there = behind.into_iter();
        let there = there.filter_map(|(name, at)| Some((name.clone(), at.object.upgrade()?)));
        (next, there.collect())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service_queue::ServiceQueue;

    /// An object that admits guests of its own shape, if it admits any.
    struct Object {
        shape: u64,
        admits: bool,
    }

    impl Reached for Object {
        fn admits(&self, _: &Peer, shape: u64) -> Result<(), String> {
            if self.admits && shape == self.shape { Ok(()) } else { Err("no".into()) }
        }

        fn shape(&self) -> u64 {
            self.shape
        }

        fn desk(&self) -> Option<Arc<ServiceQueue>> {
            None
        }
    }

    #[test]
    fn pages_have_all_objects_once_that_a_guest_may_invoke() {
        let gate = ObjectGate::at("127.0.0.1:0").unwrap();
        let all: Vec<_> = (0..3 * PAGE as u64)
            .map(|at| Arc::new(Object { shape: at, admits: at % 3 != 1 }))
            .collect();
        for object in &all {
            let weak: Weak<Object> = Arc::downgrade(object);
            gate.enter(&format!("o{}", object.shape), object.shape, weak);
        }
        let (mut after, mut found, mut pages) = (None, Vec::new(), 0);
        loop {
            let HomeReply::Listed { objects, next } = gate.page(&Peer::of_user(7), after) else {
                panic!("no page");
            };
            assert!(objects.len() <= PAGE && (next.is_none() || next > after));
            found.extend(objects.into_iter().map(|object| (object.name, object.shape)));
            (after, pages) = (next, pages + 1);
            if after.is_none() {
                break;
            }
        }
        let visible = all.iter().filter(|object| object.admits);
        let visible: Vec<_> =
            visible.map(|object| (format!("o{}", object.shape), object.shape)).collect();
        assert_eq!((pages, found), (3, visible));
        // Those that have ended are passed over.
        drop(all);
        let HomeReply::Listed { objects, .. } = gate.page(&Peer::of_user(7), None) else {
            panic!("no page");
        };
        assert_eq!(objects, []);
    }
}
