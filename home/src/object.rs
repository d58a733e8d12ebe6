//! An object at its home: who may use it, in which place, and what becomes of it when one of them dies.
//!
//! All that happens to others runs on the clerk, whatever the home's own threads do: so who waits for the lock of one that was killed waits for the clerk, and not for the home to come to it.

use crate::account;
use crate::body::{Body, Ours, State};
use crate::error::CreateError;
use crate::guest::{Door, End, Guest};
use crate::handle::Handle;
use crate::serving::Desk;
use crate::types::DataError;
use std::fmt;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;
use upcall_os::fault::{Point, point};
use upcall_os::poll::Report;
use upcall_os::socket::Peer;
use upcall_shm::hybrid::{Inherited, PLACES};
use upcall_shm::span::Room;
use upcall_transfer::clerk::{Clerk, Watched};
use upcall_transfer::names::{self, Whose};

/// The place of the clerk, and of who stands in for it.
const CLERKS: u16 = 0;

/// So often the clerk itself tries to have the lock of one who has died; then a thread of its own goes on.
const TRIES: u32 = 256;

/// The longest pause between two tries of that thread.
const LONGEST: Duration = Duration::from_millis(100);

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
    /// It is of no use any more: all operations fail from now on ([`AccessError::Poisoned`](crate::AccessError::Poisoned)).
    Poison,
}

type Repair = Box<dyn FnMut(Room<'_>, Torn) -> Verdict + Send>;
type Policy = Box<dyn Fn(&Peer) -> Result<Grant, String> + Send + Sync>;

/// What somebody may do with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Have its home run operations, as far as that serves it. Its memory is not even handed over.
    Invoke,
    /// That, and look at all of it ([`Handle::read`]). Its memory is mapped for reading only.
    Read,
    /// Everything; and change all of it at any time, whatever its types say.
    ReadWrite,
}

/// How to make an object.
#[must_use]
pub struct Creating {
    name: String,
    length: u64,
    sealed: bool,
    repair: Repair,
    policy: Policy,
}

impl fmt::Debug for Creating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Creating").field("name", &self.name).field("length", &self.length).finish_non_exhaustive()
    }
}

impl Creating {
    /// One of this name, with `length` bytes of data, all zero at first, of which only those take memory that are touched.
    pub fn new(name: &str, length: u64) -> Self {
        let same_user = |peer: &Peer| match upcall_os::socket::own_user() {
            own if own == peer.uid => Ok(Grant::ReadWrite),
            own => Err(format!("it is for programs of user {own}, and this is one of user {}", peer.uid)),
        };
        Self { name: name.into(), length, sealed: false, repair: Box::new(|_, _| Verdict::Poison), policy: Box::new(same_user) }
    }

    /// With so many bytes of data.
    pub(crate) fn length(self, length: u64) -> Self {
        Self { length, ..self }
    }

