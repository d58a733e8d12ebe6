//! An object of a type: [`Homed`].

use crate::builder::HomeBuilder;
use crate::error::{AccessError, CreateError, FindError};
use crate::finder::Finder;
use crate::handle::Handle;
use crate::object::{Damaged, Grant, Torn, Verdict};
use crate::rules;
use crate::types::arena::{MOST, overhead};
use crate::types::{DataError, Memory, Shared, check, room_for, shape, used};
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::time::Duration;
use upcall_directory::names::Group;
use upcall_os::socket::Peer;
use upcall_shm::span::WritableSpan;

/// Room for what grows, if nothing else is said.
const USUAL: u64 = 1 << 20;

/// A hold on an object of type `T`, at its home or elsewhere: by this operations are run on it.
/// Used by one thread at a time: others have holds of their own ([`try_clone`](Self::try_clone)).
/// An object has 255 of them at a time, of all processes together.
pub struct Homed<T> {
    handle: Handle,
    of: PhantomData<fn() -> T>,
}

impl<T> fmt::Debug for Homed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Homed").field(&self.handle).finish()
    }
}

/// How to make an object of type `T`: [`Homed::create`].
#[must_use]
pub struct Making<T> {
    creating: HomeBuilder,
    room: u64,
    of: PhantomData<fn() -> T>,
}

impl<T> fmt::Debug for Making<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Making")
            .field("creating", &self.creating)
            .field("room", &self.room)
            .finish_non_exhaustive()
    }
}

/// Tells objects of different types, and of different versions of the types here, apart.
pub(crate) const fn shape_of<T: Shared>() -> u64 {
    shape("homed 1", &[T::SHAPE])
}

impl<T: Shared> Making<T> {
    /// With room for so many bytes of what grows in it: texts, elements, entries, each with 16 to
    /// 40 bytes of its own. Only what is touched takes memory, so more does no harm. 1 MiB, if
    /// nothing is said; all of an object 1 TiB at most.
    pub fn room(self, bytes: u64) -> Self {
        Self { room: bytes, ..self }
    }

    /// Has this decide what becomes of the object when an operation has ended in the middle. What
    /// its types lead to has been put right then, as far as that can be done
    /// ([`Check`](crate::types::Check)); whether it still means what it should is decided here, and
    /// it may be changed.
    ///
    /// The object is poisoned if its types cannot be put right, if `repair` panics, or if no
    /// `repair` is given. Both steps run on a thread of their own, and all operations on the object
    /// wait for it. The first step reads only pages that exist. Its time grows with these pages,
    /// and its memory is about a 64th of them.
    pub fn repair(
        self,
        mut repair: impl FnMut(T::At<'_>, Torn) -> Verdict + Send + 'static,
    ) -> Self {
        let whole = move |damaged: Damaged<'_>, torn| {
            let Damaged { room, pages, goes_on } = damaged;
            match pages.and_then(|pages| {
                check::check::<T>(Memory::of::<T>(room), pages, true, Some(goes_on))
            }) {
                Ok(()) => repair(T::at(Memory::of::<T>(room).spot(0)), torn),
                Err(_) => Verdict::Poison,
            }
        };
        Self { creating: self.creating.repair_damaged(whole), ..self }
    }

    /// Has this decide who may do what with the object, in place of: everything, who runs as the
    /// same user. What it says when it refuses is told. It runs on the clerk, and may not block.
    pub fn policy(
        self,
        policy: impl Fn(&Peer) -> Result<Grant, String> + Send + Sync + 'static,
    ) -> Self {
        Self { creating: self.creating.policy(policy), ..self }
    }

    /// Sets the mode of the home's socket: see [`HomeBuilder::mode`].
    pub fn mode(self, mode: u32) -> Self {
        Self { creating: self.creating.mode(mode), ..self }
    }

