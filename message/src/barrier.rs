//! Barriers: no member goes on before all have arrived.
//!
//! By dissemination (Hensgen, Finkel and Manber, 1988): in round `r` each member reports to the one `2^r` places after it, and waits for
//! the report of the one `2^r` before. After ⌈log2 n⌉ rounds all have arrived. A pair has one round in each barrier, so the barrier's number is
//! the whole report.
//!
//! # Restart
//! A report is a word of its own ([`Steps`]), with the number of the barrier. So no full queue keeps it back, and to repeat it changes
//! nothing. A barrier counts once it is passed: one that ends with an error starts again with the next call, and waits for no report twice.
//!
//! # Peer death
//! Only the kernel's word is a death. A member that waits for a dead one, in a barrier or reduction, gives the step up, and reports that to all
//! that may wait for it; they do the same. So no member waits for a report that never comes, whichever of them die before they have
//! reported. A report that was made before the death counts.

use crate::error::{RunError, SendError};
use crate::link::Link;
use crate::reduction::Reduction;
use crate::sending::Way;
use crate::{Event, Group, Rank};
use std::cell::{Cell, RefCell};
use upcall_shm::region::Shared;
use upcall_shm::steps::Steps;

/// The state of a member's barriers.
#[derive(Debug)]
pub(crate) struct Barrier {
    /// By rank: the reports of the members that have brought a queue. They outlive the queue.
    heard: RefCell<Box<[Option<Heard>]>>,
    /// Number of barriers that this member has passed.
    passed: Cell<u64>,
    /// A member that never comes.
    missing: Cell<Option<Rank>>,
    pub(crate) reduction: Reduction,
}

/// The reports of another member.
#[derive(Debug)]
struct Heard {
    steps: Shared<Steps>,
    /// The count of changes when waiting threads were woken for them last.
    seen: Cell<u64>,
}

/// What is found of a report.
enum Look<R> {
    Came(R),
    Nothing,
    Never(Event),
}

impl Barrier {
    pub(crate) fn new(size: usize) -> Self {
        let heard = RefCell::new((0..size).map(|_| None).collect());
        Self { heard, passed: Cell::new(0), missing: Cell::new(None), reduction: Reduction::default() }
    }

    /// A member has brought its queue.
    pub(crate) fn brought(&self, from: Rank, steps: Shared<Steps>) {
        if let Some(heard) = self.heard.borrow_mut().get_mut(from) {
            *heard = Some(Heard { steps, seen: Cell::new(0) });
        }
    }

    /// Returns `true` if reports have arrived since [`look`](Self::look).
    pub(crate) fn has_reports(&self) -> bool {
        self.heard.borrow().iter().flatten().any(|heard| heard.steps.changes() != heard.seen.get())
    }

    /// The threads that wait for reports look at all reports so far.
    pub(crate) fn look(&self) {
        self.heard.borrow().iter().flatten().for_each(|heard| heard.seen.set(heard.steps.changes()));
    }

    /// A member that never comes, if one is known.
    fn missing(&self) -> Option<Rank> {
        if self.missing.get().is_none() {
            let heard = self.heard.borrow();
            let reported = heard.iter().flatten().find_map(|heard| heard.steps.missing());
            self.missing.set(reported.filter(|&rank| rank < heard.len()));
        }
        self.missing.get()
    }
}

impl Group {
    /// Waits until all members have come here, and runs the handlers of the messages that arrive. Takes a word, and the time that it needs to
    /// come, for each doubling of the group. What the member before this one had sent here before it came was taken then.
    ///
    /// # Errors
    /// [`RunError::Lost`]: a member has ended, or broken the protocol, before it came. All members learn of that, and neither this barrier
    /// nor a later one holds. After any other error the members still wait for this one, and the next call goes on with the same barrier:
    /// [`RunError::Unhandled`]: a message that was sent here before its sender came has no handler. [`RunError::Unsent`]: this process has no memory or descriptor left to
    /// report to another member. [`RunError::Interrupted`].
    ///
    /// # Blocking
    /// For as long as another member lives and does not come. Full queues do not matter.
    pub fn barrier(&self) -> Result<(), RunError> {
        let barrier = self.barriers();
        let number = barrier.passed.get() + 1;
        let (rank, size) = (self.rank(), self.size());
        for step in self.rounds() {
            let (next, from) = ((rank + step) % size, (rank + size - step) % size);
            self.report(next, from, |link| link.steps.report_barrier(number, link.queue.sent()))?;
            self.await_report(from, |steps| Some(((), steps.barrier(number)?)))?;
        }
        barrier.passed.set(number);
        Ok(())
    }

