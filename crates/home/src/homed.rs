//! Objects of a type: [`Homed`].

use crate::absent::wait_while_absent;
use crate::builder::HomeBuilder;
use crate::error::{AccessError, CreateError, FindError};
use crate::finder::{FindTerms, Finder};
use crate::handle::Handle;
use crate::object::{Damaged, Grant, Torn, Verdict};
use crate::rules;
use crate::types::arena::{MOST, overhead};
use crate::types::{DataError, Memory, Shared, check, room_for, shape, used};
use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::panic::Location;
use std::time::Duration;
use upcall_directory::names::Group;
use upcall_os::socket::Peer;
use upcall_shm::span::WritableSpan;

/// Default room for data that grows, in bytes.
const USUAL: u64 = 1 << 20;

/// A handle to an object of type `T`, at its home or elsewhere.
///
/// It is used by one thread at a time: other threads have handles of their own
/// ([`try_clone`](Self::try_clone)). An object has at most 255 handles at a time, of all processes
/// together.
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

/// A number that distinguishes objects of different types, and of different versions of the types
/// here.
pub(crate) const fn shape_of<T: Shared>() -> u64 {
    shape("homed 1", &[T::SHAPE])
}

impl<T: Shared> Making<T> {
    /// Sets the room for data that grows, in bytes.
    ///
    /// Texts, elements and entries grow, and each takes 16 to 40 bytes in addition to its content.
    ///
    /// The default is 1 MiB, and a whole object has at most 1 TiB. Only pages that are touched take
    /// memory, so a larger room does no harm.
    pub fn room(self, bytes: u64) -> Self {
        Self { room: bytes, ..self }
    }

    /// Sets the function that repairs the object after an operation that did not end.
    ///
    /// Before that, the data structures of its types are put right as far as possible
    /// ([`Check`](crate::types::Check)). `repair` decides whether the data still means what it
    /// should, and may change it.
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

    /// Sets the function that decides what a guest may do with the object.
    ///
    /// Without it, processes of the same user may do everything. A guest that is refused gets the
    /// text that the function returned. The function runs on the clerk, and must not block.
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

    /// Lets guests on other hosts find the object, and invoke it: see [`HomeBuilder::listen`].
    pub fn listen(self, address: &str) -> Self {
        Self { creating: self.creating.listen(address), ..self }
    }

    /// Sets the address for references: see [`HomeBuilder::reached_at`].
    pub fn reached_at(self, address: &str) -> Self {
        Self { creating: self.creating.reached_at(address), ..self }
    }

    /// Seals the object's memory, so that only the home can write it.
    ///
    /// The kernel refuses every other writer, of any user.
    ///
    /// Guests may [`read`](Homed::read) at most, even if the policy grants more.
    pub fn only_home_writes(self) -> Self {
        Self { creating: self.creating.only_home_writes(), ..self }
    }

    /// Makes the object: zeros, which `init` changes before the object can be found.
    ///
    /// # Errors
    /// See [`CreateError`].
    ///
    /// # Panics
    /// Panics if `init` does; then there is no object.
    ///
    /// # Blocking
    /// Blocks for about 0.1 ms, and for up to 5 s while a process that had the name before is
    /// ending.
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
    /// Begins an object of this name, whose home is this process.
    ///
    /// [`Making`] has further settings, and makes the object by [`with`](Making::with).
    pub fn create(name: &str) -> Making<T> {
        const {
            // The data begins, and each block of the arena begins, at a multiple of 8.
            assert!(T::ALIGN <= 8 && T::ALIGN.is_power_of_two(), "places are aligned at 8 bytes")
        };
        Making { creating: HomeBuilder::new(name, 0), room: USUAL, of: PhantomData }
    }

    /// Finds the object with this name, which must be of this type.
    ///
    /// An object on another host is `tcp://HOST:PORT/NAME`, where its home
    /// [listens](Making::listen). It can only be invoked ([`urgent`](Self::urgent),
    /// [`invoke`](Self::invoke)). HOST is the name of a host that this user trusts (`upcall host
    /// trust`), or the address is one of this host.
    ///
    /// Takes about 0.1 ms, and up to 5 s if its home is stopped.
    ///
    /// # Errors
    /// See [`FindError`].
    pub fn find(name: &str) -> Result<Self, FindError> {
        Self::try_find(name).map_err(FindError::with_hint)
    }

    /// Finds the object, and looks for no hint if there is none.
    pub(crate) fn try_find(name: &str) -> Result<Self, FindError> {
        let handle = Handle::try_find(name, shape_of::<T>(), FindTerms::default())?;
        Ok(Self { handle, of: PhantomData })
    }

