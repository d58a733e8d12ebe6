//! A hold on an object, at its home or elsewhere: by this operations are run on it.

use crate::away::Away;
use crate::body::{Body, Ours, State};
use crate::error::{AccessError, FindError};
use crate::object::Object;
use crate::waiting;
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_os::fault::{Point, point};
use upcall_shm::span::Room;

/// See the module. Used by one thread at a time: others have handles of their own ([`try_clone`](Self::try_clone)). An object has 255 of them at a time, of all processes together.
pub struct Handle {
    party: Ours,
    side: Side,
    /// An operation is under way.
    busy: Cell<bool>,
    patience: Option<Duration>,
}

enum Side {
    Home(Arc<Object>),
    Away(Away),
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.party.place();
        f.debug_struct("Handle")
            .field("name", &self.name())
            .field("home", &self.is_home())
            .field("place", &place)
            .finish_non_exhaustive()
    }
}

/// The operation under way: at its end others have their turn.
struct Inside<'a> {
    handle: &'a Handle,
    /// It has come to its end.
    done: bool,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let handle = self.handle;
        if !self.done {
            handle.body().set_state(State::Torn);
        }
        handle.party.unlock();
        if !self.done {
            match &handle.side {
                Side::Home(object) => object.settle(),
                Side::Away(away) => away.tore(),
            }
        }
    }
}

/// Makes the handle free again.
struct Busy<'a>(&'a Cell<bool>);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Handle {
    /// The first one, for who has made the object.
    pub(crate) fn at_home(object: Arc<Object>) -> Option<Self> {
        let party = object.take_place()?;
        Some(Self { party, side: Side::Home(object), busy: Cell::new(false), patience: None })
    }

    /// Finds the object of a name, which is to have this shape. Takes some 0.1 ms, and up to 5 s if its home is stopped.
    ///
    /// # Errors
    /// See [`FindError`].
    pub fn find(name: &str, shape: u64) -> Result<Self, FindError> {
        let (away, place) = Away::find(name, shape)?;
        let no_such = || FindError::Unreachable { name: name.into(), why: format!("it has given place {place}, which is none") };
        let party = away.body.party(place).ok_or_else(no_such)?;
        Ok(Self { party, side: Side::Away(away), busy: Cell::new(false), patience: None })
    }

    /// Another hold on the same object, for another thread.
    ///
    /// # Errors
    /// All places of the object are taken, or, elsewhere than at home, as [`find`](Self::find).
    pub fn try_clone(&self) -> Result<Self, FindError> {
        let full = || FindError::Refused { name: self.name().into(), why: "no more can use it".into() };
        let mut new = match &self.side {
            Side::Home(object) => Self::at_home(object.clone()).ok_or_else(full)?,
            Side::Away(away) => Self::find(&away.name, away.shape)?,
        };
        new.patience = self.patience;
        Ok(new)
    }

    /// The same, with operations that wait so long at most for others; for ever, if nothing else is said. Who waits takes no processor, and one that dies is not waited for.
    #[must_use]
    pub fn patience(mut self, patience: Option<Duration>) -> Self {
        self.patience = patience;
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match &self.side {
            Side::Home(object) => &object.name,
            Side::Away(away) => &away.name,
        }
    }

    /// Whether this process is its home.
    pub fn is_home(&self) -> bool {
        matches!(self.side, Side::Home(_))
    }

    /// Bytes of its data.
    pub fn length(&self) -> usize {
        self.body().length()
    }

    fn body(&self) -> &Body {
        match &self.side {
            Side::Home(object) => &object.body,
            Side::Away(away) => &away.body,
        }
    }

    /// Runs an operation on the object where it is, while nobody else does (Psyche's remote access; at its home, a local one). It is not to block, for others wait for it; and what it reads may have been written by any program that uses the
    /// object. Waits until others have done, and blocks the thread for that.
    ///
    /// If it panics, the home decides what becomes of the object, as if this process had ended there.
    ///
    /// # Errors
    /// See [`AccessError`]. The operation was not run then.
    #[inline]
    pub fn access<R>(&self, operation: impl FnOnce(Room<'_>) -> R) -> Result<R, AccessError> {
        if self.busy.replace(true) {
            return Err(AccessError::Nested);
        }
        let _busy = Busy(&self.busy);
        self.begin()?;
        let mut inside = Inside { handle: self, done: false };
        point(Point::ObjectLocked);
        let result = operation(self.body().data());
        point(Point::ObjectDone);
        inside.done = true;
        Ok(result)
    }

    /// Has the lock of an object that is whole.
    #[inline]
    fn begin(&self) -> Result<(), AccessError> {
        match &self.side {
            Side::Home(object) => {
                if !waiting::lock_at_home(&self.party, self.patience, |place| object.is_known(place)) {
                    return Err(self.was_busy());
                }
            }
            Side::Away(away) => {
                if !waiting::lock(&self.party, self.patience, || away.has_ended()) {
                    return Err(if away.has_ended() { Self::ended(away) } else { self.was_busy() });
                }
                if away.has_ended() {
                    self.party.unlock();
                    return Err(Self::ended(away));
                }
            }
        }
        match self.body().state() {
            State::Whole => Ok(()),
            state => self.is_not_whole(state),
        }
    }

    #[cold]
    fn ended(away: &Away) -> AccessError {
        away.sweep();
        AccessError::Ended
    }

    #[cold]
    fn was_busy(&self) -> AccessError {
        let waited = self.patience.unwrap_or_default();
        AccessError::Busy { waited, holder: self.party.holder_process() }
    }

    /// Has the lock, and may not use it: waits until the home has decided, and tries again.
    #[cold]
    fn is_not_whole(&self, state: State) -> Result<(), AccessError> {
        self.party.unlock();
        if state == State::Poisoned {
            return Err(AccessError::Poisoned);
        }
        match &self.side {
            Side::Home(object) => object.settle(),
            Side::Away(away) => away.tore(),
        }
        let begun = Instant::now();
        let over = || matches!(&self.side, Side::Away(away) if away.has_ended());
        if !waiting::until(self.patience, || self.body().state() != State::Torn || over()) {
            return Err(AccessError::Busy { waited: begun.elapsed(), holder: None });
        }
        self.begin()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Side::Home(object) = &self.side {
            object.give_place(self.party.place());
        }
    }
}
