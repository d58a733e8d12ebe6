//! An object at its home: its guests, their places, and what happens when one dies.
//!
//! The clerk takes over the locks and places of dead processes. It does not need the home's own
//! threads for that. So the waiters for a dead holder's lock wait for the clerk only.
//!
//! Long work is left to the *heir* (`heir.rs`).

mod heir;
mod reached;
mod register;

pub(crate) use self::reached::ObjectGates;
use self::register::{Dead, KnownGuest, Register};
use crate::account;
use crate::body::{Body, BodyState, Ours};
pub use crate::builder::HomeBuilder;
use crate::guest::{ObjectPeer, PeerExitWatch};
use crate::service_queue::ServiceQueue;
use crate::types::DataError;
use crate::types::check::Pages;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use upcall_directory::clerk::{Clerk, Watched};
use upcall_directory::names::{self, NotEntered};
use upcall_os::atomic::{AtomicBool, AtomicUsize, Ordering};
use upcall_os::fault::{Point, point};
use upcall_os::lock::{KernelCondvar, KernelMutex, MutexGuard};
use upcall_os::poll::Report;
use upcall_os::socket::Peer;
use upcall_shm::span::WritableSpan;

/// The place of the clerk and the heir.
const CLERKS: u16 = 0;
/// What has happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Torn {
    /// A process ended in the middle of an operation.
    Died {
        /// The process.
        pid: u32,
    },
    /// An operation panicked, here or elsewhere.
    Panicked,
}

/// What becomes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The data is as it should be, or was repaired.
    Keep,
    /// The object cannot be used any more: all operations fail from now on
    /// ([`AccessError::Poisoned`](crate::AccessError::Poisoned)).
    Poison,
}

pub(crate) type Repair = Box<dyn FnMut(Damaged<'_>, Torn) -> Verdict + Send>;
pub(crate) type GrantPolicy = Box<dyn Fn(&Peer) -> Result<Grant, String> + Send + Sync>;

/// An object whose operation ended in the middle.
pub(crate) struct Damaged<'a> {
    pub(crate) room: WritableSpan<'a>,
    /// The pages of the object that exist.
    pub(crate) pages: Result<Pages, DataError>,
    /// Returns `true` if the object still has a handle at home. Yields the processor.
    pub(crate) goes_on: Box<dyn FnMut() -> bool>,
}

/// What a guest may do with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Ask the home to run operations, as far as the home serves the object. Its memory is not
    /// handed over at all.
    Invoke,
    /// The same, and read all of it ([`Handle::read`](crate::Handle::read)). Its memory is mapped
    /// for reading only.
    Read,
    /// Everything: even change any byte of it at any time, regardless of its types.
    ReadWrite,
}

/// Where an object is found.
pub(crate) struct ObjectSite {
    pub(crate) name: String,
    /// The home's socket.
    pub(crate) socket: PathBuf,
    pub(crate) gates: ObjectGates,
}

/// An object at its home; see the module.
pub(crate) struct HomeObject {
    pub(crate) name: String,
    pub(crate) socket: PathBuf,
    shape: u64,
    pub(crate) body: Body,
    policy: GrantPolicy,
    inner: KernelMutex<Register>,
    settling: KernelMutex<Settling>,
    /// Wakes the heir.
    stir: Arc<Stir>,
    /// The last handle at home is gone.
    is_left: Arc<AtomicBool>,
    /// The clerk's key for the object's listener.
    door: OnceLock<u64>,
    /// The queue of the thread that serves the object.
    desk: KernelMutex<Option<Arc<ServiceQueue>>>,
    /// Where guests on other hosts connect.
    gates: ObjectGates,
    /// Number of handles at home.
    pub(crate) handles: AtomicUsize,
}

/// Wakes one thread. A call before the wait ends the wait at once.
#[derive(Default)]
struct Stir {
    is_called: KernelMutex<bool>,
    call: KernelCondvar,
    /// Number of waits.
    #[cfg(test)]
    waits: AtomicUsize,
    /// Only a call ends a wait.
    #[cfg(test)]
    is_endless: AtomicBool,
}

impl Stir {
    fn call(&self) {
        *self.is_called.lock() = true;
        self.call.notify_one();
    }

    fn wait(&self, limit: Duration) {
        #[cfg(test)]
        let limit = {
            self.waits.fetch_add(1, Ordering::Relaxed);
            if self.is_endless.load(Ordering::Relaxed) { Duration::from_secs(3600) } else { limit }
        };
        let is_called = self.is_called.lock();
        let (mut is_called, _) =
            self.call.wait_timeout_while(is_called, limit, |is_called| !*is_called);
        *is_called = false;
    }
}