    /// Sets the group of the home's socket: see [`HomeBuilder::group`].
    pub fn group(self, group: impl Into<Group>) -> Self {
        Self { creating: self.creating.group(group), ..self }
    }

    /// Only its home can ever write it: its memory is sealed, so that the kernel refuses every
    /// other writer, whoever it runs as. Others may [`read`](Homed::read), whatever else the policy
    /// grants.
    pub fn only_home_writes(self) -> Self {
        Self { creating: self.creating.only_home_writes(), ..self }
    }

    /// Makes it, with zeros, on which `init` is run before anybody else finds it. Blocks for some
    /// 0.1 ms, and up to 5 s while a process that had the name before is just ending.
    ///
    /// # Errors
    /// See [`CreateError`].
    ///
    /// # Panics
    /// If `init` does; then there is no object.
    pub fn with(
        self,
        init: impl FnOnce(T::At<'_>) -> Result<(), DataError>,
    ) -> Result<Homed<T>, CreateError> {
        let length = (room_for::<T>() as u64).saturating_add(overhead(self.room.min(MOST)));
        let init = |room: WritableSpan<'_>| init(T::at(Memory::of::<T>(room).spot(0)));
        let handle = self.creating.length(length).create_with(shape_of::<T>(), init)?;
        Ok(Homed { handle, of: PhantomData })
    }
}

impl<T: Shared> Homed<T> {
    /// One of this name, whose home is this process: [`Making`] says more of it, and makes it by
    /// [`with`](Making::with).
    pub fn create(name: &str) -> Making<T> {
        const { assert!(T::ALIGN <= 8 && T::ALIGN.is_power_of_two(), "places are aligned at 8 bytes") };
        Making { creating: HomeBuilder::new(name, 0), room: USUAL, of: PhantomData }
    }

    /// Finds the object of a name, which is to be of this type. Takes some 0.1 ms, and up to 5 s if
    /// its home is stopped.
    ///
    /// # Errors
    /// See [`FindError`].
    pub fn find(name: &str) -> Result<Self, FindError> {
        let handle = Handle::find(name, shape_of::<T>())?;
        Ok(Self { handle, of: PhantomData })
    }

    /// Finds objects at homes that `accepts` accepts, in place of those of this user and of root.
    ///
    /// ```no_run
    /// # use upcall_home::{FindError, Homed};
    /// # fn find(policy: impl Fn(&upcall_os::socket::Peer) -> Result<(), String> + Send + Sync + 'static) -> Result<(), FindError> {
    /// let counter = Homed::<u64>::expect(policy).find("counter")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn expect(
        accepts: impl Fn(&Peer) -> Result<(), String> + Send + Sync + 'static,
    ) -> Finder<Self> {
        Finder::new(accepts, |name, accepts| {
            Ok(Self {
                handle: Handle::find_expecting(name, shape_of::<T>(), accepts)?,
                of: PhantomData,
            })
        })
    }

    /// Another hold on the same object, for another thread.
    ///
    /// # Errors
    /// All places of the object are taken, or, elsewhere than at home, as [`find`](Self::find).
    pub fn try_clone(&self) -> Result<Self, FindError> {
        Ok(Self { handle: self.handle.try_clone()?, of: PhantomData })
    }

    /// The same, with operations that wait so long at most for others; for ever, if nothing else is
    /// said. Who waits takes no processor, and one that dies is not waited for.
    #[must_use]
    pub fn patience(self, patience: Option<Duration>) -> Self {
        Self { handle: self.handle.patience(patience), ..self }
    }

