//! How a sender of messages wakes the receiver at a peer's [`post`](crate::post).

use crate::sleep;
use upcall_os::atomic::AtomicU64;
use upcall_os::doorbell::Doorbell;
use upcall_os::membarrier;
use upcall_os::safe_doorbell::SafeDoorbell;
use upcall_shm::station::PeerStation;

/// A sender's way to wake the receiver at a peer's post.
#[derive(Debug)]
pub struct Ringer {
    station: PeerStation,
    line: u16,
    /// The number of the receiver's latest sleep for which this sender has notified.
    rung: AtomicU64,
    /// Set if the receiver does not make the fence for this sender.
    fences: bool,
}

impl Ringer {
    /// Creates a ringer for the receiver at `line` of a peer's station. `makes_fences` is what the
    /// receiver reported.
    pub fn new(station: PeerStation, line: u16, makes_fences: bool) -> Self {
        Self {
            station,
            line,
            rung: AtomicU64::new(0),
            fences: !(makes_fences && membarrier::register()),
        }
    }

    /// Notifies `doorbell` if the receiver sleeps and this sender has not notified it yet.
    ///
    /// To be called after each message. Costs one load while the receiver is awake. Never blocks.
    #[inline]
    pub fn launched(&self, safe_doorbell: &SafeDoorbell, doorbell: &Doorbell) {
        if let Some(number) = self.sleep() {
            self.notify(number, safe_doorbell, doorbell);
        }
    }

    /// Returns `true` if the receiver sleeps, so that a message that was written needs
    /// [`launched`](Self::launched), unless the caller takes it in the receiver's place.
    pub fn is_awaited(&self) -> bool {
        self.sleep().is_some()
    }

    #[inline]
    fn sleep(&self) -> Option<u64> {
        if self.fences {
            upcall_os::atomic::fence(upcall_os::atomic::Ordering::SeqCst);
        } else {
            sleep::no_fence();
        }
        self.station.sleep(self.line)
    }

    #[cold]
    fn notify(&self, number: u64, safe_doorbell: &SafeDoorbell, doorbell: &Doorbell) {
        if sleep::first_ring(&self.rung, number) {
            safe_doorbell.notify(doorbell);
        }
    }
}
