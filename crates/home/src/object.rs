//! An object at its home: who may use it, in which place, and what becomes of it when one of them
//! dies.
//!
//! The clerk takes over the locks and places of dead processes. It does not need the home's own
//! threads for that. So the waiters for a dead holder's lock wait for the clerk only.
//!
//! Long work is left to the *heir*: a thread of one object that exists only while there is such
//! work. The heir repairs an object whose operation ended in the middle. It also frees the places
//! of the dead if a live party holds the lock for long. Each death wakes the heir, so its pauses
//! delay only the freeing of places.

use crate::account;
use crate::body::{Body, Ours, State};
pub use crate::builder::HomeBuilder;
use crate::desk::Desk;
use crate::guest::{End, Guest};
use crate::types::DataError;
use crate::types::check::Pages;
use crate::waiting;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use upcall_directory::clerk::{Clerk, Watched};
use upcall_directory::names;
use upcall_os::atomic::{AtomicBool, AtomicUsize, Ordering};
use upcall_os::fault::{Point, point};
use upcall_os::lock::{Condvar, Mutex, MutexGuard};
use upcall_os::poll::Report;
use upcall_os::socket::Peer;
use upcall_sched::ceilings::is_bounded;
use upcall_shm::hybrid::{Inherited, PLACES};
use upcall_shm::span::Room;

/// The place of the clerk, and of who stands in for it.
const CLERKS: u16 = 0;

/// Shortest and longest pause of the heir between two tries for a lock that a live party keeps.
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(100);

/// Longest pause of the heir after a repair.
const MOST: Duration = Duration::from_secs(1);

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
pub(crate) type Policy = Box<dyn Fn(&Peer) -> Result<Grant, String> + Send + Sync>;

/// An object whose operation ended in the middle.
pub(crate) struct Damaged<'a> {
    pub(crate) room: Room<'a>,
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
    policy: Policy,
    inner: Mutex<Register>,
    settling: Mutex<Settling>,
    /// Wakes the heir.
    stir: Arc<Stir>,
    /// The last handle at home is gone.
    is_left: Arc<AtomicBool>,
    /// What the clerk knows its door by.
    door: OnceLock<u64>,
    /// Where the thread sleeps that serves it.
    desk: Mutex<Option<Arc<Desk>>>,
    /// So many handles are there at home.
    pub(crate) handles: AtomicUsize,
}

#[derive(Default)]
struct Register {
    /// Those that are taken, a bit for each.
    places: [u64; PLACES as usize / 64],
    guests: Vec<KnownGuest>,
    /// Buried, but not known yet to be out of everybody's mind.
    dead: Vec<Dead>,
    /// The process that ended in the middle of the operation that tore the object.
    torn_by: Option<u32>,
    /// The heir exists. It checks for work before it ends.
    heir: bool,
}

/// What is left to do after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Nothing,
    /// A live party holds the lock, and places of the dead are still to be freed.
    Lock,
    /// The object is to be repaired, which may take long.
    Repair,
}

/// Wakes one thread. A call before the wait ends the wait at once.
#[derive(Default)]
struct Stir {
    is_called: Mutex<bool>,
    call: Condvar,
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

struct KnownGuest {
    guest: Arc<Guest>,
    /// What the clerk knows it by, and the end of its process.
    keys: [Option<u64>; 2],
}

#[derive(Clone, Copy)]
struct Dead {
    place: u16,
    pid: u32,
    user: u32,
    waited: bool,
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

impl Register {
    fn take_place(&mut self) -> Option<u16> {
        let (number, word) =
            self.places.iter_mut().enumerate().find(|(_, word)| **word != u64::MAX)?;
        let bit = word.trailing_ones();
        *word |= 1 << bit;
        Some(number as u16 * 64 + bit as u16)
    }