    pub(crate) fn of(handle: Handle) -> Self {
        Self { handle, of: PhantomData }
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Whether this process is its home.
    pub fn is_home(&self) -> bool {
        self.handle.is_home()
    }

    /// Runs an operation on the object where it is, while nobody else does (Psyche's remote access;
    /// at its home, a local one). It is not to block, for others wait for it. Waits until others
    /// have done, and blocks the thread for that.
    ///
    /// If it panics, the home decides what becomes of the object, as if this process had ended
    /// there. If it returns an error, what it has done before stays.
    ///
    /// # Errors
    /// See [`AccessError`]. But for [`AccessError::Data`], which the operation has returned, it was
    /// not run then.
    #[inline]
    #[track_caller]
    pub fn access<R>(
        &self,
        operation: impl FnOnce(T::At<'_>) -> Result<R, DataError>,
    ) -> Result<R, AccessError> {
        let (here, at_home) = (Location::caller(), self.is_home());
        rules::access(at_home, here).map_err(|broken| AccessError::Rule(Box::new(broken)))?;
        let done = self.handle.access(|room| {
            let _holds = rules::hold(at_home, here);
            operation(T::at(Memory::of::<T>(room).spot(0)))
        })?;
        done.map_err(AccessError::Data)
    }

    /// The same for an operation that only reads. Reads without the lock stay valid beside it.
    #[inline]
    #[track_caller]
    pub(crate) fn access_to_look<R>(
        &self,
        operation: impl FnOnce(T::At<'_>) -> Result<R, DataError>,
    ) -> Result<R, AccessError> {
        let (here, at_home) = (Location::caller(), self.is_home());
        rules::access(at_home, here).map_err(|broken| AccessError::Rule(Box::new(broken)))?;
        let done = self.handle.access_to_look(|span| {
            let _holds = rules::hold(at_home, here);
            operation(T::at(Memory::to_read::<T>(span).spot(0)))
        })?;
        done.map_err(AccessError::Data)
    }

    /// Runs an operation that only looks at the object where it is, and without the lock, so that
    /// any number can at once: it writes nothing that others see, and what it finds moves to its
    /// processor and stays there until somebody changes it. If somebody has meanwhile it is run
    /// again, so it may be run several times, and what it finds then may be of both states; what it
    /// returns is of one. So it is not to take for granted that what it finds fits together: an
    /// error that it returns then is not told, but a panic is one. Where changes leave no time for
    /// a look this waits for the lock like any other, if it may. Waits for changes under way,
    /// and blocks the thread for that.
    ///
    /// # Errors
    /// See [`AccessError`]. [`DataError::ReadOnly`]: it was to write.
    #[inline]
    pub fn read<R>(
        &self,
        mut operation: impl FnMut(T::At<'_>) -> Result<R, DataError>,
    ) -> Result<R, AccessError> {
        let done = self.handle.read(|span| operation(T::at(Memory::to_read::<T>(span).spot(0))))?;
        done.map_err(AccessError::Data)
    }

    /// What its home has granted.
    pub fn grant(&self) -> Grant {
        self.handle.grant()
    }

    /// Looks at all that it leads to, as [`read`](Self::read) does: each offset, length, tag, text
    /// and count. Takes as long as that takes, up to a µs an element.
    ///
    /// # Errors
    /// See [`AccessError`]. [`AccessError::Data`] says what is not as it should be.
    pub fn check(&self) -> Result<(), AccessError> {
        let checked = self.handle.read(|span| {
            let pages = self.handle.pages()?;
            check::check::<T>(Memory::to_read::<T>(span), pages, false, None)
        })?;
        checked.map_err(AccessError::Data)
    }

    /// Looks at all, while nobody else works on it, and puts right what can be: counts, links back,
    /// elements that are nowhere, and the arena's own lists.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn mend(&self) -> Result<(), AccessError> {
        let mended = self.handle.access(|room| {
            let pages = self.handle.pages()?;
            check::check::<T>(Memory::of::<T>(room), pages, true, None)
        })?;
        mended.map_err(AccessError::Data)
    }

    /// How many bytes of its [room](Making::room) are in use.
    ///
    /// # Errors
    /// See [`AccessError`].
    pub fn used(&self) -> Result<u64, AccessError> {
        self.handle.read(|span| used(Memory::to_read::<T>(span)))?.map_err(AccessError::Data)
    }
}
