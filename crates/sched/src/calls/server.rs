//! What a caller knows of the server of a channel, whichever lane it calls on.
//!
//! All hints of a call are computed and written here ([`CalledServer::hint`]). A hint tells the
//! server's idle policy ([`poller`](crate::poller)) what the caller is about to do, and binds it to
//! nothing.

use crate::handoff::{Donor, Whereabouts};
use crate::pacing::SpinBudget;
use crate::steer::Attention;
use crate::wait::{Closed, NoReply};
use crate::wait_limit::WaitLimit;
use std::cell::Cell;
use std::io;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use upcall_os::atomic::{AtomicBool, AtomicUsize, Ordering};
use upcall_os::doorbell::Doorbell;
use upcall_os::safe_doorbell::SafeDoorbell;
use upcall_shm::channel::LaneControl;
use upcall_shm::slot::SlotMessage;
use upcall_shm::station::PeerStation;

/// The server's clerk, as the calling end of a channel uses it.
pub trait ServerClerk: Send + Sync {
    /// Opens lane `number`. For a virtual processor's lane, `vp` is that processor's number and the
    /// doorbell that wakes it. Tries until `until`.
    ///
    /// # Errors
    /// `TimedOut` if the server was not reached in time; `BrokenPipe` if it has ended.
    fn open_lane(
        &self,
        number: u16,
        vp: Option<(u16, &Doorbell)>,
        until: Instant,
    ) -> io::Result<()>;

    /// Reports that the server has not probed a lane for some time ([`stall`](crate::stall)). Never
    /// blocks. A report may be lost: the caller repeats it.
    fn report_stall(&self);
}

/// A channel, as its lanes use it.
pub(crate) trait WholeChannel: Send + Sync {
    /// Closes the channel, for this reason, and wakes the callers on all of its lanes.
    fn close(&self, reason: Closed);

    /// Waits for the reply of an abandoned call on a kernel thread's lane, and hands it on.
    fn await_late(&self, number: usize);
}

/// The result of opening a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneOpening {
    Opened,
    /// The server does not listen at the moment.
    NotNow,
}

/// What a request tells the server of its caller's CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hints {
    /// The caller gives its CPU to the server.
    pub(crate) donates: bool,
    /// The server is asked to stay awake there when it has answered.
    pub(crate) asks_to_stay: bool,
}

/// What is known of the server, shared by the lanes.
pub(crate) struct CalledServer {
    pub(crate) station: PeerStation,
    /// The server's virtual processor that is woken for this channel, and its doorbell.
    pub(crate) home: u16,
    pub(crate) doorbell: Doorbell,
    /// Number of kernel threads that are notifying it.
    ringing: AtomicUsize,
    pub(crate) donor: Donor,
    attention: Arc<Attention>,
    pub(crate) spin_budget: SpinBudget,
    clerk: Arc<dyn ServerClerk>,
    closed: AtomicBool,
    reason: OnceLock<Closed>,
    whole: OnceLock<Weak<dyn WholeChannel>>,
}

impl CalledServer {
    /// Creates the record of a server in process `pid`, whose virtual processor `home` is notified
    /// by `doorbell`.
    pub(crate) fn new(
        station: PeerStation,
        pid: u32,
        home: u16,
        doorbell: Doorbell,
        clerk: Arc<dyn ServerClerk>,
    ) -> Self {
        Self {
            attention: Attention::new(station.places()),
            station,
            home,
            doorbell,
            ringing: AtomicUsize::new(0),
            donor: Donor::new(pid),
            spin_budget: SpinBudget::default(),
            clerk,
            closed: AtomicBool::new(false),
            reason: OnceLock::new(),
            whole: OnceLock::new(),
        }
    }

    /// Sets the channel that the lanes belong to. To be called once, before the first call.
    pub(crate) fn belongs_to(&self, channel: Weak<dyn WholeChannel>) {
        let _ = self.whole.set(channel);
    }

    #[inline]
    pub(crate) fn check(&self) -> Result<(), Closed> {
        if self.is_closed() { Err(self.closed().unwrap_or(Closed::Here)) } else { Ok(()) }
    }

    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn closed(&self) -> Option<Closed> {
        self.is_closed().then(|| self.reason.get().cloned().unwrap_or(Closed::Here))
    }