    /// Finds the object like [`find`](Self::find), and waits for at most `limit` while no home has
    /// made it.
    ///
    /// # Blocking
    /// Blocks the calling thread, and other user-level threads go on. The thread sleeps, and looks
    /// again when a new name appears, and once a second.
    ///
    /// # Errors
    /// At once, if a home is there and refuses. At the limit, the error of the last attempt, such
    /// as [`FindError::Name`]; an attempt takes at most 5 s.
    ///
    /// # Peer death
    /// A home that has ended is taken for absent: the next one with this name is waited for.
    pub fn find_wait(name: &str, limit: Duration) -> Result<Self, FindError> {
        wait_while_absent(limit, || Self::try_find(name))
    }

    /// Finds objects at homes that `accepts` accepts.
    ///
    /// Without it, homes of this user and of root are accepted, and homes on hosts that this user
    /// trusts.
    ///
    /// ```no_run
    /// # use upcall_home::{FindError, Homed};
    /// # use upcall_os::socket::Peer;
    /// # fn find(
    /// #     policy: impl Fn(&Peer) -> Result<(), String> + Send + Sync + 'static,
    /// # ) -> Result<(), FindError> {
    /// let counter = Homed::<u64>::expect(policy).find("counter")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn expect(
        accepts: impl Fn(&Peer) -> Result<(), String> + Send + Sync + 'static,
    ) -> Finder<Self> {
        Finder::new(accepts, |name, terms| {
            Ok(Self { handle: Handle::try_find(name, shape_of::<T>(), terms)?, of: PhantomData })
        })
    }

    /// Makes another handle to the same object, for another thread.
    ///
    /// # Errors
    /// All places of the object are taken; or, elsewhere than at home, as [`find`](Self::find).
    pub fn try_clone(&self) -> Result<Self, FindError> {
        Ok(Self { handle: self.handle.try_clone()?, of: PhantomData })
    }

    /// Sets the maximum time that operations wait for other parties.
    ///
    /// By default they wait for ever.
    ///
    /// A waiting thread takes no processor time for long, and a party that dies is not waited for.
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

    /// The object's name.
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// The addresses at which guests on other hosts connect, at the object's home.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.handle.addresses()
    }

    /// Returns `true` if this process is the object's home.
    pub fn is_home(&self) -> bool {
        self.handle.is_home()
    }

    /// Runs an operation on the object in place, under its lock.
    ///
    /// This is Psyche's remote access; at its home, a local one. The operation must not block,
    /// because other parties wait for it.
    ///
    /// If the operation panics, the home decides what becomes of the object, as if this process had
    /// ended there. If it returns an error, the changes that it made before stay.
    ///
    /// # Errors
    /// See [`AccessError`]. [`AccessError::Data`] is the error that the operation returned. After
    /// any other error it was not run.
    ///
    /// # Blocking
    /// Blocks the thread until the lock is free.
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

    /// Like [`access`](Self::access), for an operation that only reads. Reads without the lock stay
    /// valid beside it.
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

    /// Runs an operation that only reads the object, in place and without the lock.
    ///
    /// The operation writes nothing that others see, so any number of reads can run at once. The
    /// cache lines that it reads stay with its processor until a party changes them.
    ///
    /// If the object has changed during the operation, the operation is run again. So it may run
    /// several times and may find a mixture of two states, but the result that is returned belongs
    /// to one state. The operation must not rely on a consistent state: an error that it returns
    /// for a mixture is discarded, but a panic is a panic.
    ///
    /// Where changes leave no time for a read, this waits for the lock as other operations do, if
    /// the handle may take it.
    ///
    /// # Errors
    /// See [`AccessError`]. [`DataError::ReadOnly`]: the operation tried to write.
    ///
    /// # Blocking
    /// Blocks the thread while the object is being changed.
    #[inline]
    pub fn read<R>(
        &self,
        mut operation: impl FnMut(T::At<'_>) -> Result<R, DataError>,
    ) -> Result<R, AccessError> {
        let done = self.handle.read(|span| operation(T::at(Memory::to_read::<T>(span).spot(0))))?;
        done.map_err(AccessError::Data)
    }

    /// What the home has granted.
    pub fn grant(&self) -> Grant {
        self.handle.grant()
    }

    /// Checks all data of the object, as [`read`](Self::read) does.
    ///
    /// It checks each offset, length, tag, text and count.
    ///
    /// Takes time for each of them, up to a µs an element.
    ///
    /// # Errors
    /// See [`AccessError`]. [`AccessError::Data`] says what is wrong.
    pub fn check(&self) -> Result<(), AccessError> {
        let checked = self.handle.read(|span| {
            let pages = self.handle.pages()?;
            check::check::<T>(Memory::to_read::<T>(span), pages, false, None)
        })?;
        checked.map_err(AccessError::Data)
    }

    /// Checks all data of the object under the lock, and repairs what can be repaired.
    ///
    /// These are counts, backward links, elements that no link leads to, and the arena's own lists.
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

    /// Number of bytes of its [room](Making::room) that are in use.
    ///
    /// # Errors
    /// See [`AccessError`].
    pub fn used(&self) -> Result<u64, AccessError> {
        self.handle.read(|span| used(Memory::to_read::<T>(span)))?.map_err(AccessError::Data)
    }
}
