//! The making of an object at its home: [`HomeBuilder`].

use crate::body::Body;
use crate::error::CreateError;
use crate::far::gate::ObjectGate;
use crate::far::place::{checked_address, reached_at};
use crate::guest::ObjectListener;
use crate::handle::Handle;
use crate::object::{
    Damaged, Grant, GrantPolicy, HomeObject, ObjectGates, ObjectSite, Repair, Settling, Torn,
    Verdict,
};
use crate::types::DataError;
use std::fmt;
use std::sync::Arc;
use upcall_directory::clerk::Clerk;
use upcall_directory::names::{self, Access, Group, Whose};
use upcall_os::fault::{Point, point};
use upcall_os::poll::Report;
use upcall_os::socket::Peer;
use upcall_shm::span::WritableSpan;

/// How to make an object.
#[must_use]
pub struct HomeBuilder {
    name: String,
    length: u64,
    sealed: bool,
    repair: Repair,
    policy: GrantPolicy,
    mode: Option<u32>,
    group: Option<Group>,
    listens: Vec<String>,
    reached_at: Option<String>,
}

impl fmt::Debug for HomeBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HomeBuilder")
            .field("name", &self.name)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

impl HomeBuilder {
    /// Begins an object of this name, with `length` bytes of data.
    ///
    /// The data is all zero at first, and only pages that are touched take memory.
    pub fn new(name: &str, length: u64) -> Self {
        let accepts = upcall_directory::policy::own_user();
        let same_user = move |peer: &Peer| accepts(peer).map(|()| Grant::ReadWrite);
        Self {
            name: name.into(),
            length,
            sealed: false,
            repair: Box::new(|_, _| Verdict::Poison),
            policy: Box::new(same_user),
            mode: None,
            group: None,
            listens: Vec::new(),
            reached_at: None,
        }
    }

    /// Sets the length of the data, in bytes.
    pub(crate) fn length(self, length: u64) -> Self {
        Self { length, ..self }
    }