    /// Makes every later call find the channel closed; the first reason is kept. Callers that wait
    /// are woken by [`close`](Self::close).
    pub(crate) fn closes(&self, reason: Closed) {
        let _ = self.reason.set(reason);
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Closes the channel and wakes the callers on all of its lanes. A channel that is gone has
    /// none.
    #[cold]
    pub(crate) fn close(&self, reason: Closed) {
        if let Some(channel) = self.channel() {
            channel.close(reason);
        }
    }

    /// The channel; `None` if it is gone.
    pub(crate) fn channel(&self) -> Option<Arc<dyn WholeChannel>> {
        self.whole.get().and_then(Weak::upgrade)
    }

    /// Opens a lane on the server, trying for at most `longest`.
    pub(crate) fn open_lane(
        &self,
        number: usize,
        vp: Option<(u16, &Doorbell)>,
        until: WaitLimit<'_>,
        longest: Duration,
    ) -> Result<LaneOpening, NoReply> {
        let ends = Instant::now() + until.left(longest);
        match self.clerk.open_lane(number as u16, vp, ends) {
            Ok(()) => Ok(LaneOpening::Opened),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                self.check()?;
                if until.has_come() {
                    Err(NoReply::OutOfTime { sent: false })
                } else {
                    Ok(LaneOpening::NotNow)
                }
            }
            Err(error) => Err(no_lane(error).into()),
        }
    }

    pub(crate) fn report_stall(&self) {
        self.clerk.report_stall();
    }

    /// Computes the hints of a request and writes them into it.
    ///
    /// `donates` means that the caller gives its CPU to the server. `wants_it_to_stay` is called
    /// only then. Also counts the request for a lane that has `uncounted` calls to hand in, and
    /// writes whether the server is to rest after it.
    #[inline]
    pub(crate) fn hint(
        &self,
        request: &mut SlotMessage,
        donates: bool,
        wants_it_to_stay: impl FnOnce() -> bool,
        uncounted: &mut u32,
    ) -> Hints {
        let asks_to_stay = donates && self.is_handed_again() && wants_it_to_stay();
        if donates {
            request.donate();
        }
        if asks_to_stay {
            request.ask_to_stay();
        }
        self.attention.count(uncounted, || self.station.places());
        if self.attention.rests() {
            request.ask_to_rest();
        }
        Hints { donates, asks_to_stay }
    }

    /// Returns `true` if this kernel thread gave its CPU to this server the last time that it gave
    /// it to any: only such a server is worth keeping there. If several stay, each yields to the
    /// others in vain.
    #[inline]
    fn is_handed_again(&self) -> bool {
        thread_local! {
            static LAST: Cell<usize> = const { Cell::new(0) };
        }
        let own = (&raw const *self).addr();
        LAST.replace(own) == own
    }

    /// Returns `true` if the server's virtual processor sleeps or is about to.
    #[inline]
    pub(crate) fn is_asleep(&self) -> bool {
        self.station.asleep(self.home)
    }

    /// The CPU that the server runs on, as it reports.
    #[inline]
    pub(crate) fn cpu(&self) -> Option<u32> {
        self.station.cpu(self.home)
    }

    /// Number of probes of the server's lanes, as the server publishes it.
    pub(crate) fn probes(&self) -> u32 {
        self.station.probes(self.home)
    }

    /// Returns `true` if the server was moved to the caller's CPU, and is still there.
    #[inline]
    pub(crate) fn has_brought(&self) -> bool {
        self.donor.has_brought(&self.station, self.home)
    }

    /// Moves the sleeping server to the caller's CPU.
    pub(crate) fn bring(&self, lane: &LaneControl) -> Whereabouts {
        self.donor.bring(&self.station, self.home, lane)
    }

    /// Notifies the server from a kernel thread by a write, the cheapest way.
    ///
    /// A hostile server can hold up that write for as long as it could withhold the reply, but no
    /// other thread with it; for the end of the channel see [`relieve`](Self::relieve). A caller
    /// with a deadline (`in_time`) must not be held up even then: for it the safe doorbell
    /// notifies.
    #[inline]
    pub(crate) fn notify(&self, in_time: bool) {
        if in_time && let Ok(safe_doorbell) = SafeDoorbell::current() {
            return safe_doorbell.notify(&self.doorbell);
        }
        self.ringing.fetch_add(1, Ordering::SeqCst);
        // A thread that closes the channel reads the count after that.
        if !self.closed.load(Ordering::SeqCst) {
            self.doorbell.notify();
        }
        self.ringing.fetch_sub(1, Ordering::Release);
    }

    /// Releases the threads that a closed channel's server holds up in their writes (os::doorbell).
    /// Empties the doorbell again and again, because a hostile server may fill it again.
    pub(crate) fn relieve(self: &Arc<Self>) {
        if self.ringing.load(Ordering::SeqCst) == 0 {
            return;
        }
        self.doorbell.silence();
        let server = self.clone();
        let relief = move || {
            while server.ringing.load(Ordering::Acquire) != 0 {
                server.doorbell.silence();
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        // If no thread can be started, the first time has to do.
        drop(
            std::thread::Builder::new()
                .name("upcall-relief".into())
                .stack_size(64 * 1024)
                .spawn(relief),
        );
    }
}

/// Converts the error of a lane that could not be opened.
pub(crate) fn no_lane(error: io::Error) -> Closed {
    if error.kind() == io::ErrorKind::BrokenPipe {
        Closed::PeerEnded
    } else {
        Closed::Lane(error.to_string())
    }
}
