//! What a calling end knows of its server, shared by all lanes of the channel.

use crate::caller::CallerChannel;
use crate::handoff::Donor;
use crate::pacer::Pacer;
use crate::steer::Attention;
use crate::wait::Closed;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use upcall_os::atomic::fence;
use upcall_os::bell::Bell;
use upcall_os::clapper::Clapper;
use upcall_shm::slot::Image;
use upcall_shm::station::PeerStation;

/// See the module.
pub(crate) struct Far {
    pub(crate) station: PeerStation,
    /// The server's virtual processor that is woken for this channel, and its bell.
    pub(crate) home: u16,
    pub(crate) bell: Bell,
    /// So many kernel threads are ringing it.
    ringing: AtomicUsize,
    pub(crate) donor: Donor,
    pub(crate) attention: Arc<Attention>,
    pub(crate) pacer: Pacer,
    pub(crate) closed: AtomicBool,
    pub(crate) reason: OnceLock<Closed>,
    /// The channel, for a lane that has to close all of it.
    pub(crate) whole: OnceLock<Weak<CallerChannel>>,
}

impl Far {
    /// What is known of a server that has just been found.
    pub(crate) fn new(station: PeerStation, pid: u32, home: u16, bell: Bell) -> Self {
        Self {
            attention: Attention::new(station.places()),
            station,
            home,
            bell,
            ringing: AtomicUsize::new(0),
            donor: Donor::new(pid),
            pacer: Pacer::default(),
            closed: AtomicBool::new(false),
            reason: OnceLock::new(),
            whole: OnceLock::new(),
        }
    }

    /// The channel is closed from now on. The first reason stays.
    pub(crate) fn end(self: &Arc<Self>, reason: Closed) {
        let _ = self.reason.set(reason);
        self.closed.store(true, Ordering::SeqCst);
        // A caller that announces itself after this fence sees `closed`; one that did before is found asleep by whoever closes.
        fence(upcall_os::atomic::Ordering::SeqCst);
        if self.ringing.load(Ordering::SeqCst) != 0 {
            relieve(self);
        }
    }

    #[inline]
    pub(crate) fn check(&self) -> Result<(), Closed> {
        if self.closed.load(Ordering::Acquire) { Err(self.why()) } else { Ok(()) }
    }

    #[cold]
    fn why(&self) -> Closed {
        self.reason.get().cloned().unwrap_or(Closed::Here)
    }

    pub(crate) fn closed(&self) -> Option<Closed> {
        self.closed.load(Ordering::Acquire).then(|| self.why())
    }

    /// Whether this kernel thread gave its processor to this server the last time that it gave it to any: only such a one is worth keeping there. Of several that stay, each gives way to the others in vain.
    #[inline]
    pub(crate) fn is_handed_again(&self) -> bool {
        thread_local! {
            static LAST: Cell<usize> = const { Cell::new(0) };
        }
        let own = (&raw const *self).addr();
        LAST.replace(own) == own
    }

    /// Counts a call, and says in its request whether the server shall rest after it.
    #[inline]
    pub(crate) fn count(&self, request: &mut Image, uncounted: &mut u32) {
        self.attention.count(uncounted, || self.station.places());
        if self.attention.rests() {
            request.ask_to_rest();
        }
    }

    /// Whether the server's processor is on ours when it serves the next request; if it sleeps it is brought here.
    #[inline]
    pub(crate) fn is_brought(&self, asleep: bool) -> bool {
        if asleep { self.donor.bring(&self.station, self.home) } else { self.donor.has_brought(&self.station, self.home) }
    }

    /// Rings from a kernel thread: by a write, the cheapest way. A hostile server can hold that up as long as it could withhold the reply, but nobody else's thread with it;
    /// after the end see [`Far::end`]. One that must not be held up even so, for it has a deadline, has the kernel ring.
    #[inline(never)]
    pub(crate) fn ring(&self, in_time: bool) {
        if in_time && let Ok(clapper) = Clapper::current() {
            return clapper.ring(&self.bell);
        }
        self.ringing.fetch_add(1, Ordering::SeqCst);
        // Who closes looks at the count after that.
        if !self.closed.load(Ordering::SeqCst) {
            self.bell.ring();
        }
        self.ringing.fetch_sub(1, Ordering::Release);
    }

    /// Closes the channel and wakes the callers on all of its lanes. A channel that is gone has none.
    #[cold]
    pub(crate) fn close(&self, reason: Closed) {
        if let Some(channel) = self.whole.get().and_then(Weak::upgrade) {
            channel.close(reason);
        }
    }
}

/// Lets go on who is held up in ringing (os::bell) a channel that is closed now. Empties the bell again and again, for a hostile server may fill it again.
#[cold]
fn relieve(far: &Arc<Far>) {
    far.bell.silence();
    let far = far.clone();
    let relief = move || {
        while far.ringing.load(Ordering::Acquire) != 0 {
            far.bell.silence();
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    // Without a thread the first time has to do.
    drop(std::thread::Builder::new().name("upcall-relief".into()).stack_size(64 * 1024).spawn(relief));
}
