//! Members' reports beside their messages, for barriers and reductions.

use crate::Rank;
use crate::error::RunError;
use std::cell::{Cell, RefCell};
use upcall_shm::region::RegionView;
use upcall_shm::steps::Steps;

/// The state of a member's barriers.
#[derive(Debug)]
pub(crate) struct BarrierState {
    /// By rank: the reports of the members that have brought a queue. They outlive the queue.
    pub(crate) heard: RefCell<Box<[Option<PeerReports>]>>,
    /// Number of barriers that this member has passed.
    pub(crate) passed: Cell<u64>,
    /// A member that never comes, and this member's error about it.
    pub(crate) missing: RefCell<Option<(Rank, RunError)>>,
    pub(crate) reduction: Reduction,
}

/// The reports of another member.
#[derive(Debug)]
pub(crate) struct PeerReports {
    pub(crate) steps: RegionView<Steps>,
    /// The count of changes when waiting threads were last woken for them.
    pub(crate) seen: Cell<u64>,
}

impl BarrierState {
    pub(crate) fn new(size: usize) -> Self {
        let heard = RefCell::new((0..size).map(|_| None).collect());
        Self {
            heard,
            passed: Cell::new(0),
            missing: RefCell::new(None),
            reduction: Reduction::default(),
        }
    }

    /// Adds the reports of a member that has brought its queue.
    pub(crate) fn brought(&self, from: Rank, steps: RegionView<Steps>) {
        if let Some(heard) = self.heard.borrow_mut().get_mut(from) {
            *heard = Some(PeerReports { steps, seen: Cell::new(0) });
        }
    }

    /// Returns `true` if reports have arrived since [`look`](Self::look).
    pub(crate) fn has_reports(&self) -> bool {
        self.heard.borrow().iter().flatten().any(|heard| heard.steps.changes() != heard.seen.get())
    }

    /// Notes that the threads that wait for reports have seen all reports so far.
    pub(crate) fn look(&self) {
        self.heard
            .borrow()
            .iter()
            .flatten()
            .for_each(|heard| heard.seen.set(heard.steps.changes()));
    }

    /// Returns another member's report that a member never comes: the reporting member, and the
    /// missed one. Words that name no member are no report, and hide no other one.
    pub(crate) fn reported(&self) -> Option<(Rank, Rank)> {
        let heard = self.heard.borrow();
        let of = |by: Rank| {
            Some((by, heard[by].as_ref()?.steps.missing().filter(|missed| *missed < heard.len())?))
        };
        (0..heard.len()).find_map(of)
    }
}

/// The state of a member's reductions.
#[derive(Debug, Default)]
pub(crate) struct Reduction {
    /// Number of reductions that this member has ended.
    pub(crate) done: Cell<u64>,
    /// This member's value for the next one, and its result, as far as they are known.
    pub(crate) combined: Cell<Option<u64>>,
    pub(crate) result: Cell<Option<u64>>,
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use upcall_os::memory::{Mapping, MemoryFile};
    use upcall_shm::region::Region;

    #[test]
    fn a_report_that_names_no_member_hides_no_other_one() {
        let barrier = BarrierState::new(4);
        let steps = [0, 3].map(|from| {
            let file = MemoryFile::create("steps", 4096).unwrap();
            let steps: RegionView<Steps> =
                Region::new(Mapping::shared(&file).unwrap()).unwrap().view(0).unwrap();
            barrier.brought(from, steps.clone());
            steps
        });
        assert_eq!(barrier.reported(), None);
        steps[0].report_missing(usize::MAX - 1);
        assert_eq!(barrier.reported(), None);
        steps[1].report_missing(2);
        assert_eq!(barrier.reported(), Some((3, 2)));
    }
}