/// What the clerk and the heir need to settle an object.
pub(crate) struct Settling {
    party: Ours,
    repair: Repair,
}

impl Settling {
    /// Takes the clerk's place in an object. Returns `None` if it is taken.
    pub(crate) fn new(body: &Body, repair: Repair) -> Option<Self> {
        Some(Self { party: body.party(CLERKS)?, repair })
    }
}

impl HomeObject {
    /// An object that no guest has found yet, and whose listener is not watched yet.
    pub(crate) fn new(
        at: ObjectSite,
        shape: u64,
        body: Body,
        policy: GrantPolicy,
        settling: Settling,
    ) -> Self {
        let ObjectSite { name, socket, gates } = at;
        Self {
            name,
            socket,
            shape,
            body,
            policy,
            inner: KernelMutex::new(Register { places: [1, 0, 0, 0], ..Register::default() }),
            settling: KernelMutex::new(settling),
            stir: Arc::default(),
            is_left: Arc::default(),
            door: OnceLock::new(),
            desk: KernelMutex::default(),
            gates,
            handles: AtomicUsize::new(0),
        }
    }

    /// Enters the object's name. No process finds the object before.
    pub(crate) fn enter_name(self: &Arc<Self>) -> Result<(), NotEntered> {
        names::enter_object(&self.name, &self.socket)?;
        self.gates.enter(self);
        point(Point::ObjectNamed);
        Ok(())
    }

    /// The clerk watches the object's listener under this key.
    pub(crate) fn is_watched_as(&self, key: u64) {
        let _ = self.door.set(key);
    }

