//! Handles to objects, at home or elsewhere, through which operations are run.

mod read;

use crate::account::{Counts, HandleStats};
use crate::asking::InvocationClient;
use crate::away::{GrantedMemory, RemoteObject};
use crate::body::{Body, BodyState, Ours};
use crate::choices::Choices;
use crate::error::{AccessError, FindError};
use crate::failure::InvokeError;
use crate::far::client::{self, FarObject};
use crate::far::place::HomePlace;
use crate::finder::FindTerms;
use crate::interrupts::keep_off;
use crate::object::{Grant, HomeObject};
use crate::scratch::Scratch;
use crate::types::DataError;
use crate::types::check::Pages;
use crate::waiting;
use crate::wire::OperationKind;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_directory::policy::Policy;
use upcall_os::atomic::Ordering;
use upcall_os::fault::{Point, point};
use upcall_shm::sequence::Changing;
use upcall_shm::span::{Span, WritableSpan};

/// A handle to an object, at its home or elsewhere.
///
/// It is used by one thread at a time: other threads have handles of their own
/// ([`try_clone`](Self::try_clone)). An object has at most 255 handles at a time, of all processes
/// together.
pub struct Handle {
    side: ObjectLocation,
    /// The lane to the home, once an invocation needed one.
    asking: RefCell<Option<InvocationClient>>,
    /// An operation is under way.
    busy: Cell<bool>,
    patience: Option<Duration>,
    /// The choices of [`auto`](crate::Homed::auto).
    pub(crate) choices: Choices,
    account: HandleStats,
    pub(crate) scratch: Scratch,
}

enum ObjectLocation {
    Home(Arc<HomeObject>, Ours),
    Away(RemoteObject),
    /// On another host.
    Far(FarObject),
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.writing().map(|(party, _)| party.place());
        f.debug_struct("Handle")
            .field("name", &self.name())
            .field("home", &self.is_home())
            .field("place", &place)
            .finish_non_exhaustive()
    }
}

/// What an operation does with the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Does {
    Changes,
    /// Only reads, so that reads without the lock stay valid beside it.
    Looks,
}

/// Why an operation is not run in an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotNow {
    /// Another party holds the lock for long, or the home has to decide first. The end of this is
    /// not notified.
    Held,
    /// See [`AccessError::Poisoned`].
    Poisoned,
}

/// The operation under way, which releases the lock at its end.
struct AccessGuard<'a> {
    handle: &'a Handle,
    party: &'a Ours,
    body: &'a Body,
    changing: Changing,
    /// The operation has run to its end.
    done: bool,
}

impl Drop for AccessGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.done {
            self.party.sequence().end(self.changing);
            self.party.unlock();
        } else {
            self.handle.tear(self.party, self.body, self.changing);
        }
    }
}

/// A read under the lock. Its end releases the lock.
struct LockedRead<'a>(&'a Ours);

impl Drop for LockedRead<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.unlock();
    }
}

/// Frees the handle when it is dropped.
struct BusyGuard<'a>(&'a Cell<bool>);

impl Drop for BusyGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Handle {
    /// A handle at the object's home.
    pub(crate) fn at_home(object: Arc<HomeObject>) -> Option<Self> {
        let party = object.take_place()?;
        object.handles.fetch_add(1, Ordering::Relaxed);
        Some(Self::new(ObjectLocation::Home(object, party)))
    }

    /// Finds the object with this name, which must have this shape.
    ///
    /// Takes about 0.1 ms, and up to 5 s if its home is stopped.
    ///
    /// # Errors
    /// See [`FindError`].
    pub fn find(name: &str, shape: u64) -> Result<Self, FindError> {
        Self::try_find(name, shape, FindTerms::default()).map_err(FindError::with_hint)
    }

