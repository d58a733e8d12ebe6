//! A hold on an object, at its home or elsewhere: by this operations are run on it.

use crate::away::Away;
use crate::body::{Body, Ours, State};
use crate::error::{AccessError, FindError};
use crate::object::Object;
use crate::waiting;
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
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
    #[inline]
    fn drop(&mut self) {
        if self.done { self.handle.party.unlock() } else { self.handle.tear() }
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
    /// One at home.
    pub(crate) fn at_home(object: Arc<Object>) -> Option<Self> {
        let party = object.take_place()?;
        object.handles.fetch_add(1, Ordering::Relaxed);
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

    #[inline]
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

    /// Lets go of the lock, and leaves the object to its home.
    #[cold]
    fn tear(&self) {
        self.body().set_state(State::Torn);
        self.party.unlock();
        match &self.side {
            Side::Home(object) => object.settle(),
            Side::Away(away) => away.tore(),
        }
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
            if object.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
                object.close();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{Creating, Verdict};
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    /// Numbers that follow from a seed.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 32) * (self.0 >> 13 & 3)
        }
    }

    /// Scribbles over all that it can reach, as one that has leave to write may.
    fn scribble(hostile: &Handle, seed: u64, over: &AtomicBool) {
        let (room, mut random) = (hostile.body().everything(), Random(seed));
        while !over.load(Relaxed) {
            let at = match random.next() % 4 {
                // The lock and the state; all stands; anything.
                0 | 1 => 4096 + random.next() % 9 * 8,
                2 => 8192 + random.next() % 512 * 8,
                _ => random.next() % (room.len() as u64 / 8) * 8,
            };
            let word = match random.next() % 4 {
                0 => 0,
                1 => random.next() % 260,
                2 => 1 << (random.next() % 64),
                _ => random.next().wrapping_mul(0x9e37_79b9_7f4a_7c15),
            };
            room.put_u64(at as usize, word).unwrap();
            if random.next() % 256 == 0 {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn whoever_scribbles_over_it_neither_holds_its_home_up_nor_ends_it() {
        for seed in 1..=6 {
            println!("seed {seed}");
            let name = format!("scribbled-{}-{seed}", std::process::id());
            let repair = |_: Room<'_>, _| Verdict::Keep;
            let home = Creating::new(&name, 4096).repair(repair).create(7, |_| ()).unwrap();
            let home = home.patience(Some(Duration::from_millis(20)));
            let (hostile, other) = (Handle::find(&name, 7).unwrap(), Handle::find(&name, 7).unwrap());
            let other = other.patience(Some(Duration::from_millis(20)));
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let over = &over;
                scope.spawn(move || scribble(&hostile, seed, over));
                let honest = |handle: &Handle| {
                    let (begun, mut had) = (Instant::now(), 0);
                    while begun.elapsed() < Duration::from_millis(300) {
                        let turn = Instant::now();
                        had += u32::from(handle.access(|room| room.u64(0)).is_ok());
                        assert!(turn.elapsed() < Duration::from_secs(2), "seed {seed}: {:?}", turn.elapsed());
                    }
                    had
                };
                let theirs = scope.spawn(move || honest(&other));
                let had = honest(&home);
                println!("    {had} operations at home, {} elsewhere", theirs.join().unwrap());
                over.store(true, Relaxed);
            });
            // What is left of it can be let go of, and the name is free.
            drop(home);
            drop(Creating::new(&name, 8).create(7, |_| ()).unwrap());
        }
    }
}