    /// Has this look at the data when an operation has ended in the middle, and put them right if it can. It has the object to itself meanwhile; it runs on the domain's clerk, so it is to be short, and may not
    /// block. A panic of it poisons the object, and so does each such end if there is none.
    pub fn repair(self, repair: impl FnMut(Room<'_>, Torn) -> Verdict + Send + 'static) -> Self {
        Self { repair: Box::new(repair), ..self }
    }

    /// Has this decide who may do what with the object, in place of: everything, who runs as the same user. What it says when it refuses is told. It runs on the clerk, and may not block.
    pub fn policy(self, policy: impl Fn(&Peer) -> Result<Grant, String> + Send + Sync + 'static) -> Self {
        Self { policy: Box::new(policy), ..self }
    }

    /// Nobody is handed its memory: who may do anything with it may invoke.
    pub(crate) fn only_to_invoke(self) -> Self {
        let policy = self.policy;
        Self { policy: Box::new(move |peer| policy(peer).map(|_| Grant::Invoke)), ..self }
    }

    /// Only its home can ever write it: its memory is sealed, so that the kernel refuses every other writer, whoever it runs as. Others may read, whatever else the policy grants.
    pub fn only_home_writes(self) -> Self {
        Self { sealed: true, ..self }
    }

    /// Makes it, with data that `init` writes before anybody else finds it. Blocks for some 0.1 ms, and up to 5 s while a process that had the name before is just ending.
    ///
    /// # Errors
    /// See [`CreateError`].
    ///
    /// # Panics
    /// If `init` does; then there is no object.
    pub fn create(self, shape: u64, init: impl FnOnce(Room<'_>)) -> Result<Handle, CreateError> {
        self.create_with(shape, |room| {
            init(room);
            Ok(())
        })
    }

    /// As [`create`](Self::create), with an `init` that may fail; then there is no object.
    pub(crate) fn create_with(
        self,
        shape: u64,
        init: impl FnOnce(Room<'_>) -> Result<(), DataError>,
    ) -> Result<Handle, CreateError> {
        let unable = |what| move |error| CreateError::Resource { what, error };
        names::check(&self.name).map_err(|why| names::NotEntered::BadName { name: self.name.clone(), why })?;
        let body = Body::create(&self.name, shape, self.length, self.sealed).map_err(unable("memory for the object"))?;
        init(body.data()).map_err(CreateError::Data)?;
        let no_place = || CreateError::Resource { what: "a place in the object", error: std::io::Error::other("none is left") };
        let clerks = body.party(CLERKS).ok_or_else(no_place)?;
        let (socket, listener) = names::listen(Whose::Home)?;
        let object = Arc::new(Object {
            name: self.name,
            socket,
            shape,
            body,
            policy: self.policy,
            inner: Mutex::new(Inner { places: [1, 0, 0, 0], ..Inner::default() }),
            settling: Mutex::new(Settling { party: clerks, repair: self.repair }),
            door: OnceLock::new(),
            desk: Mutex::default(),
            handles: AtomicUsize::new(0),
        });
        let door = Arc::new(Door { listener, object: Arc::downgrade(&object) });
        let key =
            Clerk::current().and_then(|clerk| clerk.watch(door, Report::WhileReadable)).map_err(unable("the clerk's thread"))?;
        let _ = object.door.set(key);
        point(Point::ObjectMade);
        names::enter_object(&object.name, &object.socket)?;
        point(Point::ObjectNamed);
        Handle::at_home(object).ok_or_else(no_place)
    }
}

/// See the module.
pub(crate) struct Object {
    pub(crate) name: String,
    socket: PathBuf,
    shape: u64,
    pub(crate) body: Body,
    policy: Policy,
    inner: Mutex<Inner>,
    settling: Mutex<Settling>,
    /// What the clerk knows its door by.
    door: OnceLock<u64>,
    /// Where the thread sleeps that serves it.
    desk: Mutex<Option<Arc<Desk>>>,
    /// So many handles are there at home.
    pub(crate) handles: AtomicUsize,
}

#[derive(Default)]
struct Inner {
    /// Those that are taken, a bit for each.
    places: [u64; PLACES as usize / 64],
    guests: Vec<Known>,
    /// Buried, but not known yet to be out of everybody's mind.
    dead: Vec<Dead>,
    /// An operation has ended in the middle, with the state set to torn.
    tore: bool,
    /// Somebody sees to those two.
    settling: bool,
}

struct Known {
    guest: Arc<Guest>,
    /// What the clerk knows it by, and the end of its process.
    keys: [Option<u64>; 2],
}

#[derive(Clone, Copy)]
struct Dead {
    place: u16,
    pid: u32,
    waited: bool,
}

struct Settling {
    party: Ours,
    repair: Repair,
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    fn take_place(&mut self) -> Option<u16> {
        let (number, word) = self.places.iter_mut().enumerate().find(|(_, word)| **word != u64::MAX)?;
        let bit = word.trailing_ones();
        *word |= 1 << bit;
        Some(number as u16 * 64 + bit as u16)
    }

    fn give_place(&mut self, place: u16) {
        self.places[usize::from(place) / 64] &= !(1 << (place % 64));
    }
}

impl Object {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        locked(&self.inner)
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
    fn leaves(&self, inner: &mut Inner, place: u16) {
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
        word.and_then(|word| inner.places.get(word)).is_some_and(|word| word >> (place % 64) & 1 != 0)
    }

    /// The same in an interrupt, which waits for nobody: true also if somebody is taking or giving a place just now.
    pub(crate) fn may_be_known(&self, place: u64) -> bool {
        let word = usize::try_from(place / 64).ok();
        let Ok(inner) = self.inner.try_lock() else { return true };
        word.and_then(|word| inner.places.get(word)).is_some_and(|word| word >> (place % 64) & 1 != 0)
    }

    /// Lets in one who has connected.
    pub(crate) fn admit(self: &Arc<Self>, guest: Arc<Guest>) {
        let Ok(clerk) = Clerk::current() else { return };
        let end: Option<Arc<dyn Watched>> =
            guest.end().map(|process| Arc::new(End { process, guest: Arc::downgrade(&guest) }) as Arc<dyn Watched>);
        self.inner().guests.push(Known { guest: guest.clone(), keys: [None; 2] });
        let own = clerk.watch(guest.clone(), Report::WhileReadable).ok();
        let end = end.and_then(|end| clerk.watch(end, Report::WhileReadable).ok());
        if let Some(known) = self.inner().guests.iter_mut().find(|known| Arc::ptr_eq(&known.guest, &guest)) {
            known.keys = [own, end];
        }
        if own.is_none() {
            self.lost(&guest);
        }
    }

    /// What one who takes it for this may do.
    pub(crate) fn may(&self, guest: &Guest, shape: u64) -> Result<Grant, String> {
        let grant = (self.policy)(guest.peer())?;
        if shape == self.shape {
            return Ok(grant);
        }
        Err(format!(
            "it is of another type: its shape is {:016x}, and {shape:016x} was asked for. Both programs are to be built with the same definition",
            self.shape
        ))
    }

    pub(crate) fn desk(&self) -> Option<Arc<Desk>> {
        locked(&self.desk).clone()
    }

    /// From now on somebody serves it. False: somebody does already.
    pub(crate) fn is_served_by(&self, desk: &Arc<Desk>) -> bool {
        let mut own = locked(&self.desk);
        let free = own.is_none();
        if free {
            *own = Some(desk.clone());
        }
        free
    }

    /// Nobody does any more: who has brought a lane is told, by the end of its connection.
    pub(crate) fn is_served_no_more(&self) {
        *locked(&self.desk) = None;
        let guests = self.inner().guests.iter().map(|known| known.guest.clone()).collect::<Vec<_>>();
        guests.iter().filter(|guest| guest.invokes.load(Ordering::Relaxed)).for_each(|guest| guest.hang_up());
    }

    /// Gives one who asks the memory, and a place, if it may write.
    pub(crate) fn open(&self, guest: &Guest, shape: u64) -> Result<Option<(Option<u16>, OwnedFd)>, String> {
        let grant = self.may(guest, shape)?;
        let writes = grant == Grant::ReadWrite && !self.body.is_sealed();
        if self.body.state() == State::Poisoned {
            return Err(
                "a process ended in the middle of an operation, and it could not be repaired: it has to be made anew".into()
            );
        }
        if grant == Grant::Invoke {
            return Ok(None);
        }
        let memory = self.body.descriptor(writes).map_err(|error| format!("its memory cannot be handed over: {error}"))?;
        if !writes {
            return Ok(Some((None, memory)));
        }
        let place = self.inner().take_place().ok_or_else(|| format!("{} use it already, and no more can", PLACES - 1))?;
        if let Some(party) = self.body.party(CLERKS) {
            party.is_of(place, guest.peer().pid);
        }
        Ok(Some((Some(place), memory)))
    }

    /// One who had connected is gone.
    pub(crate) fn lost(self: &Arc<Self>, guest: &Guest) {
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
        self.inner().dead.push(Dead { place, pid: guest.peer().pid, waited });
        self.settle();
    }

    /// Sees to those who have died, and to what they have left. Does not wait for long.
    pub(crate) fn settle(self: &Arc<Self>) {
        let mut inner = self.inner();
        inner.tore |= self.body.state() == State::Torn;
        if std::mem::replace(&mut inner.settling, true) {
            // Who is at it looks again when it has done.
            return;
        }
        drop(inner);
        if (0..TRIES).any(|_| {
            let done = self.try_settle();
            if !done {
                std::thread::yield_now();
            }
            done
        }) {
            return;
        }
        // Somebody has the lock for long. Whatever happens meanwhile is seen to by the same thread.
        let weak = Arc::downgrade(self);
        let go_on = move || {
            let mut pause = Duration::from_millis(1);
            while Weak::upgrade(&weak).is_some_and(|object| !object.try_settle()) {
                std::thread::sleep(pause);
                pause = (pause * 2).min(LONGEST);
            }
        };
        let begun = std::thread::Builder::new().name("upcall-heir".into()).stack_size(256 << 10).spawn(go_on);
        if begun.is_err() {
            // No thread is left. The next one who comes tries again.
            self.inner().settling = false;
        }
    }

    /// One turn. True if there was nothing left to see to.
    fn try_settle(&self) -> bool {
        let mut settling = locked(&self.settling);
        let Settling { party, repair } = &mut *settling;
        let (dead, tore) = {
            let mut inner = self.inner();
            inner.tore |= self.body.state() == State::Torn;
            if inner.dead.is_empty() && !inner.tore {
                inner.settling = false;
                return true;
            }
            (inner.dead.clone(), inner.tore)
        };
        party.need();
        let had = self.inherit(party, &dead);
        party.need_no_more();
        let Some(died) = had else { return false };
        let changing = party.sequence().begin();
        let torn = died.map(|pid| Torn::Died { pid }).or((tore || self.body.state() == State::Torn).then_some(Torn::Panicked));
        if let Some(torn) = torn.filter(|_| self.body.state() != State::Poisoned) {
            let judged = catch_unwind(AssertUnwindSafe(|| {
                point(Point::ObjectRepairs);
                repair(self.body.data(), torn)
            }));
            let verdict = judged.unwrap_or(Verdict::Poison);
            self.body.set_state(if verdict == Verdict::Keep { State::Whole } else { State::Poisoned });
        }
        party.sequence().end(changing);
        party.unlock();
        let mut inner = self.inner();
        inner.tore = false;
        // Nobody who has the lock, or had it since, has them in mind.
        inner.dead.retain(|other| !dead.iter().any(|seen| seen.place == other.place));
        dead.iter().for_each(|dead| self.leaves(&mut inner, dead.place));
        // Others may have come meanwhile.
        false
    }

    /// Has the lock, from one of the dead or otherwise; and then the process that has left it in the middle of an operation, if one has. `None`: another one has it.
    fn inherit(&self, party: &Ours, dead: &[Dead]) -> Option<Option<u32>> {
        for one in dead {
            match party.inherit(one.place, one.waited) {
                Some(Inherited::Torn) => return Some(Some(one.pid)),
                Some(Inherited::Nothing | Inherited::Whole) => return Some(None),
                None => {}
            }
        }
        let taken =
            party.try_lock_at_home() || party.holder().is_some_and(|holder| !self.is_known(holder) && party.seize(holder));
        taken.then_some(None)
    }
}

impl Object {
    /// Nobody at home has it any more: its name is free, and others are told.
    pub(crate) fn close(&self) {
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

impl Drop for Object {
    /// Again, for one that no handle was made for.
    fn drop(&mut self) {
        self.close();
    }
}
