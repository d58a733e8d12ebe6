//! Objects whose home is another process.

use crate::body::{Body, Ours, ReadOnlyBody};
use crate::error::FindError;
use crate::far::place::may_be_reached;
use crate::wire::{self, ObjectRequest, OpenReply, VERSION};
use std::cell::Cell;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_directory::clerk::{Clerk, Watched};
use upcall_directory::names;
use upcall_directory::policy::Policy;
use upcall_os::atomic::{AtomicBool, Ordering};
use upcall_os::fault::{Point, point};
use upcall_os::poll::Report;
use upcall_os::socket::{Connection, Received, is_shut, says_ended};
use upcall_sched::post::Post;

/// Time within which a home must accept a connection, and answer a request.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time for which the answer is polled before the thread blocks.
const EAGER: Duration = Duration::from_micros(30);

/// Time within which a killed home ends, after the first of its connections has closed.
const TO_END: Duration = Duration::from_millis(30);

/// An object whose home is another process.
pub(crate) struct RemoteObject {
    pub(crate) name: String,
    pub(crate) shape: u64,
    /// The policy that says which homes are accepted.
    pub(crate) accepts: Arc<Policy>,
    pub(crate) memory: GrantedMemory,
    /// The address at which other hosts reach the home, HOST:PORT, as it says.
    pub(crate) reached_at: Option<String>,
    far: Arc<HomeConnection>,
    /// The home's process.
    process: Option<OwnedFd>,
    /// The names that the home left behind were swept.
    swept: Cell<bool>,
    /// The clerk's key for the connection.
    key: u64,
}

/// The memory that the home has granted.
pub(crate) enum GrantedMemory {
    /// The object's memory, and a place among the parties that lock it.
    Body(Body, Ours),
    /// The object's memory, to read it.
    View(ReadOnlyBody),
    /// No memory: the object may only be invoked.
    None,
}

/// The connection to a home. It ends when the home ends or lets go of the object.
pub(crate) struct HomeConnection {
    connection: Connection,
    ended: AtomicBool,
    /// The post where a thread sleeps that waits for the home.
    post: Option<Arc<Post>>,
}

impl fmt::Debug for RemoteObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteObject")
            .field("name", &self.name)
            .field("has_ended", &self.has_ended())
            .finish_non_exhaustive()
    }
}

/// The answer of a home.
pub(crate) struct Connected {
    pub(crate) connection: Connection,
    pub(crate) answer: OpenReply,
    pub(crate) descriptors: Vec<OwnedFd>,
    /// The home's process.
    pub(crate) process: Option<OwnedFd>,
}

/// Sends a request to the home of an object, if `accepts` accepts that home, and receives its
/// answer.
pub(crate) fn connect(
    name: &str,
    accepts: &Policy,
    request: &ObjectRequest,
    descriptors: &[BorrowedFd<'_>],
) -> Result<Connected, FindError> {
    let absent = |why: String| FindError::Absent { name: name.into(), why };
    let unreachable = |why: String| FindError::Unreachable { name: name.into(), why };
    let failed = |error: std::io::Error| unreachable(error.to_string());
    let socket = names::find_object(name)?;
    let connection = Connection::connect_until(&socket, Instant::now() + PATIENCE).map_err(
        |error| match error.kind() {
            _ if is_shut(&error) => absent("it has ended".into()),
            std::io::ErrorKind::PermissionDenied => unreachable(names::not_open(&socket)),
            _ => failed(error),
        },
    )?;
    let peer = connection.peer().map_err(|error| match says_ended(&error) {
        true => absent("it has ended".into()),
        false => failed(error),
    })?;
    accepts(&peer).map_err(|reason| FindError::WrongUser {
        name: name.into(),
        found: peer.uid,
        reason,
    })?;
    connection.ask(&wire::pack(request).map_err(failed)?, descriptors).map_err(failed)?;
    point(Point::ObjectAsked);
    let message = match connection.receive_within(EAGER, PATIENCE) {
        Ok(Received::Message(message)) => message,
        Ok(Received::Nothing) => {
            return Err(absent(format!("it has not answered for {PATIENCE:?}: is it stopped?")));
        }
        Ok(Received::Closed) if connection.peer_ends_within(TO_END) => {
            return Err(absent("it has ended".into()));
        }
        Ok(Received::Closed) => {
            return Err(unreachable("it is alive, but has hung up without an answer".into()));
        }
        Err(error) => return Err(failed(error)),
    };
    if message.lost {
        return Err(unreachable("no descriptor is left here for what came with its answer".into()));
    }
    point(Point::ObjectOpened);
    match wire::unpack(&message.bytes).map_err(unreachable)? {
        OpenReply::No(why) => Err(FindError::Refused { name: name.into(), why }),
        answer => Ok(Connected {
            connection,
            answer,
            descriptors: message.descriptors,
            process: peer.pidfd,
        }),
    }
}

impl HomeConnection {
    /// Makes the clerk watch for the end of the connection, and wake the thread at `post` then.
    ///
    /// Returns the clerk's key, too.
    pub(crate) fn watch(
        connection: Connection,
        post: Option<Arc<Post>>,
    ) -> std::io::Result<(Arc<Self>, u64)> {
        let far = Arc::new(Self { connection, ended: AtomicBool::new(false), post });
        let key = Clerk::current()?.watch(far.clone(), Report::WhileReadable)?;
        Ok((far, key))
    }

    /// Returns `true` if the home is known to have let go of the object.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(crate) fn hang_up(&self) {
        self.connection.shut_down();
    }

    fn ends(&self) {
        self.ended.store(true, Ordering::Release);
        if let Some(post) = &self.post {
            post.rouse();
        }
    }
}