    /// How far away in the ring the partners are in each round, of which no two are the same member.
    fn rounds(&self) -> impl Iterator<Item = usize> {
        let size = self.size();
        (0..usize::BITS).map(|round| 1 << round).take_while(move |step| *step < size)
    }

    /// Reports to another member, while this one waits for `from`.
    pub(crate) fn report(&self, to: Rank, from: Rank, report: impl Fn(&Link)) -> Result<(), RunError> {
        loop {
            match self.way_to(to, |link| {
                report(link);
                link.reported();
            }) {
                Ok(Way::Open(())) => return Ok(()),
                // A member that has ended, and had passed already, needs no report: only the awaited member is missed.
                Err(SendError::Ended { .. } | SendError::Violation { .. }) => return Ok(()),
                Err(error) => return Err(RunError::Unsent { rank: to, why: error.to_string() }),
                Ok(Way::Crowded) => {}
            }
            if let Some(event) = self.never_comes(from) {
                return Err(self.is_missed(event));
            }
            self.poll();
            if self.is_interrupted() {
                return Err(RunError::Interrupted);
            }
            self.nap();
        }
    }

    /// Polls and waits for a report of another member, and until as many of its messages were taken as it had sent before.
    pub(crate) fn await_report<R>(&self, from: Rank, read: impl Fn(&Steps) -> Option<(R, u64)>) -> Result<R, RunError> {
        let look = || {
            // A report that was made before a death counts, so the look for it comes after the look for deaths.
            let never = self.never_comes(from);
            let heard = self.barriers().heard.borrow();
            match heard[from].as_ref().and_then(|heard| read(&heard.steps)) {
                Some((report, sent)) if self.has_taken(from, sent) => Look::Came(report),
                Some(_) => Look::Nothing,
                None => never.map_or(Look::Nothing, Look::Never),
            }
        };
        loop {
            match look() {
                Look::Came(report) => return Ok(report),
                Look::Never(event) => return Err(self.is_missed(event)),
                Look::Nothing => {}
            }
            if self.poll() == 0 {
                // What was sent after the report is no matter of this step.
                match self.check_handlers(Some(from)) {
                    Err(unhandled) if matches!(look(), Look::Nothing) => return Err(unhandled),
                    _ => {}
                }
                self.wait_unless(None, || !matches!(look(), Look::Nothing));
                if self.is_interrupted() {
                    return Err(RunError::Interrupted);
                }
            }
        }
    }

    /// Returns `true` if so many messages of a member were taken, or all that will ever come.
    fn has_taken(&self, from: Rank, count: u64) -> bool {
        let inbound = self.inbound().iter().find(|inbound| inbound.from() == from).cloned();
        inbound.is_none_or(|inbound| inbound.taken() >= count)
    }

    /// Why a member that is waited for, or a member that it waits for, never comes.
    fn never_comes(&self, member: Rank) -> Option<Event> {
        let missing = self.barriers().missing().map(|rank| Event::Ended { rank });
        missing.or_else(|| self.lost(member)).or_else(|| {
            // Its last messages may wait here for ever.
            let has_ended = self.inbound().iter().any(|inbound| inbound.from() == member && inbound.ended.get());
            has_ended.then_some(Event::Ended { rank: member })
        })
    }

    /// Reports that a member never comes to all that may wait for this one, which reports no further step. They do the same.
    fn is_missed(&self, event: Event) -> RunError {
        let (Event::Ended { rank: missed } | Event::Violation { rank: missed, .. }) = event;
        self.barriers().missing.set(Some(missed));
        let (rank, size) = (self.rank(), self.size());
        let next = self.rounds().map(|step| (rank + step) % size);
        for other in next.chain(self.children()).chain(self.parent()).filter(|other| *other != missed) {
            // A member that cannot be reached for want of resources learns of it when this one ends.
            let _ = self.way_to(other, |link| {
                link.steps.report_missing(missed);
                link.reported();
            });
        }
        RunError::Lost(event)
    }
}
