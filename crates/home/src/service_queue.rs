//! Lanes that the clerk passes to the thread that serves an object.

use crate::far::lanes::{FarBinding, FarLane};
use crate::lane::InvocationLane;
use crate::quota::OfLane;
use crate::wire::OperationKind;
use std::io;
use std::sync::{Arc, Weak};
use upcall_os::atomic::{AtomicBool, Ordering};
use upcall_os::doorbell::Doorbell;
use upcall_os::lock::KernelMutex;
use upcall_os::safe_doorbell::SafeDoorbell;
use upcall_sched::post::Post;
use upcall_sched::ringer::Ringer;
use upcall_shm::region::RegionView as View;
use upcall_shm::single::SingleServer;
use upcall_shm::slot::{Slot, SlotMessage};

/// The queue of events that the clerk fills for a thread that serves.
pub(crate) struct ServiceQueue {
    /// The post of the thread, shared by all objects that it serves.
    pub(crate) post: Arc<Post>,
    pub(crate) names: Vec<(String, OperationKind)>,
    news: KernelMutex<Vec<ServiceEvent>>,
    has_news: AtomicBool,
    /// The bindings of guests on other hosts; `None` once the thread serves no more.
    far: KernelMutex<Option<Vec<Weak<FarBinding>>>>,
}

pub(crate) enum ServiceEvent {
    Came(Arc<ServedLane>),
    Gone(u64),
}

/// The home's end of a lane.
pub(crate) struct LaneEnd {
    /// The number of the guest that brought the lane, or of a lane of a guest on another host.
    pub(crate) guest: u64,
    pub(crate) lane: Arc<InvocationLane>,
    pub(crate) caller: LaneCaller,
}

/// How the caller is notified.
pub(crate) enum LaneCaller {
    /// It is on this host, and has brought the lane.
    Near {
        /// Rung by the caller.
        own: Doorbell,
        /// Wakes the caller.
        doorbell: Doorbell,
        ringer: Ringer,
        _held: OfLane,
    },
    /// It is on another host.
    Far(Arc<FarLane>),
}

pub(crate) struct ServedLane {
    pub(crate) end: LaneEnd,
    pub(crate) server: SingleServer<View<Slot>>,
    /// An interrupt could not run the request, and left it.
    pub(crate) left: AtomicBool,
    /// A procedure from this lane is with the crew.
    pub(crate) is_ordered: AtomicBool,
}

impl ServedLane {
    fn new(end: LaneEnd) -> Self {
        let server = SingleServer::new(end.lane.slot());
        Self { end, server, left: AtomicBool::new(false), is_ordered: AtomicBool::new(false) }
    }

    /// Returns `true` if a request waits that may be taken.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.server.waits() && !self.is_ordered.load(Ordering::Acquire)
    }

    pub(crate) fn answer(&self, reply: &SlotMessage) {
        self.server.reply(reply);
        match &self.end.caller {
            LaneCaller::Near { ringer, doorbell, .. } => Self::wake(ringer, doorbell),
            LaneCaller::Far(lane) => lane.relay(),
        }
    }

    /// Like [`answer`](Self::answer), in an interrupt: neither blocks nor allocates.
    pub(crate) fn answer_in_interrupt(&self, reply: &SlotMessage) {
        self.server.reply(reply);
        match &self.end.caller {
            LaneCaller::Near { ringer, doorbell, .. } => Self::wake(ringer, doorbell),
            LaneCaller::Far(lane) => lane.ring(),
        }
    }

    fn wake(ringer: &Ringer, doorbell: &Doorbell) {
        match SafeDoorbell::current() {
            Ok(safe_doorbell) => ringer.launched(safe_doorbell, doorbell),
            Err(_) => doorbell.notify(),
        }
    }
}

impl ServiceQueue {
    /// An empty queue, for a thread that runs operations of these names.
    pub(crate) fn new(post: Arc<Post>, names: Vec<(String, OperationKind)>) -> Self {
        Self {
            post,
            names,
            news: KernelMutex::default(),
            has_news: AtomicBool::new(false),
            far: KernelMutex::new(Some(Vec::new())),
        }
    }

    /// Returns `true` if there may be events.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.has_news.load(Ordering::Acquire)
    }

    /// Takes the events.
    pub(crate) fn take_news(&self) -> Vec<ServiceEvent> {
        self.has_news.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.news.lock())
    }

    fn tell(&self, news: ServiceEvent) {
        self.news.lock().push(news);
        self.nudge();
    }

    /// Makes the serving thread look for events.
    pub(crate) fn nudge(&self) {
        self.has_news.store(true, Ordering::Release);
        self.post.rouse();
    }

    /// Adds a lane.
    pub(crate) fn take_in(&self, end: LaneEnd) -> io::Result<()> {
        if let LaneCaller::Near { own, .. } = &end.caller {
            self.post.add(own)?;
        }
        self.tell(ServiceEvent::Came(Arc::new(ServedLane::new(end))));
        Ok(())
    }

    /// Passes the lanes that the thread has not taken yet to `look`.
    ///
    /// It passes none while a lane is being added, because the caller that brings it rings
    /// afterwards. Allocates nothing.
    pub(crate) fn look_at_lanes(&self, mut look: impl FnMut(&ServedLane)) {
        if self.has_news()
            && let Some(news) = self.news.try_lock()
        {
            news.iter().for_each(|one| match one {
                ServiceEvent::Came(served) => look(served),
                ServiceEvent::Gone(_) => {}
            });
        }
    }

    /// A guest on another host is bound to the thread. Returns `false` if that serves no more.
    pub(crate) fn is_used_by(&self, binding: &Arc<FarBinding>) -> bool {
        let mut far = self.far.lock();
        let Some(all) = &mut *far else { return false };
        all.retain(|binding| binding.strong_count() > 0);
        all.push(Arc::downgrade(binding));
        true
    }

    /// The thread takes no more requests.
    pub(crate) fn serves_no_more(&self) {
        let far = self.far.lock().take().unwrap_or_default();
        far.iter().filter_map(Weak::upgrade).for_each(|binding| binding.over());
    }

    /// Forgets a lane that is gone: the post need not watch its doorbell.
    pub(crate) fn forget(&self, served: &ServedLane) {
        if let LaneCaller::Near { own, .. } = &served.end.caller {
            self.post.remove(own);
        }
    }

    /// Reports that a guest is gone.
    pub(crate) fn lost(&self, guest: u64) {
        self.tell(ServiceEvent::Gone(guest));
    }
}
