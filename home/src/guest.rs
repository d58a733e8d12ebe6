//! Those who use an object from elsewhere, as its home's clerk knows them.

use crate::object::Object;
use crate::wire::{self, Opened, Request, VERSION};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use upcall_os::socket::{Connection, Listener, Message, Peer, Received};
use upcall_transfer::clerk::Watched;

/// So many are let in, or heard, before others have their turn with the clerk.
const TURN: usize = 16;

/// Where others connect.
pub(crate) struct Door {
    pub(crate) listener: Listener,
    pub(crate) object: Weak<Object>,
}

impl Watched for Door {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn happened(&self, _hung_up: bool) -> bool {
        let Some(object) = self.object.upgrade() else { return false };
        for _ in 0..TURN {
            match self.listener.accept() {
                Ok(Some(connection)) => {
                    // Who has ended already is known no more, and of no use.
                    let Ok(peer) = connection.peer() else { continue };
                    object.admit(Guest::new(connection, peer, &object));
                }
                Ok(None) => break,
                // The descriptor table is full. The connection stays in the queue; without the pause the clerk would spin on it.
                Err(_) => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                    break;
                }
            }
        }
        true
    }

    fn failed(&self) -> bool {
        true
    }
}

/// One who has connected.
pub(crate) struct Guest {
    connection: Connection,
    peer: Peer,
    object: Weak<Object>,
    /// Its place, once it uses the object; one who only reads has none.
    pub(crate) place: OnceLock<Option<u16>>,
    gone: AtomicBool,
}

impl Guest {
    fn new(connection: Connection, peer: Peer, object: &Arc<Object>) -> Arc<Self> {
        let object = Arc::downgrade(object);
        Arc::new(Self { connection, peer, object, place: OnceLock::new(), gone: AtomicBool::new(false) })
    }

    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// A descriptor that is readable when its process has ended, where the kernel gives one.
    pub(crate) fn end(&self) -> Option<OwnedFd> {
        self.peer.pidfd.as_ref()?.try_clone().ok()
    }

    pub(crate) fn hang_up(&self) {
        self.connection.shut_down();
    }

    /// Whether this is the first time that it is known to be gone.
    pub(crate) fn goes(&self) -> bool {
        !self.gone.swap(true, Ordering::AcqRel)
    }

    /// Attends to what it has sent. False if it is gone, or is to be.
    fn attend(&self, object: &Arc<Object>) -> bool {
        for _ in 0..TURN {
            match self.connection.receive() {
                Ok(Received::Message(message)) if self.said(object, &message) => {}
                Ok(Received::Nothing) => return true,
                Ok(_) | Err(_) => return false,
            }
        }
        true
    }

    fn said(&self, object: &Arc<Object>, message: &Message) -> bool {
        match wire::unpack(&message.bytes) {
            Ok(Request::Open { version, shape }) if self.place.get().is_none() => {
                let answer = if version == VERSION {
                    object.open(self, shape)
                } else {
                    Err(format!("it speaks version {VERSION} of the protocol, and this process version {version}"))
                };
                match answer {
                    Ok((place, memory)) => {
                        let _ = self.place.set(place);
                        let yes = Opened::Yes { place, length: object.body.length() as u64, sealed: object.body.is_sealed() };
                        self.answer(&yes, &[memory.as_fd()])
                    }
                    Err(why) => {
                        self.answer(&Opened::No(why), &[]);
                        false
                    }
                }
            }
            Ok(Request::Tore) if matches!(self.place.get(), Some(Some(_))) => {
                object.settle();
                true
            }
            _ => false,
        }
    }

    fn answer(&self, answer: &Opened, descriptors: &[BorrowedFd<'_>]) -> bool {
        wire::pack(answer).and_then(|bytes| self.connection.send(&bytes, descriptors)).is_ok()
    }

    fn is_lost(&self) {
        if let Some(object) = self.object.upgrade() {
            object.lost(self);
        }
    }
}

impl Watched for Guest {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }

    fn happened(&self, _hung_up: bool) -> bool {
        let Some(object) = self.object.upgrade() else { return false };
        let there = self.attend(&object);
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

/// The end of a guest's process, which a connection that it has left to a child would not tell.
pub(crate) struct End {
    pub(crate) process: OwnedFd,
    pub(crate) guest: Weak<Guest>,
}

impl Watched for End {
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
