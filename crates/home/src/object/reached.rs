//! An object as guests on other hosts reach it.

use super::HomeObject;
use crate::body::BodyState;
use crate::error::POISONED;
use crate::far::gate::ObjectGate;
use crate::far::guest::Reached;
use crate::service_queue::ServiceQueue;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use upcall_os::atomic::{AtomicU64, Ordering};
use upcall_os::lock::KernelMutex;
use upcall_os::socket::Peer;

/// Where an object is found from other hosts.
pub(crate) struct ObjectGates {
    /// A number that no other object of this process has.
    key: u64,
    gates: KernelMutex<Vec<Arc<ObjectGate>>>,
    /// The address for references, HOST:PORT.
    reached_at: Option<String>,
}

impl ObjectGates {
    pub(crate) fn new(gates: Vec<Arc<ObjectGate>>, reached_at: Option<String>) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let key = LAST.fetch_add(1, Ordering::Relaxed);
        Self { key, gates: KernelMutex::new(gates), reached_at }
    }

    /// The address at which other hosts reach the object, HOST:PORT.
    pub(super) fn reached_at(&self) -> Option<String> {
        self.reached_at.clone()
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.gates.lock().iter().map(|gate| gate.address()).collect()
    }

    /// Lets guests find the object.
    pub(super) fn enter(&self, object: &Arc<HomeObject>) {
        let own: Weak<HomeObject> = Arc::downgrade(object);
        let own: Weak<dyn Reached> = own;
        self.gates.lock().iter().for_each(|gate| gate.enter(&object.name, self.key, own.clone()));
    }

    /// Lets guests no longer find the object, which stops to listen.
    pub(super) fn leave(&self, name: &str) {
        let gates = std::mem::take(&mut *self.gates.lock());
        gates.iter().for_each(|gate| gate.leave(name, self.key));
    }
}

impl Reached for HomeObject {
    fn admits(&self, guest: &Peer, shape: u64) -> Result<(), String> {
        // The thread that asks serves the links of all guests.
        let granted = catch_unwind(AssertUnwindSafe(|| self.may(guest, shape)));
        granted.unwrap_or_else(|_| Err("its policy panicked".into()))?;
        match self.body.state() {
            BodyState::Poisoned => Err(POISONED.into()),
            BodyState::Whole | BodyState::Torn => Ok(()),
        }
    }

    fn shape(&self) -> u64 {
        self.shape
    }

    fn desk(&self) -> Option<Arc<ServiceQueue>> {
        Self::desk(self)
    }
}
