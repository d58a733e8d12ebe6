//! An object at its home: who may use it, in which place, and what becomes of it when one of them
//! dies.
//!
//! The clerk takes over the locks and places of dead processes. It does not need the home's own
//! threads for that. So the waiters for a dead holder's lock wait for the clerk only.
//!
//! Long work is left to the *heir* (`heir.rs`).

mod heir;
mod register;

use self::register::{Dead, KnownGuest, Register};
use crate::account;
use crate::body::{Body, BodyState, Ours};
pub use crate::builder::HomeBuilder;
use crate::desk::ServiceQueue;
use crate::guest::{ObjectPeer, PeerExitWatch};
use crate::types::DataError;
use crate::types::check::Pages;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use upcall_directory::clerk::{Clerk, Watched};
use upcall_directory::names;
use upcall_os::atomic::{AtomicBool, AtomicUsize, Ordering};
use upcall_os::lock::{KernelCondvar, KernelMutex, MutexGuard};
use upcall_os::poll::Report;
use upcall_os::socket::Peer;
use upcall_shm::span::WritableSpan;

/// The place of the clerk, and of who stands in for it.
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

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is as it should be, or was made so.
    Keep,
    /// It is of no use any more: all operations fail from now on
    /// ([`AccessError::Poisoned`](crate::AccessError::Poisoned)).
    Poison,
}

pub(crate) type Repair = Box<dyn FnMut(Damaged<'_>, Torn) -> Verdict + Send>;
pub(crate) type GrantPolicy = Box<dyn Fn(&Peer) -> Result<Grant, String> + Send + Sync>;

/// An object whose operation ended in the middle.
pub(crate) struct Damaged<'a> {
    pub(crate) room: WritableSpan<'a>,
    /// The pages of it that exist.
    pub(crate) pages: Result<Pages, DataError>,
    /// Returns `true` if the object still has a handle at home. Yields the processor.
    pub(crate) goes_on: Box<dyn FnMut() -> bool>,
}

/// What somebody may do with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Have its home run operations, as far as that serves it. Its memory is not even handed over.
    Invoke,
    /// That, and look at all of it ([`Handle::read`](crate::Handle::read)). Its memory is
    /// mapped for reading only.
    Read,
    /// Everything; and change all of it at any time, whatever its types say.
    ReadWrite,
}

/// See the module.
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
    /// What the clerk knows its door by.
    door: OnceLock<u64>,
    /// Where the thread sleeps that serves it.
    desk: KernelMutex<Option<Arc<ServiceQueue>>>,
    /// So many handles are there at home.
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

/// What the clerk and the heir settle an object by.
pub(crate) struct Settling {
    party: Ours,
    repair: Repair,
}

impl Settling {
    /// Takes the clerk's place in an object. `None`: it is taken.
    pub(crate) fn new(body: &Body, repair: Repair) -> Option<Self> {
        Some(Self { party: body.party(CLERKS)?, repair })
    }
}

impl HomeObject {
    /// An object that no guest has found yet, and whose door is not watched yet.
    pub(crate) fn new(
        name: String,
        socket: PathBuf,
        shape: u64,
        body: Body,
        policy: GrantPolicy,
        settling: Settling,
    ) -> Self {
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
            handles: AtomicUsize::new(0),
        }
    }

    /// The clerk watches the object's door, which it knows by `key`.
    pub(crate) fn is_watched_as(&self, key: u64) {
        let _ = self.door.set(key);
    }

    fn inner(&self) -> MutexGuard<'_, Register> {
        self.inner.lock()
    }

    /// A place, and the party in it. `None`: all are taken.
    pub(crate) fn take_place(&self) -> Option<Ours> {
        let place = self.inner().take_place()?;
        let party = self.body.party(place)?;
        party.is_of(place, std::process::id());
        Some(party)
    }

    /// A place whose party has the lock no more, and does not wait for it.
    pub(crate) fn give_place(&self, place: u16) {
        self.leaves(&mut self.inner(), place);
    }

    /// Nobody is in this place any more.
    fn leaves(&self, inner: &mut Register, place: u16) {
        account::keep(&self.body, place);
        if let Some(clerks) = self.body.party(CLERKS) {
            clerks.is_of(place, 0);
        }
        inner.give_place(place);
    }

    /// Whether somebody is in a place. Of one that nobody is in no lock is waited for.
    pub(crate) fn is_known(&self, place: u64) -> bool {
        let word = usize::try_from(place / 64).ok();
        let inner = self.inner();
        word.and_then(|word| inner.places.get(word))
            .is_some_and(|word| word >> (place % 64) & 1 != 0)
    }

    /// The same in an interrupt, which waits for nobody: true also if somebody is taking or giving
    /// a place just now.
    pub(crate) fn may_be_known(&self, place: u64) -> bool {
        let word = usize::try_from(place / 64).ok();
        let Some(inner) = self.inner.try_lock() else { return true };
        word.and_then(|word| inner.places.get(word))
            .is_some_and(|word| word >> (place % 64) & 1 != 0)
    }

    /// Lets in one who has connected.
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
        // A child of the guest's can keep the connection open when the guest has ended.
        if own.is_none() || end.is_none() && guest.peer().pidfd.is_some() {
            guest.turn_away(
                "its home cannot watch the connection: no memory or no descriptor is left there",
            );
            self.lost(&guest);
        }
    }

    /// What one who takes it for this may do.
    pub(crate) fn may(&self, guest: &ObjectPeer, shape: u64) -> Result<Grant, String> {
        let grant = (self.policy)(guest.peer())?;
        if shape == self.shape {
            return Ok(grant);
        }
        Err(format!(
            "it is of another type: its shape is {:016x}, and {shape:016x} was asked for. Both programs are to be built with the same definition",
            self.shape
        ))
    }

    pub(crate) fn desk(&self) -> Option<Arc<ServiceQueue>> {
        self.desk.lock().clone()
    }

    /// From now on somebody serves it. False: somebody does already.
    pub(crate) fn is_served_by(&self, desk: &Arc<ServiceQueue>) -> bool {
        let mut own = self.desk.lock();
        let free = own.is_none();
        if free {
            *own = Some(desk.clone());
        }
        free
    }

    /// Nobody does any more: who has brought a lane is told, by the end of its connection.
    pub(crate) fn is_served_no_more(&self) {
        *self.desk.lock() = None;
        let guests =
            self.inner().guests.iter().map(|known| known.guest.clone()).collect::<Vec<_>>();
        guests
            .iter()
            .filter(|guest| guest.invokes.load(Ordering::Relaxed))
            .for_each(|guest| guest.hang_up());
    }

    /// Gives one who asks the memory, and a place, if it may write.
    pub(crate) fn open(
        &self,
        guest: &ObjectPeer,
        shape: u64,
    ) -> Result<Option<(Option<u16>, OwnedFd)>, String> {
        let grant = self.may(guest, shape)?;
        let writes = grant == Grant::ReadWrite && !self.body.is_sealed();
        if self.body.state() == BodyState::Poisoned {
            return Err(
                "a process ended in the middle of an operation, and it could not be repaired: it has to be made anew".into()
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

    /// One who had connected is gone.
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
    /// Nobody at home has it any more: its name is free, and others are told.
    pub(crate) fn close(&self) {
        self.is_left.store(true, Ordering::Relaxed);
        self.stir.call();
        names::leave_object(&self.name, &self.socket);
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
    /// Again, for one that no handle was made for.
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