    /// Takes a place for a guest. All guests of one user, other than the home's own and root, have
    /// no more places together than are left for others; those of its dead guests count until they
    /// are free.
    fn take_place_for(&mut self, user: u32) -> Result<u16, String> {
        if is_bounded(user) {
            let living = self.guests.iter().map(|known| &known.guest);
            let living = living.filter(|guest| {
                guest.peer().uid == user && matches!(guest.place.get(), Some(Some(_)))
            });
            let theirs =
                living.count() + self.dead.iter().filter(|dead| dead.user == user).count() + 1;
            let taken: u32 = self.places.iter().map(|word| word.count_ones()).sum();
            let left = usize::from(PLACES).saturating_sub(taken as usize + 1);
            if theirs > left {
                return Err(format!(
                    "the processes of user {user} would have {theirs} of its {} places, more than would be left for others",
                    PLACES - 1
                ));
            }
        }
        self.take_place().ok_or_else(|| format!("{} use it already, and no more can", PLACES - 1))
    }

    fn give_place(&mut self, place: u16) {
        self.places[usize::from(place) / 64] &= !(1 << (place % 64));
    }
}

impl HomeObject {
    /// An object that no guest has found yet, and whose door is not watched yet.
    pub(crate) fn new(
        name: String,
        socket: PathBuf,
        shape: u64,
        body: Body,
        policy: Policy,
        settling: Settling,
    ) -> Self {
        Self {
            name,
            socket,
            shape,
            body,
            policy,
            inner: Mutex::new(Register { places: [1, 0, 0, 0], ..Register::default() }),
            settling: Mutex::new(settling),
            stir: Arc::default(),
            is_left: Arc::default(),
            door: OnceLock::new(),
            desk: Mutex::default(),
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
    pub(crate) fn admit(self: &Arc<Self>, guest: Arc<Guest>) {
        let Ok(clerk) = Clerk::current() else { return };
        let end: Option<Arc<dyn Watched>> = guest.end().map(|process| {
            Arc::new(End { process, guest: Arc::downgrade(&guest) }) as Arc<dyn Watched>
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
        self.desk.lock().clone()
    }

    /// From now on somebody serves it. False: somebody does already.
    pub(crate) fn is_served_by(&self, desk: &Arc<Desk>) -> bool {
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
        guest: &Guest,
        shape: u64,
    ) -> Result<Option<(Option<u16>, OwnedFd)>, String> {
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
        self.inner().dead.push(Dead {
            place,
            pid: guest.peer().pid,
            user: guest.peer().uid,
            waited,
        });
        self.settle();
    }

    /// Takes over from dead processes, and starts or wakes the heir if a repair is due. Takes some
    /// microseconds.
    pub(crate) fn settle(self: &Arc<Self>) {
        if self.take_from_the_dead() == Left::Nothing {
            return;
        }
        let is_there = std::mem::replace(&mut self.inner().heir, true);
        self.stir.call();
        if is_there {
            return;
        }
        let (weak, stir) = (Arc::downgrade(self), self.stir.clone());
        let heir = move || Self::inherits(&weak, &stir);
        let begun = std::thread::Builder::new()
            .name("upcall-heir".into())
            .stack_size(256 << 10)
            .spawn(heir);
        if begun.is_err() {
            // No thread is left. The next death tries again, but a repair might never come: no
            // operation waits for it.
            self.inner().heir = false;
            if self.body.state() == State::Torn {
                self.body.set_state(State::Poisoned);
            }
        }
    }

    /// The heir's work. It ends when nothing is left to do.
    fn inherits(weak: &Weak<Self>, stir: &Stir) {
        let mut pause = SHORTEST;
        while let Some(object) = weak.upgrade() {
            let left = match object.take_from_the_dead() {
                Left::Repair => {
                    let begun = Instant::now();
                    let left = object.repair();
                    // A live party can tear the object again and again. This caps the cost at half
                    // of a processor.
                    std::thread::sleep(begun.elapsed().min(MOST));
                    left
                }
                left => left,
            };
            match left {
                Left::Nothing if object.has_no_heir() => return,
                Left::Lock => {
                    // The object may be dropped during the pause.
                    drop(object);
                    stir.wait(pause);
                    pause = (pause * 2).min(LONGEST);
                }
                _ => pause = SHORTEST,
            }
        }
    }

    /// Returns `true` if the heir may end: no work has arrived since its last attempt.
    fn has_no_heir(&self) -> bool {
        let mut inner = self.inner();
        let goes = self.left(&inner) == Left::Nothing;
        inner.heir = !goes;
        goes
    }

    fn left(&self, inner: &Register) -> Left {
        if self.is_left.load(Ordering::Relaxed) {
            Left::Nothing
        } else if self.body.state() == State::Torn {
            Left::Repair
        } else if inner.dead.is_empty() {
            Left::Nothing
        } else {
            Left::Lock
        }
    }

    /// Takes the lock from a dead holder and frees the places of the dead. An object that was left
    /// in the middle is marked as torn, so no operation starts on it until it is repaired.
    fn take_from_the_dead(&self) -> Left {
        // The heir is repairing. It checks for more work before it ends.
        let Some(settling) = self.settling.try_lock() else { return Left::Repair };
        let party = &settling.party;
        let dead = {
            let inner = self.inner();
            if inner.dead.is_empty() {
                return self.left(&inner);
            }
            inner.dead.clone()
        };
        party.need();
        let had = self.inherit(party, &dead);
        party.need_no_more();
        let Some(died) = had else { return Left::Lock };
        if died.is_some() && self.body.state() == State::Whole {
            self.body.set_state(State::Torn);
        }
        party.unlock();
        let mut inner = self.inner();
        inner.torn_by = died.or(inner.torn_by);
        // No holder of the lock, now or since, relies on them.
        inner.dead.retain(|other| !dead.iter().any(|seen| seen.place == other.place));
        dead.iter().for_each(|dead| self.leaves(&mut inner, dead.place));
        self.left(&inner)
    }

    /// Repairs or poisons an object that is torn. Blocks for as long as that takes.
    fn repair(&self) -> Left {
        let mut settling = self.settling.lock();
        let Settling { party, repair } = &mut *settling;
        if !waiting::lock_at_home(party, Some(LONGEST), |place| self.is_known(place)) {
            return Left::Lock;
        }
        if self.body.state() == State::Torn {
            let changing = party.sequence().begin();
            let torn = self.inner().torn_by.map_or(Torn::Panicked, |pid| Torn::Died { pid });
            let judged = catch_unwind(AssertUnwindSafe(|| {
                point(Point::ObjectRepairs);
                let is_left = self.is_left.clone();
                let goes_on = Box::new(move || {
                    std::thread::yield_now();
                    !is_left.load(Ordering::Relaxed)
                });
                repair(Damaged { room: self.body.data(), pages: self.body.pages(), goes_on }, torn)
            }));
            let verdict = judged.unwrap_or(Verdict::Poison);
            self.inner().torn_by = None;
            self.body.set_state(if verdict == Verdict::Keep {
                State::Whole
            } else {
                State::Poisoned
            });
            party.sequence().end(changing);
        }
        party.unlock();
        self.left(&self.inner())
    }

    /// Has the lock, from one of the dead or otherwise; and then the process that has left it in
    /// the middle of an operation, if one has. `None`: another one has it.
    fn inherit(&self, party: &Ours, dead: &[Dead]) -> Option<Option<u32>> {
        for one in dead {
            match party.inherit(one.place, one.waited) {
                Some(Inherited::Torn) => return Some(Some(one.pid)),
                Some(Inherited::Nothing | Inherited::Whole) => return Some(None),
                None => {}
            }
        }
        self.has_lock(party).then_some(None)
    }

    /// Takes the lock if it is free, or if it names a place that no party is in.
    fn has_lock(&self, party: &Ours) -> bool {
        party.try_lock_at_home()
            || party.holder().is_some_and(|holder| !self.is_known(holder) && party.seize(holder))
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
mod tests {
    use super::*;
    use crate::error::AccessError;
    use crate::handle::Handle;
    use crate::homed::Homed;
    use crate::types::{List, Map, Queue, Shared, Text};
    use std::sync::mpsc;

    /// Guards against hanging.
    const GUARD: Duration = Duration::from_secs(60);

    /// Far behind all that the types of an object use at first.
    const FAR: u64 = 1 << 30;

    fn name(of: &str) -> String {
        format!("{of}-{}", std::process::id())
    }

    fn eventually(what: &str, so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !so() {
            assert!(begun.elapsed() < GUARD, "{what}");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Ends an operation in the middle.
    fn tear(handle: &Handle, operation: impl FnOnce(Room<'_>)) {
        let torn = catch_unwind(AssertUnwindSafe(|| {
            handle.access(|room| {
                operation(room);
                std::panic::resume_unwind(Box::new("in the middle"));
            })
        }));
        assert!(torn.is_err());
    }

    /// Writes these words into an object of 16 GiB as a guest that ends in the middle of an
    /// operation. Returns the home's verdict, and the number of bytes that the home's check
    /// allocated in the object.
    fn left_behind<T: Shared>(words: &[(u64, u64)]) -> (Result<(), AccessError>, u64) {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = name(&format!("left-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        let making = Homed::<T>::create(&name).room(16 << 30).repair(|_, _| Verdict::Keep);
        let home = making.with(|_| Ok(())).unwrap().patience(Some(GUARD));
        let guest = Homed::<T>::find(&name).unwrap();
        let object = home.handle().object().unwrap();
        let before = AtomicUsize::new(0);
        tear(guest.handle(), |room| {
            words.iter().for_each(|&(at, word)| room.put_u64(at as usize, word).unwrap());
            before.store(object.body.allocated() as usize, Ordering::Relaxed);
        });
        let found = home.access(|_| Ok(()));
        (found, object.body.allocated() - before.load(Ordering::Relaxed) as u64)
    }

    /// Some pages for the arena's words and the ends of what is free.
    const SOME: u64 = 16 * 4096;

    #[test]
    fn a_list_that_leads_back_into_itself_ends_where_it_does() {
        // The root is 64 bytes with the list; its element is far behind, and is its own successor.
        let words =
            [(0, FAR), (8, FAR), (16, 1), (FAR - 8, 32), (FAR, FAR), (FAR + 8, 0), (FAR + 16, 7)];
        let (found, touched) = left_behind::<List<u64>>(&words);
        assert_eq!(found, Err(AccessError::Poisoned));
        assert!(touched <= SOME, "{touched} bytes");
        // The same without that is whole.
        let (found, touched) = left_behind::<List<u64>>(
            &words.map(|(at, word)| (at, if at == FAR { 0 } else { word })),
        );
        assert_eq!(found, Ok(()));
        assert!(touched <= SOME, "{touched} bytes");
    }

    #[test]
    fn what_was_never_touched_is_not_touched_by_the_check() {
        // A table of 2^26 buckets, none of which exists.
        let map = [(0, FAR), (FAR - 8, 64), (FAR, 26)];
        let (found, touched) = left_behind::<Map<u64, u64>>(&map);
        assert_eq!(found, Ok(()));
        assert!(touched <= SOME, "{touched} bytes");
        // An honest party writes all of an entry, a key and a text. One that does not exist is
        // corrupt.
        let bucket = (FAR + 8).next_multiple_of(64);
        let entries =
            (1..8).map(|slot| (bucket + slot * 8, FAR * 4 + slot * 4096)).collect::<Vec<_>>();
        let (found, touched) = left_behind::<Map<u64, u64>>(&[&map[..], &entries].concat());
        assert_eq!(found, Err(AccessError::Poisoned));
        assert!(touched <= SOME, "{touched} bytes");
        let (found, touched) = left_behind::<Text>(&[(0, FAR), (FAR - 8, 64), (FAR, 8 << 30)]);
        assert_eq!(found, Err(AccessError::Poisoned));
        assert!(touched <= SOME, "{touched} bytes");
        // A queue with 2^28 elements.
        let queue = [(0, FAR), (FAR - 8, 64), (FAR, 1 << 28), (FAR + 8, 0), (FAR + 16, 1 << 28)];
        let (found, touched) = left_behind::<Queue<u64>>(&queue);
        assert_eq!(found, Err(AccessError::Poisoned));
        assert!(touched <= SOME, "{touched} bytes");
        let (found, touched) = left_behind::<Queue<()>>(&[
            (0, FAR),
            (FAR - 8, 64),
            (FAR, 1 << 60),
            (FAR + 16, 1 << 60),
        ]);
        assert_eq!(found, Ok(()));
        assert!(touched <= SOME, "{touched} bytes");
    }

    /// Every place is taken by a process that died while the lock was held, so no place is free
    /// yet.
    #[test]
    fn the_processes_of_one_user_leave_half_of_the_places() {
        let stranger = upcall_os::socket::own_user() + 1;
        let mut inner = Register { places: [1, 0, 0, 0], ..Register::default() };
        let all = usize::from(PLACES) - 1;
        let mut taken = 0;
        for user in [stranger, stranger + 1] {
            let left = all - taken;
            let why = loop {
                match inner.take_place_for(user) {
                    Ok(place) => inner.dead.push(Dead { place, pid: 1, user, waited: false }),
                    Err(why) => break why,
                }
            };
            let theirs = inner.dead.iter().filter(|dead| dead.user == user).count();
            assert_eq!(theirs, left / 2, "{why}");
            assert!(
                why.contains(&format!("user {user}")) && why.contains("left for others"),
                "{why}"
            );
            taken += theirs;
        }
        // The home's own user may take what is left.
        for _ in taken..all {
            inner.take_place_for(stranger - 1).unwrap();
        }
        assert!(inner.take_place_for(stranger - 1).is_err());
    }

    /// The clerk admits guests and reports deaths during the repair.
    #[test]
    fn a_repair_that_takes_long_holds_up_nobody_who_has_another_object() {
        let (begun, begins) = mpsc::channel();
        let (goes_on, may_go_on) = mpsc::channel::<()>();
        let repair = move |_: Room<'_>, torn| {
            begun.send((torn, std::thread::current().name().map(String::from))).unwrap();
            may_go_on.recv_timeout(GUARD).unwrap();
            Verdict::Keep
        };
        let home = HomeBuilder::new(&name("long"), 64)
            .repair(repair)
            .create(7, |_| ())
            .unwrap()
            .patience(Some(GUARD));
        let other = HomeBuilder::new(&name("beside"), 64).create(7, |_| ()).unwrap();
        let (guest, lasting) =
            (Handle::find(&name("long"), 7).unwrap(), Handle::find(&name("long"), 7).unwrap());
        tear(&guest, |room| room.put_u64(0, 1).unwrap());
        assert_eq!(begins.recv_timeout(GUARD), Ok((Torn::Panicked, Some("upcall-heir".into()))));
        // A guest leaves, and another one comes.
        drop(lasting);
        let away = Handle::find(&name("beside"), 7).unwrap();
        assert_eq!(away.access(|room| room.u64(0)), Ok(Some(0)));
        drop(other);
        eventually("its end is known", || away.access(|_| ()) == Err(AccessError::Ended));
        goes_on.send(()).unwrap();
        assert_eq!(home.access(|room| room.u64(0)), Ok(Some(1)));
        eventually("the place is given back", || home.object().unwrap().inner().dead.is_empty());
    }

    /// The heir pauses for an hour here while a live party holds the lock. Only the holder's
    /// death ends the pause.
    #[test]
    fn the_death_of_a_holder_is_acted_on_when_it_is_known() {
        let repair = |_: Room<'_>, torn| {
            assert!(matches!(torn, Torn::Died { .. }), "{torn:?}");
            Verdict::Keep
        };
        let home = HomeBuilder::new(&name("holder"), 64)
            .repair(repair)
            .create(7, |_| ())
            .unwrap()
            .patience(Some(GUARD));
        let [holder, other] = [(); 2].map(|()| Handle::find(&name("holder"), 7).unwrap());
        let object = home.object().unwrap();
        object.stir.is_endless.store(true, Ordering::Relaxed);
        assert!(holder.enters());
        // Its place cannot be freed while the lock is held.
        drop(other);
        eventually("the heir pauses", || object.stir.waits.load(Ordering::Relaxed) > 0);
        holder.dies();
        assert_eq!(home.access(|room| room.u64(0)), Ok(Some(0)));
        eventually("the places are given back", || object.inner().dead.is_empty());
    }
}
