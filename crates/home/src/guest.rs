//! The guests of an object, as the home's clerk sees them.
//!
//! A guest uses the object from another process.

use crate::lane::InvocationLane;
use crate::object::HomeObject;
use crate::quota::PeerQuota;
use crate::service_queue::{LaneCaller, LaneEnd};
use crate::wire::{self, ObjectRequest, OpenReply, VERSION};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};
use upcall_directory::clerk::{self, TURN, Watched};
use upcall_os::atomic::{AtomicBool, Ordering};
use upcall_os::doorbell::Doorbell;
use upcall_os::socket::{Connection, Listener, Peer, SocketMessage, says_ended};
use upcall_sched::Domain;
use upcall_sched::post::Post;
use upcall_sched::ringer::Ringer;
use upcall_shm::station::PeerStation;

/// The socket at which guests connect.
pub(crate) struct ObjectListener {
    pub(crate) listener: Listener,
    pub(crate) object: Weak<HomeObject>,
}

impl Watched for ObjectListener {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn happened(&self, _hung_up: bool) -> bool {
        let Some(object) = self.object.upgrade() else { return false };
        let admit = |connection: Connection| {
            match connection.peer() {
                Ok(peer) => {
                    if let Some(guest) = ObjectPeer::new(connection, peer, &object) {
                        object.admit(guest);
                    }
                }
                // The kernel does not know a process that has already ended, and it needs no
                // answer.
                Err(error) if says_ended(&error) => {}
                Err(error) => {
                    _ = say(
                        &connection,
                        &OpenReply::No(format!("the home cannot identify the caller: {error}")),
                        &[],
                    )
                }
            }
        };
        clerk::let_in(&self.listener, TURN, |_| false, admit);
        true
    }

    fn failed(&self) -> bool {
        true
    }
}

