//! The serving end of a channel.
//!
//! Whichever virtual processor finds a request takes it, and runs it in place, on the stack of the
//! worker that probed, or on another one if a blocked thread was probing. Workers' stacks are what
//! LRPC calls E-stacks (section 3.2), but they are joined to no A-stack: a processor keeps them in
//! a pool, the last one used first, and makes another only when a call blocks and none is left
//! (URPC, section 2). The contents of a request come from the client: this module believes the
//! count of requests, and only against a limit; `rpc` checks the rest.

mod client;
mod lane;

pub use client::{CallerWake, ChannelOwner};
pub use lane::{Request, Serve, UNANSWERED};
pub(crate) use lane::{ServeOutcome, ServerLane};

use crate::domain::Domain;
use crate::idle::group::PollingIdle;
use crate::server::client::ServedClient;
use std::fmt;
use std::io;
use std::sync::{Arc, Weak};
use upcall_os::atomic::{AtomicU64, Ordering};
use upcall_os::doorbell::Doorbell;
use upcall_os::poll::Report;
use upcall_shm::channel::{Channel, LANES};
use upcall_shm::station::PeerStation;

/// The serving end of a channel; see the module.
pub struct ServerChannel {
    channel: Channel,
    processors: PollingIdle,
    client: Arc<ServedClient<dyn Serve>>,
    /// A bit for each lane that was opened. The processors own the lanes, because lanes keep the
    /// client alive.
    opened: AtomicU64,
}

impl fmt::Debug for ServerChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerChannel")
            .field("home", &self.client.home())
            .field("closed", &self.client.is_closed())
            .finish_non_exhaustive()
    }
}

impl ServerChannel {
    /// Creates the serving end of `channel`, whose `owner` has `station`. `processors` poll it;
    /// `home` is the number of the processor that the client wakes, by `doorbell`.
    ///
    /// # Errors
    /// The home processor's set cannot take the doorbell.
    pub fn new(
        channel: Channel,
        station: PeerStation,
        processors: PollingIdle,
        owner: ChannelOwner,
        (home, doorbell): (u16, Doorbell),
        serve: Box<dyn Serve>,
    ) -> io::Result<Arc<Self>> {
        let wake_set = Domain::current()?.wake_set(usize::from(home))?;
        wake_set.set.add(&doorbell, 2, Report::EachRing)?;
        let polled_by = processors.clone();
        let remove = move |client: &ServedClient<dyn Serve>| {
            polled_by.remove_lanes(|lane| lane.is_of(client))
        };
        let bell = (home, doorbell);
        let client = Arc::new(ServedClient::new(station, owner, bell, serve, Box::new(remove)));
        Ok(Arc::new(Self { channel, processors, client, opened: AtomicU64::new(0) }))
    }

    /// Returns a handle that shows whether calls of this channel may still run.
    pub fn calls(&self) -> CallsUnderWay {
        CallsUnderWay(Arc::downgrade(&self.client))
    }

    /// Starts to poll a lane.
    ///
    /// # Errors
    /// There is no such lane, or it is open already: the client broke the protocol.
    pub fn open_lane(
        self: &Arc<Self>,
        number: u16,
        caller: CallerWake,
    ) -> Result<(), &'static str> {
        let lane = self.channel.lane(number).ok_or("a lane that does not exist was opened")?;
        let (client, duty) = (self.client.clone(), self.processors.duty().clone());
        let lane = Arc::new(ServerLane::new(number, lane, caller, client, duty));
        const { assert!(LANES <= 64) };
        if self.opened.fetch_or(1 << number, Ordering::Relaxed) & 1 << number != 0 {
            return Err("a lane was opened twice");
        }
        self.processors.add_lane(lane);
        // Another thread that has closed the channel may have removed the lanes before this one was
        // added.
        if self.client.is_closed() {
            self.client.remove_lanes();
        }
        Ok(())
    }

    /// Takes no more requests. Requests that run go on to their end, and their replies are lost.
    pub fn close(&self) {
        self.client.close();
    }
}

/// The calls on a channel that may still run, even after the channel is closed.
#[derive(Debug)]
pub struct CallsUnderWay(Weak<ServedClient<dyn Serve>>);

impl CallsUnderWay {
    /// Returns `true` if a call may still run.
    ///
    /// The channel lives, or a call on one of its lanes does, or a virtual processor has not probed
    /// since the channel was closed.
    pub fn may_run(&self) -> bool {
        self.0.strong_count() > 0
    }
}