    fn inner(&self) -> MutexGuard<'_, Register> {
        self.inner.lock()
    }

    /// Takes a place. Returns the party in it, or `None` if all places are taken.
    pub(crate) fn take_place(&self) -> Option<Ours> {
        let place = self.inner().take_place()?;
        let party = self.body.party(place)?;
        party.is_of(place, std::process::id());
        Some(party)
    }

    /// Gives back a place whose party does not hold the lock any more, and does not wait for it.
    pub(crate) fn give_place(&self, place: u16) {
        self.leaves(&mut self.inner(), place);
    }

    /// Frees a place that no party is in any more.
    fn leaves(&self, inner: &mut Register, place: u16) {
        account::keep(&self.body, place);
        if let Some(clerks) = self.body.party(CLERKS) {
            clerks.is_of(place, 0);
        }
        inner.give_place(place);
    }

    /// Returns `true` if a party is in this place. A lock whose holder is in an empty place is not
    /// waited for.
    pub(crate) fn is_known(&self, place: u64) -> bool {
        let word = usize::try_from(place / 64).ok();
        let inner = self.inner();
        word.and_then(|word| inner.places.get(word))
            .is_some_and(|word| word >> (place % 64) & 1 != 0)
    }

    /// Like [`is_known`](Self::is_known), in an interrupt, which must not wait: returns `true` also
    /// while a place is being taken or given back.
    pub(crate) fn may_be_known(&self, place: u64) -> bool {
        let word = usize::try_from(place / 64).ok();
        let Some(inner) = self.inner.try_lock() else { return true };
        word.and_then(|word| inner.places.get(word))
            .is_some_and(|word| word >> (place % 64) & 1 != 0)
    }

    /// Admits a process that has connected.
    pub(crate) fn admit(self: &Arc<Self>, guest: Arc<ObjectPeer>) {
        let Ok(clerk) = Clerk::current() else { return };
        let end: Option<Arc<dyn Watched>> = guest.end().map(|process| {
            Arc::new(PeerExitWatch { process, guest: Arc::downgrade(&guest) }) as Arc<dyn Watched>
        });
        self.inner().guests.push(KnownGuest { guest: guest.clone(), keys: [None; 2] });
        let own = clerk.watch(guest.clone(), Report::WhileReadable).ok();
        let end = end.and_then(|end| clerk.watch(end, Report::WhileReadable).ok());
        if let Some(known) =
            self.inner().guests.iter_mut().find(|known| Arc::ptr_eq(&known.guest, &guest))
        {
            known.keys = [own, end];
        }
        // A child of the guest can keep the connection open after the guest has ended.
        if own.is_none() || end.is_none() && guest.peer().pidfd.is_some() {
            guest.turn_away(
                "the home cannot watch the connection: no memory or no descriptor is left there",
            );
            self.lost(&guest);
        }
    }

    /// What a guest may do that takes the object to be of this shape.
    pub(crate) fn may(&self, guest: &Peer, shape: u64) -> Result<Grant, String> {
        let grant = (self.policy)(guest)?;
        if shape == self.shape {
            return Ok(grant);
        }
        Err(format!(
            "it is of another type: its shape is {:016x}, but {shape:016x} was requested. Build \
             both programs with the same definition",
            self.shape
        ))
    }

    /// The addresses at which guests on other hosts connect.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.gates.addresses()
    }

    /// The address at which other hosts reach the object, HOST:PORT.
    pub(crate) fn reached_at(&self) -> Option<String> {
        self.gates.reached_at()
    }

    pub(crate) fn desk(&self) -> Option<Arc<ServiceQueue>> {
        self.desk.lock().clone()
    }

    /// Registers the thread that serves the object. Returns `false` if another one does so already.
    pub(crate) fn is_served_by(&self, desk: &Arc<ServiceQueue>) -> bool {
        let mut own = self.desk.lock();
        let free = own.is_none();
        if free {
            *own = Some(desk.clone());
        }
        free
    }

    /// The object is not served any more. The guests that have brought lanes learn of it by the end
    /// of their connections.
    pub(crate) fn is_served_no_more(&self) {
        let desk = self.desk.lock().take();
        desk.iter().for_each(|desk| desk.serves_no_more());
        let guests =
            self.inner().guests.iter().map(|known| known.guest.clone()).collect::<Vec<_>>();
        guests
            .iter()
            .filter(|guest| guest.invokes.load(Ordering::Relaxed))
            .for_each(|guest| guest.hang_up());
    }

    /// Grants a guest the memory, and a place if it may write.
    pub(crate) fn open(
        &self,
        guest: &ObjectPeer,
        shape: u64,
    ) -> Result<Option<(Option<u16>, OwnedFd)>, String> {
        let grant = self.may(guest.peer(), shape)?;
        let writes = grant == Grant::ReadWrite && !self.body.is_sealed();
        if self.body.state() == BodyState::Poisoned {
            return Err(
                "a process ended in the middle of an operation, and the home could not repair the \
                 object: it has to be created again"
                    .into(),
            );
        }
        if grant == Grant::Invoke {
            return Ok(None);
        }
        let memory = self
            .body
            .descriptor(writes)
            .map_err(|error| format!("its memory cannot be handed over: {error}"))?;
        if !writes {
            return Ok(Some((None, memory)));
        }
        let place = self.inner().take_place_for(guest.peer().uid)?;
        if let Some(party) = self.body.party(CLERKS) {
            party.is_of(place, guest.peer().pid);
        }
        Ok(Some((Some(place), memory)))
    }

    /// Handles the end of a guest.
    pub(crate) fn lost(self: &Arc<Self>, guest: &ObjectPeer) {
        if !guest.goes() {
            return;
        }
        let mut inner = self.inner();
        let at = inner.guests.iter().position(|known| std::ptr::eq(&*known.guest, guest));
        let known = at.map(|at| inner.guests.swap_remove(at));
        let place = guest.place.get().copied();
        drop(inner);
        if let (Some(known), Ok(clerk)) = (known, Clerk::current()) {
            known.keys.into_iter().flatten().for_each(|key| clerk.forget(key));
        }
        if guest.invokes.load(Ordering::Relaxed)
            && let Some(desk) = self.desk()
        {
            desk.lost(guest.number());
        }
        let Some(Some(place)) = place else { return };
        let Some(party) = self.body.party(CLERKS) else { return };
        let waited = party.bury(place);
        self.inner().dead.push(Dead {
            place,
            pid: guest.peer().pid,
            user: guest.peer().uid,
            waited,
        });
        self.settle();
    }
}

impl HomeObject {
    /// Closes the object, which has no handle at home any more: frees its name, and hangs up on its
    /// guests.
    pub(crate) fn close(&self) {
        self.is_left.store(true, Ordering::Relaxed);
        self.stir.call();
        names::leave_object(&self.name, &self.socket);
        self.gates.leave(&self.name);
        let _ = std::fs::remove_file(&self.socket);
        let guests = std::mem::take(&mut self.inner().guests);
        if let Ok(clerk) = Clerk::current() {
            let keys = guests.iter().flat_map(|known| known.keys).flatten();
            keys.chain(self.door.get().copied()).for_each(|key| clerk.forget(key));
        }
        guests.iter().for_each(|known| known.guest.hang_up());
    }
}

impl Drop for HomeObject {
    /// Closes an object again for which no handle was made.
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
