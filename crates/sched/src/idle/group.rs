//! A group of virtual processors that serve the same lanes: the processors of one scheduler, and
//! its spares.

use super::own::Hindrance;
use super::queue::WorkQueue;
use super::takeover::Takeover;
use crate::domain::{Domain, MOST_PROCESSORS};
use crate::duty::Duty;
use crate::pacing::Pacing;
use crate::server::ServerLane;
use std::io;
use std::sync::{Arc, OnceLock};
use upcall_os::atomic::{AtomicU32, AtomicUsize, Ordering, Ordering::Relaxed};
use upcall_os::lock::{KernelMutex, MutexGuard};
use upcall_thread::Vp;

/// The idle behaviour of one scheduler's virtual processors. Give it to the scheduler, and to the
/// channels that they serve.
#[derive(Clone, Debug)]
pub struct PollingIdle {
    pub(super) group: Arc<ProcessorGroup>,
    /// Index in the group of the scheduler's first processor: 0, or the index of a spare.
    pub(super) first: usize,
}

#[derive(Debug)]
pub(super) struct ProcessorGroup {
    pub(super) domain: &'static Domain,
    pub(super) count: usize,
    pub(super) pacing: Pacing,
    /// The lanes that this group of processors serves.
    pub(super) lanes: KernelMutex<Vec<Arc<ServerLane>>>,
    /// The scheduler's own processors, in its order, followed by spares.
    pub(super) members: [GroupProcessor; MOST_PROCESSORS],
    /// The reason why the first member that could not begin did not.
    pub(super) hindrance: OnceLock<Hindrance>,
    pub(super) homes: AtomicUsize,
    pub(super) queue: WorkQueue,
    /// Number of members whose duty a substitute has.
    pub(super) taken: AtomicUsize,
    /// `None` if stalled processors are not taken over.
    pub(super) takeover: OnceLock<Takeover>,
}

/// A virtual processor of a group.
#[derive(Debug, Default)]
pub(super) struct GroupProcessor {
    /// The member's number in the domain plus one, or 0 while the member does not run.
    pub(super) number: AtomicUsize,
    /// The member's kernel thread.
    pub(super) tid: AtomicU32,
    pub(super) duty: Arc<Duty>,
}

impl GroupProcessor {
    pub(super) fn number(&self) -> Option<usize> {
        self.number.load(Ordering::Acquire).checked_sub(1)
    }
}

impl PollingIdle {
    /// Creates the behaviour for a scheduler with `count` virtual processors, with this pacing.
    ///
    /// # Errors
    /// No descriptor or no memory left.
    pub fn new(count: usize, pacing: Pacing) -> io::Result<Self> {
        let group = Arc::new(ProcessorGroup {
            domain: Domain::current()?,
            count,
            pacing,
            lanes: KernelMutex::default(),
            members: std::array::from_fn(|_| GroupProcessor::default()),
            hindrance: OnceLock::new(),
            homes: AtomicUsize::new(0),
            queue: WorkQueue::default(),
            taken: AtomicUsize::new(0),
            takeover: OnceLock::new(),
        });
        Ok(Self { group, first: 0 })
    }

    /// The duty of the first processor. The only processor of a server is alone with its lanes
    /// until a spare begins.
    pub(crate) fn duty(&self) -> &Arc<Duty> {
        &self.group.members[0].duty
    }

    /// The caller's member of the group.
    #[inline(always)]
    pub(super) fn member(&self, vp: &Vp) -> &GroupProcessor {
        // `begin` refuses an index beyond the last member.
        &self.group.members[(self.first + vp.index()) % MOST_PROCESSORS]
    }

    /// Checks that all processors probe for calls. To be called by the thread that its scheduler
    /// began with: the other processors have begun before it.
    ///
    /// # Errors
    /// A processor does not probe: 32 virtual processors of this process call or serve already, or
    /// there was no descriptor or memory for it.
    pub fn check(&self) -> io::Result<()> {
        if self.running().count() == self.group.count {
            return Ok(());
        }
        Err(self.group.hindrance.get().copied().unwrap_or(Hindrance::Full).into())
    }

    /// Number in the domain of the processor that the next channel notifies. They take turns.
    /// `None` before any has begun.
    pub fn next_home(&self) -> Option<u16> {
        let turn = self.group.homes.fetch_add(1, Relaxed) % self.running().count().max(1);
        self.running().nth(turn).map(|number| number as u16)
    }

    /// Numbers in the domain of the scheduler's own processors that have begun.
    pub(super) fn running(&self) -> impl Iterator<Item = usize> + Clone {
        self.group.members[..self.group.count.min(MOST_PROCESSORS)]
            .iter()
            .filter_map(GroupProcessor::number)
    }

    pub(crate) fn add_lane(&self, lane: Arc<ServerLane>) {
        let mut lanes = self.lanes();
        // Under the lock: `share_lanes` changes all lanes that are in the list.
        lane.is_alone(self.group.count == 1 && !self.has_shared_lanes());
        lanes.push(lane);
        drop(lanes);
        self.group.domain.changed();
    }

    pub(crate) fn remove_lanes(&self, gone: impl Fn(&ServerLane) -> bool) {
        self.lanes().retain(|lane| !gone(lane));
        self.group.domain.changed();
    }

    /// Notes that the processors of the group have changed, and with them the owners of the lanes.
    pub(super) fn have_others_share(&self) {
        if self.first == 0 && self.group.count > 1 && !self.lanes().is_empty() {
            self.group.domain.changed();
        }
    }

    pub(super) fn lanes(&self) -> MutexGuard<'_, Vec<Arc<ServerLane>>> {
        self.group.lanes.lock()
    }
}