/// Returns `true` if the answer was sent.
fn say(connection: &Connection, answer: &OpenReply, descriptors: &[BorrowedFd<'_>]) -> bool {
    wire::pack(answer).and_then(|bytes| connection.send(&bytes, descriptors)).is_ok()
}

/// A process that has connected to an object's home.
pub(crate) struct ObjectPeer {
    connection: Connection,
    peer: Peer,
    quota: PeerQuota,
    object: Weak<HomeObject>,
    /// Its place, once it uses the object; `None` if it may only read or invoke.
    pub(crate) place: OnceLock<Option<u16>>,
    gone: AtomicBool,
    /// The guest has brought a lane.
    pub(crate) invokes: AtomicBool,
}

impl ObjectPeer {
    /// Returns `None`, after an answer that says so, if the guest's process or user has too many
    /// connections already.
    fn new(connection: Connection, peer: Peer, object: &Arc<HomeObject>) -> Option<Arc<Self>> {
        let quota = PeerQuota::of_connection(&peer)
            .map_err(|over| say(&connection, &OpenReply::No(over.to_string()), &[]))
            .ok()?;
        Some(Arc::new(Self {
            connection,
            peer,
            quota,
            object: Arc::downgrade(object),
            place: OnceLock::new(),
            gone: AtomicBool::new(false),
            invokes: AtomicBool::new(false),
        }))
    }

    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// A descriptor that is readable when the guest's process has ended, where the kernel gives
    /// one.
    pub(crate) fn end(&self) -> Option<OwnedFd> {
        self.peer.pidfd.as_ref()?.try_clone().ok()
    }

    pub(crate) fn hang_up(&self) {
        self.connection.shut_down();
    }

    /// Returns `true` if the guest was not known to be gone before.
    pub(crate) fn goes(&self) -> bool {
        !self.gone.swap(true, Ordering::AcqRel)
    }

    /// Handles a request. Returns `false` to hang up.
    fn said(&self, object: &Arc<HomeObject>, message: SocketMessage) -> bool {
        if message.lost {
            self.answer(
                &OpenReply::No(
                    "no descriptor is left in its home for what came with the request".into(),
                ),
                &[],
            );
            return false;
        }
        match wire::unpack(&message.bytes) {
            Ok(ObjectRequest::Invoke { version, shape, line, makes_fences })
                if !self.invokes.load(Ordering::Relaxed) =>
            {
                let answer = self.check(version).and_then(|()| {
                    self.lane(object, shape, line, makes_fences, message.descriptors)
                });
                match (answer, Domain::current()) {
                    (Ok(yes), Ok(domain)) => self.answer(&yes, &[domain.station().as_fd()]),
                    (Ok(_), Err(_)) => false,
                    (Err(why), _) => {
                        self.answer(&OpenReply::No(why), &[]);
                        false
                    }
                }
            }
            Ok(ObjectRequest::Open { version, shape }) if self.place.get().is_none() => {
                match self.check(version).and_then(|()| object.open(self, shape)) {
                    Ok(None) => {
                        let _ = self.place.set(None);
                        let reached_at = object.reached_at();
                        self.answer(&OpenReply::ToInvoke { reached_at }, &[])
                    }
                    Ok(Some((place, memory))) => {
                        let _ = self.place.set(place);
                        let yes = OpenReply::Yes {
                            place,
                            length: object.body.length() as u64,
                            sealed: object.body.is_sealed(),
                            reached_at: object.reached_at(),
                        };
                        self.answer(&yes, &[memory.as_fd()])
                    }
                    Err(why) => {
                        self.answer(&OpenReply::No(why), &[]);
                        false
                    }
                }
            }
            Ok(ObjectRequest::Tore) if matches!(self.place.get(), Some(Some(_))) => {
                object.settle();
                true
            }
            _ => false,
        }
    }

    fn check(&self, version: u32) -> Result<(), String> {
        if version == VERSION {
            return Ok(());
        }
        Err(format!(
            "it speaks version {VERSION} of the protocol, and this process version {version}"
        ))
    }

    /// Passes a lane that the guest has brought to the thread that serves the object.
    fn lane(
        &self,
        object: &HomeObject,
        shape: u64,
        line: u16,
        makes_fences: bool,
        descriptors: Vec<OwnedFd>,
    ) -> Result<OpenReply, String> {
        object.may(&self.peer, shape)?;
        let desk = object
            .desk()
            .ok_or("it runs no operations for others now: the home has to serve it")?;
        let Ok([lane, own, doorbell, station]) = <[OwnedFd; 4]>::try_from(descriptors) else {
            return Err("a lane comes with four descriptors".into());
        };
        let said = |error: &dyn std::fmt::Display| error.to_string();
        let held = self.quota.of_lane().map_err(|over| said(&over))?;
        let station = PeerStation::join(station).map_err(|error| said(&error))?;
        let end = LaneEnd {
            guest: self.number(),
            lane: Arc::new(InvocationLane::join(lane)?),
            caller: LaneCaller::Near {
                own: Doorbell::adopt(own).map_err(|error| said(&error))?,
                doorbell: Doorbell::adopt(doorbell).map_err(|error| said(&error))?,
                ringer: Ringer::new(station, line, makes_fences),
                _held: held,
            },
        };
        desk.take_in(end).map_err(|error| said(&error))?;
        self.invokes.store(true, Ordering::Relaxed);
        Ok(OpenReply::Invokes {
            line: desk.post.line(),
            makes_fences: Post::makes_fences(),
            operations: desk.names.clone(),
        })
    }

    /// The guest's number for the serving thread: its address, which no other guest has while it
    /// lives.
    pub(crate) fn number(&self) -> u64 {
        std::ptr::from_ref(self).addr() as u64
    }

    fn answer(&self, answer: &OpenReply, descriptors: &[BorrowedFd<'_>]) -> bool {
        say(&self.connection, answer, descriptors)
    }

    /// Sends the reason why the guest is refused.
    pub(crate) fn turn_away(&self, why: &str) {
        self.answer(&OpenReply::No(why.into()), &[]);
    }

    fn is_lost(&self) {
        if let Some(object) = self.object.upgrade() {
            object.lost(self);
        }
    }
}

impl Watched for ObjectPeer {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }

    fn happened(&self, _hung_up: bool) -> bool {
        let Some(object) = self.object.upgrade() else { return false };
        let there = clerk::hear(&self.connection, |message| self.said(&object, message));
        if !there {
            object.lost(self);
        }
        there
    }

    fn failed(&self) -> bool {
        self.is_lost();
        false
    }
}

/// Watches for the end of a guest's process. The connection alone would not show it if a child of
/// the process still holds it.
pub(crate) struct PeerExitWatch {
    pub(crate) process: OwnedFd,
    pub(crate) guest: Weak<ObjectPeer>,
}

impl Watched for PeerExitWatch {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }

    fn happened(&self, _hung_up: bool) -> bool {
        if let Some(guest) = self.guest.upgrade() {
            guest.is_lost();
        }
        false
    }

    fn failed(&self) -> bool {
        false
    }
}