    /// Like [`find`](Self::find), at a home that `accepts` accepts.
    ///
    /// # Errors
    /// See [`FindError`].
    pub fn find_expecting(name: &str, shape: u64, accepts: Arc<Policy>) -> Result<Self, FindError> {
        let terms = FindTerms { accepts, ..FindTerms::default() };
        Self::try_find(name, shape, terms).map_err(FindError::with_hint)
    }

    /// Finds the object, and looks for no hint if there is none.
    pub(crate) fn try_find(name: &str, shape: u64, terms: FindTerms) -> Result<Self, FindError> {
        Ok(Self::new(match client::parse(name)? {
            Some(at) => ObjectLocation::Far(FarObject::find(name, at, shape, terms)?),
            None => ObjectLocation::Away(RemoteObject::find(name, shape, terms.accepts)?),
        }))
    }

    fn new(side: ObjectLocation) -> Self {
        Self {
            side,
            asking: RefCell::default(),
            busy: Cell::new(false),
            patience: None,
            choices: Choices::default(),
            account: HandleStats::default(),
            scratch: Scratch::default(),
        }
    }

    /// Makes another handle to the same object, for another thread.
    ///
    /// # Errors
    /// All places of the object are taken; or, elsewhere than at home, as [`find`](Self::find).
    pub fn try_clone(&self) -> Result<Self, FindError> {
        let full = || FindError::Refused {
            name: self.name().into(),
            why: "all its places are taken".into(),
        };
        let mut new = match &self.side {
            ObjectLocation::Home(object, _) => Self::at_home(object.clone()).ok_or_else(full)?,
            ObjectLocation::Away(away) => {
                Self::find_expecting(&away.name, away.shape, away.accepts.clone())?
            }
            ObjectLocation::Far(far) => Self::new(ObjectLocation::Far(far.find_again()?)),
        };
        new.patience = self.patience;
        Ok(new)
    }

    /// Sets the maximum time that operations wait for other parties.
    ///
    /// By default they wait for ever.
    ///
    /// A waiting thread takes no processor time for long, and a party that dies is not waited for.
    #[must_use]
    pub fn patience(mut self, patience: Option<Duration>) -> Self {
        self.patience = patience;
        self
    }

    /// The object's name. For an object on another host, the name in its address.
    pub fn name(&self) -> &str {
        match &self.side {
            ObjectLocation::Far(far) => &far.at.name,
            ObjectLocation::Home(object, _) => &object.name,
            ObjectLocation::Away(away) => &away.name,
        }
    }

    /// Returns `true` if this process is the object's home.
    pub fn is_home(&self) -> bool {
        matches!(self.side, ObjectLocation::Home(..))
    }

    /// Length of the data, in bytes; 0 if the object may only be invoked.
    pub fn length(&self) -> usize {
        match &self.side {
            ObjectLocation::Away(RemoteObject { memory: GrantedMemory::View(view), .. }) => {
                view.length()
            }
            ObjectLocation::Away(RemoteObject { memory: GrantedMemory::Body(body, _), .. }) => {
                body.length()
            }
            ObjectLocation::Away(_) | ObjectLocation::Far(_) => 0,
            ObjectLocation::Home(object, _) => object.body.length(),
        }
    }

    /// The object, at its home.
    pub(crate) fn object(&self) -> Option<Arc<HomeObject>> {
        match &self.side {
            ObjectLocation::Home(object, _) => Some(object.clone()),
            ObjectLocation::Away(_) | ObjectLocation::Far(_) => None,
        }
    }