impl RemoteObject {
    /// Finds an object, and asks its home for access.
    pub(crate) fn find(name: &str, shape: u64, accepts: Arc<Policy>) -> Result<Self, FindError> {
        let unreachable = |why: String| FindError::Unreachable { name: name.into(), why };
        let failed = |error: std::io::Error| unreachable(error.to_string());
        let request = ObjectRequest::Open { version: VERSION, shape };
        let Connected { connection, answer, descriptors, process } =
            connect(name, &*accepts, &request, &[])?;
        let done = |connection, memory, reached_at: Option<String>| {
            let (far, key) = HomeConnection::watch(connection, None).map_err(failed)?;
            Ok(Self {
                name: name.into(),
                shape,
                accepts,
                memory,
                reached_at: reached_at.filter(|at| may_be_reached(at)),
                far,
                process,
                swept: Cell::new(false),
                key,
            })
        };
        match answer {
            OpenReply::ToInvoke { reached_at } => done(connection, GrantedMemory::None, reached_at),
            OpenReply::Yes { place, length, sealed, reached_at } => {
                let memory = descriptors.into_iter().next();
                let memory = memory.ok_or_else(|| unreachable("it sent no memory".into()))?;
                let wrong = |error| FindError::NotAnObject { name: name.into(), error };
                let memory = match place {
                    None => GrantedMemory::View(
                        ReadOnlyBody::join(memory, sealed, shape, length).map_err(wrong)?,
                    ),
                    Some(place) => {
                        let body = Body::join(memory, shape, length).map_err(wrong)?;
                        let no_such =
                            || unreachable(format!("it gave place {place}, which does not exist"));
                        let party = body.party(place).ok_or_else(no_such)?;
                        GrantedMemory::Body(body, party)
                    }
                };
                done(connection, memory, reached_at)
            }
            _ => Err(unreachable("its answer is of an unexpected kind".into())),
        }
    }

    /// Returns `true` if the home is known to have let go of the object.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.far.has_ended()
    }

    /// Removes the names that a killed home has left in the folder of names.
    ///
    /// The kernel closes the connections of a killed home some moments before the socket to which
    /// its names lead, so this waits for those moments. It does not wait long, because the home may
    /// also be alive and have let go of the object.
    #[cold]
    pub(crate) fn sweep(&self) {
        if self.swept.replace(true) {
            return;
        }
        if let Some(process) = &self.process {
            upcall_os::socket::ends_within(process, TO_END);
        }
        names::sweep();
    }

    /// Closes the connection, as the kernel does at the end of a process.
    #[cfg(test)]
    pub(crate) fn hang_up(&self) {
        self.far.hang_up();
    }

    /// Reports to the home that an operation has ended in the middle.
    pub(crate) fn tore(&self) {
        let _ = wire::pack(&ObjectRequest::Tore)
            .and_then(|bytes| self.far.connection.send(&bytes, &[]));
    }
}

impl Drop for RemoteObject {
    fn drop(&mut self) {
        // The clerk may not have seen the end yet.
        if self.has_ended() || self.process.as_ref().is_some_and(upcall_os::socket::has_ended) {
            self.sweep();
        }
        self.far.hang_up();
        if let Ok(clerk) = Clerk::current() {
            clerk.forget(self.key);
        }
    }
}

impl Watched for HomeConnection {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }

    /// A home sends nothing more on an open connection, so any event is its end.
    fn happened(&self, _hung_up: bool) -> bool {
        self.ends();
        false
    }

    fn failed(&self) -> bool {
        self.ends();
        false
    }
}