    /// Sets the function that repairs the data after an operation ended in the middle.
    ///
    /// It runs on a thread of its own under the object's lock, and all operations on the object
    /// wait for it. If it panics, or if there is no such function, the object is poisoned.
    pub fn repair(
        self,
        mut repair: impl FnMut(WritableSpan<'_>, Torn) -> Verdict + Send + 'static,
    ) -> Self {
        self.repair_damaged(move |damaged, torn| repair(damaged.room, torn))
    }

    pub(crate) fn repair_damaged(
        self,
        repair: impl FnMut(Damaged<'_>, Torn) -> Verdict + Send + 'static,
    ) -> Self {
        Self { repair: Box::new(repair), ..self }
    }

    /// Sets the function that decides what a guest may do with the object.
    ///
    /// Without it, processes of the same user may do everything. A guest that is refused gets the
    /// text that the function returned. The function runs on the clerk, and must not block.
    pub fn policy(
        self,
        policy: impl Fn(&Peer) -> Result<Grant, String> + Send + Sync + 'static,
    ) -> Self {
        Self { policy: Box::new(policy), ..self }
    }

    /// Sets the mode of the home's socket, in place of 0600.
    ///
    /// A guest needs the right to write to connect at all: 0660 admits the members of the socket's
    /// group, 0666 every user. The policy decides after that. The umask of this process does not
    /// count.
    pub fn mode(self, mode: u32) -> Self {
        Self { mode: Some(mode), ..self }
    }

    /// Sets the group of the home's socket, in place of this process's own.
    ///
    /// A user other than root can give only a group of its own.
    pub fn group(self, group: impl Into<Group>) -> Self {
        Self { group: Some(group.into()), ..self }
    }

    /// Lets guests on other hosts find the object at `tcp://HOST:PORT/NAME`, and invoke it there.
    ///
    /// This process listens at `address`, HOST:PORT, for all of its objects that give the same one.
    /// Port 0 stands for a free port ([`Handle::addresses`]). Such guests never get the object's
    /// memory.
    ///
    /// The policy also decides on these guests. For a guest within this host (127.0.0.1 or ::1) the
    /// kernel reports the user at the other end of its connection, but not the process, so `pid` is
    /// 0. A guest on another host has to prove a host that is trusted here (`upcall host trust`),
    /// and all that it sends is encrypted: the policy sees [`Peer::host`]. The default policy
    /// admits such hosts. For such a guest the policy runs on the thread of this process's links,
    /// and must not block.
    ///
    /// Beyond this host, this user needs an identity (`upcall host init`). Without one the object
    /// is not made ([`CreateError::Listen`]).
    pub fn listen(mut self, address: &str) -> Self {
        self.listens.push(address.into());
        self
    }

    /// Sets the address, HOST:PORT, at which other hosts reach this home, for references to the
    /// object ([`Homed::reference`](crate::Homed::reference)).
    ///
    /// HOST is the name under which the other hosts trust this one. Without this setting it is the
    /// first address that was given to [`listen`](Self::listen), unless that is one like 0.0.0.0,
    /// which stands for all addresses of this host.
    pub fn reached_at(self, address: &str) -> Self {
        Self { reached_at: Some(address.into()), ..self }
    }

    /// Hands the object's memory to no guest: guests that the policy admits may only invoke.
    pub(crate) fn only_to_invoke(self) -> Self {
        let policy = self.policy;
        Self { policy: Box::new(move |peer| policy(peer).map(|_| Grant::Invoke)), ..self }
    }

    /// Seals the object's memory, so that only the home can write it.
    ///
    /// The kernel refuses every other writer, of any user.
    ///
    /// Guests may read at most, even if the policy grants more.
    pub fn only_home_writes(self) -> Self {
        Self { sealed: true, ..self }
    }

    /// Makes the object, with data that `init` writes before the object can be found.
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
    pub fn create(
        self,
        shape: u64,
        init: impl FnOnce(WritableSpan<'_>),
    ) -> Result<Handle, CreateError> {
        self.create_with(shape, |room| {
            init(room);
            Ok(())
        })
    }

    /// Like [`create`](Self::create), with an `init` that may fail; then there is no object.
    pub(crate) fn create_with(
        self,
        shape: u64,
        init: impl FnOnce(WritableSpan<'_>) -> Result<(), DataError>,
    ) -> Result<Handle, CreateError> {
        let (handle, object) = self.create_unnamed(shape, init)?;
        object.enter_name()?;
        Ok(handle)
    }

    /// Like [`create_with`](Self::create_with), but no process finds the object before
    /// [`HomeObject::enter_name`].
    pub(crate) fn create_unnamed(
        self,
        shape: u64,
        init: impl FnOnce(WritableSpan<'_>) -> Result<(), DataError>,
    ) -> Result<(Handle, Arc<HomeObject>), CreateError> {
        let unable = |what| move |error| CreateError::Resource { what, error };
        names::check(&self.name)
            .map_err(|why| names::NotEntered::BadName { name: self.name.clone(), why })?;
        let gates = self.listens.iter().map(|address| ObjectGate::at(address));
        let gates = gates.collect::<Result<Vec<_>, _>>().map_err(CreateError::Listen)?;
        let known = match self.reached_at {
            Some(address) => Some(checked_address(address).map_err(CreateError::Listen)?),
            None => {
                let given = self.listens.iter().zip(&gates);
                given.filter_map(|(at, gate)| reached_at(at, gate.address().port())).next()
            }
        };
        let body = Body::create(&self.name, shape, self.length, self.sealed)
            .map_err(unable("memory for the object"))?;
        init(body.data()).map_err(CreateError::Data)?;
        let no_place = || CreateError::Resource {
            what: "a place in the object",
            error: std::io::Error::other("none is left"),
        };
        let settling = Settling::new(&body, self.repair).ok_or_else(no_place)?;
        let group = self
            .group
            .as_ref()
            .map(Group::number)
            .transpose()
            .map_err(unable("the group of its socket"))?;
        let (socket, listener) = names::listen_as(Whose::Home, Access { mode: self.mode, group })?;
        let at = ObjectSite { name: self.name, socket, gates: ObjectGates::new(gates, known) };
        let object = HomeObject::new(at, shape, body, self.policy, settling);
        let object = Arc::new(object);
        let door = Arc::new(ObjectListener { listener, object: Arc::downgrade(&object) });
        let key = Clerk::current()
            .and_then(|clerk| clerk.watch(door, Report::WhileReadable))
            .map_err(unable("the clerk's thread"))?;
        object.is_watched_as(key);
        point(Point::ObjectMade);
        let handle = Handle::at_home(object.clone()).ok_or_else(no_place)?;
        Ok((handle, object))
    }
}