    /// The addresses at which guests on other hosts connect, at the object's home.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.object().map(|object| object.addresses()).unwrap_or_default()
    }

    /// The address at which other hosts find the object, HOST:PORT, and where its home is, as far
    /// as this process knows.
    pub(crate) fn reached(&self) -> Option<(String, Option<HomePlace>)> {
        match &self.side {
            ObjectLocation::Home(object, _) => Some((object.reached_at()?, HomePlace::own())),
            ObjectLocation::Away(away) => Some((away.reached_at.clone()?, HomePlace::own())),
            ObjectLocation::Far(far) => Some((far.at.server.clone(), far.place)),
        }
    }

    /// Returns `true` if an operation is under way.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.get()
    }

    /// Asks the home to run an operation, and waits for its reply.
    #[track_caller]
    pub(crate) fn ask<R: DeserializeOwned>(
        &self,
        name: &'static str,
        kind: OperationKind,
        args: &impl Serialize,
    ) -> Result<R, InvokeError> {
        let _busy = self.enter().map_err(|_| InvokeError::Nested)?;
        let _kept_off = keep_off();
        let done = match &self.side {
            ObjectLocation::Home(..) => return Err(InvokeError::Ended { asked: false }),
            ObjectLocation::Away(away) => self.ask_near(away, name, kind, args),
            ObjectLocation::Far(far) => far.ask(name, kind, args, self.patience),
        };
        self.count(|counts| match kind {
            OperationKind::Short => counts.urgent += 1,
            OperationKind::MayBlock => counts.invoked += 1,
        });
        done
    }

    /// Asks a home on this host.
    #[track_caller]
    fn ask_near<R: DeserializeOwned>(
        &self,
        away: &RemoteObject,
        name: &'static str,
        kind: OperationKind,
        args: &impl Serialize,
    ) -> Result<R, InvokeError> {
        let mut asking = self.asking.borrow_mut();
        if asking.as_ref().is_some_and(|asking| {
            !asking.is_of_this_thread() || !asking.is_free() || asking.has_ended()
        }) {
            *asking = None;
        }
        let asking = match &mut *asking {
            Some(asking) => asking,
            none => none.insert(
                InvocationClient::open(&away.name, away.shape, &*away.accepts)
                    .map_err(InvokeError::NotServed)?,
            ),
        };
        asking.ask(name, kind, args, self.patience)
    }

    /// Counts what the handle has done.
    pub(crate) fn count(&self, what: impl FnOnce(&mut Counts)) {
        self.account
            .count(self.writing().and_then(|(party, body)| body.account(party.place())), what);
    }

    /// What the home has granted.
    pub fn grant(&self) -> Grant {
        match &self.side {
            ObjectLocation::Away(RemoteObject { memory: GrantedMemory::None, .. })
            | ObjectLocation::Far(_) => Grant::Invoke,
            ObjectLocation::Away(RemoteObject { memory: GrantedMemory::View(_), .. }) => {
                Grant::Read
            }
            _ => Grant::ReadWrite,
        }
    }

    /// The party and the memory, if this handle may write.
    #[inline]
    fn writing(&self) -> Option<(&Ours, &Body)> {
        match &self.side {
            ObjectLocation::Home(object, party) => Some((party, &object.body)),
            ObjectLocation::Away(RemoteObject {
                memory: GrantedMemory::Body(body, party), ..
            }) => Some((party, body)),
            ObjectLocation::Away(_) | ObjectLocation::Far(_) => None,
        }
    }

    /// Why the object cannot be worked on in place.
    #[cold]
    pub(crate) fn not_granted(&self) -> AccessError {
        match &self.side {
            ObjectLocation::Far(_) => AccessError::OtherHost,
            ObjectLocation::Home(..) | ObjectLocation::Away(_) => AccessError::NotGranted,
        }
    }

    /// The pages of the data that exist now.
    pub(crate) fn pages(&self) -> Result<Pages, DataError> {
        match &self.side {
            ObjectLocation::Home(object, _) => object.body.pages(),
            ObjectLocation::Away(RemoteObject { memory: GrantedMemory::Body(body, _), .. }) => {
                body.pages()
            }
            ObjectLocation::Away(RemoteObject { memory: GrantedMemory::View(view), .. }) => {
                view.pages()
            }
            ObjectLocation::Away(RemoteObject { memory: GrantedMemory::None, .. })
            | ObjectLocation::Far(_) => Ok(Pages::All),
        }
    }

    /// Runs an operation on the object in place, under its lock.
    ///
    /// This is Psyche's remote access; at its home, a local one. The operation must not block,
    /// because other parties wait for it. The data that it reads may have been written by any
    /// program that uses the object.
    ///
    /// If the operation panics, the home decides what becomes of the object, as if this process had
    /// ended there.
    ///
    /// # Errors
    /// See [`AccessError`]. The operation was not run then.
    ///
    /// # Blocking
    /// Blocks the thread until the lock is free.
    #[inline]
    pub fn access<R>(
        &self,
        operation: impl FnOnce(WritableSpan<'_>) -> R,
    ) -> Result<R, AccessError> {
        let _busy = self.enter()?;
        let Some((party, body)) = self.writing() else { return Err(self.not_granted()) };
        // Interrupts stay off until the lock is free again.
        let _kept_off = keep_off();
        self.begin(party, body)?;
        Ok(self.work(party, body, operation))
    }

    /// Like [`access`](Self::access), for an operation that only reads.
    ///
    /// It leaves the sequence number as it is, so that reads without the lock stay valid. A panic
    /// in the operation leaves the object whole.
    #[inline]
    pub(crate) fn access_to_look<R>(
        &self,
        operation: impl FnOnce(Span<'_>) -> R,
    ) -> Result<R, AccessError> {
        let _busy = self.enter()?;
        let Some((party, body)) = self.writing() else { return Err(self.not_granted()) };
        // Interrupts stay off until the lock is free again.
        let _kept_off = keep_off();
        self.begin(party, body)?;
        Ok(Self::look_under_lock(party, body, operation))
    }

    #[inline]
    fn look_under_lock<R>(party: &Ours, body: &Body, operation: impl FnOnce(Span<'_>) -> R) -> R {
        let _looking = LockedRead(party);
        operation(*body.data())
    }

    /// Runs an operation for the holder of the lock, and releases the lock.
    #[inline]
    fn work<R>(
        &self,
        party: &Ours,
        body: &Body,
        operation: impl FnOnce(WritableSpan<'_>) -> R,
    ) -> R {
        let changing = party.sequence().begin();
        let mut inside = AccessGuard { handle: self, party, body, changing, done: false };
        point(Point::ObjectLocked);
        let result = operation(body.data());
        point(Point::ObjectDone);
        inside.done = true;
        result
    }

    /// Like [`access`](Self::access), in an interrupt at home: neither blocks nor allocates, and
    /// waits for some microseconds at most.
    pub(crate) fn access_at_once<R>(
        &self,
        does: Does,
        operation: impl FnOnce(WritableSpan<'_>) -> R,
    ) -> Result<R, NotNow> {
        let (ObjectLocation::Home(object, party), Ok(_busy)) = (&self.side, self.enter()) else {
            return Err(NotNow::Held);
        };
        if !waiting::lock_at_once(party, |place| object.may_be_known(place)) {
            return Err(NotNow::Held);
        }
        let state = object.body.state();
        if state == BodyState::Whole {
            return Ok(match does {
                Does::Changes => self.work(party, &object.body, operation),
                Does::Looks => {
                    Self::look_under_lock(party, &object.body, |_| operation(object.body.data()))
                }
            });
        }
        party.unlock();
        Err(if state == BodyState::Poisoned { NotNow::Poisoned } else { NotNow::Held })
    }

    #[inline]
    fn enter(&self) -> Result<BusyGuard<'_>, AccessError> {
        if self.busy.replace(true) { Err(AccessError::Nested) } else { Ok(BusyGuard(&self.busy)) }
    }

    /// Marks the object as torn, releases the lock, and leaves the object to its home.
    #[cold]
    fn tear(&self, party: &Ours, body: &Body, changing: Changing) {
        body.set_state(BodyState::Torn);
        party.sequence().end(changing);
        party.unlock();
        self.have_it_settled();
    }

    /// Makes the home settle an object that is torn.
    fn have_it_settled(&self) {
        match &self.side {
            ObjectLocation::Home(object, _) => object.settle(),
            ObjectLocation::Away(away) => away.tore(),
            ObjectLocation::Far(_) => {}
        }
    }

    /// Returns `true` if the home has let go of the object.
    fn is_over(&self) -> bool {
        matches!(&self.side, ObjectLocation::Away(away) if away.has_ended())
    }

    /// Acquires the lock of an object that is whole.
    #[inline]
    fn begin(&self, party: &Ours, body: &Body) -> Result<(), AccessError> {
        let (had, goes_on) = match &self.side {
            ObjectLocation::Home(..) => (party.try_lock_at_home(), true),
            ObjectLocation::Away(away) => (party.try_lock(), !away.has_ended()),
            ObjectLocation::Far(_) => return Err(AccessError::OtherHost),
        };
        if had && goes_on && body.state() == BodyState::Whole {
            Ok(())
        } else {
            self.begin_at_last(had, party, body)
        }
    }

    /// The rest of [`begin`](Self::begin), where the lock was not free or the object is not whole.
    #[cold]
    fn begin_at_last(&self, had: bool, party: &Ours, body: &Body) -> Result<(), AccessError> {
        match &self.side {
            ObjectLocation::Home(object, _) => {
                if !had
                    && !waiting::lock_at_home(party, self.patience, |place| object.is_known(place))
                {
                    return Err(self.was_busy(party));
                }
            }
            ObjectLocation::Away(away) => {
                if !had && !waiting::lock(party, self.patience, || away.has_ended()) {
                    return Err(if away.has_ended() {
                        Self::ended(away)
                    } else {
                        self.was_busy(party)
                    });
                }
                if away.has_ended() {
                    party.unlock();
                    return Err(Self::ended(away));
                }
            }
            ObjectLocation::Far(_) => return Err(AccessError::OtherHost),
        }
        match body.state() {
            BodyState::Whole => Ok(()),
            state => self.is_not_whole(party, body, state),
        }
    }

    #[cold]
    fn ended(away: &RemoteObject) -> AccessError {
        away.sweep();
        AccessError::Ended
    }

    #[cold]
    fn was_busy(&self, party: &Ours) -> AccessError {
        let waited = self.patience.unwrap_or_default();
        AccessError::Busy { waited, holder: party.holder_process() }
    }

    /// Releases the lock of an object that is not whole. Waits until the home has decided, and
    /// tries again.
    #[cold]
    fn is_not_whole(&self, party: &Ours, body: &Body, state: BodyState) -> Result<(), AccessError> {
        party.unlock();
        if state == BodyState::Poisoned {
            return Err(AccessError::Poisoned);
        }
        self.have_it_settled();
        let begun = Instant::now();
        if !waiting::until(self.patience, || body.state() != BodyState::Torn || self.is_over()) {
            return Err(AccessError::Busy { waited: begun.elapsed(), holder: None });
        }
        self.begin(party, body)
    }
}

#[cfg(test)]
impl Handle {
    /// Holds the lock from now on, as in the middle of an operation.
    pub(crate) fn enters(&self) -> bool {
        let Some((party, _)) = self.writing() else { return false };
        let had = party.try_lock();
        if had {
            let _ = party.sequence().begin();
        }
        had
    }

    /// Ends as a killed process does: the kernel closes the connection, and the lock stays as it
    /// is.
    pub(crate) fn dies(self) {
        if let ObjectLocation::Away(away) = &self.side {
            away.hang_up();
        }
        std::mem::forget(self);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.choices.at_last(|counts| self.count(|own| *own = own.and(counts)));
        if let ObjectLocation::Home(object, party) = &self.side {
            object.give_place(party.place());
            if object.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
                object.close();
            }
        }
    }
}

#[cfg(test)]
mod tests;
