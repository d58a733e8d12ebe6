//! The client of a channel, as its server sees it: the state that all lanes of the channel share.

use crate::domain::Domain;
use std::fmt;
use upcall_os::atomic::{AtomicBool, Ordering};
use upcall_os::doorbell::Doorbell;
use upcall_os::safe_doorbell::SafeDoorbell;
use upcall_shm::station::PeerStation;

/// The client that a channel belongs to. One client may have several channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelOwner {
    /// The client's number. All its channels share the stacks that it may have.
    pub client: u64,
    /// The user of the client, if all clients of that user share a bound as well.
    pub user: Option<u32>,
}

/// The client of a channel, whose requests `S` runs.
pub(crate) struct ServedClient<S: ?Sized> {
    pub(super) station: PeerStation,
    pub(super) serve: Box<S>,
    pub(super) owner: ChannelOwner,
    home: u16,
    /// The doorbell that the client notifies; in the home processor's wake set.
    doorbell: Doorbell,
    pub(super) closed: AtomicBool,
    /// Ends the polling of its lanes.
    remove_lanes: Box<dyn Fn(&Self) + Send + Sync>,
}

impl<S: ?Sized> fmt::Debug for ServedClient<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedClient").field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl<S: ?Sized> ServedClient<S> {
    /// Creates a client whose `owner` has `station`. `home` is the number of the processor that the
    /// client wakes, by `doorbell`.
    pub(super) fn new(
        station: PeerStation,
        owner: ChannelOwner,
        (home, doorbell): (u16, Doorbell),
        serve: Box<S>,
        remove_lanes: Box<dyn Fn(&Self) + Send + Sync>,
    ) -> Self {
        let closed = AtomicBool::new(false);
        Self { station, serve, owner, home, doorbell, closed, remove_lanes }
    }

    pub(super) fn home(&self) -> u16 {
        self.home
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Takes no more requests. Requests that run go on to their end, and their replies are lost.
    pub(super) fn close(&self) {
        if self.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Ok(wake_set) =
            Domain::current().and_then(|domain| domain.wake_set(usize::from(self.home)))
        {
            wake_set.set.remove(&self.doorbell);
        }
        self.remove_lanes();
    }

    pub(super) fn remove_lanes(&self) {
        (self.remove_lanes)(self);
    }
}

/// How the caller on a lane is woken.
#[derive(Debug)]
pub enum CallerWake {
    /// A kernel thread: it sleeps on the lane's word.
    KernelThread,
    /// A virtual processor: its station shows whether it sleeps, and this doorbell wakes it.
    Processor {
        /// Its number in the client's domain.
        vp: u16,
        /// Its doorbell for this lane.
        doorbell: Doorbell,
        /// Notifies the doorbell. The client may make a write to it block, and the server's
        /// processor serves other clients as well.
        safe_doorbell: &'static SafeDoorbell,
    },
}
